"""Sound maps as people make them have no finding; one mistake in a random map is undone exactly.

Where two mistakes explain the same arguments, both must be named, and neither is believed: a wrong
single fix must be rarer than one in a hundred.
"""

import random

import pytest

from implicit_conv import tma

SIZES = {"uint8": 1, "float16": 2, "bfloat16": 2, "uint16": 2, "float32": 4, "int32": 4}
SPANS = {"none": 512, "32B": 32, "64B": 64, "128B": 128}


def permuted(shape, strides, axes):
    return tuple(shape[a] for a in axes), tuple(strides[a] for a in axes)


def packed(shape, size, pitch=0):
    """Byte strides of all dimensions but the last; `pitch` bytes from row to row."""
    strides = [pitch or shape[-1] * size]
    for extent in shape[-2:0:-1]:
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(shape) - 1])


def view(shape, strides, box, dtype="float16", swizzle="128B", **more):
    return tma.TiledMap(shape=shape, strides=strides, box=box, dtype=dtype, swizzle=swizzle, **more)


def attention(b, s, h, d, size=2, row=0):
    """(b, s, h, d) seen as (b, h, s, d); `row` elements of all heads and of what lies beside."""
    row = row or h * d
    return (b, h, s, d), (s * row * size, d * size, row * size)


def qkv(b, s, h, d):
    """One of three parts of a fused projection, (b, s, 3, h, d) seen as (b, h, s, d)."""
    return attention(b, s, h, d, row=3 * h * d)


