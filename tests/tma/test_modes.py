"""PTX's words for modes are taken wherever ours are, and mean the same."""

import re

import pytest

from implicit_conv import tma
from implicit_conv.tma.maps.driver import describe_arguments
from implicit_conv.tma.maps.json_maps import schema
from implicit_conv.tma.maps.ptx import INFIXES
from implicit_conv.tma.page.explore import page
from implicit_conv.tools.cli import main

SHAPES = (4, 9, 11, 64), (32, 3, 3, 64)
WORDS = [  # ours, and those of PTX
    ("im2col", "im2col"),
    ("w", "im2col::w"),
    ("w", ".im2col::w"),
    ("w", "IM2COL::W"),
    ("w128", "im2col::w::128"),
]
WIDE = [pair for pair in WORDS if pair[0] != "im2col"]
ROW = {
    "shape": (4, 9, 11, 64),
    "dtype": "float16",
    "lower_corner_w": -1,
    "upper_corner_w": -1,
    "channels_per_pixel": 64,
}


@pytest.mark.parametrize(("ours", "theirs"), WORDS)
def test_a_lowering(ours, theirs):
    lowering = tma.maps_for(SHAPES, theirs, dtype="float16")
    assert (lowering.mode, lowering.maps[0].mode) == (ours, ours)
    assert lowering == tma.maps_for(SHAPES, ours, dtype="float16")
    strided = {"stride": 2, "padding": 1, "dtype": "float16"}
    assert tma.phases_for(SHAPES, theirs, **strided) == tma.phases_for(SHAPES, ours, **strided)


@pytest.mark.parametrize(("ours", "theirs"), WIDE)
def test_a_map_and_its_arguments(ours, theirs):
    map = tma.Im2colWideMap(**ROW, mode=theirs)
    assert map == tma.Im2colWideMap(**ROW, mode=ours) and map.mode == ours
    assert tma.lint(**ROW, mode=theirs) == tma.lint(**ROW, mode=ours)
    description, found = describe_arguments({**map.arguments, "mode": theirs})
    assert (description.mode, found) == (ours, [])


@pytest.mark.parametrize(("ours", "theirs"), [*WORDS, ("tiled", "tile"), ("tiled", ".TILE")])
def test_an_option(ours, theirs, capsys):
    more = {"im2col": "", "tiled": "--box 1,2,4,64"}.get(ours, "--halo 2")
    for mode in (ours, theirs):
        assert main(f"draw --shape 2,3,9,64 --mode {mode} {more}".split()) == 0
    printed = capsys.readouterr().out
    half = len(printed) // 2
    assert printed[:half] == printed[half:]
    assert printed.startswith(theirs.lower().lstrip("."))


def test_the_page_offers_the_same_modes():
    options = re.findall(r'<option value="(\w+)">(.*?)</option>', page())
    assert dict(options) == INFIXES and len(options) == len(INFIXES)


def test_the_schema_of_files_has_both():
    (wide,) = (kind for kind in schema()["anyOf"] if kind["title"] == "Im2colWideMap")
    assert wide["properties"]["mode"]["enum"] == ["w", "w128", "im2col::w", "im2col::w::128"]


@pytest.mark.parametrize("call", [tma.maps_for, tma.phases_for])
def test_a_wrong_mode_of_a_lowering_lists_the_words(call):
    with pytest.raises(ValueError, match=r"'im2col::h' is unknown; .* im2col::w \(or w\), "):
        call(SHAPES, "im2col::h")


@pytest.mark.parametrize("mode", ["im2col", "im2col::h", None, 3])
def test_a_wrong_mode_of_a_map_lists_the_words(mode):
    with pytest.raises(tma.TensorMapError, match=r"im2col::w \(or w\), im2col::w::128 \(or w128\)"):
        tma.Im2colWideMap(**ROW, mode=mode)


def test_messages_have_the_words_of_ptx():
    map = tma.Im2colWideMap(**ROW)
    with pytest.raises(tma.TensorMapError, match="in mode im2col::w "):
        map.start((0, 0, 20, 0))
    with pytest.raises(ValueError, match="mode im2col::w::128 for"):
        tma.maps_for(SHAPES, "w128", dtype="float16", swizzle="none")
