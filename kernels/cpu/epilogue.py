"""The staging tile's way out: residual, activation, then rows or transposed blocks into y.

A staging tile is ``[image][row][column][filter of the panel]``. A clamp (none, relu, relu6) over
whole panels of a channels-last output never comes here: the microkernel stores those itself.
"""

import functools
import math

from numba import types

from implicit_conv.kernels.activation import (
    CLAMP,
    GELU,
    HARDSWISH,
    LEAKY_RELU,
    SIGMOID,
    SILU,
    TANH,
)
from implicit_conv.kernels.cpu import memory, storage
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import schedule
from implicit_conv.kernels.cpu.launch import BLOB_POINTER, fields
from implicit_conv.kernels.cpu.table import TRANSPOSE_OUT, compile_part
from implicit_conv.kernels.cpu.transpose import make_transpose_block


@kernel()
def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


@kernel()
def activate(x, kind, low, high):  # noqa: PLR0911, one return a kind
    """The activation of one float64; a NaN stays a NaN."""
    if kind == CLAMP:
        x = low if x < low else x
        return high if x > high else x
    if kind == LEAKY_RELU:
        return x * low if x < 0 else x
    if x == -math.inf and kind in (SILU, GELU, HARDSWISH):
        return 0.0  # their limit; the products below would be of infinity and zero
    if kind == SILU:
        return x * sigmoid(x)
    if kind == GELU:
        return 0.5 * x * math.erfc(-x * math.sqrt(0.5))
    if kind == SIGMOID:
        return sigmoid(x)
    if kind == TANH:
        return math.tanh(x)
    return x * min(max(x + 3.0, 0.0), 6.0) / 6.0


@functools.cache
def compile_activate():
    """activate(values, kind, low, high): the activation of every float of an array, in place."""
    arrays = [types.Array(element, 1, "C") for element in (types.float32, types.float64)]

    @kernel([types.void(array, types.float64, types.float64, types.float64) for array in arrays])
    def activate_all(values, kind, low, high):
        for i in range(values.size):
            values[i] = activate(values[i], kind, low, high)

    return activate_all


@functools.cache
def make_epilogue(lanes, form):
    """(finish, write) for rows of pixels of numbers of `form`."""
    transpose_block = make_transpose_block(TRANSPOSE_OUT, lanes)
    move = storage.make_move(form.sums, form.y, lanes)
    move_element = storage.make_move_element(form.sums, form.y)
    itemsize, size = storage.SIZES[form.sums], storage.SIZES[form.y]
    read_element, write_element = storage.make_read(form.sums), storage.make_write(form.sums)
    read_residual = storage.make_read(form.x)

    @kernel()
    def finish(call, staging, width, filters, count, residual):
        """Residual and activation of `count` pixels, in place."""
        kind = int(memory.read_float(call.activation))
        low, high = (
            memory.read_float(call.activation + 8),
            memory.read_float(call.activation + 16),
        )
        for pixel in range(count):
            for k in range(filters):
                at = staging + (pixel * width + k) * itemsize
                value = read_element(at)
                if call.residual:
                    value += read_residual(residual + pixel * call.residual_q + k * call.residual_k)
                write_element(at, activate(value, kind, low, high))

    @kernel()
    def write(call, staging, width, filters, count, y):
        """`count` pixels, y_q apart, to y: transposed where pixels lie together there."""
        pitch = width * itemsize
        if call.y_k == size:
            for pixel in range(count):
                move(y + pixel * call.y_q, staging + pixel * pitch, filters)
        elif call.y_q == size:
            for k in range(0, filters, lanes):
                for pixel in range(0, count, lanes):
                    source = staging + pixel * pitch + k * itemsize
                    target = y + pixel * size + k * call.y_k
                    rows, columns = min(lanes, count - pixel), min(lanes, filters - k)
                    transpose_block(call.kernels, 1, source, pitch, target, call.y_k, rows, columns)
        else:
            for pixel in range(count):
                for k in range(filters):
                    source = staging + pixel * pitch + k * itemsize
                    move_element(y + pixel * call.y_q + k * call.y_k, source)

    return finish, write


def store_tile(blob, staging, width, n0, p0, q0, k, filters):
    """Template of the part that finishes a staging tile of filters k, k + 1, ... and writes it.

    Rows and columns past the output's end are left behind.
    """
    call, g = fields(blob).call, fields(blob).geometry
    images, staged_rows, pitch = schedule.tile_extent(g, n0, p0, q0)
    rows, columns = min(staged_rows, call.p_end - p0), min(pitch, call.q_end - q0)
    if call.clamps and columns == pitch == call.q_end and call.y_p == columns * call.y_q:
        columns, rows = rows * columns, 1  # rows lie one behind the other: one long row
    for image in range(images):
        n = n0 + image
        for row in range(rows):
            p = p0 + row
            at = staging + (image * staged_rows + row) * pitch * width * call.itemsize
            if not call.clamps:
                residual = call.residual + n * call.residual_n + p * call.residual_p
                residual += q0 * call.residual_q + k * call.residual_k
                finish(call, at, width, filters, columns, residual)  # noqa: F821, bound
            y = call.y + n * call.y_n + p * call.y_p + q0 * call.y_q + k * call.y_k
            write(call, at, width, filters, columns, y)  # noqa: F821, bound


SIGNATURE = types.void(BLOB_POINTER, *[types.int64] * 7)


@functools.cache
def compile_store_tile(lanes, form):
    """The part that stores staging tiles of numbers of `form`."""
    finish, write = make_epilogue(lanes, form)
    name = f"store_tile_{lanes}x{form.x}_{form.sums}_{form.y}"
    return compile_part(SIGNATURE, store_tile, name, finish=finish, write=write)
