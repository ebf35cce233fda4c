"""The CPU planner: candidates -> estimate -> best -> derived; arrays never come here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from implicit_conv import gemm_im2col
from implicit_conv.algorithms import (
    ALGORITHMS,
    PRECISIONS,
    WEIGHED,
    boxed,
    by_channels,
    by_pixels,
    collapsed,
    fills_by_groups,
    multiplies_pairs,
    paired,
    refusal,
    rows_of_channels,
    rows_of_pixels,
    swappable,
    swapped,
    widened,
    winograd_size,
)
from implicit_conv.arch import AMX_PIXELS, CpuArch
from implicit_conv.errors import PlanError
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.planned import Plan
from implicit_conv.problem import Problem
from implicit_conv.tiling import (
    Estimate,
    candidates,
    columns_estimate,
    estimate,
    fills_tiles,
    fills_vectors,
    reads_in_place,
    swapped_estimate,
    thread_count,
    whole,
)
from implicit_conv.tiling_boxes import (
    BOXED_SCRATCH_BYTES,
    boxed_candidates,
    boxed_estimate,
)
from implicit_conv.tiling_channels import (
    channel_lanes_candidates,
    channel_lanes_estimate,
)
from implicit_conv.tiling_depthwise import (
    by_planes,
    depthwise_candidates,
    depthwise_estimate,
    group_lanes_candidates,
    group_lanes_estimate,
    leaves_out_padding,
    plane_candidates,
    plane_estimate,
)
from implicit_conv.tiling_pixels import (
    pixel_lanes_candidates,
    pixel_lanes_estimate,
)

__all__ = ["Plan", "plan"]


def plan(
    problem: Problem,
    arch: CpuArch,
    precision: str,
    algorithm: str,
    collapse: bool,
    in_place: bool = True,
    block: int = 0,
) -> Plan:
    """The best algorithm and tiling of `problem` on `arch`, by the estimate of cycles.

    Parameters
    ----------
    precision, algorithm : str
        As in `conv2d`.
    collapse : bool
        Whether x and y are packed, so that a pointwise problem's pixels may be taken as one row.
    in_place : bool
        Whether the channels of x lie one behind the other where its layout has them last, so that
        it may be read where it lies; those of w, where filters and pixels trade places.
    block : int
        Channels of a depthwise block, where a filter has been packed by such; 0 for any.

    Raises
    ------
    PlanError
        A precision or algorithm that is unknown or cannot serve the problem.
    """
    if precision not in PRECISIONS:
        raise PlanError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    if algorithm not in ("auto", *ALGORITHMS):
        raise PlanError(f"algorithm {algorithm!r} is none of auto, {', '.join(ALGORITHMS)}")
    if algorithm != "auto":
        reason = refusal(problem, algorithm, precision)
        if reason:
            raise PlanError(f"algorithm {algorithm!r} cannot serve this problem: {reason}")
    names = WEIGHED if algorithm == "auto" else (algorithm,)
    served = [name for name in names if refusal(problem, name, precision) is None]
    if precision == "strict" and "depthwise" in served and len(served) > 1:
        # Their sums differ in order, so the choice must not depend on batch or threads.
        many = problem.groups >= arch.lanes(widened(problem).itemsize)
        served = ["depthwise"] if many else [name for name in served if name != "depthwise"]
    if "pointwise" in served:  # implicit GEMM too, with longer rows
        served = ["pointwise"]
    plans = [
        made
        for name in served
        if name != "depthwise"
        for made in _plans(problem, arch, precision, name, collapse, in_place)
    ]
    if "depthwise" in served:
        plans += _depthwise_plans(problem, arch, precision, in_place, block)
    if collapse and in_place:  # else: the like of a plan, for other strides, by the same panels
        plans += _other_lanes(problem, arch, precision, served)
    if not plans:
        raise PlanError(
            f"algorithm {algorithm!r} needs more than {BOXED_SCRATCH_BYTES >> 20} MiB of scratch a "
            "thread for this problem; use 'auto'"
        )
    return min(plans, key=lambda made: made.cycles)


def _other_lanes(problem: Problem, arch: CpuArch, precision: str, served: list[str]) -> list[Plan]:
    """Plans of implicit GEMM whose vectors hold pixels or channels, of the algorithms `served`."""
    name = served[0]
    plans = _swapped_plans(problem, arch, precision) if name == "pointwise" else []
    if precision == "strict" or name not in ("implicit_gemm", "pointwise"):
        return plans  # the order of the others' sums is another
    if name == "implicit_gemm" or problem.output != (1, 1):
        plans += _pixel_lanes_plans(problem, arch, precision, name)
    plans += _group_lanes_plans(problem, arch, precision, name)
    return plans + _channel_lanes_plans(problem, arch, precision, name)


def _best(
    problem: Problem,
    arch: CpuArch,
    precision: str,
    algorithm: str,
    view: Problem,
    costs: list[tuple[Estimate, Geometry]],
    **choices: Any,
) -> list[Plan]:
    """The plan of the tiling of `view` that costs least; none if there are none."""
    least = [min(costs)] if costs else []
    defaults = {"in_place": False, "collapsed": False, "pairs": False, "amx": False}
    choices = defaults | {"threads": thread_count(problem, arch)} | choices
    return [
        Plan(
            problem=problem, arch=arch, algorithm=algorithm, precision=precision,
            geometry=g, chunk=chunk, cycles=cycles, **choices,
        )
        for (cycles, chunk), g in least
    ]  # fmt: skip


def _plans(
    problem: Problem,
    arch: CpuArch,
    precision: str,
    algorithm: str,
    collapse: bool,
    in_place: bool,
) -> list[Plan]:
    """The best plan of one algorithm, or none where its scratch would be too large."""
    m = winograd_size(algorithm)
    summed, pairs, amx = _summed(problem, arch, algorithm)
    view = _view(summed, algorithm, collapse)
    machine = replace(arch, tile_pixels=AMX_PIXELS) if amx else arch
    in_place = in_place and algorithm in ("implicit_gemm", "pointwise") and reads_in_place(view)
    if m:
        costs = [(boxed_estimate(view, arch, g, m), g) for g in boxed_candidates(view, arch, m)]
    elif algorithm == "gemm_im2col":
        cost = columns_estimate(view, arch, gemm_im2col.workspace_bytes(view))
        costs = [(cost, whole(view, arch))]
    else:
        tilings = candidates(view, machine, in_place)
        costs = [(estimate(view, machine, g, in_place), g) for g in tilings]
    return _best(
        problem, arch, precision, algorithm, view, costs, in_place=in_place, pairs=pairs, amx=amx,
        collapsed=algorithm == "pointwise" and collapse,
    )  # fmt: skip


def _depthwise_plans(
    problem: Problem, arch: CpuArch, precision: str, in_place: bool, block: int
) -> list[Plan]:
    """The best plans of depthwise: over planes or in place, and with channels copied together.

    Sums of "strict" have one order however x lies: over planes, else copied, since in place pixels
    at the border have another than the rest.
    """
    view, plans = by_channels(widened(problem)), []
    if by_planes(view, arch):
        costs = [(plane_estimate(view, arch, g), g) for g in plane_candidates(view, arch)]
        plans = _best(problem, arch, precision, "depthwise", view, costs)
    elif in_place and precision != "strict" and leaves_out_padding(view, arch):
        tilings = depthwise_candidates(view, arch, in_place=True, block=block)
        costs = [(depthwise_estimate(view, arch, g, in_place=True), g) for g in tilings]
        plans = _best(problem, arch, precision, "depthwise", view, costs, in_place=True)
    if precision == "strict" and plans:
        return plans
    tilings = depthwise_candidates(view, arch, in_place=False, block=block)
    costs = [(depthwise_estimate(view, arch, g, in_place=False), g) for g in tilings]
    return plans + _best(problem, arch, precision, "depthwise", view, costs)


def _summed(problem: Problem, arch: CpuArch, algorithm: str) -> tuple[Problem, bool, bool]:
    """`problem` as its sums see it, whether its channels are pairs, and whether AMX takes them."""
    if not multiplies_pairs(problem, algorithm, arch):
        return widened(problem), False, False
    view = paired(problem)
    return view, True, fills_tiles(view, arch)


def _swapped_plans(problem: Problem, arch: CpuArch, precision: str) -> list[Plan]:
    """The best plan of a pointwise problem whose filters and pixels trade places, if they may."""
    summed, pairs, amx = _summed(problem, arch, "pointwise")
    if not (swappable(summed) and fills_vectors(summed, arch)):
        return []
    view = swapped(summed)
    machine = replace(arch, tile_pixels=AMX_PIXELS) if amx else arch
    tilings = candidates(view, machine, in_place=True)
    costs = [(swapped_estimate(summed, view, machine, g), g) for g in tilings]
    return _best(
        problem, arch, precision, "pointwise", view, costs, threads=thread_count(view, arch),
        in_place=True, collapsed=True, pairs=pairs, amx=amx, swapped=True,
    )  # fmt: skip


def _pixel_lanes_plans(
    problem: Problem, arch: CpuArch, precision: str, algorithm: str
) -> list[Plan]:
    """The best plan whose vectors hold pixels of an output row, if they may."""
    if not by_pixels(widened(problem)):
        return []
    row = rows_of_pixels(problem)
    view, in_place = row or problem, row is not None
    tilings = pixel_lanes_candidates(view, arch, in_place)
    costs = [(pixel_lanes_estimate(view, arch, g, in_place), g) for g in tilings]
    return _best(
        problem, arch, precision, algorithm, view, costs, in_place=in_place, collapsed=in_place,
        pixel_lanes=True,
    )  # fmt: skip


def _channel_lanes_plans(
    problem: Problem, arch: CpuArch, precision: str, algorithm: str
) -> list[Plan]:
    """The best plan whose vectors hold channels, if they may."""
    view = rows_of_channels(widened(problem))
    if view is None:
        return []
    tilings = channel_lanes_candidates(view, arch)
    costs = [(channel_lanes_estimate(view, arch, g), g) for g in tilings]
    return _best(
        problem, arch, precision, algorithm, view, costs, threads=thread_count(view, arch),
        in_place=True, collapsed=True, channel_lanes=True,
    )  # fmt: skip


def _group_lanes_plans(
    problem: Problem, arch: CpuArch, precision: str, algorithm: str
) -> list[Plan]:
    """The best plan whose vectors hold filters of several groups, if they may."""
    view = widened(problem)
    if not fills_by_groups(view, arch.lanes(view.itemsize)):
        return []
    view = by_channels(view)
    group = problem.C // problem.groups, problem.K // problem.groups
    tilings = group_lanes_candidates(view, arch, group)
    costs = [(group_lanes_estimate(view, arch, g, group[0]), g) for g in tilings]
    return _best(problem, arch, precision, algorithm, view, costs, group_lanes=True)


def _view(problem: Problem, algorithm: str, collapse: bool) -> Problem:
    """`problem` as `algorithm` sees it."""
    if winograd_size(algorithm):
        return boxed(problem, winograd_size(algorithm))
    return collapsed(problem) if algorithm == "pointwise" and collapse else problem
