"""Matrix descriptors read back what a copy wrote; bank conflicts equal a count by hand."""

import numpy as np
import pytest

from implicit_conv import tma

# What the kernels of public libraries use for 16-bit K-major tiles at address 0
CONSTANTS = {
    ("wgmma", "128B"): 0x4000004000010000,
    ("wgmma", "64B"): 0x8000002000010000,
    ("wgmma", "32B"): 0xC000001000010000,
    ("tcgen05", "128B"): 0x4000404000010000,
    ("tcgen05", "64B"): 0x8000402000010000,
    ("tcgen05", "32B"): 0xC000401000010000,
}
SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128, "128B_ATOM_32B": 128}


def tile(swizzle, row_bytes=None, dtype="uint16", dst=0, rows=80):
    """(image, its rows) of a copy of `rows` rows."""
    size = np.dtype(dtype).itemsize
    channels = (row_bytes or SPANS[swizzle]) // size
    map = tma.Im2colMap(
        shape=(1, rows, channels),
        dtype=dtype,
        lower_corner=(0,),
        upper_corner=(0,),
        pixels_per_column=rows,
        channels_per_pixel=channels,
        swizzle=swizzle,
    )
    x = np.random.default_rng(0).integers(1, 200, map.shape).astype(dtype)
    return tma.smem_image(map, x, (0, 0, 0), dst), x[0]


@pytest.mark.parametrize(("instruction", "swizzle"), CONSTANTS)
def test_the_constants_of_k_major_tiles(instruction, swizzle):
    image, _ = tile(swizzle)
    assert image.descriptor(instruction).value == CONSTANTS[instruction, swizzle]
    assert image.descriptor(instruction, byte=16).value == CONSTANTS[instruction, swizzle] + 1


def read(image, value, mask, shift):
    """64 rows of 16 bytes by the fields of a descriptor: core matrices of 8 rows, swizzled."""
    start, stride = (value & 0x3FFF) << 4, (value >> 32 & 0x3FFF) << 4
    pitch = stride // 8
    plain = [start + i % 8 * pitch + i // 8 * stride for i in range(64)]
    at = [a ^ ((a >> 7) & mask) << shift for a in plain]
    return np.stack([image.bytes[a - image.dst : a - image.dst + 16] for a in at])


@pytest.mark.parametrize("dst", [0, 128, 1024 + 384])
@pytest.mark.parametrize(("swizzle", "mask"), [("128B", 7), ("64B", 3), ("32B", 1), ("none", 0)])
@pytest.mark.parametrize("first", [0, 8, 3])
def test_a_descriptor_reads_its_rows(swizzle, mask, dst, first):
    image, x = tile(swizzle, dst=dst, row_bytes=None if mask else 16)
    for byte in range(0, x.shape[1] * 2, 16):
        made = image.descriptor("wgmma", first, byte, leading=None if mask else 4096)
        rows = read(image, made.value, mask, 4).view("uint16")
        np.testing.assert_array_equal(rows, x[first : first + 64, byte // 2 : byte // 2 + 8])
        pattern = 128 << mask.bit_length()
        assert bool(made.notes) == (mask != 0 and (dst + first * image.pitch) % pattern != 0)
        assert made.base_offset == made.value >> 49 & 7 == 0


REFUSED = [  # copy, descriptor, words
    (("128B_ATOM_32B",), {}, "wgmma reads no memory with swizzle 128B_ATOM_32B"),
    (("128B_ATOM_32B",), {"instruction": "tcgen05"}, "only for MN-major elements of 4 bytes"),
    (("none", 64), {}, "rows of this copy are 64"),
    (("none", 16), {}, "pass leading="),
    (("128B", 128, "float32"), {"major": "MN"}, "16-bit elements only"),
    (("128B",), {"byte": 8}, "byte 8 must be a multiple of 16"),
    (("128B",), {"first": 80}, r"row 80 must be in \[0, 79\]"),
    (("128B",), {"instruction": "mma"}, "'mma' is unknown; choose from wgmma, tcgen05"),
    (("128B",), {"major": "M"}, "'M' is unknown; choose from K, MN"),
    (("128B",), {"leading": 24}, "leading = 24 must be a multiple of 16"),
]


@pytest.mark.parametrize(("copy", "options", "words"), REFUSED)
def test_where_there_is_no_descriptor_it_says_why(copy, options, words):
    image, _ = tile(*copy)
    with pytest.raises(ValueError, match=words):
        image.descriptor(**options)


def test_the_text_of_a_descriptor():
    image, _ = tile("128B")
    made = image.descriptor("wgmma", major="MN", leading=80 * 128)
    assert "LBO 10240, SBO 1024, base offset 0, swizzle 128B" in str(made)


BANKS = [  # swizzle, bytes of a row, access, passes of the worst phase, by hand
    ("128B", 128, "ldmatrix", 1),  # 8 rows in 8 chunks
    ("64B", 64, "ldmatrix", 1),  # two rows a line, 4 chunks exchanged
    ("32B", 32, "ldmatrix", 1),
    ("none", 16, "ld.shared.b128", 1),  # rows are contiguous
    ("none", 128, "ldmatrix", 8),  # the same 4 banks for all rows
    ("none", 64, "ldmatrix", 4),
    ("none", 256, "ldmatrix", 8),
    ("128B", 128, "wgmma", 1),
    ("none", 128, "wgmma", 8),
    ("128B", 128, "ld.shared.b32", 4),  # 32 rows in 8 chunks
    ("none", 128, "ld.shared.b32", 32),
    ("128B", 128, "ld.shared.b64", 2),
    ("128B", 128, "ld.shared.b128", 1),
    ("128B", 128, "row", 1),
]


@pytest.mark.parametrize(("swizzle", "row_bytes", "access", "worst"), BANKS)
def test_bank_conflicts(swizzle, row_bytes, access, worst):
    image, _ = tile(swizzle, row_bytes)
    report = image.bank_conflicts(access)
    assert report.worst == worst
    assert report.passes == worst * len(report.phases)
    assert ("no conflicts" if worst == 1 else f"{worst}-way conflicts") in str(report)


def test_accesses_stay_in_the_image():
    image, _ = tile("64B")
    with pytest.raises(ValueError, match=r"reads rows 72 to 87 of an image of 80 rows|rows 80 to"):
        image.bank_conflicts("ldmatrix", first=72)
    with pytest.raises(ValueError, match="of rows of 64 bytes; byte must be a multiple of 16"):
        image.bank_conflicts("ldmatrix", byte=48)
    with pytest.raises(ValueError, match="'stmatrix' is unknown; choose from 'ldmatrix'"):
        image.bank_conflicts("stmatrix")
