"""Instructions of whole warps: exchanges between lanes (PTX ISA 9.7.9 and 9.7.13), and products of
matrices (9.7.14 and 9.7.15).
"""

from __future__ import annotations

import re

from implicit_conv.ptx.asynchronous import wgmma
from implicit_conv.ptx.kinds import TYPES
from implicit_conv.ptx.machine import lanes, matrices
from implicit_conv.ptx.syntax import Immediate, Instruction, Operand, Pair, Register, Vector
from implicit_conv.ptx.text.emit import Emitter, modifiers, type_of, unsupported

# Formats of D, A, B and C of mma.sync, and the gemm_k of its shapes m16n8k*.
MMA: dict[tuple[str, ...], tuple[int, ...]] = {
    ("f32", "f16", "f16", "f32"): (8, 16),
    ("f32", "bf16", "bf16", "f32"): (8, 16),
    ("f16", "f16", "f16", "f16"): (8, 16),
    ("f32", "tf32", "tf32", "f32"): (4, 8),
    **{("s32", a, b, "s32"): (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")},
}
WGMMA_K = {"f16": 16, "bf16": 16, "tf32": 8}


def shuffle(e: Emitter, i: Instruction) -> list[str]:
    """``shfl.sync`` (9.7.9)."""
    words = modifiers(i, "sync idx up down bfly")
    type_of(i, "b32")
    if len(words) != 2 or words[0] != "sync":
        raise unsupported(i)
    destination, *operands = i.operands
    values = (e.read(operand, "u4") for operand in operands)
    lines = [f"t = {e.call(lanes.shuffle, 'w', repr(words[1]), *values, e.mask)}"]
    return [*lines, *_write_results(e, destination)]


def _write_results(e: Emitter, destination: Operand) -> list[str]:
    """Statements that write t[0], and the predicate t[1] where it has a destination."""
    if not isinstance(destination, Pair):
        return [e.write(destination, "t[0]", "u4")]
    return [e.write(destination.first, "t[0]", "u4"), e.write(destination.second, "t[1]", "?")]


def elect(e: Emitter, i: Instruction) -> list[str]:
    """``elect.sync d|p, members`` (9.7.13)."""
    modifiers(i, "sync", typed=False)
    elected = e.call(lanes.elect, "w", e.read(i.operands[1], "u4"), e.mask)
    return [f"t = {elected}", *_write_results(e, i.operands[0])]


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


def mma(e: Emitter, i: Instruction) -> list[str]:
    """``mma.sync.aligned.m16n8k*.row.col`` (9.7.14)."""
    words, forms = ".".join(i.opcode[1:-4]), tuple(i.opcode[-4:])
    shape = re.fullmatch(r"sync\.aligned\.m16n8k(\d+)\.row\.col", words)
    if shape is None or int(shape[1]) not in MMA.get(forms, ()):
        raise unsupported(i)
    d, a, b, c = i.operands
    sums = {"f32": "f4", "f16": "u4", "s32": "i4"}[forms[3]]
    values = e.read_parts(a, "u4"), e.read_parts(b, "u4"), e.read_parts(c, sums)
    made = e.call(matrices.mma, "w", (forms[1], forms[2], forms[3]), *values, e.mask)
    return [f"t = {made}", *e.write_parts(d, "t", sums)]


def warpgroup(e: Emitter, i: Instruction) -> list[str]:
    """``wgmma`` (9.7.15)."""
    what = i.opcode[1]
    if i.opcode[2:4] != ["sync", "aligned"]:
        raise unsupported(i)
    if what == "fence":
        return [e.call(wgmma.fence, "w", e.mask)]
    if what == "commit_group":
        return [e.call(wgmma.commit, "w", e.mask)]
    if what == "wait_group":
        groups = i.operands[0]
        assert isinstance(groups, Immediate)
        return [e.call(wgmma.wait, "w", groups.value, e.mask)]
    found = re.fullmatch(r"m64n(\d+)k(\d+)\.(f32|f16)\.(\w+)\.\4", ".".join(i.opcode[4:]))
    if what != "mma_async" or found is None or WGMMA_K.get(found[4]) != int(found[2]):
        raise unsupported(i)
    if found[3] == "f16" and found[4] != "f16":
        raise unsupported(i, f"float16 sums of {found[4]}")
    return _multiply(e, i, int(found[1]), found[3], found[4])


def _multiply(e: Emitter, i: Instruction, columns: int, sums: str, form: str) -> list[str]:
    """``wgmma.mma_async d, a, b, scale-d, imm-scale-a, imm-scale-b[, imm-trans-a], imm-trans-b``.

    A transposition exists for 16-bit formats, and for A only if that is in memory.
    """
    d, a, b, scale, *literals = i.operands
    immediates = [x.value for x in literals if isinstance(x, Immediate)]
    held = isinstance(a, Vector)
    wanted = 2 if form == "tf32" else 3 if held else 4
    assert isinstance(d, Vector)
    if len(immediates) != wanted or len(literals) != wanted:
        raise unsupported(i, f"{len(literals)} immediates where {wanted} are needed")
    if (
        len(d.parts) != columns // (4 if sums == "f16" else 2)
        or columns % 8
        or not 8 <= columns <= 256
    ):
        raise unsupported(i, f"{len(d.parts)} accumulators")
    scale_a, scale_b, *transpositions = immediates
    transpose_a, transpose_b = [0, 0, *transpositions][-2:]
    chosen = wgmma.Form(columns, sums, form, form, scale_a, scale_b, transpose_a, transpose_b)
    name = f"F{len(e.names)}"
    e.names[name] = chosen
    registers = tuple(x.number for x in d.parts if isinstance(x, Register))
    parts = a.parts if isinstance(a, Vector) else ()
    inputs = tuple(x.number for x in parts if isinstance(x, Register))
    left = e.read_parts(a, "u4") if held else e.read(a, "u8")
    right = e.read(b, "u8")
    values = name, registers, inputs, left, right, e.read(scale, TYPES["pred"]), e.mask
    return [e.call(wgmma.issue, "w", i.line, *values)]


HANDLERS = {
    "shfl": shuffle,
    "elect": elect,
    "vote": vote,
    "redux": reduce,
    "match": match,
    "mma": mma,
    "wgmma": warpgroup,
}
