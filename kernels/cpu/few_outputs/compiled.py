"""fprop by dot products: the channels of a pixel are the lanes of a vector.

    y[q, k] = sum over c of x[q, c] * w[k, c]

Where pixels and filters both have contiguous channels, neither needs to be packed or transposed:
vectors of products are summed, and their lanes are summed at the end. This is faster where there
are few pixels, so that a packed filter would hardly be reused, or few filters, so that they would
not fill vectors.

One work item is a row of pixels and a chunk of filter panels:

    for each panel of the chunk:
        for each few filters of the panel:
            microkernel: sums over x and w in place -> y, or the staging tile
        staging tile -> residual, activation, layout -> y
"""

from __future__ import annotations

from collections.abc import Iterator

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit.chains import sum_in_chains
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import (
    BYTES,
    PIXELS_PER_BASE,
    Emitter,
    Values,
    i64,
)
from implicit_conv.kernels.cpu.few_outputs.layout import RegisterTile
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, microkernel
from implicit_conv.kernels.cpu.runtime.table import FEW_OUTPUTS
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_tile
from implicit_conv.kernels.cpu.tile.compiled.load import load_tile
from implicit_conv.kernels.cpu.tile.compiled.transpose import exchange
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, operator
from implicit_conv.kernels.geometry import Place
from implicit_conv.kernels.schedule import CHAIN

# Addresses of the first pixel, of the first filter, of their initial sums and of their output; byte
# strides of pixels and filters, of which those in `out` are contiguous. `last` is the last pixel
# that a register tile may begin at, which may be negative; filters skipped .. filters - 1 are
# written.
sum_windows = declare(
    FEW_OUTPUTS,
    "sum_windows",
    "x w sums out elements pixels last skipped filters x_pixel w_filter out_pixel",
    "low high",
)
AHEAD_BYTES = 512  # bytes of a row that are prefetched ahead: hardware follows fewer rows


