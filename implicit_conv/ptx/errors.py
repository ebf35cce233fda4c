"""Errors of the interpreter, and how they quote."""

from __future__ import annotations

QUOTED = 80  # characters of a text that a message quotes at most


class PtxError(ValueError):
    """PTX that is malformed, or an execution that the PTX ISA leaves undefined."""


class UnsupportedError(PtxError):
    """An instruction, modifier or directive that the interpreter does not cover, by its name."""


def shortened(text: str) -> str:
    """The beginning of a text on one line, for messages; with "..." if that is not all."""
    words = " ".join(text[: 2 * QUOTED].split())
    whole = len(words) <= QUOTED and len(text) <= 2 * QUOTED
    return words if whole else words[:QUOTED] + "..."
