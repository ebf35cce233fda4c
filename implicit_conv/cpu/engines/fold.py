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

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype, ordered
from implicit_conv.cpu.candidates.candidate import Method, Query, Request
from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.fold_blocks import (
    Blocks,
    as_products,
    blocks_of,
    fold_cycles,
    is_row,
    of_block,
    product_problem,
    tile_strides,
)
from implicit_conv.cpu.engines.fold_call import fold_steps
from implicit_conv.cpu.engines.phase_packing import one_pass_seconds, own_seconds, together
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.run.call import Arrays, Placed, contiguous_strides, stand_in
from implicit_conv.cpu.run.packed import PackedFilter
from implicit_conv.kernels.cpu.runtime.program import Room, Step
from implicit_conv.kernels.cpu.runtime.table import MOST_APART
from implicit_conv.problem.options import ITEMSIZES, Activation, parse_activation
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.preparation import imports

DTYPES = ("float32", "float64")
# Costs of phases that their own estimates do not count, on an EPYC 9004 (Zen 4), 2026-11.
# Cycles per element of y that no L2 has, for each phase that writes a part of its cache line.
SPREAD_PIXEL_CYCLES = 0.6
# Cycles per element of y that is stored a stride apart, by bits of a vector: AVX2 masks stores by
# an instruction that takes long.
SPREAD_STORE_CYCLES = {512: 0.0}
SLOW_SPREAD_STORE_CYCLES = 5.0  # with vectors of other sizes, and strides beyond MOST_APART
LAUNCH_SECONDS = 8e-6  # Python starts the launch of a phase
NO_ACTIVATION = (0.0, -math.inf, math.inf)


@imports
def _tuning() -> Any:
    from implicit_conv.cpu.plan import tuning

    return tuning


@imports
def _clock() -> Any:
    from implicit_conv.cpu.plan.facts import Clock

    return Clock.of


@dataclass(frozen=True)
class ProductEngine(CpuEngine):
    """The plan of a tile: vector lanes are filters x taps, which are stored as they are summed."""

    methods: ClassVar[tuple[type[Method], ...] | None] = planner.PRODUCTS


