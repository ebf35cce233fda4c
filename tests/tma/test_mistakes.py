"""A table of wrong inputs: each has one finding, in the right field, whose advice is right.

The mistakes are those that users of tensor maps report. `fix` of a finding either is exactly the
change that makes the input right, or None where only the user knows what was meant: where another
mistake explains the same input, and where the advice is only what is legal.
"""

import random

import pytest
from sampling import count, resampled

from implicit_conv import tma
from implicit_conv.problem.problem import Problem

FIELDS = {
    "shape": (64, 9, 14, 128),
    "dtype": "float16",
    "lower_corner": (-1, -1),
    "upper_corner": (-1, -1),
    "pixels_per_column": 64,
    "channels_per_pixel": 64,
    "swizzle": "128B",
}
IM2COL = tma.Im2colMap(**FIELDS)
WIDE = tma.Im2colWideMap(
    shape=(64, 9, 14, 128),
    dtype="float16",
    lower_corner_w=-1,
    upper_corner_w=0,
    channels_per_pixel=64,
)
FLAT = {  # a box that no exchange of h and w changes, with another shape
    "shape": (8, 9, 200, 128),
    "dtype": "float16",
    "lower_corner": (0, -100),
    "upper_corner": (0, 20),
    "pixels_per_column": 64,
    "channels_per_pixel": 64,
    "swizzle": "128B",
}
TILED = tma.TiledMap(
    shape=(8, 30, 40, 128), dtype="float16", box=(1, 4, 8, 64), swizzle="128B", address=1 << 20
)
T = TILED.arguments
A, W = IM2COL.arguments, WIDE.arguments
IN = {"coords": (7, 2, 4, 0)}
SOUND = {
    "im2col": (A, {**IN, "offsets": (1, 2), "dst": 1024}),
    "wide": (W, {**IN, "w_halo": 2, "dst": 1024}),
    "python": (FIELDS, IN),
    "small": ({**FIELDS, "shape": (4, 9, 14, 128)}, {"coords": (3, 2, 4, 0)}),
    "tiled": (T, {"coords": (3, 4, 8, 64), "dst": 2048}),
    "flat": (FLAT, {"coords": (7, 2, 210, 0)}),
}
UNKNOWN = "the fix is not known"

