"""The GPU planner: candidates -> estimate -> best -> derived. It needs no GPU."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from implicit_conv.errors import PlanError
from implicit_conv.gpu.arch import GpuArch
from implicit_conv.gpu.candidates import Candidate, Estimate, Options, consider, variants
from implicit_conv.gpu.layout import SharedLayout, buffer_rows, buffers
from implicit_conv.kernels import schedule
from implicit_conv.kernels.activation import CLAMP
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem import LAYOUTS, WEIGHT_LAYOUTS, Problem
from implicit_conv.schedule import KBlock, Load, Tap

if TYPE_CHECKING:
    from implicit_conv.gpu.filter import GpuFilter
    from implicit_conv.gpu.run import Prepared

UNBOUNDED = (-math.inf, math.inf)


@dataclass(frozen=True)
class GpuPlan:
    """What was chosen for one problem on one GPU, and what follows from it.

    `problem` says how arrays lie in memory; `given`, where it differs, how the caller's axes are
    called. numpy arrays go to GPU `device`, by default the current one.
    """

    problem: Problem
    arch: GpuArch
    variant: Variant
    geometry: Geometry
    layout: SharedLayout
    estimate: Estimate
    candidates: tuple[Candidate, ...] = ()
    limits: tuple[float, float] = UNBOUNDED
    algorithm: str = "implicit_gemm"
    given: Problem | None = None
    unbatched: bool = False
    device: int | None = None

    @functools.cached_property
    def prepared(self) -> dict[object, Prepared]:
        """Launches made ready, by what the arrays they are for have in common."""
        return {}

    @property
    def names(self) -> Problem:
        """The problem in the caller's layouts."""
        return self.given or self.problem

    @property
    def axes(self) -> tuple[int, ...]:
        """Positions in the caller's x, y and residual of the problem's axes."""
        return (0, 1, 2, 3) if self.given is None else LAYOUTS[self.given.layout]

    @property
    def filter_axes(self) -> tuple[int, ...]:
        """Positions in the caller's filter of the problem's axes."""
        if self.given is None:
            return 0, 1, 2, 3
        k, c, r, s = WEIGHT_LAYOUTS[self.given.weight_layout]
        return k, r, s, c

    @property
    def tiles(self) -> tuple[int, int, int]:
        """(groups, gemm_m tiles, gemm_n tiles)."""
        g = self.geometry
        return (
            g.groups,
            int(schedule.gemm_m_tiles(g, self.variant.wide)),
            int(schedule.panel_count(g)),
        )

    @property
    def blocks(self) -> int:
        """Blocks of the launch: one a multiprocessor, each of which visits tiles in turn."""
        groups, m, n = self.tiles
        return min(groups * m * n, self.arch.sms)

    @property
    def workspace_bytes(self) -> int:
        """Device memory beside the arrays: none."""
        return 0

    @property
    def peak_bytes(self) -> int:
        """Output and packed filter."""
        p = self.problem
        elements = math.prod(p.output_shape) + math.prod(p.weight_shape)
        return self.workspace_bytes + elements * p.itemsize

    @property
    def flops(self) -> int:
        """Multiplications and additions of the problem, padding counted."""
        return self.problem.flops

    @property
    def bytes(self) -> int:
        """Bytes of x, w and y, each once."""
        return self.problem.bytes

    def pack(self, w: Any) -> GpuFilter:
        """A filter on the GPU as kernels want it: K, R, S, C, each filter's values side by side.

        Nothing is copied where a device array lies so already: it must then live on unchanged.

        Raises
        ------
        ShapeError, DTypeError
            A filter that is not the one the plan was made for.
        PlanError, DriverError
            No GPU or driver to hold it.
        """
        from implicit_conv.gpu.filter import pack

        return pack(self, w)

    def __call__(
        self, x: Any, w: Any, bias: Any = None, *, residual: Any = None, out: Any = None
    ) -> Any:
        """Convolve with a filter, packed or plain: device arrays in place, numpy arrays by copies.

        Raises
        ------
        ShapeError, DTypeError
            Arrays that are not those the plan was made for.
        PlanError, DriverError
            No GPU or driver that can run it.
        """
        from implicit_conv.gpu.run import run_plan

        return run_plan(self, x, w, bias, residual, out)

    def explain(self) -> str:
        """What was chosen, and why; for people."""
        from implicit_conv.gpu.explain import explain

        return explain(self)

    def trace(self) -> list[Load]:
        """All loads of a launch, tile by tile, in the order of each tile's producer."""
        groups, m, n = self.tiles
        blocks = (block for tile in range(groups * m * n) for block in k_blocks(self, tile))
        return [load for block in blocks for load in block.loads]


