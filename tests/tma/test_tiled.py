"""Tiled maps: boxes equal indices into the tensor; stores write back what loads read."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv import tma


@st.composite
def boxes(draw):
    """(a map of any rank, a start that may lie outside)."""
    rank = draw(st.integers(1, 5))
    outer = [draw(st.integers(1, 5)) for _ in range(rank - 1)]
    shape = (*outer, 16 * draw(st.integers(1, 2)))
    box = [draw(st.integers(1, 6)) for _ in outer] + [16 * draw(st.integers(1, 2))]
    steps = [draw(st.integers(1, 3)) for _ in outer] + [1]
    coords = [draw(st.integers(-4, 7)) for _ in outer] + [draw(st.integers(-2, 2)) * 16]
    return tma.TiledMap(shape=shape, dtype="uint8", box=box, step=steps), coords


def expected(map, x, coords):
    """The box by one array of positions a dimension; zeros outside the tensor."""
    steps = zip(coords, map.box, map.step, strict=True)
    positions = [np.arange(at, at + count, step) for at, count, step in steps]
    inside = [(p >= 0) & (p < size) for p, size in zip(positions, x.shape, strict=True)]
    clipped = [np.clip(p, 0, size - 1) for p, size in zip(positions, x.shape, strict=True)]
    mask = functools.reduce(np.multiply.outer, inside)
    return np.where(mask, x[np.ix_(*clipped)], 0).reshape(-1, map.box[-1])


@examples(150, 5000)
@given(boxes())
def test_a_box_is_a_slice(case):
    map, coords = case
    x = np.random.default_rng(0).integers(1, 200, map.shape).astype("uint8")
    rows = tma.load(map, x, coords)
    np.testing.assert_array_equal(rows, expected(map, x, coords))
    walked = tma.walk(map, coords)
    assert walked.bytes == rows.nbytes and not walked.halo.any()
    assert walked.coordinates.shape == (len(rows), map.rank - 1)
    np.testing.assert_array_equal(tma.smem_image(map, x, coords).view(), rows)
    y = np.zeros_like(x)
    if min(coords) < 0:
        with pytest.raises(tma.TensorMapError, match="must be at least 0 for a store"):
            tma.store(map, y, coords, rows)
        return
    tma.store(map, y, coords, rows)
    touched = expected(map, np.ones_like(x), coords).sum()
    assert (y != 0).sum() == touched and set(np.unique(x[y != x])) <= set(np.unique(x))
    np.testing.assert_array_equal(y[y != 0], x[y != 0])


LIMITS = [  # accepted, refused, field
    ({"box": (256, 64)}, {"box": (257, 64)}, "box[0]"),
    ({"box": (1, 64)}, {"box": (0, 64)}, "box[0]"),
    ({"box": (8, 8)}, {"box": (8, 4)}, "box[1]"),
    ({"box": (8, 64), "swizzle": "128B"}, {"box": (8, 72), "swizzle": "128B"}, "box[1]"),
    ({"box": (8, 256)}, {"box": (8, 264)}, "box[1]"),
    ({"step": (8, 1)}, {"step": (9, 1)}, "step[0]"),
    ({"step": 2}, {"step": (2,)}, "step"),
    ({}, {"box": (8,)}, "box"),
    ({"shape": (5,), "box": (8,), "step": (1,)}, {"shape": (2, 5), "box": (1, 8)}, "shape[1]"),
    ({}, {"interleave": "16B"}, "interleave"),
    ({"swizzle": "128B_ATOM_64B"}, {"swizzle": "96B"}, "swizzle"),
    ({"strides": (256,)}, {"strides": (264,)}, "strides[0]"),
    ({"address": 4096}, {"address": 4104}, "address"),
    ({}, {"shape": (1,) * 6, "box": (1,) * 6}, "shape"),
]


@pytest.mark.parametrize(("accepted", "refused", "field"), LIMITS)
def test_limits_of_a_tiled_map(accepted, refused, field):
    base = {"shape": (30, 128), "dtype": "float16", "box": (8, 64)}
    tma.TiledMap(**{**base, **accepted})
    with pytest.raises(tma.TensorMapError) as error:
        tma.TiledMap(**{**base, **refused})
    found = error.value.findings
    assert field in [finding.field for finding in found]
    assert all(f.source == "CUDA driver API, cuTensorMapEncodeTiled" for f in found)


def test_the_arguments_of_a_tiled_map():
    map = tma.TiledMap(shape=(6, 30, 128), dtype="bfloat16", box=(1, 8, 64), step=2, address=256)
    arguments = map.arguments
    assert arguments["function"] == "cuTensorMapEncodeTiled"
    assert arguments["globalDim"] == (128, 30, 6) and arguments["globalStrides"] == (256, 7680)
    assert arguments["boxDim"] == (64, 8, 1) and arguments["elementStrides"] == (1, 2, 2)
    assert "pixelsPerColumn" not in arguments
    assert tma.lint(map) == tma.lint(arguments) == []
    assert map.counts == (1, 4, 64) and map.rows() == 4


TEXTS = [  # direction, text that follows the name of a copy at {64, 8, 3} or {8, 1, 0, 0}
    (
        "load",
        "tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
        "[dst], [map, {64, 8, 3}], [mbar];",
    ),
    (
        "multicast",
        "tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[dst], [map, {64, 8, 3}], [mbar], ctaMask;",
    ),
    ("prefetch", "prefetch.tensor.3d.L2.global.tile [map, {64, 8, 3}];"),
    ("store", "tensor.3d.global.shared::cta.tile.bulk_group [map, {64, 8, 3}], [dst];"),
    ("reduce", "tensor.3d.global.shared::cta.add.tile.bulk_group [map, {64, 8, 3}], [dst];"),
]


@pytest.mark.parametrize(("direction", "text"), TEXTS)
def test_the_instruction_of_every_direction(direction, text):
    """The forms that the assembler accepted."""
    map = tma.TiledMap(shape=(6, 30, 128), dtype="float16", box=(1, 8, 64))
    copy = "cp.reduce.async" if direction == "reduce" else "cp.async"
    assert map.ptx((3, 8, 64), direction=direction) == f"{copy}.bulk.{text}"


def test_im2col_prefetches_and_stores():
    map = tma.Im2colMap(
        shape=(2, 5, 7, 64),
        dtype="float16",
        lower_corner=(0, 0),
        upper_corner=(0, 0),
        pixels_per_column=8,
        channels_per_pixel=8,
    )
    assert map.ptx((0, 1, 2, 8), (0, 1), direction="prefetch") == (
        "cp.async.bulk.prefetch.tensor.4d.L2.global.im2col [map, {8, 2, 1, 0}], {1, 0};"
    )
    assert map.ptx((0, 1, 2, 8), direction="store", dst="src") == (
        "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group "
        "[map, {8, 2, 1, 0}], [src];"
    )
    with pytest.raises(tma.TensorMapError, match="im2col_no_offs"):
        map.ptx((0, 1, 2, 8), (0, 1), direction="store")
    with pytest.raises(ValueError, match="reduction 'mul' is unknown; choose from add"):
        map.ptx((0, 1, 2, 8), direction="reduce", reduction="mul")


def test_a_box_is_drawn():
    map = tma.TiledMap(shape=(3, 4, 6, 16), dtype="uint8", box=(2, 2, 3, 16))
    text = tma.draw(map, (0, 3, 4, 0))
    assert "box 2 x 2 x 3 x 16, start (0, 3, 4, 0), rows of 16 elements" in text
    assert "[0] = 0" in text and "[0] = 1" in text
    assert "  0 <- (0, 3, 4)" in text and "(2)" in text, "the third column lies outside"
    assert "tensor" in tma.draw(tma.TiledMap(shape=(64,), dtype="uint8", box=(32,)), (0,))
