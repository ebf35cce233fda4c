"""Element types of 16 bits as their bits; numpy has no bfloat16."""

import numpy as np


def from_bits(bits, dtype):
    """float32 of the elements whose bits stand in the low half of an integer array."""
    bits = np.asarray(bits)
    if dtype == "float32":
        return bits.astype(np.uint32).view(np.float32)
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def to_bits(values, dtype):
    """Bits of the elements nearest to float32 `values`, ties to even; a NaN stays one."""
    values = np.asarray(values, np.float32)
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded)
