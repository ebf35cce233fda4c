"""Instructions that exchange values between lanes (PTX ISA 9.7.9 and 9.7.13)."""

from __future__ import annotations

from implicit_conv.ptx.kinds import TYPES
from implicit_conv.ptx.machine import lanes
from implicit_conv.ptx.syntax import Instruction, Pair
from implicit_conv.ptx.text.emit import Emitter, modifiers, type_of, unsupported


def shuffle(e: Emitter, i: Instruction) -> list[str]:
    """``shfl.sync`` (9.7.9)."""
    words = modifiers(i, "sync idx up down bfly")
    type_of(i, "b32")
    if len(words) != 2 or words[0] != "sync":
        raise unsupported(i)
    destination, *operands = i.operands
    values = (e.read(operand, "u4") for operand in operands)
    lines = [f"t = {e.call(lanes.shuffle, 'w', repr(words[1]), *values, e.mask)}"]
    if isinstance(destination, Pair):
        return [
            *lines,
            e.write(destination.first, "t[0]", "u4"),
            e.write(destination.second, "t[1]", "?"),
        ]
    return [*lines, e.write(destination, "t[0]", "u4")]


def elect(e: Emitter, i: Instruction) -> list[str]:
    """``elect.sync d|p, members`` (9.7.13)."""
    modifiers(i, "sync", typed=False)
    destination = i.operands[0]
    assert isinstance(destination, Pair)
    return [
        f"t = {e.call(lanes.elect, 'w', e.read(i.operands[1], 'u4'), e.mask)}",
        e.write(destination.first, "t[0]", "u4"),
        e.write(destination.second, "t[1]", "?"),
    ]


def vote(e: Emitter, i: Instruction) -> list[str]:
    """``vote.sync`` (9.7.13)."""
    words = modifiers(i, "sync any all uni ballot")
    type_of(i, "pred b32")
    how = words[-1]
    predicate, members = e.read(i.operands[1], "?"), e.read(i.operands[2], "u4")
    values = e.call(lanes.vote, "w", repr(how), predicate, members, e.mask)
    return [e.write(i.operands[0], values, "u4" if how == "ballot" else "?")]


def reduce(e: Emitter, i: Instruction) -> list[str]:
    """``redux.sync`` of integers (9.7.13)."""
    words = modifiers(i, "sync add min max and or xor")
    kind = TYPES[type_of(i, "u32 s32 b32")]
    values = e.read(i.operands[1], kind), e.read(i.operands[2], "u4")
    return [
        e.write(i.operands[0], e.call(lanes.reduce, "w", repr(words[-1]), *values, e.mask), kind)
    ]


def match(e: Emitter, i: Instruction) -> list[str]:
    """``match.any.sync`` (9.7.13)."""
    modifiers(i, "any sync")
    kind = TYPES[type_of(i, "b32 b64")]
    values = e.read(i.operands[1], kind), e.read(i.operands[2], "u4")
    return [e.write(i.operands[0], e.call(lanes.match_any, "w", *values, e.mask), "u4")]


HANDLERS = {"shfl": shuffle, "elect": elect, "vote": vote, "redux": reduce, "match": match}
