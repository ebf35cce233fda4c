"""Matrix instructions (PTX ISA 9.7.14 and 9.7.15)."""

from __future__ import annotations

import re

from implicit_conv.ptx.asynchronous import wgmma
from implicit_conv.ptx.kinds import TYPES
from implicit_conv.ptx.machine import matrices
from implicit_conv.ptx.syntax import Immediate, Instruction, Register, Vector
from implicit_conv.ptx.text.emit import Emitter, unsupported

# Formats of D, A, B and C of mma.sync, and the gemm_k of its shapes m16n8k*.
MMA: dict[tuple[str, ...], tuple[int, ...]] = {
    ("f32", "f16", "f16", "f32"): (8, 16),
    ("f32", "bf16", "bf16", "f32"): (8, 16),
    ("f16", "f16", "f16", "f16"): (8, 16),
    ("f32", "tf32", "tf32", "f32"): (4, 8),
    **{("s32", a, b, "s32"): (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")},
}
WGMMA_K = {"f16": 16, "bf16": 16, "tf32": 8}


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


HANDLERS = {"mma": mma, "wgmma": warpgroup}
