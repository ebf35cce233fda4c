"""Golden cases, and walks in closed form, which share no code with kernels/walk.py."""

import json
import types
from pathlib import Path

import numpy as np
import pytest

from implicit_conv import tma

DATA = Path(__file__).parent.parent / "data"


def golden():
    """Cases of the file of captures and of our own file."""
    given = json.loads((DATA / "tma_golden.json").read_text())
    ours = json.loads((DATA / "tma_golden_more.json").read_text())
    return given["cases"] + ours["cases"], given["must_raise"] + ours["must_raise"]


def make_map(case, dtype="float16", **more):
    """The map of a golden case."""
    sizes = {"pixels_per_column": case["pixels"], "channels_per_pixel": case["channels"]}
    common = {"shape": case["shape"], "dtype": dtype, "traversal_stride": case["step"], **sizes}
    common.update(more)
    if case["mode"] == "im2col":
        corners = {"lower_corner": case["lower"], "upper_corner": case["upper"]}
        return tma.Im2colMap(**common, **corners)
    corners = {"lower_corner_w": case["lower"], "upper_corner_w": case["upper"]}
    return tma.Im2colWideMap(**common, **corners, mode=case["mode"])


def operands(case):
    """The operands of a golden case other than its coordinates."""
    return {key: case[key] for key in ("offsets", "w_halo", "w_offset") if key in case}


def along(k, start, lower, end, step):
    """(position, carries) of step k along an axis; the first run starts at start, then at lower."""
    first = -(-(end - start) // step)
    run = -(-(end - lower) // step)
    later = k - first
    position = np.where(later < 0, start + k * step, lower + later % run * step)
    return position, np.where(later < 0, 0, 1 + later // run)


def closed_form(map, coords, offsets=None, w_halo=0, w_offset=0):
    """Rows x (n, [d,] h, w) by division and remainder instead of by stepping."""
    size = map.shape[1:-1]
    if map.mode == "im2col":
        k = np.arange(map.pixels_per_column)
        boxes = list(
            zip(map.lower_corner, size, map.upper_corner, map.traversal_stride, strict=True)
        )
        columns = []
        for start, (lower, extent, upper, step) in zip(coords[-2:0:-1], boxes[::-1], strict=True):
            position, k = along(k, start, lower, extent + upper, step)
            columns.insert(0, position)
        shift = offsets or [0] * len(size)
        return np.stack(
            [coords[0] + k, *(p + o for p, o in zip(columns, shift, strict=True))], axis=1
        )
    if map.mode == "w":
        k = np.arange(map.pixels_per_column + w_halo)
    else:
        halo = [32 * (g + 1) + j for j in range(w_halo) for g in range(4)]
        k = np.array([*range(128), *halo])
    lower = map.lower_corner_w + w_offset
    end = size[-1] + map.upper_corner_w + w_offset
    w, images = along(k, coords[-2] + w_offset, lower, end, map.traversal_stride)
    fixed = [np.full(len(k), x) for x in coords[1:-2]]
    return np.stack([coords[0] + images, *fixed, w], axis=1)


CASES, MUST_RAISE = golden()


@pytest.fixture(params=CASES, ids=lambda case: case["name"])
def case(request):
    return request.param


@pytest.fixture(params=MUST_RAISE, ids=lambda case: case["name"])
def refused(request):
    return request.param


@pytest.fixture(scope="session")
def lab():
    """The helpers of this file, for tests to call."""
    names = (make_map, operands, closed_form)
    return types.SimpleNamespace(**{f.__name__: f for f in names}, cases=CASES)