@dataclass(frozen=True)
class Fold:
    """The plan of products and of their fold.

    Attributes
    ----------
    problem : Problem
    product : CpuEngine
        The plan of the products of one block.
    blocks : Blocks
    activation : (kind, low, high)
        As `parse_activation` returns it.
    cycles, packed_cycles : float
        The estimates for the whole problem with a plain and a packed filter, in cycles of one core.
    """

    problem: Problem
    product: CpuEngine
    blocks: Blocks
    activation: tuple[float, float, float]
    cycles: float
    packed_cycles: float

    def seconds(self, packed: bool) -> float:
        """The estimate, with a filter that is `packed` or plain."""
        best = self.product.best_packed if packed else self.product.best
        cycles = self.packed_cycles if packed else self.cycles
        return cycles / best.threads / best.arch.hertz

    @property
    def call_bytes(self) -> int:
        """Bytes that a call takes besides its arrays: the tile, and what the products take, with a
        packed filter if there are several blocks.
        """
        panels = self.product.packed_bytes if self.is_packed_first else 0
        return self.blocks.tile_bytes + max(
            self.product.call_bytes, self.product.workspace_bytes + panels
        )

    @property
    def is_packed_first(self) -> bool:
        """Whether a plain filter is packed before the first block, because others read it too."""
        return self.problem.N * len(self.blocks.all) > 1

    def takes(self, w: Array | None) -> bool:
        """Whether it reads a filter of these strides: one row for each channel."""
        return w is None or is_row(self.problem, w.strides)

    def steps(self, of: Placed, room: Room) -> list[Step]:
        """The steps of a call with a filter that it `takes`."""
        parts = self.problem, self.product, self.blocks, self.activation
        return fold_steps(*parts, of, self.is_packed_first, room)

    def pack(self, w: Array) -> PackedFilter:
        """The packed filter of the products; see `Plan.pack`."""
        return self.product.pack(as_products(self.problem, np.ascontiguousarray(w)))

    def tuned(self, filters: str) -> Fold:
        """The plan with the fastest candidate of the products; see `Plan.tune`."""
        tuning = _tuning()
        shape = (1, *self.product.problem.size, self.product.problem.K)
        x = tuning.example(self.problem.output_shape, self.problem.dtype, 0)
        w = tuning.example(self.problem.weight_shape, self.problem.dtype, 1)
        memory = np.empty(self.blocks.tile_bytes, np.uint8)
        strides = tile_strides(self.problem, self.blocks)
        tile = np.ndarray(shape, numpy_dtype(self.problem.dtype), memory, strides=strides)
        arrays = of_block(self.problem, self.blocks, x), as_products(self.problem, w), tile
        return replace(self, product=self.product.tuned(filters, arrays))

    def trace(self) -> list[Load]:
        """The loads of the products of all blocks, in the coordinates of a block."""
        return self.product.trace() * self.problem.N * len(self.blocks.all)

    @property
    def kernel(self) -> str:
        """What runs, in words."""
        return f"{self.product.best.name}, for all taps at once; products are then added"

    def facts(self, seconds: float) -> dict[str, Any]:
        """The facts of `Plan.facts`; phases would take `seconds`, by estimate."""
        best, clock = self.product.best, _clock()(self.product.arch)
        nominal = clock.hertz / best.arch.hertz
        own = clock.milliseconds(best, self.cycles)
        packed = clock.milliseconds(best, self.packed_cycles)
        phases = "one convolution for each stride phase"
        return {
            **self.product.facts(),
            "kernel": self.kernel,
            "milliseconds": own,
            "flops": self.problem.flops,
            "bytes": self.problem.bytes,
            "packed": {"kernel": self.kernel, "milliseconds": packed},
            "candidates": [
                {"kernel": self.kernel, "milliseconds": own, "needs": "filters x taps in a row"},
                {"kernel": phases, "milliseconds": 1e3 * seconds / nominal, "needs": ""},
            ],
        }

    def explained(self, result: str, seconds: float) -> Iterator[str]:
        """The rows of `explain`: the fold, then its products; phases would take `seconds`."""
        blocks, axis = self.blocks, "DHW"[self.blocks.axis]
        facts, number = self.facts(seconds), len(blocks.all) * self.problem.N
        own, phases = (each["milliseconds"] for each in facts["candidates"])
        yield (
            f"algorithm   one GEMM of all taps, whose products are added into {result}: "
            f"{own:.3f} ms, by estimate"
        )
        yield f"            one fprop for each stride phase would take {phases:.3f} ms"
        yield (
            f"tile        {count(blocks.pixels, 'pixel')} x {self.product.problem.K} products, "
            f"{blocks.tile_bytes / 1024:.0f} KiB; {count(number, 'block')} of "
            f"{blocks.extent} along {axis}"
        )
        yield f"\nproducts of a block\n{self.product.explain()}"


class Folds(NamedTuple):
    """What runs in place of phases, with plain and with packed filters."""

    plain: Fold | None = None
    packed: Fold | None = None
    phases_seconds: float = 0.0  # the estimate of phases with a plain filter

    @property
    def tile_bytes(self) -> int:
        """Bytes of the larger tile."""
        return max(fold.blocks.tile_bytes for fold in self[:2] if fold is not None)

    @property
    def call_bytes(self) -> int:
        """Bytes that a call of either takes besides its arrays."""
        return max(fold.call_bytes for fold in self[:2] if fold is not None)

    def tuned(self, filters: str, found: Fold) -> Folds:
        """The plans with the fastest candidate of the products of `found`, one of them or both."""
        tuned = found.tuned(filters)
        plain, packed = (tuned if fold == found else fold for fold in self[:2])
        return self._replace(plain=plain, packed=packed)


