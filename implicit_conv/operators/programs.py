"""For doors: calls as programs, which compiled code of another library starts without Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, product
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.engines.channelwise import Table, product_steps, sum_steps, window_steps
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.run.call import Arrays, compiled, repeat
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.known_calls import Made
from implicit_conv.kernels.cpu.runtime.layout import round_up
from implicit_conv.kernels.cpu.runtime.objects import differing, offset_of
from implicit_conv.kernels.cpu.runtime.program import (
    RESIDUAL,
    Copied,
    Program,
    Room,
    Step,
    W,
    Words,
    X,
    Y,
    address_of,
    array_at,
    begin_of,
    copied,
    located,
    placed,
)
from implicit_conv.kernels.cpu.runtime.torch_calls import FUNCTIONS as TORCH_FUNCTIONS
from implicit_conv.kernels.cpu.runtime.torch_calls import TorchCalls
from implicit_conv.kernels.cpu.runtime.xla import Buffer, Target
from implicit_conv.operators.plan import Plan
from implicit_conv.settings import current

Views: TypeAlias = tuple[Array, Array, Array]
__all__ = [
    "TORCH_FUNCTIONS",
    "Buffer",
    "Convolution",
    "Enlarged",
    "Joined",
    "Made",
    "Operation",
    "Part",
    "Pipeline",
    "Product",
    "Program",
    "Sum",
    "Target",
    "TorchCalls",
    "Views",
    "Windows",
    "buffer_arrays",
    "compiled",
    "differing",
    "make_words",
    "offset_of",
    "repeat",
]


def buffer_arrays(buffers: Sequence[Buffer]) -> Views:
    """Placed arrays for the contiguous buffers of a call, of which the last one is the result."""
    arrays = []
    for place, buffer in zip((X, W, Y), buffers, strict=True):
        dtype = numpy_dtype(buffer.dtype)
        strides = [
            dtype.itemsize * math.prod(buffer.shape[axis + 1 :])
            for axis in range(len(buffer.shape))
        ]
        arrays.append(placed(place, tuple(buffer.shape), dtype, tuple(strides)))
    x, w, y = arrays
    return x, w, y


def make_words(plan: Plan, parts: Sequence[Views], *, copies_filter: bool = True) -> Words:
    """The program of a plan of two arrays, which runs for each of `parts`: views of placed arrays,
    all with the same strides.

    Raises
    ------
    PlanError
        No method takes arrays of these strides, or the call takes Python, or, unless it
        `copies_filter`, a copy of the filter.
    """
    engine: Any = plan.engine
    if engine.out_dtype != engine.y_dtype:
        raise PlanError("the result takes more than one call")
    room, first = Room(), parts[0]
    own = engine.steps(Arrays(*first), room, biased=False, scaled=False)
    copies = (isinstance(step, Copied) and _is_filter(step.source) for step in own)
    if not copies_filter and any(copies):
        raise PlanError("the filter is copied")
    found = list[Step]()
    for part in parts:
        by = {
            located(address_of(here))[0]: address_of(here) - address_of(there)
            for here, there in zip(part, first, strict=True)
        }
        found += [step.moved(by) for step in own]
    words = Program(found, room).words
    if words is None:
        raise PlanError("the call takes Python")
    return words


class Operation(Protocol):
    """What a part of a pipeline computes."""

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """The steps that compute y of images, placed arrays."""


class Convolution(NamedTuple):
    """A plan with its filter, which is an array or packed, and its epilogue. A second image is
    added.
    """

    plan: Plan
    w: Any
    bias: Array | None = None
    scale: Array | None = None

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        engine: Any = self.plan.engine
        if engine.out_dtype != engine.y_dtype:
            raise PlanError("the result takes more than one call")
        steps, after, residual = list[Step](), list[Step](), None
        bias, scale = engine.vectors(self.bias, self.scale)
        if len(images) > 1:
            residual = images[1]
            if scale is not None and not residual.flags.c_contiguous:
                residual = copied(residual, room, steps)
            if scale is not None and not y.flags.c_contiguous:
                result, y = y, room.array(y.shape, y.dtype)
                after.append(Copied(y, result))
        packed = not isinstance(self.w, np.ndarray)
        w, panels = (None, self.w.operand) if packed else (self.w, 0)
        arrays = Arrays(images[0], w, y, residual, panels)
        own = engine.steps(arrays, room, biased=bias is not None, scaled=scale is not None)
        return [*steps, *(step.fixed(bias, scale) for step in own), *after]


class Windows(NamedTuple):
    """Maxima of windows of an image with channels last, or sums over counts. Tables have for each
    row, or column, of the result the first pixel of its window, their number and their count.
    """

    rows: Table
    columns: Table
    largest: bool

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        (x,) = images
        return window_steps(x, y, *self, cpu_arch(current().num_threads), room)


class Product(NamedTuple):
    """The product of an image with channels last and a gate of one pixel."""

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        x, gate = images
        return product_steps(x, gate, y, cpu_arch(current().num_threads), room)


class Sum(NamedTuple):
    """The sum of two images with channels last."""

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        a, b = images
        return sum_steps(a, b, y, cpu_arch(current().num_threads), room)


class Joined(NamedTuple):
    """Images one after another along their channels, which are last."""

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        ends = [*accumulate(image.shape[-1] for image in images)]
        parts = zip(images, [0, *ends], ends, strict=False)
        return [Copied(image, y[..., begin:end]) for image, begin, end in parts]


class Enlarged(NamedTuple):
    """Each pixel so many times along rows and columns."""

    rows: int
    columns: int

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        (x,) = images
        every = product(range(self.rows), range(self.columns))
        return [Copied(x, y[:, i :: self.rows, j :: self.columns]) for i, j in every]


class Part(NamedTuple):
    """An operation of a pipeline, numbers of the images that it reads, and the form of its result:
    strides are in bytes.
    """

    operation: Operation
    images: Sequence[int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @property
    def bytes(self) -> int:
        """Those of a result in the room."""
        return int(self.dtype.itemsize) * math.prod(self.shape)


class Pipeline:
    """Operations as one program, in which each may read what earlier ones write.

    Images have numbers: those that a run is given, up to three, and then results. The last result
    is that of the program; all others are in its room.
    """

    def __init__(self) -> None:
        self._given = list[Array]()
        self._parts = list[Part]()

    def read(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> None:
        """Have runs take one more image; strides are in bytes."""
        place = (X, W, RESIDUAL)[len(self._given)]
        self._given.append(placed(place, shape, dtype, strides))

    def add(self, part: Part) -> None:
        """Have one more result."""
        self._parts.append(part)

    def program(self) -> Program:
        """The program of all parts.

        Raises
        ------
        PlanError
            No method takes arrays of these strides.
        """
        room, steps, images = Room(), list[Step](), [*self._given]
        for number, place in enumerate(self._places()):
            part = self._parts[number]
            at = begin_of(Y)
            if part is not self._parts[-1]:
                room.end = place
                at = room.take(part.bytes)
            images.append(array_at(at, part.shape, part.dtype, part.strides))
        end = room.end = round_up(room.size)
        for part, y in zip(self._parts, images[len(self._given) :], strict=True):
            steps += part.operation.steps([images[n] for n in part.images], y, room)
            room.end = end
        return Program(steps, room)

    def _places(self) -> list[int]:
        """Where in the room each result begins: at the first place that is free from when it is
        written until it is read for the last time. The last one is elsewhere.
        """
        first = len(self._given)
        until = {number: now for now, part in enumerate(self._parts) for number in part.images}
        used, places = list[tuple[int, int, int]](), list[int]()  # (begin, end, last use)
        for now, part in enumerate(self._parts):
            size = round_up(part.bytes)
            used = sorted(each for each in used if each[2] >= now)
            begin = 0
            for low, high, _ in used:
                if begin + size <= low:
                    break
                begin = max(begin, high)
            places.append(begin)
            used.append((begin, begin + size, until.get(first + now, now)))
        return places


def _is_filter(array: Array) -> bool:
    return located(address_of(array))[0] == W
