"""The contents of a picture of tensor copies; `text` and `figure` render it.

A plane is a grid of pixels. For im2col there is one plane per image (and depth), with h down and w
across. For im2col::w one plane shows all images, with n down and w across, because the walk does
not move along d and h. Each copy fills one buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from implicit_conv.kernels.walk import W128_GROUP
from implicit_conv.tma.maps.maps import Im2colMap, Im2colWideMap, TensorMap
from implicit_conv.tma.maps.ptx import INFIXES
from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.run.simulate import HALO_ORDER, HALO_ORDERS, Walk, walk

Cell = tuple[int, int]  # (down, across)
CELLS_MAX = 1 << 16  # pixels that are drawn at most: 256 x 256
PLANES_MAX = 6  # a load of more planes shows the first ones and the last one


@dataclass(frozen=True)
class Mark:
    """One visit of a pixel by a copy."""

    buffer: int
    order: int  # position in the walk, from 0
    filled: bool
    halo: bool
    group: int = -1  # of 32 pixels in im2col::w::128; -1 in other modes


@dataclass(frozen=True)
class Box:
    """A bounding box in a plane; both ends belong to it. `corners` says what its corners are."""

    buffer: int
    first: Cell
    last: Cell
    corners: tuple[str, ...] = ()


@dataclass
class Plane:
    """A grid of pixels; `down` and `across` are the ranges of positions shown."""

    title: str
    letters: str  # names of the two axes
    size: Cell  # positions 0 .. size - 1 exist
    down: range
    across: range
    boxes: list[Box] = field(default_factory=list)
    shifted: Box | None = None  # the box of im2col with its offsets, where pixels are visited
    marks: dict[Cell, list[Mark]] = field(default_factory=dict)
    wraps: set[Cell] = field(default_factory=set)  # visits after which the walk starts a new run


@dataclass(frozen=True)
class Row:
    """One row of shared memory."""

    index: int
    order: int
    coordinates: tuple[int, ...]
    filled: bool
    halo: bool
    group: int = -1  # as in Mark


@dataclass(frozen=True)
class Buffer:
    """The rows of shared memory that one copy writes."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Picture:
    """Planes of the tensor, and the buffers in shared memory."""

    title: str
    subtitle: str
    letters: str  # names of the coordinates of a row
    planes: tuple[Plane, ...]
    buffers: tuple[Buffer, ...]
    notes: list[str] = field(default_factory=list)
    box_name: str = "bounding box"


class Copies(NamedTuple):
    """Copies from one start, with their walks and their (w_halo, w_offset)."""

    coords: Sequence[int]
    offsets: Sequence[int] | None
    walks: Sequence[Walk]
    buffers: Sequence[tuple[int, int]]

    @property
    def pixels(self) -> list[list[int]]:
        """The pixels of all rows."""
        return [row for walked in self.walks for row in walked.coordinates.tolist()]


def picture(
    map: TensorMap,
    coords: Sequence[int],
    offsets: Sequence[int] | None,
    buffers: Sequence[tuple[int, int]],
    title: str = "",
    halo_order: str = HALO_ORDER,
) -> Picture:
    """The picture of several copies, one for each (w_halo, w_offset) of `buffers`.

    Raises
    ------
    TensorMapError
        The load breaks rules; the message lists all (a ValueError).
    ValueError
        There are no buffers, or too many pixels to draw.
    """
    if not buffers:
        raise ValueError("buffers is empty; give a pair (w_halo, w_offset) for each buffer to draw")
    walks = [walk(map, coords, offsets, *buffer, halo_order=halo_order) for buffer in buffers]
    letters = map.description.dims[:-1]
    copies = Copies(coords, offsets, walks, buffers)
    planes = _planes(map, copies)
    for b, walked in enumerate(walks):
        _place(planes, b, map, walked)
    shown = [planes[key] for key in sorted(planes)]
    if len(shown) > PLANES_MAX:
        left_out = len(shown) - PLANES_MAX
        shown[-1].title += f"  ({left_out} planes before it are not shown)"
        del shown[PLANES_MAX - 1 : -1]
    cells = sum(len(plane.down) * len(plane.across) for plane in shown)
    if cells > CELLS_MAX:
        raise ValueError(
            f"the planes of shape {map.shape} have {cells} pixels; at most {CELLS_MAX} can be "
            "drawn; draw the copy of a smaller tensor"
        )
    return Picture(
        title=title or f"{INFIXES[map.mode]} of {_sizes(map)}",
        subtitle=_subtitle(map, copies),
        letters=letters,
        planes=tuple(shown),
        buffers=tuple(_buffer(b, map, walked, buffers) for b, walked in enumerate(walks)),
        notes=_notes(map, buffers, halo_order),
        box_name=BOX_NAMES.get(map.mode, "bounding box"),
    )


