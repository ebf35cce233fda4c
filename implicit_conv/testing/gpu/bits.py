"""Elements of 16 bits represented by their bits, since numpy has no bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def from_bits(bits: npt.ArrayLike, dtype: str) -> npt.NDArray[np.float32]:
    """The float32 values of elements whose bits are in the low half of an integer array."""
    bits = np.asarray(bits)
    if dtype == "float32":
        return bits.astype(np.uint32).view(np.float32)
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def to_bits(values: npt.ArrayLike, dtype: str) -> npt.NDArray[Any]:
    """The bits of the elements nearest to float32 `values`, ties to even; a NaN stays a NaN."""
    values = np.asarray(values, np.float32)
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded)