SOUND = {
    "GEMM, A row-major": view((4096, 2048), (4096,), (128, 64)),
    "GEMM, square": view((4096, 4096), (8192,), (128, 64)),
    "GEMM, a slice of a square matrix": view((4096, 1024), (8192,), (128, 64)),
    "GEMM, fp8": view((512, 7168), (7168,), (128, 128), "float8_e4m3fn"),
    "GEMM, tf32": view((512, 1024), (4096,), (128, 32), "tfloat32"),
    "GEMM, batched": view((16, 300, 512), (300 * 1024, 1024), (1, 128, 64)),
    "GEMM, batch outside of rows": view((300, 16, 512), (1024, 300 * 1024), (128, 1, 64)),
    "GEMM, one operand for the batch": view((16, 300, 512), (0, 1024), (1, 128, 64)),
    "GEMM, one row": view((1, 512), (1024,), (1, 64)),
    "rows padded": view((4096, 1000), (2048,), (128, 64)),
    "rows padded, batched": view((8, 300, 1000), (300 * 2048, 2048), (1, 128, 64)),
    "every second row": view((2048, 512), (2048,), (128, 64)),
    "a vector": tma.TiledMap(shape=(4096,), dtype="float32", box=(256,)),
    "attention": view(*attention(2, 1024, 16, 64), (1, 1, 128, 64)),
    "attention, one head": view(*attention(2, 1024, 1, 64), (1, 1, 128, 64)),
    "attention, one batch": view(*attention(1, 1024, 16, 128), (1, 1, 64, 64)),
    "attention, grouped": view(*attention(2, 1024, 4, 128), (1, 4, 32, 64)),
    "attention, fused qkv": view(*qkv(2, 1024, 16, 64), (1, 1, 128, 64)),
    "attention, ragged": view((16, 5000, 64), (128, 2048), (1, 128, 64)),
    "attention, as many heads as rows": view(*attention(2, 16, 16, 64), (1, 1, 16, 64)),
    "attention, d before s": view(
        (2, 16, 64, 1024), (16 * 64 * 2048, 64 * 2048, 2048), (1, 1, 64, 64)
    ),
    "paged KV": view((800, 8, 64, 128), (64 * 8 * 256, 256, 8 * 256), (1, 1, 64, 64)),
    "paged KV, heads outside": view(
        (800, 8, 16, 128), (8 * 16 * 256, 16 * 256, 256), (1, 1, 16, 64)
    ),
    "paged KV, one of K and V": view(
        (800, 8, 64, 128), (2 * 64 * 8 * 256, 256, 8 * 256), (1, 1, 64, 64)
    ),
    "latent KV": view((9000, 512), (1152,), (64, 64)),
    "latent KV, the rotary part": view((9000, 64), (1152,), (64, 64)),
    "MoE, grouped": view((64, 2048, 4096), (2048 * 8192, 8192), (1, 128, 64)),
    "windows of a signal": view((4033, 64), (16,), (128, 64)),
    "windows that overlap by three quarters": view((1000, 64), (32,), (128, 64)),
    "windows of a batch": view((8, 497, 64), (4096 * 2, 16), (1, 128, 64)),
    "windows of an image": view(
        (8, 62, 60, 3, 3 * 64), (64 * 62 * 128, 62 * 128, 128, 62 * 128), (1, 1, 60, 1, 64)
    ),
    "a Toeplitz matrix": view((512, 512), (16,), (128, 64)),
    "channels-last images": view((8, 56, 56, 64), (56 * 56 * 128, 56 * 128, 128), (1, 8, 8, 64)),
    "images, w outside of h": view((8, 48, 56, 64), (56 * 48 * 128, 128, 48 * 128), (1, 8, 8, 64)),
    "images, every second pixel": view(
        (8, 28, 28, 64), (56 * 56 * 128, 2 * 56 * 128, 256), (1, 8, 8, 64)
    ),
    "an interior of images": view((8, 54, 54, 64), (56 * 56 * 128, 56 * 128, 128), (1, 8, 8, 64)),
    "scales of blocks": tma.TiledMap(shape=(56, 4096), dtype="float32", box=(1, 128)),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_map_has_no_finding(name):
    map = SOUND[name]
    assert tma.lint(map) == tma.lint(map.arguments) == []
    start = (0,) * map.rank
    assert tma.lint(map.arguments, coords=start, dst=1024) == []


def tiled(rng):
    """(arguments of a sound tiled map, a start in it)."""
    dtype = rng.choice(list(SIZES))
    size = SIZES[dtype]
    unit, rank = 16 // size, rng.choice([2, 2, 3, 3, 4, 4, 5])
    swizzle = rng.choice(["none", "64B", "128B", "128B"])
    inner = min(SPANS[swizzle], rng.choice([64, 128])) // size // rng.choice([1, 1, 1, 1, 2])
    outer = [rng.choice([1, 2, 3, 5, 8, 12, 30, 64, 100, 512, 1000]) for _ in range(rank - 1)]
    shape = (*outer, inner * rng.choice([1, 2, 2, 4, 8, 16, 30]) + rng.choice([0, 0, 0, unit]))
    box = (
        *(min(extent, rng.choice([1, 1, 2, 3])) for extent in outer[:-1]),
        min(outer[-1], rng.choice([8, 16, 64])),
        inner,
    )
    pitch = 0
    kind = rng.choice(["packed", "packed", "packed", "padded", "permuted"])
    if kind == "padded":
        pitch = shape[-1] * size + 16 * rng.randint(1, 64)
    strides = packed(shape, size, pitch)
    if kind == "permuted" and rank > 2:
        axes = rng.sample(range(rank - 1), rank - 1)
        outer_shape, strides = permuted(shape[:-1], strides, axes)
        shape, box = (*outer_shape, shape[-1]), (*permuted(box[:-1], box[:-1], axes)[0], inner)
    map = tma.TiledMap(shape=shape, strides=strides, box=box, dtype=dtype, swizzle=swizzle)
    start = [
        rng.randrange(-(-extent // count)) * count for extent, count in zip(shape, box, strict=True)
    ]
    return map, tuple(start)


def im2col(rng):
    """(arguments of a sound im2col or im2col::w map, a start in it)."""
    dtype = rng.choice(list(SIZES))
    size, swizzle = SIZES[dtype], rng.choice(["64B", "128B"])
    channels = SPANS[swizzle] // size
    spatial = rng.choice([1, 2, 2, 3])
    extents = [rng.randint(8, 60) for _ in range(spatial)]
    pads = [rng.choice([0, 1, 2]) for _ in extents]
    taps = [2 * pad + 1 for pad in pads]
    steps = [rng.randint(1, 3)] * spatial
    lower = [-pad for pad in pads]
    upper = [pad - (tap - 1) for pad, tap in zip(pads, taps, strict=True)]
    shape = (rng.randint(1, 9), *extents, channels * rng.choice([1, 2, 3, 4, 8]))
    common = {
        "shape": shape,
        "dtype": dtype,
        "channels_per_pixel": channels,
        "swizzle": swizzle,
        "pixels_per_column": rng.choice([64, 128]),
        "strides": packed(shape, size),
    }
    block = rng.randrange(shape[-1] // channels) * channels
    if rng.random() < 0.4:
        map = tma.Im2colWideMap(
            lower_corner_w=lower[-1], upper_corner_w=upper[-1], traversal_stride=steps[-1], **common
        )
        start = [rng.randrange(extent) for extent in extents[:-1]] + lower[-1:]
    else:
        map = tma.Im2colMap(
            lower_corner=lower, upper_corner=upper, traversal_stride=steps, **common
        )
        start = lower
    return map, (rng.randrange(shape[0]), *start, block)


def in_elements(a, start, size):
    if size == 1 or not a["globalStrides"]:
        return {}
    return {"globalStrides": tuple(stride // size for stride in a["globalStrides"])}


def inner_in_bytes(a, start, size):
    if "boxDim" in a:
        return {"boxDim": (a["boxDim"][0] * size, *a["boxDim"][1:])}
    return {"channelsPerPixel": a["channelsPerPixel"] * size}


def row_major(*names):
    return lambda a, start, size: {name: a[name][::-1] for name in names if name in a}


def doubled_type(a, start, size):
    """FLOAT32 for data of 16 bits."""
    if size != 2:
        return {}
    return {"tensorDataType": "CU_TENSOR_MAP_DATA_TYPE_FLOAT32"}


MISTAKES = {
    "strides in elements": in_elements,
    "inner extent in bytes": inner_in_bytes,
    "globalDim row-major": row_major("globalDim"),
    "globalStrides row-major": row_major("globalStrides"),
    "boxDim row-major": row_major("boxDim"),
    "all arrays row-major": row_major(
        "globalDim", "globalStrides", "boxDim", "pixelBoxLowerCorner", "pixelBoxUpperCorner"
    ),
    "strides with rank entries": lambda a, start, size: {
        "globalStrides": (size, *a["globalStrides"])
    },
    "FLOAT32 for 16 bits": doubled_type,
    "coordinates fastest-first": lambda a, start, size: {"coords": start[::-1]},
}


def outcome(map, start, mistake):
    """Whether the mistake is "undone", "named" with another, "found", "silent" or "wrong"."""
    given = {**map.arguments, "coords": start}
    change = mistake(map.arguments, start, map.itemsize)
    damaged = {**given, **change}
    if damaged == given:
        return None
    fixed, followed = damaged, False
    for _ in range(8):
        findings = tma.lint(**fixed)
        fix = next((finding.fix for finding in findings if finding.fix), None)
        if fix is None:
            break
        fixed, followed = {**fixed, **fix}, True
    if fixed == given:
        return "undone"
    if followed and not findings:
        return "wrong"
    if any(" or " in finding.hint and finding.fix is None for finding in findings):
        return "named"
    return "found" if findings else "silent"


def outcomes(sound, mistake, count, seed=30):
    rng, counts = random.Random(seed), {}
    while sum(counts.values()) < count:
        result = outcome(*sound(rng), mistake)
        if result is not None:
            counts[result] = counts.get(result, 0) + 1
    return counts


LEAST = {  # of a hundred maps, how many mistakes are undone or named; the others are legal views
    (tiled, "inner extent in bytes"): 50,
    (tiled, "boxDim row-major"): 75,
    (tiled, "coordinates fastest-first"): 85,
    (im2col, "coordinates fastest-first"): 70,
    (tiled, "globalDim row-major"): 85,
    (tiled, "globalStrides row-major"): 80,
    (tiled, "FLOAT32 for 16 bits"): 88,
    (tiled, "strides in elements"): 90,
    (tiled, "all arrays row-major"): 94,
}
COUNTS = [60, pytest.param(1000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("sound", "name"),
    [(s, name) for s in (tiled, im2col) for name in MISTAKES if s is tiled or "box" not in name],
)
def test_one_mistake_is_undone_or_two_are_named(sound, name, count):
    counts = outcomes(sound, MISTAKES[name], count)
    assert counts.get("wrong", 0) <= (2 if count == 60 else count / 100), counts
    told = counts.get("undone", 0) + counts.get("named", 0)
    slack = 12 if count == 60 else 0  # three standard deviations of the worst line
    assert told >= (LEAST.get((sound, name), 100) - slack) / 100 * count, counts


def test_random_sound_tiled_maps_have_no_finding():
    rng = random.Random(31)
    for _ in range(1000):
        map, start = tiled(rng)
        assert tma.lint(map, coords=start) == []
