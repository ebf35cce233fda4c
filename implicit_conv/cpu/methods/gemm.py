"""Implicit GEMM: the loads of the schedule, multiplied by register tiles whose lanes are filters.

    gemm_m  pixels of a load tile          A  rows of x in a thread's buffer, or x itself
    gemm_n  filters of a panel             B  packed panels [K / tile_k][C / tile_c][R][S][tile_c]
    gemm_k  taps x channels of a k-block   C  y, or a staging tile that is transposed into y

"pointwise" is implicit GEMM of a 1x1 filter, with all contiguous pixels as one row. bfloat16 is
widened to float32, or multiplied by dot products of pairs of channels if the CPU has them; integers
are widened to those of their sums, or multiplied by dot products of four channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, best, ranked
from implicit_conv.cpu.candidates.phrases import (
    blocks_of,
    count,
    geometry_items,
    loads_of,
    plane_word,
    share_left_out,
)
from implicit_conv.cpu.candidates.problem_views import (
    POINTWISE_RULE,
    ROW_NEED,
    flattened,
    is_pointwise,
    widened,
)
from implicit_conv.cpu.candidates.query import Refusal, Request
from implicit_conv.cpu.candidates.tiling import SPARE_PIXELS, Estimate, few_pixels
from implicit_conv.cpu.machine.arch import BFLOAT16, INT8, CpuArch
from implicit_conv.cpu.methods.gemm_tilings import (
    TILE_WORDS,
    channel_block,
    dot_cost,
    estimate,
    is_gapless,
    panel_vectors,
    spread_pixels,
    tiled,
    tilings,
)
from implicit_conv.cpu.run.call import Arrays, as_row, is_contiguous, is_row
from implicit_conv.cpu.run.packed import PackedOrder, PanelOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import GemmLayout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, trace

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operands, Operator


PAIR = 2  # channels that a dot product of bfloat16 multiplies at once


@dataclass(frozen=True)
class Gemm(KernelMethod):
    """Implicit GEMM over channels or words of several channels; x is read in place or copied."""

    name: ClassVar[str] = "implicit GEMM"
    algorithms: ClassVar[tuple[str, ...]] = ("implicit_gemm", "pointwise")
    in_place: bool = False
    flat: bool = False  # whether all contiguous pixels are one row
    channels: int = 1
    multiplier: str = ""  # a key of TILE_WORDS, if several pixels are multiplied at once

    def spare(self, g: Geometry) -> Geometry:
        """The tiling with register tiles of a few pixels, unless several are multiplied at once."""
        return g if self.multiplier else few_pixels(g, SPARE_PIXELS)

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        rows = "GEMM over all pixels as one row" if self.flat else "GEMM over image rows"
        return f"{rows}, x {'in place' if self.in_place else 'copied'}"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it accepts all strides."""
        channels = "contiguous channels of x" if self.in_place else ""
        pixels = ROW_NEED if self.flat else ""
        return " and ".join(filter(None, (channels, pixels)))

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate: in place if x can be read in place, else copied. There are both if pixels
        of the largest register tile would displace each other from L1, so that those in place have
        fewer; and with few channels, since padding divides a row that is read in place into more.
        """
        if request.admits("pointwise") and not is_pointwise(problem):
            yield Refusal("pointwise", POINTWISE_RULE)
        algorithm = request.gemm_algorithm(problem)
        if algorithm is None:
            return
        near, flat = request.near, algorithm == "pointwise"
        if near is not None and near.method.flat != flat:
            flat = False
        summed, channels, multiplier = summed_view(problem, arch)
        view = flattened(summed) if flat else summed
        skips = not inverts_signs(problem, channels)
        variants = [False]
        if near is None or near.method.in_place:
            pixels = min(tiled(arch, multiplier).tile_pixels, view.N * math.prod(view.output))
            variants = [reads_in_place(view)]
            spread = variants[0] and spread_pixels(view, tiled(arch, multiplier)) < pixels
            if spread or (skips and not request.strict and reads_around_padding(view, arch)):
                variants = [True, False]
        for in_place in variants:
            method = cls(in_place, flat, channels, multiplier)
            single = in_place and channels == 1 and not problem.is_integer
            vectors = panel_vectors(view, arch) if single else 2
            form = multiplier, request.near, skips, channels, vectors
            costs = tilings(view, arch, in_place, *form)
            yield from ranked(method, algorithm, problem, view, arch, costs, request)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """Variants with image rows instead of one row, or x copied, which read the same panels."""
        summed = summed_view(c.problem, c.arch)[0]
        for flat in (True, False) if self.flat else (False,):
            view = flattened(summed) if flat else summed
            either = reads_in_place(view) or self.in_place
            for in_place in (True, False) if either else (False,):
                method = replace(self, in_place=in_place, flat=flat)
                if method != self:
                    skips = not inverts_signs(c.problem, self.channels)
                    form = self.multiplier, None, skips, self.channels, _vectors(c)
                    costs = tilings(view, c.arch, in_place, *form)
                    yield best(method, c.algorithm, c.problem, view, c.arch, costs, limit=limit)

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        machine = tiled(arch, self.multiplier, _vectors(c))
        slow = dot_cost(arch, self.channels, self.multiplier)
        return estimate(c.view, machine, c.geometry, self.in_place, slow=slow)

    def layout(self, c: Candidate) -> GemmLayout:
        """Sizes of scratch memory and packed filters."""
        return GemmLayout(
            c.geometry,
            c.itemsize,
            c.lanes,
            c.chunk,
            self.in_place,
            self.channels,
            c.problem.is_integer,
            inverts_signs(c.problem, self.channels),
        )

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.gemm.operator import Gemm as GemmOperator

        return GemmOperator(c.layout, c.lanes, build, self.multiplier)

    def packed(self, c: Candidate) -> PackedOrder:
        """Panels of filters, with taps ordered by their remainders modulo the step."""
        g, problem = c.geometry, c.problem
        key = (
            "GEMM panels",
            self.channels,
            self.multiplier == "matrices",
            problem.K,
            problem.C,
            problem.kernel,
            problem.dtypes,
            c.arch.vector_bits,
            g.K,
            g.groups,
            g.tile_c,
            g.tile_k,
            g.remainders_w,
        )
        kind = PanelOrder if self.channels == 1 and _vectors(c) == 2 else PackedOrder
        return kind(key, c.layout.packed_bytes)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Reading in place needs contiguous channels, and one row needs pixels that form one."""
        x = arrays.x
        if self.in_place and not is_contiguous(x, -1):
            return False
        given = (x, arrays.y, arrays.residual)
        return not self.flat or all(
            is_row(c.problem, array) for array in given if array is not None
        )

    def arguments(self, c: Candidate, operands: Operands) -> Iterator[Operands]:
        """Arrays as they are, or with the pixels of the geometry as one row."""
        x, _, y, residual = operands
        if self.flat:
            x, y = as_row(c.problem, x), as_row(c.problem, y)
            residual = None if residual is None else as_row(c.problem, residual)
        yield operands._replace(x=x, y=y, residual=residual)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads that pack the panels, then the loads of x."""
        return self.as_problem(c, trace(c.geometry, c.itemsize, self.in_place, c.chunk))

    def as_problem(self, c: Candidate, loads: Sequence[Load]) -> list[Load]:
        """Convert a first channel that counts elements of several channels."""
        return [
            load._replace(coords=(*load.coords[:-1], self.channels * load.coords[-1]))
            for load in loads
        ]

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g = c.geometry
        tile = f"{count(g.tile_p, 'output row')} x {count(g.tile_q, 'output column')}"
        tile = f"{count(g.tile_q, 'pixel')} of one row" if self.flat else tile
        padding = (
            "taps in padding are skipped" if schedule.reads_padding(g) else "no tap reads padding"
        )
        in_place = f"none: x is read in place; its channels are contiguous, and {padding}"
        taps = f" x {count(schedule.taps(g), 'tap')}{share_left_out(g, self.in_place)}"
        return {
            "multiply": multiply_words(self, c),
            "load tile": f"{count(g.tile_n, plane_word(g))} x {tile}, cut into register tiles of "
            f"at most {g.tile_m} pixels x {g.tile_k} filters "
            f"({count(g.tile_k // c.lanes, 'vector')})",
            "loads": in_place if self.in_place else loads_of(g),
            "k-blocks": blocks_of(g, taps),
            "work items": geometry_items(g, c.chunk),
        }


def _vectors(c: Candidate) -> int:
    """Vectors of a panel."""
    return c.geometry.tile_k // c.lanes


def multiply_words(method: Gemm, c: Candidate) -> str:
    """The instructions that multiply, in words."""
    problem = c.problem
    if problem.is_integer:
        how = INT8["quads" if method.channels == 4 else "widen"].format(problem.sum_dtype)
        return f"{problem.dtype} x {problem.filter_dtype} by {how}"
    if problem.dtype == problem.sum_dtype:
        return "FMAs" if c.arch.fma else "multiplications and additions (no FMA)"
    how = method.multiplier or ("pairs" if method.channels > 1 else "widen")
    return f"{problem.dtype} by {BFLOAT16[how]}"


def words_view(problem: Problem, word_channels: int) -> Problem:
    """A problem with words of `word_channels` channels as its channels, each as wide as a sum.

    The last word is filled up with zeros if need be, so that x must be copied.
    """
    channels = problem.C // problem.groups
    return replace(
        problem,
        C=schedule.ceil_div(channels, word_channels) * problem.groups,
        dtype=problem.sum_dtype,
        w_dtype=None,
        converted=channels % word_channels > 0,
    )


def summed_view(problem: Problem, arch: CpuArch) -> tuple[Problem, int, str]:
    """(view of `problem` for its sums, channels of an element, what multiplies several pixels)."""
    channels, word_channels = problem.C // problem.groups, dot_channels(problem, arch)
    whole = channels % word_channels == 0 or problem.groups == 1  # no word spans two groups
    if word_channels == 1 or not whole:
        return widened(problem), 1, ""
    view = words_view(problem, word_channels)
    step = TILE_WORDS.get(arch.bfloat16, 0) if problem.dtype == "bfloat16" else 0
    whole = step > 0 and not (view.C // view.groups % step or channel_block(view) % step)
    slow = arch.bfloat16 == "amx" and arch.costs.gemm.pairs > PAIR
    if not whole and slow and word_channels == PAIR:  # what does not fill tiles: FMAs are faster
        return widened(problem), 1, ""
    return view, word_channels, arch.bfloat16 if whole else ""


def dot_channels(problem: Problem, arch: CpuArch) -> int:
    """Channels that a dot product of the CPU multiplies at once; 1 if it has none for `problem`, or
    if there is nothing to multiply.
    """
    if problem.C == 0:
        return 1
    if problem.dtype == "bfloat16":
        single = problem.C // problem.groups == 1  # it would be half of a pair
        return 1 if arch.bfloat16 == "widen" or single else 2
    if arch.int8 == "widen" or problem.sum_dtype != "int32" or not problem.is_integer:
        return 1
    return 1 if "int16" in problem.dtypes else 4


def inverts_signs(problem: Problem, channels: int) -> bool:
    """Whether dot products of `channels` channels invert the signs of x, so that no tap may be
    skipped, not even one that reads padding; see `gemm.compiled.dots`.

    `problem` has the dtypes of the arrays: those of its view for words are no longer theirs.
    """
    return channels == 4 and problem.dtype == problem.filter_dtype


def reads_in_place(problem: Problem) -> bool:
    """Whether x is read in place: no tap reads padding, and channels and pixels are contiguous.

    A stride leaves gaps between pixels. Such rows fill only half of a cache's sets, and prefetchers
    do not follow them; copies of them took 3 to 10 % less time.
    """
    contiguous = problem.channels_last and set(problem.stride) == {1}
    return all(_inside(problem)) and contiguous and not problem.converted


def reads_around_padding(problem: Problem, arch: CpuArch) -> bool:
    """Whether x may be read in place although taps on its sides read padding, and are skipped: few
    channels of contiguous pixels, of which no tap leaves a gap between the pixels it reads.

    Their sums are short, so that copies took 10 to 15 % of the time (EPYC 9005, 2026-11).
    """
    few = problem.channels_last and problem.groups == 1
    few = few and problem.C < arch.lanes(problem.itemsize)
    # Of a filter with several planes, rows between the first and the last one are never skipped.
    plain = problem.padding_mode == "zeros" and problem.output[-1] > 1 and problem.kernel[0] == 1
    inside = _inside(problem)[0] and is_gapless(problem)
    return few and plain and inside and not problem.converted


def _inside(problem: Problem) -> list[bool]:
    """For each axis, whether no tap reads padding."""
    return [
        lo <= 0 and (out - 1) * stride + (taps - 1) * dilation - lo < size
        for lo, out, stride, taps, dilation, size in zip(
            problem.pad_lo,
            problem.output,
            problem.stride,
            problem.kernel,
            problem.dilation,
            problem.size,
            strict=True,
        )
    ]