# (input that is changed, change, field of the finding, words of the hint, fix or None to restore)
TABLE = [
    # order of dimensions
    ("im2col", {"globalDim": A["globalDim"][::-1]}, "globalDim", "row-major", UNKNOWN),
    ("im2col", {"globalStrides": A["globalStrides"][::-1]}, "globalStrides[2]", "row-major"),
    (
        "im2col",
        {"globalDim": A["globalDim"][::-1], "globalStrides": A["globalStrides"][::-1]},
        "globalStrides[2]",
        "shape and strides both look row-major",
    ),
    ("small", {"shape": (128, 14, 9, 4)}, "shape[c]", "fastest-first", UNKNOWN),
    ("flat", {"lower_corner": (-100, 0), "upper_corner": (20, 0)}, "lower_corner", "look W-first"),
    ("im2col", {"coords": (0, 4, 7, 7)}, "coords[c]", "fastest-first", {"coords": (7, 7, 4, 0)}),
    ("im2col", {"coords": (0, 4, 2, 63)}, "coords[c]", "fastest-first", {"coords": (63, 2, 4, 0)}),
    ("wide", {"coords": (0, 4, 7, 7)}, "coords[c]", "fastest-first", {"coords": (7, 7, 4, 0)}),
    ("im2col", {"coords": (7, 11, 4, 0)}, "coords[h]", "exchanged", {"coords": (7, 4, 11, 0)}),
    ("wide", {"coords": (7, 12, 14, 0)}, "coords[w]", "not right of it", UNKNOWN),
    # units
    (
        "im2col",
        {"globalStrides": (128, 1792, 16128)},
        "globalStrides[0]",
        "look like elements",
        UNKNOWN,
    ),
    ("im2col", {"globalStrides": (2, *A["globalStrides"])}, "globalStrides", "stride of c"),
    ("im2col", {"channelsPerPixel": 128}, "channelsPerPixel", "looks like bytes", UNKNOWN),
    ("im2col", {"channelsPerPixel": 72}, "channelsPerPixel", "load 64 channels at a", UNKNOWN),
    ("im2col", {"coords": (7, 2, 4, 128)}, "coords[c]", "like bytes", {"coords": (7, 2, 4, 64)}),
    ("im2col", {"coords": (7, 2, 4, 7)}, "coords[c]", "multiple of 8", UNKNOWN),
    # corners
    ("im2col", {"pixelBoxUpperCorner": (12, 7)}, "pixelBoxUpperCorner[1]", "absolute end"),
    ("im2col", {"pixelBoxUpperCorner": (1, 1)}, "pixelBoxUpperCorner[1]", "upper = -pad"),
    ("im2col", {"pixelBoxLowerCorner": (1, 1)}, "pixelBoxLowerCorner[1]", "lower = -pad_lo"),
    ("im2col", {"pixelBoxLowerCorner": (-129, -1)}, "pixelBoxLowerCorner[0]", "-pad_lo", UNKNOWN),
    ("im2col", {"pixelBoxUpperCorner": (-200, -1)}, "pixelBoxUpperCorner[0]", "taps", UNKNOWN),
    ("im2col", {"pixelBoxUpperCorner": (-20, -1)}, "pixelBoxUpperCorner[0]", "taps", UNKNOWN),
    ("wide", {"pixelBoxUpperCornerWidth": 13}, "pixelBoxUpperCornerWidth", "absolute end"),
    ("wide", {"pixelBoxUpperCornerWidth": -20}, "pixelBoxUpperCornerWidth", "L slots", UNKNOWN),
    (
        "wide",
        {"pixelBoxLowerCornerWidth": 1},
        "pixelBoxLowerCornerWidth",
        "lower = -pad_lo",
        UNKNOWN,
    ),
    # starts and operands
    ("im2col", {"coords": (7, 2, 99, 0)}, "coords[w]", "tap belongs in the offsets", UNKNOWN),
    ("wide", {"coords": (7, 2, 99, 0)}, "coords[w]", "not right of it", UNKNOWN),
    ("wide", {"coords": (7, -1, 4, 0)}, "coords[h]", "skip the load", UNKNOWN),
    ("im2col", {"coords": (64, 2, 4, 0)}, "coords[n]", "", UNKNOWN),
    ("im2col", {"offsets": (0, -1)}, "offsets[w]", "never negative", UNKNOWN),
    ("im2col", {"offsets": (0, 256)}, "offsets[w]", "r * dilation", UNKNOWN),
    ("im2col", {"w_offset": 1}, "w_offset", "entry of offsets", {"offsets": (1, 3), "w_offset": 0}),
    ("im2col", {"w_halo": 2}, "w_halo", "use offsets, or an Im2colWideMap", UNKNOWN),
    ("wide", {"offsets": (0, 1)}, "offsets", "w_offset", {"offsets": None, "w_offset": 1}),
    ("wide", {"w_halo": 512}, "w_halo", "t div stride", UNKNOWN),
    ("wide", {"w_offset": 32}, "w_offset", "extend the halo", UNKNOWN),
    ("im2col", {"dst": 64}, "dst", "align it to 1024 bytes", UNKNOWN),
    # counts, steps, modes
    ("im2col", {"pixelsPerColumn": 0}, "pixelsPerColumn", "rows of one load", UNKNOWN),
    ("im2col", {"pixelsPerColumn": 2048}, "pixelsPerColumn", "several loads", UNKNOWN),
    (
        "im2col",
        {"elementStrides": (1, 0, 1, 1)},
        "elementStrides[1]",
        "1 visits every pixel",
        UNKNOWN,
    ),
    ("im2col", {"elementStrides": (1, 9, 1, 1)}, "elementStrides[1]", "stride", UNKNOWN),
    ("im2col", {"elementStrides": (2, 1, 1, 1)}, "elementStrides[0]", "c, w, h, d, n", UNKNOWN),
    ("wide", {"elementStrides": (1, 1, 2, 1)}, "elementStrides[2]", "c, w, h, d, n", UNKNOWN),
    ("wide", {"elementStrides": (1, 1, 1, 2)}, "elementStrides[3]", "c, w, h, d, n", UNKNOWN),
    ("wide", {"swizzle": 0}, "swizzle", "128B holds a row"),
    ("wide", {"swizzle": 1}, "swizzle", "128B holds a row"),
    ("wide", {"interleave": 1}, "interleave", "use none"),
    ("im2col", {"interleave": 2}, "interleave", "use none", {"interleave": "x"}),
    ("im2col", {"tensorDataType": 1, "oobFill": 1}, "oobFill", "integers fill", {"oobFill": "x"}),
    ("im2col", {"tensorRank": 2}, "tensorRank", "pass 4", {"tensorRank": 4}),
    ("im2col", {"globalAddress": 0x1008}, "globalAddress", "alignment", UNKNOWN),
    ("python", {"shape": (64, 9, 14, 3)}, "shape[c]", "pad C to 8", UNKNOWN),
    # tiled maps
    ("tiled", {"boxDim": (1, 4, 8, 64)}, "boxDim[0]", "row-major", UNKNOWN),
    ("tiled", {"globalDim": T["globalDim"][::-1]}, "globalDim", "row-major"),
    ("tiled", {"boxDim": (128, 8, 4, 1)}, "boxDim[0]", "looks like bytes", UNKNOWN),
    ("tiled", {"boxDim": (60, 8, 4, 1)}, "boxDim[0]", "multiple of 8", UNKNOWN),
    ("tiled", {"boxDim": (64, 8, 512, 1)}, "boxDim[2]", "several copies", UNKNOWN),
    ("tiled", {"boxDim": (64, 40, 60, 1)}, "boxDim", "several copies", UNKNOWN),
    ("tiled", {"elementStrides": (1, 9, 1, 1)}, "elementStrides[1]", "", UNKNOWN),
    ("tiled", {"coords": (64, 8, 4, 3)}, "coords[3]", "fastest-first", {"coords": (3, 4, 8, 64)}),
    ("tiled", {"coords": (3, 4, 8, 4)}, "coords[3]", "multiple of 8", UNKNOWN),
    ("tiled", {"coords": (3, 40, 8, 0)}, "coords[1]", "", UNKNOWN),
    ("tiled", {"offsets": (1, 1)}, "offsets", "", UNKNOWN),
    ("tiled", {"dst": 1152}, "dst", "align it to 1024 bytes", UNKNOWN),
    ("im2col", {"tensorDataType": 13}, "tensorDataType", "", UNKNOWN),
]


