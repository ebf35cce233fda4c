"""``python -m perf ndimage``: filters of images beside scipy's and OpenCV's, on one thread."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

import implicit_conv
from implicit_conv.testing import Array
from implicit_conv.timing import (
    UNTOLD,
    Local,
    disturbance,
    interleave,
    paired_ratio,
    summarise,
)

PRECISIONS = ("strict", "standard")


class Row(NamedTuple):
    """A filter of an image."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    run: Callable[..., Array]  # (module, image, **precision)
    opencv: Callable[[Any, Array], Array] | None = None  # (cv2, image)


def rows() -> list[Row]:
    """The rows, with seeded weights."""
    rng = np.random.default_rng(0)
    colours, square, taps = rng.random((7, 7, 1)), rng.random((5, 5)), rng.random(63)
    small, wide = rng.random((3, 3)), rng.random((15, 15))

    def gaussian(sigma: float) -> Callable[..., Array]:
        return lambda module, x, **options: module.gaussian_filter(x, sigma, **options)

    def correlate(weights: Array) -> Callable[..., Array]:
        return lambda module, x, **options: module.correlate(x, weights, **options)

    def blur(cv2: Any, x: Array) -> Array:
        return cv2.GaussianBlur(x, (25, 25), 3)  # type: ignore[no-any-return]

    hd, square_4m = (1080, 1920), (2000, 2000)
    return [
        Row("correlate 7x7, RGB", (*hd, 3), "float32", correlate(colours)),
        Row("correlate 5x5", hd, "float32", correlate(square)),
        Row("gaussian, sigma 3", square_4m, "float32", gaussian(3), blur),
        Row("gaussian, sigma 3", square_4m, "uint16", gaussian(3), blur),
        Row("gaussian, sigma 2", (256, 256, 256), "float32", gaussian(2)),
        Row("correlate 63 taps", (1_000_000,), "float32", correlate(taps)),
        Row(
            *("correlate 3x3", hd, "uint8", correlate(small)),
            opencv=lambda cv2, x: cv2.filter2D(x, -1, small),
        ),
        Row(
            *("sobel", hd, "uint8", lambda module, x, **options: module.sobel(x, **options)),
            opencv=lambda cv2, x: cv2.Sobel(x, -1, 1, 0),
        ),
        Row("correlate 15x15", square_4m, "float64", correlate(wide)),
    ]


def image(row: Row) -> Array:
    """A seeded image; integers fill their range."""
    values = np.random.default_rng(1).random(row.shape)
    dtype = np.dtype(row.dtype)
    scale = np.iinfo(dtype).max if dtype.kind in "iu" else 1
    return (values * scale).astype(dtype)


def contenders(row: Row, x: Array, cv2: Any) -> dict[str, Callable[[], Array]]:
    """The functions to time; ours have been compared with scipy's.

    Raises
    ------
    ArithmeticError
        A result is wrong.
    """
    import scipy.ndimage

    from implicit_conv import ndimage

    functions: dict[str, Callable[[], Array]] = {"scipy": partial(row.run, scipy.ndimage, x)}
    for precision in PRECISIONS:
        functions[precision] = partial(row.run, ndimage, x, precision=precision)
    expected = functions["scipy"]().astype(np.float64)
    for precision in PRECISIONS:
        y = functions[precision]()
        distance = abs(y - expected).max()  # integers are truncated, and may wrap: 1 or all of it
        if (precision == "strict" and distance) or (y.dtype.kind == "f" and distance > 1e-3):
            raise ArithmeticError(f"{row.name} of {row.dtype}: {precision} is off by {distance}")
    if cv2 is not None and row.opencv is not None:
        functions["opencv"] = partial(row.opencv, cv2, x)
    if row.dtype == "float64":
        holes = np.where(np.random.default_rng(2).random(x.shape) < 0.01, np.nan, x)
        functions["no NaN"] = partial(row.run, ndimage, x, nan="interpolate")
        functions["1% NaN"] = partial(row.run, ndimage, holes, nan="interpolate")
    return functions


def line(row: Row, rounds: int, cv2: Any) -> str:
    """Time a row; milliseconds, and scipy's time over each."""
    timed = {name: Local(run) for name, run in contenders(row, image(row), cv2).items()}
    samples = interleave(timed, rounds)
    cells = [
        f"{name} {summarise(found).median * 1e3:.2f} ms"
        + (f" ({paired_ratio(samples['scipy'], found):.1f}x)" if name != "scipy" else "")
        for name, found in samples.items()
    ]
    size = "x".join(map(str, row.shape))
    return f"{row.name}, {size} {row.dtype}: " + ", ".join(cells)


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "ndimage",
        help="time filters of images, beside scipy's and OpenCV's",
        description="Time filters of images beside scipy's and OpenCV's, on one thread.",
    )
    parser.add_argument("--rounds", type=int, default=7, help="samples of each function")
    parser.add_argument("--only", nargs="*", default=[], help="words of the rows' names")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a line for each row: milliseconds, and in brackets scipy's time over ours. Beside other
    work nothing is measured, and the exit status is UNTOLD.
    """
    disturbed = disturbance(1)
    if disturbed:
        print(disturbed)
        return UNTOLD
    cv2: Any = import_module("cv2") if find_spec("cv2") else None
    if cv2 is None:
        print("OpenCV is left out: pip install '.[rivals]'")
    else:
        cv2.setNumThreads(1)
    words: Sequence[str] = options.only
    with implicit_conv.config(num_threads=1):
        for row in rows():
            if all(word in f"{row.name} {row.dtype}" for word in words):
                print(line(row, options.rounds, cv2), flush=True)
    return 0
