"""Results of maps_for for chosen convolutions: buffers, driver arguments, PTX text, errors."""

import random
from dataclasses import replace

import numpy as np
import pytest
from sampling import count, sampled

from implicit_conv import tma
from implicit_conv.problem.problem import Problem


def conv(width, stride, pad, taps=3, dilation=1, n=128, height=9):
    return Problem.parse(
        (n, height, width, 64),
        (64, taps, taps, 64),
        stride=stride,
        padding=pad,
        dilation=dilation,
        layout="NHWC",
        weight_layout="KRSC",
    )


@pytest.mark.parametrize(
    ("problem", "slots", "halos", "offsets"),
    [
        (conv(56, 1, 1), 57, [2], [0]),  # one buffer, one wasted slot
        (conv(67, 2, 1), 34, [1, 0], [0, 1]),  # the documented Example 1: exactly Q slots
        (conv(7, 3, 1), 3, [0, 0, 0], [0, 1, 2]),  # Example 2
        (conv(56, 1, 2, dilation=2), 58, [4], [0]),
        (conv(56, 2, 3, taps=7), 30, [3, 2], [0, 1]),  # the stem of a ResNet
        (conv(70, 1, 0, taps=1), 70, [0], [0]),
    ],
)
def test_phase_buffers(problem, slots, halos, offsets):
    lowering = tma.maps_for(problem, "w", dtype="float16")
    assert lowering.slots == slots
    assert [lowering.halo(b) for b in range(lowering.buffers)] == halos
    assert [lowering.offset(b) for b in range(lowering.buffers)] == offsets


def test_documented_example_1_is_this_lowering(lab):
    """The lowered loads walk as the captured buffers do, although the corners differ."""
    lowering = tma.maps_for(conv(67, 2, 1), "w", dtype="float16")
    tile = next(t for t in range(lowering.tiles) if tuple(lowering.outputs(t)[0][0]) == (0, 1, 0))
    loads = next(iter(lowering.k_blocks(tile))).loads
    for load, name in zip(loads, ("ptx-example-1-buffer-1", "ptx-example-1-buffer-2"), strict=True):
        case = next(c for c in lab.cases if c["name"] == name)
        coords = (case["coords"][0], *load.coords[1:])
        coords = (coords[0], case["coords"][1], *coords[2:])
        walked = tma.walk(lowering.maps[0], coords, None, load.w_halo, load.w_offset)
        rows = [
            None if gone else row
            for row, gone in zip(walked.coordinates.tolist(), walked.filled, strict=True)
        ]
        assert rows == case["rows"]


def test_instruction_text_has_ptx_order():
    im2col = tma.maps_for(conv(56, 1, 1), dtype="float16")
    blocks = list(im2col.k_blocks(1))
    assert im2col.ptx(blocks[5].loads[0]) == (
        "cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes "
        "[smem + 0], [map, {0, 15, 1, 0}], [mbar], {2, 1};"
    )
    wide = tma.maps_for(conv(67, 2, 1), "w", dtype="float16")
    assert wide.ptx(next(wide.k_blocks(0)).loads[1]) == (
        "cp.async.bulk.tensor.4d.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes "
        "[smem + 17408], [map, {0, -1, 0, 0}], [mbar], {0, 1};"
    )


def test_driver_arguments_are_fastest_first():
    (arguments,) = tma.maps_for(conv(67, 2, 1), dtype="float16", address=4096).arguments
    assert arguments["function"] == "cuTensorMapEncodeIm2col"
    assert arguments["globalDim"] == (64, 67, 9, 128)
    assert arguments["globalStrides"] == (128, 128 * 67, 128 * 67 * 9)
    assert arguments["pixelBoxLowerCorner"] == arguments["pixelBoxUpperCorner"] == (-1, -1)
    assert arguments["elementStrides"] == (1, 2, 2, 1)
    assert arguments["globalAddress"] == 4096
    (arguments,) = tma.maps_for(conv(67, 1, [[0, 2], [2, 1]]), dtype="float16").arguments
    assert arguments["pixelBoxLowerCorner"] == (-2, 0), "W first"
    assert arguments["pixelBoxUpperCorner"] == (-1, 0)
    for mode in ("w", "w128", "w_sm90"):
        for arguments in tma.maps_for(conv(67, 2, 1), mode, dtype="float16").arguments:
            assert not [f for f in tma.lint(arguments) if f.severity == "error"]


