"""The steps of a fold: for each block of each image the products, then what adds them into y."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from implicit_conv.arrays.arrays import Array, numpy_dtype, ordered
from implicit_conv.cpu.candidates import kernel_method
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.fold_blocks import (
    Block,
    Blocks,
    as_products,
    filters_together,
    fold_geometry,
    of_block,
    tile_strides,
)
from implicit_conv.cpu.run.call import Placed
from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Launched,
    Room,
    Step,
    address_of,
    array_at,
    copied,
    launched,
    located,
)
from implicit_conv.kernels.geometry import Epilogue, Geometry
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.problem import Problem
from implicit_conv.process.preparation import first, prepare

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch


def fold_steps(
    problem: Problem,
    product: CpuEngine,
    blocks: Blocks,
    activation: tuple[float, float, float],
    of: Placed,
    packs_first: bool,
    room: Room,
) -> list[Step]:
    """The steps of a fold; it `packs_first` the filter that several blocks read.

    Kernels write whole rows of y, and read those of a residual: others are copied.
    """
    found, dtype = list[Step](), numpy_dtype(problem.dtype)
    shape = (1, *product.problem.size, product.problem.K)
    tile = array_at(room.take(blocks.tile_bytes), shape, dtype, tile_strides(problem, blocks))
    w, panels = None if of.w is None else as_products(problem, of.w), of.panels
    if w is not None and packs_first:
        launch = prepare(_packing, product, ordered(w, product.problem.filter_axes))
        of_w, panels = address_of(w), room.take(product.best_packed.layout.packed_bytes)
        found.append(launched(launch, room, of_w, of_w, of_w, panels))
        w = None
    y, residual = of.y, of.residual
    if not all(_has_rows(problem, each) for each in (y, residual) if each is not None):
        y = room.array(y.shape, y.dtype)
        if residual is not None:
            residual = copied(residual, room, found)
    read = of_block(problem, blocks, of.x)
    end, at = room.end, address_of(tile)
    products = product.steps(Placed(read, w, tile, None, panels), room)
    room.end = end  # the products are in the tile
    epilogue = Epilogue(activation, of.biased and not of.scaled, of.scaled)
    launches = prepare(_launches, problem, product, blocks, epilogue, tile, (y, residual))
    sums = _itself if epilogue.biased else None
    scratch = room.take(max(launch.bytes for launch in launches))
    for n in range(problem.N):
        for block, launch in zip(blocks.all, launches, strict=True):
            own = of_block(problem, blocks, of.x, n, block.first)
            by = {located(address_of(read))[0]: address_of(own) - address_of(read)}
            found += [step.moved(by) for step in products]
            out, added = (
                0 if each is None else address_of(_written(problem, blocks, block, each, n))
                for each in (y, residual)
            )
            found.append(Launched(launch, scratch, at, at, out, 0, added, sums, of.scaled))
    if y is not of.y:
        found.append(Copied(y, of.y))
    return found


def _itself(bias: Array) -> Array:
    """The initial sums of a fold."""
    return bias


def _packing(product: CpuEngine, filters: Array) -> Launch:
    """The launch that packs the filter of the products."""
    c = product.best_packed
    return kernel_method.operator(c, product.formats).prepare_packing(filters, c.threads)


def _has_rows(problem: Problem, array: Array) -> bool:
    """Whether pixels of a row are contiguous."""
    return bool(ordered(array, problem.axes).strides[3] == array.itemsize)


def _written(problem: Problem, blocks: Blocks, block: Block, array: Array, n: int) -> Array:
    """The elements of y or the residual that a block of image `n` writes."""
    place = [slice(n, n + 1), *[slice(None)] * 4]
    place[1 + blocks.axis] = slice(block.begin, block.end)
    return ordered(array, problem.axes)[tuple(place)]


def _launches(
    problem: Problem,
    product: CpuEngine,
    blocks: Blocks,
    epilogue: Epilogue,
    tile: Array,
    arrays: Sequence[Array | None],
) -> list[Launch]:
    """The launches that fold the blocks of an image; `arrays` are y and the residual."""
    first("folds")
    from implicit_conv.kernels.cpu.fold.operator import Fold, FoldLayout
    from implicit_conv.kernels.cpu.operator import Build, Operands
    from implicit_conv.kernels.cpu.tile.storage import Format

    arch, request = product.arch, product.request
    size, form = ITEMSIZES[problem.dtype], Format(*[problem.dtype] * 6)
    lanes = arch.lanes(size)
    found: dict[Geometry, Launch] = {}  # most blocks have one geometry
    operator: Fold | None = None
    geometries = [fold_geometry(problem, blocks, block) for block in blocks.all]
    for block, g in zip(blocks.all, geometries, strict=True):
        if g in found:
            continue
        layout = FoldLayout(g, size, lanes, filters_together(problem))
        ends = g.C, (g.P, g.Q)
        build = Build(form, arch.fma, *ends, request.flushes, False, request.compiler)
        if operator is None:
            operator = Fold(layout, lanes, build)
        else:
            operator = operator.resized(layout, build)
        views = [None if a is None else _written(problem, blocks, block, a, 0) for a in arrays]
        operands = Operands(tile, None, *views)
        found[g] = operator.prepare(operands, epilogue, product.best.threads)
    return [found[g] for g in geometries]
