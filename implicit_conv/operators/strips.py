"""Convolutions that follow each other by strips of rows, so that images between them stay in L2.

A strip computes rows of each image in turn. Rows that two strips read are moved to where the next
one reads them, and computed once. Where images are small and many, a strip has some of them whole.

MobileNetV2, 224x224, one thread, time beside that without strips: 0.95 for one image, 0.90 for two,
0.81 for four, 0.70 for sixteen (AMD Zen 4, 1 MiB L2, other work on the machine, 2026-11). On
several threads each has strips of its own: see `lanes`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.kinds import derived
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan.planner import words
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Room,
    Step,
    address_of,
    located,
)
from implicit_conv.operators.operations import Convolution, Part
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.problem import Problem

L2_SHARE = 0.75  # of L2 that rows of the images between may fill (AMD Zen 4, 2026-11)
FILTER_SHARE = 0.25  # of L2 that filters of a chain may fill, which every strip reads
MOVED_SHARE = 0.33  # of the rows of an image between that may be moved for the next strip
MOST_STRIPS = 1024  # of a call
MOST_STAGES = 3  # of a chain: each one more has rows in L2


class Rows(NamedTuple):
    """Rows of an image, from `begin` to before `end`, and rows of zeros before and behind them."""

    begin: int
    end: int
    low: int = 0
    high: int = 0

    @property
    def height(self) -> int:
        """Those of the image."""
        return self.end - self.begin


class Stage(NamedTuple):
    """A convolution that computes rows of its result from rows of its image."""

    convolution: Convolution
    result: Rows
    image: Rows


class Strips(NamedTuple):
    """A chain of convolutions with channels last, of which each reads the result of the one before.
    Each strip, of so many samples at once, has a stage of each; a second image is added to the last
    result.
    """

    strips: Sequence[Sequence[Stage]]
    samples: int

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        between = list[Array]()
        for of_one in [*zip(*self.strips, strict=True)][1:]:
            problem = of_one[0].convolution.plan.problem
            rows = max(stage.image.height for stage in of_one)
            between.append(room.array((self.samples, rows, problem.size[1], problem.C), y.dtype))
        found, end = list[Step](), room.end
        before: Sequence[Stage] = ()
        x, *added, target = (each[: self.samples] for each in (*images, y))
        for strip in self.strips:
            for array, last, now in zip(between, before[1:], strip[1:], strict=False):
                found += _moves(array, last.image, now.image)
            sources = [x, *between]
            for number, (convolution, result, image) in enumerate(strip):
                is_last = number + 1 == len(strip)
                origin = 0 if is_last else strip[number + 1].image.begin
                rows = slice(result.begin - origin, result.end - origin)
                begin = image.begin if number == 0 else 0
                source = sources[number][:, begin : begin + image.height]
                read = [source, *(each[:, rows] for each in (added if is_last else ()))]
                y_rows = (target if is_last else between[number])[:, rows]
                found += convolution.steps(read, y_rows, room)
                room.end = end
            before = strip
        steps = [*found]
        for n in range(self.samples, len(y), self.samples):
            by = {located(address_of(each))[0]: n * each.strides[0] for each in (*images, y)}
            steps += [each.moved(by) for each in found]
        return steps


def _moves(array: Array, last: Rows, now: Rows) -> list[Step]:
    """Steps that move rows of an image, of which an array holds those of the last strip."""
    by, kept = now.begin - last.begin, last.end - now.begin
    if not by:
        return []
    parts = ((row, min(row + by, kept)) for row in range(0, kept, by))  # none overlaps its target
    return [Copied(array[:, low + by : high + by], array[:, low:high]) for low, high in parts]


def in_strips(parts: Mapping[int, Part], arch: CpuArch) -> dict[int, Part]:
    """Parts by the numbers of their results, of which some compute a chain by strips."""
    found = dict[int, Part]()
    for chain in chains(parts, arch):
        own = {number: parts[number] for number in chain}
        if len(chain) > 1:
            operations = [each.operation for each in own.values()]
            n, rows, *_ = parts[chain[-1]].shape
            strips = strips_of(operations, arch, Rows(0, rows), n)
            if strips is not None:
                own = {chain[-1]: joined(own)._replace(operation=strips)}
        found |= own
    return found


def joined(chain: Mapping[int, Part]) -> Part:
    """The part that computes a chain, but for its operation."""
    parts = [*chain.values()]
    first, last = parts[0], parts[-1]
    return last._replace(images=[first.images[0], *last.images[1:]])


def chains(parts: Mapping[int, Part], arch: CpuArch) -> Iterable[list[int]]:
    """Numbers of parts whose images between nothing else reads, and L2 does not hold."""
    reads = Counter(number for part in parts.values() for number in part.images)
    chains: dict[int, list[int]] = {}
    for number, part in parts.items():
        before = part.images[0]
        chain = chains.get(before, [])
        every = [parts[each] for each in (*chain, number)]
        if reads[before] == 1 and len(every) > 1 and _follow(every, arch):
            del chains[before]
            chains[number] = [*chain, number]
        else:
            chains[number] = [number]
    return chains.values()


def _follow(chain: Sequence[Part], arch: CpuArch) -> bool:
    """Whether the last part of a chain gains by rows that are still in L2: it is depthwise, or a
    1x1 convolution behind such a one.
    """
    before = chain[-2]
    operations: list[Any] = [each.operation for each in chain]
    engines = [each.plan.engine for each in operations if isinstance(each, Convolution)]
    problems = [each.problem for each in engines if type(each) is CpuEngine]
    if len(problems) < len(chain) or len(before.images) > 1:
        return False
    own, is_depthwise = problems[-1], [each.groups == each.C for each in problems]
    filters = sum(math.prod(each.weight_shape) * each.itemsize for each in problems)
    return (
        all(each.layout == "NHWC" and each.batched and not each.repeats for each in problems)
        and (is_depthwise[-1] or (is_depthwise[-2] and math.prod(own.kernel) == 1))
        and len(chain) <= MOST_STAGES
        and filters <= FILTER_SHARE * arch.l2_bytes
        and before.bytes > arch.threads * arch.l2_bytes
    )


def strips_of(chain: Sequence[Any], arch: CpuArch, rows: Rows, samples: int) -> Strips | None:
    """As few strips as possible of these rows of the last result; None where a chain does without.
    Rows that a first strip reads are all computed.
    """
    problems = [each.plan.problem for each in chain]
    for number in range(1, min(MOST_STRIPS // samples, rows.height) + 1):
        divided, size = _divided(problems, number, rows), 0
        if not divided:
            return None
        images = [[image for _, image in of_one] for of_one in zip(*divided, strict=True)]
        for problem, of_one in zip(problems[1:], images[1:], strict=True):
            most = max(each.height for each in of_one)
            if any(one.end - two.begin > MOVED_SHARE * most for one, two in pairwise(of_one)):
                return None
            size += most * problem.size[1] * problem.C * problem.itemsize
        fitting = int(L2_SHARE * arch.l2_bytes) // size if size else samples
        if fitting:
            possible = range(1, min(fitting, samples) + 1)
            together = 1 if number > 1 else max(m for m in possible if samples % m == 0)
            return _planned(chain, divided, together)
    return None


def _divided(problems: Sequence[Problem], count: int, rows: Rows) -> list[list[tuple[Rows, Rows]]]:
    """Of each of `count` strips and each problem, the rows of the result that it computes,
    and those of the image that it reads. None where a strip would compute nothing.
    """
    done, found = [0] * len(problems), []
    ends = [rows.begin + rows.height * number // count for number in range(count + 1)]
    for begin, end in pairwise(ends):
        strip, wanted = list[tuple[Rows, Rows]](), Rows(begin, end)
        for number in reversed(range(len(problems))):
            result = Rows(max(done[number], wanted.begin), wanted.end)
            done[number], wanted = result.end, _read(problems[number], result)
            if min(result.height, wanted.height) < 1:
                return []
            strip.insert(0, (result, wanted))
        found.append(strip)
    return found


def _read(problem: Problem, result: Rows) -> Rows:
    """The rows of an image that a convolution reads for these of its result."""
    stride, before, extent = problem.stride[0], problem.pad_lo[0], problem.size[0]
    begin = result.begin * stride - before
    end = (result.end - 1) * stride - before + (problem.kernel[0] - 1) * problem.dilation[0] + 1
    return Rows(max(begin, 0), min(end, extent), max(-begin, 0), max(end - extent, 0))


def _planned(
    chain: Sequence[Convolution], strips: Sequence[Sequence[tuple[Rows, Rows]]], samples: int
) -> Strips | None:
    """The stages of strips; none where plans of so few rows read filters in another order."""
    plans: dict[tuple[int, int, int, int], Convolution] = {}
    found = list[list[Stage]]()
    try:
        for strip in strips:
            stages = list[Stage]()
            for number, (result, image) in enumerate(strip):
                key = number, image.height, image.low, image.high
                if key not in plans:
                    plans[key] = _of_rows(chain[number], image, samples)
                stages.append(Stage(plans[key], result, image))
            found.append(stages)
    except PlanError:
        return None
    return Strips(found, samples)


def _of_rows(convolution: Convolution, image: Rows, samples: int) -> Convolution:
    """A convolution of these rows of so many images."""
    engine: Any = convolution.plan.engine
    own, packed = engine.problem, not isinstance(convolution.w, np.ndarray)
    problem = own.changed(
        N=samples,
        size=(image.height, own.size[1]),
        pad_lo=(image.low, own.pad_lo[1]),
        pad_hi=(image.high, own.pad_hi[1]),
    )
    candidate = engine.best_packed if packed else engine.best
    choice = replace(engine.choice, candidates=(candidate,))
    derived_choice = derived(words(own), engine.formats, choice, problem)
    if derived_choice is None:
        raise PlanError("the method cannot run")
    of_rows = engine.sized(problem, derived_choice)
    if packed and of_rows.packed_key != engine.packed_key:
        raise PlanError("filters are packed in another order")
    return convolution._replace(plan=Plan(of_rows))
