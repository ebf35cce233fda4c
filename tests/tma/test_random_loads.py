"""Random loads of all im2col modes: positions, values and bytes of shared memory.

The model is written from the text of the PTX ISA alone. It carries from one dimension to the next,
pixel by pixel, and puts each byte where the swizzle says; it shares no code with the package.
"""

import random

import numpy as np
import pytest

from implicit_conv import tma

DTYPES = {"uint8": 1, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4, "float64": 8}
SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
ORDERS = ("interleaved", "grouped", "inline")


def im2col_pixels(case):
    """The box is closed; a position past its end goes back to its start and carries."""
    position = list(case["start"])
    for _ in range(case["pixels"]):
        yield position[0], *(a + b for a, b in zip(position[1:], case["offsets"], strict=True))
        for axis in range(len(position) - 1, 0, -1):
            size, lower = case["shape"][axis], case["lower"][axis - 1]
            position[axis] += case["steps"][axis - 1]
            if position[axis] <= size - 1 + case["upper"][axis - 1]:
                break
            position[axis] = lower
        else:
            position[0] += 1


def wide_pixels(case, count):
    """W carries to N; the other positions stay, and w_offset moves start and box."""
    n, *fixed, w = case["start"]
    w += case["w_offset"]
    for _ in range(count):
        yield n, *fixed, w
        w += case["steps"][-1]
        if w > case["shape"][-2] - 1 + case["upper"][-1] + case["w_offset"]:
            w, n = case["lower"][-1] + case["w_offset"], n + 1


def rows_of(case):
    """The pixel of each row of shared memory."""
    if case["mode"] == "im2col":
        return [*im2col_pixels(case)]
    halo = case["w_halo"]
    if case["mode"] == "w":
        return [*wide_pixels(case, case["pixels"] + halo)]
    walk = [*wide_pixels(case, 128 + halo)]
    groups = [[walk[32 * g + 32 + j] for j in range(halo)] for g in range(4)]
    if case["order"] == "inline":
        return [p for g in range(4) for p in (*walk[32 * g : 32 * g + 32], *groups[g])]
    if case["order"] == "grouped":
        return walk[:128] + [p for group in groups for p in group]
    return walk[:128] + [groups[g][j] for j in range(halo) for g in range(4)]


def values_of(case, x, pixels):
    """Channels of the pixels as bytes; what is outside is zeros, or 0x7ff7 in every 16 bits."""
    size, first, count = x.dtype.itemsize, case["channel"], case["channels"]
    fill = (b"\xf7\x7f" if case["fill"] == "nan" else b"\0\0") * 8
    rows = []
    for pixel in pixels:
        row = b""
        for c in range(first, first + count):
            at = (*pixel, c)
            inside = all(0 <= a < size for a, size in zip(at, x.shape, strict=True))
            row += x[at].tobytes() if inside else fill[:size]
        rows.append(row)
    return rows


def shared_bytes(case, rows):
    """(bytes, whether each is written) from the destination on."""
    span = SPANS[case["swizzle"]]
    pitch = max(len(rows[0]), span)
    data, written = bytearray(pitch * len(rows)), bytearray(pitch * len(rows))
    for number, row in enumerate(rows):
        for at, byte in enumerate(row):
            address = case["dst"] + number * pitch + at
            if span:  # bits 4 to 6, as many as the span has, are xored with those from bit 7 on
                address ^= (address // 128 % (span // 16)) * 16
            data[address - case["dst"]], written[address - case["dst"]] = byte, 1
    return bytes(data), bytes(written)


def drawn(rng):
    """A sound load."""
    rank, mode = rng.choice((1, 2, 2, 2, 3)), rng.choice(("im2col", "im2col", "w", "w128"))
    dtype, swizzle = rng.choice([*DTYPES]), rng.choice([*SPANS])
    if mode != "im2col":
        swizzle = rng.choice(("64B", "128B"))
    unit = 16 // DTYPES[dtype]
    most = {"none": 4}.get(swizzle, SPANS[swizzle] // 16)
    spatial = [rng.randint(1, 9) for _ in range(rank)]
    lower, low = [rng.randint(-4, 4) for _ in spatial], {1: -99, 2: -99, 3: -16}[rank]
    upper = [
        rng.randint(max(low, box - size + 1), 7) for size, box in zip(spatial, lower, strict=True)
    ]
    ends = [size - 1 + up for size, up in zip(spatial, upper, strict=True)]
    case = {
        "mode": mode,
        "dtype": dtype,
        "swizzle": swizzle,
        "shape": (rng.randint(1, 4), *spatial, unit * rng.randint(1, 4)),
        "lower": lower,
        "upper": upper,
        "steps": [rng.randint(1, 8) for _ in spatial],
        "pixels": rng.choice((1, 2, 7, 8, 24, 40, 64)),
        "channels": unit * rng.randint(1, most),
        "channel": rng.randint(-2 * unit, 4 * unit),
        "fill": rng.choice(("zero", "nan")) if "float" in dtype else "zero",
        "offsets": [rng.randint(0, 5) for _ in spatial],
        "w_halo": rng.choice((0, 1, 2, 5, 31)),
        "w_offset": rng.choice((0, 1, 3, 31)),
        "order": rng.choice(ORDERS),
        "dst": 1024 * rng.randint(0, 3) + rng.choice((0, 128, 256, 896)),
    }
    start = [rng.randint(a, b) for a, b in zip(lower, ends, strict=True)]
    if mode != "im2col":
        start = [rng.randint(-2, size + 1) for size in spatial[:-1]]
        start.append(rng.randint(lower[-1] - 5, ends[-1]))  # left of the box is allowed
    case["start"] = (rng.randint(-3, 5), *start)
    return case


def made(case):
    """The map and the operands of a load."""
    common = {
        "shape": case["shape"],
        "dtype": case["dtype"],
        "swizzle": case["swizzle"],
        "oob_fill": case["fill"],
        "channels_per_pixel": case["channels"],
        "pixels_per_column": case["pixels"],
    }
    if case["mode"] == "im2col":
        box = {"lower_corner": case["lower"], "upper_corner": case["upper"]}
        map = tma.Im2colMap(**common, **box, traversal_stride=case["steps"])
        return map, {"offsets": case["offsets"]}
    map = tma.Im2colWideMap(
        **common,
        lower_corner_w=case["lower"][-1],
        upper_corner_w=case["upper"][-1],
        traversal_stride=case["steps"][-1],
        mode=case["mode"],
    )
    operands = {name: case[name] for name in ("w_halo", "w_offset")}
    return map, {**operands, "halo_order": case["order"]}


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_loads_equal_the_model(count):
    rng, modes = random.Random(65 + count), []
    while len(modes) < count:
        case = drawn(rng)
        map, operands = made(case)
        modes.append(case["mode"])
        bits = np.random.default_rng(len(modes)).integers(
            0, 256, (*case["shape"], DTYPES[case["dtype"]]), np.uint8
        )
        x = bits.view(map.dtype)[..., 0]
        pixels, start = rows_of(case), (*case["start"], case["channel"])
        walked = tma.walk(map, start, **operands)
        assert [tuple(row) for row in walked.coordinates.tolist()] == pixels, case
        expected = values_of(case, x, pixels)
        rows = tma.load(map, x, start, **operands)
        assert [row.tobytes() for row in rows] == expected, case
        image = tma.smem_image(map, x, start, dst=case["dst"], **operands)
        data, written = shared_bytes(case, expected)
        assert image.written.tobytes() == written, case
        assert image.bytes.tobytes() == data, case
    assert min(modes.count(mode) for mode in ("im2col", "w", "w128")) > count // 8
