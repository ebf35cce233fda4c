"""Rows of tensor copies equal captures of hardware, and the examples of the PTX ISA."""

import json
from pathlib import Path

import numpy as np
import pytest

from implicit_conv import ptx
from implicit_conv.ptx.memory.tensor_map import swizzled

DATA = Path(__file__).parent.parent / "data"
GIVEN = [
    json.loads((DATA / name).read_text()) for name in ("tma_golden.json", "tma_golden_more.json")
]
CASES = [case for file in GIVEN for case in file["cases"]]
REFUSED = [case for file in GIVEN for case in file["must_raise"]]
MODES = {"im2col": "im2col", "w": "im2col::w", "w128": "im2col::w::128"}


def fastest_first(value):
    return tuple(value[::-1]) if isinstance(value, list) else (value,)


def map_of(case):
    dims = fastest_first(case["shape"])
    strides = np.cumprod([2 * dims[0], *dims[1:-1]]).tolist()
    steps = fastest_first(case["step"])
    return ptx.TensorMap(
        MODES[case["mode"]],
        itemsize=2,
        address=0,
        dims=dims,
        strides=tuple(strides),
        steps=(1, *steps, *(1,) * (len(dims) - 1 - len(steps))),
        lower=fastest_first(case["lower"]),
        upper=fastest_first(case["upper"]),
        channels=case["channels"],
        pixels=case["pixels"],
    )


def operands(case):
    if case["mode"] == "im2col":
        return fastest_first(case.get("offsets") or [0] * (len(case["shape"]) - 2))
    return case["w_halo"], case["w_offset"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_rows(case):
    map = map_of(case)
    rows = map.rows(fastest_first(case["coords"]), operands(case), map.mode)
    inside = [
        None if map.address_of(row) is None else list(row[:0:-1])  # without the channel
        for row in rows
    ]
    assert inside == case["rows"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_starts_outside_the_window(case):
    map = map_of(case)
    with pytest.raises(ptx.PtxError, match=r"outside the window|out of range"):
        map.rows(fastest_first(case["coords"]), operands(case), map.mode)


def test_swizzle_of_the_documentation():
    """PTX ISA 5.5.6: in a line of 128 bytes, unit j of line i is stored as unit j ^ i."""
    at = np.arange(64) * 16
    line, unit = at // 128, at // 16 % 8
    for span, ways in ((32, 2), (64, 4), (128, 8)):
        assert np.array_equal(swizzled(at, span), line * 128 + (unit ^ line % ways) * 16)
    assert np.array_equal(swizzled(at, 0), at)


def test_modes_and_ranks_must_agree():
    map = map_of(next(case for case in CASES if case["mode"] == "w"))
    with pytest.raises(ptx.PtxError, match="the instruction says tile, but its tensor map is for"):
        map.rows((0, 0, 0, 0), (), "tile")
    with pytest.raises(ptx.PtxError, match="3 coordinates for a map of rank 4"):
        map.rows((0, 0, 0), (0, 0), map.mode)
    with pytest.raises(ptx.PtxError, match="out of range"):
        map.rows((0, 0, 0, 0), (512, 0), map.mode)
