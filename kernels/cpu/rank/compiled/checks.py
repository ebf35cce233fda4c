"""Checks of loaded rows: NaN has no place in an order, and -0.0 equals another element."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Builder, Integers, Value
from implicit_conv.kernels.cpu.rank.compiled.tiles import check_rows
from implicit_conv.kernels.cpu.rank.layout import BLOCK, VECTOR
from implicit_conv.kernels.cpu.runtime.compiled.part import Part, body
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, translated


def _make_check(size: int, zeros: bool, width: int, vector: int) -> Any:
    """check(failed, at): check `width` bytes of floats of `size` bytes, vector by vector."""
    bits = 8 * size
    infinite = int(np.array(np.inf, f"f{size}").view(f"i{size}"))
    lanes = vector // size

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        e = Integers(builder, lanes, size)
        source, found = builder.inttoptr(at["at"], BYTES), None
        for part in range(0, width, vector):
            value = e.load(e.at(source, part))
            magnitude = builder.and_(value, e.constant((1 << (bits - 1)) - 1))
            wrong = builder.icmp_signed(">", magnitude, e.constant(infinite))
            if zeros:
                negative = builder.icmp_signed("==", value, e.constant(-(1 << (bits - 1))))
                wrong = builder.or_(wrong, negative)
            found = wrong if found is None else builder.or_(found, wrong)
        flags = builder.zext(builder.bitcast(found, ir.IntType(lanes)), I64)
        target = builder.inttoptr(at["failed"], I64.as_pointer())
        builder.store(builder.or_(builder.load(target), flags), target)

    return body(Part(0, f"check_{width}", ("failed", "at"), ()), emit)


def make_checked_rows(dtype: str, zeros: bool) -> Source:
    """The part that checks rows for NaN, and if `zeros` for -0.0."""
    size = np.dtype(dtype).itemsize
    check_block = _make_check(size, zeros, BLOCK, VECTOR)
    check_vector = _make_check(size, zeros, VECTOR, VECTOR)
    check_element = _make_check(size, zeros, size, size)

    def checked_rows(failed: int, at: int, at_row: int, rows: int, width: int) -> None:
        for _ in range(rows):
            column = 0
            while column + BLOCK <= width:
                check_block(failed, at + column)
                column += BLOCK
            while column + VECTOR <= width:
                check_vector(failed, at + column)
                column += VECTOR
            while column < width:
                check_element(failed, at + column)
                column += size
            at += at_row

    return translated(check_rows, checked_rows)
