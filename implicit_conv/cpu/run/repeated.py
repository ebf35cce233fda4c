"""What makes a call again: compiled code, or functions of Python where a call is no program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from implicit_conv.arrays.arrays import Array
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.program import Program, Room, room_array
from implicit_conv.kernels.preparation import imports

if TYPE_CHECKING:
    from implicit_conv.cpu.run.call import Call
    from implicit_conv.kernels.cpu.runtime.same_arrays import Record

PLACES = 1 << 60, 2 << 60, 3 << 60  # addresses that stand for those of x, w and y


@imports
def _compiled() -> Any:
    from implicit_conv.kernels.cpu.runtime.repeated import again

    return again


def again(
    call: Call,
    record: Record,
    differing: Callable[..., int],
    arrays: tuple[Any, ...],
    operand: Any,
    y: Array,
) -> Callable[..., Any]:
    """A function (x, w, bias, residual, out, filter) that makes a call again; see `RepeatedCall`.

    `arrays` are (x, w, bias, residual, out) of the call that gave `y`, and `differing` compares
    others with their `record`; `operand` is what `call` takes for the filter.
    """
    compiled = compiled_again(call, record, arrays, operand, y)
    if compiled is not None:
        return compiled

    def by_python(x: Array, read: Any, bias: Any, residual: Any, out: Any, w: Any) -> Array | None:
        if differing(x, read, bias, residual, out):
            return None
        return call(x, w if w is read else w.operand, bias, out, residual)

    return by_python


def compiled_again(
    call: Call, record: Record, arrays: tuple[Any, ...], operand: Any, y: Array
) -> Callable[..., Any] | None:
    """The function in compiled code; None if Python must make the call."""
    program = _program(call, arrays, operand, y)
    made: Callable[..., Any] | None = None if program is None else _compiled()(record, program, y)
    return made


def _program(call: Call, arrays: tuple[Any, ...], operand: Any, y: Array) -> Program | None:
    """The program of a call; None if it is none, or if a program would not know its bias."""
    x, read, bias, residual, _ = arrays
    if not call.takes_addresses or residual is not None or read is None:
        return None
    places = [_at(place, array) for place, array in zip(PLACES, (x, read, y), strict=True)]
    w = PLACES[1] if type(operand) is int else _at(PLACES[1], operand)
    room = Room()
    try:
        program = Program(call.steps(places[0], w, places[2], room), room, places)
    except (PlanError, ValueError):
        return None
    known = bias is None or (program.takes_bias and call.adds_in_place(bias))
    return program if known else None


def _at(place: int, array: Array) -> Array:
    return room_array(place, array.shape, array.dtype, array.strides)
