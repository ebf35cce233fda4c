"""Operators of a graph of Dynamo that compute each channel by itself, and stand between layers:
means, pooling, products with a gate of one pixel, images that are joined, enlarged or shuffled.
Images are those of one to three axes of pixels.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch.fx import Graph, Node
from torch.nn import functional

from implicit_conv.errors import PlanError
from implicit_conv.operators.operations import (
    Enlarged,
    Joined,
    Operation,
    Product,
    Shuffled,
    Sum,
    Windows,
)
from implicit_conv.torch.layers import is_like, named, sizes_of, value_of
from implicit_conv.torch.tensors import DTYPES

Shape: TypeAlias = tuple[int, ...]
POOL_NAMES = "input", "kernel_size", "stride", "padding"
MAXIMA = {  # functions, and the numbers of their axes
    functional.max_pool1d: 1,
    functional.max_pool2d: 2,
    functional.max_pool3d: 3,
    torch.max_pool1d: 1,
    torch.max_pool2d: 2,
    torch.max_pool3d: 3,
}
AVERAGES = {torch.avg_pool1d: 1, torch._C._nn.avg_pool2d: 2, torch._C._nn.avg_pool3d: 3}
MAXIMUM_DEFAULTS = {"dilation": 1, "ceil_mode": False, "return_indices": False}
AVERAGE_DEFAULTS = {"ceil_mode": False, "count_include_pad": True, "divisor_override": None}
ADAPTIVE = {
    torch.adaptive_avg_pool1d: 1,
    functional.adaptive_avg_pool2d: 2,
    functional.adaptive_avg_pool3d: 3,
    torch._C._nn.adaptive_avg_pool2d: 2,
    torch._C._nn.adaptive_avg_pool3d: 3,
}
MEANS = torch.mean, "mean"
PRODUCTS = operator.mul, torch.mul, "mul"
SUMS = operator.add, torch.add, "add"
JOINTS = torch.cat, torch.concat, torch.concatenate
SHUFFLES = {torch.pixel_shuffle: "upscale_factor", torch.pixel_unshuffle: "downscale_factor"}
SIZE_NAMES = "input", "size", "scale_factor", "mode"
NEAREST = {"mode": "nearest", "size": None, "scale_factor": None, "antialias": False}
UNSET = {"align_corners": None, "recompute_scale_factor": None}  # for whole factors without a use
# Larger factors are rare, and torch rounds their inverses.
FACTORS = range(1, 9)


class Axis(Protocol):
    """The windows along one axis of an image."""

    def table(self, extent: int) -> list[tuple[int, int, int]]:
        """See `Windows`; `extent` is that of the image."""


class Strided(NamedTuple):
    """Windows of one size, by torch's rules for `ceil_mode` and padding."""

    size: int
    stride: int
    padding: int
    ceil: bool
    counts_padding: bool = False

    def table(self, extent: int) -> list[tuple[int, int, int]]:
        """See `Axis`."""
        room = extent + 2 * self.padding - self.size
        count = (room + (self.stride - 1 if self.ceil else 0)) // self.stride + 1
        if self.ceil and (count - 1) * self.stride >= extent + self.padding:
            count -= 1
        found = []
        for begin in range(-self.padding, -self.padding + count * self.stride, self.stride):
            padded = min(begin + self.size, extent + self.padding) - begin
            low, high = max(begin, 0), min(begin + self.size, extent)
            found.append((low, high - low, padded if self.counts_padding else high - low))
        return found


