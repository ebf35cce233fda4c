"""Rules of the documentation that count no bytes: types, calls, operands of a convolution."""

import numpy as np
import pytest

from implicit_conv import tma
from implicit_conv.problem.problem import Problem

INTEGERS = {"uint32", "int32", "uint64", "int64"}
HALVES = {"float16", "bfloat16"}
TAKEN = {  # PTX ISA 9.7.9.25.5.2, by the type of the tensor map
    "add": {"uint32", "int32", "uint64", "float32", *HALVES},
    "min": INTEGERS | HALVES,
    "max": INTEGERS | HALVES,
    "inc": {"uint32"},
    "dec": {"uint32"},
    "and": INTEGERS,
    "or": INTEGERS,
    "xor": INTEGERS,
}
DTYPES = {*INTEGERS, *HALVES, "uint8", "int16", "float32", "float64", "float8_e5m2"}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("reduction", TAKEN)
def test_a_reduction_takes_its_types(reduction, dtype):
    map = tma.TiledMap(shape=(64, 64), dtype=dtype, box=(8, 16))
    options = {"direction": "reduce", "reduction": reduction}
    found = tma.lint(map, **options)
    assert found == tma.lint(map.arguments, **options) or found[0].field == "dtype"
    if dtype in TAKEN[reduction]:
        assert found == []
        assert f".{reduction}." in map.ptx((0, 0), **options)
        return
    (finding,) = found
    assert (finding.field, finding.severity) == ("dtype", "error")
    assert finding.allowed.startswith(f"the reduction {reduction} takes")
    with pytest.raises(tma.TensorMapError, match=f"the reduction {reduction} takes"):
        map.ptx((0, 0), **options)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "float4_e2m1fn", "float6_e3m2fn"])
def test_elements_of_less_than_a_byte_are_refused(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (name, getattr(ml_dtypes, name)):
        with pytest.raises(TypeError, match=f"{name}.*less than a byte.*16U4"):
            tma.TiledMap(shape=(64, 64), dtype=dtype, box=(8, 16))


BOX = tma.TiledMap(shape=(64, 64), dtype="float16", box=(8, 16), address=1 << 20).arguments
IM2COL = tma.Im2colMap(
    shape=(4, 9, 14, 64),
    dtype="float16",
    lower_corner=(-1, -1),
    upper_corner=(-1, -1),
    pixels_per_column=64,
    channels_per_pixel=64,
).arguments


@pytest.mark.parametrize(
    ("given", "foreign"),
    [
        ({**BOX, "channelsPerPixel": 64}, "channelsPerPixel"),
        ({**BOX, "pixelBoxLowerCorner": ()}, "pixelBoxLowerCorner"),
        ({**BOX, "mode": 0}, "mode"),
        ({**IM2COL, "pixelBoxLowerCornerWidth": -1}, "pixelBoxLowerCorner"),
    ],
)
def test_arguments_of_two_calls_are_an_error(given, foreign):
    (finding, *_) = [found for found in tma.lint(given) if "of another call" in found.allowed]
    assert (finding.field, finding.severity) == (foreign, "error")


def test_globaldim_between_the_limits_of_two_headers():
    for size, fields in ((1 << 31, []), ((1 << 31) + 16, ["globalDim[1]"])):
        found = tma.lint({**BOX, "globalDim": (64, size)})
        assert [finding.field for finding in found] == fields
        assert all(f.severity == "warning" and "13.5" in f.allowed for f in found)
    (finding,) = tma.lint({**BOX, "globalDim": (64, (1 << 32) + 1)})
    assert finding.severity == "error"


PACKED = {
    **BOX,
    "globalDim": (256, 64),
    "globalStrides": (128,),
    "boxDim": (128, 8),
    "swizzle": "128B",
}


@pytest.mark.parametrize("kind", ["16U4_ALIGN16B", "16U6_ALIGN16B"])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, None),
        ({"globalAddress": (1 << 20) + 16}, "globalAddress"),
        ({"globalStrides": (144,)}, "globalStrides[0]"),
        ({"globalDim": (192, 64)}, "globalDim[0]"),
        ({"boxDim": (64, 8)}, "boxDim[0]"),
        ({"swizzle": "64B"}, "swizzle"),
        (
            {
                "interleave": "16B",
                "globalDim": (256, 64, 2),
                "globalStrides": (128, 8192),
                "boxDim": (128, 8, 1),
                "elementStrides": (1, 1, 1),
                "tensorRank": 3,
            },
            "interleave",
        ),
    ],
)
def test_packed_types_have_rules_that_need_no_bytes(kind, change, field):
    found = tma.lint({**PACKED, "tensorDataType": f"CU_TENSOR_MAP_DATA_TYPE_{kind}", **change})
    errors = [finding.field for finding in found if finding.severity == "error"]
    if field == "interleave" and kind == "16U4_ALIGN16B":
        field = None
    assert errors == ([] if field is None else [field])


