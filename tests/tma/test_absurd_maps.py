"""Numbers from the edges of int64 for every numeric argument of the laboratory's functions.

They answer, or say which argument or number is wrong; they never hang or take much memory.
"""

import numpy as np
import pytest
from edges import EDGES, answer, numbers
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv import ShapeError, tma
from implicit_conv.problem.problem import Problem
from implicit_conv.tma.show.picture import CELLS_MAX

COMMON = {"shape": (2, 4, 4, 64), "pixels_per_column": 16, "channels_per_pixel": 32}
BOX = {"lower_corner": (-1, -1), "upper_corner": (-1, -1), "traversal_stride": (1, 1)}
WIDE_BOX = {"lower_corner_w": -1, "upper_corner_w": -1, "traversal_stride": 1}
MEMORY = {"strides": (4096, 1024, 256), "address": 1024}
MAPS = {
    "im2col": tma.Im2colMap(**COMMON, **BOX, **MEMORY, dtype="float32"),
    "w": tma.Im2colWideMap(**COMMON, **WIDE_BOX, dtype="float16"),
    "w128": tma.Im2colWideMap(**COMMON, **WIDE_BOX, dtype="float16", mode="w128"),
}
STORED = {
    "im2col": tma.Im2colMap(**COMMON, lower_corner=(0, 0), upper_corner=(0, 0), dtype="float32"),
    "tiled": tma.TiledMap(shape=COMMON["shape"], dtype="float32", box=(1, 4, 4, 32)),
}
LOAD = {"coords": (0, -1, -1, 0), "offsets": (0, 0), "w_halo": 0, "w_offset": 0}


def changed(value):
    """A strategy of `value` with some of its numbers, or of its sequences, from the edges."""
    if isinstance(value, dict):
        return st.fixed_dictionaries({name: changed(entry) for name, entry in value.items()})
    if isinstance(value, tuple):
        whole = st.tuples(*map(changed, value))
        return st.integers(0, 9).flatmap(lambda n: whole if n else st.sampled_from(EDGES))
    if isinstance(value, int):
        return numbers(value)
    return st.just(value)


modes = st.sampled_from(sorted(MAPS))


@examples(100, 20_000, 300)
@given(mode=modes, data=st.data())
def test_maps(mode, data):
    """What a map refuses, the linter finds."""
    m = MAPS[mode]
    fields = {**COMMON, **(BOX | MEMORY if mode == "im2col" else WIDE_BOX)}
    given = {**data.draw(changed(fields)), "dtype": m.dtype.name}
    if m.mode != "im2col":
        given["mode"] = m.mode
    made = answer(type(m), words=["strides"], **given)
    findings = answer(tma.lint, given, words=given)
    if made is None:
        assert findings is None or any(found.severity == "error" for found in findings)
    else:
        assert not any(found.severity == "error" for found in findings)


@examples(70, 10_000, 200)
@given(data=st.data())
def test_tiled_maps(data):
    """What a tiled map refuses, the linter finds; what it accepts, it loads."""
    fields = {"shape": (4, 6, 64), "box": (2, 3, 32), "step": (1, 2, 1), "strides": (2048, 256)}
    given = {**data.draw(changed(fields)), "dtype": "float32"}
    made = answer(tma.TiledMap, **given, words=["strides"])
    findings = answer(tma.lint, given, words=given)
    if made is None:
        assert findings is None or any(found.severity == "error" for found in findings)
        return
    assert not any(found.severity == "error" for found in findings)
    start = data.draw(changed({"coords": (0, 0, 0)}))
    if np.prod(made.shape) < 1 << 20 and made.strides == fields["strides"]:
        walked = answer(tma.walk, made, **start)
        assert walked is None or len(walked) == made.rows()


@examples(70, 10_000, 200)
@given(mode=modes, data=st.data())
def test_arguments_of_the_driver(mode, data):
    arguments = MAPS[mode].arguments
    given = data.draw(changed(arguments))
    load = data.draw(changed({**LOAD, "dst": 0}))
    answer(tma.lint, given, **load, words=arguments)


