"""The kernel table: addresses of the emitted kernels, so that each is compiled once and on demand.

Compiled code calls them by address, as a launch calls a kernel. Inlined instead, every caller would
optimise the same thousand vector instructions again, and first calls would take seconds longer.
"""

from types import FunctionType

from llvmlite import ir
from numba.extending import register_jitable

from implicit_conv.kernels.cpu.cache import entry
from implicit_conv.kernels.cpu.vector import VOID

HEIGHTS = 16  # microkernels: [vectors - 1][groups][inner], groups and inner below HEIGHTS
MICROKERNELS = 2 * HEIGHTS * HEIGHTS
TRANSPOSES = 4  # [step - 1][edge]
SLOTS = MICROKERNELS + TRANSPOSES


@register_jitable
def microkernel_slot(vectors, groups, inner):
    """Place of the microkernel of a register tile."""
    return ((vectors - 1) * HEIGHTS + groups) * HEIGHTS + inner


@register_jitable
def transpose_slot(step, edge):
    """Place of the transpose that keeps every step-th column; `edge` for a partial block."""
    return MICROKERNELS + 2 * (step - 1) + edge


def compile_variant(signature, template, name, **bound):
    """Compile `template` over its module's globals and those `bound` for this variant.

    Bound names are globals, not closure cells, since Numba cannot recognise a closure over compiled
    functions in its cache; and each variant has a name of its own, hence a cache entry of its own.
    """
    namespace = {**template.__globals__, **bound}
    function = FunctionType(template.__code__, namespace, name)
    function.__qualname__ = name
    return entry(signature)(function)


def emit_call(builder, arguments):
    """Call the address arguments[0] with the other arguments."""
    address, *rest = arguments
    kind = ir.FunctionType(VOID, [value.type for value in rest])
    builder.call(builder.inttoptr(address, kind.as_pointer()), rest)
