"""gemm_im2col: the convolution that all others avoid, to compare them with.

GEMM mapping: A = the matrix of windows, written out (gemm_m = N*P*Q, gemm_k = C*R*S of a group);
B = filters; C = output. numpy's matmul multiplies, on as many threads as its BLAS takes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from implicit_conv.arrays import Array
from implicit_conv.columns import copies
from implicit_conv.problem import LAYOUTS, WEIGHT_LAYOUTS, Problem

if TYPE_CHECKING:
    from implicit_conv.plan import Plan


def workspace_bytes(problem: Problem) -> int:
    """The matrix of windows and the sums before they are laid out."""
    p, q = problem.output
    (r, s), n = problem.kernel, problem.N
    return n * p * q * (problem.C * r * s + problem.K) * problem.itemsize


def packed_bytes(problem: Problem) -> int:
    """The filters as a matrix for each group."""
    r, s = problem.kernel
    return problem.K * (problem.C // problem.groups) * r * s * problem.itemsize


def pack(problem: Problem, w: Array) -> Array:
    """`w` as matrices, groups x K/groups x C/groups*R*S."""
    k, c, r, s = WEIGHT_LAYOUTS[problem.weight_layout]
    ordered = np.ascontiguousarray(w.transpose(k, c, r, s))
    return ordered.reshape(_filter_extents(problem))


def run(
    plan: Plan, x: Array, filters: Array, y: Array, bias: Array | None, residual: Array | None
) -> None:
    """y = activation(conv(x, w) + bias + residual), for `filters` as `pack` makes them, or their
    bytes.
    """
    problem, axes = plan.problem, LAYOUTS[plan.problem.layout]
    filters = filters.view(problem.dtype).reshape(_filter_extents(problem))
    groups, k, taps = filters.shape
    images = (problem.N, *problem.output)
    columns = np.zeros((*images, problem.C, *problem.kernel), problem.dtype)
    for source, target in copies(problem, x.transpose(axes), columns):
        target[...] = source
    rows = columns.reshape(math.prod(images), groups, taps)
    sums = np.empty((len(rows), groups, k), problem.dtype)
    for group in range(groups):
        np.matmul(rows[:, group], filters[group].T, out=sums[:, group])
    pixels = sums.reshape(*images, groups * k)
    if bias is not None:
        pixels += bias
    if residual is not None:
        pixels += residual.transpose(axes)
    _activate(plan, sums)
    y.transpose(axes)[...] = pixels


def _activate(plan: Plan, sums: Array) -> None:
    """The activation, in place, by the part that other algorithms' sums go through."""
    from implicit_conv.kernels.cpu.tile.finish import Finish, compile_finish
    from implicit_conv.kernels.cpu.tile.storage import Format

    kind, low, high = plan.activation
    form = Format(*[plan.problem.dtype] * 4)
    part = compile_finish(Finish(int(kind), False, form, plan.lanes, plan.arch.fma))
    at = sums.ctypes.data
    part.ctypes(at, 0, 0, 0, at, 0, 1, sums.size, 0, low, high)


def _filter_extents(problem: Problem) -> tuple[int, int, int]:
    r, s = problem.kernel
    groups = problem.groups
    return groups, problem.K // groups, problem.C // groups * r * s
