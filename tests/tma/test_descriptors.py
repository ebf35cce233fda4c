"""Matrix descriptors address what a copy wrote, by CUTLASS' canonical layouts and the interpreter.

The layouts are those that `make_gmma_desc` and `make_umma_desc` document, as shape and stride in
units of 16 bytes. Start, LBO and SBO are decoded from the 64 bits of the descriptor.
"""

import numpy as np
import pytest

from implicit_conv import tma
from implicit_conv.ptx.asynchronous.wgmma import descriptor_units
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE

UNIT = 16
CODES = {  # instruction: (first bit, {code: (units of a row, shift and mask of the swizzle)})
    "wgmma": (62, {0: (1, 4, 0), 3: (2, 4, 1), 2: (4, 4, 3), 1: (8, 4, 7)}),
    "tcgen05": (61, {0: (1, 4, 0), 6: (2, 4, 1), 4: (4, 4, 3), 2: (8, 4, 7), 1: (8, 5, 3)}),
}


def decoded(instruction, value):
    """(start, LBO, SBO in units, code of the swizzle)."""
    field = [value >> first & 0x3FFF for first in (0, 16, 32)]
    return *field, value >> CODES[instruction][0]


def canonical(instruction, value, major, across, along):
    """Addresses of 16-byte units: (across MN, along K).

    K-major: `across` counts rows, `along` units of a row. MN-major: `across` counts units of MN,
    `along` rows of K.
    """
    start, lead, stride, code = decoded(instruction, value)
    units, shift, mask = CODES[instruction][1][code]
    i, k = np.arange(across)[:, None], np.arange(along)[None, :]
    if major == "K" and units == 1:  # ((8,n),2):((1,SBO),LBO)
        at = i % 8 + i // 8 * stride + k * lead
    elif major == "K":  # ((8,n),2):((units,SBO),1)
        at = i % 8 * units + i // 8 * stride + k
    elif units == 1:  # ((1,n),(8,k)):((x,SBO),(1,LBO))
        at = i * stride + k % 8 + k // 8 * lead
    elif shift == 5:  # ((8,n),(4,k)):((1,LBO),(units,SBO))
        at = i % 8 + i // 8 * lead + k % 4 * units + k // 4 * stride
    else:  # ((units,n),(8,k)):((1,LBO),(units,SBO))
        at = i % units + i // units * lead + k % 8 * units + k // 8 * stride
    plain = (start + at) * UNIT
    return plain ^ ((plain >> 7 & mask) << shift)


def copies(swizzle, dtype, rows, blocks, dst):
    """Images of copies of blocks of channels, one after the other, as a kernel loads a tile."""
    span = {"none": UNIT, "128B_ATOM_32B": 128}.get(swizzle) or int(swizzle[:-1])
    channels = span // np.dtype(dtype).itemsize
    map = tma.TiledMap(
        shape=(rows, blocks * channels), dtype=dtype, box=(rows, channels), swizzle=swizzle
    )
    size = rows * span
    x = np.arange(rows * blocks * channels).astype(dtype).reshape(map.shape)
    return [
        tma.smem_image(map, x, (0, block * channels), dst + block * size) for block in range(blocks)
    ], size


def unit_addresses(images):
    """Shared addresses of the 16-byte units of each row, over all blocks: rows x units."""
    whole = np.concatenate([image.bytes for image in images])
    width = sum(image.channels for image in images) * images[0].dtype.itemsize // UNIT
    # Each unit of the tensor holds numbers that no other has.
    held = {bytes(whole[at : at + UNIT]): at for at in range(0, whole.size, UNIT)}
    rows = np.concatenate([image.view() for image in images], axis=1)
    units = rows.view(np.uint8).reshape(len(rows), width, UNIT)
    return np.array([[held[bytes(unit)] + images[0].dst for unit in row] for row in units])


LAYOUTS = [
    (instruction, swizzle, major)
    for instruction in CODES
    for swizzle in ("none", "32B", "64B", "128B", "128B_ATOM_32B")
    for major in ("K", "MN")
    if swizzle != "128B_ATOM_32B" or (instruction, major) == ("tcgen05", "MN")
]
BLOCKS = {"none": 8, "32B": 4, "64B": 4, "128B": 2, "128B_ATOM_32B": 2}


@pytest.mark.parametrize("dst", [1024, 5120])
@pytest.mark.parametrize(("instruction", "swizzle", "major"), LAYOUTS)
def test_a_descriptor_has_the_canonical_layout(instruction, swizzle, major, dst):
    dtype = "uint32" if swizzle == "128B_ATOM_32B" else "uint16"
    images, size = copies(swizzle, dtype, 64, BLOCKS[swizzle], dst)
    value = images[0].descriptor(instruction, major=major, leading=size).value
    expected = unit_addresses(images)
    if major == "K":  # 64 rows, a K step of 32 bytes
        at = canonical(instruction, value, "K", 64, 2)
        np.testing.assert_array_equal(at, expected[:, :2])
    else:  # all channels, 32 rows of K
        at = canonical(instruction, value, "MN", expected.shape[1], 32)
        np.testing.assert_array_equal(at, expected[:32].T)


@pytest.mark.parametrize("dst", [1024, 5120])
@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("major", ["K", "MN"])
def test_wgmma_reads_what_the_copies_wrote(swizzle, major, dst):
    """The interpreter's reading of a descriptor, over a K step that crosses 8 rows."""
    images, size = copies(swizzle, "uint16", 64, BLOCKS[swizzle], dst)
    expected = unit_addresses(images)
    value = images[0].descriptor("wgmma", major=major, leading=size).value
    rows = 64 if major == "K" else 8 * expected.shape[1]
    units = descriptor_units(value, rows, major == "MN") + SHARED_BASE
    wanted = expected[:, :2] if major == "K" else expected[:16].T
    np.testing.assert_array_equal(units, wanted)


def test_the_planes_of_an_unswizzled_tile_must_be_given():
    (image, *_), _ = copies("none", "uint16", 64, 1, 0)
    for major in ("K", "MN"):
        with pytest.raises(ValueError, match="pass leading="):
            image.descriptor("wgmma", major=major)


@pytest.mark.parametrize(
    ("swizzle", "pattern"), [("32B", 256), ("64B", 512), ("128B", 1024), ("128B_ATOM_32B", 512)]
)
def test_a_start_off_the_pattern_is_noted(swizzle, pattern):
    """tilelang#2379: a 128B tile at +128 bytes, which nobody has seen run."""
    dtype = "uint32" if swizzle == "128B_ATOM_32B" else "uint16"
    for dst in range(0, 2048, 128):
        (image, *_), _ = copies(swizzle, dtype, 64, 1, dst)
        for first in (0, 1, 4, 8):
            notes = image.descriptor("tcgen05", first, 16, major="MN").notes
            off = (dst + first * image.pitch) % pattern
            assert bool(notes) == bool(off), (dst, first)
            assert not off or f"{off} bytes into the pattern of swizzle {swizzle}" in notes[0]
