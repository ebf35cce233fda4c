"""The staging tile's way out: residual, activation, then rows or transposed blocks into y.

A staging tile is ``[image][row][column][filter of the panel]``. What a clamp can do (none, relu,
relu6) and a channels-last output of whole panels never come here: the microkernel stores those
itself.
"""

import functools
import math

from numba import carray

from implicit_conv.kernels.activation import CLAMP, GELU, LEAKY_RELU, SIGMOID, SILU, TANH
from implicit_conv.kernels.cpu import memory
from implicit_conv.kernels.cpu.cache import kernel
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
def make_store(lanes, itemsize):
    """store for elements of `itemsize` bytes and vectors of `lanes`."""
    transpose_block = make_transpose_block(lanes)
    copy_element = memory.copy_bytes(itemsize)
    as_float = memory.float_pointer if itemsize == 4 else memory.double_pointer

    @kernel()
    def finish(call, staging, width, filters, count, residual):
        """Residual and activation over `count` pixels of a row, in place."""
        kind = int(memory.read_float(call.activation))
        low = memory.read_float(call.activation + 8)
        high = memory.read_float(call.activation + 16)
        for pixel in range(count):
            values = carray(as_float(staging + pixel * width * itemsize), width)
            for k in range(filters):
                value = values[k]
                if call.residual:
                    at = residual + pixel * call.residual_q + k * call.residual_k
                    value += carray(as_float(at), 1)[0]
                values[k] = activate(value, kind, low, high)

    @kernel()
    def write_pixels(call, staging, width, filters, count, y):
        """`count` pixels, y_q apart, to y: transposed where pixels are contiguous there."""
        pitch = width * itemsize
        if call.y_k == itemsize:
            for pixel in range(count):
                memory.copy(y + pixel * call.y_q, staging + pixel * pitch, filters * itemsize)
        elif call.y_q == itemsize:
            for k in range(0, filters, lanes):
                for pixel in range(0, count, lanes):
                    transpose_block(
                        call.kernels, 1,
                        staging + pixel * pitch + k * itemsize, pitch,
                        y + pixel * itemsize + k * call.y_k, call.y_k,
                        min(lanes, count - pixel), min(lanes, filters - k),
                    )  # fmt: skip
        else:
            for pixel in range(count):
                for k in range(filters):
                    copy_element(
                        y + pixel * call.y_q + k * call.y_k,
                        staging + pixel * pitch + k * itemsize,
                    )

    @kernel()
    def store(call, g, staging, width, filters, origin, extent, k):
        """Finish a staging tile of filters k .. k + filters - 1 and write it to y."""
        images, rows, columns = extent
        plain = call.residual == 0 and memory.read_float(call.activation) == CLAMP
        plain = plain and memory.read_float(call.activation + 8) == -math.inf
        plain = plain and memory.read_float(call.activation + 16) == math.inf
        if call.y_p == columns * call.y_q and columns == g.Q and (call.residual == 0):
            columns, rows = rows * columns, 1  # rows lie one behind the other
        for image in range(images):
            n = origin[0] + image
            for row in range(rows):
                p = origin[1] + row
                at = staging + (image * rows + row) * columns * width * itemsize
                if not plain:
                    residual = call.residual + n * call.residual_n + p * call.residual_p
                    residual += origin[2] * call.residual_q + k * call.residual_k
                    finish(call, at, width, filters, columns, residual)
                y = call.y + n * call.y_n + p * call.y_p + origin[2] * call.y_q + k * call.y_k
                write_pixels(call, at, width, filters, columns, y)

    return store