class Even(NamedTuple):
    """So many windows, which cover an image evenly."""

    windows: int

    def table(self, extent: int) -> list[tuple[int, int, int]]:
        """See `Axis`."""
        begins = [n * extent // self.windows for n in range(self.windows)]
        ends = [-(-(n + 1) * extent // self.windows) for n in range(self.windows)]
        sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]
        return [*zip(begins, sizes, sizes, strict=True)]


@dataclass(repr=False)
class Channelwise:
    """One such operator.

    Attributes
    ----------
    result : node
    images : list of nodes
        The images that it reads.
    """

    result: Node
    images: list[Node]

    @property
    def nodes(self) -> list[Node]:
        """All that it computes."""
        return [self.result]

    @property
    def weights(self) -> list[Node | None]:
        """It has none."""
        return []

    def __repr__(self) -> str:
        """All but the names of its nodes."""
        return type(self).__name__

    def operation(self, shapes: Sequence[Shape]) -> tuple[Shape, Operation]:
        """The shape of the result for images of these shapes, and what computes it.

        Raises
        ------
        PlanError
            Nothing here does.
        """
        raise NotImplementedError


@dataclass(repr=False)
class Pool(Channelwise):
    """Means of windows, or their maxima if `largest`, which the windows of all `axes` make. A
    divisor of other than 0 takes the place of the counts of pixels.
    """

    axes: Sequence[Axis]
    largest: bool = False
    divisor: int = 0

    def __repr__(self) -> str:
        """See `Channelwise`."""
        return f"{self.axes} {self.largest} {self.divisor}"

    def operation(self, shapes: Sequence[Shape]) -> tuple[Shape, Operation]:
        """See `Channelwise`."""
        ((n, channels, *extents),) = shapes
        tables = [each.table(extent) for each, extent in zip(self.axes, extents, strict=True)]
        if not all(tables):
            raise PlanError("the result is empty")
        if self.divisor:
            counts = self.divisor, *[1] * (len(tables) - 1)
            tables = [
                [(begin, size, count) for begin, size, _ in table]
                for table, count in zip(tables, counts, strict=True)
            ]
        return (n, channels, *map(len, tables)), Windows(tables, self.largest)


class Gated(Channelwise):
    """The product of the first image with the second one, which has one pixel."""

    def operation(self, shapes: Sequence[Shape]) -> tuple[Shape, Operation]:
        """See `Channelwise`."""
        shape, gate = shapes
        if gate != _gate(shape):
            raise PlanError("a factor of an image is no gate of one pixel")
        return shape, Product()


class Added(Channelwise):
    """The sum of two images, of which neither is that of a convolution alone."""

    def operation(self, shapes: Sequence[Shape]) -> tuple[Shape, Operation]:
        """See `Channelwise`."""
        if shapes[0] != shapes[1]:
            raise PlanError("images of several sizes cannot be added")
        return shapes[0], Sum()


class Join(Channelwise):
    """Images of one size, whose channels follow each other."""

    def operation(self, shapes: Sequence[Shape]) -> tuple[Shape, Operation]:
        """See `Channelwise`."""
        n, _, *extents = shapes[0]
        if any((each[0], *each[2:]) != (n, *extents) for each in shapes):
            raise PlanError("images of several sizes cannot be joined")
        return (n, sum(each[1] for each in shapes), *extents), Joined()


@dataclass(repr=False)
class Enlargement(Channelwise):
    """Each pixel several times along each axis."""

    factors: tuple[int, ...]

    def __repr__(self) -> str:
        """See `Channelwise`."""
        return f"Enlargement {self.factors}"

    def operation(self, shapes: Sequence[Shape]) -> tuple[Shape, Operation]:
        """See `Channelwise`."""
        ((n, channels, *extents),) = shapes
        sizes = [size * factor for size, factor in zip(extents, self.factors, strict=True)]
        return (n, channels, *sizes), Enlarged(self.factors)


@dataclass(repr=False)
class Shuffle(Channelwise):
    """Groups of channels as pixels of a square with sides of `factor`, or pixels of such squares as
    channels if it `gathers` them.
    """

    factor: int
    gathers: bool

    def __repr__(self) -> str:
        """See `Channelwise`."""
        return f"Shuffle {self.factor} {self.gathers}"

    def operation(self, shapes: Sequence[Shape]) -> tuple[Shape, Operation]:
        """See `Channelwise`."""
        ((n, channels, height, width),), side = shapes, self.factor
        if self.gathers:
            shape = n, channels * side**2, height // side, width // side
        else:
            shape = n, channels // side**2, height * side, width * side
        return shape, Shuffled(side, self.gathers)


def channelwise(graph: Graph) -> list[Channelwise]:
    """Those of a graph, in its order."""
    kinds = _pool, _mean, _product, _sum, _join, _enlargement, _shuffle
    found = (of(node) for node in graph.nodes if _is_image(node) for of in kinds)
    return [each for each in found if each is not None and _are_alike(each)]


def _is_image(node: Any) -> bool:
    """Whether a value is a dense image on the CPU."""
    value = value_of(node)
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in DTYPES
        and value.dim() in (3, 4, 5)
        and (value.device.type, value.layout) == ("cpu", torch.strided)
    )


def _are_alike(found: Channelwise) -> bool:
    """Whether an operator reads images of the dtype of its result, and with its axes."""
    y = value_of(found.result)
    values = [value_of(each) for each in found.images if _is_image(each)]
    alike = all((x.dtype, x.dim()) == (y.dtype, y.dim()) for x in values)
    return alike and len(values) == len(found.images)


def _rank(node: Node) -> int:
    """The number of the axes of pixels."""
    return int(value_of(node).dim()) - 2


def _gate(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of a gate of images of this one."""
    return (*shape[:2], *[1] * (len(shape) - 2))


def _pool(node: Node) -> Pool | None:
    """A maximum or a mean of windows of one size, or of windows that cover an image evenly."""
    rank, largest = _rank(node), node.target in MAXIMA
    if ADAPTIVE.get(node.target) == rank:
        given = named(node, ("input", "output_size"), {})
        counts = sizes_of(given["output_size"], rank) if given else None
        if given is None or counts is None or min(counts) < 1:
            return None
        return Pool(node, [given["input"]], [*map(Even, counts)])
    if (MAXIMA if largest else AVERAGES).get(node.target) != rank:
        return None
    defaults = MAXIMUM_DEFAULTS if largest else AVERAGE_DEFAULTS
    given = named(node, (*POOL_NAMES, *defaults), {"stride": None, "padding": 0, **defaults})
    if (
        given is None
        or given.get("return_indices")
        or sizes_of(given.get("dilation", 1), rank) != (1,) * rank
    ):
        return None
    stride = given["stride"] or given["kernel_size"]
    sizes = given["kernel_size"], stride, given["padding"]
    every: Any = [sizes_of(each, rank) for each in sizes]
    divisor = given.get("divisor_override") or 0
    ceil, counts_padding = given["ceil_mode"], given.get("count_include_pad", False)
    if None in every or type(divisor) is not int or {type(ceil), type(counts_padding)} != {bool}:
        return None
    words = {"ceil": ceil, "counts_padding": counts_padding}
    axes = [Strided(*each, **words) for each in zip(*every, strict=True)]
    return Pool(node, [given["input"]], axes, largest, divisor)


def _mean(node: Node) -> Pool | None:
    """The mean of all pixels, which stay axes."""
    if node.target not in MEANS:
        return None
    given = named(node, ("input", "dim", "keepdim"), {"dim": None, "keepdim": False})
    axes, rank = () if given is None else given["dim"], _rank(node)
    axes = axes if isinstance(axes, (tuple, list)) else [axes]
    pixels = sorted(axis % (rank + 2) for axis in axes if type(axis) is int)
    if given is None or pixels != [*range(2, rank + 2)]:
        return None
    return Pool(node, [given["input"]], [Even(1)] * rank)


def _product(node: Node) -> Gated | None:
    """A product, of which one factor has the shape of the result, and one a single pixel."""
    if node.target not in PRODUCTS or len(node.args) != 2 or node.kwargs:
        return None
    for x, gate in (node.args, node.args[::-1]):
        if x is not gate and _is_image(x) and _is_image(gate) and is_like(x, node):
            sizes = [*map(str, value_of(gate).shape)]
            if sizes == [*map(str, _gate(value_of(x).shape))]:
                return Gated(node, [x, gate])
    return None


def _sum(node: Node) -> Added | None:
    """A sum of two images of the shape of the result."""
    if node.target not in SUMS or len(node.args) != 2 or node.kwargs:
        return None
    alike = all(_is_image(each) and is_like(each, node) for each in node.args)
    return Added(node, [*node.args]) if alike else None


def _join(node: Node) -> Join | None:
    """Images along the axis of channels."""
    given = named(node, ("tensors", "dim"), {"dim": 0}) if node.target in JOINTS else None
    if given is None or not isinstance(given["tensors"], (tuple, list)):
        return None
    channels = 1, -1 - _rank(node)
    return Join(node, [*given["tensors"]]) if given["dim"] in channels else None


def _enlargement(node: Node) -> Enlargement | None:
    """The nearest pixels of an image that is larger by whole factors."""
    if node.target is not functional.interpolate:
        return None
    given = named(node, (*SIZE_NAMES, *UNSET), {**NEAREST, **UNSET})
    if given is None or given["mode"] not in ("nearest", "nearest-exact") or given["antialias"]:
        return None
    factors, rank = given["scale_factor"], _rank(node)
    if factors is None:
        sizes, extents = sizes_of(given["size"], rank), value_of(given["input"]).shape[2:]
        if sizes is None or {*map(type, extents)} != {int}:
            return None
        factors = [size / extent for size, extent in zip(sizes, extents, strict=True)]
    every = tuple(factors) if isinstance(factors, (tuple, list)) else (factors,) * rank
    if len(every) != rank or not all(each in FACTORS for each in every):
        return None
    return Enlargement(node, [given["input"]], tuple(map(int, every)))


def _shuffle(node: Node) -> Shuffle | None:
    """Channels as pixels, or pixels as channels."""
    if node.target not in SHUFFLES or _rank(node) != 2:
        return None
    name = SHUFFLES[node.target]
    given = named(node, ("input", name), {})
    if given is None or given[name] not in FACTORS:
        return None
    return Shuffle(node, [given["input"]], given[name], node.target is torch.pixel_unshuffle)
