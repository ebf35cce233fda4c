"""What makes a call again: compiled code, or functions of Python where a call is no program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from implicit_conv.arrays.arrays import Array, RepeatedCall
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.program import Access, Program, Room, room_array
from implicit_conv.kernels.preparation import imported, imports, prepare_later

if TYPE_CHECKING:
    from implicit_conv.cpu.run.call import Call
    from implicit_conv.kernels.cpu.runtime.same_arrays import Record

# Calls after which compiled code makes them. What it needs takes about as long to make as 100 calls
# take less time by it (EPYC 9004, 2026-11).
OFTEN = 32
MODULE = "implicit_conv.kernels.cpu.runtime.repeated"  # which loads that code
PLACES = 1 << 60, 2 << 60, 3 << 60  # addresses that stand for those of x, w and y


@imports
def _compiled() -> Any:
    from implicit_conv.kernels.cpu.runtime.repeated import again

    return again


class RepeatedArrays(RepeatedCall):
    """A call of arrays that has been made before; `differing` compares others with their record."""

    def __init__(self, key: Any, call: Call, record: Record, differing: Callable[..., int]) -> None:
        super().__init__(key, call)
        self._record, self._differing, self._left = record, differing, OFTEN

    def again(self, x: Any, read: Any, bias: Any, residual: Any, out: Any, w: Any) -> Any:
        """The result; see `RepeatedCall`. A compiled function takes the place of this one."""
        arrays = x, read, bias, residual, out
        if self._differing(*arrays):
            return None
        operand = w if w is read else w.operand
        y = self.call(x, operand, bias, out, residual)
        self._left -= 1
        if self._left == 0:
            self._compile(arrays, operand, y)
        return y

    def _compile(self, arrays: tuple[Any, ...], operand: Any, y: Array) -> None:
        """Have compiled code make the call. Another thread first loads that code, so that this call
        takes no longer than others.
        """
        if not imported(MODULE):
            prepare_later(lambda: [_compiled()])
            self._left = OFTEN
            return
        compiled = compiled_again(self.call, self._record, arrays, operand, y)
        if compiled is not None:
            self.again = compiled  # type: ignore[method-assign]


def compiled_again(
    call: Any, record: Record, arrays: tuple[Any, ...], operand: Any, y: Array
) -> Callable[..., Any] | None:
    """The function in compiled code; None if Python must make the call."""
    program = _program(call, arrays, operand, y)
    made: Callable[..., Any] | None = None if program is None else _compiled()(record, program, y)
    return made


def _program(call: Any, arrays: tuple[Any, ...], operand: Any, y: Array) -> Program | None:
    """The program of a call; None if it is none, or not one that adds what the call adds."""
    x, read, bias, residual, _ = arrays
    if not call.takes_addresses or read is None:
        return None
    places = [_at(place, array) for place, array in zip(PLACES, (x, read, y), strict=True)]
    w = PLACES[1] if type(operand) is int else _at(PLACES[1], operand)
    room = Room()
    try:
        steps = call.steps(places[0], w, places[2], room)
        if bias is None:
            steps = [step._replace(sums=None) for step in steps]
        program = Program(steps, room, places)
    except (PlanError, ValueError):
        return None
    if bias is not None and not _takes(program.bias, bias):
        return None
    return None if residual is not None and len(steps) > 1 else program


def _takes(access: Access | None, array: Array) -> bool:
    stored = array.dtype.name, array.shape, array.strides, array.ctypes.data
    return access is not None and access.takes(*stored)


def _at(place: int, array: Array) -> Array:
    return room_array(place, array.shape, array.dtype, array.strides)
