"""Shared-memory matrix descriptors of wgmma and tcgen05 for what a tensor copy leaves in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from implicit_conv.tma.maps.limits import integer
from implicit_conv.tma.maps.swizzles import SWIZZLES, RowLayout

INSTRUCTIONS = {  # name: (first bit of the swizzle's code, its codes, bits that are always set)
    "wgmma": (62, {"none": 0, "128B": 1, "64B": 2, "32B": 3}, 0),
    "tcgen05": (
        61,
        {"none": 0, "128B_ATOM_32B": 1, "128B": 2, "64B": 4, "32B": 6},
        0b001 << 46,
    ),
}
SOURCES = {
    "wgmma": "PTX ISA 9.7.15.5.1.2 (matrix descriptor of wgmma)",
    "tcgen05": "PTX ISA 9.7.16.4.1 (shared memory descriptor)",
}
UNIT = 16  # bytes that a descriptor counts in
ADDRESS_END = 1 << 18  # of shared memory, bytes
OFFSET_END = 1 << 18  # of leading and stride offsets, bytes
CORE_ROWS = 8  # rows of a core matrix; one of its rows has 16 bytes


@dataclass(frozen=True)
class MatrixDescriptor:
    """The 64 bits by which an instruction finds an operand tile, and their fields in bytes.

    Attributes
    ----------
    instruction : {"wgmma", "tcgen05"}
    start, leading, stride : int
        Start address, leading-dimension offset (LBO) and stride-dimension offset (SBO), bytes. LBO
        is not used, and 16, in a K-major swizzled tile, and in an MN-major one of one block.
    base_offset : int
        0: copies swizzle by absolute addresses, so that the pattern begins at its own boundary.
    swizzle : str
    notes : tuple of str
        What is not proven, or must hold besides.
    """

    instruction: str
    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: str
    notes: tuple[str, ...] = field(default=())

    @property
    def value(self) -> int:
        """The 64 bits."""
        shift, codes, fixed = INSTRUCTIONS[self.instruction]
        return (
            self.start // UNIT
            | self.leading // UNIT << 16
            | self.stride // UNIT << 32
            | self.base_offset << 49
            | codes[self.swizzle] << shift
            | fixed
        )

    def __str__(self) -> str:
        text = (
            f"{self.instruction} descriptor {self.value:#018x}: start {self.start:#x}, "
            f"LBO {self.leading}, SBO {self.stride}, base offset {self.base_offset}, "
            f"swizzle {self.swizzle}"
        )
        return "\n  ".join([text, *self.notes])


def descriptor(
    layout: RowLayout, instruction: str, first: int, byte: int, major: str, leading: int | None
) -> MatrixDescriptor:
    """The descriptor of `SmemImage.descriptor`."""
    if instruction not in INSTRUCTIONS:
        known = ", ".join(INSTRUCTIONS)
        raise ValueError(f"instruction {instruction!r} is unknown; choose from {known}")
    if major not in ("K", "MN"):
        raise ValueError(f"major {major!r} is unknown; choose from K, MN")
    first, byte = integer("first", first), integer("byte", byte)
    _check(layout, instruction, first, byte, major)
    swizzle = SWIZZLES[layout.swizzle]
    if leading is None:
        if not swizzle.span:
            raise ValueError(
                "without a swizzle a tile has several planes of 16 bytes; pass leading=, the bytes "
                "from one plane to the next"
            )
        leading = UNIT
    leading = integer("leading", leading)
    if leading % UNIT or not 0 < leading < OFFSET_END:
        raise ValueError(
            f"leading = {leading} must be a multiple of {UNIT} bytes, below {OFFSET_END}"
        )
    row = layout.dst + first * layout.pitch
    start = row + byte
    if start >= ADDRESS_END:
        raise ValueError(
            f"start {start:#x} is not below {ADDRESS_END:#x}, the end of shared memory"
        )
    # An MN-major tile of 32-byte atoms repeats after 4 rows of K, all others after 8 rows.
    stride = layout.pitch * (swizzle.lines if swizzle.atom > UNIT else CORE_ROWS)
    if not swizzle.span and major == "MN":  # LBO is the step over 8 rows of K, SBO over planes
        leading, stride = stride, leading
    notes = []
    if row % swizzle.pattern and swizzle.span:
        notes.append(
            f"row {first} begins {row % swizzle.pattern} bytes into the pattern of swizzle "
            f"{layout.swizzle}, {swizzle.pattern} bytes: that a descriptor may start there follows "
            "from the documentation, but this project has not seen it run"
        )
    return MatrixDescriptor(instruction, start, leading, stride, 0, layout.swizzle, tuple(notes))


def _check(layout: RowLayout, instruction: str, first: int, byte: int, major: str) -> None:
    """Raise a ValueError with the rule if the image has no descriptor."""
    codes, source = INSTRUCTIONS[instruction][1], SOURCES[instruction]
    if layout.swizzle not in codes:
        raise ValueError(
            f"{instruction} reads no memory with swizzle {layout.swizzle} [{source}]; use one of "
            f"{', '.join(codes)}"
        )
    if layout.swizzle == "128B_ATOM_32B" and (major == "K" or layout.itemsize != 4):
        raise ValueError(
            f"tcgen05 reads swizzle 128B_ATOM_32B only for MN-major elements of 4 bytes [{source}]"
        )
    if major == "MN" and instruction == "wgmma" and layout.itemsize != 2:
        raise ValueError(
            f"wgmma reads MN-major operands of 16-bit elements only, not of {layout.itemsize} "
            f"bytes [{source}]; copy with the K dimension contiguous"
        )
    if layout.swizzle == "none" and layout.pitch != UNIT:
        raise ValueError(
            f"without a swizzle the rows of a core matrix are {UNIT} bytes apart, but the rows of "
            f"this copy are {layout.pitch} [{source}]; load {UNIT // layout.itemsize} channels "
            "a copy, or use a swizzle"
        )
    if byte % UNIT or not 0 <= byte < layout.row_bytes:
        raise ValueError(
            f"byte {byte} must be a multiple of {UNIT} in the row of "
            f"{layout.row_bytes} bytes [{source}]"
        )
    if not 0 <= first < layout.rows:
        raise ValueError(f"row {first} must be in [0, {layout.rows - 1}]")
