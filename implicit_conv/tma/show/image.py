"""Shared memory after a tensor copy, byte by byte: pitch, swizzle, halo rows, unwritten gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.tma.maps.descriptors import MatrixDescriptor, descriptor
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.maps.swizzles import SWIZZLES, RowLayout
from implicit_conv.tma.run.banks import BankReport, report
from implicit_conv.tma.run.simulate import HALO_ORDER, Array, load_rows
from implicit_conv.tma.show.memory_picture import memory_picture, memory_text, save_memory


@dataclass(frozen=True, eq=False)
class SmemImage:
    """What one copy leaves in shared memory.

    Attributes
    ----------
    bytes : uint8 array
        Shared memory from `dst` on, in the order of addresses; unwritten bytes are zero.
    written : bool array of the same length
        Which bytes the copy wrote; False marks the gaps of rows narrower than the swizzle span.
    dst : int
        Shared address of the first byte; swizzles act on such absolute addresses.
    pitch : int
        Bytes from one row to the next.
    swizzle : str
        Name of the swizzle.
    rows : int
        Number of rows, including the halo.
    channels : int
        Elements of a row.
    dtype : numpy dtype
        Type of an element.
    """

    bytes: npt.NDArray[np.uint8]
    written: npt.NDArray[np.bool_]
    dst: int
    pitch: int
    swizzle: str
    rows: int
    channels: int
    dtype: np.dtype[Any]

    @property
    def span(self) -> int:
        """Bytes of a line that the swizzle permutes; 0 if there is no swizzle."""
        return SWIZZLES[self.swizzle].span

    def view(self, first: int = 0, count: int | None = None) -> Array:
        """Rows `first` .. `first + count - 1` as values, count x channels.

        This undoes the layout as a matrix instruction does: a shifted view reads the same memory
        from a different first row.
        """
        count = self.rows - first if count is None else count
        if not 0 <= first <= first + count <= self.rows:
            raise IndexError(f"rows {first} .. {first + count - 1} of an image of {self.rows} rows")
        return self.take(np.arange(first, first + count))

    def take(self, rows: npt.NDArray[np.int64]) -> Array:
        """The given rows as values, len(rows) x channels."""
        size = self.channels * self.dtype.itemsize
        where = self.layout.addresses(rows.reshape(-1, 1), np.arange(size)) - self.dst
        return self.bytes[where].view(self.dtype)

    @property
    def layout(self) -> RowLayout:
        """Where the rows are."""
        size = self.dtype.itemsize
        sizes = (self.rows, self.channels * size, size)
        return RowLayout(self.dst, self.pitch, self.swizzle, *sizes)

    def row(self, r: int) -> Array:
        """The channels of row r."""
        return np.asarray(self.view(r, 1)[0])

    def owner(self, address: int) -> tuple[int, int] | None:
        """(row, byte within the row) of the byte at a shared address; None in a gap."""
        if not self.written[address - self.dst]:
            return None
        plain = SWIZZLES[self.swizzle].place(address) - self.dst
        return plain // self.pitch, plain % self.pitch

    def descriptor(
        self,
        instruction: str = "wgmma",
        first: int = 0,
        byte: int = 0,
        *,
        major: str = "K",
        leading: int | None = None,
    ) -> MatrixDescriptor:
        """The matrix descriptor of an operand tile that begins in row `first`.

        Parameters
        ----------
        instruction : {"wgmma", "tcgen05"}
        first : int
            First row, such as the shift of a tap's view.
        byte : int
            Offset in the row: a K step of 16-bit elements is 32 bytes.
        major : {"K", "MN"}
            Whether rows are M or N and channels K (fprop), or rows K and channels M or N (wgrad).
        leading : int, optional
            Bytes from one plane (no swizzle) or channel block (MN-major) to the next: LBO, but SBO
            without a swizzle and MN-major.

        Raises
        ------
        ValueError
            There is no such descriptor; the message has the rule.
        """
        return descriptor(self.layout, instruction, first, byte, major, leading)

    def bank_conflicts(self, access: str = "ldmatrix", first: int = 0, byte: int = 0) -> BankReport:
        """The passes over the banks of one access that begins in row `first` at `byte`.

        Parameters
        ----------
        access : {"ldmatrix", "wgmma", "ld.shared.b32", "ld.shared.b64", "ld.shared.b128", "row"}
            `str` of the result says what each reads.

        Raises
        ------
        ValueError
            The access is unknown or reads past the rows.
        """
        return report(self.layout, access, first, byte)

    def draw(
        self,
        path: str | Path | None = None,
        access: str | None = None,
        first: int = 0,
        byte: int = 0,
    ) -> str:
        """Draw the first lines of 128 bytes: which chunk of which row stands where.

        Parameters
        ----------
        path : path-like, optional
            A file to write: .svg, .png or .pdf, by matplotlib (extra ``plot``).
        access, first, byte
            As in `bank_conflicts`; what its first phase reads is marked.

        Returns
        -------
        str
            The picture as text, or the name of the file that was written.
        """
        report = None if access is None else self.bank_conflicts(access, first, byte)
        picture = memory_picture(self.layout, report)
        if path is None:
            return memory_text(picture)
        save_memory(picture, Path(path))
        return str(path)


def smem_image(
    map: TensorMap,
    x: Array,
    coords: Sequence[int],
    dst: int = 0,
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    *,
    halo_order: str = HALO_ORDER,
) -> SmemImage:
    """The bytes of shared memory that one tensor copy writes, in the order of addresses.

    Row r begins at ``dst + r * pitch``; the swizzle then moves atoms by the bits of the absolute
    address (PTX ISA 5.5.7): ``a ^ ((a >> 7) & 7) << 4`` for 128B, with masks 3 for 64B and 1 for
    32B; ``a ^ ((a >> 7) & 3) << 5`` for 128B_ATOM_32B; ``a ^ ((a >> 7) & 1) << 6`` for
    128B_ATOM_64B; the flip of 8 bytes also moves ``((a >> 7) & 1) << 3``.

    Parameters
    ----------
    dst : int
        Shared address of the destination, a multiple of 128.
    map, x, coords, offsets, w_halo, w_offset, halo_order
        As in `load`.

    Raises
    ------
    TensorMapError
        The load breaks rules, or dst is misaligned; the message lists all (a ValueError).
    ValueError
        `halo_order` is unknown, or the map is interleaved and its layout is not documented.
    """
    _check_slices(map)
    values = load_rows(map, x, map.start(coords, offsets, w_halo, w_offset, dst), halo_order)
    size = len(values) * map.pitch
    image = SmemImage(
        bytes=np.zeros(size, np.uint8),
        written=np.zeros(size, bool),
        dst=dst,
        pitch=map.pitch,
        swizzle=map.swizzle,
        rows=len(values),
        channels=map.description.channels,
        dtype=map.dtype,
    )
    rows = np.arange(len(values)).reshape(-1, 1)
    where = image.layout.addresses(rows, np.arange(map.row_bytes)) - dst
    image.bytes[where] = values.view(np.uint8)
    image.written[where] = True
    return image


def _check_slices(map: TensorMap) -> None:
    """Raise a ValueError if the order of an interleaved map's slices in memory is unknown."""
    if map.interleave == "none":
        return
    slice_bytes = int(map.interleave.removesuffix("B"))
    if map.row_bytes > slice_bytes or (map.interleave == "16B" and map.swizzle != "none"):
        raise ValueError(
            f"interleave {map.interleave}: shared memory is simulated for rows of one slice of "
            f"{slice_bytes} bytes, and for 16B without a swizzle; rows have {map.row_bytes} bytes "
            f"with swizzle {map.swizzle}, whose layout the documentation does not give; load one "
            "slice a copy"
        )