def refusal(problem: Problem, request: Request) -> str:
    """Why products are not folded, or an empty string."""
    if request.precision == "strict" or request.algorithm != "auto":
        return "one sum for each element is asked for"
    if problem.dtype not in DTYPES or problem.groups > 1:
        return "it needs one group of float32 or float64"
    if problem.channels_last and problem.C > 1:
        return "filters are contiguous in y"
    spread = [s for s, taps in zip(problem.dilation, problem.kernel, strict=True) if taps > 1]
    if set(spread) - {1}:
        return "it needs dilation 1"
    if set(problem.stride) == {1} or 0 in (problem.K, problem.C, *problem.size, *problem.output):
        return "it needs a stride, channels, filters and pixels"
    strides = contiguous_strides(problem.weight_shape, ITEMSIZES[problem.dtype])
    return "" if is_row(problem, strides) else "the filters and taps of a channel are no row of w"


def plan(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    activation: tuple[float, float, float],
) -> Fold | None:
    """The fold of the input gradient of `problem`, if there is one that takes no more memory than
    `request` allows; its estimate tells whether it should run.
    """
    problem = spatial(problem, request.precision)
    if refusal(problem, request):
        return None
    blocks = blocks_of(problem, arch)
    products = product_problem(problem, blocks)
    limit = request.max_workspace
    reserved = 0 if limit is None else request.reserved_bytes + blocks.tile_bytes
    request = replace(request, reserved_bytes=reserved, activation="")
    x, w, tile = stand_ins(problem, products, blocks)
    query = Query(products, arch, request, Arrays(x, w, tile), ProductEngine.methods)
    if limit is not None and planner.least_workspace(query) > limit:
        return None
    choice = planner.plan(*query)
    product = ProductEngine(products, arch, request, choice, NO_ACTIVATION, products.dtype)
    best, images = choice.best, problem.N * len(blocks.all)
    one = best.packed_cycles
    lanes = arch.lanes(ITEMSIZES[problem.dtype])
    packed = images * (one + fold_cycles(problem, blocks, lanes))
    found = Fold(problem, product, blocks, activation, packed + best.packing, packed)
    return found if found.call_bytes - blocks.tile_bytes <= request.limit else None


def stand_ins(problem: Problem, products: Problem, blocks: Blocks) -> tuple[Array, Array, Array]:
    """(x, w, tile) of a block with the axes that methods take; they have no memory."""
    x = of_block(problem, blocks, stand_in(problem.output_shape, problem.dtype))
    w = ordered(
        as_products(problem, stand_in(problem.weight_shape, problem.dtype)), products.filter_axes
    )
    shape = (1, *products.size, products.K)
    return x, w, stand_in(shape, problem.dtype, tile_strides(problem, blocks))


def spread_cycles(problem: Problem, arch: CpuArch) -> float:
    """Cycles that phases take to store pixels of rows a stride apart, besides their estimates."""
    if problem.stride[-1] == 1:
        return 0.0
    elements = math.prod(problem.input_shape)
    beyond = max(0.0, elements - arch.l2_bytes / ITEMSIZES[problem.dtype])
    stores = SLOW_SPREAD_STORE_CYCLES
    if problem.stride[-1] <= MOST_APART:
        stores = SPREAD_STORE_CYCLES.get(arch.vector_bits, stores)
    return elements * stores + beyond * problem.stride[-1] * SPREAD_PIXEL_CYCLES


def folds_of(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    activation: Activation,
    phases: Sequence[CpuEngine],
) -> Folds | None:
    """What runs in place of `phases`, because it is faster, by estimate."""
    found = plan(problem, arch, request, parse_activation(activation))
    if found is None:
        return None
    spread = spread_cycles(problem, arch) / arch.hertz
    plain = packed = len(phases) * LAUNCH_SECONDS + spread
    best = [engine.best_packed for engine in phases]
    packed += sum(c.packed_cycles / c.threads / c.arch.hertz for c in best)
    joined = together(problem, phases)
    plain += one_pass_seconds(problem, joined) if joined else own_seconds(problem, phases)
    folds = Folds(
        found if found.seconds(packed=False) < plain else None,
        found if found.seconds(packed=True) < packed else None,
        plain,
    )
    return None if folds[:2] == (None, None) else folds