BOX_NAMES = {"tiled": "box of the copy", "im2col": "bounding box, before the offsets"}


def _notes(map: TensorMap, buffers: Sequence[tuple[int, int]], halo_order: str) -> list[str]:
    """What the reader must know besides: that the order of halos is inferred."""
    if map.mode != "w128" or max(halo for halo, _ in buffers) < 2:
        return []
    return [f"order of the halo rows: {halo_order} ({HALO_ORDERS[halo_order]}), inferred"]


def _group(map: TensorMap, order: int, halo: bool) -> int:
    """The group of a row of im2col::w::128, whose halo are pixels of the next group; else -1."""
    return order // W128_GROUP - halo if map.mode == "w128" else -1


def _sizes(map: TensorMap) -> str:
    if isinstance(map, TiledMap):
        return " x ".join(_texts(map.shape))
    letters = map.description.dims.upper()
    return " ".join(f"{a}={size}" for a, size in zip(letters, map.shape, strict=True))


def _subtitle(map: TensorMap, copies: Copies) -> str:
    m, (coords, offsets, _, buffers) = map.description, copies
    if m.tiled:
        text = f"box {' x '.join(_texts(m.box))}, start ({', '.join(_texts(coords))})"
        steps = f", step {' x '.join(_texts(m.step))}" if set(m.step) != {1} else ""
        return f"{text}{steps}, rows of {m.channels} elements"
    box = " x ".join(
        f"{axis} [{lower}, {size - 1 + upper}]"
        for axis, lower, upper, size in zip(m.axes, m.lower, m.upper, m.sizes, strict=True)
    )
    if len(buffers) == 1 and buffers[0][1]:  # a single w_offset, which shifts the box that is drawn
        shift = buffers[0][1]
        box += (
            f" + w_offset {shift} = [{m.lower[0] + shift}, {m.sizes[0] - 1 + m.upper[0] + shift}]"
        )
    text = f"box {box}, step {' x '.join(_texts(m.step))}, start ({', '.join(_texts(coords))})"
    if offsets is not None:
        text += f", offsets ({', '.join(_texts(offsets))})"
    pixels = map.rows()
    noun = "pixel" if pixels == 1 else "pixels"
    return f"{text}, {pixels} {noun} x {m.channels} channels"


def _texts(values: Sequence[int]) -> list[str]:
    """Each value as text."""
    return [str(value) for value in values]


def _buffer(b: int, map: TensorMap, walked: Walk, buffers: Sequence[tuple[int, int]]) -> Buffer:
    w_halo, w_offset = buffers[b]
    title = "shared memory" if len(buffers) == 1 else f"buffer {b + 1}"
    if isinstance(map, Im2colWideMap):
        title += f": w_offset {w_offset}, w_halo {w_halo}"
    rows = (
        Row(index, order, tuple(coordinates), filled, halo, _group(map, order, halo))
        for index, (order, coordinates, filled, halo) in enumerate(_visits(walked))
    )
    return Buffer(f"{title}, {walked.bytes} bytes", tuple(rows))


def _visits(walked: Walk) -> Iterator[tuple[int, list[int], bool, bool]]:
    """(order, pixel, filled, halo) of each row."""
    arrays = (walked.order, walked.coordinates, walked.filled, walked.halo)
    return zip(*(array.tolist() for array in arrays), strict=True)


