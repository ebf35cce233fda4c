"""What makes a call again: compiled code, or functions of Python where a call is no program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from implicit_conv.arrays.arrays import Array, RepeatedCall
from implicit_conv.kernels.cpu.runtime.program import Access, Words
from implicit_conv.process.preparation import imported, imports, prepare_later

if TYPE_CHECKING:
    from implicit_conv.cpu.run.call import Call
    from implicit_conv.kernels.cpu.runtime.same_arrays import Record

# Calls after which compiled code makes them. What it needs takes about as long to make as 100 calls
# take less time by it (EPYC 9004, 2026-11).
OFTEN = 32
MODULE = "implicit_conv.kernels.cpu.runtime.repeated"  # which loads that code


@imports
def _compiled() -> Any:
    from implicit_conv.kernels.cpu.runtime.repeated import again

    return again


class RepeatedArrays(RepeatedCall):
    """A call of arrays that has been made before; `differing` compares others with their record."""

    call: Call

    def __init__(self, key: Any, call: Call, record: Record, differing: Callable[..., int]) -> None:
        super().__init__(key, call)
        self._record, self._differing, self._left = record, differing, OFTEN

    def again(self, x: Any, read: Any, bias: Any, residual: Any, out: Any, w: Any) -> Any:
        """The result; see `RepeatedCall`. A compiled function takes the place of this one."""
        if self._differing(x, read, bias, residual, out):
            return None
        operand = w if w is read else w.operand
        y = self.call(x, operand, bias, out, residual)
        self._left -= 1
        if self._left == 0:
            self._compile(bias, y)
        return y

    def _compile(self, bias: Any, y: Array) -> None:
        """Have compiled code make the call. Another thread first loads that code, so that this call
        takes no longer than others.
        """
        if not imported(MODULE):
            prepare_later(lambda: [_compiled()])
            self._left = OFTEN
            return
        words = self.call.program.words
        if words is None or (bias is not None and not _takes(words.bias, bias)):
            return  # Python makes the call
        compiled = compiled_again(self._record, words, y)
        if compiled is not None:
            self.again = compiled  # type: ignore[method-assign]


def compiled_again(record: Record, words: Words, y: Array) -> Callable[..., Any] | None:
    """The function in compiled code; None if it cannot run this program."""
    made: Callable[..., Any] | None = _compiled()(record, words, y)
    return made


def _takes(access: Access | None, array: Array) -> bool:
    stored = array.dtype.name, array.shape, array.strides, array.ctypes.data
    return access is not None and access.takes(*stored)
