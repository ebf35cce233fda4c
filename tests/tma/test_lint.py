"""The linter names planted mistakes, accepts sound maps, and lists all errors at once."""

import random

import pytest

from implicit_conv import tma
from implicit_conv.tma.maps.limits import TensorMapError

SIZES = {"uint8": 1, "float16": 2, "float32": 4, "int32": 4, "float64": 8}


def sound(rng):
    """(arguments of the driver, operands of a load) of a convolution whose map is sound."""
    spatial = rng.choice([1, 2, 2, 2, 3])
    dtype = rng.choice(list(SIZES))
    itemsize = SIZES[dtype]
    extents = [rng.randint(8, 60) for _ in range(spatial)]
    taps = [rng.choice([1, 2, 3, 3, 5]) for _ in range(spatial)]
    pads = [rng.randint(0, t // 2) for t in taps]
    strides = [rng.randint(1, 3) for _ in range(spatial)]
    row_bytes = rng.choice([16, 32, 64])
    N, C = rng.randint(1, 9), rng.randint(1, 6) * row_bytes // itemsize
    common = {
        "shape": (N, *extents, C),
        "dtype": dtype,
        "channels_per_pixel": row_bytes // itemsize,
        "address": 256 * rng.randint(0, 1 << 30),
        "oob_fill": rng.choice(["zero", "nan"]) if dtype.startswith("float") else "zero",
    }
    lower = [-pad for pad in pads]
    upper = [pad - (t - 1) for pad, t in zip(pads, taps, strict=True)]
    start = [low + rng.choice([0, 0, 1]) * s for low, s in zip(lower, strides, strict=True)]
    coords = (rng.randrange(N), *start, 0)
    wide_coords = (rng.randrange(N), *map(rng.randrange, extents[:-1]), start[-1], 0)
    if rng.random() < 0.4:
        made = tma.Im2colWideMap(
            **common,
            lower_corner_w=lower[-1],
            upper_corner_w=upper[-1],
            traversal_stride=strides[-1],
            pixels_per_column=rng.choice([64, 128, 256]),
            mode=rng.choice(["w", "w128"]),
            swizzle=rng.choice(["64B", "128B"]),
        )
        return made.arguments, {"coords": wide_coords, "w_halo": rng.randint(0, 4)}
    made = tma.Im2colMap(
        **common,
        lower_corner=lower,
        upper_corner=upper,
        traversal_stride=strides,
        pixels_per_column=rng.choice([64, 128, 256]),
        swizzle=rng.choice(["none", "64B", "128B"]),
    )
    return made.arguments, {"coords": coords, "offsets": [0] * spatial}


def put(values, index, value):
    """`values` with one entry changed."""
    return (*values[:index], value, *values[index + 1 :])


def is_wide(a):
    return "mode" in a


def corner(a, which):
    return f"pixelBox{which}Corner" + ("Width" if is_wide(a) else "")


def plant_corner(which, value):
    """A planter that replaces the corner of W by `value` of (old corner, W)."""

    def plant(a, load, rng):
        name, W = corner(a, which), a["globalDim"][1]
        if is_wide(a):
            return name, {name: value(a[name], W)}, {}
        return name, {name: put(a[name], 0, value(a[name][0], W))}, {}

    return plant


def plant_entry(name, index, value):
    return lambda a, load, rng: (name, {name: put(a[name], index, value(a, rng))}, {})


def plant(name, value):
    return lambda a, load, rng: (name, {name: value(a, rng)}, {})


def plant_load(name, value):
    return lambda a, load, rng: (name, {}, {name: value(a, load)})


def swapped_corners(a, load, rng):
    lower, upper = corner(a, "Lower"), corner(a, "Upper")
    if is_wide(a) or a[lower] == a[lower][::-1]:
        return None
    return "pixelBox", {lower: a[lower][::-1], upper: a[upper][::-1]}, {}


def integer_nan(a, load, rng):
    changed = {"tensorDataType": "CU_TENSOR_MAP_DATA_TYPE_UINT8", "oobFill": 1}
    return ("oobFill", changed, {}) if a["tensorDataType"].endswith("UINT8") else None


def width_swizzle(a, load, rng):
    return ("swizzle", {"swizzle": rng.choice([0, 1])}, {}) if is_wide(a) else None


def bytes_for_elements(a, load, rng):
    size = next(SIZES[t] for t in SIZES if a["tensorDataType"].endswith("_" + t.upper()))
    bytes_ = a["channelsPerPixel"] * size
    span = {"NONE": 256, "64B": 64, "128B": 128}[a["swizzle"].rsplit("_", 1)[1]]
    if size == 1 or bytes_ * size <= span or span == 256:
        return None
    return "channelsPerPixel", {"channelsPerPixel": bytes_}, {}


def reversed_coords(a, load, rng):
    turned = load["coords"][::-1]
    return ("coords", {}, {"coords": turned}) if turned != load["coords"] else None


def elements_for_bytes(a, load, rng):
    if a["tensorDataType"].endswith("UINT8"):
        return None
    size = next(SIZES[t] for t in SIZES if a["tensorDataType"].endswith("_" + t.upper()))
    return "globalStrides", {"globalStrides": tuple(s // size for s in a["globalStrides"])}, {}


def last_w(a):
    upper = a[corner(a, "Upper")]
    return a["globalDim"][1] - 1 + (upper if is_wide(a) else upper[0])


def at_w(coords, w):
    return (*coords[:-2], w, coords[-1])


PLANTERS = {
    "rank": plant("tensorRank", lambda a, rng: rng.choice([2, 6, (a["tensorRank"] - 2) % 3 + 3])),
    "type": plant("tensorDataType", lambda a, rng: rng.choice([13, 15, 99])),
    "address": plant("globalAddress", lambda a, rng: a["globalAddress"] + rng.choice([1, 4, 8])),
    "no size": plant_entry("globalDim", 1, lambda a, rng: 0),
    "no channels at all": plant_entry("globalDim", 0, lambda a, rng: 0),
    "huge size": plant_entry("globalDim", 0, lambda a, rng: (1 << 32) + 1),
    "row-major sizes": plant("globalDim", lambda a, rng: a["globalDim"][::-1]),
    "odd stride": plant_entry("globalStrides", 0, lambda a, rng: a["globalStrides"][0] + 8),
    "huge stride": plant_entry("globalStrides", 0, lambda a, rng: 1 << 40),
    "strides reversed": plant("globalStrides", lambda a, rng: a["globalStrides"][::-1]),
    "strides in elements": elements_for_bytes,
    "stride of c": plant("globalStrides", lambda a, rng: (4, *a["globalStrides"])),
    "lower too low": plant_corner("Lower", lambda old, W: -(1 << 15) - 1),
    "lower positive": plant_corner("Lower", lambda old, W: 1 - old),
    "lower past the end": plant_corner("Lower", lambda old, W: W + 5),
    "upper too high": plant_corner("Upper", lambda old, W: 1 << 15),
    "upper absolute": plant_corner("Upper", lambda old, W: W - 1),
    "upper empties the box": plant_corner("Upper", lambda old, W: -W - 8),
    "corners H-first": swapped_corners,
    "no channels": plant("channelsPerPixel", lambda a, rng: 0),
    "too many channels": plant("channelsPerPixel", lambda a, rng: 257 + rng.randint(0, 99)),
    "odd channels": plant("channelsPerPixel", lambda a, rng: a["channelsPerPixel"] + 1),
    "channels in bytes": bytes_for_elements,
    "no pixels": lambda a, load, rng: (
        None
        if a.get("mode", "").endswith("128")
        else ("pixelsPerColumn", {"pixelsPerColumn": 0}, {})
    ),
    "too many pixels": lambda a, load, rng: (
        None
        if a.get("mode", "").endswith("128")
        else ("pixelsPerColumn", {"pixelsPerColumn": 1025}, {})
    ),
    "no step": plant_entry("elementStrides", 1, lambda a, rng: 0),
    "long step": plant_entry("elementStrides", 1, lambda a, rng: 9),
    "step of c": plant_entry("elementStrides", 0, lambda a, rng: 2),
    "interleave": plant("interleave", lambda a, rng: 3),
    "swizzle": plant("swizzle", lambda a, rng: 7),
    "wide swizzle": width_swizzle,
    "fill": plant("oobFill", lambda a, rng: 2),
    "integer NaN": integer_nan,
    "promotion": plant("l2Promotion", lambda a, rng: 4),
    "map alignment": plant("tensorMap", lambda a, rng: 32),
    "start right of the box": plant_load(
        "coords", lambda a, load: at_w(load["coords"], last_w(a) + 1)
    ),
    "coords fastest-first": reversed_coords,
    "offset": lambda a, load, rng: (
        None if is_wide(a) else ("offsets", {}, {"offsets": [1 << 16] * len(load["offsets"])})
    ),
    "halo": plant_load("w_halo", lambda a, load: 512),
    "w_offset": plant_load("w_offset", lambda a, load: 32),
    "destination": plant_load("dst", lambda a, load: 64),
}


def planted(count):
    """`count` maps with one planted mistake each: (planter, field, findings)."""
    rng = random.Random(20)
    names = list(PLANTERS)
    while count:
        arguments, load = sound(rng)
        name = names[count % len(names)]
        mistake = PLANTERS[name](arguments, load, rng)
        if mistake is None:  # it does not apply to this descriptor: draw another
            continue
        field, changed, operands = mistake
        yield name, field, tma.lint({**arguments, **changed}, **{**load, **operands})
        count -= 1


def test_planted_mistakes_are_named():
    missed = {}
    for name, field, findings in planted(1000):
        if not any(finding.field.startswith(field) for finding in findings):
            missed[name] = missed.get(name, 0) + 1
    assert sum(missed.values()) <= 50, missed


def test_sound_maps_have_no_errors_and_few_warnings():
    rng = random.Random(21)
    findings = []
    for _ in range(500):
        arguments, load = sound(rng)
        findings += tma.lint(arguments, **load)
    assert not [f for f in findings if f.severity == "error"]
    assert len(findings) <= 10, findings[:3]


def test_arguments_round_trip(case, lab):
    """The linter accepts a map, and its driver arguments by name and by number."""
    map = lab.make_map(case)
    arguments = map.arguments
    assert arguments["globalDim"] == map.shape[::-1]
    assert not [f for f in tma.lint(map) if f.severity == "error"]
    assert tma.lint(arguments) == tma.lint(**arguments)
    numbers = {"tensorDataType": 6, "interleave": 0, "l2Promotion": 0, "oobFill": 0}
    assert tma.lint({**arguments, **numbers}) == tma.lint(arguments)


def test_everything_wrong_is_listed_at_once():
    with pytest.raises(TensorMapError) as refused:
        tma.Im2colMap(
            shape=(2, 0, 9, 15),
            dtype="int32",
            lower_corner=(-129, 0),
            upper_corner=(0, -9),
            traversal_stride=(1, 9),
            pixels_per_column=1025,
            channels_per_pixel=300,
            oob_fill="nan",
            address=8,
        )
    fields = {finding.field for finding in refused.value.findings}
    assert fields == {
        "shape[h]",
        "shape[c]",
        "lower_corner[h]",
        "upper_corner[w]",
        "traversal_stride[w]",
        "pixels_per_column",
        "channels_per_pixel",
        "oob_fill",
        "address",
    }
    for value in ("-129", "[-128, 127]", "1025", "[1, 1024]", "0x8"):
        assert value in str(refused.value)


def test_hints_speak_the_callers_order():
    fields = {
        "shape": (2, 9, 200, 16),
        "dtype": "float32",
        "lower_corner": (0, -1),
        "upper_corner": (0, -1),
        "traversal_stride": 1,
        "pixels_per_column": 8,
        "channels_per_pixel": 4,
    }
    ours = tma.lint(**{**fields, "lower_corner": (-2, 0), "upper_corner": (-50, 0)})
    assert any("look W-first; Python takes ([d,] h, w)" in f.hint for f in ours)
    arguments = tma.Im2colMap(**fields).arguments
    theirs = tma.lint(
        {**arguments, "pixelBoxLowerCorner": (0, -2), "pixelBoxUpperCorner": (0, -50)}
    )
    assert any("look H-first; the driver reads W first" in f.hint for f in theirs)
    start = tma.lint(tma.Im2colMap(**fields), coords=(0, 4, 3, 1))
    assert any("fastest-first" in f.hint for f in start) or start == []
    turned = tma.lint(tma.Im2colMap(**fields), coords=(0, 150, 2, 0))
    assert any(f.field == "coords[h]" and "h, w" in f.hint for f in turned)


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="globaldim"):
        tma.lint(globalDim=(16, 4, 4, 1), globaldim=(1,))


def test_missing_arguments_are_named():
    fields = [f.field for f in tma.lint(globalDim=(16, 4, 4, 1))]
    assert "globalStrides" in fields and "pixelBoxLowerCorner" in fields
