"""gemm_im2col: a matrix of windows in memory, which is a baseline for the other methods.

    gemm_m  N * P * Q                  A  the matrix of windows, in memory
    gemm_n  filters of a group         B  filters
    gemm_k  C * R * S of a group       C  output

numpy's matmul multiplies, on as many threads as its BLAS uses. "auto" never chooses this method.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Candidate, Given, Method, Words
from implicit_conv.cpu.candidates.query import Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import thread_count
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.compiler import check_enabled
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.cpu.run.packed import reads_filters_in_place
from implicit_conv.kernels.cpu.runtime.program import Called, Step
from implicit_conv.kernels.geometry import CLAMP
from implicit_conv.problem.parse import MOST_ELEMENTS
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import repeated_window_copies, window_copies

if TYPE_CHECKING:
    from implicit_conv.kernels.geometry import Epilogue

# The parameters of the part of `compiled.finish`.
FINISH = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 11, *[ctypes.c_double] * 2)


@dataclass(frozen=True)
class Im2col(Method):
    """numpy copies windows to a matrix and multiplies it."""

    name: ClassVar[str] = "gemm_im2col"
    algorithms: ClassVar[tuple[str, ...]] = ("gemm_im2col",)
    serves: ClassVar[Serves] = Serves(("float32", "float64"), "standard")

    summary = "matrix of windows in memory, numpy multiplies"

    order = "numpy"  # the order that numpy's BLAS chooses

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if the caller asks for it by name."""
        reason = refusal(problem, request)
        if reason:
            yield Refusal(cls.name, reason)
            return
        threads, cycles = thread_count(problem, arch), estimate(problem, arch)
        yield Candidate(cls(), "gemm_im2col", problem, problem, arch, threads, cycles)

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of the matrix of windows, and of the sums before they are stored."""
        return matrix_bytes(c.problem)

    def filter_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes of the copy of a filter in another order than KCRS."""
        in_place = reads_filters_in_place(c.problem) if w is None else w[:1].flags.c_contiguous
        return 0 if in_place else self.packed(c).bytes

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """One call of numpy's functions."""
        compute = functools.partial(columns_product, c, given.epilogue, given.formats.compiler)
        return [Called(compute, given.arrays[:4])]

    def describe(self, c: Candidate) -> Words:
        """Loads and multiplications; there are no tiles."""
        windows, elements = _extents(c.problem)
        return {
            "loads": f"numpy copies {windows} windows of {elements} elements into a matrix",
            "multiply": "numpy's matmul, on as many threads as its BLAS uses",
        }


def columns_product(
    c: Candidate,
    epilogue: Epilogue,
    compiler: str,
    x: Array,
    w: Array,
    y: Array,
    residual: Array | None,
    bias: Array | None,
    scale: Array | None,
) -> None:
    """Write the convolution of `arrays` with three spatial axes to y, through the matrix of
    windows.
    """
    problem = c.problem
    groups, dtype = problem.groups, numpy_dtype(problem.dtype)
    windows, elements = _extents(problem)
    filters = w.view(dtype).reshape(groups, problem.K // groups, elements // groups)
    images = (problem.N, *problem.output)
    columns = np.zeros((*images, problem.C, *problem.kernel), dtype)
    copies = window_copies if problem.padding_mode == "zeros" else repeated_window_copies
    for source, target in copies(problem, x.view(dtype), columns):
        target[...] = source
    rows = columns.reshape(windows, groups, elements // groups)
    sums = np.empty((len(rows), groups, problem.K // groups), dtype)
    for group in range(groups):
        np.matmul(rows[:, group], filters[group].T, out=sums[:, group])
    pixels = sums.reshape(*images, problem.K)
    if scale is not None:
        pixels *= scale
    if bias is not None:
        pixels += bias
    if residual is not None:
        pixels += residual
    _activate(c, epilogue, compiler, sums)
    y[...] = pixels


def _activate(c: Candidate, epilogue: Epilogue, compiler: str, sums: Array) -> None:
    """Apply the activation in place: numpy clamps, and the part that finishes the sums of other
    methods computes all others.
    """
    kind, low, high = epilogue.activation
    if kind == CLAMP:
        with np.errstate(over="ignore"):  # bounds may exceed the range of float32
            bounds = np.array((low, high)).astype(sums.dtype)
        np.clip(sums, *bounds, out=sums)
        return
    check_enabled(compiler)
    from implicit_conv.kernels.cpu.runtime.code import code
    from implicit_conv.kernels.cpu.tile.storage import Format
    from implicit_conv.kernels.cpu.tile.variants import UNSCALED, Finish

    form = Format(*[c.problem.dtype] * 6)
    part = Finish(int(kind), False, UNSCALED, form, c.lanes, c.arch.fma)
    finish = FINISH(code(".tile.compiled.finish:make_finish", part).address(compiler))
    at = sums.ctypes.data
    finish(at, 0, 0, 0, at, 0, 1, sums.size, 0, 0, 0, low, high)


def refusal(problem: Problem, request: Request) -> str:
    """Why the method cannot run, or an empty string."""
    if request.flushes:
        return "it keeps subnormals, because numpy multiplies; use config(subnormals='keep')"
    if request.algorithm != "gemm_im2col":
        return "it is a baseline for comparison; ask for it by name"
    elements = matrix_bytes(problem) // problem.itemsize
    if elements > MOST_ELEMENTS:
        return f"its matrices have {elements} elements; at most {MOST_ELEMENTS} are supported"
    return ""


def matrix_bytes(problem: Problem) -> int:
    """Bytes of the matrix of windows, of a tap of it that repeats pixels, and of the sums."""
    windows, elements = _extents(problem)
    tap = 0 if problem.padding_mode == "zeros" else problem.C
    return windows * (elements + tap + problem.K) * problem.itemsize


def _extents(problem: Problem) -> tuple[int, int]:
    """The number of windows, and the elements of each."""
    windows = problem.N * math.prod(problem.output)
    return windows, problem.C * math.prod(problem.kernel)


def estimate(problem: Problem, arch: CpuArch) -> float:
    """Cycles of one core: FMAs at their peak, and the matrix written and read once."""
    fmas = problem.flops / (2 * arch.lanes(problem.itemsize) * FMAS_PER_CYCLE)
    return fmas + 2 * matrix_bytes(problem) / arch.costs.common.far_bytes
