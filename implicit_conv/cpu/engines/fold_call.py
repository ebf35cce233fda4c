"""The call of a fold: for each block of each image the products, then what adds them into y."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from implicit_conv.arrays.arrays import Array, Binding, numpy_dtype, ordered, with_own_strides
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
from implicit_conv.cpu.run.call import Call, CallForm, address, blank, stand_in
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.pool import POOL
from implicit_conv.kernels.cpu.runtime.program import Room, Step, room_array
from implicit_conv.kernels.geometry import Epilogue, Geometry
from implicit_conv.kernels.preparation import first, prepare
from implicit_conv.problem.options import ITEMSIZES

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch


def _packing(product: CpuEngine, filters: Array) -> Launch:
    """The launch that packs the filter of the products."""
    c = product.best_packed
    return kernel_method.operator(c, product.formats).prepare_packing(filters, c.threads)


class FoldCall(Call):
    """Prepared launches: one that packs the filter, one of products, and one for each block."""

    __slots__ = (
        "_blocks",
        "_folds",
        "_gathers",
        "_packing",
        "_panel_bytes",
        "_problem",
        "_product",
        "_tile",
    )

    def __init__(
        self,
        form: CallForm,
        product: CpuEngine,
        blocks: Blocks,
        activation: tuple[float, float, float],
        binding: Binding,
        packs_first: bool,
    ) -> None:
        super().__init__(form)
        self._problem, self._blocks = form.problem, blocks
        problem = form.problem
        x = stand_in(problem.output_shape, problem.dtype, binding.x)
        strides = tile_strides(problem, blocks)
        self._tile = (1, *product.problem.size, product.problem.K), strides
        self._packing: Launch | None = None
        w = None
        if binding.w is not None:
            w = self._filter(blank(problem.weight_shape, problem.dtype, binding.w))
        if w is not None and packs_first:
            filters = ordered(w, product.problem.filter_axes)
            self._packing = prepare(_packing, product, filters)
            self._panel_bytes, w = product.best_packed.layout.packed_bytes, None
        given = ordered(x, problem.axes).strides, None if w is None else w.strides, strides
        self._product = product.bind(Binding(*given))
        shape = form.y_shape, problem.dtype
        arrays = [
            None if strides is None else stand_in(*shape, strides)
            for strides in (binding.y, binding.residual)
        ]
        self._gathers = not all(self._has_rows(a) for a in arrays if a is not None)
        if self._gathers:
            arrays = [None if a is None else stand_in(*shape) for a in arrays]
        epilogue = Epilogue(activation, binding.biased and not binding.scaled, binding.scaled)
        self._folds = prepare(self._prepared, arrays, product, epilogue)

    def _prepared(
        self, arrays: Sequence[Array | None], product: CpuEngine, epilogue: Epilogue
    ) -> list[tuple[Block, Launch]]:
        """The launches that fold the blocks of an image; `arrays` are y and the residual."""
        first("folds")
        from implicit_conv.kernels.cpu.fold.operator import Fold, FoldLayout
        from implicit_conv.kernels.cpu.operator import Build, Operands
        from implicit_conv.kernels.cpu.tile.storage import Format

        problem, arch, request = self._problem, product.arch, product.request
        size, form = ITEMSIZES[problem.dtype], Format(*[problem.dtype] * 6)
        lanes, shape, strides = arch.lanes(size), *self._tile
        tile = stand_in(shape, problem.dtype, strides)
        found: dict[Geometry, Launch] = {}  # most blocks have one geometry
        operator: Fold | None = None
        geometries = [fold_geometry(problem, self._blocks, block) for block in self._blocks.all]
        for block, g in zip(self._blocks.all, geometries, strict=True):
            if g in found:
                continue
            layout = FoldLayout(g, size, lanes, filters_together(problem))
            ends = g.C, (g.P, g.Q)
            build = Build(form, arch.fma, *ends, request.flushes, False, request.compiler)
            if operator is None:
                operator = Fold(layout, lanes, build)
            else:
                operator = operator.resized(layout, build)
            views = [None if a is None else self._written(block, a, 0) for a in arrays]
            operands = Operands(tile, None, *views)
            found[g] = operator.prepare(operands, epilogue, product.best.threads)
        return [(block, found[g]) for block, g in zip(self._blocks.all, geometries, strict=True)]

    def _filter(self, w: Array) -> Array:
        """The filter of the products."""
        return as_products(self._problem, w)

    def _has_rows(self, array: Array) -> bool:
        """Whether pixels of a row are contiguous."""
        return bool(ordered(array, self._problem.axes).strides[3] == array.itemsize)

    def _written(self, block: Block, array: Array, n: int) -> Array:
        """The elements of y or the residual that a block of image `n` writes."""
        place = [slice(n, n + 1), *[slice(None)] * 4]
        place[1 + self._blocks.axis] = slice(block.begin, block.end)
        return ordered(array, self._problem.axes)[tuple(place)]

    def _compute(
        self, x: Array, w: Any, bias: Any, y: Array, residual: Array | None, scale: Any
    ) -> None:
        """See `Call`; `w` is a plain filter, or the operands of packed filters."""
        sums = scaling = None
        if scale is not None:
            scaling = scale, np.zeros_like(scale) if bias is None else bias
        elif bias is not None:
            sums = self._addend(bias)
        out, added = y, residual
        if self._gathers:
            out = np.empty(y.shape, y.dtype)
            added = None if residual is None else with_own_strides(residual)
        tile = POOL.take(self._blocks.tile_bytes)
        try:
            filters = w[0] if isinstance(w, tuple) else self._filter(w)
            if self._packing is None:
                self._fold(x, filters, tile, (out, added), sums, scaling)
            else:
                panels = POOL.take(self._panel_bytes)
                try:
                    self._packing.run(filters, filters, filters, panels.address)
                    self._fold(x, panels.address, tile, (out, added), sums, scaling)
                finally:
                    POOL.give(panels)
        finally:
            POOL.give(tile)
        if out is not y:
            y[...] = out

    def _fold(
        self, x: Array, filters: Any, tile: Any, arrays: Sequence[Any], sums: Any, scaling: Any
    ) -> None:
        """The products and folds of all blocks of all images."""
        shape, strides = self._tile
        dtype = numpy_dtype(self._problem.dtype)
        products = np.ndarray(shape, dtype, tile.memory, strides=strides)
        y, residual = arrays
        for n in range(self._problem.N):
            for block, launch in self._folds:
                read = of_block(self._problem, self._blocks, x, n, block.first)
                self._product(read, filters, None, products)
                added = None if residual is None else self._written(block, residual, n)
                out = self._written(block, y, n)
                launch.run(products, products, out, 0, sums, added, scaling)

    def steps(self, x: Array, w: Any, y: Array, room: Room) -> list[Step]:
        """See `Call`; `w` is a plain filter.

        Raises
        ------
        PlanError
            The result is copied.
        """
        if self._gathers:
            raise PlanError("the result of a fold is copied")
        filters: Any = self._filter(w)
        found, dtype = list[Step](), numpy_dtype(self._problem.dtype)
        tile, (shape, strides) = room.take(self._blocks.tile_bytes), self._tile
        products = room_array(tile, shape, dtype, strides)
        if self._packing is not None:
            of_w, filters = address(filters), room.take(self._panel_bytes)
            found.append(Step(self._packing, of_w, of_w, of_w, filters))
        end = room.end
        for n in range(self._problem.N):
            for block, launch in self._folds:
                room.end = end
                read = of_block(self._problem, self._blocks, x, n, block.first)
                product = self._product.steps(read, filters, products, room)
                found += (step._replace(sums=None) for step in product)  # nor a bias, for now
                of_tile, out = map(address, (products, self._written(block, y, n)))
                found.append(Step(launch, of_tile, of_tile, out))
        return found
