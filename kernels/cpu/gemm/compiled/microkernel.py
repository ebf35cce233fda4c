"""The microkernel: a register tile of output pixels x filters, summed over runs of shifted rows.

GEMM mapping (fprop): A = activation rows, broadcast one float at a time; B = a packed filter panel,
`vectors` vectors wide; accumulator = `groups` x `inner` pixels x `vectors` vectors, kept in
registers.

    for (offset, length, before, chain) in runs:  a run: taps whose elements are contiguous in A
        if a new chain begins: add acc to the level of chains, and begin at zero
        for i in range(length):
            for pixel (g, p):
                acc[g, p] += A[offset + g*group_stride + p*inner_stride + i] * B[before + i]

Every pixel is summed in the same order whatever the tile's shape: "strict" rests on this. A sum of
one chain begins with the initial sums, which may be the bias; if there are more chains, the initial
sums are added at the end. Sums of integers are exact in any order, and need no chains.
One emitter serves 512-, 256- and 128-bit vectors; `tile_shape` gives the largest tile of each.
With `matrices`, a product is of two elements (words) of two pixels and of two filters.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from implicit_conv.kernels.cpu.emit.chains import START, Chains
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import (
    BYTES,
    I64,
    PIXELS_PER_BASE,
    Emitter,
    Integers,
    Values,
    i64,
)
from implicit_conv.kernels.cpu.gemm.compiled import dots, matrices
from implicit_conv.kernels.cpu.gemm.layout import RUN_BYTES, RegisterTile
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import microkernel_slot
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert

UNROLL = 4  # elements of a run in one iteration of the inner loop
PREFETCH_BYTES = 2048  # bytes by which prefetches of the panel run ahead of the FMAs

# Addresses of activations, packed panel, run table, initial sums and output; byte strides of each
# array between pixels of a group, and between groups; `tiles` register tiles are contiguous along
# the inner axis; `chained` is 1 if there may be more chains than one, `final` if sums are stored as
# the tile's `y`, or streamed, and `fetches` if the lines at `c_out` are fetched first; sums are
# clamped to low .. high.
multiply_tile = declare(
    microkernel_slot(1, 0, 0),
    "multiply_tile",
    "a b runs c_in c_out run_count a_inner a_group c_in_inner c_in_group c_out_inner c_out_group "
    "tiles chained final fetches",
    "low high",
    a_group=0,
    c_in_inner=0,
    c_in_group=0,
    c_out_group=0,
    chained=0,
    final=0,
    fetches=0,
    low=-math.inf,
    high=math.inf,
)


def emitter(tile: RegisterTile, builder: ir.IRBuilder) -> Emitter:
    """What builds operations on vectors of sums."""
    if tile.integers:
        return Integers(builder, tile.lanes, tile.itemsize)
    return Emitter(builder, tile.lanes, tile.itemsize, tile.fma)


def emit(tile: RegisterTile, builder: ir.IRBuilder, at: dict[str, ir.Value]) -> None:
    """Emit the microkernel of `tile`; `at` maps the parameters of `multiply_tile` to values."""
    e = emitter(tile, builder)
    for_each_tile(tile, e, at, lambda at: _emit_tile(tile, e, at))


def for_each_tile(
    tile: RegisterTile,
    e: Emitter,
    at: dict[str, ir.Value],
    emit_tile: Callable[[dict[str, ir.Value]], None],
) -> None:
    """Emit the loop over contiguous register tiles, whose body is `emit_tile(at)`."""
    names = ("a", "c_in", "c_out")
    steps = [e.builder.mul(at[f"{name}_inner"], i64(tile.inner)) for name in names]

    def body(_: object, places: Values) -> list[ir.Value]:
        emit_tile({**at, **dict(zip(names, places, strict=True))})
        return [e.builder.add(place, step) for place, step in zip(places, steps, strict=True)]

    e.loop(at["tiles"], 1, [at[name] for name in names], body)


def _emit_tile(tile: RegisterTile, e: Emitter, at: dict[str, ir.Value]) -> None:
    """Emit one register tile: lines of C ahead of time, initial sums, every run, stores."""
    builder = e.builder
    a, b = (builder.inttoptr(at[name], BYTES) for name in ("a", "b"))
    pixels = [(g, p) for g in range(tile.groups) for p in range(tile.inner)]
    base_count = sum(p % PIXELS_PER_BASE == 0 for _, p in pixels)

    def words(index: ir.Value, first: int, end: int) -> list[ir.Value]:
        """Words of an entry of the run table."""
        entry = e.at(builder.inttoptr(at["runs"], BYTES), builder.mul(index, i64(RUN_BYTES)))
        return [builder.load(e.pointer(e.at(entry, 8 * word), I64)) for word in range(first, end)]

    def run(index: ir.Value, carried: Values) -> list[ir.Value]:
        """One run: move every base from the end of the previous run, then add all elements."""
        cursor, *carried = carried
        offset, length, before = words(index, 0, 3)
        move = builder.sub(offset, cursor)
        bases = [e.at(base, move) for base in carried[:base_count]]
        panel = e.at(b, builder.mul(before, i64(tile.vectors * tile.vector_bytes)))
        carried = [*bases, panel, *carried[base_count + 1 :]]
        unrolled, least = builder.and_(length, i64(-UNROLL)), matrices.WORDS if tile.matrices else 1
        carried = e.loop(unrolled, UNROLL, carried, lambda _, c: step(UNROLL, c))
        rest = builder.sub(length, unrolled)
        carried = e.loop(rest, least, carried, lambda _, c: step(least, c))
        return [builder.add(offset, builder.mul(length, i64(tile.itemsize))), *carried]

    def panel_row(b: ir.Value, i: int) -> list[ir.Value]:
        """The vectors of element `i` of the panel at `b`; the panel ahead is prefetched."""
        panel = e.at(b, i * tile.vectors * tile.vector_bytes)
        for line in range(0, tile.vectors * tile.vector_bytes, 64):
            e.prefetch(e.at(panel, PREFETCH_BYTES + line), 3)
        return [
            e.load(e.at(panel, v * tile.vector_bytes), tile.vector_bytes)
            for v in range(tile.vectors)
        ]

    def pixel_places(moving: Values, offset: int) -> Iterator[ir.Value]:
        """The addresses of all pixels' elements at a byte offset."""
        base = -1
        for _, p in pixels:
            base += p % PIXELS_PER_BASE == 0
            moved = builder.mul(at["a_inner"], i64(p % PIXELS_PER_BASE))
            yield e.at(e.at(moving[base], moved), offset)

    def multiply_add(
        places: Iterable[ir.Value], filters: Any, acc: list[ir.Value]
    ) -> list[ir.Value]:
        """`acc` plus the products of the elements at `places` and of rows of the panel."""
        acc = list(acc)
        for at_pixel, place in enumerate(places):
            values = dots.broadcasts(e, tile.dots, place, len(filters), tile.align)
            for value, row in zip(values, filters, strict=True):
                for v in range(tile.vectors):
                    k = at_pixel * tile.vectors + v
                    acc[k] = dots.multiply_add(e, tile.dots, value, row[v], acc[k])
        return acc

    def step(count: int, carried: list[ir.Value]) -> list[ir.Value]:
        """`count` elements of the run: a load per element and vector, and those of pixels."""
        moving = [e.opaque(base) for base in carried[:base_count]]
        b, acc = carried[base_count], carried[base_count + 1 :]
        # Elements of a pixel that are loaded at once: registers hold the panel's rows of two.
        together = 2 if (e.by_element or tile.matrices) and count > 1 else 1
        for first in range(0, count, together):
            filters = [panel_row(b, i) for i in range(first, first + together)]
            places = pixel_places(moving, first * tile.itemsize)
            if tile.matrices:
                acc = matrices.multiply_add(e, list(places), tile.align, filters, acc)
            else:
                acc = multiply_add(places, filters, acc)
        if tile.far and count == UNROLL and tile.groups == 1:
            # Prefetch the next register tile's rows into L2: the stride of many rows is a power
            # of two.
            base = -1
            ahead = builder.mul(at["a_inner"], i64(tile.pixels))
            for p in range(tile.inner):
                base += p % PIXELS_PER_BASE == 0
                moved = builder.mul(at["a_inner"], i64(p % PIXELS_PER_BASE))
                e.prefetch(e.at(moving[base], builder.add(ahead, moved)), 2)
        moving = [e.at(base, count * tile.itemsize) for base in moving]
        return [*moving, e.at(b, count * tile.vectors * tile.vector_bytes), *acc]

    if tile.by_line:
        with builder.if_then(builder.trunc(at["fetches"], ir.IntType(1))):
            for place in _places(tile, e, at, "c_out", pixels, tile.vector_bytes):
                e.prefetch(place, 2)
    bases = [pixel_address(e, at, a, "a", g, p) for g, p in pixels if p % PIXELS_PER_BASE == 0]

    def initial() -> list[ir.Value]:
        rows = [e.load(place) for place in _places(tile, e, at, "c_in", pixels, tile.vector_bytes)]
        return matrices.exchange(e, rows, tile.vectors) if tile.matrices else rows

    def sums_in_chains() -> list[ir.Value]:
        """The sums of all runs, chain by chain, and the initial sums."""
        chains = Chains(e, tile.sums)

        def runs_of_chain(index: ir.Value) -> ir.Value:
            """Runs from a run to the last one of its chain."""
            (count,), left = words(index, 4, 5), builder.sub(at["run_count"], index)
            return builder.select(builder.icmp_signed("<", count, left), count, left)

        def chain(first: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            """One chain: add the previous one to its level, then all runs."""
            before, held, above, *carried = carried
            (number,), acc = words(first, 3, 4), carried[base_count + 2 :]

            def end() -> list[ir.Value]:
                state, zeros = chains.end((held, above), acc, before, number)
                return [*state, *zeros]

            begun = builder.icmp_signed("!=", first, i64(0))
            held, above, *acc = e.either(begun, end, lambda: [held, above, *acc])
            carried = [*carried[: base_count + 2], *acc]
            carried = e.loop(
                runs_of_chain(first), 1, carried, lambda i, c: run(builder.add(first, i), c)
            )
            return [number, held, above, *carried]

        zeros = [e.constant(0)] * tile.sums
        chained = builder.trunc(at["chained"], ir.IntType(1))
        acc = zeros if tile.fresh else e.either(chained, lambda: zeros, initial)
        carried = [i64(0), *START, i64(0), *bases, b, *acc]
        _, held, above, *carried = e.loop(at["run_count"], runs_of_chain, carried, chain)
        acc = chains.total((held, above), carried[base_count + 2 :])
        if tile.fresh:
            return acc

        def added() -> list[ir.Value]:
            return [e.add(v, start) for v, start in zip(acc, initial(), strict=True)]

        return e.either(chained, added, lambda: acc)

    def exact_sums() -> list[ir.Value]:
        """The initial sums plus those of all runs, in any order."""
        start = initial()
        if dots.inverts(tile.dots):
            heads = e.at(b, -tile.vectors * tile.vector_bytes)
            heads = [e.load(e.at(heads, v * tile.vector_bytes)) for v in range(tile.vectors)]
            start = [e.add(v, heads[i % tile.vectors]) for i, v in enumerate(start)]
        carried = e.loop(at["run_count"], 1, [i64(0), *bases, b, *start], run)
        return carried[base_count + 2 :]

    acc = exact_sums() if tile.integers else sums_in_chains()
    if tile.matrices:
        acc = matrices.exchange(e, acc, tile.vectors)[: len(pixels) * tile.vectors]
    emit_stores(tile, e, at, pixels, lambda: acc)


def pixel_address(
    e: Emitter, at: dict[str, ir.Value], base: ir.Value, name: str, g: int, p: int
) -> ir.Value:
    """Address of pixel (g, p) of the array `name` of `multiply_tile`, which begins at `base`."""
    group = e.builder.mul(at[f"{name}_group"], i64(g))
    return e.at(base, e.builder.add(group, e.builder.mul(at[f"{name}_inner"], i64(p))))


def _places(
    tile: RegisterTile,
    e: Emitter,
    at: dict[str, ir.Value],
    name: str,
    pixels: Any,
    vector_bytes: int,
) -> Iterator[ir.Value]:
    """Addresses of the vectors of `pixels` in the array `name`."""
    base = e.builder.inttoptr(at[name], BYTES)
    for g, p in pixels:
        address = pixel_address(e, at, base, name, g, p)
        for v in range(tile.vectors):
            yield e.at(address, v * vector_bytes)


def emit_stores(
    tile: RegisterTile,
    e: Emitter,
    at: dict[str, ir.Value],
    pixels: Any,
    sums: Callable[[], Iterable[ir.Value]],
) -> None:
    """Store the vectors that `sums()` yields for `pixels`, clamped: as sums, rounded or streamed.

    Each way to store them is a branch of its own that calls `sums()` again.
    """
    builder = e.builder
    bounds = low, high = [at[name] for name in LIMITS]

    def bounded() -> Iterator[ir.Value]:
        limits = [e.splat(e.narrow(bound)) for bound in bounds]
        return (e.clamp(value, *limits) for value in sums())

    def store_sums(values: Iterable[ir.Value], store: Any = e.store) -> None:
        places = _places(tile, e, at, "c_out", pixels, tile.vector_bytes)
        for value, place in zip(values, places, strict=True):
            store(value, place)

    def store_rounded(values: Iterable[ir.Value]) -> None:
        size = storage.SIZES[tile.y]
        places = _places(tile, e, at, "c_out", pixels, tile.lanes * size)
        if tile.dots and tile.vectors == 2:  # dot products produce no subnormal sums
            values = iter(values)
            for first, place in zip(values, itertools.islice(places, 0, None, 2), strict=True):
                e.store(e.round_pairs(first, next(values)), place, size)
            return
        for value, place in zip(values, places, strict=True):
            convert.store(e, tile.y, value, place)

    def store(how: Callable[[Iterable[ir.Value]], None]) -> None:
        with builder.if_else(e.bounded(low, high)) as (limited, plain):
            with limited:
                how(bounded())
            with plain:
                how(sums())

    if not tile.y and not tile.by_line:
        store(store_sums)
        return
    with builder.if_else(builder.trunc(at["final"], ir.IntType(1))) as (final, kept):
        with final:
            store(store_rounded if tile.y else functools.partial(store_sums, store=e.stream))
        with kept:
            store(store_sums)


def make_microkernel(tile: RegisterTile) -> Source:
    """The microkernel of `tile`."""
    return emitted(multiply_tile, functools.partial(emit, tile))
