"""Rows that are converted while they are loaded, between passes, and while they are stored.

Floats become integers as in C on x86-64: they are truncated, and those of at most 16 bits are the
low bits of one of 32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.emit import masks
from implicit_conv.kernels.cpu.emit.internals import get_or_insert_function, ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I32, SCALAR, Builder, Emitter, Value, i64
from implicit_conv.kernels.cpu.images.compiled.sums import emitter
from implicit_conv.kernels.cpu.images.compiled.tiles import load_elements
from implicit_conv.kernels.cpu.images.layout import ROUND, STORE
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted

round_row = declare(ROUND, "round_row", "to at count")
store_row = declare(STORE, "store_row", "to at count")


def kind(dtype: str) -> ir.Type:
    """The LLVM type of an element in memory; one of bool is a byte."""
    found = np.dtype(dtype)
    return SCALAR[found.itemsize] if found.kind == "f" else ir.IntType(8 * found.itemsize)


def widen(e: Emitter, dtype: str, value: Value) -> Value:
    """Elements of `dtype` as those of `e`."""
    found = np.dtype(dtype)
    if e.itemsize == 2:
        extend = e.builder.sext if found.kind == "i" else e.builder.zext
        return value if found.itemsize == 2 else extend(value, e.vector)
    if found.kind == "f":
        if found.itemsize == e.itemsize:
            return value
        return (e.builder.fpext if e.itemsize > found.itemsize else e.builder.fptrunc)(
            value, e.vector
        )
    if found.itemsize < 4:  # a conversion of words is one instruction
        extend = e.builder.sext if found.kind == "i" else e.builder.zext
        return e.builder.sitofp(extend(value, e.words), e.vector)
    return (e.builder.sitofp if found.kind == "i" else e.builder.uitofp)(value, e.vector)


def narrow(e: Emitter, dtype: str, value: Value) -> Value:
    """Elements of `e` as those of `dtype`."""
    found, vector = np.dtype(dtype), ir.VectorType(kind(dtype), e.lanes)
    if e.itemsize == 2:
        return value if found.itemsize == 2 else e.builder.trunc(value, vector)
    if found.kind == "f":
        if found.itemsize == e.itemsize:
            return value
        return (e.builder.fptrunc if e.itemsize > found.itemsize else e.builder.fpext)(
            value, vector
        )
    words = e.builder.fptosi(value, ir.VectorType(I32, e.lanes))
    return words if found.itemsize == 4 else e.builder.trunc(words, vector)


def _by_vectors(
    name: Any,
    itemsize: int,
    read: str,
    written: str,
    convert: Callable[[Emitter, Value], Value],
) -> Source:
    """A part that converts `count` elements of dtype `read` to those of dtype `written`; no others
    are read or written.
    """

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        e = emitter(builder, itemsize)
        to, source = (builder.inttoptr(at[place], BYTES) for place in ("to", "at"))
        count = at["count"]
        of_read, of_written = (ir.VectorType(kind(dtype), e.lanes) for dtype in (read, written))
        sizes = np.dtype(read).itemsize, np.dtype(written).itemsize

        def places(first: Value) -> tuple[Value, Value]:
            near = e.at(source, builder.mul(first, i64(sizes[0])))
            far = e.at(to, builder.mul(first, i64(sizes[1])))
            return e.pointer(near, of_read), e.pointer(far, of_written)

        def vector(first: Value, _: object) -> list[Value]:
            near, far = places(first)
            value = builder.load(near)
            value.align = sizes[0]
            builder.store(convert(e, value), far).align = sizes[1]
            return []

        whole = builder.and_(count, i64(-e.lanes))
        e.loop(whole, e.lanes, [], vector)
        rest = builder.sub(count, whole)
        with builder.if_then(builder.icmp_signed(">", rest, i64(0))):
            near, far = places(whole)
            mask = e.below(rest)
            value = convert(e, masks.load(builder, near, of_read, mask, sizes[0]))
            masks.store(builder, value, far, mask, sizes[1])

    return emitted(name, emit)


def make_load_elements(dtype: str, sums: str) -> Source:
    """The part that loads elements of `dtype` as sums."""
    itemsize = np.dtype(sums).itemsize
    return _by_vectors(
        load_elements, itemsize, dtype, sums, lambda e, value: widen(e, dtype, value)
    )


def nearest(e: Emitter, dtype: str, value: Value) -> Value:
    """The nearest integers, halves to even ones, within the range of `dtype`."""
    limits = np.iinfo(dtype)
    kind = ir.FunctionType(e.vector, [e.vector])
    name = f"llvm.rint.{e.suffix}"
    whole = e.builder.call(get_or_insert_function(e.builder.module, kind, name), [value])
    return e.clamp(whole, e.constant(limits.min), e.constant(limits.max))


def make_store_row(sums: str, dtype: str, to_nearest: bool) -> Source:
    """The part that stores sums as elements of `dtype`, of integers the nearest ones if asked."""

    def convert(e: Emitter, value: Value) -> Value:
        return narrow(e, dtype, nearest(e, dtype, value) if to_nearest else value)

    return _by_vectors(store_row, np.dtype(sums).itemsize, sums, dtype, convert)


def make_round_row(sums: str, dtype: str) -> Source:
    """The part that rounds sums to elements of `dtype`, which stay sums."""
    return _by_vectors(
        round_row,
        np.dtype(sums).itemsize,
        sums,
        sums,
        lambda e, value: widen(e, dtype, narrow(e, dtype, value)),
    )
