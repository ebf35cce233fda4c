"""gemm_im2col: a matrix of windows in memory, which is a baseline for the other methods.

    gemm_m  N * P * Q                  A  the matrix of windows, in memory
    gemm_n  filters of a group         B  filters
    gemm_k  C * R * S of a group       C  output

numpy's matmul multiplies, on as many threads as its BLAS uses. "auto" never chooses this method.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from implicit_conv.arrays import Array
from implicit_conv.cpu.arch import CpuArch
from implicit_conv.cpu.call import Arrays, Call, CallForm
from implicit_conv.cpu.candidate import (
    Candidate,
    Formats,
    Method,
    Refusal,
    Request,
    Words,
    best,
)
from implicit_conv.cpu.costs import FAR_BYTES_PER_CYCLE, FMAS_PER_CYCLE
from implicit_conv.cpu.tiling import Estimate
from implicit_conv.kernels.cpu.gemm.layout import GemmLayout
from implicit_conv.kernels.cpu.runtime.layout import Layout
from implicit_conv.options import LAYOUTS
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load, geometry, window_copies

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Epilogue, Operator

DTYPES = ("float32", "float64")  # dtypes for which numpy's matmul calls BLAS


@dataclass(frozen=True)
class Im2col(Method):
    """numpy copies windows to a matrix and multiplies it."""

    algorithms: ClassVar[tuple[str, ...]] = ("gemm_im2col",)

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return "matrix of windows in memory, numpy multiplies"

    @property
    def order(self) -> str:
        """The order that numpy's BLAS chooses."""
        return "numpy"

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if the caller asks for it by name."""
        reason = refusal(problem, request)
        if reason:
            if request.admits("gemm_im2col"):
                yield Refusal("gemm_im2col", reason)
            return
        whole = geometry(
            problem,
            tile=(max(1, problem.N), *problem.output),
            tile_m=arch.tile_pixels,
            tile_c=max(1, problem.C // problem.groups),
            tile_k=2 * arch.lanes(problem.itemsize),
        )
        costs = [(estimate(problem, arch), whole)]
        yield best(cls(), "gemm_im2col", problem, problem, arch, costs)

    def layout(self, c: Candidate) -> Layout:
        """Sizes of a GEMM without tiles; no kernel uses them."""
        return GemmLayout(c.geometry, c.itemsize, c.lanes, c.chunk)

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of the matrix of windows, and of the sums before they are stored."""
        return matrix_bytes(c.problem)

    def operator(self, c: Candidate, build: Build) -> Operator:
        """Raise TypeError: numpy multiplies, and there are no compiled kernels."""
        raise TypeError("gemm_im2col has no compiled operator")

    def loads(self, c: Candidate) -> list[Load]:
        """No loads of the schedule: numpy copies the windows."""
        return []

    def bind(
        self, c: Candidate, arrays: Arrays, epilogue: Epilogue, formats: Formats, record: int = 0
    ) -> Call:
        """A call that runs numpy's functions."""
        form = CallForm(c.problem, arrays.y.shape, np.dtype(formats.y_dtype), arrays.filter_axes)
        return ColumnsCall(form, c, epilogue)

    def describe(self, c: Candidate) -> Words:
        """Loads and multiplications; there are no tiles."""
        problem, (p, q), (r, s) = c.problem, c.problem.output, c.problem.kernel
        return {
            "loads": f"numpy copies {problem.N * p * q} windows of {problem.C * r * s} elements "
            "into a matrix",
            "multiply": "numpy's matmul, on as many threads as its BLAS uses",
        }


class ColumnsCall(Call):
    """Convolution through the matrix of windows."""

    __slots__ = ("_candidate", "_epilogue")

    def __init__(self, form: CallForm, c: Candidate, epilogue: Epilogue) -> None:
        super().__init__(form)
        self._candidate, self._epilogue = c, epilogue

    def __call__(
        self,
        x: Array,
        w: Any,
        bias: object = None,
        y: Array | None = None,
        residual: Array | None = None,
    ) -> Array:
        """See `Call`."""
        y = np.empty(self._form.y_shape, self._form.y_dtype) if y is None else y
        problem = self._candidate.problem
        axes, groups = LAYOUTS[problem.layout], problem.groups
        r, s = problem.kernel
        taps = problem.C // groups * r * s
        filters = w.transpose(self._form.filter_axes).reshape(groups, problem.K // groups, taps)
        images = (problem.N, *problem.output)
        columns = np.zeros((*images, problem.C, r, s), problem.dtype)
        for source, target in window_copies(problem, x.transpose(axes), columns):
            target[...] = source
        rows = columns.reshape(math.prod(images), groups, taps)
        sums = np.empty((len(rows), groups, problem.K // groups), problem.dtype)
        for group in range(groups):
            np.matmul(rows[:, group], filters[group].T, out=sums[:, group])
        pixels = sums.reshape(*images, problem.K)
        if bias is not None:
            pixels += self.checked_bias(bias)
        if residual is not None:
            pixels += residual.transpose(axes)
        self._activate(sums)
        y.transpose(axes)[...] = pixels
        return y

    def _activate(self, sums: Array) -> None:
        """Apply the activation in place, by the part that finishes the sums of other methods."""
        from implicit_conv.kernels.cpu.tile.finish import Finish, compile_finish
        from implicit_conv.kernels.cpu.tile.storage import Format

        c, (kind, low, high) = self._candidate, self._epilogue.activation
        form = Format(*[c.problem.dtype] * 4)
        part = compile_finish(Finish(int(kind), False, form, c.lanes, c.arch.fma))
        at = sums.ctypes.data
        part.ctypes(at, 0, 0, 0, at, 0, 1, sums.size, 0, low, high)


def refusal(problem: Problem, request: Request) -> str:
    """Why the method cannot run, or an empty string."""
    if request.strict:
        return "numpy chooses its order of sums, which precision 'strict' fixes; ask for 'standard'"
    if problem.dtype not in DTYPES:
        return f"it supports {' and '.join(DTYPES)}, not {problem.dtype}"
    if request.flushes:
        return "it keeps subnormals, because numpy multiplies; use config(subnormals='keep')"
    if request.algorithm != "gemm_im2col":
        return "it is a baseline for comparison; ask for it by name"
    return ""


def matrix_bytes(problem: Problem) -> int:
    """Bytes of the matrix of windows and of the sums."""
    (p, q), (r, s) = problem.output, problem.kernel
    return problem.N * p * q * (problem.C * r * s + problem.K) * problem.itemsize


def estimate(problem: Problem, arch: CpuArch) -> Estimate:
    """Cycles of one core: FMAs at their peak, and the matrix written and read once."""
    fmas = problem.flops / (2 * arch.lanes(problem.itemsize) * FMAS_PER_CYCLE)
    return Estimate(fmas + 2 * matrix_bytes(problem) / FAR_BYTES_PER_CYCLE, 1)