def k_blocks(plan: GpuPlan, tile: int) -> Iterator[KBlock]:
    """Loads and taps of one tile, an activation load and its filter taps a k-block."""
    g, v, layout = plan.geometry, plan.variant, plan.layout
    _, tiles_m, tiles_n = plan.tiles
    group, m, panel = tile // (tiles_m * tiles_n), tile // tiles_n % tiles_m, tile % tiles_n
    n, p, q = schedule.gemm_m_pixel(g, v.wide, m, 0)
    rows, columns = (
        range(*schedule.load_rows(g, v.wide, p)),
        range(0, g.S, schedule.load_taps(g, v.wide)),
    )
    for r, s, c in itertools.product(rows, columns, range(0, g.C, g.tile_c)):
        taps = range(s, s + schedule.load_taps(g, v.wide))
        loads = [
            _activation_load(plan, b, (n, p, q), (r, s, group * g.C + c))
            for b in range(buffers(v, g))
        ]
        loads += [
            Load(
                "w",
                "tile",
                (group * g.K + panel * v.tile_n, r, t, c),
                None,
                0,
                0,
                0,
                v.tile_n,
                layout.b_load,
            )
            for t in taps
        ]
        yield KBlock(tuple(loads), tuple(Tap(r, t, *schedule.tap_view(g, v.wide, t)) for t in taps))


def _activation_load(
    plan: GpuPlan, b: int, pixel: tuple[int, int, int], step: tuple[int, int, int]
) -> Load:
    g, v = plan.geometry, plan.variant
    (n, p, q), (r, s, c) = pixel, step
    h, w, rows = p * g.stride_h - g.pad_h, q * g.stride_w - g.pad_w, buffer_rows(v, g, b)
    size = rows * v.row_bytes
    if not v.wide:
        offsets = (r * g.dilation_h, s * g.dilation_w)
        return Load("x", "im2col", (n, h, w, c), offsets, 0, 0, 0, rows, size)
    halo, offset = rows - v.tile_m, int(schedule.column_offset(g, b))
    return Load("x", "w", (n, h + r * g.dilation_h, w, c), None, halo, offset, b, rows, size)


def plan(
    problem: Problem,
    arch: GpuArch,
    *,
    activation: tuple[float, float, float] | None = None,
    options: Options | None = None,
    variant: Variant | None = None,
) -> GpuPlan:
    """The plan of `problem` on `arch`; with `variant`, of that kernel alone.

    Parameters
    ----------
    activation : (kind, low, high), optional
        As `implicit_conv.activation.parse_activation` gives it; None also tells that there is no
        residual.
    options : Options
        What to admit before hardware has proved it.

    Raises
    ------
    PlanError
        No kernel can serve, with each one's reason.
    """
    kind = CLAMP if activation is None else int(activation[0])
    chosen = variants(problem, kind, activation is None)
    if variant is not None:
        chosen = iter([replace(variant, activation=kind)])
    candidates = tuple(consider(problem, arch, v, options or Options()) for v in chosen)
    able = [candidate for candidate in candidates if candidate.estimate is not None]
    if not able:
        reasons = "\n".join(f"  {c.variant.name}: {c.reason}" for c in candidates)
        raise PlanError(f"no GPU kernel serves {problem} on {arch.target}:\n{reasons}")
    best = min(able, key=_cycles)
    assert best.layout is not None and best.estimate is not None
    limits = UNBOUNDED if activation is None else activation[1:]
    return GpuPlan(
        problem, arch, best.variant, best.geometry, best.layout, best.estimate, candidates, limits
    )


def _cycles(candidate: Candidate) -> float:
    assert candidate.estimate is not None
    return candidate.estimate.cycles