def emit(tile: RegisterTile, e: Emitter, at: dict[str, ir.Value]) -> None:
    """Emit the register tiles along a row.

    A tile that would reach beyond the last pixel begins earlier, and writes only the new sums.
    """
    pixels, filters, dtype, chained = tile
    builder = e.builder
    x, w, sums, out = (builder.inttoptr(at[name], BYTES) for name in ("x", "w", "sums", "out"))
    low, high = (e.splat(e.narrow(at[name])) for name in LIMITS)
    filter_of = ir.Constant(e.words, [lane % filters for lane in range(e.lanes)])
    written = builder.and_(
        builder.icmp_signed(">=", filter_of, e.splat_word(at["skipped"])),
        builder.icmp_signed("<", filter_of, e.splat_word(at["filters"])),
    )
    first_ones = ir.Constant(written.type, [lane < filters for lane in range(e.lanes)])
    start = e.load_masked(sums, builder.and_(written, first_ones))
    start = builder.shuffle_vector(start, start, filter_of)
    rest = builder.and_(at["elements"], i64(e.lanes - 1))
    whole, mask = builder.sub(at["elements"], rest), e.below(rest)

    def register_tile(first: ir.Value, _: object) -> list[ir.Value]:
        late = builder.icmp_signed("<", at["last"], first)
        begin = builder.select(late, at["last"], first)
        pixel_bases = _bases(e, e.at(x, builder.mul(begin, at["x_pixel"])), at["x_pixel"], pixels)
        bases = [*pixel_bases, *_bases(e, w, at["w_filter"], filters)]

        def vector(carried: Values, mask: ir.Value | None = None) -> list[ir.Value]:
            """The products of a vector of channels of each pixel and filter."""
            moving = [e.opaque(base) for base in carried[: len(bases)]]
            rows = [
                *_rows(e, moving[: len(pixel_bases)], at["x_pixel"], pixels),
                *_rows(e, moving[len(pixel_bases) :], at["w_filter"], filters),
            ]
            for row in rows:
                e.prefetch(e.at(row, AHEAD_BYTES), 3)
            rows = [convert.load(e, dtype, row, mask) for row in rows]
            total = [
                e.multiply_add(rows[i // filters], rows[pixels + i % filters], value)
                for i, value in enumerate(carried[len(bases) :])
            ]
            step = e.lanes * storage.SIZES[dtype]
            return [*(e.at(base, step) for base in moving), *total]

        def vectors(_: object, count: ir.Value, carried: Values) -> list[ir.Value]:
            return e.loop(count, e.lanes, carried, lambda _, carried: vector(carried))

        zeros = [e.constant(0.0)] * (pixels * filters)
        if chained:
            length = CHAIN * e.lanes
            carried = sum_in_chains(e, whole, length, bases, zeros, vectors)
        else:
            carried = vectors(i64(0), whole, [*bases, *zeros])
        carried = e.loop(rest, e.lanes, carried, lambda _, carried: vector(carried, mask))
        total = sums_of_lanes(e, carried[len(bases) :])
        total = e.clamp(builder.fadd(start, total), low, high)
        for i in range(pixels):
            pixel = builder.add(begin, i64(i))
            missing = builder.icmp_signed("<=", first, pixel)
            inside = builder.icmp_signed("<", pixel, at["pixels"])
            own = [lane // filters == i for lane in range(e.lanes)]
            own = builder.and_(written, ir.Constant(written.type, own))
            with builder.if_then(builder.and_(missing, inside)):
                place = e.at(out, builder.mul(pixel, at["out_pixel"]))
                e.store_masked(total, e.at(place, -i * filters * e.itemsize), own)
        return []

    e.loop(at["pixels"], pixels, [], register_tile)


def _bases(e: Emitter, first: ir.Value, stride: ir.Value, count: int) -> list[ir.Value]:
    """Base addresses of `count` rows with a stride in bytes; each serves PIXELS_PER_BASE rows."""
    return [
        e.at(first, e.builder.mul(stride, i64(row))) for row in range(0, count, PIXELS_PER_BASE)
    ]


def _rows(e: Emitter, bases: Values, stride: ir.Value, count: int) -> Iterator[ir.Value]:
    """The addresses of all rows, from their base addresses."""
    for row in range(count):
        base, further = divmod(row, PIXELS_PER_BASE)
        yield e.at(bases[base], e.builder.mul(stride, i64(further)))


def sums_of_lanes(e: Emitter, rows: Values) -> ir.Value:
    """The sum of the lanes of each of `rows`: row i in lane i, repeated if there are fewer rows
    than lanes. The number of rows is a power of two.
    """
    block = 1
    while block < e.lanes:
        pairs = zip(rows[::2], rows[1::2], strict=True) if len(rows) > 1 else [(rows[0], rows[0])]
        rows = [e.builder.fadd(*exchange(e, *pair, block)) for pair in pairs]
        block *= 2
    return rows[0]


def make_microkernel(tile: RegisterTile, lanes: int, itemsize: int, fma: bool) -> Source:
    """The microkernel of a register tile."""
    return microkernel(sum_windows, emit, tile, lanes, itemsize, fma)


def run_item(
    blob: Blob, group: int, origin: Place, first_panel: int, end_panel: int, scratch: int
) -> None:
    """One work item: pixels of the row, and the panels first_panel .. end_panel - 1."""
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    _, _, pixels = schedule.tile_extent(g, n, p, q)
    low, high = bounds(call)
    load_tile(
        call.kernels,
        slot=call.load_tile,
        blob=blob,
        buffer=scratch,
        n=n,
        p=p,
        q=q,
        c=0,
        channels=g.C,
    )
    for panel in range(first_panel, end_panel):
        k = panel * g.tile_k
        filters = min(g.tile_k, g.K - k)
        out, out_pixel = call.y.address + q * call.y.q + k * call.y.k, call.y.q
        if call.stores.staged:
            out, out_pixel = scratch + call.scratch.staging, filters * call.itemsize
        sums = call.bias.address + panel * call.bias.panel
        for i in range(0, filters, call.tile_filters):
            first = min(i, g.K - k - call.tile_filters)
            sum_windows(
                call.kernels,
                x=call.x.address + q * call.x.w,
                x_pixel=call.x.w,
                w=call.w.address + (k + first) * call.w.k,
                w_filter=call.w.k,
                sums=sums + first * call.itemsize,
                out=out + first * call.itemsize,
                out_pixel=out_pixel,
                elements=g.C,
                pixels=pixels,
                last=g.Q - q - g.tile_m,
                skipped=i - first,
                filters=filters - first,
                low=low,
                high=high,
            )
        if call.stores.staged:
            store_tile(
                call.kernels,
                blob=blob,
                staging=out,
                width=filters,
                n=n,
                p=p,
                q=q,
                k=k,
                filters=filters,
            )


FPROP = operator(run_item)  # the entry that convolves
