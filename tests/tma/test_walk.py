"""Walks equal hardware captures, cases worked by hand and the closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv import tma
from implicit_conv.kernels import walk as steps


def rows_of(walked):
    return [
        None if gone else row
        for row, gone in zip(walked.coordinates.tolist(), walked.filled, strict=True)
    ]


def test_golden_rows(case, lab):
    walked = tma.walk(lab.make_map(case), case["coords"], **lab.operands(case))
    assert rows_of(walked) == case["rows"]
    assert walked.bytes == len(case["rows"]) * case["channels"] * 2


def test_hardware_counted_these_bytes(lab):
    case = next(c for c in lab.cases if "complete_tx_fp32" in c)
    walked = tma.walk(lab.make_map(case, "float32"), case["coords"], **lab.operands(case))
    assert walked.bytes == case["complete_tx_fp32"]


def test_starts_that_must_raise(refused, lab):
    with pytest.raises(ValueError, match=r"must|is empty"):
        tma.walk(lab.make_map(refused), refused["coords"], **lab.operands(refused))


@st.composite
def loads(draw):
    """A sound map of any rank and mode, and a sound start."""
    integers = st.integers
    spatial = draw(st.lists(integers(1, 9), min_size=1, max_size=3))
    mode = draw(st.sampled_from(("im2col", "w", "w128")))
    lowers = [draw(integers(-4, 4)) for _ in spatial]
    uppers = [
        draw(integers(max(-8, low - size + 1), 7))
        for size, low in zip(spatial, lowers, strict=True)
    ]
    steps_ = [draw(integers(1, 8)) for _ in spatial]
    common = {
        "shape": (draw(integers(1, 4)), *spatial, 16),
        "dtype": "float16",
        "pixels_per_column": draw(integers(1, 200)),
        "channels_per_pixel": 8,
    }
    n = draw(integers(-3, 5))
    if mode == "im2col":
        map = tma.Im2colMap(
            **common, lower_corner=lowers, upper_corner=uppers, traversal_stride=steps_
        )
        ends = [size - 1 + up for size, up in zip(spatial, uppers, strict=True)]
        start = [draw(integers(low, end)) for low, end in zip(lowers, ends, strict=True)]
        return map, (n, *start, 0), {"offsets": [draw(integers(0, 5)) for _ in spatial]}
    map = tma.Im2colWideMap(
        **common,
        lower_corner_w=lowers[-1],
        upper_corner_w=uppers[-1],
        traversal_stride=steps_[-1],
        mode=mode,
    )
    fixed = [draw(integers(-2, size + 1)) for size in spatial[:-1]]
    w = draw(integers(lowers[-1] - 5, spatial[-1] - 1 + uppers[-1]))
    operands = {"w_halo": draw(integers(0, 31)), "w_offset": draw(integers(0, 31))}
    return map, (n, *fixed, w, 0), operands


@examples(250, 4000, 1000)
@given(loads())
def test_walk_equals_closed_form(lab, load):
    map, coords, operands = load
    walked = tma.walk(map, coords, **operands)
    expected = lab.closed_form(map, coords, **operands)
    np.testing.assert_array_equal(walked.coordinates, expected)
    outside = (expected < 0) | (expected >= np.array(map.shape[:-1]))
    np.testing.assert_array_equal(walked.filled, outside.any(axis=1))
    assert walked.bytes == len(expected) * 16


@pytest.mark.parametrize("w_halo", [0, 1, 2, 5, 31])
def test_w128_halo_rows_hold_the_group_ends(w_halo):
    """Row 128 + 4*j + g is pixel 32*(g+1) + j; with W = 1000 the position identifies the pixel."""
    map = tma.Im2colWideMap(
        shape=(1, 1, 1000, 64),
        dtype="float16",
        lower_corner_w=0,
        upper_corner_w=0,
        traversal_stride=1,
        pixels_per_column=7,  # ignored
        channels_per_pixel=64,
        mode="w128",
    )
    w = tma.walk(map, (0, 0, 0, 0), w_halo=w_halo).coordinates[:, 2]
    assert len(w) == 128 + 4 * w_halo
    for j in range(w_halo):
        for g in range(4):
            assert w[128 + 4 * j + g] == 32 * (g + 1) + j


def test_both_halo_orders_agree_up_to_one_element(monkeypatch):
    by_element = [steps.w128_halo_row(k, 1) for k in range(129)]
    monkeypatch.setattr(steps, "W128_HALO_BY_ELEMENT", False)
    assert [steps.w128_halo_row(k, 1) for k in range(129)] == by_element
    assert sorted(steps.w128_halo_row(k, 3) for k in range(131))[-12:] == list(range(128, 140))


ROWS = {
    "interleaved": lambda g, j, halo: 128 + 4 * j + g,
    "grouped": lambda g, j, halo: 128 + g * halo + j,
    "inline": lambda g, j, halo: 32 * (g + 1) + g * halo + j,
}


@pytest.mark.parametrize("w_halo", [0, 1, 3, 31])
@pytest.mark.parametrize("order", ROWS)
def test_every_reading_of_the_halo_order(order, w_halo):
    """All rows hold a pixel; those of the halos are where the reading says."""
    map = tma.Im2colWideMap(
        shape=(1, 1, 1000, 64),
        dtype="float16",
        lower_corner_w=0,
        upper_corner_w=0,
        channels_per_pixel=64,
        mode="w128",
    )
    walked = tma.walk(map, (0, 0, 0, 0), w_halo=w_halo, halo_order=order)
    rows, w = np.arange(128 + 4 * w_halo), walked.coordinates[:, 2]
    halos = {ROWS[order](g, j, w_halo): 32 * (g + 1) + j for g in range(4) for j in range(w_halo)}
    assert rows[walked.halo].tolist() == sorted(halos)
    assert {int(row): int(w[row]) for row in rows[walked.halo]} == halos
    assert w[~walked.halo].tolist() == list(range(128))
    np.testing.assert_array_equal(walked.order, w)
    x = np.arange(64000, dtype="float16").view("uint16").reshape(map.shape).view("float16")
    image = tma.smem_image(map, x, (0, 0, 0, 0), w_halo=w_halo, halo_order=order)
    np.testing.assert_array_equal(image.view().view("u2"), x[0, 0, w].view("u2"))


def test_an_unknown_halo_order_lists_the_known_ones():
    map = tma.Im2colWideMap(
        shape=(1, 8, 8, 64),
        dtype="float16",
        lower_corner_w=0,
        upper_corner_w=0,
        channels_per_pixel=64,
    )
    with pytest.raises(ValueError, match=r"'plane' is unknown; choose from 'interleaved': row 128"):
        tma.walk(map, (0, 0, 0, 0), halo_order="plane")
