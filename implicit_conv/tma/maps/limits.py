"""The limits of tensor maps and loads, and the types that describe a map, a load and a finding.

`rules` checks the limits. Each finding names its source in the PTX ISA or the driver API.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from implicit_conv.ptx.errors import shortened
from implicit_conv.tma.maps.swizzles import SWIZZLES

ALLOWED_SWIZZLES = {  # by mode
    "tiled": tuple(SWIZZLES),
    "im2col": tuple(SWIZZLES),
    "w": ("64B", "128B", "128B_ATOM_32B"),
    "w128": ("64B", "128B", "128B_ATOM_32B"),
}
INTERLEAVES = {"none": 16, "16B": 16, "32B": 32}  # address and strides are multiples of it, bytes
FILLS = ("zero", "nan")
RANKS = (3, 4, 5)  # of tensors that im2col maps describe
TILED_RANKS = (1, 2, 3, 4, 5)
BOX_MAX = 256  # elements of a tiled map's box along one dimension
CORNER_BITS = {3: 16, 4: 8, 5: 5}  # rank of the tensor: bits of a signed im2col corner
OFFSET_BITS = {3: 16, 4: 8, 5: 5}  # rank of the tensor: bits of an unsigned im2col offset
HALO_END = {"w": 512, "w128": 32}  # w_halo must be below it
W_OFFSET_END = 32  # w_offset must be below it
PIXELS_MAX, CHANNELS_MAX, STEP_MAX = 1024, 256, 8
SIZE_MAX = 1 << 32  # elements along one dimension
SIZE_MAX_NEW = 1 << 31  # the same in cuda.h 13.5
PACKED_UNIT = 128  # elements of 4 and 6 bits that are copied together, 16 bytes for each 16
PACKED_SWIZZLES = {  # of the types that have them
    "16U4_ALIGN16B": ("none", "128B", "128B_ATOM_32B"),
    "16U6_ALIGN16B": ("none", "128B", "128B_ATOM_32B", "128B_ATOM_64B"),
}
STRIDE_END = 1 << 40  # a stride must be below it, bytes
ITEMSIZES = (1, 2, 4, 8)  # bytes of an element
COORDINATE_BITS = 32
SMEM_ADDRESS_BITS = 32
SMEM_ALIGNMENT = 128  # of the destination of a copy, bytes
ADDRESS_BITS = 64  # of global memory
WIDE_FIELDS = {
    "lower_corner[w]": "lower_corner_w",
    "upper_corner[w]": "upper_corner_w",
    "traversal_stride[w]": "traversal_stride",
}

FUNCTIONS = {  # mode: the driver's call that encodes such a map
    "tiled": "cuTensorMapEncodeTiled",
    "im2col": "cuTensorMapEncodeIm2col",
    "w": "cuTensorMapEncodeIm2colWide",
    "w128": "cuTensorMapEncodeIm2colWide",
}

CORNERS = "PTX ISA 5.5.4.1 (Bounding Box)"
WIDE = "PTX ISA 5.5.5 (im2col::w)"
OFFSETS = "PTX ISA 5.5.4.1 (im2col offsets)"
HALO = "PTX ISA 9.7.9.25.5 (im2colInfo)"
COORDS = "PTX ISA 9.7.9.25.5 (tensorCoords)"
STORE = "PTX ISA 9.7.9.25.5.1 (restrictions on .global.shared::cta)"
TARGET = "PTX ISA 9.7.9.25.5 (target ISA notes)"
REDUCE = "PTX ISA 9.7.9.25.5.2 (types of cp.reduce.async.bulk.tensor)"
SMEM = "PTX ISA 9.7.9.25.5 (destination of a tensor copy)"


@dataclass(frozen=True)
class Finding:
    """A rule that a map or a load breaks, or a warning on something legal that looks wrong.

    Attributes
    ----------
    field : str
        The argument, with the names of the caller: ``upper_corner[w]``, ``pixelBoxUpperCorner[0]``.
    value : object
        Its value.
    allowed : str
        The rule, with its numbers.
    source : str
        Where the rule is written.
    hint : str
        What was probably meant, if the other arguments suggest it.
    severity : {"error", "warning"}
        An error is refused by the driver or the hardware. A warning is legal.
    fix : mapping or None
        Arguments and their new values, if the mistake can be undone: without the finding, and
        without an error that was not there before.
    """

    field: str
    value: Any
    allowed: str
    source: str
    hint: str = ""
    severity: str = "error"
    fix: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)

    def __str__(self) -> str:
        text = f"{self.field} = {self.value}: {self.allowed} [{self.source}]"
        return f"{text}; {self.hint}" if self.hint else text


class TensorMapError(ValueError):
    """A tensor map or a load breaks rules; `findings` lists all of them."""

    def __init__(
        self, what: str, findings: Sequence[Finding], description: Description | None = None
    ):
        self.findings = tuple(findings)
        self.description = description
        super().__init__("\n  ".join([f"{what} is refused:", *map(str, findings)]))


@dataclass(frozen=True)
class Description:
    """A tensor map as the user gave it, not yet checked: row-major, spatial tuples ([d,] h, w)."""

    mode: str  # tiled, im2col, w, w128
    shape: tuple[int, ...]
    itemsize: int  # bytes; 0 for elements of 4 or 6 bits, which are not modelled
    floating: bool
    lower: tuple[int, ...]  # of each spatial dimension; the wide modes have only W, tiled has none
    upper: tuple[int, ...]
    step: tuple[int, ...]  # as the corners; of a tiled map for each dimension of the tensor
    pixels: int
    channels: int
    swizzle: str
    oob_fill: str
    interleave: str
    strides: tuple[int, ...] | None
    address: int | None
    fastest_first: bool = False  # whether the user wrote arrays in the order of the driver
    box: tuple[int, ...] = ()  # elements of a tiled map's box along each dimension
    element: str = ""  # the driver's name of the type, as FLOAT16

    @property
    def function(self) -> str:
        """The driver's call that encodes the map."""
        return FUNCTIONS[self.mode]

    @property
    def unit_bytes(self) -> int:
        """Bytes of which the address and strides are multiples."""
        return 32 if self.element in PACKED_SWIZZLES else INTERLEAVES.get(self.interleave, 16)

    @property
    def driver(self) -> str:
        """The page of the documentation that has the limits of this kind of map."""
        return f"CUDA driver API, {self.function}"

    @property
    def modelled(self) -> bool:
        """Whether elements have a whole number of bytes, so that bytes can be counted."""
        return self.itemsize > 0

    @property
    def unit(self) -> int:
        """Elements in 16 bytes, the unit of a copy; at least one."""
        if self.element in PACKED_SWIZZLES:
            return PACKED_UNIT
        return max(1, 16 // max(1, self.itemsize))

    @property
    def span(self) -> int:
        """Bytes in a line that the swizzle permutes; 0 for no swizzle."""
        return SWIZZLES[self.swizzle].span if self.swizzle in SWIZZLES else 0

    @property
    def dims(self) -> str:
        """Letters of the dimensions of the tensor; numbers where a tiled map has no names."""
        return "01234"[: self.rank] if self.tiled else f"n{spatial_letters(self.rank)}c"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that maps of this mode have."""
        return TILED_RANKS if self.tiled else RANKS

    @property
    def tiled(self) -> bool:
        """Whether the map loads boxes instead of walking."""
        return self.mode == "tiled"

    @property
    def rank(self) -> int:
        """Number of dimensions of the tensor, including n and c."""
        return len(self.shape)

    @property
    def wide(self) -> bool:
        """Whether the walk visits only one row of each image."""
        return self.mode in ("w", "w128")

    @property
    def axes(self) -> str:
        """Letters of the dimensions that have corners."""
        return "w" if self.wide else "" if self.tiled else spatial_letters(self.rank)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Extents of the dimensions that have corners."""
        return self.shape[-2:-1] if self.wide else () if self.tiled else self.shape[1:-1]

    def field(self, name: str) -> str:
        """The name of a field in `Im2colMap` or `Im2colWideMap`."""
        return WIDE_FIELDS.get(name, name) if self.wide else name

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Byte strides of n, [d,] h, w; those of a packed tensor if none are given.

        An interleaved tensor is (n, slice, [d,] h, w, c), slices of 16 or 32 bytes of channels.
        """
        if self.strides is not None:
            return self.strides
        pixel = self.itemsize * self.shape[-1]
        unit = INTERLEAVES[self.interleave] if self.interleave in ("16B", "32B") else pixel
        strides = [unit]
        for size in self.shape[-2:0:-1]:
            strides.insert(0, strides[0] * size)
        if unit != pixel:
            strides[0] *= -(-pixel // unit)
        return tuple(strides[: self.rank - 1])


def box_counts(m: Description) -> tuple[int, ...]:
    """Elements that a copy of a tiled map loads along each dimension.

    Without interleave the step of the last dimension is ignored.
    """
    steps = m.step if m.interleave != "none" else (*m.step[:-1], 1)
    return tuple(-(-count // max(1, step)) for count, step in zip(m.box, steps, strict=False))


def with_rows(m: Description) -> Description:
    """A tiled map's description with its rows of shared memory counted."""
    return replace(m, pixels=math.prod(box_counts(m)[:-1]), channels=m.box[-1] if m.box else 1)


def integer(name: str, value: object) -> int:
    """The argument `name` as an int; raise TypeError if it is none."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} = {shortened(repr(value))} must be an integer") from None


def integers(name: str, values: Iterable[object]) -> tuple[int, ...]:
    """The argument `name` as ints; raise TypeError if it is no sequence of integers."""
    try:
        return tuple(operator.index(value) for value in values)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} = {shortened(repr(values))} must be a sequence of integers"
        ) from None


def spatial_letters(rank: int) -> str:
    """The letters of the dimensions between n and c: "w", "hw" or "dhw"."""
    return "dhw"[5 - rank :]


@dataclass(frozen=True)
class Start:
    """The start of a load as the user gave it: coordinates (n, [d,] h, w, c), other operands."""

    coords: tuple[int, ...]
    offsets: tuple[int, ...] | None = None
    w_halo: int = 0
    w_offset: int = 0
    dst: int = 0

    @classmethod
    def of(
        cls,
        coords: Iterable[int],
        offsets: Iterable[int] | None = None,
        w_halo: int = 0,
        w_offset: int = 0,
        dst: int = 0,
    ) -> Start:
        """The start with ints for all numbers; raise TypeError if one is no integer."""
        given = None if offsets is None else integers("offsets", offsets)
        named = (("w_halo", w_halo), ("w_offset", w_offset), ("dst", dst))
        return cls(integers("coords", coords), given, *(integer(n, x) for n, x in named))

    @property
    def operands(self) -> tuple[tuple[int, ...], tuple[int, ...] | None, int, int]:
        """Coordinates, offsets, w_halo and w_offset, as `walk` takes them."""
        return self.coords, self.offsets, self.w_halo, self.w_offset


def rename(findings: Sequence[Finding], names: Callable[[str], str]) -> list[Finding]:
    """The same findings, with the fields named as the user names them."""
    return [replace(finding, field=names(finding.field)) for finding in findings]
