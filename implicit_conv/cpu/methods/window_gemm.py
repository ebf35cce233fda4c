"""Implicit GEMM over windows of few channels: the taps of a filter row are channels of a pixel.

    gemm_m  pixels of a load tile          A  windows of x in a thread's buffer
    gemm_n  filters of a panel             B  packed panels [K / tile_k][R][S * C]
    gemm_k  filter rows x (taps x channels)    C  y, or a staging tile that is transposed into y

Dot products multiply two channels of bfloat16 at once, so that an odd number of channels leaves
half of a pair empty for each pixel, and a single channel must be widened. The elements of a window
are contiguous in NHWC, and leave at most one half of a pair empty: 11 pairs instead of 14 for
7 taps of 3 channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array, ordered
from implicit_conv.cpu.candidates.candidate import Candidate, Given, Words
from implicit_conv.cpu.candidates.kernel_method import operator, ranked
from implicit_conv.cpu.candidates.phrases import buffered_rows, count
from implicit_conv.cpu.candidates.query import Formats, Refusal, Request, Serves
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.methods.gemm import PAIR, Gemm, words_view
from implicit_conv.cpu.methods.gemm_tilings import channel_block, is_gapless, tilings
from implicit_conv.cpu.run.call import bits
from implicit_conv.cpu.run.packed import PackedFilter, PackedOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import GemmLayout
from implicit_conv.kernels.cpu.runtime.layout import WINDOW_ELEMENTS, Window
from implicit_conv.kernels.cpu.runtime.program import Step, copied
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operands, Operator


@dataclass(frozen=True)
class WindowGemm(Gemm):
    """The window of an output column is a pixel, whose pairs of elements are its channels."""

    name: ClassVar[str] = "GEMM over windows"
    algorithms: ClassVar[tuple[str, ...]] = ("implicit_gemm",)
    serves: ClassVar[Serves] = Serves(("bfloat16",), "standard")
    channels: int = PAIR

    summary = "GEMM over windows of image rows, x copied"

    order = "windows"  # pairs of neighbouring elements of a window, which may belong to two pixels

    @classmethod
    def lack(cls, arch: CpuArch) -> str:
        """Pairs are what dot products multiply."""
        return "the CPU has no dot products of bfloat16" * (arch.bfloat16 == "widen")

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, where windows leave fewer halves of pairs empty than pixels."""
        if request.gemm_algorithm(problem) != "implicit_gemm":
            return
        reason = cls.lack(arch) or refusal(problem)
        if reason:
            yield Refusal(cls.name, reason)
            return
        view = windows_view(problem)
        costs = tilings(view, arch, in_place=False, near=request.near, channels=PAIR)
        yield from ranked(cls(), "implicit_gemm", problem, view, arch, costs, request)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """None: it accepts all strides."""
        yield from ()

    def layout(self, c: Candidate) -> GemmLayout:
        """Sizes of scratch memory and packed filters."""
        return replace(super().layout(c), window=window_of(c.problem))

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.gemm.operator import WindowGemm as WindowOperator

        layout = c.layout
        assert isinstance(layout, GemmLayout)
        return WindowOperator(layout, c.lanes, build)

    def packed(self, c: Candidate) -> PackedOrder:
        """Panels of filters whose taps along W are channels."""
        order = super().packed(c)
        return PackedOrder(("window panels", *order.key[1:]), order.bytes)

    def filter_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes of the packed filter, and of the copy whose taps and channels are contiguous."""
        problem, layout = c.problem, c.problem.weight_layout
        if w is None:
            in_place = layout[0] == "K" and (layout[-1] == "C" or problem.C == 1)
        else:
            in_place = channels_last(w).flags.c_contiguous
        elements = problem.K * problem.C * math.prod(problem.kernel)
        copy = 0 if in_place else elements * ITEMSIZES[problem.dtype]
        return super().filter_bytes(c, w) + copy

    def pack(self, c: Candidate, w: Array, formats: Formats) -> PackedFilter:
        """Pack `w`, a filter in the problem's weight layout, in the order of `packed`."""
        filters = windows_of(ordered(bits(w), c.problem.filter_axes))
        return PackedFilter(operator(c, formats).pack(filters, c.threads), self.packed(c))

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """Those of kernels, after a copy of a filter whose taps and channels are not contiguous."""
        found = list[Step]()
        w = given.arrays.w
        if w is not None and not channels_last(w).flags.c_contiguous:
            w = copied(channels_last(w), given.room, found).transpose(0, 4, 1, 2, 3)
            given = given._replace(arrays=given.arrays._replace(w=w))
        return found + super().steps(c, given)

    def arguments(self, c: Candidate, operands: Operands) -> Iterator[Operands]:
        """The filter with its taps along W as channels; other arrays as they are."""
        w = operands.w
        yield operands._replace(w=None if w is None else windows_of(w))

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g, taps, channels = c.geometry, c.problem.kernel[-1], c.problem.C
        rows, per = buffered_rows(g)
        loads = (
            f"windows of {taps} pixels x {count(channels, 'channel')} are copied to buffers: "
            f"{count(rows, 'row')} of {count(g.tile_q, 'window')} per {per}, for "
            f"{count(schedule.filter_rows(g), 'filter row')}"
        )
        return {**super().describe(c), "loads": loads}

    def as_problem(self, c: Candidate, loads: Sequence[Load]) -> list[Load]:
        """Convert columns of the output to the first pixel of their windows."""
        stride, pad = c.problem.stride[-1], c.problem.pad_lo[-1]

        def moved(load: Load) -> Load:
            if load.operand == "w":
                return load
            n, d, h, q, channel = load.coords
            return load._replace(coords=(n, d, h, q * stride - pad, channel), mode="im2col")

        return [moved(load) for load in super().as_problem(c, loads)]


