"""The text of operands -> operands (PTX ISA 4.5 and 6)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from implicit_conv.ptx.errors import PtxError, shortened
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

# PTX ISA 4.5: integers have 64 bits; 0f and 0d give all bits of a float.
NUMBER = r"0[xX][0-9a-fA-F]{1,16}|0[bB][01]{1,64}|0[0-7]{0,22}|[1-9]\d{0,19}"
INTEGER = re.compile(rf"(-?)\s?({NUMBER})U?")
BITS = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
DECIMAL = re.compile(r"-?\d{1,400}\.\d{0,400}(?:[eE][+-]?\d{1,4})?")
ADDRESS = re.compile(rf"([\w$%.]+)\s*(?:\+\s*(-?(?:{NUMBER}))|(-\s?(?:{NUMBER})))?")
VARIABLE = re.compile(rf"([\w$%.]+)\s*\+\s*({NUMBER})")
SPECIAL = re.compile(r"%[\w.]+")
NAME = re.compile(r"[A-Za-z_$][\w$]*")
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


def integer(text: str) -> int | None:
    """The value of an integer literal as 64 bits with a sign, or None."""
    match = INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match[2]
    octal = digits[0] == "0" and digits.isdigit()
    value = int(digits, 8 if octal else 0) * (-1 if match[1] else 1)
    if not -(1 << 63) <= value < 1 << 64:
        return None
    return value - (1 << 64) if value >= 1 << 63 else value


def parse_operand(text: str, find: Find, line: int) -> Operand:
    """The operand of a text, where `find` looks up declared names."""
    if text.startswith("{"):
        return Vector(tuple(_scalar(part, find, line) for part in split(text[1:-1])))
    return _address(text, find, line) if text.startswith("[") else _scalar(text, find, line)


def _scalar(text: str, find: Find, line: int) -> Operand:
    """An operand that is no vector and no address in brackets: these do not nest."""
    if text.startswith("!"):
        return Negated(_plain(text[1:].strip(), find, line))
    first, bar, second = text.partition("|")
    if bar:
        return Pair(_plain(first.strip(), find, line), _plain(second.strip(), find, line))
    if match := VARIABLE.fullmatch(text):  # a variable's address
        return Address(_plain(match[1], find, line), _offset(match[2], line))
    return _plain(text, find, line)


def _plain(text: str, find: Find, line: int) -> Operand:
    """A name or a literal."""
    made = Sink() if text == "_" else find(text) or _literal(text) or _name(text)
    if made is None:
        raise PtxError(f"line {line}: the operand {shortened(text)!r} is not understood")
    return made


def _name(text: str) -> Operand | None:
    """A special register, or a variable that is declared elsewhere."""
    if SPECIAL.fullmatch(text):
        return Special(text)
    return Symbol(text) if NAME.fullmatch(text) else None


def _literal(text: str) -> Immediate | None:
    if text == "WARP_SZ":
        return Immediate(WARP_SIZE, "int")
    if match := BITS.fullmatch(text):
        return Immediate(int(match[1] or match[2], 16), "f32" if match[1] else "f64")
    if DECIMAL.fullmatch(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    value = integer(text)
    return None if value is None else Immediate(value, "int")


def _address(text: str, find: Find, line: int) -> Address:
    first, *rest = split(text[1:-1]) or [""]
    match = ADDRESS.fullmatch(first)
    if match is None or len(rest) > 1:
        raise PtxError(f"line {line}: the address {shortened(text)!r} is not understood")
    coordinates: tuple[Operand, ...] = ()
    if rest:
        vector = parse_operand(rest[0], find, line)
        coordinates = vector.parts if isinstance(vector, Vector) else (vector,)
    return Address(
        _plain(match[1], find, line), _offset(match[2] or match[3] or "0", line), coordinates
    )


def _offset(text: str, line: int) -> int:
    """The offset of an address, which has 32 bits and a sign (PTX ISA 6.4.1)."""
    value = integer(text)
    if value is None or not -(1 << 31) <= value < 1 << 32:
        raise PtxError(f"line {line}: the offset {shortened(text)!r} has more than 32 bits")
    return value
