"""Errors of the interpreter."""

from __future__ import annotations


class PtxError(ValueError):
    """PTX that is malformed, or an execution that the PTX ISA leaves undefined."""


class UnsupportedError(PtxError):
    """An instruction, modifier or directive that the interpreter does not cover, by its name."""