def split(changed):
    """(changed arguments of the map, changed operands of the load)."""
    operands = ("coords", "offsets", "w_halo", "w_offset", "dst")
    return [
        {key: value for key, value in changed.items() if (key in operands) == load}
        for load in (False, True)
    ]


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: f"{entry[0]}-{'-'.join(entry[1])}")
def test_a_mistake_has_one_right_finding(entry):
    base, change, field, words, *rest = entry
    arguments, load = SOUND[base]
    assert tma.lint(arguments, **load) == []
    changed, operands = split(change)
    given, at = {**arguments, **changed}, {**load, **operands}
    (finding,) = tma.lint(given, **at)
    assert (finding.field, words in finding.hint) == (field, True), str(finding)
    expected = rest[0] if rest else {name: (arguments | load)[name] for name in change}
    if expected == UNKNOWN:
        assert finding.fix is None
        return
    assert set(finding.fix) == set(expected), finding.fix
    if "x" not in expected.values() and base in ("im2col", "wide", "tiled"):
        assert finding.fix == expected
    changed, operands = split(finding.fix)
    assert tma.lint({**given, **changed}, **{**at, **operands}) == []


def test_the_table_is_long_enough():
    assert len(TABLE) >= 50


def conv(**options):
    options = {"padding": 1, "layout": "NHWC", "weight_layout": "KRSC", **options}
    return Problem.parse((8, 15, 17, 64), (64, 3, 3, 64), **options)


def test_a_wrong_stride_asks_for_nothing_else():
    """The corners of a stride of 1 and of 2 are equal, so that only the step is wrong."""
    map = tma.maps_for(conv(), dtype="float16").maps[0]
    findings = tma.lint(map, problem=conv(stride=2))
    assert [f.field for f in findings] == ["traversal_stride[h]", "traversal_stride[w]"]
    assert all(finding.fix == {"traversal_stride": (2, 2)} for finding in findings)


