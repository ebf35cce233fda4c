"""PTX types as numpy kinds (PTX ISA 5.2).

A register keeps bits: its declared type says how many, and each instruction's type says how it
reads them. A predicate is a bool.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LANES = 32
LANE = np.arange(LANES)
Lanes = NDArray[Any]  # a value of each lane, or of some

# The kind in which a register of a declared type is kept.
_NAMES = {
    "?": "pred",
    "u1": "b8 u8 s8",
    "u2": "b16 u16 s16 f16 bf16",
    "u4": "b32 u32 s32 f16x2 bf16x2",
    "u8": "b64 u64 s64",
    "f4": "f32",
    "f8": "f64",
}
STORAGE = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# The kind as which an instruction of a type reads and gives values; bf16 and packs stay bits.
TYPES = {**STORAGE, "s8": "i1", "s16": "i2", "s32": "i4", "s64": "i8", "f16": "f2", "tf32": "u4"}
WIDER = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}


def size_of(kind: str) -> int:
    """Bytes of a kind; 0 for a predicate."""
    return 0 if kind == "?" else int(kind[1])
