"""``mma.sync``, and how fragments lie in registers (PTX ISA 9.7.14, mma).

Lane l is in group l / 4, at place l % 4 of it. A register of A and B holds 32 bits, which are E
elements: 1, 2 or 4. Register i of A has row group + 8 * (i % 2) and the E columns from
(place + 4 * (i / 2)) * E on. Register i of B has the E rows from (place + 4 * i) * E on, and column
group. Accumulator i has row group + 8 * (i / 2) and column 2 * place + i % 2.
"""

from __future__ import annotations

import functools

import numpy as np

from implicit_conv.ptx.kinds import LANE, LANES, Lanes
from implicit_conv.ptx.machine.convert import TF32_DROPPED
from implicit_conv.ptx.machine.floats import bits16, values16
from implicit_conv.ptx.machine.state import State

GROUP, PLACE = LANE // 4, LANE % 4
PER_REGISTER = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4}
# Rows and columns of accumulator i of lane l, for a warp's 16 rows of mma.sync and wgmma.
D_ROW = np.array([GROUP + 8 * (i // 2 % 2) for i in range(128)])
D_COLUMN = np.array([8 * (i // 4) + PLACE * 2 + i % 2 for i in range(128)])


def values(words: Lanes, form: str) -> Lanes:
    """float64 values of elements, given as unsigned integers of their size."""
    if form == "tf32":  # the low bits are not read
        kept = words & np.uint32(0xFFFFFFFF << TF32_DROPPED & 0xFFFFFFFF)
        return kept.view(np.float32).astype(np.float64)
    if form in ("s8", "u8"):
        return words.view(np.int8 if form == "s8" else np.uint8).astype(np.float64)
    return values16(words, form)


def elements(registers: tuple[Lanes, ...], form: str) -> Lanes:
    """(register, element, lane) -> values, with the first two axes as one."""
    per = PER_REGISTER[form]
    words = np.stack(registers).view(f"u{4 // per}").reshape(len(registers), LANES, per)
    rows = np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1, LANES)
    return values(rows, form)


def packed_halves(sums: Lanes) -> list[Lanes]:
    """Registers of two float16 sums each; `sums` are element x lane."""
    halves = bits16(sums, "f16").reshape(-1, 2, LANES).transpose(0, 2, 1)
    return list(np.ascontiguousarray(halves).reshape(len(halves), -1).view(np.uint32))


@functools.cache
def _places(registers: int, per: int, of_a: bool) -> tuple[Lanes, Lanes]:
    """(place across, place along gemm_k) of each element of each register, by lane."""
    across, along = [], []
    for number in range(registers):
        step = number // 2 if of_a else number
        for element in range(per):
            across.append(GROUP + 8 * (number % 2) * of_a)
            along.append((PLACE + 4 * step) * per + element)
    return np.array(across), np.array(along)


def matrix(registers: tuple[Lanes, ...], form: str, of_a: bool) -> Lanes:
    """A, 16 rows of gemm_k elements, or B transposed, 8 columns of them."""
    per, across = PER_REGISTER[form], 16 if of_a else 8
    made = np.empty((across, per * len(registers) * LANES // across))
    made[_places(len(registers), per, of_a)] = elements(registers, form)
    return made


def mma(
    w: State,
    forms: tuple[str, str, str],
    a: tuple[Lanes, ...],
    b: tuple[Lanes, ...],
    c: tuple[Lanes, ...],
    mask: Lanes,
) -> list[Lanes]:
    """``mma.sync.aligned.m16n8k*.row.col``: a x b + c; forms are those of a, b and c.

    Sums are those of float64, rounded once: hardware may round more often.
    """
    w.need_all(mask)
    form_a, form_b, form_c = forms
    held, decoded = w.fragments
    if held is None or len(held) != len(a) or any(x is not y for x, y in zip(held, a, strict=True)):
        decoded = matrix(a, form_a, True)
        w.fragments = a, decoded
    product = decoded @ matrix(b, form_b, False).T
    if form_c == "f16":
        before = elements(c, "f16")
        return packed_halves(product[D_ROW[:4], D_COLUMN[:4]] + before)
    sums = product[D_ROW[:4], D_COLUMN[:4]] + np.stack(c)
    if form_c == "s32":
        return list(sums.astype(np.int64).astype(np.int32))
    return list(sums.astype(np.float32))