def test_a_tiled_map_is_not_compared_with_a_convolution():
    with pytest.raises(ValueError, match="a tiled map has no walk"):
        tma.lint(TILED, problem=conv())


def test_a_wide_map_gets_the_formula_of_slots():
    map = tma.maps_for(conv(), "w", dtype="float16").maps[0]
    (finding,) = tma.lint({**map.arguments, "pixelBoxUpperCornerWidth": -99})
    assert "L slots" in finding.hint and "taps" not in finding.hint
    (finding,) = tma.lint({**map.arguments, "pixelBoxUpperCornerWidth": -1}, problem=conv())
    assert finding.fix == {"pixelBoxUpperCornerWidth": 0}


def test_limits_cite_the_page_of_their_mode():
    wide = {**W, "pixelBoxLowerCornerWidth": -(1 << 15) - 1}
    (finding,) = tma.lint(wide)
    assert finding.source == "CUDA driver API, cuTensorMapEncodeIm2colWide"
    (finding,) = tma.lint({**A, "pixelBoxLowerCorner": (-129, -1)})
    assert finding.source.startswith("PTX ISA 5.5.4.1")
    (finding,) = tma.lint({**W, "swizzle": "128B_ATOM_64B"})
    assert finding.source == "CUDA driver API, cuTensorMapEncodeIm2colWide"
    (finding,) = tma.lint({**W, "swizzle": 0})
    assert finding.source.startswith("PTX ISA 5.5.5")


def test_stores_have_rules_of_their_own():
    at = {"coords": (7, 2, -1, 0), "offsets": (0, 1)}
    assert tma.lint(A, **at) == []
    fields = [f.field for f in tma.lint(A, **at, direction="store")]
    assert "pixelBoxLowerCorner[0]" in fields and "coords[w]" in fields and "offsets" in fields
    inside = {**A, "pixelBoxLowerCorner": (0, 0), "pixelBoxUpperCorner": (0, 0)}
    assert tma.lint(inside, coords=(7, 2, 1, 0), direction="store") == []
    (finding,) = tma.lint(W, direction="reduce")
    assert finding.field == "mode" and "9.7.9.25.5.1" in finding.source
    (finding,) = tma.lint(T, coords=(0, -1, 0, 0), direction="store")
    assert finding.field == "coords[1]" and finding.severity == "error"
    short = tma.lint({**inside, "pixelBoxLowerCorner": (0,)}, direction="store")
    assert [f.field for f in short] == ["pixelBoxLowerCorner"]
    for at in ((8, 0, 0, 0), (-8, 0, 0, 0), (0, 0, 0, 64)):
        for found in tma.lint(T, coords=at, direction="store"):
            assert "load" not in str(found) and "tap" not in str(found)
    with pytest.raises(ValueError, match="direction 'write' is unknown; choose from load"):
        tma.lint(T, direction="write")


def test_small_tensors_that_are_not_packed_on_blackwell():
    small = {"shape": (4, 64), "dtype": "float16", "box": (4, 64), "strides": (256,)}
    assert tma.lint(small) == tma.lint(small, arch="sm_90a") == []
    (finding,) = tma.lint(small, arch="sm_100a")
    assert (finding.field, finding.severity) == ("strides", "warning") and "bit 85" in finding.hint
    assert tma.lint({**small, "strides": (128,)}, arch="sm_100a") == []
    assert tma.lint({**small, "shape": (4096, 64)}, arch="sm_100a") == []


def test_interleaved_strides_are_not_called_short():
    box = {"lower_corner": (-1, -1), "upper_corner": (-1, -1), "pixels_per_column": 12}
    sizes = {"shape": (2, 5, 7, 64), "dtype": "float16", "channels_per_pixel": 8}
    map = tma.Im2colMap(**sizes, **box, interleave="16B", strides=(4480, 112, 16))
    assert tma.lint(map) == tma.lint(map.arguments) == []


def spoiled(rng):
    """A sound input with one to three entries replaced by numbers near them."""
    arguments, load = SOUND[rng.choice(["im2col", "wide", "tiled"])]
    given, at = dict(arguments), dict(load)
    for _ in range(rng.randint(1, 3)):
        source = rng.choice([given, at])
        name = rng.choice([n for n, v in source.items() if isinstance(v, (int, tuple))])
        source[name] = near(rng, source[name])
    return given, at


