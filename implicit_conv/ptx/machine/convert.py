"""``cvt``: between integers and floating-point formats (PTX ISA 9.7.9, cvt)."""

from __future__ import annotations

import numpy as np

from implicit_conv.ptx.kinds import Lanes
from implicit_conv.ptx.machine.floats import bits16, to_float32, values16

WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
TF32_DROPPED = 13  # bits of a float32 that a tf32 lacks


def convert(x: Lanes, to: str, source: str, rounding: str, saturate: bool) -> Lanes:
    """`x` of type `source` as type `to`, where one of them at least is a float."""
    if source in ("bf16", "f16"):
        x = values16(x.view(np.uint16), source)
    if to in FLOATS or to == "bf16":
        return _to_float(x, to, rounding, saturate)
    return _to_integer(x.astype(np.float64), to, rounding)


def _to_float(x: Lanes, to: str, rounding: str, saturate: bool) -> Lanes:
    if rounding in WHOLE:
        x = WHOLE[rounding](x)
    if saturate:
        x = np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(x.dtype)
    if to == "bf16":
        return bits16(x if x.dtype == np.float32 else x.astype(np.float64), "bf16")
    if to == "f32" and rounding in ("rz", "rm", "rp") and x.dtype == np.float64:
        return to_float32(x, rounding)
    return x.astype(FLOATS[to])


def _to_integer(x: Lanes, to: str, rounding: str) -> Lanes:
    """Clamped to the range of the type; a NaN becomes 0."""
    bits = int(to[1:])
    low = -(1 << bits - 1) if to[0] == "s" else 0
    high = (1 << bits - (to[0] == "s")) - 1
    whole = WHOLE[rounding](x).tolist()
    values = [
        0 if np.isnan(v) else low if v <= low else high if v >= high else int(v) for v in whole
    ]
    return np.array(values, f"{'i' if to[0] == 's' else 'u'}{bits // 8}")


def clamp(x: Lanes, to: str) -> Lanes:
    """``cvt.sat`` between integers."""
    kind = np.dtype(f"{'i' if to[0] == 's' else 'u'}{int(to[1:]) // 8}")
    limits = np.iinfo(kind)
    return np.array([min(max(int(v), int(limits.min)), int(limits.max)) for v in x], kind)


def convert_pair(upper: Lanes, lower: Lanes, to: str, relu: bool) -> Lanes:
    """``cvt.rn.f16x2.f32 d, a, b``: a becomes the upper half, b the lower one."""
    half = to.removesuffix("x2")
    if relu:
        upper, lower = (np.where(np.isnan(x), x, np.maximum(x, 0)) for x in (upper, lower))
    low, high = (bits16(x.astype(np.float32), half).astype(np.uint32) for x in (lower, upper))
    return low | high << np.uint32(16)


def to_tf32(x: Lanes, ties: str) -> Lanes:
    """``cvt.rna.tf32.f32`` (ties away from zero) and ``cvt.rn`` (to even)."""
    bits, half = x.view(np.uint32), np.uint32(1 << TF32_DROPPED - 1)
    carry = half if ties == "rna" else half - 1 + (bits >> np.uint32(TF32_DROPPED) & np.uint32(1))
    kept = (bits + carry) & np.uint32(0xFFFFFFFF << TF32_DROPPED & 0xFFFFFFFF)
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF), kept)


def pack(kind: str, *parts: Lanes) -> Lanes:
    """One register of several, the first of which is the lowest (9.7.9, mov)."""
    return np.stack(parts, axis=1).reshape(-1).view(kind)


def unpack(kind: str, value: Lanes) -> list[Lanes]:
    """The parts of a register, the lowest first (9.7.9, mov)."""
    lanes = np.ascontiguousarray(value).view(kind).reshape(len(value), -1)
    return list(np.ascontiguousarray(lanes.T))
