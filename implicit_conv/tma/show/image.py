"""Shared memory after a tensor copy, byte by byte: pitch, swizzle, halo rows, unwritten gaps.

A picture of it has lines of 128 bytes of chunks of 16, four banks: which chunk of which row stands
where. The chunks that an access reads in its first phase are marked.
"""

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

CHUNK, LINE_BYTES = 16, 128
LINES_MAX = 16  # lines that are drawn


@dataclass(frozen=True)
class MemoryPicture:
    """The chunks of some lines: (row, chunk of the row) or None, and whether they are read."""

    title: str
    subtitle: str
    first: int  # address of the first line
    chunks: tuple[tuple[tuple[int, int] | None, ...], ...]
    read: frozenset[int]  # addresses of chunks that the access reads in its first phase
    verdict: str


def memory_picture(layout: RowLayout, report: BankReport | None) -> MemoryPicture:
    """The picture of the first lines of a copy, and of an access to it."""
    first = layout.dst // LINE_BYTES * LINE_BYTES
    per_row = max(1, layout.row_bytes // CHUNK)
    rows = np.arange(layout.rows).reshape(-1, 1)
    at = layout.addresses(rows, np.arange(per_row) * CHUNK) // CHUNK * CHUNK
    owners = {
        int(address): (row, chunk)
        for row, places in enumerate(at.tolist())
        for chunk, address in enumerate(places)
    }
    end = min(first + LINES_MAX * LINE_BYTES, layout.dst + layout.rows * layout.pitch)
    chunks = tuple(
        tuple(owners.get(line + chunk) for chunk in range(0, LINE_BYTES, CHUNK))
        for line in range(first, end, LINE_BYTES)
    )
    read: npt.NDArray[np.int64] = np.array(report.phases[0].addresses if report else [], np.int64)
    return MemoryPicture(
        title=f"shared memory, swizzle {layout.swizzle}",
        subtitle=f"{layout.rows} rows of {layout.row_bytes} bytes, {layout.pitch} bytes apart, "
        f"from address {layout.dst}",
        first=first,
        chunks=chunks,
        read=frozenset((read // CHUNK * CHUNK).tolist()),
        verdict=str(report).splitlines()[0] if report else "",
    )


def memory_text(picture: MemoryPicture) -> str:
    """The picture as lines of text: row:chunk, in brackets where the access reads."""
    banks = "".join(f"{f'banks {b}-{b + 3}':>13}" for b in range(0, 32, 4))
    lines = [picture.title, picture.subtitle, "", f"{'address':>8}{banks}"]
    for i, chunks in enumerate(picture.chunks):
        address = picture.first + i * LINE_BYTES
        cells = []
        for j, owner in enumerate(chunks):
            label = "." if owner is None else f"{owner[0]}:{owner[1]}"
            read = address + j * CHUNK in picture.read
            cells.append(f"{f'[{label}]' if read else label:>13}")
        lines.append(f"{address:>8}{''.join(cells)}")
    return "\n".join([*lines, *([picture.verdict] if picture.verdict else [])])


def save_memory(picture: MemoryPicture, path: Path) -> None:
    """Draw the picture into a file, by matplotlib."""
    import matplotlib

    from implicit_conv.tma.show import figure
    from implicit_conv.tma.show.figure import DIGITS, FAINT, INK, LINE, PIXEL

    width, height, left, top = 0.86, 0.3, 0.95, 1.25
    bottom = top + len(picture.chunks) * height
    with matplotlib.rc_context(figure.STYLE):
        canvas = figure.Canvas()
        canvas.resize(left + 8 * width + 0.25, bottom + 0.75)
        canvas.text(0.2, 0.3, picture.title, 13, weight="bold")
        canvas.text(0.2, 0.6, picture.subtitle, 9, color=FAINT)
        canvas.text(left - 0.12, top - 0.17, "address", ha="right", color=FAINT)
        for j in range(8):
            place = left + (j + 0.5) * width, top - 0.17
            words = f"banks {4 * j}-{4 * j + 3}"
            canvas.text(*place, words, DIGITS - 1, ha="center", color=FAINT)
        for i, chunks in enumerate(picture.chunks):
            address, y = picture.first + i * LINE_BYTES, top + i * height
            canvas.text(left - 0.12, y + height / 2, str(address), ha="right", color=FAINT)
            for j, owner in enumerate(chunks):
                x, color, words = left + j * width, PIXEL, ""
                if owner is not None:
                    color = figure.tint(figure.COLORS[owner[0] % len(figure.COLORS)])
                    words = f"{owner[0]}:{owner[1]}"
                cell = (x + 0.01, y + 0.01, width - 0.02, height - 0.02)
                canvas.rectangle(*cell, facecolor=color, edgecolor=LINE, linewidth=0.5)
                if address + j * CHUNK in picture.read:
                    inner = (x + 0.04, y + 0.04, width - 0.08, height - 0.08)
                    canvas.rectangle(*inner, facecolor="none", edgecolor=INK, linewidth=2)
                canvas.text(x + width / 2, y + height / 2, words, ha="center")
        words = "row:chunk of 16 bytes; a colour for each row"
        words += "; framed: what the first phase reads" if picture.read else ""
        canvas.text(0.2, bottom + 0.2, words)
        canvas.text(0.2, bottom + 0.45, picture.verdict, weight="bold")
        figure.write(canvas.figure, path, figure.digest(picture, __file__))


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

    Examples
    --------
    Rows of 128 bytes, swizzled: 8 rows are read without a bank conflict.

    >>> import numpy as np
    >>> from implicit_conv import tma
    >>> tile = tma.TiledMap(
    ...     shape=(64, 64), dtype="float16", box=(32, 64), swizzle="128B"
    ... )
    >>> image = tma.smem_image(tile, np.ones((64, 64), np.float16), (0, 0))
    >>> image.bytes.size, image.bank_conflicts("ldmatrix").worst
    (4096, 1)
    >>> hex(image.descriptor("wgmma").value)
    '0x4000004000010000'
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
