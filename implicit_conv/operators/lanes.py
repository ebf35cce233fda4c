"""Parts of a pipeline by lanes: each thread has samples, or rows, of all images.

A lane waits for the others only where it reads what they have computed since they waited last.

MobileNetV2 and EfficientNet-B0, 224x224, two threads: programs take 0.85 to 1.0 of the time that
they take with launches whose threads take any part of an image, mostly 0.93; those of ResNet-50
and RegNetY-4.0GF the same (AMD Zen 4, shared by others, 2026-11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner
from implicit_conv.kernels.cpu.runtime.program import Room, Step
from implicit_conv.operators.operations import (
    Convolution,
    Joined,
    Operation,
    Part,
    Product,
    Sum,
    Windows,
)
from implicit_conv.operators.plan import Plan
from implicit_conv.operators.strips import Rows, chains, joined, strips_of

MOST_WORK = 1.25  # of the largest lane, as a multiple of their mean
SAMPLES, ROWS, CHANNELS = 0, 1, 3  # axes along which images are divided


class Share(NamedTuple):
    """What is a lane's of an image: elements from `begin` to before `end` along an axis."""

    axis: int
    begin: int
    end: int

    def of(self, image: Array) -> Array:
        """These elements."""
        return image[(*[slice(None)] * self.axis, slice(self.begin, self.end))]

    def has(self, other: Share) -> bool:
        """Whether all elements of another share are its own."""
        return self.axis == other.axis and self.begin <= other.begin and other.end <= self.end


class Task(NamedTuple):
    """What a lane computes: the share `y` of a result, of these shares of images. It is computed by
    an `operation` on these, or on the whole images if it is `placed` by itself.
    """

    operation: Operation
    y: Share
    reads: Sequence[Share | None]  # None of what no lane computes alone
    placed: bool = False

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        if self.placed:
            return self.operation.steps(images, y, room)
        pairs = zip(images, self.reads, strict=True)
        own = [image if share is None else share.of(image) for image, share in pairs]
        return self.operation.steps(own, self.y.of(y), room)


class Stage(NamedTuple):
    """What computes a result of these images: a task for each lane, or an operation for all.
    Stages of one `segment` run side by side: no lane reads what another one computes in it.
    """

    number: int
    part: Part
    tasks: Sequence[Task]
    segment: int


def in_lanes(parts: Mapping[int, Part], arch: CpuArch) -> list[Stage]:
    """The stages of parts, which are given by the numbers of their results."""
    stages = list[Stage]()
    for chain in chains(parts, arch):
        own = {number: parts[number] for number in chain}
        tasks = _tasks(own, arch)
        if tasks:
            found = {chain[-1]: (joined(own), tasks)}
        else:
            found = {number: (part, _tasks({number: part}, arch)) for number, part in own.items()}
        for number, (part, each) in found.items():
            segment = stages[-1].segment + _waits(part, each, stages) if stages else 0
            stages.append(Stage(number, part, each, segment))
    return stages


def _waits(part: Part, tasks: Sequence[Task], stages: Sequence[Stage]) -> bool:
    """Whether lanes wait for the others before a part."""
    last = stages[-1]
    if not (tasks and last.tasks):
        return True
    same = {stage.number: stage.tasks for stage in stages if stage.segment == last.segment}
    for place, image in enumerate(part.images):
        for task, before in zip(tasks, same.get(image, ()), strict=False):
            read = task.reads[place]
            if read is None or not before.y.has(read):
                return True
    return False


def _tasks(chain: Mapping[int, Part], arch: CpuArch) -> list[Task]:
    """The tasks of all lanes for a part, or for a chain of convolutions; none where lanes have
    none.
    """
    part, operations = joined(chain), [each.operation for each in chain.values()]
    axis = _axis(part, arch.threads) if len(part.shape) == 4 else None
    if axis is None:
        return []
    extent, (operation, *_) = part.shape[axis], operations
    ends = [extent * lane // arch.threads for lane in range(arch.threads + 1)]
    shares = [Share(axis, *each) for each in pairwise(ends)]
    if isinstance(operation, Convolution):
        return _of_convolutions(operations, part, shares, arch)
    if isinstance(operation, Windows):
        return [_of_windows(operation, share) for share in shares]
    if not isinstance(operation, (Sum, Joined, Product)):
        return []
    has_gate = isinstance(operation, Product) and axis == ROWS
    reads = [*part.images[:1], *[None if has_gate else n for n in part.images[1:]]]
    return [
        Task(operation, share, [None if n is None else share for n in reads]) for share in shares
    ]


def _axis(part: Part, lanes: int) -> int | None:
    """The axis along which lanes share a result; None where their work would differ too much."""
    n, rows, columns, _ = part.shape
    if isinstance(part.operation, Windows) and rows * columns == 1:
        axis = SAMPLES if n >= lanes else CHANNELS
    else:
        axis = SAMPLES if n % lanes == 0 else ROWS
    extent = part.shape[axis]
    most = math.ceil(extent / lanes) * lanes
    return axis if extent >= lanes and most <= MOST_WORK * extent else None


def _of_windows(operation: Windows, share: Share) -> Task:
    if share.axis != ROWS:
        return Task(operation, share, [share])
    rows, columns = operation.tables
    own = rows[share.begin : share.end]
    read = Share(ROWS, min(first for first, *_ in own), max(first + n for first, n, _ in own))
    own = [(first - read.begin, n, count) for first, n, count in own]
    return Task(operation._replace(tables=(own, columns)), share, [read])


def _of_convolutions(
    chain: Sequence[Any], part: Part, shares: Sequence[Share], arch: CpuArch
) -> list[Task]:
    """None where lanes would read more of filters than of images, or cannot run a plan."""
    alone = [_alone(each, replace(arch, threads=1)) for each in chain]
    if None in alone:
        return []
    problems = [each.plan.problem for each in chain]
    images = math.prod(problems[0].input_shape) + math.prod(part.shape)
    if sum(math.prod(each.weight_shape) for each in problems) > images:
        return []
    tasks = list[Task]()
    n, rows, *_ = part.shape
    for share in shares:
        is_rows = share.axis == ROWS
        own = Rows(share.begin, share.end) if is_rows else Rows(0, rows)
        strips = strips_of(alone, arch, own, n if is_rows else share.end - share.begin)
        if strips is None:
            return []
        reads = [share] * len(part.images)
        if is_rows:
            first, *_, last = [strip[0].image for strip in (*strips.strips, strips.strips[-1])]
            reads[0] = Share(ROWS, first.begin, last.end)
        tasks.append(Task(strips, share, reads, placed=is_rows))
    return tasks


def _alone(convolution: Convolution, arch: CpuArch) -> Convolution | None:
    """The convolution on one thread; None if it has no rows to share, or reads filters in another
    order.
    """
    engine: Any = convolution.plan.engine
    problem = engine.problem
    if type(engine) is not CpuEngine or problem.layout != "NHWC" or not problem.batched:
        return None
    if problem.repeats:
        return None
    own = engine.sized(problem, planner.plan(engine.choice.query._replace(arch=arch)))
    if not isinstance(convolution.w, np.ndarray) and own.packed_key != engine.packed_key:
        return None
    return convolution._replace(plan=Plan(own))
