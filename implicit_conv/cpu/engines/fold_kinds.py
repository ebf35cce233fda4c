"""Near sizes of transposed convolutions and input gradients whose products are folded."""

from __future__ import annotations

from typing import Any

from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.fold import NO_ACTIVATION, Fold, Folds, ProductEngine
from implicit_conv.cpu.engines.fold_blocks import blocks_of, fold_cycles, product_problem
from implicit_conv.cpu.engines.kinds import Range, Shape, may_serve
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.planner import Choice
from implicit_conv.problem.options import SPACE


class FoldRange(Range):
    """Transposed convolutions and input gradients whose products are folded."""

    def __init__(self, engine: Any, fold: Fold) -> None:
        super().__init__(engine)
        self._fold = fold
        self._request = planner.near(fold.product.request, fold.product.best)

    @property
    def _planned(self) -> CpuEngine:
        return self._fold.product

    def sized(self, x_shape: Shape, shape: Shape | None = None) -> Any:
        """See `Range`; without a `shape`, the result grows by the stride for each pixel of x."""
        near, old = self.engine.problem, self._fold
        if len(x_shape) != len(near.array_layout) or isinstance(shape, int):
            return None
        extents = dict(zip(near.array_layout, x_shape, strict=True))
        read = tuple(extents[axis] for axis in SPACE[near.rank])
        if shape is None:
            each = zip(near.size, read, near.output, near.stride, strict=True)
            size = tuple(own + (now - before) * step for own, now, before, step in each)
        elif len(shape) == near.rank:
            size = shape
        else:
            whole = dict(zip(near.array_layout, shape, strict=True))
            size = tuple(whole[axis] for axis in SPACE[near.rank])
            if whole["C"] != near.C or whole.get("N") != extents.get("N"):
                return None
        if extents["C"] != near.K or min(*read, *size) < 2:
            return None
        problem = near.changed(N=extents.get("N", 1), size=size)
        if problem.output != read:
            return None
        view = spatial(problem)
        blocks = blocks_of(view, old.product.arch)
        products = product_problem(view, blocks)
        c = planner.like(old.product.best, products, self._request)
        if c is None:
            return None
        choice = Choice((c,), (), near=old.product.choice.near or planner.words(near))
        options = old.product.arch, old.product.request, choice, NO_ACTIVATION
        product = ProductEngine(products, *options, products.dtype)
        block = c.packed_cycles + fold_cycles(view, blocks, c.lanes)
        packed = view.N * len(blocks.all) * block
        fold = Fold(view, product, blocks, old.activation, packed + c.packing, packed)
        found = Folds(plain=fold)
        return type(self.engine)(problem, (), None, self.engine.out_dtype, folds=found)


def range_of(engine: Any) -> FoldRange | None:
    """The range of an engine with `folds`; None if each size needs a plan of its own."""
    folds = engine.folds
    if folds is None or folds.plain is None or not may_serve(folds.plain.product):
        return None
    return FoldRange(engine, folds.plain)
