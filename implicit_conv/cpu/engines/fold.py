"""Transposed convolutions as one GEMM: the products of all taps, which are then folded into y.

    gemm_m  pixels of x                A  x
    gemm_n  filters x taps             B  w, whose taps are filters of one tap
    gemm_k  channels                   C  a tile of products, from where they are added into y

A phase of the stride reads a part of each filter, and writes a part of each cache line of y. This
reads w in its own order, and writes each element of y once. The tile has some planes, rows or
pixels of an image, so that it stays in a cache; see `fold_blocks`.

`problem` is the convolution whose input gradient is computed, with three spatial axes: its K are
the channels of the products, and its C their filters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype, ordered
from implicit_conv.cpu.candidates import kernel_method
from implicit_conv.cpu.candidates.candidate import Candidate, Choice, Given, Words
from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Formats, Query, Refusal, Request, Serves
from implicit_conv.cpu.engines.fold_blocks import (
    Block,
    Blocks,
    as_products,
    blocks_of,
    filters_together,
    fold_cycles,
    fold_geometry,
    is_row,
    of_block,
    product_problem,
    tile_strides,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.composite import Composite, Derived
from implicit_conv.cpu.plan.planner import steps_of
from implicit_conv.cpu.run.call import Arrays, stand_in
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Launched,
    Step,
    address_of,
    array_at,
    copied,
    launched,
    located,
)
from implicit_conv.kernels.geometry import Epilogue, Geometry
from implicit_conv.problem.options import ITEMSIZES, contiguous_strides
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.preparation import first, prepare

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch


@dataclass(frozen=True)
class Fold(Composite):
    """The products of all taps, which are added into y."""

    name: ClassVar[str] = "fold"
    algorithms: ClassVar[tuple[str, ...]] = ("auto",)
    kind: ClassVar[str] = "fold"
    serves: ClassVar[Serves] = Serves(("float32", "float64"), "standard")

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return "one GEMM of all taps, whose products are then added"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words."""
        return "filters and taps of a channel in a row"

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, whose products are those of a block."""
        if set(problem.stride) == {1}:
            return
        problem = spatial(problem, request.precision)
        reason = refusal(problem)
        if reason:
            yield Refusal(cls.name, reason)
            return
        blocks = blocks_of(problem, arch)
        reserved = request.reserved_bytes + blocks.tile_bytes
        request = replace(request, reserved_bytes=reserved, activation="")
        arrays = stand_ins(problem, blocks)
        query = Query(product_problem(problem, blocks), arch, request, arrays, planner.PRODUCTS)
        found = planner.of_part(query, cls.name)
        yield found if isinstance(found, Refusal) else cls()._of(problem, arch, blocks, found)

    def _of(self, problem: Problem, arch: CpuArch, blocks: Blocks, product: Choice) -> Candidate:
        best, images = product.best, problem.N * len(blocks.all)
        packed = images * (best.packed_cycles + fold_cycles(problem, arch, blocks))
        return Candidate(
            *(self, best.algorithm, problem, problem, arch, best.threads),
            cycles=packed + best.packing,
            packing=best.packing,
            parts=(product,),
        )

    def resized(self, c: Candidate, problem: Problem, derived: Derived) -> Candidate | None:
        """The products of a block of a near size."""
        problem = spatial(problem)
        blocks = blocks_of(problem, c.arch)
        product = derived(c.parts[0], product_problem(problem, blocks))
        return None if product is None else self._of(problem, c.arch, blocks, product)

    def packed(self, c: Candidate) -> PackedOrder:
        """The packed filter of the products, and which filters and taps these are of."""
        order = super().packed(c)
        return replace(order, key=(*order.key, c.problem.C, c.problem.kernel))

    def part_arrays(self, problem: Problem, arch: CpuArch) -> list[Arrays]:
        """Those of a block."""
        return [stand_ins(problem, blocks_of(problem, arch))]

    def titles(self, c: Candidate) -> list[str]:
        """What the products are of."""
        return ["products of a block"]

    def copied_bytes(self, c: Candidate) -> int:
        """Bytes of the tile."""
        return blocks_of(c.problem, c.arch).tile_bytes

    def call_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes that a call takes besides its arrays: the tile, and what the products take, with a
        packed filter if there are several blocks.
        """
        (product,), blocks = c.parts, blocks_of(c.problem, c.arch)
        panels = product.packed_bytes if is_packed_first(c.problem, blocks) else 0
        own = product.call_bytes(stand_ins(c.problem, blocks))
        return blocks.tile_bytes + max(own, product.workspace_bytes + panels)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Whether a plain filter has one row for each channel."""
        return arrays.w is None or is_row(c.problem, arrays.w.strides)

    def filters(self, c: Candidate, w: Array) -> list[Array]:
        """The filter of the products."""
        return [as_products(c.problem, np.ascontiguousarray(w))]

    def loads(self, c: Candidate) -> list[Load]:
        """The loads of the products of all blocks, in the coordinates of a block."""
        product, blocks = c.parts[0].best, blocks_of(c.problem, c.arch)
        return product.trace(product.problem) * c.problem.N * len(blocks.all)

    def describe(self, c: Candidate) -> Words:
        """The tile."""
        blocks = blocks_of(c.problem, c.arch)
        number, products = len(blocks.all) * c.problem.N, c.parts[0].query.problem.K
        return {
            "tile": f"{count(blocks.pixels, 'pixel')} x {products} products, "
            f"{blocks.tile_bytes / 1024:.0f} KiB; {count(number, 'block')} of {blocks.extent} "
            f"along {'DHW'[blocks.axis]}"
        }

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """For each block of each image the products, then what adds them into y.

        Kernels write whole rows of y, and read those of a residual: others are copied.
        """
        arrays, epilogue, formats, room, _ = given
        problem, (product,) = c.problem, c.parts
        blocks, products = blocks_of(problem, c.arch), product.query.problem
        found, dtype = list[Step](), numpy_dtype(problem.dtype)
        shape = (1, *products.size, products.K)
        tile = array_at(room.take(blocks.tile_bytes), shape, dtype, tile_strides(problem, blocks))
        w, panels = None if arrays.w is None else as_products(problem, arrays.w), arrays.panels
        if w is not None and is_packed_first(problem, blocks):
            launch = prepare(_packing, product, formats, ordered(w, products.filter_axes))
            of_w, panels = address_of(w), room.take(product.best_packed.layout.packed_bytes)
            found.append(launched(launch, room, of_w, of_w, of_w, panels))
            w = None
        y, residual = arrays.y, arrays.residual
        if not all(_has_rows(problem, each) for each in (y, residual) if each is not None):
            y = room.array(y.shape, y.dtype)
            if residual is not None:
                residual = copied(residual, room, found)
        read = of_block(problem, blocks, arrays.x)
        end, at = room.end, address_of(tile)
        of_product = Arrays(read, w, tile, None, panels)
        steps = steps_of(product, Given(of_product, Epilogue(), formats, room))
        room.end = end  # the products are in the tile
        launches = prepare(_launches, c, blocks, epilogue, formats, tile, (y, residual))
        sums = _itself if epilogue.biased else None
        scratch = room.take(max(launch.bytes for launch in launches))
        for n in range(problem.N):
            for block, launch in zip(blocks.all, launches, strict=True):
                part = of_block(problem, blocks, arrays.x, n, block.first)
                by = {located(address_of(read))[0]: address_of(part) - address_of(read)}
                found += [step.moved(by) for step in steps]
                out, added = (
                    0 if each is None else address_of(_written(problem, blocks, block, each, n))
                    for each in (y, residual)
                )
                places = at, at, out, 0, added
                found.append(Launched(launch, scratch, *places, sums, epilogue.scaled))
        if y is not arrays.y:
            found.append(Copied(y, arrays.y))
        return found


def refusal(problem: Problem) -> str:
    """Why products are not folded, or an empty string."""
    if problem.groups > 1:
        return "it needs one group"
    if problem.channels_last and problem.C > 1:
        return "filters are contiguous in y"
    spread = [s for s, taps in zip(problem.dilation, problem.kernel, strict=True) if taps > 1]
    if set(spread) - {1}:
        return "it needs dilation 1"
    if 0 in (problem.K, problem.C, *problem.size, *problem.output):
        return "it needs channels, filters and pixels"
    strides = contiguous_strides(problem.weight_shape, ITEMSIZES[problem.dtype])
    return "" if is_row(problem, strides) else "the filters and taps of a channel are no row of w"


def is_packed_first(problem: Problem, blocks: Blocks) -> bool:
    """Whether a plain filter is packed before the first block, because others read it too."""
    return problem.N * len(blocks.all) > 1


def stand_ins(problem: Problem, blocks: Blocks) -> Arrays:
    """(x, w, tile) of a block, in the axes of `product_problem`; they have no memory."""
    products = product_problem(problem, blocks)
    x = of_block(problem, blocks, stand_in(problem.output_shape, problem.dtype))
    w = as_products(problem, stand_in(problem.weight_shape, problem.dtype))
    shape = (1, *products.size, products.K)
    return Arrays(x, w, stand_in(shape, problem.dtype, tile_strides(problem, blocks)))


def _itself(bias: Array) -> Array:
    """The initial sums of a fold."""
    return bias


def _packing(product: Choice, formats: Formats, filters: Array) -> Launch:
    """The launch that packs the filter of the products."""
    c = product.best_packed
    return kernel_method.operator(c, formats).prepare_packing(filters, c.threads)


def _has_rows(problem: Problem, array: Array) -> bool:
    """Whether pixels of a row are contiguous."""
    return bool(ordered(array, problem.axes).strides[3] == array.itemsize)


def _written(problem: Problem, blocks: Blocks, block: Block, array: Array, n: int) -> Array:
    """The elements of y or the residual that a block of image `n` writes."""
    place = [slice(n, n + 1), *[slice(None)] * 4]
    place[1 + blocks.axis] = slice(block.begin, block.end)
    return ordered(array, problem.axes)[tuple(place)]


def _launches(
    c: Candidate,
    blocks: Blocks,
    epilogue: Epilogue,
    formats: Formats,
    tile: Array,
    arrays: Sequence[Array | None],
) -> list[Launch]:
    """The launches that fold the blocks of an image; `arrays` are y and the residual."""
    first("folds")
    from implicit_conv.kernels.cpu.fold.operator import Fold as FoldOperator
    from implicit_conv.kernels.cpu.fold.operator import FoldLayout
    from implicit_conv.kernels.cpu.operator import Build, Operands
    from implicit_conv.kernels.cpu.tile.storage import Format

    arch, problem = c.arch, c.problem
    size, form = ITEMSIZES[problem.dtype], Format(*[problem.dtype] * 6)
    lanes = arch.lanes(size)
    found: dict[Geometry, Launch] = {}  # most blocks have one geometry
    operator: FoldOperator | None = None
    geometries = [fold_geometry(problem, blocks, block) for block in blocks.all]
    for block, g in zip(blocks.all, geometries, strict=True):
        if g in found:
            continue
        layout = FoldLayout(g, size, lanes, filters_together(problem))
        if operator is None:
            build = Build(form, arch.fma, g.C, formats.flushes, False, formats.compiler)
            operator = FoldOperator(layout, lanes, build)
        else:
            operator = operator.resized(layout)
        views = [None if a is None else _written(problem, blocks, block, a, 0) for a in arrays]
        operands = Operands(tile, None, *views)
        found[g] = operator.prepare(operands, epilogue, c.threads)
    return [found[g] for g in geometries]
