"""Tensor maps as values: what cuTensorMapEncodeIm2col and cuTensorMapEncodeIm2colWide encode.

Everything is row-major, (n, [d,] h, w, c) and ([d,] h, w). A map that the hardware would refuse
cannot be constructed: the constructor raises a `TensorMapError` that lists every broken rule.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from implicit_conv.kernels import walk as steps
from implicit_conv.tma.maps.driver import DATA_TYPES, map_arguments
from implicit_conv.tma.maps.elements import element_name, element_type, is_floating
from implicit_conv.tma.maps.limits import (
    Description,
    Finding,
    Start,
    TensorMapError,
    integer,
    integers,
    rename,
    with_rows,
)
from implicit_conv.tma.maps.ptx import INFIXES, instruction, mode_of, mode_words
from implicit_conv.tma.maps.rules import (
    hint,
    map_findings,
    reduction_findings,
    start_findings,
    store_findings,
)

Operands = tuple[Sequence[int], Sequence[int] | None, int, int]  # as `walk` takes them
WIDE_MODES = ("w", "w128")


@dataclass(frozen=True, kw_only=True)
class TensorMap(ABC):
    """The common base of all kinds of map: bytes of a row, checks, the driver's arguments."""

    shape: tuple[int, ...]
    dtype: Any
    swizzle: str = "none"
    oob_fill: str = "zero"
    strides: Sequence[int] | None = None
    address: int | None = None
    interleave: str = "none"
    mode: str = field(init=False, repr=False)
    element: str = field(init=False, repr=False)

    @property
    def rank(self) -> int:
        """Number of dimensions of the tensor, including n and c."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.dtype.itemsize)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of shared memory: those that a pixel delivers."""
        return self.description.channels * self.itemsize

    @property
    def pitch(self) -> int:
        """Bytes from one shared-memory row to the next: a row, or a wider swizzle span."""
        return max(self.row_bytes, self.description.span)

    @property
    @abstractmethod
    def description(self) -> Description:
        """The map in the form that the rules check."""

    @property
    def columns(self) -> list[int]:
        """Which of the positions (n, d, h, w) of a simulated walk the tensor has."""
        return [0, *range(6 - self.rank, 4)]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the driver call that encodes this map, by the names of cuda.h.

        Arrays are fastest-first. `function` is the name of the call; a type that the driver lacks
        is copied as unsigned integers.
        """
        return map_arguments(self.description)

    def encode(self, address: int | None = None) -> bytes:
        """The 128 bytes of the tensor map, from the driver through cuda-bindings.

        Parameters
        ----------
        address : int, optional
            Of the tensor in global memory; by default, the address of the map.

        Raises
        ------
        ValueError
            The address is missing or misaligned.
        DriverError
            The bindings or the driver are missing, or the driver refuses the map.
        """
        from implicit_conv.tma.maps.encoding import encode

        map = self if address is None else replace(self, address=address)
        return encode(map.arguments)

    def ptx(
        self,
        coords: Sequence[int],
        offsets: Sequence[int] | None = None,
        w_halo: int = 0,
        w_offset: int = 0,
        *,
        dst: str = "dst",
        direction: str = "load",
        reduction: str = "add",
    ) -> str:
        """The instruction that issues a copy.

        The destination of a load is in ``.shared::cta``, which needs PTX ISA 8.6. Older
        assemblers take ``.shared::cluster``, which means the same in a cluster of one block.

        Parameters
        ----------
        coords, offsets, w_halo, w_offset
            As in `walk`.
        dst : str
            The operand in shared memory: the destination of a load, the source of a store.
        direction : {"load", "multicast", "prefetch", "store", "reduce"}
            "multicast" loads into the blocks of a cluster that the operand ctaMask names.
        reduction : {"add", "min", "max", "inc", "dec", "and", "or", "xor"}
            What "reduce" does with each element.

        Raises
        ------
        TensorMapError
            The copy breaks rules; the message lists all (a ValueError).
        ValueError
            The direction or the reduction is unknown.
        """
        self.start(coords, offsets, w_halo, w_offset, direction=direction)
        operands = (coords, offsets, w_halo, w_offset)
        text = instruction(self.mode, *operands, dst=dst, direction=direction, reduction=reduction)
        if direction == "reduce":
            m = self.description
            _raise_errors("a reduction", m, reduction_findings(m, reduction))
        return text

    def cpp(self, offsets: Sequence[int] | None = None, w_halo: int = 0, w_offset: int = 0) -> str:
        """CUDA C++ of the call that encodes this map, and of a minimal kernel that loads by it.

        Operands are those of the kernel's copy, as in `walk`; its start is an argument of the
        kernel. A TensorMapError lists all rules that they break; a ValueError says which maps no
        kernel is written for.
        """
        from implicit_conv.tma.maps.cpp import source

        start = self.start(self.first, offsets, w_halo, w_offset)
        return source(self.description, self.arguments, start, self.rows(w_halo))

    @property
    def first(self) -> tuple[int, ...]:
        """The start of a copy at the lower corner of the box, in image 0 and channel 0."""
        lower = self.description.lower
        return (*(0,) * (self.rank - 1 - len(lower)), *lower, 0)

    def _repr_svg_(self) -> str | None:
        """What a notebook shows: the copy from `first`."""
        return drawn(self, [(self.first, None, 0, 0)])

    def rows(self, w_halo: int = 0) -> int:
        """Shared-memory rows that one load fills, including the halo."""
        if self.mode == "w128":
            return steps.w128_rows(w_halo)
        return self.description.pixels + w_halo

    def start(
        self,
        coords: Sequence[int],
        offsets: Sequence[int] | None = None,
        w_halo: int = 0,
        w_offset: int = 0,
        dst: int = 0,
        direction: str = "load",
    ) -> Start:
        """The checked start of a copy; a TensorMapError lists every rule that it breaks."""
        start = Start.of(coords, offsets, w_halo, w_offset, dst)
        found, what = start_findings(self.description, start), "load"
        if direction in ("store", "reduce"):
            found, what = found + store_findings(self.description, start), direction
        _raise_errors(f"a {what} in mode {INFIXES[self.mode]}", self.description, found)
        return start

    def _normalise(self, **fields: Any) -> None:
        """Convert the fields of a frozen instance, then check the map."""
        fields["shape"] = integers("shape", self.shape)
        fields["dtype"] = element_type(self.dtype)
        fields["element"] = element_name(fields["dtype"])
        if self.strides is not None:
            fields["strides"] = integers("strides", self.strides)
        if self.address is not None:
            fields["address"] = integer("address", self.address)
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        m = self.description
        _raise_errors(type(self).__name__, m, map_findings(m))


@dataclass(frozen=True, kw_only=True)
class Im2colMap(TensorMap):
    """A tensor map of mode im2col.

    Parameters
    ----------
    shape : sequence of int
        (N, [D, [H,]] W, C), as in ``x.shape`` of a channels-last array.
    dtype : dtype-like
        Elements of 1, 2, 4 or 8 bytes, native byte order; also by name, as "bfloat16", "tfloat32".
    lower_corner, upper_corner : sequence of int
        Corners of the box, ([d,] h, w): it is [lower, size - 1 + upper] in each dimension.
    traversal_stride : sequence of int, or int for all
        Step of the walk in each dimension, ([d,] h, w); 1 by default.
    pixels_per_column : int
        Rows of a load.
    channels_per_pixel : int
        Elements of a row.
    swizzle : {"none", "32B", "64B", "128B"}
        Or a variant of 128B: "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B".
    oob_fill : {"zero", "nan"}
        The value of pixels and channels outside the tensor.
    strides : sequence of int, optional
        Byte strides of n, [d,] h, w; packed if omitted.
    address : int, optional
        Byte address of the tensor in global memory; its alignment is checked.
    interleave : {"none", "16B", "32B"}
        Shared memory is simulated for rows of one slice of 16 or 32 bytes.

    Raises
    ------
    TensorMapError
        The map breaks rules; the message lists each with field, value and range (a ValueError).
    TypeError
        An argument is not an integer, or not a sequence of integers.

    Examples
    --------
    A 3 x 3 filter with padding 1, which walks as many pixels as the image has:

    >>> from implicit_conv import tma
    >>> m = tma.Im2colMap(
    ...     shape=(2, 4, 4, 64), dtype="float32", lower_corner=(-1, -1),
    ...     upper_corner=(-1, -1), pixels_per_column=16, channels_per_pixel=32
    ... )
    >>> tma.walk(m, (0, -1, -1, 0), offsets=(1, 1)).coordinates[:3].tolist()
    [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    >>> m.arguments["pixelBoxLowerCorner"]
    (-1, -1)
    """

    lower_corner: Sequence[int]
    upper_corner: Sequence[int]
    traversal_stride: Sequence[int] | int = 1
    pixels_per_column: int
    channels_per_pixel: int
    mode: str = field(default="im2col", init=False, repr=False)

    def __post_init__(self) -> None:
        step = self.traversal_stride
        if not isinstance(step, Sequence):
            spatial = len(integers("shape", self.shape)) - 2
            step = (integer("traversal_stride", step),) * spatial
        self._normalise(
            pixels_per_column=integer("pixels_per_column", self.pixels_per_column),
            channels_per_pixel=integer("channels_per_pixel", self.channels_per_pixel),
            lower_corner=integers("lower_corner", self.lower_corner),
            upper_corner=integers("upper_corner", self.upper_corner),
            traversal_stride=integers("traversal_stride", step),
        )

    @functools.cached_property
    def description(self) -> Description:
        """The map in the form that the rules check."""
        assert isinstance(self.traversal_stride, tuple)
        return describe(
            self, tuple(self.lower_corner), tuple(self.upper_corner), self.traversal_stride
        )


@dataclass(frozen=True, kw_only=True)
class Im2colWideMap(TensorMap):
    """A tensor map of mode im2col::w or im2col::w::128.

    Parameters
    ----------
    shape, dtype, oob_fill, strides, address
        As in `Im2colMap`, whose errors this class raises too.
    lower_corner_w, upper_corner_w : int
        The box of W is [lower, W - 1 + upper]. The walk does not move along depth and height.
    traversal_stride : int
        Step of the walk along W; 1 by default.
    pixels_per_column : int
        Rows of a load without its halo, by default 128; mode "w128" ignores it and loads 128.
    channels_per_pixel : int
        Elements of a row; their bytes must fit in the swizzle span.
    swizzle : {"64B", "128B", "128B_ATOM_32B"}
    mode : {"im2col::w", "im2col::w::128"}, or {"w", "w128"} in short
        The modes differ in where they place the halo rows.

    Examples
    --------
    A row of 128 pixels and a halo of 2, which three taps read as three shifted views:

    >>> from implicit_conv import tma
    >>> m = tma.Im2colWideMap(
    ...     shape=(2, 4, 256, 64), dtype="bfloat16", lower_corner_w=-1,
    ...     upper_corner_w=-1, channels_per_pixel=64
    ... )
    >>> tma.walk(m, (0, 0, -1, 0), w_halo=2).coordinates[[0, 1, 129]].tolist()
    [[0, 0, -1], [0, 0, 0], [0, 0, 128]]
    """

    lower_corner_w: int
    upper_corner_w: int
    traversal_stride: int = 1
    pixels_per_column: int = steps.W128_PIXELS
    channels_per_pixel: int
    swizzle: str = "128B"
    mode: str = "w"
    interleave: str = field(default="none", init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", mode_of(self.mode))
        if self.mode not in WIDE_MODES:
            allowed = f"must be one of {mode_words(WIDE_MODES)}"
            finding = Finding("mode", self.mode, allowed, "PTX ISA 5.5.5")
            raise TensorMapError(type(self).__name__, [finding])
        corners = ("lower_corner_w", "upper_corner_w")
        names = (*corners, "traversal_stride", "pixels_per_column", "channels_per_pixel")
        self._normalise(**{name: integer(name, getattr(self, name)) for name in names})

    @functools.cached_property
    def description(self) -> Description:
        """The map in the form that the rules check."""
        corners = (self.lower_corner_w,), (self.upper_corner_w,)
        return describe(self, *corners, (self.traversal_stride,))


def describe(
    m: TensorMap,
    lower: tuple[int, ...],
    upper: tuple[int, ...],
    step: tuple[int, ...],
    box: tuple[int, ...] = (),
) -> Description:
    """The description of a map with these corners, steps and box."""
    name = m.element.upper()
    described = Description(
        mode=m.mode,
        shape=m.shape,
        itemsize=m.itemsize,
        floating=is_floating(m.dtype),
        lower=lower,
        upper=upper,
        step=step,
        pixels=getattr(m, "pixels_per_column", 1),
        channels=box[-1] if box else getattr(m, "channels_per_pixel", 1),
        swizzle=m.swizzle,
        oob_fill=m.oob_fill,
        interleave=m.interleave,
        strides=None if m.strides is None else tuple(m.strides),
        address=m.address,
        box=box,
        element=name if name in DATA_TYPES else f"UINT{8 * m.itemsize}",
    )
    return with_rows(described) if box else described


def drawn(map: TensorMap, copies: Sequence[Operands], **more: Any) -> str | None:
    """Copies by one map from one start as an SVG element, for notebooks.

    `more` is passed to `draw`. None, for which a notebook shows the text instead: matplotlib is
    missing, or the copy is too large to be drawn.
    """
    from implicit_conv.tma.show.drawing import draw

    coords, offsets, *_ = copies[0]
    buffers = [(w_halo, w_offset) for _, _, w_halo, w_offset in copies]
    with TemporaryDirectory() as folder:
        path = Path(folder, "copy.svg")
        try:
            draw(map, coords, offsets, buffers=buffers, path=path, **more)
        except (ImportError, ValueError):
            return None
        svg = path.read_text(encoding="utf-8")
    return svg[svg.index("<svg") :]


def _raise_errors(what: str, m: Description, findings: Sequence[Finding]) -> None:
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        hinted = [replace(finding, hint=hint(m, finding)) for finding in errors]
        raise TensorMapError(what, rename(hinted, m.field), m)