@examples(70, 10_000, 200)
@given(mode=modes, data=st.data())
def test_loads(mode, data):
    """All functions refuse the same loads."""
    m = MAPS[mode]
    x = np.arange(2 * 4 * 4 * 64).reshape(m.shape).astype(m.dtype)
    load = data.draw(changed(LOAD if mode == "im2col" else {**LOAD, "offsets": None}))
    walked = answer(tma.walk, m, **load)
    rows = answer(tma.load, m, x, **load)
    image = answer(tma.smem_image, m, x, **load)
    assert (walked is None) == (rows is None) == (image is None)
    if walked is None:
        return
    np.testing.assert_array_equal(image.view(), rows)
    assert len(walked) == len(rows)


@examples(40, 2000, 100)
@given(mode=modes, dst=st.sampled_from(EDGES), data=st.data())
def test_destinations_and_stores(mode, dst, data):
    m = MAPS[mode]
    x = np.zeros(m.shape, m.dtype)
    image = answer(tma.smem_image, m, x, LOAD["coords"], dst=dst)
    assert image is None or (0 <= dst < 2**32 and dst % 128 == 0)
    store = STORED[data.draw(st.sampled_from(sorted(STORED)))]
    y, rows = np.zeros(store.shape, store.dtype), np.ones((16, 32), store.dtype)
    coords = data.draw(changed((0, 0, 0, 0)))
    answer(tma.store, store, y, coords=coords, rows=rows)


@examples(40, 2000, 100)
@given(data=st.data())
def test_drawings(data):
    """A picture of an absurdly large tensor is refused before it is drawn."""
    mode = data.draw(modes)
    size = data.draw(numbers(4, 200, unusual=(2**16, 2**20, 2**30)))
    fields = {**COMMON, "shape": (2, 4, size, 64), "dtype": "float16"}
    kind, box = (tma.Im2colMap, BOX) if mode == "im2col" else (tma.Im2colWideMap, WIDE_BOX)
    m = kind(**fields, **box)
    buffers = data.draw(st.one_of(st.none(), st.lists(changed((0, 0)), max_size=3)))
    start = data.draw(changed({"coords": LOAD["coords"]}))
    words = ["buffers", "w_halo", "w_offset", "the planes of shape"]
    text = answer(tma.draw, m, **start, buffers=buffers, color=False, words=words)
    assert text is None or len(text) < 100 * CELLS_MAX


@examples(70, 10_000, 200)
@given(data=st.data(), mode=st.sampled_from(["im2col", "w", "w128", "w_sm90"]))
def test_lowerings(data, mode):
    sizes = data.draw(changed({"n": 2, "h": 9, "w": 9, "r": 3, "s": 3}))
    options = data.draw(changed({"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}))
    x, w = (sizes["n"], sizes["h"], sizes["w"], 64), (32, sizes["r"], sizes["s"], 64)
    try:
        problem = Problem.parse(x, w, "float16", layout="NHWC", weight_layout="KRSC", **options)
    except ShapeError:
        return
    given = data.draw(changed({"tile_m": 128, "channels": 64, "address": 1024}))
    words = [
        "mode",
        "shape",
        "corner",
        "dgrad",
        "traversal_stride",
        "pixels",
        "a tile of",
        "w_halo",
        "strides",
    ]
    lowering = answer(tma.maps_for, problem, mode, **given, words=words)
    if lowering is not None:
        assert len(lowering.maps) <= 8
        next(lowering.k_blocks(0), None)
    m = MAPS["im2col" if mode == "im2col" else "w"]
    answer(tma.lint, m, problem=problem, words=words)


def test_an_address_ends_at_64_bits():
    with pytest.raises(tma.TensorMapError, match=r"address = 0x1.*, below 2\^64"):
        tma.Im2colMap(**COMMON, **BOX, dtype="float32", address=2**64)