def test_channels_of_packed_types():
    given = {**IM2COL, "tensorDataType": 14, "globalDim": (128, 14, 9, 4)}
    assert "channelsPerPixel" in {finding.field for finding in tma.lint(given)}
    assert {f.severity for f in tma.lint({**given, "channelsPerPixel": 128})} == {"warning"}
    odd = {**BOX, "tensorDataType": 13, "globalDim": (63, 64)}
    assert "globalDim[0]" in {f.field for f in tma.lint(odd) if f.severity == "error"}


def test_a_store_gets_no_advice_on_padding():
    found = tma.lint(IM2COL, direction="store")
    assert found and all("pad_lo" not in f.hint and "without padding" in f.hint for f in found)


CONV = ((8, 30, 34, 64), (64, 3, 3, 64))


def loads(mode, **options):
    lowering = tma.maps_for(CONV, mode, dtype="float16", padding=1, **options)
    return lowering, [load for block in lowering.k_blocks(1) for load in block.loads]


def operands(load, **change):
    names = ("coords", "offsets", "w_halo", "w_offset")
    return {**{name: getattr(load, name) for name in names}, **change}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("mode", ["im2col", "w", "w128"])
def test_the_operands_of_a_lowering_have_no_finding(mode, stride, dilation):
    lowering, given = loads(mode, stride=stride, dilation=dilation)
    for load in given:
        assert tma.lint(lowering.maps[0], **operands(load), problem=lowering.problem) == []


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("operator", ["fprop", "wgrad", "dgrad"])
@pytest.mark.parametrize("mode", ["im2col", "w", "w_sm90"])
def test_operands_are_compared_for_elements_of_each_size(mode, operator, dtype):
    """Channels are multiples of 16 bytes of this type, but not of another."""
    count = 48 // np.dtype(dtype).itemsize
    shapes = (8, 9, 10, count), (count, 3, 3, count)
    lowering = tma.maps_for(shapes, mode, operator=operator, dtype=dtype, padding=1, dilation=2)
    about = {"problem": lowering.problem, "operator": operator}
    for block in lowering.k_blocks(0):
        for load in block.loads:
            assert tma.lint(lowering.maps[load.buffer], **operands(load), **about) == []
    wrong = {"offsets": (1, 1)} if mode == "im2col" else {"w_halo": 9}
    if mode != "w_sm90":
        assert tma.lint(lowering.maps[0], **operands(load, **wrong), **about) != []


def test_operands_are_compared_where_no_copy_reaches_the_last_tap():
    """The corners of this convolution fit, and its last offsets do not."""
    shapes = (2, 40, 40, 40, 16), (16, 2, 2, 2, 16)
    problem = Problem.parse(
        *shapes, rank=3, padding=16, dilation=32, layout="NDHWC", weight_layout="KTRSC"
    )
    map = tma.Im2colMap(
        shape=shapes[0],
        dtype="float16",
        lower_corner=(-16,) * 3,
        upper_corner=(-16,) * 3,
        pixels_per_column=8,
        channels_per_pixel=16,
    )
    at = {"coords": (0, -16, -16, -16, 0), "problem": problem}
    assert tma.lint(map, **at, offsets=(0, 0, 0)) == []
    (finding,) = tma.lint(map, **at, offsets=(0, 0, 1))
    assert finding.field == "offsets" and "no tap" in finding.allowed


def test_operands_unlike_those_of_the_convolution():
    lowering, given = loads("w", stride=1)
    load = next(load for load in given if load.w_halo)
    for change, words in (
        ({"w_halo": 0}, "halo"),
        ({"w_halo": load.w_offset, "w_offset": load.w_halo}, "exchanged"),
        ({"w_offset": 7}, "w_offset"),
    ):
        at = operands(load, **change)
        found = tma.lint(lowering.maps[0], **at, problem=lowering.problem)
        assert len(found) == 1 and words in f"{found[0].field} {found[0].hint}", (change, found)
    lowering, given = loads("im2col", dilation=3)
    offsets = {load.offsets for load in given}
    for at, words in (((0, 9), "outside"), ((1, 2), "dilation")):
        assert at not in offsets
        wrong = operands(given[0], offsets=at)
        (finding,) = tma.lint(lowering.maps[0], **wrong, problem=lowering.problem)
        assert finding.field == "offsets" and words in finding.allowed + finding.hint
        if words == "dilation":
            assert finding.fix == {"offsets": (3, 6)}


@pytest.mark.parametrize(
    ("change", "hint"),
    [({"globalDim": (192, 64)}, "pad it to 256"), ({"boxDim": (64, 8)}, "take 128")],
)
def test_hints_on_packed_types_work(change, hint):
    (finding,) = (f for f in tma.lint({**PACKED, "tensorDataType": 14, **change}) if f.hint)
    assert finding.hint == hint
