"""PTX types as numpy kinds (PTX ISA 5.2).

A register keeps bits: its declared type says how many, and each instruction's type says how it
reads them. A predicate is a bool.
"""

from __future__ import annotations

LANES = 32

# The kind in which a register of a declared type is kept.
STORAGE = {
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "u1", "b16": "u2", "u16": "u2", "s16": "u2",
    "f16": "u2", "bf16": "u2", "b32": "u4", "u32": "u4", "s32": "u4", "f32": "f4", "b64": "u8",
    "u64": "u8", "s64": "u8", "f64": "f8", "f16x2": "u4", "bf16x2": "u4",
}  # fmt: skip
# The kind as which an instruction of a type reads and gives values; bf16 and packs stay bits.
TYPES = {
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2",
    "f16": "f2", "bf16": "u2", "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "b64": "u8",
    "u64": "u8", "s64": "i8", "f64": "f8", "f16x2": "u4", "bf16x2": "u4", "tf32": "u4",
}  # fmt: skip
WIDER = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}


def size_of(kind: str) -> int:
    """Bytes of a kind; 0 for a predicate."""
    return 0 if kind == "?" else int(kind[1])
