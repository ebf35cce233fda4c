"""Parts: compiled functions that other compiled code calls by slot.

A part is declared once, beside what emits it: its slot in the kernel table, its name, and the names
of its parameters. It is compiled by this declaration, and called by it: with keywords, so that a
name, a number or a type that does not fit is an error when the calling code is translated.

    add_sums = declare(ADD_SUMS, "add_sums", "to at size")
    add_sums(call.kernels, to=above, at=sums, size=call.gradient.item_sums)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import defined
from implicit_conv.kernels.cpu.emit.vector import VOID

LIMITS = ("low", "high")  # float64 parameters of the parts that clamp what they store
POINTER = "blob"  # the parameter that is a pointer to the params blob, if a part has it


class Part(NamedTuple):
    """The declaration of a part."""

    slot: int  # the only one, or the first of an array of slots, of which calls choose one
    name: str
    integers: tuple[str, ...]  # int64 parameters, and POINTER
    floats: tuple[str, ...]  # float64 parameters, after the integers

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters, in the order in which compiled code passes them."""
        return self.integers + self.floats

    def signature(self, pointer: Any) -> Any:
        """The signature of the compiled part; `pointer` is the type of POINTER."""
        kinds = [pointer if name == POINTER else types.int64 for name in self.integers]
        return types.void(*kinds, *[types.float64] * len(self.floats))


def declare(slot: int, name: str, integers: str, floats: str = "", **defaults: float) -> Any:
    """Declare a part.

    Parameters
    ----------
    slot : int
        Its slot, or the first of an array of slots.
    name : str
        How its cache entries begin, and how errors call it.
    integers, floats : str
        The names of its parameters, separated by blanks.
    defaults : numbers
        What a call passes for the parameters that it leaves out.

    Returns
    -------
    call : intrinsic
        ``call(kernels, name=value, ...)`` runs the part of the kernel table at address `kernels`;
        ``slot=`` chooses one of an array of slots. Its attribute `part` is the declaration.
    """
    part = Part(slot, name, tuple(integers.split()), tuple(floats.split()))
    assert set(defaults) <= set(part.parameters), defaults
    names = [each for each in part.parameters if each not in defaults]
    names += [*defaults, "slot"]

    def define(_: Any, *kinds: Any) -> tuple[Any, Callable[..., Any]]:
        return _call(part, names, kinds)

    return defined(name, ["kernels", *names], define, (*defaults.values(), slot), part)


def body(part: Part, emit: Callable[[ir.IRBuilder, dict[str, ir.Value]], None]) -> Any:
    """An intrinsic with the parameters of a part that ``emit(builder, at)`` emits."""

    def define(*kinds: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit(builder, dict(zip(part.parameters, arguments, strict=True)))
            return context.get_dummy_value()

        return part.signature(kinds[0]), codegen

    return defined(part.name, part.parameters, define)


def _call(part: Part, names: list[str], kinds: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
    """The definition of an intrinsic: the signature of a call, and what emits it.

    The parameters after `kernels` have these names, in the order of a call.
    """
    wanted = dict.fromkeys(names, types.int64) | dict.fromkeys(part.floats, types.float64)
    if POINTER in wanted:
        wanted[POINTER] = kinds[names.index(POINTER)]

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kernels, *values = arguments
        by_name = dict(zip(names, values, strict=True))
        passed = [by_name[name] for name in part.parameters]
        kind = ir.FunctionType(VOID, [value.type for value in passed])
        place = builder.add(kernels, builder.mul(by_name["slot"], ir.Constant(kernels.type, 8)))
        address = builder.load(builder.inttoptr(place, kind.as_pointer().as_pointer()))
        builder.call(address, passed)
        return context.get_dummy_value()

    return types.void(types.int64, *wanted.values()), codegen
