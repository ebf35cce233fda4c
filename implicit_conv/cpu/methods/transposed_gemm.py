"""Implicit GEMM transposed, image by image: C^T = B^T A^T.

    gemm_m  filters                    A  the filter, read in place
    gemm_n  pixels of one image        B  pixels, packed panel by panel without a transpose
    gemm_k  channels                   C  y, whose pixels are contiguous

This is the operand swap for NCHW: the pixels of a channel are contiguous, as filters of a packed
panel must be, and the channels of a filter are contiguous, as rows of A must be. No operand is
transposed in memory, and each sum has the order of implicit GEMM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import ranked
from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.cpu.candidates.problem_views import ROW_NEED, is_pointwise
from implicit_conv.cpu.candidates.query import Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import Estimate, priced, thread_count
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.methods.gemm import Gemm, multiply_words, summed_view
from implicit_conv.cpu.methods.gemm_tilings import estimate, geometries, tiled
from implicit_conv.cpu.run.call import Arrays, is_contiguous, is_row
from implicit_conv.cpu.run.packed import PackedOrder, PlainOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, check_load_count, trace

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operands, Operator

FILLED_LANES = 0.9  # share of the vector lanes that the pixels of an image must fill


@dataclass(frozen=True)
class TransposedGemm(Gemm):
    """Filters are rows of A; vector lanes are pixels."""

    name: ClassVar[str] = "transposed GEMM"
    algorithms: ClassVar[tuple[str, ...]] = ("pointwise",)
    serves: ClassVar[Serves] = Serves(
        ("float32", "float64", "bfloat16"), operands=("bias", "residual")
    )
    in_place: bool = True

    summary = "transposed GEMM, filter in place"

    needs = f"{ROW_NEED}, and contiguous channels of w"

    def spare(self, g: Geometry) -> Geometry:
        """`g`: its register tiles have filters, which all sizes have in common."""
        return g

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if the pixels of an image fill vectors."""
        if not is_pointwise(problem):
            return
        summed, channels, multiplier = summed_view(problem, arch)
        reason = refusal(summed, arch)
        if reason:
            yield Refusal(cls.name, reason)
            return
        view = transposed(summed)
        machine = tiled(arch, multiplier)
        found = geometries(view, machine, True, request.near)
        costs = priced(found, lambda g: per_image(summed, view, machine, g), view, request.near)
        method = cls(channels=channels, multiplier=multiplier)
        threads = thread_count(view, arch)
        yield from ranked(method, "pointwise", problem, view, arch, costs, request, threads)

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        machine = tiled(arch, self.multiplier)
        return per_image(summed_view(c.problem, arch)[0], c.view, machine, c.geometry)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """None: every other method can read its plain filters."""
        yield from ()

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of scratch memory of all threads, and of panels that are packed before the sums."""
        panels = 0 if c.layout.packs_in_loop else c.layout.packed_bytes
        return super().workspace_bytes(c) + panels

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.gemm.operator import TransposedGemm as TransposedOperator

        return TransposedOperator(c.layout, c.lanes, build, self.multiplier)

    def packed(self, c: Candidate) -> PackedOrder:
        """The order of a contiguous filter."""
        return PlainOrder.of(c.problem)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """The pixels of an image must form one row, and channels of filters must be contiguous."""
        given = (arrays.x, arrays.y, arrays.residual)
        if not all(is_row(c.problem, array) for array in given if array is not None):
            return False
        w = arrays.w
        return w is None or is_contiguous(w, 1)

    def arguments(self, c: Candidate, operands: Operands) -> Iterator[Operands]:
        """For each image: the filter as channels-last pixels, and pixels as filters of one tap."""
        x, w, y, residual = operands
        assert w is not None
        filters = w[None, None, None, :, :, 0, 0, 0]

        def rows(image: Array) -> Array:
            """Filters as pixels, and the pixels of an image as filters."""
            return image.reshape(-1, image.shape[-1]).T[None, None, None]

        for n in range(x.shape[0]):
            pixels = x[n].reshape(-1, x.shape[-1])[:, :, None, None, None]
            added = None if residual is None else rows(residual[n])
            yield operands._replace(x=filters, w=pixels, y=rows(y[n]), residual=added)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads of one image after another."""
        of_image = trace(c.geometry, c.itemsize, True, c.chunk)
        check_load_count(len(of_image) * c.problem.N)
        return self.as_problem(c, of_image * c.problem.N)

    def as_problem(self, c: Candidate, loads: Sequence[Load]) -> list[Load]:
        """Swap the operands; the loads of one image follow those of another."""
        of_image = max(1, len(loads) // max(1, c.problem.N))
        return [swap(load, at // of_image) for at, load in enumerate(super().as_problem(c, loads))]

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g = c.geometry
        chunks = int(schedule.ceil_div(schedule.panel_count(g), c.chunk))
        when = "each just before its use" if c.layout.packs_in_loop else "all before the sums"
        return {
            "multiply": multiply_words(self, c),
            "load tile": f"{count(g.tile_q, 'filter')} x {g.tile_k} pixels of an image, cut into "
            f"register tiles of at most {g.tile_m} filters x {g.tile_k} pixels "
            f"({count(g.tile_k // c.lanes, 'vector')})",
            "loads": f"w is read in place; pixels of x are packed into panels, {when}, without a "
            "transpose",
            "k-blocks": f"{count(schedule.block_count(g), 'block')} of "
            f"{count(g.tile_c, 'channel')}; {count(schedule.panel_count(g), 'pixel panel')} per "
            "image",
            "work items": f"{count(c.problem.N, 'image')} x "
            f"{count(schedule.tile_count(g), 'tile')} x {count(chunks, 'chunk')} of "
            f"{count(c.chunk, 'panel')}",
        }


def refusal(problem: Problem, arch: CpuArch) -> str:
    """Why the operands of a pointwise problem cannot be swapped, or an empty string."""
    if problem.channels_last:
        return "pixels are not contiguous if channels are last"
    if problem.converted:
        return "it does not convert x, which 16-bit floats need"
    if problem.groups > 1 or min(problem.C, problem.K) < 1:
        return "it needs one group, and at least one channel and one filter"
    lanes, pixels = arch.lanes(problem.itemsize), math.prod(problem.output)
    if pixels < FILLED_LANES * schedule.ceil_div(pixels, lanes) * lanes:
        return f"an image of {count(pixels, 'pixel')} leaves too many of {lanes} vector lanes empty"
    return ""


def transposed(problem: Problem) -> Problem:
    """One image of a pointwise problem, with filters and pixels swapped."""
    pixels = math.prod(problem.size)
    return replace(problem, N=1, size=(1, 1, problem.K), K=pixels, layout="NHWC")


def per_image(problem: Problem, view: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core for all images of `problem`; `view` is one of them."""
    costs = arch.costs
    pack = costs.gemm.transposed_pack_filter, costs.gemm.transposed_pack_panel
    one = estimate(view, arch, g, True, pack)
    cycles = one.cycles
    if thread_count(view, arch) > 1:
        cycles *= 1 + costs.threads.shared_panels
    return Estimate(problem.N * (cycles + costs.gemm.transposed_image), one.chunk)


def swap(load: Load, n: int) -> Load:
    """Convert a load of image `n` to coordinates of the problem."""
    if load.operand == "w":
        pixel, *_, c = load.coords
        return load._replace(operand="x", coords=(n, 0, 0, pixel, c))
    *_, k, c = load.coords
    return load._replace(operand="w", mode="tile", coords=(k, 0, 0, 0, c))
