"""Lower a convolution to tensor maps: check the problem and choose the class of the lowering."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from implicit_conv.problem import Problem
from implicit_conv.tma.limits import integer
from implicit_conv.tma.lowering import AxisWalk, Lowering, default_channels
from implicit_conv.tma.lowering_wide import PermutedLowering, Wide128Lowering, WideLowering

OPERATORS = ("fprop", "dgrad", "wgrad")
MODES: dict[str, type[Lowering]] = {
    "im2col": Lowering,
    "w": WideLowering,
    "w128": Wide128Lowering,
    "w_sm90": PermutedLowering,
}


def maps_for(
    problem: Problem,
    mode: str = "im2col",
    *,
    operator: str = "fprop",
    tile_m: int = 128,
    channels: int | None = None,
    dtype: npt.DTypeLike | None = None,
    swizzle: str = "128B",
    address: int | None = None,
) -> Lowering:
    """The tensor maps of a convolution, and the loads and taps of each GEMM tile.

    Parameters
    ----------
    problem : Problem
        It must have one group; the walked tensors are channels-last.
    mode : {"im2col", "w", "w128", "w_sm90"}
        The mode of the copies. "w_sm90" walks as im2col::w by plain im2col over permuted axes.
    operator : {"fprop", "dgrad", "wgrad"}
        dgrad needs stride 1.
    tile_m : int
        GEMM rows of a tile, and pixels of a load; "w128" needs 128.
    channels : int, optional
        Channels of a load; by default, as many as fit in the swizzle span.
    dtype : dtype-like, optional
        Element type, such as float16; by default, that of the problem.
    swizzle, address
        As in `Im2colMap`.

    Returns
    -------
    Lowering
        `maps`, `arguments` (driver calls), `tiles`, `k_blocks(tile)` (loads and taps),
        `outputs(tile)`, `view_rows(tap)`, `ptx(load)`.

    Raises
    ------
    ValueError
        The problem has groups, or is a dgrad with a stride, or a map or load breaks a limit; the
        message lists all broken limits.
    TypeError
        tile_m, channels or address is not an integer.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; choose from {', '.join(MODES)}")
    _check_operator(problem, operator)
    element = np.dtype(problem.dtype if dtype is None else dtype)
    height, width = (_axis(problem, operator, axis) for axis in (0, 1))
    walked = problem.K if operator == "dgrad" else problem.C
    lowering = MODES[mode](
        problem=problem,
        operator=operator,
        mode=mode,
        N=problem.N,
        channels=walked,
        height=height,
        width=width,
        tile_m=integer("tile_m", tile_m),
        tile_c=default_channels(walked, element, swizzle)
        if channels is None
        else integer("channels", channels),
        dtype=element,
        swizzle=swizzle,
        address=address,
    )
    _ = lowering.maps  # errors are raised here, not at the first load
    return lowering


def _check_operator(problem: Problem, operator: str) -> None:
    if operator not in OPERATORS:
        raise ValueError(f"operator {operator!r} is unknown; choose from {', '.join(OPERATORS)}")
    if problem.groups != 1:
        raise ValueError(
            f"groups={problem.groups}: a map covers one group; lower a problem of "
            f"C={problem.C // problem.groups}, K={problem.K // problem.groups} for each"
        )
    if operator == "dgrad" and problem.stride != (1, 1):
        raise ValueError(
            f"dgrad with stride {problem.stride} is not a single walk; "
            "lower each stride phase of dx as a problem of its own"
        )


def _axis(problem: Problem, operator: str, axis: int) -> AxisWalk:
    size, taps = problem.size[axis], problem.kernel[axis]
    dilation, out = problem.dilation[axis], problem.output[axis]
    lo, hi = problem.pad_lo[axis], problem.pad_hi[axis]
    if operator == "dgrad":
        reach = (taps - 1) * dilation
        return AxisWalk(out, taps, 1, dilation, reach - lo, reach - hi, size)
    return AxisWalk(size, taps, problem.stride[axis], dilation, lo, hi, out)
