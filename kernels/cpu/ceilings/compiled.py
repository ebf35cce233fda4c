"""The code of the `ceilings`."""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels.cpu.ceilings.operator import CHAINS, STEPS, TILE_SUMS
from implicit_conv.kernels.cpu.emit import internals, memory
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I8, Emitter, i64
from implicit_conv.kernels.cpu.gemm.compiled.amx import (
    A_TILE,
    B_TILE,
    CONFIG_BYTES,
    ROWS,
    TILES,
    Tiles,
    config_of,
)
from implicit_conv.kernels.cpu.runtime.compiled.entry import fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, entry


def emit_fmas(
    lanes: int,
    itemsize: int,
    fma: bool,
    multiplier: str,
    builder: ir.IRBuilder,
    at: dict[str, ir.Value],
) -> None:
    """Emit `turns` x STEPS x CHAINS FMAs on the vectors at `values`, which are written back.

    With the `multiplier` "pairs" they are dot products of pairs of bfloat16.
    """
    e = Emitter(builder, lanes, itemsize, fma)
    multiply_add = e.dot_pairs if multiplier == "pairs" else e.multiply_add
    base = builder.inttoptr(at["values"], BYTES)
    places = [e.at(base, 64 * i) for i in range(CHAINS + 2)]
    *sums, factor, addend = (e.load(place) for place in places)

    def turn(_: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        for _ in range(STEPS):
            sums = [multiply_add(factor, addend, value) for value in sums]
        return sums

    sums = e.loop(at["turns"], 1, sums, turn)
    for value, place in zip(sums, places, strict=False):
        e.store(value, place)


def emit_tiles(builder: ir.IRBuilder, at: dict[str, ir.Value]) -> None:
    """Emit `turns` x STEPS x TILE_SUMS products of AMX tiles, whose rows are those at `values`."""
    e, tiles = Emitter(builder, ROWS, 4, True), Tiles(builder)
    content = ir.Constant(ir.ArrayType(I8, CONFIG_BYTES), config_of([(0, 0, ROWS)] * 2))
    config = internals.global_constant(builder, "tile_config", content)
    tiles.ldtilecfg(builder.bitcast(config, BYTES))
    row = builder.inttoptr(at["values"], BYTES)
    for tile in range(TILES):
        tiles.tileloadd(tile, row, i64(0))

    def turn(_: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        for _ in range(STEPS):
            for sums in range(TILE_SUMS):
                tiles.tdpbf16ps(sums, A_TILE + sums // 2, B_TILE + sums % 2)
        return carried

    e.loop(at["turns"], 1, [], turn)
    tiles.tilerelease()


run_fmas = declare(0, "run_fmas", "values turns")


def fmas(blob: Any, thread: int) -> None:
    """Execute FMAs, by the only part of its table; an item is
    ``call.chunk`` iterations of its loop.
    """
    call = fields(blob).call
    while next_item(blob, thread) < call.items:
        values = call.scratch.address + thread * call.scratch.bytes
        run_fmas(call.kernels, values=values, turns=call.chunk)


def copy_share(blob: Any, thread: int) -> None:
    """Copy x to y, a share for each item."""
    call = fields(blob).call
    item = next_item(blob, thread)
    while item < call.items:
        start = item * call.scratch.bytes
        memory.copy(call.y.address + start, call.x.address + start, call.scratch.bytes)
        item = next_item(blob, thread)


def make_run_fmas(lanes: int, itemsize: int, fma: bool, multiplier: str) -> Source:
    """The part of `fmas`."""
    if multiplier == "amx":
        return emitted(run_fmas, emit_tiles)
    return emitted(run_fmas, functools.partial(emit_fmas, lanes, itemsize, fma, multiplier))


FMAS = entry(fmas)  # the entry that executes FMAs
COPY_SHARE = entry(copy_share)  # the entry that copies
