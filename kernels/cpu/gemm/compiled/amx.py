"""The microkernel on AMX: 16 pixels x 16 filters a tile register, bfloat16 pairs times TDPBF16PS.

GEMM mapping (fprop): A tile = 16 pixels of a shifted view x 16 pairs of channels, straight from the
row buffer (or x); B tile = 16 pairs x 16 filters of a panel; accumulators = 2 x 2 tiles, for up to
32 pixels of one row (or 16 of each of two rows) and the two vectors of a panel:

    for each two blocks of at most 16 pixels:
        accumulators = initial sums
        for (offset, length) in runs:
            for i in range(0, length, 16):  acc[block, v] += A[block] at offset + i  *  B[v] at i
        accumulators -> memory -> bounds, rounding -> output

It takes the same arguments, buffers and panels as the microkernel in vectors. The planner ensures
that runs are multiples of 16 pairs. Every thread has a tile configuration of its own, so each call
loads the configuration that it needs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I8, I64, VOID, Emitter, Values, i64
from implicit_conv.kernels.cpu.gemm.compiled.microkernel import (
    emit_stores,
    for_each_tile,
    multiply_tile,
    pixel_address,
)
from implicit_conv.kernels.cpu.gemm.layout import RUN_BYTES, RegisterTile
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted

ROWS = 16  # rows of a tile, at most: pixels of A and of the sums, pairs of B
ROW_BYTES = 64  # bytes of a row of a tile: pairs of A, filters of B and of the sums
TILES = 8  # tile registers of a CPU
A_TILE, B_TILE = 4, 6  # first register of the A tiles and of the B tiles; sums are in 0 .. 3
CONFIG_BYTES = 64  # palette 1 in byte 0, row bytes in 16-bit words from 16, rows from byte 48


class Tiles:
    """The instructions on tile registers, each a method named by its mnemonic."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self._builder = builder

    def ldtilecfg(self, address: ir.Value) -> None:
        """Give all tiles the shapes in the 64 bytes at `address`, and set them to zero."""
        self._call("ldtilecfg", address)

    def tileloadd(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Load the rows of a tile from `address` on, with a stride in bytes."""
        self._call("tileloadd64", self._number(tile), address, stride)

    def tilestored(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Store the rows of a tile from `address` on, with a stride in bytes."""
        self._call("tilestored64", self._number(tile), address, stride)

    def tdpbf16ps(self, sums: int, a: int, b: int) -> None:
        """sums[m, n] += a[m, 2k] * b[k, 2n] + a[m, 2k + 1] * b[k, 2n + 1], summed over k.

        Subnormals are treated as zeros.
        """
        self._call("tdpbf16ps", *(self._number(tile) for tile in (sums, a, b)))

    def tilerelease(self) -> None:
        """Return to the state without tiles, which the operating system need not save."""
        self._call("tilerelease")

    def _number(self, tile: int) -> ir.Value:
        return ir.Constant(I8, tile)

    def _call(self, name: str, *arguments: ir.Value) -> None:
        kind = ir.FunctionType(VOID, [argument.type for argument in arguments])
        module = self._builder.module
        function = internals.get_or_insert_function(module, kind, f"llvm.x86.{name}")
        self._builder.call(function, arguments)


def row_blocks(tile: RegisterTile) -> list[tuple[int, int, int]]:
    """(group, first pixel, pixels) of each block of at most ROWS pixels of `tile`."""
    parts = -(-tile.inner // ROWS)
    cuts = [part * tile.inner // parts for part in range(parts + 1)]
    return [
        (g, begin, end - begin)
        for g in range(tile.groups)
        for begin, end in itertools.pairwise(cuts)
    ]


def config_of(blocks: list[tuple[int, int, int]]) -> bytearray:
    """The tile configuration for two blocks at a time; all first blocks have one size, and all
    second blocks.
    """
    config = bytearray(CONFIG_BYTES)
    config[0] = 1
    rows = [blocks[j % len(blocks)][2] for j in (0, 0, 1, 1, 0, 1)] + [ROWS, ROWS]
    for t in range(TILES):
        config[16 + 2 * t] = ROW_BYTES
        config[48 + t] = rows[t]
    return config


def emit(
    tile: RegisterTile,
    instructions: Callable[[ir.IRBuilder], Tiles],
    builder: ir.IRBuilder,
    at: dict[str, ir.Value],
) -> None:
    """Emit the microkernel of `tile`; `at` maps the parameters of `multiply_tile` to values."""
    e = Emitter(builder, tile.lanes, tile.itemsize, tile.fma)
    tiles = instructions(builder)
    panel_row = tile.vectors * ROW_BYTES
    blocks = row_blocks(tile)
    content = ir.Constant(ir.ArrayType(I8, CONFIG_BYTES), config_of(blocks))
    config = internals.global_constant(builder, "tile_config", content)
    tiles.ldtilecfg(builder.bitcast(config, BYTES))
    with builder.goto_entry_block():
        room = builder.alloca(ir.ArrayType(I8, 2 * ROWS * panel_row))
    room.align = ROW_BYTES
    room = builder.bitcast(room, BYTES)

    def accumulators(pair: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """(tile, block in the pair, vector)."""
        return [(2 * j + v, j, v) for j in range(len(pair)) for v in range(tile.vectors)]

    def multiply(at: dict[str, ir.Value], pair: list[tuple[int, int, int]]) -> None:
        a, b = (builder.inttoptr(at[name], BYTES) for name in ("a", "b"))
        rows = [pixel_address(e, at, a, "a", g, p) for g, p, _ in pair]

        def run(index: ir.Value, carried: Values) -> list[ir.Value]:
            entry = e.at(builder.inttoptr(at["runs"], BYTES), builder.mul(index, i64(RUN_BYTES)))
            offset, length, before = (
                builder.load(e.pointer(e.at(entry, 8 * word), I64)) for word in range(3)
            )

            def step(i: ir.Value, carried: Values) -> list[ir.Value]:
                (panel,) = carried
                moved = builder.add(offset, builder.mul(i, i64(tile.itemsize)))
                for v in range(tile.vectors):
                    tiles.tileloadd(B_TILE + v, e.at(panel, v * ROW_BYTES), i64(panel_row))
                for j, row in enumerate(rows):
                    tiles.tileloadd(A_TILE + j, e.at(row, moved), at["a_inner"])
                for sums, j, v in accumulators(pair):
                    tiles.tdpbf16ps(sums, A_TILE + j, B_TILE + v)
                return [e.at(panel, ROWS * panel_row)]

            e.loop(length, ROWS, [e.at(b, builder.mul(before, i64(panel_row)))], step)
            return []

        e.loop(at["run_count"], 1, [], run)

    def finish(at: dict[str, ir.Value], pair: list[tuple[int, int, int]]) -> None:
        for sums, j, v in accumulators(pair):
            place = e.at(room, j * ROWS * panel_row + v * ROW_BYTES)
            tiles.tilestored(sums, place, i64(panel_row))
        pixels = [(g, p + i) for g, p, rows in pair for i in range(rows)]
        places = [j * ROWS + i for j, (_, _, rows) in enumerate(pair) for i in range(rows)]

        def values() -> Iterator[ir.Value]:
            for place in places:
                for v in range(tile.vectors):
                    yield e.load(e.at(room, place * panel_row + v * ROW_BYTES), ROW_BYTES)

        emit_stores(tile, e, at, pixels, values)

    def register_tile(at: dict[str, ir.Value]) -> None:
        c_in = builder.inttoptr(at["c_in"], BYTES)
        for first in range(0, len(blocks), 2):
            pair = blocks[first : first + 2]
            for sums, j, v in accumulators(pair):
                place = pixel_address(e, at, c_in, "c_in", *pair[j][:2])
                tiles.tileloadd(sums, e.at(place, v * ROW_BYTES), at["c_in_inner"])
            multiply(at, pair)
            finish(at, pair)

    for_each_tile(tile, e, at, register_tile)
    tiles.tilerelease()


def make_microkernel(tile: RegisterTile) -> Source:
    """The microkernel of `tile`."""
    return emitted(multiply_tile, functools.partial(emit, tile, Tiles))
