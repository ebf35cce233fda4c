"""What the parts of a pipeline compute: convolutions, and what stands between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, product
from typing import Any, NamedTuple, Protocol

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.channelwise import Table, product_steps, sum_steps, window_steps
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.program import Copied, Room, Step, copied
from implicit_conv.operators.plan import Plan
from implicit_conv.settings import current

# Pixels that become channels: one copy in the order of the result takes 0.2 to 1.4 of the time of a
# copy for each place in a square, and with 32 and more channels 0.8 to 5.5 times as long (Zen 4,
# one thread, 2026-11).
FEW_CHANNELS = 8


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
    """Maxima of windows of an image with channels last, or sums over counts. The table of an axis
    has for each pixel of the result along it the first pixel of its window, their number and their
    count.
    """

    tables: Sequence[Table]
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
    """Each pixel so many times along each axis."""

    factors: Sequence[int]

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        (x,) = images
        return [Copied(x, part) for part in _interleaved(y, self.factors)]


class Shuffled(NamedTuple):
    """Groups of `factor` squared channels as pixels of a square, or such pixels as channels if it
    `gathers` them. Channels are last.
    """

    factor: int
    gathers: bool

    def steps(self, images: Sequence[Array], y: Array, room: Room) -> list[Step]:
        """See `Operation`."""
        (x,), side = images, self.factor
        if self.gathers and x.shape[-1] > FEW_CHANNELS:
            parts = enumerate(_interleaved(x, (side, side)))
            return [Copied(part, y[..., number :: side * side]) for number, part in parts]
        few, many = (x, y) if self.gathers else (y, x)
        n, rows, columns, channels = many.shape
        squares = many.reshape(n, rows, columns, channels // side**2, side, side)
        squares = squares.transpose(0, 1, 4, 2, 5, 3)
        pixels = few.reshape(squares.shape)
        return [Copied(pixels, squares) if self.gathers else Copied(squares, pixels)]


def _interleaved(image: Array, factors: Sequence[int]) -> list[Array]:
    """The pixels of each place of blocks, which have so many along each axis."""
    parts = [[slice(first, None, step) for first in range(step)] for step in factors]
    return [image[(slice(None), *each)] for each in product(*parts)]


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
