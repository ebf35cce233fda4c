"""Shared-memory bytes equal tables of the documentation and a byte-by-byte evaluation."""

import numpy as np
import pytest

from implicit_conv import tma

# Figures of PTX ISA 5.5.7: where the 16-byte units 0..7 of each 128-byte line lie: the
# entry at place p names the unit that stands there
TABLES = {
    "128B": [[p ^ line for p in range(8)] for line in range(8)],
    "64B": [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
    ],
    "32B": [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]],
    "none": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "128B_ATOM_32B": [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [6, 7, 4, 5, 2, 3, 0, 1],
    ],
    "128B_ATOM_64B": [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 0, 1, 2, 3]],
}
SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128, "128B_ATOM_32B": 128, "128B_ATOM_64B": 128}


def strip(swizzle, channels, pixels=20):
    """A map over one image row, whose load is that row."""
    return tma.Im2colMap(
        shape=(1, pixels, channels),
        dtype="uint8",
        lower_corner=(0,),
        upper_corner=(0,),
        traversal_stride=1,
        pixels_per_column=pixels,
        channels_per_pixel=channels,
        swizzle=swizzle,
    )


@pytest.mark.parametrize("dst", [0, 128, 384, 1024])
@pytest.mark.parametrize(
    ("swizzle", "channels"),
    [(s, c) for s in TABLES for c in (16, 32, 48, 64, 112, 128) if c <= (SPANS[s] or 256)],
)
def test_units_are_where_the_tables_say(swizzle, channels, dst):
    span = SPANS[swizzle]
    map = strip(swizzle, channels)
    x = np.arange(20 * channels).reshape(map.shape).astype("uint8")
    image = tma.smem_image(map, x, (0, 0, 0), dst=dst)
    pitch = max(span, channels)
    assert len(image.bytes) == 20 * pitch == len(image.written)
    plain = np.zeros((dst + 20 * pitch + 127) // 128 * 128, int)  # by plain address, 0 in gaps
    for row in range(20):
        begin = dst + row * pitch
        plain[begin : begin + channels] = x[0, row].astype(int) + 1
    table = TABLES[swizzle]
    lines = plain.reshape(-1, 8, 16)
    lain = np.stack([line[table[i % len(table)]] for i, line in enumerate(lines)]).ravel()
    lain = lain[dst : dst + 20 * pitch]
    np.testing.assert_array_equal(image.written, lain > 0)
    np.testing.assert_array_equal(image.bytes[lain > 0], lain[lain > 0] - 1)


@pytest.mark.parametrize("swizzle", ["64B", "128B"])
@pytest.mark.parametrize("channels", [8, 16, 32])
def test_inverse_view_of_every_case(case, lab, swizzle, channels):
    n, *spatial, _ = case["shape"]
    small = {**case, "shape": [min(n, 12), *spatial, 64], "channels": channels}
    map = lab.make_map(small, "float16", swizzle=swizzle)
    x = np.random.default_rng(3).random(map.shape).astype("float16")
    args = (map, x, [*case["coords"][:-1], 40])
    image = tma.smem_image(*args, dst=640, **lab.operands(case))
    rows = tma.load(*args, **lab.operands(case))
    np.testing.assert_array_equal(image.view(), rows)
    np.testing.assert_array_equal(image.view(3, len(rows) - 3), rows[3:])
    np.testing.assert_array_equal(image.row(1), rows[1])
    assert image.written.sum() == rows.nbytes
    assert image.rows == len(rows) == len(image.bytes) // image.pitch


def test_owner_names_the_row_of_a_byte():
    map = strip("128B", 64)
    x = np.arange(20 * 64).reshape(map.shape).astype("uint8")
    image = tma.smem_image(map, x, (0, 0, 0), dst=128)
    owners = [image.owner(128 + i) for i in range(len(image.bytes))]
    assert sum(owner is None for owner in owners) == 20 * 64
    for i, owner in enumerate(owners):
        if owner is not None:
            assert image.bytes[i] == x[(0, *owner)]


def test_a_view_past_the_image_is_an_error():
    map = strip("none", 16)
    image = tma.smem_image(map, np.zeros(map.shape, "uint8"), (0, 0, 0))
    with pytest.raises(IndexError, match=r"rows 18 \.\. 21 of an image of 20 rows"):
        image.view(18, 4)


def test_destination_and_swizzle_are_checked(lab):
    map = strip("none", 16)
    x = np.zeros(map.shape, "uint8")
    with pytest.raises(ValueError, match="dst = 64: must be a multiple of 128 bytes"):
        tma.smem_image(map, x, (0, 0, 0), dst=64)


def test_the_flip_exchanges_8_bytes_in_odd_lines():
    images = {}
    for swizzle in ("128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B"):
        map = strip(swizzle, 128)
        x = np.arange(20 * 128).reshape(map.shape).astype("uint8")
        images[swizzle] = tma.smem_image(map, x, (0, 0, 0)).bytes.reshape(20, 8, 2, 8)
    plain, flipped = images.values()
    np.testing.assert_array_equal(flipped[::2], plain[::2])
    np.testing.assert_array_equal(flipped[1::2], plain[1::2, :, ::-1])


def test_one_slice_of_an_interleaved_tensor(lab):
    common = {"shape": (2, 5, 7, 64), "dtype": "float16", "pixels_per_column": 12}
    box = {"lower_corner": (-1, -1), "upper_corner": (-1, -1)}
    x = np.random.default_rng(0).random(common["shape"]).astype("float16")
    for interleave, swizzle, channels in (("16B", "none", 8), ("32B", "32B", 16)):
        more = {"swizzle": swizzle, "channels_per_pixel": channels}
        plain = tma.Im2colMap(**common, **box, **more)
        map = tma.Im2colMap(**common, **box, **more, interleave=interleave)
        at = (map, x, (0, 1, 2, 16)), {"offsets": (1, 0)}
        np.testing.assert_array_equal(
            tma.load(*at[0], **at[1]), tma.load(plain, *at[0][1:], **at[1])
        )
        image = tma.smem_image(*at[0], **at[1])
        assert (
            image.pitch == 2 * channels
            and image.row(3).tolist() == x[0, 2, 5, 16 : 16 + channels].tolist()
        )
        # NC/8HWC8 and NC/16HWC16 by hand: a pixel, a row of 7, 64 channels in 8 or 4 slices
        unit = 2 * channels
        assert map.arguments["globalStrides"] == (unit, 7 * unit, 5 * 7 * 128)
    several = tma.Im2colMap(**common, **box, channels_per_pixel=64, interleave="16B")
    assert len(tma.walk(several, (0, 0, 0, 0))) == 12
    with pytest.raises(ValueError, match="one slice of 16 bytes"):
        tma.smem_image(several, x, (0, 0, 0, 0))