def near(rng, value):
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, 2 * value, -value, value + 8, 0, 1 << 16])
    if not value or rng.random() < 0.3:
        return rng.choice([value[::-1], value[::-1], value[1:], (*value, 1), ()])
    index = rng.randrange(len(value))
    return (*value[:index], near(rng, value[index]), *value[index + 1 :])


def errors(findings):
    return sum(finding.severity == "error" for finding in findings)


@resampled
def test_advice_removes_its_finding_and_breaks_no_rule():
    rng = random.Random(19)
    fixed, drawn = 0, count(500, 2000, 2000)
    for _ in range(drawn):
        given, at = spoiled(rng)
        findings = tma.lint(given, **at)
        for finding in findings:
            if finding.fix is None:
                continue
            changed, operands = split(finding.fix)
            after = tma.lint({**given, **changed}, **{**at, **operands})
            assert finding.field not in {f.field for f in after}, (given, at, finding)
            assert errors(after) <= errors(findings) - (finding.severity == "error"), (given, at)
            fixed += 1
    assert fixed > 0.15 * drawn


@resampled
def test_nothing_is_too_broken_to_lint():
    """Every combination of broken arguments gets findings with words, and no other error."""
    rng = random.Random(21)
    for _ in range(count(200, 600, 600)):
        given, at = spoiled(rng)
        options = {
            "direction": rng.choice(["load", "store"]),
            "arch": rng.choice([None, "sm_100a"]),
        }
        if "boxDim" not in given and rng.random() < 0.5:
            options |= {"problem": conv(), "operator": rng.choice(["fprop", "dgrad", "wgrad"])}
        for finding in tma.lint(given, **at, **options):
            assert finding.field and finding.allowed and str(finding)


@resampled
def test_following_advice_ends():
    """One finding after the other; no advice undoes another."""
    rng = random.Random(20)
    for _ in range(count(100, 300, 300)):
        given, at = spoiled(rng)
        for _ in range(12):
            advice = [f.fix for f in tma.lint(given, **at) if f.fix]
            if not advice:
                break
            changed, operands = split(advice[0])
            given, at = {**given, **changed}, {**at, **operands}
        else:
            pytest.fail(f"advice goes on and on: {given}, {at}")


def test_one_stride_in_elements_is_among_the_guesses():
    map = tma.Im2colMap(
        shape=(2, 6, 5, 64),
        dtype="float16",
        lower_corner=(-1, -1),
        upper_corner=(-1, -1),
        pixels_per_column=32,
        channels_per_pixel=64,
        swizzle="128B",
    )
    columns, rows, images = map.arguments["globalStrides"]
    (finding,) = tma.lint(**{**map.arguments, "globalStrides": (columns, rows // 2, images)})
    assert "globalStrides: that of h looks like elements; it must be bytes" in finding.hint


DUMP = {  # as CUTLASS prints it; NVIDIA/recsys-examples issue 86, vllm issue 13961
    "format": 6,
    "dim": 4,
    "gmem_address": 0x400540000000,
    "globalDim": (64, 16, 32, 23434, 1),
    "globalStrides": (2, 4096, 128, 65536, 0),
    "boxDim": (64, 192, 1, 1, 1),
    "elementStrides": (1,) * 5,
    "interleave": 0,
    "swizzle": 3,
    "l2Promotion": 2,
    "oobFill": 0,
}
RENAMED = {"format": "tensorDataType", "dim": "tensorRank", "gmem_address": "globalAddress"}


@pytest.mark.parametrize("names", [{}, RENAMED])
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({}, None),
        ({"globalDim": (64, 16, 0, 23434, 1), "gmem_address": 0}, "globalDim[2]"),
        ({"gmem_address": 0}, "globalAddress"),
        ({"globalStrides": (2, 4096, 120, 65536, 0)}, "globalStrides[1]"),
    ],
)
def test_dumps_of_maps_that_failed(changed, field, names):
    dump = {names.get(name, name): value for name, value in {**DUMP, **changed}.items()}
    found = {finding.field for finding in tma.lint(dump)}
    assert found == ({field} if field else set())


def test_a_null_address():
    (finding,) = tma.lint(shape=(8, 32), dtype="float32", box=(8, 32), address=0)
    assert finding.field == "address" and "null" in finding.allowed
