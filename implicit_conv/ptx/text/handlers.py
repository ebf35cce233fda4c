"""From an instruction to the lines of Python that do it: one handler for each opcode."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from implicit_conv.ptx.errors import UNFORESEEN, PtxError, UnsupportedError, shortened
from implicit_conv.ptx.syntax import Instruction
from implicit_conv.ptx.text import (
    translate_async,
    translate_memory,
    translate_scalar,
    translate_warp,
)
from implicit_conv.ptx.text.emit import Emitter, unsupported

Handler: TypeAlias = "Callable[[Emitter, Instruction], list[str]]"
HANDLERS: dict[str, Handler] = {
    **translate_scalar.HANDLERS,
    **translate_memory.HANDLERS,
    **translate_warp.HANDLERS,
    **translate_async.HANDLERS,
}
# Hints: they change nothing that a program can see (PTX ISA 9.7.9, 9.7.13 and 9.7.19).
NO_EFFECT = ("prefetch", "prefetchu", "griddepcontrol", "nanosleep", "applypriority", "pmevent")


def statements(emitter: Emitter, i: Instruction, full: bool) -> list[str]:
    """The lines of an instruction, in a function for all lanes (`full`) or for some.

    Raises
    ------
    UnsupportedError
        The instruction, its type or a modifier is not covered.
    """
    if i.opcode[0] in NO_EFFECT:
        return []
    emitter.full, emitter.mask = full and i.guard is None, "m" if i.guard is None else "g"
    try:
        if i.opcode[0] not in HANDLERS:
            raise unsupported(i)
        lines = HANDLERS[i.opcode[0]](emitter, i)
    except UnsupportedError as error:
        raise UnsupportedError(f"{i.place}: {error}") from None
    except UNFORESEEN as error:
        raise PtxError(f"{i.place}: its operands do not fit: {shortened(str(error))}") from error
    if i.guard is None:
        return lines
    register, negated = i.guard
    taken = f"{'~' if negated else ''}r[{register.number}]"
    guard = f"g = {taken}" if full else f"g = m & {taken}"
    return [guard, "if g.any():", *(f"    {line}" for line in lines)]
