"""Results of maps_for for chosen convolutions: buffers, driver arguments, PTX text, errors."""

import pytest

from implicit_conv import tma
from implicit_conv.problem import Problem


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


def test_what_cannot_be_lowered_says_why():
    grouped = Problem.parse(
        (1, 8, 8, 64), (64, 3, 3, 32), groups=2, layout="NHWC", weight_layout="KRSC"
    )
    with pytest.raises(ValueError, match="a map covers one group"):
        tma.maps_for(grouped)
    with pytest.raises(ValueError, match="each stride phase"):
        tma.maps_for(conv(8, 2, 1), operator="dgrad")
    with pytest.raises(ValueError, match="mode 'rows' is unknown; choose from"):
        tma.maps_for(conv(8, 1, 1), "rows")
    with pytest.raises(ValueError, match="operator 'bprop' is unknown; choose from"):
        tma.maps_for(conv(8, 1, 1), operator="bprop")
    with pytest.raises(ValueError, match="w_halo=640"):
        tma.maps_for(conv(800, 1, 320, dilation=320), "w", dtype="float16")
    with pytest.raises(ValueError, match="loads 128 pixels"):
        tma.maps_for(conv(8, 1, 1), "w128", tile_m=64)
    with pytest.raises(ValueError, match=r"upper_corner\[w\] = -300"):
        tma.maps_for(conv(900, 1, 150, taps=4, dilation=150, height=900), dtype="float16")


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
