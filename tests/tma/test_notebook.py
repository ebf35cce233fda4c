"""What a notebook shows of maps, walks and lowerings: the drawing of their copy, or their text."""

import re
import sys
import xml.etree.ElementTree as ET

import pytest

from implicit_conv import tma
from implicit_conv.tma.show.examples import EXAMPLES

TEXT = "{http://www.w3.org/2000/svg}text"
SHAPES = (2, 5, 6, 64), (32, 3, 3, 64)


def texts(svg):
    """The texts of a drawing, which is one SVG element."""
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in svg
    return ["".join(node.itertext()).strip() for node in root.iter(TEXT)]


def rows(svg):
    """The pixels of the rows of shared memory that a drawing shows, in their order."""
    found = (re.fullmatch(r"\(([-\d, ]+)\)", text) for text in texts(svg))
    return [[int(x) for x in match[1].split(",")] for match in found if match]


def test_a_map_shows_the_copy_from_its_lower_corner(case, lab):
    map = lab.make_map(case)
    spatial = len(map.shape) - 2
    lower = [*case["lower"]] if isinstance(case["lower"], list) else [case["lower"]]
    first = (0, *[0] * (spatial - len(lower)), *lower, 0)
    assert map.first == first
    shown = rows(map._repr_svg_())
    walked = lab.closed_form(map, first).tolist()
    assert shown[0] == walked[0] and all(row in walked for row in shown)
    assert f"start ({', '.join(map_text for map_text in [str(x) for x in first])})" in " ".join(
        texts(map._repr_svg_())
    )


def test_a_walk_shows_its_own_operands():
    map = EXAMPLES["row"].map
    walked = tma.walk(map, (0, 2, -1, 0), w_halo=2)
    assert rows(walked._repr_svg_()) == [[0, 2, x] for x in range(-1, 6)] + [[1, 2, -1]]
    moved = tma.walk(map, (0, 3, -1, 0), w_halo=1, w_offset=1)
    assert rows(moved._repr_svg_()) == [[0, 3, x] for x in range(7)]
    offsets = tma.Im2colMap(
        shape=(2, 5, 6, 64),
        dtype="float16",
        lower_corner=(-1, -1),
        upper_corner=(-1, -1),
        pixels_per_column=4,
        channels_per_pixel=64,
    )
    walked = tma.walk(offsets, (1, -1, -1, 0), (2, 1))
    assert rows(walked._repr_svg_()) == [[1, 1, x] for x in range(4)]


@pytest.mark.parametrize("order", ["interleaved", "grouped", "inline"])
def test_a_walk_keeps_its_order_of_halos(order):
    example = EXAMPLES["ptx-19"]
    walked = tma.walk(example.map, example.coords, w_halo=2, halo_order=order)
    assert any(f"order of the halo rows: {order} " in text for text in texts(walked._repr_svg_()))


def test_a_walk_says_what_it_is():
    walked = tma.walk(EXAMPLES["row"].map, (0, 2, -1, 0), w_halo=2)
    words = "8 rows of 128 bytes from (0, 2, -1, 0); 2 filled, 2 of the halo"
    assert repr(walked) == f"<Walk of im2col::w: {words}>"
    tile = EXAMPLES["tile"]
    assert repr(tma.walk(tile.map, tile.coords)).startswith("<Walk of tile: 8 rows of 128 bytes")


@pytest.mark.parametrize(
    ("mode", "stride", "buffers"),
    [("im2col", 1, 1), ("w", 1, 1), ("w", 2, 2), ("w128", 2, 2), ("w_sm90", 2, 1)],
)
def test_a_lowering_shows_its_first_loads(mode, stride, buffers):
    tile_m = 128 if mode == "w128" else 6
    options = {"stride": stride, "padding": 1, "dtype": "float16", "tile_m": tile_m}
    lowering = tma.maps_for(SHAPES, mode, **options)
    block = next(lowering.k_blocks(0))
    svg = lowering._repr_svg_()
    if mode == "w" and stride == 1:
        assert rows(svg) == [[0, 0, x] for x in range(-1, 6)] + [[1, 0, -1]]
    assert [n for n in (1, 2, 3) if f"buffer {n}:" in " ".join(texts(svg))] == (
        [1, 2] if buffers == 2 else []
    )
    start = ", ".join(str(x) for x in block.loads[0].coords)
    assert f"start ({start})" in " ".join(texts(svg))


def test_nothing_to_load_shows_nothing():
    empty = tma.maps_for(((0, 5, 6, 64), (32, 3, 3, 64)), padding=1)
    assert empty._repr_svg_() is None


def test_what_is_too_large_to_draw_shows_its_text():
    sizes = {"pixels_per_column": 8, "channels_per_pixel": 64}
    corners = {"lower_corner": (0, 0), "upper_corner": (0, 0)}
    map = tma.Im2colMap(shape=(1, 900, 900, 64), dtype="float16", **sizes, **corners)
    assert map._repr_svg_() is None
    assert tma.walk(map, (0, 0, 0, 0))._repr_svg_() is None


def test_without_matplotlib_a_notebook_shows_the_text(monkeypatch):
    monkeypatch.delitem(sys.modules, "implicit_conv.tma.show.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert EXAMPLES["row"].map._repr_svg_() is None


def test_every_example_has_a_picture_of_its_map():
    for name, example in EXAMPLES.items():
        assert rows(example.map._repr_svg_()), name