def shapes(C=64, K=64, **options):
    return ((8, 15, 17, C), (K, 3, 3, C // options.get("groups", 1)))


REFUSED = [  # problem, mode and options, words of the rule, words of the way out
    (conv(8, 1, 1), {"mode": "rows"}, "mode 'rows' is unknown", "im2col, im2col::w (or w), im"),
    (conv(8, 1, 1), {"operator": "bprop"}, "'bprop' is unknown", "choose from fprop"),
    (conv(8, 2, 1), {"operator": "dgrad"}, "not a single walk", "call tma.phases_for"),
    (conv(800, 1, 320, dilation=320), {"mode": "w"}, "w_halo=640", "use mode 'im2col'"),
    (conv(8, 1, 1), {"mode": "w128", "tile_m": 64}, "tile_m=64", "loads 128 pixels"),
    (
        conv(900, 1, 150, taps=4, dilation=150, height=900),
        {},
        r"upper_corner\[w\] = -300: must be in \[-128, 127\]",
        "use mode 'im2col::w': its corners have 16 bits",
    ),
    (conv(900, 1, 150, dilation=128, height=900), {}, "offsets|corner", "use mode 'im2col::w'"),
    (conv(900, 9, 1, height=900), {}, r"traversal_stride\[h\] = 9", "subsample the tensor"),
    (conv(8, 1, 1), {"tile_m": 2048}, "pixels_per_column = 2048", "tile_m= from 1 to 1024"),
    (conv(8, 1, 1), {"channels": 12}, "channels_per_pixel = 12", "pass channels=, a multiple of 8"),
    (conv(8, 1, 1), {"mode": "w", "swizzle": "none"}, "swizzle = none", "pass swizzle='64B'"),
    (conv(8, 1, 1), {"address": 8}, "address = 0x8", "align the tensor"),
    (shapes(C=3), {"padding": 1}, r"shape\[c\] = 3", "pad the channels in memory to 8"),
    (shapes(groups=16), {"groups": 16}, "a group has 4 channels", "pad the channels of a group"),
    (shapes(groups=4), {"groups": 4, "channels": 24}, "of 24 channels", "a divisor of 16"),
    (
        ((8, 15, 3, 64), (64, 3, 3, 64)),
        {"mode": "w_sm90", "tile_m": 1000},
        "covers 334 images",
        "use mode 'im2col' or a smaller tile_m",
    ),
    (
        shapes(),
        {"padding": 1, "padding_mode": "reflect"},
        "padding mode 'reflect'",
        "pad the tensor in memory",
    ),
    (shapes(), {"strides": (8, 8, 8)}, r"strides\[n\] = 8", "multiples of 16 bytes"),
]


@pytest.mark.parametrize(("problem", "options", "rule", "way_out"), REFUSED)
def test_what_cannot_be_lowered_says_the_rule_and_the_way_out(problem, options, rule, way_out):
    with pytest.raises(ValueError, match=rule) as refused:
        tma.maps_for(problem, **{"dtype": "float16", **options})
    assert way_out in str(refused.value)


def test_shapes_are_a_problem():
    lowering = tma.maps_for(shapes(), "w", stride=2, padding=1, dtype="bfloat16")
    assert lowering.maps[0].element == "bfloat16" and lowering.problem.output == (8, 9)
    assert lowering.arguments[0]["tensorDataType"].endswith("BFLOAT16")
    problem = lowering.problem
    assert tma.maps_for(problem, "w", dtype="bfloat16").maps == lowering.maps
    with pytest.raises(TypeError, match="stride: a Problem has these already"):
        tma.maps_for(problem, stride=2)
    line = tma.maps_for(((4, 100, 32), (8, 5, 32)), padding=2)
    assert line.maps[0].shape == (4, 100, 32) and line.maps[0].upper_corner == (-2,)
    cube = tma.maps_for(((4, 6, 7, 9, 32), (8, 3, 3, 3, 32)), padding=1)
    assert cube.maps[0].rank == 5 and len(list(cube.k_blocks(0))) == 27


def test_one_map_serves_all_groups():
    lowering = tma.maps_for(shapes(K=4, groups=4), groups=4, dtype="float16", padding=1)
    assert lowering.maps[0].shape[-1] == 64 and lowering.tile_c == 16
    first = [next(lowering.k_blocks(0, group)).loads[0].coords[-1] for group in range(4)]
    assert first == [0, 16, 32, 48]
    with pytest.raises(ValueError, match=r"group 4 must be in \[0, 3\]"):
        next(lowering.k_blocks(0, 4))
    # 72 channels a group: 24 is the largest divisor that fits in 64 channels of 128 bytes
    thirds = tma.maps_for(((1, 8, 8, 144), (4, 3, 3, 72)), groups=2, dtype="float16")
    assert thirds.tile_c == 24


@pytest.mark.parametrize("mode", ["im2col", "w", "w_sm90"])
def test_a_slice_of_channels(mode):
    whole = np.random.default_rng(0).random((4, 9, 11, 64)).astype("float32")
    part = whole[..., 16:48]
    sliced = tma.maps_for((part.shape, (8, 3, 3, 32)), mode, strides=part.strides[:-1], padding=1)
    packed = tma.maps_for((part.shape, (8, 3, 3, 32)), mode, padding=1)
    load = next(packed.k_blocks(packed.tiles // 2)).loads[0]
    at = {"offsets": load.offsets, "w_halo": load.w_halo, "w_offset": load.w_offset}
    mine = tma.load(sliced.maps[0], sliced.array(part), load.coords, **at)
    copy = np.ascontiguousarray(packed.array(part))
    np.testing.assert_array_equal(
        mine, tma.load(replace(packed.maps[0], strides=None), copy, load.coords, **at)
    )


def test_an_empty_batch_has_nothing_to_load():
    for mode in ("im2col", "w", "w128", "w_sm90"):
        lowering = tma.maps_for(((0, 8, 8, 64), (64, 3, 3, 64)), mode)
        assert (lowering.maps, lowering.arguments, lowering.tiles) == ((), (), 0)


def random_lowering(rng):
    """A lowering of a random problem of any rank, mode and operator, or None if one is refused."""
    rank, groups = rng.choice([1, 2, 2, 3]), rng.choice([1, 1, 2])
    C, K = (groups * 16 * rng.randint(1, 5) for _ in range(2))
    taps = [rng.randint(1, 5) for _ in range(rank)]
    x = (rng.randint(1, 40), *(rng.randint(1, 60) for _ in range(rank)), C)
    padding = rng.choice(["valid", "same", "same_lower", [[rng.randint(0, 6)] * 2] * rank])
    options = {"stride": rng.randint(1, 3), "padding": padding, "groups": groups}
    options["dilation"] = 1 if isinstance(padding, str) else rng.randint(1, 3)
    mode, swizzle = rng.choice(["im2col", "w", "w128", "w_sm90"]), rng.choice(["64B", "128B"])
    more = {"dtype": rng.choice(["bfloat16", "float32", "uint8"]), "swizzle": swizzle}
    operator = rng.choice(["fprop", "dgrad", "wgrad"])
    problem = (x, (K, *taps, C // groups))
    try:
        if operator == "dgrad":
            return rng.choice(tma.phases_for(problem, mode, **options, **more))
        return tma.maps_for(problem, mode, operator=operator, **options, **more)
    except (ValueError, IndexError):
        return None


@sampled
def test_the_linter_finds_nothing_in_maps_and_loads_of_a_lowering():
    rng, linted = random.Random(3), 0
    while linted < count(150, 10_000):
        lowering = random_lowering(rng)
        if lowering is None:
            continue
        linted += 1
        options = {"problem": lowering.problem, "operator": lowering.operator}
        load = next((block.loads[-1] for block in lowering.k_blocks(0)), None)
        if load is not None:
            options |= {"coords": load.coords, "offsets": load.offsets}
            options |= {"w_halo": load.w_halo, "w_offset": load.w_offset}
            options["dst"] = lowering.buffer_address(load.buffer)
        for map in {*lowering.maps}:
            assert tma.lint(map, **options) == [], (lowering, map)
            assert tma.lint(map.arguments, **options) == []


@pytest.mark.parametrize("mode", ["im2col", "w"])
def test_linter_compares_a_map_with_its_convolution(mode):
    problem = conv(67, 2, 1)
    lowering = tma.maps_for(problem, mode, dtype="float16")
    (arguments, *_) = lowering.arguments
    assert tma.lint(arguments, problem=problem) == []
    name = "pixelBoxUpperCorner" + ("Width" if mode == "w" else "")
    for change in (3, -2):
        value = arguments[name] + change if mode == "w" else (-1 + change, -1)
        findings = tma.lint({**arguments, name: value}, problem=problem)
        assert any(f.field.startswith(name) and f.severity == "error" for f in findings)
        assert any("overrun" in f.hint for f in findings) == (change > 0)
