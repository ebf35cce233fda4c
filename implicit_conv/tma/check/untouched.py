"""Parts of tensors that no copy by their tiled map moves, as slices of numpy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from implicit_conv.tma.maps.limits import Start
from implicit_conv.tma.maps.tiled import TiledMap

MOST_LISTED = 3


class Touched:
    """Which elements of a tensor the boxes of one map have covered, in one direction."""

    def __init__(self, map: TiledMap) -> None:
        self.map, self.elements = map, np.zeros(map.shape, bool)

    def add(self, start: Start) -> None:
        """A box that was copied."""
        m = self.map.description
        axes = zip(start.coords, m.box, m.step, strict=True)
        box = (
            slice(at if at >= 0 else at % step, max(at + extent, 0), step)
            for at, extent, step in axes
        )
        self.elements[tuple(box)] = True

    def missing(self) -> Iterator[str]:
        """Slices of what no box covered, at most MOST_LISTED, and a count of the rest."""
        left = ~self.elements
        for _ in range(MOST_LISTED):
            if not left.any():
                return
            at = _grown(left)
            left[at] = False
            yield f"[{', '.join(_text(s, n) for s, n in zip(at, left.shape, strict=True))}]"
        if left.any():
            yield f"{int(left.sum())} other elements"


def _grown(left: npt.NDArray[np.bool_]) -> tuple[slice, ...]:
    """A box of elements that are left, from the first one on, the last axis first."""
    first = np.unravel_index(int(left.argmax()), left.shape)
    at = [slice(int(x), int(x) + 1) for x in first]
    for axis in reversed(range(left.ndim)):
        at[axis] = slice(at[axis].start, left.shape[axis])
        others = tuple(n for n in range(left.ndim) if n != axis)
        whole = np.asarray(left[tuple(at)].all(axis=others))
        count = whole.size if whole.all() else int(whole.argmin())
        at[axis] = slice(at[axis].start, at[axis].start + count)
    return tuple(at)


def _text(part: slice, size: int) -> str:
    if part.stop - part.start == 1 < size:
        return str(part.start)
    return f"{part.start or ''}:{part.stop if part.stop < size else ''}"
