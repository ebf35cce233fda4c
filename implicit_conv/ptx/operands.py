"""The text of operands -> operands (PTX ISA 4.5 and 6)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.syntax import (
    Address,
    Immediate,
    Negated,
    Operand,
    Pair,
    Sink,
    Special,
    Symbol,
    Vector,
)

INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")
BITS = re.compile(r"0([fFdD])([0-9a-fA-F]+)")
DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][+-]?\d+)?")
WARP_SIZE = 32
Find = Callable[[str], "Operand | None"]


def split(text: str) -> list[str]:
    """The parts between commas that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def parse_operand(text: str, find: Find, line: int) -> Operand:
    """The operand of a text, where `find` looks up declared names."""

    def parsed(part: str) -> Operand:
        return parse_operand(part.strip(), find, line)

    made: Operand | None
    if text.startswith("{"):
        made = Vector(tuple(parsed(part) for part in split(text[1:-1])))
    elif text.startswith("["):
        made = _address(text, find, line)
    elif text.startswith("!"):
        made = Negated(parsed(text[1:]))
    elif "|" in text:
        first, second = text.split("|")
        made = Pair(parsed(first), parsed(second))
    elif match := re.fullmatch(r"([\w$%.]+)\s*\+\s*(\d+)", text):  # a variable's address
        made = Address(parsed(match[1]), int(match[2]))
    else:
        made = Sink() if text == "_" else _literal(text) or find(text) or _name(text)
    if made is None:
        raise PtxError(f"line {line}: the operand {text!r} is not understood")
    return made


def _name(text: str) -> Operand | None:
    """A special register, or a variable that is declared elsewhere."""
    if text.startswith("%"):
        return Special(text)
    return Symbol(text) if re.fullmatch(r"[A-Za-z_$][\w$]*", text) else None


def _literal(text: str) -> Immediate | None:
    if text == "WARP_SZ":
        return Immediate(WARP_SIZE, "int")
    if match := BITS.fullmatch(text):
        return Immediate(int(match[2], 16), "f32" if match[1] in "fF" else "f64")
    if INTEGER.fullmatch(text):
        return Immediate(int(text.rstrip("U"), 0 if not re.match(r"-?0\d", text) else 8), "int")
    if DECIMAL.fullmatch(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    return None


def _address(text: str, find: Find, line: int) -> Address:
    first, *rest = split(text[1:-1])
    match = re.fullmatch(r"([\w$%.]+)\s*(?:\+\s*(-?\w+)|(-\s*\w+))?", first)
    if match is None or len(rest) > 1:
        raise PtxError(f"line {line}: the address {text!r} is not understood")
    offset = int((match[2] or match[3] or "0").replace(" ", ""), 0)
    coordinates: tuple[Operand, ...] = ()
    if rest:
        vector = parse_operand(rest[0], find, line)
        coordinates = vector.parts if isinstance(vector, Vector) else (vector,)
    return Address(parse_operand(match[1], find, line), offset, coordinates)