def _position(map: TensorMap, coordinates: Sequence[int]) -> tuple[tuple[int, ...], Cell]:
    """(the key of a pixel's plane, its position there).

    A plane shows the last two dimensions of pixels; one plane shows all images of im2col::w.
    """
    if isinstance(map, Im2colWideMap):
        return (), (coordinates[0], coordinates[-1])
    if isinstance(map, Im2colMap) and map.rank == 3:
        return (coordinates[0],), (0, coordinates[-1])
    down, across = (0, 0, *coordinates)[-2:]
    return tuple(coordinates[:-2]), (down, across)


def _place(planes: dict[tuple[int, ...], Plane], buffer: int, map: TensorMap, walked: Walk) -> None:
    """Enter the visits of one walk into the planes."""
    ordered = sorted(_visits(walked), key=lambda visit: (visit[0], visit[3]))
    for order, coordinates, filled, halo in ordered:
        key, cell = _position(map, coordinates)
        mark = Mark(buffer, order, filled, halo, _group(map, order, halo))
        planes[key].marks.setdefault(cell, []).append(mark)
    for (_, here, _, _), (_, there, _, _) in pairwise(ordered):
        if here[:-1] != there[:-1] and not isinstance(map, TiledMap):
            key, cell = _position(map, here)
            planes[key].wraps.add(cell)


def _planes(map: TensorMap, copies: Copies) -> dict[tuple[int, ...], Plane]:
    """Planes without visits that show the tensor, every pixel of the copies, and their boxes."""
    m, letters = map.description, map.description.dims[:-1]
    placed = [_position(map, row) for row in copies.pixels]
    cells = [cell for _, cell in placed]
    down, across = _position(map, map.shape[:-1])[1]
    size = (down or 1, across or 1)
    boxes, shifted = _boxes(map, copies, cells)
    points = [*cells, *(end for box in boxes for end in (box.first, box.last))]
    rows, columns = (
        range(min(0, *values), max(last - 1, *values) + 1)
        for values, last in zip(zip(*points, strict=True), size, strict=True)
    )
    names = ("  " + (letters if m.tiled else letters[1:]))[-2:]
    if m.wide:  # of all images, only those that are visited
        rows, names = range(min(points)[0], max(points)[0] + 1), "nw"
    planes = {}
    for key in dict.fromkeys(key for key, _ in placed):
        title = ", ".join(f"{axis} = {x}" for axis, x in zip(letters, key, strict=False))
        if m.tiled:
            fixed = zip(letters, key, strict=False)
            title = ", ".join(f"[{axis}] = {x}" for axis, x in fixed) or "tensor"
        elif m.wide:
            fixed = zip(letters[1:-1], copies.coords[1:-2], strict=True)
            at = ", ".join(f"{axis} = {x}" for axis, x in fixed)
            title = f"images at {at}" if at else "images"
        planes[key] = Plane(title, names, size, rows, columns, boxes, shifted)
    return planes


def _boxes(map: TensorMap, copies: Copies, cells: Sequence[Cell]) -> tuple[list[Box], Box | None]:
    """(the boxes that the walks of the copies fill, that of im2col with its offsets)."""
    m, offsets = map.description, copies.offsets
    top, bottom = (pick(down for down, _ in cells) for pick in (min, max))
    if m.tiled:  # the box is what the copy covers
        left, right = (pick(across for _, across in cells) for pick in (min, max))
        return [Box(0, (top, left), (bottom, right))], None
    low, high = (", ".join(_texts(corner)) for corner in (m.lower, m.upper))
    words = (f"lower corner ({low})", f"upper corner ({high}), from the last pixel")
    left, right = m.lower[-1], m.sizes[-1] - 1 + m.upper[-1]
    if m.wide:
        shifts = [offset for _, offset in copies.buffers]
        corners = words if shifts == [0] else ()
        ends = ((b, (top, left + x), (bottom, right + x)) for b, x in enumerate(shifts))
        return [Box(*end, corners) for end in ends], None
    first, last = (0, left), (0, right)
    if map.rank > 3:
        first, last = (m.lower[-2], left), (m.sizes[-2] - 1 + m.upper[-2], right)
    if offsets is None or not any(offsets):
        return [Box(0, first, last, words)], None
    h, w = (0, *offsets)[-2:]
    moved = Box(0, (first[0] + h, first[1] + w), (last[0] + h, last[1] + w))
    return [Box(0, first, last, words)], moved
