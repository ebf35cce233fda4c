"""``implicit-conv demo``: run a photograph through a bank of filters; time and check the result."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.errors import ShapeError, UsageError, install
from implicit_conv.timing import disturbance

Array = NDArray[Any]
TAPS = 11  # height and width of every filter of the bank
CALLS, SECONDS = 20, 2.0  # of what is timed at most, so that large pictures take no minute
CHECKED = 640  # rows and columns at most that are compared with a reference, from the corner on
CONTRAST = 0.995  # quantile of the absolute values of a gray plane that is black or white


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "demo",
        help="filter a photograph; show plan, speed, error and feature maps",
        description="Run a photograph through blur, sharpen, edge and Gabor filters. Beside other "
        "work it compares no times.",
    )
    parser.add_argument("image", nargs="?", help="a picture; default: matplotlib's sample")
    parser.add_argument("--out", default="implicit-conv-demo.png", help="the picture to write")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the picture; print plan, time, GFLOP/s and error."""
    from implicit_conv.operators.conv import plan_conv2d
    from implicit_conv.tools.picture_rivals import as_planes, picture_rivals

    picture = load_picture(options.image)
    check_output(Path(options.out))  # before the work, not after it
    colour, gray = filter_bank()
    operands = as_operands(picture, colour, gray)
    plans = [
        plan_conv2d(x.shape, w.shape, padding="same", padding_mode="reflect") for x, w in operands
    ]
    facts: list[dict[str, Any]] = [plan.facts() for plan in plans]
    threads = max(each["threads"] for each in facts)

    def filtered() -> list[Array]:
        return [plan(x, w) for plan, (x, w) in zip(plans, operands, strict=True)]

    cold, found = _timed(filtered, 1)
    draw(picture, {**colour, **gray}, as_planes(*found), Path(options.out))
    _show(f"picture     {options.out}")
    for name, plan in zip(("colour", "gray"), plans, strict=True):
        _show(f"{name:12}{plan.problem}\n{plan.explain(brief=True)}")
    _show(f"first call  {cold * 1e3:.1f} ms; it compiles the kernels, or loads them from the cache")
    disturbed = disturbance(threads)
    seconds, _ = _timed(filtered, CALLS)
    estimate = sum(each["milliseconds"] for each in facts)
    flops = sum(plan.flops for plan in plans)
    _show(
        f"measured    {seconds * 1e3:.3f} ms for both on {threads} thread{'s' * (threads > 1)}, "
        f"where the estimate is {estimate:.3f} ms; {flops / seconds / 1e9:.0f} GFLOP/s"
    )
    mean = operands[1][0][0, 0]
    rivals = picture_rivals((picture, mean), [*colour.values()], [*gray.values()], threads)
    times = {name: _timed(function, CALLS)[0] for name, function in rivals.items()}
    disturbed = disturbed or disturbance(threads)
    for name, rival in times.items():
        longer = "" if disturbed else f", {rival / seconds:.1f} times as long"
        _show(f"rival       {name}: {rival * 1e3:.1f} ms for the same planes{longer}")
    if disturbed:
        _show(f"busy        times are not compared: {disturbed.partition(',')[0]}")
    if not times:
        command = install("opencv-python-headless")
        _show(f"rival       none is installed to compare with: {command}")
    units = max(error_of(*each) for each in zip(operands, found, strict=True))
    _show(f"error       at most {units:.2f} units of 2^-24 * sum|x||w| against float64")
    return 0


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


