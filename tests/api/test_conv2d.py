"""conv2d against the float64 oracle, on problems drawn over every parameter."""

from collections import Counter
from dataclasses import replace

import cost_tables
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import count, examples, sampled

from implicit_conv import conv2d, plan_conv2d
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.candidates import tiling
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.methods import gemm_tilings
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import panel_widths, register_tiles, segments
from implicit_conv.testing import Case, error_units, plan_of, to_nchw

STRICT_UNITS = 16  # the bound for normal data


@st.composite
def cases(draw):
    """Cases of every parameter; sizes stay small, since the tilings are shrunk to match."""
    size = draw(st.tuples(st.integers(1, 14), st.integers(1, 60)))
    kernel, stride, dilation = (1, 1), (1, 1), (1, 1)
    padding = [(0, 0), (0, 0)]
    if draw(st.integers(0, 9)):  # one in ten is pointwise
        kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 7)))
        stride = draw(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 3, 4, 4, 4])))
        dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        low = draw(st.tuples(st.integers(-1, 4), st.integers(-1, 4)))
        high = draw(st.tuples(st.integers(-1, 4), st.integers(-1, 4)))
        padding = [
            (lo, max(hi, (taps - 1) * step + 1 - extent - lo))  # at least one output pixel
            for lo, hi, extent, taps, step in zip(low, high, size, kernel, dilation, strict=True)
        ]
    return Case(
        N=draw(st.integers(1, 4)),
        C=draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 20, 33])),
        K=draw(st.sampled_from([1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 40, 65])),
        groups=draw(st.sampled_from([1, 1, 1, 2, 3])),
        size=size,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=tuple(padding),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=draw(st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"])),
    )


