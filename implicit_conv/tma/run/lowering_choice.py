"""Lower a convolution to tensor maps: check the problem and choose the class of the lowering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.problem.options import DTYPES, LAYOUTS_OF, WEIGHT_LAYOUTS_OF
from implicit_conv.problem.phases import Phase, phases_of
from implicit_conv.problem.problem import Problem
from implicit_conv.tma.maps.elements import element_name, element_type
from implicit_conv.tma.maps.limits import Finding, TensorMapError, integer, integers
from implicit_conv.tma.maps.ptx import INFIXES, mode_of, mode_words
from implicit_conv.tma.run.lowering import AxisWalk, Lowering, check_groups, default_channels
from implicit_conv.tma.run.wide_lowering import PermutedLowering, Wide128Lowering, WideLowering

OPERATORS = ("fprop", "dgrad", "wgrad")
MODES: dict[str, type[Lowering]] = {
    "im2col": Lowering,
    "w": WideLowering,
    "w128": Wide128Lowering,
    "w_sm90": PermutedLowering,
}
Shapes = tuple[Sequence[int], Sequence[int]]


def maps_for(
    problem: Problem | Shapes,
    mode: str = "im2col",
    *,
    operator: str = "fprop",
    tile_m: int = 128,
    channels: int | None = None,
    dtype: npt.DTypeLike | None = None,
    swizzle: str = "128B",
    address: int | None = None,
    strides: Sequence[int] | None = None,
    **options: Any,
) -> Lowering:
    """The tensor maps of a convolution, and the loads and taps of each GEMM tile.

    Parameters
    ----------
    problem : Problem, or (shape of x, shape of w)
        A convolution of one to three spatial axes. Shapes are channels-last, x (N, [D,] [H,] W, C)
        and w (K, [T,] [R,] S, C / groups), unless `options` say otherwise; the walked tensors
        always are.
    mode : {"im2col", "im2col::w", "im2col::w::128", "w_sm90"}
        The mode of the copies; "w" and "w128" are short for two. "w_sm90" walks as
        im2col::w by plain im2col over permuted axes.
    operator : {"fprop", "dgrad", "wgrad"}
        dgrad needs stride 1; `phases_for` lowers each stride phase of another.
    tile_m : int
        GEMM rows of a tile, and pixels of a load; "im2col::w::128" needs 128.
    channels : int, optional
        Channels of a load; by default, as many as fit in the swizzle span.
    dtype : dtype-like, optional
        Element type, such as "bfloat16"; by default, that of the problem, or float32.
    swizzle, address
        As in `Im2colMap`.
    strides : sequence of int, optional
        Byte strides of n, [d,] [h,] w of the walked tensor, such as those of a slice of channels;
        packed if omitted.
    **options
        With shapes: stride, padding, dilation, groups, layout, weight_layout as in `conv2d`.

    Returns
    -------
    Lowering
        `maps`, `arguments` (driver calls), `tiles`, `k_blocks(tile, group)` (loads and taps),
        `outputs(tile)`, `view_rows(tap)`, `ptx(load)`. An empty batch has no maps and no tiles.

    Raises
    ------
    ValueError
        The problem is a dgrad with a stride, or a map or load breaks a limit; the message lists
        all broken limits and what to do.
    TypeError
        tile_m, channels, address or a stride is not an integer.

    Examples
    --------
    >>> from implicit_conv import tma
    >>> shapes = (2, 56, 56, 64), (128, 3, 3, 64)  # of x and w
    >>> lowering = tma.maps_for(shapes, padding=1, dtype="bfloat16")
    >>> load = next(lowering.k_blocks(0)).loads[0]
    >>> lowering.tiles, load.coords, load.bytes
    (49, (0, -1, -1, 0), 16384)
    """
    problem, dtype = parse_problem(problem, dtype, options)
    if operator == "dgrad" and set(problem.stride) != {1}:
        raise ValueError(
            f"dgrad with stride {problem.stride} is not a single walk, but one for each stride "
            "phase of dx; call tma.phases_for(problem, mode, ...), which returns them all"
        )
    fields = (problem, mode, operator, tile_m, channels, dtype, swizzle, address, strides)
    return checked(lowering_of(*fields))


def phases_for(
    problem: Problem | Shapes,
    mode: str = "im2col",
    *,
    tile_m: int = 128,
    channels: int | None = None,
    dtype: npt.DTypeLike | None = None,
    swizzle: str = "128B",
    address: int | None = None,
    strides: Sequence[int] | None = None,
    **options: Any,
) -> tuple[Lowering, ...]:
    """The lowerings of a dgrad, one for each stride phase of dx that taps reach.

    Parameters
    ----------
    problem, mode, tile_m, channels, dtype, swizzle, address, strides, **options
        As in `maps_for`.

    Returns
    -------
    tuple of Lowering
        `outputs` of each gives pixels of dx, and its taps are those of the filter. The pixels of dx
        in no phase are zero.

    Raises
    ------
    ValueError, TypeError
        As in `maps_for`.

    Examples
    --------
    A stride of 2 has four phases, which share the nine taps:

    >>> from implicit_conv import tma
    >>> shapes = (2, 56, 56, 64), (128, 3, 3, 64)  # of x and w
    >>> phases = tma.phases_for(shapes, stride=2, padding=1)
    >>> [tuple(axis.taps for axis in phase.axes) for phase in phases]
    [(2, 2), (2, 1), (1, 2), (1, 1)]
    """
    problem, dtype = parse_problem(problem, dtype, options)
    fields = (tile_m, channels, dtype, swizzle, address, strides)
    lowerings = (
        lowering_of(problem, mode, "dgrad", *fields, phase) for phase in phases_of(problem)
    )
    return tuple(checked(lowering) for lowering in lowerings)


def parse_problem(
    problem: Problem | Shapes, dtype: npt.DTypeLike | None, options: dict[str, Any]
) -> tuple[Problem, npt.DTypeLike]:
    """(the problem, the element type)."""
    if isinstance(problem, Problem):
        if options:
            names = ", ".join(options)
            raise TypeError(f"{names}: a Problem has these already; pass them with two shapes")
        return problem, problem.dtype if dtype is None else dtype
    x, w = (integers("shape", shape) for shape in problem)
    rank = len(x) - 2
    if rank in LAYOUTS_OF:
        channels_last = next(name for name in LAYOUTS_OF[rank] if name.endswith("C"))
        filters = next(name for name in WEIGHT_LAYOUTS_OF[rank] if name[0] + name[-1] == "KC")
        options = {"rank": rank, "layout": channels_last, "weight_layout": filters, **options}
    dtype = "float32" if dtype is None else dtype
    name = element_name(element_type(dtype))
    return Problem.parse(x, w, name if name in DTYPES else "float32", **options), dtype


def lowering_of(
    problem: Problem,
    mode: str,
    operator: str,
    tile_m: int,
    channels: int | None,
    dtype: npt.DTypeLike,
    swizzle: str,
    address: int | None,
    strides: Sequence[int] | None,
    phase: Phase | None = None,
) -> Lowering:
    """A lowering whose maps are not yet made, so that no limit of maps is checked."""
    mode = mode_of(mode)
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; choose from {mode_words(MODES)}")
    if operator not in OPERATORS:
        raise ValueError(f"operator {operator!r} is unknown; choose from {', '.join(OPERATORS)}")
    if problem.repeats:
        raise ValueError(
            f"padding mode {problem.padding_mode!r}: a copy fills what lies outside the tensor "
            "with zeros; pad the tensor in memory, and lower it with padding 0"
        )
    element = element_type(dtype)
    walked = problem.K if operator == "dgrad" else problem.C
    if operator == "dgrad" and phase is None:
        (phase,) = phases_of(problem)
    axes = (_axis(problem, n, phase) for n in range(problem.rank))
    share = walked // problem.groups
    return MODES[mode](
        problem=problem,
        operator=operator,
        mode=mode,
        N=problem.N,
        channels=walked,
        axes=tuple(axes),
        tile_m=integer("tile_m", tile_m),
        tile_c=default_channels(share, problem.groups, element, swizzle)
        if channels is None
        else integer("channels", channels),
        dtype=element,
        swizzle=swizzle,
        address=address,
        strides=None if strides is None else integers("strides", strides),
    )


def _axis(problem: Problem, axis: int, phase: Phase | None) -> AxisWalk:
    """An axis of a problem, or of the fprop of a stride phase, with the taps that it has."""
    of = problem if phase is None else phase.problem
    sizes = (of.size, of.kernel, of.stride, of.dilation, of.pad_lo, of.pad_hi, of.output)
    walk = AxisWalk._make([*(size[axis] for size in sizes), slice(None), slice(None)])
    if phase is None:
        return walk
    return walk._replace(filter_taps=phase.taps[axis], pixels=phase.pixels[axis])


def checked(lowering: Lowering) -> Lowering:
    """The lowering, after its maps are made.

    Raises
    ------
    ValueError
        A limit forbids the maps; the message lists all such limits, and what to do.
    """
    check_groups(lowering)
    try:
        _ = lowering.maps  # errors are raised here, not at the first load
    except TensorMapError as refused:
        what = f"mode {INFIXES.get(lowering.mode, lowering.mode)} for {lowering.problem}"
        findings = [replace(f, hint=_way_out(f, lowering)) for f in refused.findings]
        raise TensorMapError(what, findings, refused.description) from None
    return lowering


def _way_out(finding: Finding, lowering: Lowering) -> str:
    """What the caller of `maps_for` can do about a limit."""
    name, unit = finding.field.partition("[")[0], max(1, 16 // lowering.dtype.itemsize)
    wide = isinstance(lowering, WideLowering)
    if name.startswith(("lower_corner", "upper_corner", "offsets")):
        if lowering.mode in ("w", "w128"):
            return "pad the tensor in memory, and lower the problem without that padding"
        return "use mode 'im2col::w': its corners have 16 bits, and taps of W are views"
    if name == "shape" and finding.field.endswith("[c]"):
        padded = -(-lowering.channels // unit) * unit
        return f"pad the channels in memory to {padded}, or pass strides= of a tensor that has room"
    ways = {
        "traversal_stride": "no copy steps further than 8; subsample the tensor first",
        "pixels_per_column": "pass tile_m= from 1 to 1024",
        "channels_per_pixel": f"pass channels=, a multiple of {unit} that fits in the swizzle span",
        "swizzle": "pass swizzle='64B' or '128B'" if wide else "pass swizzle='128B'",
        "dtype": "pass dtype= with elements of 1, 2, 4 or 8 bytes",
        "address": "align the tensor in memory, or leave address out",
        "strides": "copy the tensor to memory whose rows begin at multiples of 16 bytes",
        "shape": "divide the batch or the image into parts",
    }
    return ways.get(name, finding.hint)


def candidates(problem: Problem, mode: str, operator: str) -> Iterator[Lowering]:
    """The lowerings whose walk a map of this mode may have: also permuted ones, and all phases."""
    modes = [mode, "w_sm90"] if mode == "im2col" else [mode]
    phases: list[Phase | None] = [*phases_of(problem)] if operator == "dgrad" else [None]
    for name in modes:
        for phase in phases:
            fields = (128, None, np.uint8, "128B", None, None)
            yield lowering_of(problem, name, operator, *fields, phase)
