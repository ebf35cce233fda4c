"""The kernel table: addresses of the engine's parts, each compiled once, on demand, kept on disk.

Compiled code calls them by address, as a launch calls a kernel. Inlined instead, every caller would
optimise the same thousand vector instructions again, and first calls would take seconds longer.
"""

import functools
from types import FunctionType

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from implicit_conv.kernels.activation import ACTIVATIONS
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import VOID
from implicit_conv.kernels.cpu.runtime.cache import entry

HEIGHTS = 33  # microkernels: [vectors - 1][groups][inner], groups and inner below HEIGHTS
TRANSPOSE_IN = 2 * HEIGHTS * HEIGHTS  # transposes of x and w: [step - 1][edge]
TRANSPOSE_OUT = TRANSPOSE_IN + 4  # of y: [edge]
TRANSPOSE_WORDS = TRANSPOSE_OUT + 2  # of pairs as they are: [edge]
TRANSPOSE_TAPS = TRANSPOSE_WORDS + 2  # of filters whose taps lie together: [edge]
LOAD_TILE = TRANSPOSE_TAPS + 2
PACK_BLOCK = LOAD_TILE + 1
STORE_TILE = PACK_BLOCK + 1
WINOGRAD_INPUT = STORE_TILE + 1
WINOGRAD_FILTER = WINOGRAD_INPUT + 1
WINOGRAD_OUTPUT = WINOGRAD_FILTER + 1
DEPTHWISE = WINOGRAD_OUTPUT + 1  # depthwise microkernels: [pixels], below HEIGHTS
DEPTHWISE_ROW = DEPTHWISE + HEIGHTS  # likewise, those that take a filter row at once
PLANES = DEPTHWISE_ROW + HEIGHTS  # depthwise microkernels of planes: [rows], below HEIGHTS
PIXEL_LANES = PLANES + HEIGHTS  # microkernels whose lanes are pixels: [rows][filters]
LOAD_ROWS = PIXEL_LANES + HEIGHTS**2
GATHER_ROWS = LOAD_ROWS + 1
LOAD_PLANES = GATHER_ROWS + 1
SPREAD_ROW = LOAD_PLANES + 1
WRITE_LOADS = SPREAD_ROW + 1
CHANNEL_LANES = WRITE_LOADS + 1  # the microkernel whose lanes are channels
FINISH = CHANNEL_LANES + 1  # [activation][residual]
SLOTS = FINISH + 2 * ACTIVATIONS

LIMITS = ("low", "high")  # float64 arguments of the parts that clamp what they write


@register_jitable
def microkernel_slot(vectors, groups, inner):
    """Place of the microkernel of a register tile."""
    return ((vectors - 1) * HEIGHTS + groups) * HEIGHTS + inner


@register_jitable
def pixel_lanes_slot(filters, rows):
    """Place of the microkernel of filters x output rows whose lanes are pixels; 0 for a tail."""
    return PIXEL_LANES + rows * HEIGHTS + filters


@register_jitable
def transpose_slot(way, step, edge):
    """Place of the transpose that keeps every step-th column; `edge` for a partial block."""
    return way + 2 * (step - 1) + edge


@intrinsic
def _call_address(typingctx, address, *arguments):
    packed = types.StarArgTuple.from_types(arguments)

    def codegen(context, builder, signature, args):
        values = cgutils.unpack_tuple(builder, args[1])
        kind = ir.FunctionType(VOID, [value.type for value in values])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(types.int64, packed), codegen


@register_jitable
def run_part(kernels, slot, *arguments):
    """Call the part at `slot` of the table at address `kernels`; it returns nothing."""
    _call_address(memory.read(kernels + 8 * slot), *arguments)


BOUND = object()  # the value of a template's globals until `compile_part` binds them


def compile_part(signature, template, name, **bound):
    """Compile `template` over its module's globals, of which those in `bound` are the variant's.

    Bound names are globals, not closure cells, since Numba cannot recognise a closure over compiled
    functions in its cache; the template's module declares them as BOUND. Each variant has a name of
    its own, hence a cache entry of its own.
    """
    assert all(template.__globals__.get(variable) is BOUND for variable in bound), bound.keys()
    namespace = {**template.__globals__, **bound}
    function = FunctionType(template.__code__, namespace, name)
    function.__qualname__ = name
    return entry(signature)(function)


def compile_emitted(name, integers, floats, emit):
    """Compile a part whose whole body is emitted: ``emit(builder, at)``.

    `integers` and `floats` name the part's int64 arguments and the float64 arguments after them;
    `at` maps each name to its LLVM value.
    """
    names = (*integers, *floats)

    @intrinsic
    def body(typingctx, *arguments):
        def codegen(context, builder, _, args):
            values = cgutils.unpack_tuple(builder, args[0])
            emit(builder, dict(zip(names, values, strict=True)))
            return context.get_dummy_value()

        return types.void(types.StarArgTuple.from_types(arguments)), codegen

    signature = types.void(*[types.int64] * len(integers), *[types.float64] * len(floats))
    return compile_part(signature, _template(names), name, body=body)


@functools.cache
def _template(names):
    """``def part(a, b, ...): body(a, b, ...)`` with arguments of these names.

    A C callback takes its arguments one by one, so Numba needs a function that lists them. It is
    generated from the one tuple of names, in this file, which is where Numba's cache looks for it.
    """
    listed = ", ".join(names)
    namespace = {"__name__": __name__, "body": BOUND}
    exec(compile(f"def part({listed}): body({listed})", __file__, "exec"), namespace)
    return namespace["part"]
