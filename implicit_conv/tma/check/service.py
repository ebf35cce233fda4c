"""Which taps and output pixels of a convolution the loads of a kernel serve, and what is missing.

Tap r of an axis reads, for output position p, the pixel p * stride - pad + r * dilation. A load by
an im2col map serves a tap if its rows are consecutive GEMM rows (n, [z,] p, q) of that tap, which
its offsets name; where stride phases of a dgrad walk alike, it serves each of them. Loads by other
maps serve each tap and output whose pixel is among their rows; which views of the rows the kernel
reads is not known.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from implicit_conv.problem.problem import Problem
from implicit_conv.tma.check.expect import nearest
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.run.lowering import Lowering
from implicit_conv.tma.run.lowering_choice import candidates
from implicit_conv.tma.run.simulate import Walk

Positions = npt.NDArray[np.int64]
Tap = tuple[int, ...]


class Service(NamedTuple):
    """Output pixels that a load serves for one tap.

    `tap` is ([t, [r,]] s) of the filter, `pixels` has a row (n, [z,] p, q) for each output.
    """

    tap: Tap
    pixels: Positions

    def __str__(self) -> str:
        return f"tap {self.tap}: {len(self.pixels)} from {tuple(self.pixels[0].tolist())}"


class Missing(NamedTuple):
    """Output pixels whose input for one tap no load has delivered, though it is in the tensor."""

    tap: Tap
    pixels: Positions

    def __str__(self) -> str:
        first = tuple(self.pixels[0].tolist())
        return f"tap {self.tap}: the input of {len(self.pixels)} output pixels, such as {first}"


class Coverage:
    """What of a convolution's input the loads of a kernel have delivered, over all blocks."""

    def __init__(self, problem: Problem, operator: str) -> None:
        found = candidates(problem, "im2col", operator)
        self.lowerings = tuple(lowering for lowering in found if lowering.mode == "im2col")
        if not self.lowerings:
            raise ValueError(f"no tap of {problem} reaches dx: there is nothing to load")
        self.loaded: dict[tuple[int, Tap], npt.NDArray[np.bool_]] = {
            (number, tap): np.zeros((_outputs(lowering), lowering.channels), bool)
            for number, lowering in enumerate(self.lowerings)
            for tap in lowering.taps()
        }

    def serves(self, map: TensorMap) -> bool:
        """Whether loads by the map can serve the problem: it has the walked tensor's shape."""
        return map.shape == self.lowerings[0].shape

    @property
    def sums(self) -> bool:
        """Whether outputs are sums over taps of groups of all channels."""
        return self.lowerings[0].operator != "wgrad" and self.lowerings[0].groups == 1

    def walks(self, map: TensorMap) -> bool:
        """Whether the map can be compared with the walk of the problem."""
        return self.serves(map) and map.mode != "tiled"

    def add(
        self, map: TensorMap, walk: Walk, channel: int, offsets: Tap | None
    ) -> tuple[Service, ...]:
        """Note a load that is complete; what it serves."""
        strict = map.mode == "im2col"
        found = []
        for number in self._alike(map) if strict else range(len(self.lowerings)):
            lowering = self.lowerings[number]
            taps = list(lowering.taps())
            served = {tap: _served(lowering, tap, walk.coordinates, strict) for tap in taps}
            named = _named(lowering, offsets) if strict else None
            if named in served and served[named].size:
                taps = [named]
            for tap in taps:
                if served[tap].size:
                    channels = slice(max(channel, 0), channel + map.description.channels)
                    self.loaded[number, tap][served[tap], channels] = True
                    found.append(_service(lowering, tap, served[tap]))
        return tuple(found)

    def _alike(self, map: TensorMap) -> list[int]:
        """The stride phases of a dgrad whose walk is most like the map's; several may be equal."""
        counts = [len(nearest(map.description, (one,))[0]) for one in self.lowerings]
        return [number for number, count in enumerate(counts) if count == min(counts)]

    def missing(self) -> tuple[Missing, ...]:
        """What no load has delivered, though it lies in the tensor, tap by tap."""
        found = []
        for (number, tap), loaded in self.loaded.items():
            lowering = self.lowerings[number]
            lacking = np.flatnonzero(_inside(lowering, tap) & ~loaded.all(axis=1))
            if lacking.size:
                found.append(Missing(*_service(lowering, tap, lacking)))
        return tuple(found)


def _outputs(lowering: Lowering) -> int:
    return lowering.N * math.prod(lowering.out)


def _service(lowering: Lowering, tap: Tap, outputs: Positions) -> Service:
    """The service for a tap of the walk and numbers of outputs, in the problem's own terms."""
    taps = tuple(a.filter_tap(r) for a, r in zip(lowering.axes, tap, strict=True))
    positions = np.stack(np.unravel_index(outputs, (lowering.N, *lowering.out)), axis=1)
    return Service(taps, lowering.pixels(positions))


def _named(lowering: Lowering, offsets: Tap | None) -> Any:
    """The tap of the walk that im2col offsets name, or None."""
    if offsets is None:
        return (0,) * len(lowering.axes)
    pairs = list(zip(offsets, lowering.axes, strict=True))
    if any(offset % axis.dilation for offset, axis in pairs):
        return None
    return tuple(offset // axis.dilation for offset, axis in pairs)


def _served(lowering: Lowering, tap: Tap, coordinates: Positions, strict: bool) -> Positions:
    """The numbers of the outputs whose input for a tap are the pixels (n, [d,] [h,] w)."""
    images, total = coordinates[:, 0], _outputs(lowering)
    valid = (images >= 0) & (images < lowering.N)
    number = images
    for axis, r, x in zip(lowering.axes, tap, coordinates[:, 1:].T, strict=True):
        at, rest = np.divmod(x - axis.lower - r * axis.dilation, axis.stride)
        valid = valid & (rest == 0) & (at >= 0) & (at < axis.out)
        number = number * axis.out + at
    if strict and valid.size and valid[0]:
        rows = number[0] + np.arange(len(number))
        kept = rows < total
        if (valid == kept).all() and (number[kept] == rows[kept]).all():
            return np.asarray(rows[kept])
    return np.asarray(number[valid & (not strict)])


def _inside(lowering: Lowering, tap: Tap) -> npt.NDArray[np.bool_]:
    """Whether the input of each output for a tap lies in the tensor."""
    inside = np.ones((lowering.N, *(1 for _ in lowering.axes)), bool)
    for number, (axis, r) in enumerate(zip(lowering.axes, tap, strict=True)):
        at = np.arange(axis.out) * axis.stride + axis.lower + r * axis.dilation
        shape = [1] * (len(lowering.axes) + 1)
        shape[number + 1] = axis.out
        inside = inside & ((at >= 0) & (at < axis.size)).reshape(shape)
    return inside.reshape(-1)
