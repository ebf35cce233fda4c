"""``python -m perf ndimage``: filters of images beside those of scipy, OpenCV and scikit-image."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
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
    Seconds,
    disturbance,
    interleave,
    paired_ratio,
    summarise,
)

PRECISIONS = ("strict", "standard")
HD, SQUARE, CUBE = (1080, 1920), (2000, 2000), (256, 256, 256)
SMALL = (16, 64, 128, 256)  # sides of the small images
MOST_DIFFERENCE = 1e-4  # of float32 results, relative to the largest one
COLUMNS = ("scipy ms", "strict", "standard", "OpenCV ms", "OpenCV/ours", "scikit-image ms")

Run = Callable[..., Any]


class Row(NamedTuple):
    """A filter of an image; `opencv` and `skimage` get their module and the image."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    run: Run  # (module, image, **precision)
    opencv: Run | None = None
    skimage: Run | None = None
    sums: bool = True  # whether it adds products; else it orders elements, and has no precision

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those to time; of filters that order elements "strict" stands for all."""
        return PRECISIONS if self.sums else PRECISIONS[:1]

    def ours(self, module: Any, x: Array, precision: str) -> Any:
        """Our result."""
        return self.run(module, x, **({"precision": precision} if self.sums else {}))


def rows() -> list[Row]:
    """The rows, with seeded weights."""
    rng = np.random.default_rng(0)
    k3 = np.outer((1, 2, 1), (1, 2, 1)) / 16.0
    k5, k7, line = rng.random((5, 5)), rng.random((7, 7)), rng.random(63)
    found = [_gaussian(sigma, SQUARE, dtype) for sigma in (1, 2, 5) for dtype in ("f4", "u1", "u2")]
    found += [_gaussian(sigma, CUBE, "f4") for sigma in (1, 2, 5)]
    found += [_sobel(HD, "f4"), _sobel(HD, "u1")]
    found += [_mean(size, HD, dtype) for size in (3, 15) for dtype in ("f4", "u1")]
    found += [
        _mean(5, CUBE, "f4"),
        _window("correlate 7x7, RGB", k7, (*HD, 3), "f4"),
        _window("correlate 5x5", k5, HD, "f4"),
        _window("correlate 3x3", k3, HD, "u1"),
        Row("correlate 63 taps", (1_000_000,), "f4", lambda m, x, **o: m.correlate1d(x, line, **o)),
        Row(
            *("laplace", HD, "f4", lambda m, x, **o: m.laplace(x, **o)),
            opencv=lambda cv, x: cv.Laplacian(x, -1, ksize=1, borderType=cv.BORDER_REFLECT),
        ),
    ]
    found += [_median(size, dtype) for size in (3, 5) for dtype in ("u1", "u2")]
    found += [_largest(5, dtype) for dtype in ("u1", "u2", "f4")]
    return found


def small_rows() -> list[Row]:
    """Filters of small images."""
    k3 = np.outer((1, 2, 1), (1, 2, 1)) / 16.0
    return [
        row
        for side in SMALL
        for dtype in ("f4", "u1")
        for shape in [(side, side)]
        for row in (
            _gaussian(1, shape, dtype),
            _sobel(shape, dtype),
            _mean(3, shape, dtype),
            _window("correlate 3x3", k3, shape, dtype),
        )
    ]


def _gaussian(sigma: float, shape: tuple[int, ...], dtype: str) -> Row:
    size = 2 * int(4 * sigma + 0.5) + 1

    def opencv(cv: Any, x: Array) -> Any:
        return cv.GaussianBlur(x, (size, size), sigma, borderType=cv.BORDER_REFLECT)

    def skimage(filters: Any, x: Array) -> Any:
        return filters.gaussian(x, sigma, mode="reflect", preserve_range=True)

    flat, floats = len(shape) == 2, dtype == "f4"
    return Row(
        f"gaussian, sigma {sigma}",
        shape,
        dtype,
        lambda m, x, **o: m.gaussian_filter(x, sigma, **o),
        opencv if flat else None,
        skimage if floats else None,
    )


def _sobel(shape: tuple[int, ...], dtype: str) -> Row:
    """Of bytes, with results of 16 bits."""
    output, depth = (np.int16, "CV_16S") if dtype == "u1" else (np.float32, "CV_32F")
    return Row(
        "sobel",
        shape,
        dtype,
        lambda m, x, **o: m.sobel(x, output=output, **o),
        lambda cv, x: cv.Sobel(x, getattr(cv, depth), 1, 0, borderType=cv.BORDER_REFLECT),
    )


def _mean(size: int, shape: tuple[int, ...], dtype: str) -> Row:
    def opencv(cv: Any, x: Array) -> Any:
        return cv.blur(x, (size, size), borderType=cv.BORDER_REFLECT)

    return Row(
        f"uniform {size}",
        shape,
        dtype,
        lambda m, x, **o: m.uniform_filter(x, size, **o),
        opencv if len(shape) == 2 else None,
    )


def _window(name: str, weights: Array, shape: tuple[int, ...], dtype: str) -> Row:
    kernel = weights if len(shape) == 2 else weights[..., None]
    return Row(
        name,
        shape,
        dtype,
        lambda m, x, **o: m.correlate(x, kernel, **o),
        lambda cv, x: cv.filter2D(x, -1, weights, borderType=cv.BORDER_REFLECT),
    )


def _median(size: int, dtype: str) -> Row:
    """Of a quarter of the square: scipy takes a second for it."""

    def opencv(cv: Any, x: Array) -> Any:
        return cv.medianBlur(x, size)

    shape = SQUARE[0] // 4, SQUARE[1]
    name = f"median {size}"
    return Row(name, shape, dtype, lambda m, x: m.median_filter(x, size), opencv, sums=False)


def _largest(size: int, dtype: str) -> Row:
    def opencv(cv: Any, x: Array) -> Any:
        return cv.dilate(x, np.ones((size, size), np.uint8))

    name = f"maximum {size}"
    return Row(name, SQUARE, dtype, lambda m, x: m.maximum_filter(x, size), opencv, sums=False)


def image(row: Row) -> Array:
    """A seeded image; integers fill their range."""
    values = np.random.default_rng(1).random(row.shape)
    dtype = np.dtype(row.dtype)
    scale = np.iinfo(dtype).max if dtype.kind in "iu" else 1
    return (values * scale).astype(dtype)


def contenders(row: Row, rivals: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """The functions to time; ours have been compared with scipy's.

    Raises
    ------
    ArithmeticError
        A result is wrong.
    """
    import scipy.ndimage

    from implicit_conv import ndimage

    x = image(row)
    functions: dict[str, Callable[[], Any]] = {"scipy": partial(row.run, scipy.ndimage, x)}
    for precision in row.precisions:
        functions[precision] = partial(row.ours, ndimage, x, precision)
    expected = functions["scipy"]().astype(np.float64)
    for precision in row.precisions:
        y = functions[precision]()
        most = MOST_DIFFERENCE * abs(expected).max() if y.dtype.kind == "f" else 1
        # Integers are truncated, and may wrap: those of "standard" differ by 1, or by all of it.
        distance = abs(y.astype(np.float64) - expected)
        distance = np.minimum(distance, abs(distance - 256)) if y.dtype == np.uint8 else distance
        if distance.max() > (0 if precision == "strict" else most):
            raise ArithmeticError(
                f"{row.name} of {row.dtype}: {precision} is off: {distance.max()}"
            )
    for name, run in (("OpenCV", row.opencv), ("scikit-image", row.skimage)):
        if run is not None and name in rivals:
            functions[name] = partial(run, rivals[name], x)
    return functions


def cells(samples: Mapping[str, Seconds]) -> dict[str, float]:
    """The numbers of a row: milliseconds, and the ratios of those that took turns."""
    found = {
        f"{name} ms": summarise(samples[name]).median * 1e3
        for name in ("scipy", "OpenCV", "scikit-image")
        if name in samples
    }
    ours = [precision for precision in PRECISIONS if precision in samples]
    for precision in ours:
        found[precision] = paired_ratio(samples["scipy"], samples[precision])
    if "OpenCV" in samples:
        found["OpenCV/ours"] = paired_ratio(samples["OpenCV"], samples[ours[-1]])
    return found


def of(column: str) -> str:
    """The sign behind a number of a column: "x" of a ratio, none of milliseconds."""
    return "" if column.endswith(" ms") else "x"


def table(found: list[tuple[Row, dict[str, float]]]) -> list[str]:
    """Lines of Markdown: the rows, and the geometric means of their ratios."""
    lines = [
        f"| filter | image | {' | '.join(COLUMNS)} |",
        f"| --- | --- |{' --: |' * len(COLUMNS)}",
    ]
    for row, numbers in found:
        size = " x ".join(map(str, row.shape))
        words = [f"{numbers[key]:.3g}{of(key)}" if key in numbers else "" for key in COLUMNS]
        lines.append(f"| {row.name} | {size}, {np.dtype(row.dtype)} | {' | '.join(words)} |")
    lines.append("")
    for sums, kind in ((True, "filters that sum"), (False, "filters that order elements")):
        for key in ("strict", "standard", "OpenCV/ours"):
            ratios = [numbers[key] for row, numbers in found if row.sums == sums and key in numbers]
            if ratios:
                mean = float(np.exp(np.mean(np.log(ratios))))
                lines.append(
                    f"- {kind}, {key}: geometric mean of {len(ratios)} {mean:.2f}, "
                    f"least {min(ratios):.2f}"
                )
    return lines


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "ndimage",
        help="time filters of images, beside those of scipy, OpenCV and scikit-image",
        description="A table of filters of images: the times of scipy, OpenCV and scikit-image, "
        'scipy\'s time over ours for precision "strict" and "standard", and OpenCV\'s time over '
        'ours, of "standard" for filters that sum. scipy and scikit-image use one thread.',
    )
    parser.add_argument("--rounds", type=int, default=9, help="samples of each function")
    parser.add_argument("--threads", type=int, default=1, help="of ours and OpenCV's; default: 1")
    parser.add_argument("--small", action="store_true", help="images of 16 x 16 to 256 x 256")
    parser.add_argument("--only", nargs="*", default=[], help="words of the rows' names")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table. Beside other work nothing is measured, and the exit status is UNTOLD."""
    disturbed = disturbance(options.threads)
    if disturbed:
        print(disturbed)
        return UNTOLD
    rivals = dict[str, Any]()
    for name, module in (("OpenCV", "cv2"), ("scikit-image", "skimage.filters")):
        if find_spec(module.partition(".")[0]):
            rivals[name] = import_module(module)
        else:
            print(f"{name} is left out: pip install '.[rivals]'")
    if "OpenCV" in rivals:
        rivals["OpenCV"].setNumThreads(options.threads)
    found = []
    with implicit_conv.config(num_threads=options.threads):
        for row in small_rows() if options.small else rows():
            if all(word in f"{row.name} {np.dtype(row.dtype)}" for word in options.only):
                functions = {name: Local(run) for name, run in contenders(row, rivals).items()}
                found.append((row, cells(interleave(functions, options.rounds))))
    print("\n".join(table(found)))
    return 0