def small_plan(case, tile_pixels, block_elements, precision="strict"):
    """The plan of `case` with tilings so small that small problems span several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "TILE_PIXELS", (tile_pixels,))
        patch.setattr(gemm_tilings, "BLOCK_ELEMENTS", block_elements)
        plan = plan_of(case, precision=precision)
        if plan.engine.best.algorithm == "depthwise":
            plan = plan_of(case, precision=precision, algorithm="implicit_gemm")
        return plan


POINTWISE = {"kernel": (1, 1), "padding": ((0, 0), (0, 0)), "stride": (1, 1), "dilation": (1, 1)}
IN_PLACE = {**POINTWISE, "layout": "NHWC", "dtype": "float32"}


def what_it_reaches(plan):
    """Kernels, tails and blocks that computing `plan` exercises."""
    c = plan.engine.best
    g, lanes = c.geometry, c.lanes
    blocks = {
        "images": g.N / g.tile_n,
        "rows": g.P / g.tile_p,
        "columns": g.Q / g.tile_q,
        "panels": g.K / g.tile_k,
        "channels": g.C / g.tile_c,
    }
    facts = {
        "partial panel": g.K % lanes != 0,
        "whole panel": g.K >= g.tile_k,
        "partial channel block": g.C > g.tile_c and g.C % g.tile_c != 0,
        "in place": c.layout.in_place,
        **{f"over two blocks of {name}": count > 2 for name, count in blocks.items()},
    }
    return [
        *(what for what, reached in facts.items() if reached),
        *(f"{vectors} vectors" for vectors in panel_widths(g, lanes)),
        *{f"{groups * inner:2d} pixels" for groups, inner in register_tiles(g, c.layout.in_place)},
        *{"rows grouped" for groups, _ in register_tiles(g, c.layout.in_place) if groups > 1},
        f"{min(g.C, g.tile_c) % 4} elements beyond the unrolled sum",
        "a phase buffer a tap" if g.phases_w > g.stride_w else f"{g.phases_w} phase buffers",
        "a row phase a tap" if g.phases_h > g.stride_h else f"{g.phases_h} row phases",
    ]


def test_a_row_one_pixel_too_long_is_halved_and_lower_halves_share_a_tile():
    """Of 7 columns and register tiles of 6 pixels: 4 pixels of one row, 3 of two rows."""
    pixels = cpu_arch().tile_pixels
    case = Case(C=5, K=33, size=(7, pixels + 3), kernel=(3, 3))
    plan = small_plan(case, 5 * (pixels + 1), 5120)
    half = pixels // 2
    assert register_tiles(plan.engine.best.geometry, in_place=False) == [
        (1, half),
        (1, half + 1),
        (2, half),
    ]
    x, w = case.inputs(0, integers=True)
    y = plan(*case.arrange(x, w))
    np.testing.assert_array_equal(y, case.reference(x, w))


@st.composite
def padded(draw):
    """A case whose outputs near the sides of the image meet few taps, and its tile."""
    case = Case(
        N=draw(st.integers(1, 2)),
        C=draw(st.integers(1, 20)),
        K=draw(st.sampled_from([1, 33])),
        size=(draw(st.integers(1, 15)), draw(st.integers(1, 50))),
        kernel=(draw(st.sampled_from([1, 3, 5])), draw(st.integers(2, 7))),
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        dilation=(draw(st.sampled_from([1, 2, 9])), draw(st.integers(1, 12))),
        padding=((draw(st.integers(0, 9)), 9), draw(st.tuples(*[st.integers(0, 60)] * 2))),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
    )
    assume(min(case.output) >= 1)
    return case, draw(st.integers(1, 60))


@examples(150, 1000)
@given(drawn=padded())
def test_taps_that_meet_padding_are_left_out(drawn):
    """Each output column is multiplied by the taps that meet the image, if that pays."""
    case, tile_pixels = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm_tilings, "LEAST_GAIN", 0.0)
        plan = small_plan(case, tile_pixels, 50)
    g = plan.engine.best.geometry
    column, segments = 0, []
    while schedule.skips_columns(g, False) and column < g.Q:
        stop, *taps = schedule.column_segment(g, column, g.Q, False)
        for q in range(column, stop):
            places = [q * g.stride_w - g.pad_w + s * g.dilation_w for s in range(g.S)]
            needed = [s for s in range(g.S) if 0 <= places[s] < g.W]
            assert list(range(*taps)) == needed
        segments.append(tuple(taps))
        column = stop
    assert len(segments) <= schedule.segment_count(g, False)
    x, w = case.inputs(0, integers=True)
    y = plan(*case.arrange(x, w))
    np.testing.assert_array_equal(to_nchw(y, case.layout), case.rounded(case.reference(x, w)))


TILES = {  # (size, stride) and the register tiles of all rows and columns
    "first row and column": (14, 2, [(1, 2), (6, 3)], [(1, 6), (1, 7), (2, 6)]),
    "both sides": (7, 1, [(1, 2), (5, 3), (1, 2)], [(1, 5), (1, 7), (2, 5)]),
}


@pytest.mark.parametrize("name", TILES)
def test_register_tiles_where_taps_are_left_out(name):
    """Of 7x7 outputs a column on a side is a tile of 7 rows, and such a row has tiles of its own,
    but where signs are inverted, so that all taps are multiplied.
    """
    size, stride, columns, tiles = TILES[name]
    sizes = {"size": (size, size), "stride": (stride, stride), "padding": ((1, 1), (1, 1))}
    case = Case(C=64, K=32, kernel=(3, 3), **sizes)
    arch = CpuArch(512, True, 32 << 10, 1 << 20, 1, 14)
    plan = plan_of(case, arch, algorithm="implicit_gemm")
    g = plan.engine.best.geometry
    assert segments(g, in_place=False) == columns
    assert register_tiles(g, in_place=False) == tiles
    plain = g._replace(skips_w=0)
    assert register_tiles(plain, in_place=False, heads=True) == [(1, 7), (2, 7)]
    x, w = case.inputs(0, integers=True)
    y = plan_of(case, algorithm="implicit_gemm")(*case.arrange(x, w))
    np.testing.assert_array_equal(y, case.reference(x, w))


def test_rows_of_many_taps_leave_out_none():
    """Columns that meet other taps would need a run table each, of as many entries as taps."""
    for taps, skips in ((7, 1), (9, 0)):
        around = {"kernel": (1, taps), "padding": ((0, 0), (taps // 2, taps // 2))}
        case = Case(C=64, K=64, size=(8, 14), layout="NHWC", **around)
        plan = plan_of(
            case, CpuArch(512, True, 32 << 10, 1 << 20, 1, 14), algorithm="implicit_gemm"
        )
        assert plan.engine.best.geometry.skips_w == skips


def test_a_plan_tells_what_it_leaves_out():
    """Of 33 columns 12 see no left, 12 no right filter column: 24 of 99."""
    options = {"padding": 12, "algorithm": "implicit_gemm", "layout": "NHWC"}
    shapes = (1, 33, 33, 64), (64, 64, 3, 3)
    assert "24% read padding alone" in plan_conv2d(*shapes, dilation=12, **options).explain()
    options["padding"] = 0
    assert "read padding alone" not in plan_conv2d(*shapes, **options).explain()


@pytest.mark.slow
@sampled
def test_integers_are_exact_on_every_kernel(capsys, monkeypatch):
    """Small integers sum exactly in any order: equal to the last bit, every element written.

    Many problems each reach every width, tail and kind of block that the engine has.
    """
    cost_tables.change(monkeypatch, "gemm", wide_elements=192)  # as on Intel
    reached = Counter()

    @examples(1500, 8000)
    @given(
        case=cases(),
        seed=st.integers(0, 2**31),
        tile_pixels=st.integers(1, 60),
        block_elements=st.sampled_from([1, 7, 20, 50, 5120]),
        packed=st.booleans(),
        wide=st.sampled_from([False] * 7 + [True]),
    )
    def check(case, seed, tile_pixels, block_elements, packed, wide):
        if wide:  # x in place, and panels of four vectors
            case = replace(case, K=64, **IN_PLACE)
        x, w = case.inputs(seed, integers=True)
        plan = small_plan(case, tile_pixels, block_elements)
        reached.update(what_it_reaches(plan))
        out = np.full(plan.problem.output_shape, np.nan, numpy_dtype(case.dtype))
        x_arranged, w_arranged = case.arrange(x, w)
        plan(x_arranged, plan.pack(w_arranged) if packed else w_arranged, out=out)
        expected = case.rounded(case.reference(x, w))
        np.testing.assert_array_equal(to_nchw(out, case.layout).astype(float), expected)

    check()
    table = "\n".join(f"{problems:6d}  {what}" for what, problems in sorted(reached.items()))
    with capsys.disabled():
        print(f"\nproblems that reached:\n{table}")
    heights = {f"{n:2d} pixels" for n in range(1, cpu_arch().tile_pixels + 1)}
    assert heights <= set(reached)
    enough = count(30, 200)
    assert [what for what, problems in reached.items() if problems < enough] == []


@examples(300, 1500)
@given(case=cases(), seed=st.integers(0, 2**31))
def test_normal_data_stays_within_the_bound(case, seed):
    x, w = case.inputs(seed)
    y = conv2d(*case.arrange(x, w), **case.options, precision="strict")
    units = error_units(
        to_nchw(y, case.layout), case.reference(x, w), case.reference(x, w, True), case.dtype
    )
    assert units <= STRICT_UNITS


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_few_planes_are_interleaved(channels, dtype):
    """Vectors of pixels, and what is left of a row; those of reversed rows one by one."""
    for width in (5, 16, 37, 64):
        size = {"size": (4, width), "kernel": (2, 3), "padding": ((1, 0), (1, 2))}
        case = Case(C=channels, K=64, dtype=dtype, **size)
        plan = plan_of(case, algorithm="implicit_gemm")
        assert "x is copied" in plan.explain()
        x, w = case.inputs(0, integers=True)
        expected = case.rounded(case.reference(x, w))
        for view in (x, x[..., ::-1].copy()[..., ::-1]):
            np.testing.assert_array_equal(plan(view, w), expected)


@pytest.mark.parametrize("channels", [2, 3, 4, 5])
def test_a_scale_does_not_reach_the_residual_of_a_few_interleaved_channels(channels):
    """Channels last, one filter at a time: sums are spread into y after they are finished."""
    random = np.random.default_rng(0)
    x = random.integers(-3, 4, (1, 9, 40, channels)).astype(np.float32)
    w = random.integers(-3, 4, (channels, 1, 3, 3)).astype(np.float32)
    options = {"groups": channels, "layout": "NHWC", "algorithm": "depthwise"}
    plain = conv2d(x, w, **options)
    residual = random.integers(-3, 4, plain.shape).astype(np.float32)
    scale = np.arange(2, 2 + channels, dtype=np.float32)
    y = conv2d(x, w, scale=scale, residual=residual, **options)
    np.testing.assert_array_equal(y, plain * scale + residual)
