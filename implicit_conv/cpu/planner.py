"""The CPU planner: the candidates of all methods, cheapest first. It sees shapes, not arrays."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.cpu.arch import CpuArch
from implicit_conv.cpu.candidate import Candidate, Method, Refusal, Request
from implicit_conv.cpu.methods.channel_lanes import ChannelLanes
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.group_lanes import GroupLanes
from implicit_conv.cpu.methods.im2col import Im2col
from implicit_conv.cpu.methods.pixel_lanes import PixelLanes
from implicit_conv.cpu.methods.planes import Planes
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.cpu.methods.winograd import Winograd
from implicit_conv.errors import PlanError
from implicit_conv.options import ALGORITHMS, PRECISIONS
from implicit_conv.problem import Problem

# Under precision "strict" the first method that can run fixes the order of sums; later methods with
# another order are refused.
METHODS: tuple[type[Method], ...] = (
    Planes,
    Depthwise,
    Gemm,
    TransposedGemm,
    PixelLanes,
    GroupLanes,
    ChannelLanes,
    Winograd,
    Im2col,
)


class Choice(NamedTuple):
    """The candidates, best first, and the refusals."""

    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...]


def plan(problem: Problem, arch: CpuArch, request: Request) -> Choice:
    """The candidates for `problem` on `arch`, sorted by their estimate of cycles.

    Raises
    ------
    PlanError
        The precision or algorithm is unknown, or the algorithm does not support the problem.
    """
    precision, algorithm = request.precision, request.algorithm
    if precision not in PRECISIONS:
        raise PlanError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    if algorithm not in ("auto", *ALGORITHMS):
        raise PlanError(f"algorithm {algorithm!r} is none of auto, {', '.join(ALGORITHMS)}")
    able: list[Candidate] = []
    refusals: list[Refusal] = []
    for method in METHODS:
        for found in method.candidates(problem, arch, request):
            if isinstance(found, Refusal):
                refusals.append(found)
            elif request.strict and able and found.method.order != able[0].method.order:
                reason = f"precision 'strict' fixes the order of sums to {able[0].method.order}"
                refusals.append(Refusal(found.name, reason))
            else:
                able.append(found)
    if not able:
        reasons = "; ".join(refusal.reason for refusal in refusals)
        raise PlanError(f"algorithm {algorithm!r} cannot compute this problem: {reasons}")
    able.sort(key=lambda candidate: candidate.cycles)
    return Choice(tuple(able), tuple(refusals))
