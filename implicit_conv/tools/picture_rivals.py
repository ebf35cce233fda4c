"""Filters of a picture as users of OpenCV and of scipy write them, for the demo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pictures = tuple[Array, Array]
Filter = Callable[[], list[Array]]  # planes (H, W, 3) of colour filters, then (H, W) of gray ones


def picture_rivals(
    pictures: Pictures, colour: Sequence[Array], gray: Sequence[Array], threads: int
) -> dict[str, Filter]:
    """The rivals that are installed: name with version -> a function that filters.

    Parameters
    ----------
    pictures : float32 arrays (H, W, 3) and (H, W)
        A picture, and the mean of its colours.
    colour, gray : sequences of float32 arrays (R, S)
        The filters of each colour, and those of the mean of the colours. Pixels are reflected at
        the edges, whose own pixels are not repeated.
    threads : int
        Threads of OpenCV; scipy has one.
    """
    makers = {"cv2": _opencv, "scipy": _scipy}
    found = (make(pictures, colour, gray, threads) for name, make in makers.items() if _has(name))
    return dict(found)


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _opencv(
    pictures: Pictures, colour: Sequence[Array], gray: Sequence[Array], threads: int
) -> tuple[str, Filter]:
    import cv2

    picture, mean = pictures
    edge = cv2.BORDER_REFLECT_101

    def run() -> list[Array]:
        cv2.setNumThreads(threads)
        planes = [cv2.filter2D(picture, -1, w, borderType=edge) for w in colour]
        return planes + [cv2.filter2D(mean, -1, w, borderType=edge) for w in gray]

    return f"OpenCV {cv2.__version__} filter2D", run


def _scipy(
    pictures: Pictures, colour: Sequence[Array], gray: Sequence[Array], threads: int
) -> tuple[str, Filter]:
    import scipy
    from scipy import ndimage

    picture, mean = pictures

    def run() -> list[Array]:
        planes = [ndimage.correlate(picture, w[..., None], mode="mirror") for w in colour]
        return planes + [ndimage.correlate(mean, w, mode="mirror") for w in gray]

    return f"scipy {scipy.__version__} ndimage.correlate, 1 thread", run


def as_planes(colours: Array, gray: Array) -> list[Array]:
    """Results (3, K, H, W) and (1, K, H, W) of the demo's convolutions as rivals return theirs."""
    return [*np.moveaxis(colours, 0, -1), *gray[0]]
