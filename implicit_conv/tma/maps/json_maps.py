"""Tensor maps in JSON: one object, a list of them, or one a line as `log_maps` writes them."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from implicit_conv.ptx.errors import shortened
from implicit_conv.ptx.limits import read_text

DIGITS = 40  # of an integer in JSON: those of a tensor map have at most 64 bits
ADVICE = "`implicit-conv lint --help` shows the form"


def read_objects(name: str) -> tuple[str, list[dict[str, Any]]]:
    """(the file's name for messages, its objects); "-" is standard input.

    Raises
    ------
    ValueError
        The file is not JSON, or holds no objects.
    """
    source = "standard input" if name == "-" else name
    opened = nullcontext(sys.stdin) if name == "-" else Path(name).open(encoding="utf-8")
    with opened as file:
        return source, _objects(source, read_text(file, source))


def _objects(source: str, text: str) -> list[dict[str, Any]]:
    """The objects of a JSON text: one, a list, or one a line."""
    try:
        found = _parsed(text)
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            found = [_parsed(line) for line in lines]
        except ValueError:
            found = None
        if not found or len(lines) < 2:
            raise ValueError(f"{source} is not JSON: {error}; {ADVICE}") from None
    objects = found if isinstance(found, list) else [found]
    if not objects or not all(isinstance(entry, dict) for entry in objects):
        raise ValueError(f"{source} must hold one JSON object, or a list of them; {ADVICE}")
    return objects


def _parsed(text: str) -> Any:
    """The value of a JSON text without NaN and infinities, whose names stand once in an object."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"an object has {shortened(twice)!r} twice")
        return found

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(
            text, object_pairs_hook=members, parse_constant=constant, parse_int=_integer
        )
    except RecursionError:
        raise ValueError("its brackets are too deep inside each other") from None


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"the integer {shortened(digits)} has more than {DIGITS} digits")
    return int(digits)