def refusal(problem: Problem) -> str:
    """Why windows gain nothing or cannot be loaded, or an empty string."""
    channels, taps = problem.C, problem.kernel[-1]
    plain = problem.channels_last and problem.groups == 1 and problem.padding_mode == "zeros"
    if not plain or not is_gapless(problem):
        return (
            "it needs channels last, one group, padding with zeros, dilation 1 and a stride of at "
            "most the taps"
        )
    pairs = schedule.ceil_div(channels * taps, PAIR)
    if channels % PAIR == 0 or pairs >= schedule.ceil_div(channels, PAIR) * taps:
        return f"windows of {taps} x {channels} channels fill no more pairs than pixels do"
    if channels * taps > WINDOW_ELEMENTS:
        return f"windows of {taps} x {channels} channels exceed {WINDOW_ELEMENTS} elements"
    view = windows_view(problem)
    if channel_block(view) < view.C:
        return "its filters have too many rows for one channel block"
    return ""


def windows_view(problem: Problem) -> Problem:
    """The problem whose pixels are the windows of output columns, in pairs of elements."""
    d, h, _ = problem.size
    columns = problem.output[-1]
    view = replace(
        problem,
        C=problem.C * problem.kernel[-1],
        size=(d, h, columns),
        kernel=(*problem.kernel[:-1], 1),
        stride=(*problem.stride[:-1], 1),
        pad_lo=(*problem.pad_lo[:-1], 0),
        pad_hi=(*problem.pad_hi[:-1], 0),
    )
    return replace(words_view(view, PAIR), converted=True)


def window_of(problem: Problem) -> Window:
    """The window of an output column."""
    return Window(
        problem.C, problem.kernel[-1], problem.stride[-1], problem.pad_lo[-1], problem.size[-1]
    )


def channels_last(w: Array) -> Array:
    """A filter with the axes (k, t, r, s, c), of one with (k, c, t, r, s)."""
    return w.transpose(0, 2, 3, 4, 1)


def windows_of(w: Array) -> Array:
    """A filter with the axes (k, s * c, t, r, 1), of one with (k, c, t, r, s); a copy unless taps
    and channels are contiguous.
    """
    k, c, t, r, s = w.shape
    rows = np.ascontiguousarray(channels_last(w)).reshape(k, t, r, s * c, 1)
    return rows.transpose(0, 3, 1, 2, 4)
