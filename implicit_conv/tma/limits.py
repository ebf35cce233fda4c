"""The limits of tensor maps and loads as numbers, and what a map, a load and a fault look like.

`rules` turns them into findings. Ranges and sources: addressing.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

SPANS = {
    "none": 0,
    "32B": 32,
    "64B": 64,
    "128B": 128,
}  # bytes a swizzle permutes; also its row pitch
NOT_MODELLED = ("128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")
SWIZZLES = {
    "im2col": (*SPANS, *NOT_MODELLED),
    "w": ("64B", "128B", "128B_ATOM_32B"),
    "w128": ("64B", "128B", "128B_ATOM_32B"),
}
INTERLEAVES = {"none": 16, "16B": 16, "32B": 32}  # bytes that address and strides are multiples of
FILLS = ("zero", "nan")
CORNER_BITS = {3: 16, 4: 8, 5: 5}  # signed bits of an im2col corner, by rank
OFFSET_BITS = {3: 16, 4: 8, 5: 5}  # unsigned bits of an im2col offset
HALO_END = {"w": 512, "w128": 32}
W_OFFSET_END = 32
PIXELS_MAX, CHANNELS_MAX, STEP_MAX = 1024, 256, 8
SIZE_MAX, STRIDE_END = 1 << 32, 1 << 40
ITEMSIZES = (1, 2, 4, 8)
COORDINATE_BITS = 32
WIDE_FIELDS = {
    "lower_corner[w]": "lower_corner_w",
    "upper_corner[w]": "upper_corner_w",
    "traversal_stride[w]": "traversal_stride",
}

CORNERS = "PTX ISA 5.5.4.1 (Bounding Box)"
WIDE = "PTX ISA 5.5.5 (im2col::w)"
OFFSETS = "PTX ISA 5.5.4.1 (im2col offsets)"
HALO = "PTX ISA 9.7.9.25.5 (im2colInfo)"
DRIVER = "CUDA driver API, cuTensorMapEncodeIm2col"
DRIVER_WIDE = "CUDA driver API, cuTensorMapEncodeIm2colWide"
SMEM = "PTX ISA 9.7.9.25.5 (destination of a tensor copy)"


@dataclass(frozen=True)
class Finding:
    """One rule that a map or a load breaks, or one thing that looks wrong (a warning)."""

    field: str
    value: Any
    allowed: str
    source: str
    hint: str = ""  # what was probably meant, where something speaks for it
    severity: str = "error"

    def __str__(self) -> str:
        text = f"{self.field} = {self.value}: {self.allowed} [{self.source}]"
        return f"{text}; {self.hint}" if self.hint else text


class TensorMapError(ValueError):
    """A tensor map or a load that breaks rules; `findings` lists them all."""

    def __init__(
        self, what: str, findings: Sequence[Finding], description: Description | None = None
    ):
        self.findings = tuple(findings)
        self.description = description
        super().__init__("\n  ".join([f"{what} is refused:", *map(str, findings)]))


@dataclass(frozen=True)
class Description:
    """A tensor map as given, not yet believed: row-major, spatial tuples as ([d,] h, w)."""

    mode: str  # im2col, w, w128
    shape: tuple[int, ...]
    itemsize: int
    floating: bool
    lower: tuple[int, ...]  # of every spatial dimension, or of W alone for the wide modes
    upper: tuple[int, ...]
    step: tuple[int, ...]
    pixels: int
    channels: int
    swizzle: str
    oob_fill: str
    interleave: str
    strides: tuple[int, ...] | None
    address: int | None
    fastest_first: bool = False  # how the user wrote arrays: as the driver wants them

    @property
    def rank(self) -> int:
        """Dimensions of the tensor, n and c included."""
        return len(self.shape)

    @property
    def wide(self) -> bool:
        """Whether the walk keeps to one row of each image."""
        return self.mode != "im2col"

    @property
    def axes(self) -> str:
        """Letters of the dimensions that have corners."""
        return "w" if self.wide else spatial_letters(self.rank)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Extents of the dimensions that have corners."""
        return self.shape[-2:-1] if self.wide else self.shape[1:-1]

    def field(self, name: str) -> str:
        """What `Im2colMap` or `Im2colWideMap` calls a field of ours."""
        return WIDE_FIELDS.get(name, name) if self.wide else name

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Byte strides of n, [d,] h, w; packed where none are given."""
        if self.strides is not None:
            return self.strides
        strides = [self.itemsize * self.shape[-1]]
        for size in self.shape[-2:0:-1]:
            strides.insert(0, strides[0] * size)
        return tuple(strides)


def spatial_letters(rank: int) -> str:
    """The letters of the dimensions between n and c: "w", "hw" or "dhw"."""
    return "dhw"[5 - rank :]


def swizzle_span(swizzle: str) -> int:
    """Bytes of the line that a swizzle permutes, 0 for none."""
    return 128 if swizzle in NOT_MODELLED else SPANS.get(swizzle, 0)


@dataclass(frozen=True)
class Start:
    """Where a load begins, as given: coordinates (n, [d,] h, w, c) and the other operands."""

    coords: tuple[int, ...]
    offsets: tuple[int, ...] | None = None
    w_halo: int = 0
    w_offset: int = 0
    dst: int = 0


def rename(findings: Sequence[Finding], names: Callable[[str], str]) -> list[Finding]:
    """The same findings with the fields called as the user calls them."""
    return [replace(finding, field=names(finding.field)) for finding in findings]
