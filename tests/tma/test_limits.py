"""Every limit of a map and of a load: the last accepted and the first refused value."""

import pytest

from implicit_conv import tma
from implicit_conv.tma.maps.limits import TensorMapError

IM2COL = {
    "shape": (2, 9, 14, 64),
    "dtype": "float16",
    "lower_corner": (0, 0),
    "upper_corner": (0, 0),
    "traversal_stride": (1, 1),
    "pixels_per_column": 8,
    "channels_per_pixel": 8,
}
WIDE = {
    "shape": (2, 9, 14, 64),
    "dtype": "float16",
    "lower_corner_w": 0,
    "upper_corner_w": 0,
    "traversal_stride": 1,
    "pixels_per_column": 8,
    "channels_per_pixel": 8,
}
LINE = {"shape": (2, 14, 64), "lower_corner": (0,), "upper_corner": (0,), "traversal_stride": (1,)}
CUBE = {
    "shape": (2, 40, 40, 40, 64),
    "lower_corner": (0,) * 3,
    "upper_corner": (0,) * 3,
    "traversal_stride": 1,
}
W128 = {"mode": "w128", "swizzle": "64B"}


def make(base, changes):
    return (tma.Im2colWideMap if base is WIDE else tma.Im2colMap)(**{**base, **changes})


MAPS = [  # base, accepted, refused, field
    (IM2COL, {"lower_corner": (0, -128)}, {"lower_corner": (0, -129)}, "lower_corner[w]"),
    (IM2COL, {"upper_corner": (127, 0)}, {"upper_corner": (128, 0)}, "upper_corner[h]"),
    (IM2COL, {"upper_corner": (-8, 0)}, {"upper_corner": (-9, 0)}, "upper_corner[h]"),
    (
        IM2COL,
        {**LINE, "lower_corner": (-32768,)},
        {**LINE, "lower_corner": (-32769,)},
        "lower_corner[w]",
    ),
    (
        IM2COL,
        {**CUBE, "lower_corner": (-16, 0, 0)},
        {**CUBE, "lower_corner": (-17, 0, 0)},
        "lower_corner[d]",
    ),
    (
        IM2COL,
        {**CUBE, "upper_corner": (0, 0, 15)},
        {**CUBE, "upper_corner": (0, 0, 16)},
        "upper_corner[w]",
    ),
    (IM2COL, {}, {"lower_corner": (0,)}, "lower_corner"),
    (IM2COL, {}, {"shape": (2, 64), "traversal_stride": 1}, "shape"),
    (IM2COL, {}, {"shape": (0, 9, 14, 64)}, "shape[n]"),
    (IM2COL, {"shape": (2, 9, 14, 8)}, {"shape": (2, 9, 14, 9)}, "shape[c]"),
    (IM2COL, {"traversal_stride": (8, 1)}, {"traversal_stride": (9, 1)}, "traversal_stride[h]"),
    (IM2COL, {"traversal_stride": (1, 1)}, {"traversal_stride": (1, 0)}, "traversal_stride[w]"),
    (IM2COL, {"pixels_per_column": 1024}, {"pixels_per_column": 1025}, "pixels_per_column"),
    (IM2COL, {"pixels_per_column": 1}, {"pixels_per_column": 0}, "pixels_per_column"),
    (IM2COL, {"channels_per_pixel": 256}, {"channels_per_pixel": 264}, "channels_per_pixel"),
    (IM2COL, {"channels_per_pixel": 16}, {"channels_per_pixel": 12}, "channels_per_pixel"),
    (
        IM2COL,
        {"swizzle": "32B", "channels_per_pixel": 16},
        {"swizzle": "32B", "channels_per_pixel": 24},
        "channels_per_pixel",
    ),
    (IM2COL, {"swizzle": "128B"}, {"swizzle": "256B"}, "swizzle"),
    (IM2COL, {"oob_fill": "nan"}, {"oob_fill": "nan", "dtype": "int16"}, "oob_fill"),
    (IM2COL, {"oob_fill": "zero"}, {"oob_fill": "one"}, "oob_fill"),
    (IM2COL, {"address": 4096}, {"address": 4104}, "address"),
    (IM2COL, {"strides": (32256, 3584, 256)}, {"strides": (32256, 3584, 260)}, "strides[w]"),
    (
        IM2COL,
        {"strides": ((1 << 40) - 16, 3584, 256)},
        {"strides": (1 << 40, 3584, 256)},
        "strides[n]",
    ),
    (IM2COL, {}, {"strides": (32256, 3584, 256, 2)}, "strides"),
    (IM2COL, {"interleave": "16B"}, {"interleave": "8B"}, "interleave"),
    (IM2COL, {"interleave": "32B", "swizzle": "32B"}, {"interleave": "32B"}, "swizzle"),
    (WIDE, {"lower_corner_w": -32768}, {"lower_corner_w": -32769}, "lower_corner_w"),
    (WIDE, {"upper_corner_w": 32767}, {"upper_corner_w": 32768}, "upper_corner_w"),
    (WIDE, {"upper_corner_w": -13}, {"upper_corner_w": -14}, "upper_corner_w"),
    (WIDE, {"traversal_stride": 8}, {"traversal_stride": 9}, "traversal_stride"),
    (WIDE, {"swizzle": "64B"}, {"swizzle": "none"}, "swizzle"),
    (WIDE, {"swizzle": "128B_ATOM_32B"}, {"swizzle": "32B"}, "swizzle"),
    (WIDE, {"channels_per_pixel": 64}, {"channels_per_pixel": 72}, "channels_per_pixel"),
    (WIDE, {"mode": "w128", "pixels_per_column": 5000}, {"mode": "w64"}, "mode"),
]


