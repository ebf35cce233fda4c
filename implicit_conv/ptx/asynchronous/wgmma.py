"""``wgmma``: a warpgroup multiplies matrices in shared memory, asynchronously (PTX ISA 9.7.15).

Each warp computes its 16 of the 64 rows. Nothing is computed before its group is waited for: until
then its registers have no value and nobody may write the memory that it reads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import Lanes
from implicit_conv.ptx.machine.lanes import BUSY, Missing
from implicit_conv.ptx.machine.matrices import (
    D_COLUMN,
    D_ROW,
    PER_REGISTER,
    elements,
    matrix,
    packed_halves,
    values,
)
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.machine.watch import tell_read
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE

ROWS, WARPS = 64, 4
K_BYTES = 32  # of gemm_k that one wgmma reads
UNIT = 16
SPANS = {0: 16, 1: 128, 2: 64, 3: 32}  # bytes of a row of the swizzle's pattern, by its mode


class Form(NamedTuple):
    """What the instruction says: columns, formats of D, A and B, signs and major-ness."""

    columns: int
    d: str
    a: str
    b: str
    scale_a: int
    scale_b: int
    transpose_a: int
    transpose_b: int


def descriptor_units(descriptor: int, rows: int, transposed: bool) -> Lanes:
    """Offsets of the 16-byte units of a matrix by its descriptor (9.7.15, matrix descriptor).

    K-major: (rows, 2), units along gemm_k. Transposed (MN-major): (rows / 8, 16), units of 8 rows,
    one for each of 16 elements of gemm_k. The swizzle is a function of the address, whose pattern
    begins at the base offset.
    """
    start = (descriptor & 0x3FFF) << 4
    lead, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    base_offset, mode = descriptor >> 49 & 7, descriptor >> 62
    span = SPANS[mode]
    if transposed:
        chunk, k = np.arange(rows // 8)[:, None], np.arange(16)[None, :]
        if mode == 0:
            at = start + chunk * stride + k // 8 * lead + k % 8 * UNIT
        else:
            across = span // UNIT
            at = start + chunk % across * UNIT + chunk // across * lead
            at = at + k % 8 * span + k // 8 * stride
    else:
        row, unit = np.arange(rows)[:, None], np.arange(K_BYTES // UNIT)[None, :]
        at = start + row // 8 * stride + row % 8 * span + unit * (lead if mode == 0 else UNIT)
    if mode:
        line = at // 128 - base_offset
        at = at // 128 * 128 + (at // UNIT % 8 ^ line % (span // UNIT)) * UNIT
    return at - SHARED_BASE


class Wgmma:
    """One ``wgmma.mma_async`` of one warp; it reads shared memory until its group is waited for."""

    def __init__(
        self,
        w: State,
        line: int,
        form: Form,
        registers: tuple[int, ...],
        a: int | tuple[Lanes, ...],
        b: int,
        accumulate: bool,
    ) -> None:
        self.w, self.form, self.registers, self.a = w, form, registers, a
        self.accumulate = accumulate
        self.before: list[Lanes] | None = None  # the accumulators, unless a wgmma still writes them
        self.units = [descriptor_units(b, form.columns, bool(form.transpose_b)) // UNIT]
        if isinstance(a, int):
            units = descriptor_units(a, ROWS, bool(form.transpose_a)) // UNIT
            share = len(units) // WARPS
            first = share * (w.index % WARPS)
            self.units.append(units[first : first + share])
        for units in self.units:
            start, end = int(units.min()) * UNIT, int(units.max() + 1) * UNIT
            w.shared.inside(start, end, "wgmma")
            w.shared.begin_read(w, units.reshape(-1), "wgmma")
        given = [(b, form.transpose_b), (a, form.transpose_a)]
        for (value, transposed), units in zip(given, self.units, strict=False):
            assert isinstance(value, int)
            span = SPANS[value >> 62] if value >> 62 else 0
            tell_read(w, line, "wgmma", span, units.T if transposed else units)

    def _matrix(self, units: Lanes, form: str, transposed: int) -> Lanes:
        """Rows of gemm_k elements."""
        size = 4 // PER_REGISTER[form]
        data = np.ascontiguousarray(self.w.shared.data.reshape(-1, UNIT)[units])
        words = data.view(f"u{size}")
        if transposed:  # (chunk, k, row of the chunk)
            words = np.ascontiguousarray(words.transpose(0, 2, 1))
            return values(words.reshape(-1, units.shape[1]), form)
        return values(words.reshape(len(units), -1), form)

    def finish(self, before: list[Lanes]) -> list[Lanes]:
        """The accumulators afterwards; the memory is free."""
        form = self.form
        b = self._matrix(self.units[0], form.b, form.transpose_b)
        if isinstance(self.a, int):
            a = self._matrix(self.units[1], form.a, form.transpose_a)
        else:
            a = matrix(self.a, form.a, True)
        product = form.scale_a * form.scale_b * (a @ b.T)
        for units in self.units:
            self.w.shared.end_read(self.w, units.reshape(-1))
        count = len(self.registers) * (2 if form.d == "f16" else 1)
        sums = product[D_ROW[:count], D_COLUMN[:count]]
        if form.d == "f16":  # a register holds two of a row
            if self.accumulate:
                sums = sums + elements(tuple(before), "f16")
            return packed_halves(sums)
        if self.accumulate:
            sums = sums + np.stack(before)
        return list(sums.astype(np.float32))


def fence(w: State, mask: Lanes) -> None:
    """``wgmma.fence``: wgmma may use registers as they are now (9.7.15)."""
    w.need_all(mask)
    w.fenced_registers = list(w.r)


def issue(
    w: State,
    line: int,
    form: Form,
    registers: tuple[int, ...],
    inputs: tuple[int, ...],
    a: Lanes | tuple[Lanes, ...],
    b: Lanes,
    accumulate: Lanes,
    mask: Lanes,
) -> None:
    """``wgmma.mma_async``; `inputs` are the registers of A, if it is not in memory (9.7.15)."""
    w.need_all(mask)
    fenced = w.fenced_registers
    touched = [r for r in (*registers, *inputs) if w.r[r] is not BUSY]
    if fenced is None or any(fenced[register] is not w.r[register] for register in touched):
        raise PtxError("there is no wgmma.fence after the last use of its registers")
    left = a if isinstance(a, tuple) else _uniform(a, "descriptors")
    right, adds = _uniform(b, "descriptors"), bool(_uniform(accumulate, "scale-d"))
    made = Wgmma(w, line, form, registers, left, right, adds)
    said = form, right, left if isinstance(left, int) else None, adds
    group = (w.index // WARPS, w.wgmma_count)
    w.wgmma_count += 1
    if w.cta.wgmma_said.setdefault(group, said) != said:
        raise PtxError("the warps of a warpgroup give different descriptors")
    before = [w.r[register] for register in registers]
    if any(value is BUSY for value in before):
        under_way = [*w.wgmma, *(op for ops in w.wgmma_groups for op in ops)]
        if not any(op.registers == registers for op in under_way):
            raise PtxError("its accumulators overlap with those of another wgmma under way")
    elif adds and any(isinstance(value, Missing) for value in before):
        raise PtxError("it adds to accumulators that were never written")
    else:
        made.before = before
    for register in registers:
        w.r[register] = BUSY
    w.wgmma.append(made)


def commit(w: State, mask: Lanes) -> None:
    """``wgmma.commit_group`` (9.7.15)."""
    w.need_all(mask)
    w.wgmma_groups.append(w.wgmma)
    w.wgmma = []


def wait(w: State, groups: int, mask: Lanes) -> None:
    """``wgmma.wait_group``: compute all groups but the last few (9.7.15).

    Registers get their values when no wgmma under way writes them any more.
    """
    w.need_all(mask)
    held = w.wgmma_values
    while len(w.wgmma_groups) > groups:
        for op in w.wgmma_groups.popleft():
            before = op.before if op.before is not None else held[op.registers]
            held[op.registers] = op.finish(before)
    busy = {op.registers for ops in (*w.wgmma_groups, w.wgmma) for op in ops}
    for registers in [key for key in held if key not in busy]:
        for register, value in zip(registers, held.pop(registers), strict=True):
            w.r[register] = value
            if w.fenced_registers is not None:
                w.fenced_registers[register] = value


def _uniform(given: Lanes, what: str) -> int:
    if (given != given[0]).any():
        raise PtxError(f"the lanes give different {what}")
    return int(given[0])
