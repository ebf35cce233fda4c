"""``implicit-conv demo``: run a photograph through a bank of filters; time and check the result."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.errors import ShapeError, UsageError
from implicit_conv.timing import disturbance

Array = NDArray[Any]
TAPS = 11  # height and width of every filter of the bank


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "demo",
        help="filter a photograph; show plan, speed, error and feature maps",
        description="Run a photograph through blur, sharpen, edge and Gabor filters.",
    )
    parser.add_argument("image", nargs="?", help="a picture; default: matplotlib's sample")
    parser.add_argument("--out", default="implicit-conv-demo.png", help="the picture to write")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print plan, time, GFLOP/s and error; write the picture."""
    from implicit_conv.operators.conv import plan_conv2d
    from implicit_conv.testing import Case, error_units

    x = load_picture(options.image)
    check_output(Path(options.out))  # before the work, not after it
    names, w = filter_bank()
    plan = plan_conv2d(x.shape, w.shape, padding="same")
    _show(plan.explain())
    cold, y = _timed(lambda: plan(x, w), 1)
    _show(f"first call  {cold * 1e3:.1f} ms; it compiles the kernels, or loads them from the cache")
    disturbed = disturbance(1)
    if disturbed:
        _show(f"noise       {disturbed}")
    seconds, _ = _timed(lambda: plan(x, w), 20)
    _show(f"time        {seconds * 1e3:.3f} ms, {plan.flops / seconds / 1e9:.0f} GFLOP/s")
    im2col_seconds, _ = _timed(lambda: numpy_im2col(x, w), 3)
    longer = f", {im2col_seconds / seconds:.1f} times as long" if not disturbed else ""
    _show(f"numpy       {im2col_seconds * 1e3:.1f} ms by im2col and matmul{longer}")
    half = TAPS // 2
    pads = ((half, half), (half, half))
    case = Case(C=3, K=len(w), size=x.shape[2:], kernel=(TAPS, TAPS), padding=pads)
    units = error_units(y, case.reference(x, w), case.reference(x, w, True), "float32")
    _show(f"error       at most {units:.2f} units of 2^-24 * sum|x||w| against float64")
    draw(x, names, y, Path(options.out))
    _show(f"picture     {options.out}")


def _show(line: str) -> None:
    """Print at once: the next line may take seconds."""
    print(line, flush=True)


def check_output(path: Path) -> None:
    """Refuse a file that matplotlib could not write.

    Raises
    ------
    UsageError
        The suffix names no picture format, or the folder does not exist.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    formats = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in formats:
        raise UsageError(f"--out {path}: the name must end in one of .{', .'.join(formats)}")
    if not path.parent.is_dir():
        raise UsageError(f"--out {path}: there is no folder {path.parent}")


def _timed(function: Any, repeats: int) -> tuple[float, Array]:
    """(median seconds, last result)."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)), result


def load_picture(path: str | None) -> Array:
    """A picture as float32 (1, 3, H, W), values in [0, 1].

    Raises
    ------
    ImportError
        Pillow or matplotlib is not installed.
    OSError
        The file is not a picture.
    ShapeError
        The picture is smaller than the filters.
    """
    try:
        from matplotlib import cbook
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f"{error.name} is not installed; in a checkout: pip install '.[plot]'"
        ) from None
    if path is None:
        source = cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
        with Image.open(source) as image:
            pixels = np.asarray(image.convert("RGB"))
    else:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
    if min(pixels.shape[:2]) < TAPS:
        raise ShapeError(
            f"the picture has {pixels.shape[1]} x {pixels.shape[0]} pixels; "
            f"the filters need at least {TAPS} x {TAPS}"
        )
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32) / 255


def filter_bank() -> tuple[list[str], Array]:
    """(names, filters as float32 (K, 3, TAPS, TAPS)); each filters the mean of the colours."""
    y, x = np.mgrid[:TAPS, :TAPS] - TAPS // 2
    gauss = np.exp(-(x**2 + y**2) / (2 * 2.0**2))
    gauss /= gauss.sum()
    dot = ((x == 0) & (y == 0)).astype(float)
    narrow = np.exp(-(x**2 + y**2) / (2 * 1.0**2))
    bank = {
        "blur": gauss,
        "sharpen": 2.5 * dot - 1.5 * gauss,
        "vertical edges": x * narrow / np.abs(x * narrow).sum(),
        "horizontal edges": y * narrow / np.abs(y * narrow).sum(),
        "spots": narrow / narrow.sum() - gauss,
    }
    for degrees in (0, 45, 90, 135):
        angle = np.deg2rad(degrees)
        along = x * np.cos(angle) + y * np.sin(angle)
        wave = np.exp(-(x**2 + y**2) / (2 * 2.2**2)) * np.cos(2 * np.pi * along / 5)
        wave -= wave.mean()
        bank[f"Gabor {degrees}°"] = wave / np.abs(wave).sum()
    filters = np.stack(list(bank.values()))[:, None] / 3
    return list(bank), np.repeat(filters, 3, axis=1).astype(np.float32)


def numpy_im2col(x: Array, w: Array) -> Array:
    """The usual numpy code: multiply a matrix of all windows by the filters."""
    half = TAPS // 2
    padded = np.pad(x, ((0, 0), (0, 0), (half, half), (half, half)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (TAPS, TAPS), axis=(2, 3))
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, w[0].size)
    y = columns @ w.reshape(len(w), -1).T
    return y.reshape(*x.shape[2:], len(w)).transpose(2, 0, 1)[None]


def draw(x: Array, names: list[str], y: Array, path: Path) -> None:
    """Write the picture and its feature maps, side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 5).flat
    axes[0].imshow(x[0].transpose(1, 2, 0))
    axes[0].set_title("input")
    for axis, name, plane in zip(axes[1:], names, y[0], strict=True):
        signed = abs(plane.mean()) < 0.1  # the sum of an edge or wave filter is zero
        limit = float(np.quantile(np.abs(plane), 0.995))
        axis.imshow(plane, cmap="gray", vmin=-limit if signed else 0, vmax=limit if signed else 1)
        axis.set_title(name)
    for axis in figure.axes:
        axis.set_axis_off()
    figure.savefig(path, dpi=110)
