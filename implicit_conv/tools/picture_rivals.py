"""Filters of a picture as users of OpenCV and of scipy write them, for the demo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Filter = Callable[[], list[Array]]  # planes (H, W, 3) of colour filters, then (H, W) of gray ones


def picture_rivals(
    picture: Array, colour: Sequence[Array], gray: Sequence[Array], threads: int
) -> dict[str, Filter]:
    """The rivals that are installed: name with version -> a function that filters.

    Parameters
    ----------
    picture : float32 array (H, W, 3)
    colour, gray : sequences of float32 arrays (R, S)
        The filters of each colour, and those of the mean of the colours. Pixels are reflected at
        the edges, whose own pixels are not repeated.
    threads : int
        Threads of OpenCV; scipy has one.
    """
    makers = {"cv2": _opencv, "scipy": _scipy}
    found = (make(picture, colour, gray, threads) for name, make in makers.items() if _has(name))
    return dict(found)


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _opencv(
    picture: Array, colour: Sequence[Array], gray: Sequence[Array], threads: int
) -> tuple[str, Filter]:
    import cv2

    edge = cv2.BORDER_REFLECT_101

    def run() -> list[Array]:
        cv2.setNumThreads(threads)
        mean = picture.mean(axis=2)
        planes = [cv2.filter2D(picture, -1, w, borderType=edge) for w in colour]
        return planes + [cv2.filter2D(mean, -1, w, borderType=edge) for w in gray]

    return f"OpenCV {cv2.__version__} filter2D", run


def _scipy(
    picture: Array, colour: Sequence[Array], gray: Sequence[Array], threads: int
) -> tuple[str, Filter]:
    import scipy
    from scipy import ndimage

    def run() -> list[Array]:
        mean = picture.mean(axis=2)
        planes = [ndimage.correlate(picture, w[..., None], mode="mirror") for w in colour]
        return planes + [ndimage.correlate(mean, w, mode="mirror") for w in gray]

    return f"scipy {scipy.__version__} ndimage.correlate, 1 thread", run


def as_planes(y: Array, colours: int) -> list[Array]:
    """The result of the demo's convolution, of shape (K, H, W), as rivals return it."""
    split = 3 * colours
    whole = [np.moveaxis(part, 0, -1) for part in y[:split].reshape(colours, 3, *y.shape[1:])]
    return [*whole, *y[split:]]