def _timed(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """(median seconds, last result) of so many calls, or of those that begin within SECONDS."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > SECONDS:
            break
    return float(np.median(seconds)), result


def load_picture(path: str | None) -> Array:
    """A picture as float32 (H, W, 3), values in [0, 1]: of more than 8 bits, those of its range,
    where NaN is black.

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
        command = install("matplotlib>=3.8", "Pillow>=10")
        raise ImportError(f"{error.name} is not installed: {command}") from None
    source = path or cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    with Image.open(source) as image:
        deep = image.mode.startswith(("I", "F"))  # gray, of 16 or 32 bits
        pixels = np.asarray(image if deep else image.convert("RGB"))
    if min(pixels.shape[:2]) < TAPS:
        raise ShapeError(
            f"the picture has {pixels.shape[1]} x {pixels.shape[0]} pixels; "
            f"the filters need at least {TAPS} x {TAPS}"
        )
    if not deep:
        return pixels.astype(np.float32) / 255
    finite = pixels[np.isfinite(pixels)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    _show(f"values      {low:g} to {high:g}, which are shown from black to white")
    pixels = np.nan_to_num(pixels.astype(np.float32), nan=low, posinf=high, neginf=low)
    scaled = (pixels - low) / max(high - low, 1e-30)
    return np.repeat(scaled[..., None], 3, axis=2)


def filter_bank() -> tuple[dict[str, Array], dict[str, Array]]:
    """Names and float32 filters (TAPS, TAPS): those of each colour, and those of their mean."""
    y, x = np.mgrid[:TAPS, :TAPS] - TAPS // 2
    gauss = np.exp(-(x**2 + y**2) / (2 * 2.0**2))
    gauss /= gauss.sum()
    dot = ((x == 0) & (y == 0)).astype(float)
    narrow = np.exp(-(x**2 + y**2) / (2 * 1.0**2))
    colour = {"blur": gauss, "sharpen": 2.5 * dot - 1.5 * gauss}
    gray = {
        "vertical edges": x * narrow / np.abs(x * narrow).sum(),
        "horizontal edges": y * narrow / np.abs(y * narrow).sum(),
        "spots": narrow / narrow.sum() - gauss,
    }
    for degrees in (0, 45, 90, 135):
        angle = np.deg2rad(degrees)
        along = x * np.cos(angle) + y * np.sin(angle)
        wave = np.exp(-(x**2 + y**2) / (2 * 2.2**2)) * np.cos(2 * np.pi * along / 5)
        wave -= wave.mean()
        gray[f"Gabor {degrees}°"] = wave / np.abs(wave).sum()
    return as_float32(colour), as_float32(gray)


def as_float32(filters: dict[str, Array]) -> dict[str, Array]:
    """The filters in float32."""
    return {name: values.astype(np.float32) for name, values in filters.items()}


Operands = tuple[Array, Array]  # x (N, 1, H, W) and w (K, 1, TAPS, TAPS)


def as_operands(
    picture: Array, colour: dict[str, Array], gray: dict[str, Array]
) -> tuple[Operands, Operands]:
    """The operands of two convolutions: the colours as three images, and their mean as one."""
    planes = np.ascontiguousarray(picture.transpose(2, 0, 1)[:, None])
    mean = planes.mean(axis=0, keepdims=True)
    each, one = (np.stack(list(filters.values()))[:, None] for filters in (colour, gray))
    return (planes, each), (mean, one)


def error_of(operands: Operands, y: Array) -> float:
    """The error of a result, in the units that the demo prints."""
    from implicit_conv.testing import Case, error_units

    (x, w), half = operands, TAPS // 2
    padded = np.pad(x, ((0, 0), (0, 0), (half, half), (half, half)), "reflect")
    padded = padded[..., : CHECKED + 2 * half, : CHECKED + 2 * half]
    case = Case(N=len(x), C=1, K=len(w), size=padded.shape[2:], kernel=(TAPS, TAPS))
    exact, scale = case.reference(padded, w), case.reference(padded, w, True)
    return float(error_units(y[..., :CHECKED, :CHECKED], exact, scale, "float32"))


def draw(picture: Array, filters: dict[str, Array], planes: list[Array], path: Path) -> None:
    """Write the picture and its feature maps, each with its filter in a corner."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns, rows = 5, 2
    height, width = picture.shape[:2]
    panel = 2.5  # inches
    figure = Figure(
        figsize=(columns * panel, rows * (panel * height / width + 0.35)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns).flat)
    axes[0].imshow(picture)
    axes[0].set_title("input")
    for axis, (name, taps), plane in zip(axes[1:], filters.items(), planes, strict=True):
        axis.set_title(name)
        if plane.ndim == 3:
            axis.imshow(plane.clip(0, 1))
        else:  # the sum of the filter is zero, and so is the middle of the scale
            limit = max(float(np.quantile(np.abs(plane), CONTRAST)), 1e-6)
            axis.imshow(plane, cmap="gray", vmin=-limit, vmax=limit)
        inset = axis.inset_axes((0.02, 0.02, 0.24, 0.24), anchor="SW")
        most = float(np.quantile(np.abs(taps), 0.99))  # a single large tap would hide the others
        inset.imshow(taps, cmap="RdBu_r", vmin=-most, vmax=most)
        inset.set_xticks([])
        inset.set_yticks([])
        for spine in inset.spines.values():
            spine.set_color("white")
    for axis in axes:
        axis.set_axis_off()
    figure.savefig(path, dpi=110)
