"""Transpose a few columns: elements of each row are as few as the taps of a filter row.

A vector holds the elements of several rows, so that a transpose takes a fraction of the exchanges
of `transpose`, whose vectors hold one row each.
"""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I32, I64, Emitter, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.layout import FEW
from implicit_conv.kernels.cpu.runtime.table import FEW_COLUMNS
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.transpose import butterfly
from implicit_conv.kernels.cpu.tile.storage import Stored

transpose_few = declare(
    FEW_COLUMNS, "transpose_few", "source source_stride target offsets rows columns"
)


def _join(e: Emitter, vectors: list[ir.Value]) -> ir.Value:
    """One vector of the lanes of all `vectors`, a power of two, in their order."""
    while len(vectors) > 1:
        lanes = list(range(2 * vectors[0].type.count))
        taken = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [e.builder.shuffle_vector(*pair, taken) for pair in pairs]
    return vectors[0]


def _emit(
    e: Emitter,
    narrow: Emitter,
    formats: tuple[Stored, Stored],
    full: bool,
    at: dict[str, ir.Value],
) -> None:
    """Emit a block of `rows` rows of which `columns` columns become rows of the target, at the byte
    offsets in a table.

    `narrow` has vectors of FEW lanes. Where the block is not full, rows past the last one repeat
    it, and the stores mask their lanes.
    """
    builder, (source_format, target_format) = e.builder, formats
    source, source_stride, target, offsets, rows, columns = at.values()
    source, target = (builder.inttoptr(address, BYTES) for address in (source, target))
    offsets = builder.inttoptr(offsets, I64.as_pointer())
    last, mask = builder.sub(rows, i64(1)), narrow.below(columns)

    def row(i: int) -> ir.Value:
        i = i64(i)
        if not full:
            i = builder.select(builder.icmp_signed("<", i, last), i, last)
        address = e.at(source, builder.mul(source_stride, i))
        return convert.load(narrow, source_format, address, mask)

    squares = [_join(e, [row(j) for j in range(i, e.lanes, FEW)]) for i in range(FEW)]
    kept = None if full else e.below(rows)
    for i, vector in enumerate(butterfly(e, squares)):
        with builder.if_then(builder.icmp_signed("<", i64(i), columns)):
            offset = builder.load(builder.gep(offsets, [i64(i)]))
            convert.store(e, target_format, vector, e.at(target, offset), kept)


def make_few_columns(lanes: int, source: Stored, target: Stored, full: bool) -> Source:
    """The part that transposes at most FEW columns of `lanes` rows, or of fewer if not `full`."""
    computed = target if storage.is_integer(source) and source != target else source

    def emit(builder: ir.IRBuilder, at: dict[str, ir.Value]) -> None:
        e, narrow = (convert.emitter(builder, n, computed, True) for n in (lanes, FEW))
        _emit(e, narrow, (source, target), full, at)

    return emitted(transpose_few, emit)
