"""Errors of the interpreter, and how messages quote what strangers have written."""

from __future__ import annotations

# What Python or numpy raises for operands that no check has seen.
UNFORESEEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
QUOTED = 80  # characters of a text that a message quotes at most


class PtxError(ValueError):
    """PTX that is malformed, or an execution that the PTX ISA leaves undefined."""


class UnsupportedError(PtxError):
    """An instruction, modifier or directive that the interpreter does not cover, by its name."""


class LaunchError(PtxError):
    """Arguments, sizes or a target that do not fit the kernel: nothing of it has run."""


def shortened(text: str) -> str:
    """The beginning of a text on one line, for messages; with "..." if that is not all."""
    words = " ".join(text[: 2 * QUOTED].split())
    whole = len(words) <= QUOTED and len(text) <= 2 * QUOTED
    return words if whole else words[:QUOTED] + "..."


def printable(text: str) -> str:
    """A text whose control characters, but for ends of lines, are written as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