@pytest.mark.parametrize(("base", "accepted", "refused", "field"), MAPS)
def test_limits_of_a_map(base, accepted, refused, field):
    make(base, accepted)
    with pytest.raises(TensorMapError) as error:
        make(base, refused)
    assert field in [finding.field for finding in error.value.findings]
    assert f"  {field} = " in str(error.value)


LOADS = [  # base, changes, accepted, refused (operands of the load), field
    (IM2COL, {}, {}, {"coords": (0, 9, 0, 0)}, "coords[h]"),
    (IM2COL, {}, {"coords": (0, 8, 13, 0)}, {"coords": (0, 0, 14, 0)}, "coords[w]"),
    (IM2COL, {}, {}, {"coords": (0, 0, -1, 0)}, "coords[w]"),
    (IM2COL, {}, {}, {"coords": (0, 0, 0)}, "coords"),
    (IM2COL, {}, {"coords": (-5, 0, 0, -8)}, {"coords": (1 << 31, 0, 0, 0)}, "coords[n]"),
    (IM2COL, {}, {"offsets": (255, 0)}, {"offsets": (256, 0)}, "offsets[h]"),
    (IM2COL, {}, {"offsets": (0, 0)}, {"offsets": (0, -1)}, "offsets[w]"),
    (
        IM2COL,
        LINE,
        {"coords": (0, 0, 0), "offsets": (65535,)},
        {"coords": (0, 0, 0), "offsets": (65536,)},
        "offsets[w]",
    ),
    (
        IM2COL,
        CUBE,
        {"coords": (0,) * 5, "offsets": (31, 0, 0)},
        {"coords": (0,) * 5, "offsets": (32, 0, 0)},
        "offsets[d]",
    ),
    (IM2COL, {}, {}, {"offsets": (1,)}, "offsets"),
    (IM2COL, {}, {}, {"w_halo": 1}, "w_halo"),
    (IM2COL, {}, {}, {"w_offset": 1}, "w_offset"),
    (IM2COL, {}, {"dst": 128}, {"dst": 64}, "dst"),
    (WIDE, {}, {"coords": (0, 99, -7, 0)}, {"coords": (0, 0, 14, 0)}, "coords[w]"),
    (WIDE, {}, {"w_halo": 511}, {"w_halo": 512}, "w_halo"),
    (WIDE, W128, {"w_halo": 31}, {"w_halo": 32}, "w_halo"),
    (WIDE, {}, {"w_offset": 31}, {"w_offset": 32}, "w_offset"),
    (WIDE, {}, {"offsets": (0, 0)}, {"offsets": (0, 1)}, "offsets"),
]


@pytest.mark.parametrize(("base", "changes", "accepted", "refused", "field"), LOADS)
def test_limits_of_a_load(base, changes, accepted, refused, field):
    map = make(base, changes)
    map.start(**{"coords": (0, 0, 0, 0), **accepted})
    with pytest.raises(TensorMapError) as error:
        map.start(**{"coords": (0, 0, 0, 0), **refused})
    assert [finding.field for finding in error.value.findings] == [field]


def test_types_that_numpy_does_not_have():
    for dtype in (">f4", [("a", "f4")], object):
        with pytest.raises(TypeError, match="native byte order"):
            make(IM2COL, {"dtype": dtype})
    with pytest.raises(TensorMapError, match="must have"):
        make(IM2COL, {"dtype": "complex128"})
    with pytest.raises(TypeError, match="sequence of integers"):
        make(IM2COL, {"lower_corner": (0.5, 0)})


def test_maps_are_values():
    assert make(IM2COL, {}) == make(IM2COL, {"traversal_stride": 1, "shape": [2, 9, 14, 64]})
    assert len({make(WIDE, {}), make(WIDE, {}), make(WIDE, {"mode": "w128"})}) == 2
