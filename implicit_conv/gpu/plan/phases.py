"""Input gradients and transposed convolutions as one convolution for each stride phase.

GEMM mapping: A = output gradient, gemm_m = N*H*W; B = filter, gemm_n = C; C = input gradient;
gemm_k = R*S*K. A phase has its own part of gemm_m and of the taps; see `problem.phases`. It is
planned as every convolution is, and writes its pixels in place, a stride apart. Where a phase has
no taps, all pixels are written first: the driver sets them to zero, or a convolution without
channels computes their bias, residual and activation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from implicit_conv.errors import PlanError
from implicit_conv.gpu.cuda.arch import GpuArch
from implicit_conv.gpu.plan.candidate import (
    LAUNCH_SECONDS,
    WRITE_SHARE,
    Candidate,
    Choice,
)
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.views import Viewed, images
from implicit_conv.kernels.geometry import CLAMP
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.phases import (
    MOST_PHASES,
    Phase,
    is_covered,
    phase_count,
    phases_of,
    without_channels,
)
from implicit_conv.problem.problem import Problem

ALL = slice(None)


@dataclass(frozen=True)
class Part:
    """The convolution of a phase: the pixels of dx that it writes, in the order N, H, W, C, and the
    element of the packed filters that its own begin at.
    """

    choice: Choice
    pixels: tuple[slice, ...] = field(default=(ALL,) * 4, hash=False)  # Python 3.11 hashes none
    filter_at: int = 0


@dataclass(frozen=True)
class Gradient(Viewed):
    """The choices of the phases of an input gradient.

    `problem` is the convolution in the caller's layouts, which maps dx to dy, and `view` the same
    one of images in the orders N, H, W, C and K, R, S, C. A transposed convolution calls dx and dy
    y and x, and has an epilogue.
    """

    problem: Problem
    view: Problem
    arch: GpuArch
    parts: tuple[Part, ...]
    transposed: bool
    takes_any_filter: ClassVar[bool] = True  # a launch copies it

    @property
    def read(self) -> str:
        """The name of dy in messages."""
        return "x" if self.transposed else "dy"

    @property
    def has_epilogue(self) -> bool:
        """Whether a bias or a residual may be given."""
        return self.transposed

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of dy."""
        return self.problem.output_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of dx."""
        return self.problem.input_shape

    @property
    def y_channels(self) -> int:
        """The channels of dx."""
        return self.problem.C

    @property
    def y_dtype(self) -> str:
        """The dtype of dx."""
        return self.parts[0].choice.y_dtype

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """That of a packed filter: one axis."""
        return (math.prod(self.problem.weight_shape),)

    @property
    def order(self) -> tuple[Any, ...]:
        """What the order of a packed filter depends on."""
        view = self.view
        return view.weight_shape, view.groups, steps(view)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the copy of a plain filter."""
        return math.prod(self.packed_shape) * self.problem.itemsize

    @property
    def writes_once(self) -> bool:
        """Whether each pixel of dx is written once."""
        return bool(self.parts[0].choice.view.C)

    @property
    def keeps_zeros(self) -> bool:
        """Whether the activation of zero is zero, so that pixels without taps are set to zero."""
        choice = self.parts[0].choice
        low, high = choice.limits
        return choice.variant.activation == CLAMP and low <= 0 <= high

    def ordered(self, w: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A filter as the phases read it; see kernels/gpu/phase_filters.py."""
        view, (rows, columns) = self.view, steps(self.view)
        K, R, S, C = view.weight_shape
        whole = w.transpose(self.filter_axes).reshape(view.groups, K // view.groups, R, S, C)
        turned = whole.transpose(0, 4, 2, 3, 1)  # group, C, R, S, K
        phases = [
            turned[:, :, r::rows, s::columns][:, :, ::-1, ::-1].ravel()
            for r in range(min(rows, R))
            for s in range(min(columns, S))
        ]
        return np.concatenate(phases)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The kernels that were considered for the phases."""
        return tuple(c for choice in self.choices for c in choice.candidates)

    @property
    def choices(self) -> list[Choice]:
        """Those of different convolutions, that without channels last; the first takes longest."""
        found = {part.choice.problem: part.choice for part in self.parts}.values()
        return sorted(found, key=lambda each: (not each.view.C, -each.estimate.cycles))

    @property
    def variant(self) -> Variant:
        """The kernel of the phase that takes longest."""
        return self.choices[0].variant

    @property
    def seconds(self) -> float:
        """The estimate: that of all launches, of which one copies the filter."""
        copied = LAUNCH_SECONDS + 2 * self.workspace_bytes / self.arch.memory
        return copied + sum(map(self.part_seconds, self.parts))

    def part_seconds(self, part: Part) -> float:
        """The estimate of a part; the driver sets pixels to zero at the rate of writing."""
        if part.choice.view.C or not self.keeps_zeros:
            return part.choice.estimate.cycles / self.arch.hertz
        size = math.prod(self.y_shape) * ITEMSIZES[self.y_dtype]
        return LAUNCH_SECONDS + size / (WRITE_SHARE * self.arch.memory)


AnyChoice: TypeAlias = Choice | Gradient


def steps(view: Problem) -> tuple[int, ...]:
    """Steps between the taps of a phase, by axis."""
    axes = zip(view.stride, view.dilation, strict=True)
    return tuple(stride // math.gcd(stride, dilation) for stride, dilation in axes)


def choose_gradient(
    problem: Problem,
    arch: GpuArch,
    *,
    transposed: bool = False,
    activation: tuple[float, float, float] | None = None,
    strict: bool = False,
    rounded: bool = True,
) -> Gradient:
    """The best kernels for the input gradient of `problem` on `arch`; parameters as of `choose`.

    Raises
    ------
    PlanError
        No kernel can compute a phase, or there are too many phases.
    """
    view, count = images(problem), phase_count(problem)
    if count > MOST_PHASES:
        raise PlanError(
            f"the stride {problem.stride} divides the result into {count} phases that taps reach, "
            f"each a launch; a GPU supports {MOST_PHASES}; use device='cpu', with numpy arrays"
        )
    phases, parts, known = phases_of(view), list[Part](), dict[Problem, Choice]()

    def chosen(phase: Problem) -> Choice:
        phase = phase.changed(weight_layout=view.weight_layout)
        if phase not in known:
            phase.check_sizes()
            known[phase] = choose(
                phase, arch, activation=activation, strict=strict, rounded=rounded
            )
        return known[phase]

    if not (phases and is_covered(view, phases)):
        parts.append(Part(chosen(without_channels(view))))
    for phase in phases:
        pixels = (ALL, *phase.pixels, ALL)
        parts.append(Part(chosen(phase.problem), pixels, _filter_at(view, phase)))
    return Gradient(problem, view, arch, tuple(parts), transposed)


def _filter_at(view: Problem, phase: Phase) -> int:
    """The element of the packed filters that those of a phase begin at."""
    before = [
        sum(len(range(first, taps, step)) for first in range(tap.start % step))
        for tap, taps, step in zip(phase.taps, view.kernel, steps(view), strict=True)
    ]
    taps = before[0] * view.kernel[1] + phase.problem.kernel[0] * before[1]
    return view.C * (view.K // view.groups) * taps
