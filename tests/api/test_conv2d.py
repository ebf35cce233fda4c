"""conv2d against the float64 oracle, on problems drawn over every parameter."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import count, examples, sampled

from implicit_conv import conv2d, plan_conv2d
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.candidates import tiling
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.methods import gemm_tilings
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import panel_widths, register_tiles
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
    case = Case(C=5, K=33, size=(5, pixels + 1), kernel=(3, 3), padding=((1, 1), (1, 1)))
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
def dilated(draw):
    """A case whose output columns meet different taps of a large dilation, and its tile."""
    spread = draw(st.integers(5, 12))
    case = Case(
        C=draw(st.integers(1, 20)),
        K=draw(st.sampled_from([1, 33])),
        size=(draw(st.integers(1, 4)), draw(st.integers(1, 50))),
        kernel=(draw(st.sampled_from([1, 3])), draw(st.integers(2, 7))),
        dilation=(draw(st.sampled_from([1, 9])), spread),
        padding=((draw(st.integers(0, 9)), 9), draw(st.tuples(*[st.integers(0, 60)] * 2))),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
    )
    assume(min(case.output) >= 1)
    return case, draw(st.integers(1, 60))


@examples(100, 300)
@given(drawn=dilated())
def test_filter_columns_that_meet_padding_are_left_out(drawn):
    """With a large dilation, each output column is multiplied by the taps that meet the image."""
    case, tile_pixels = drawn
    plan = small_plan(case, tile_pixels, 50)
    g = plan.engine.best.geometry
    if g.Q > 1:
        assert schedule.skips_columns(g, False)
    column, segments = 0, []
    while schedule.skips_columns(g, False) and column < g.Q:
        stop, *taps = schedule.column_segment(g, column, g.Q, False)
        for q in range(column, stop):
            needed = [s for s in range(g.S) if 0 <= q - g.pad_w + s * g.dilation_w < g.W]
            assert list(range(*taps)) == needed
        segments.append(tuple(taps))
        column = stop
    assert len(segments) <= schedule.segment_count(g, False)
    x, w = case.inputs(0, integers=True)
    y = plan(*case.arrange(x, w))
    np.testing.assert_array_equal(to_nchw(y, case.layout), case.rounded(case.reference(x, w)))


def test_a_plan_tells_what_it_leaves_out():
    """Of 33 columns 12 see no left, 12 no right filter column: 24 of 99."""
    options = {"padding": 12, "algorithm": "implicit_gemm", "layout": "NHWC"}
    shapes = (1, 33, 33, 64), (64, 64, 3, 3)
    assert "24% read padding alone" in plan_conv2d(*shapes, dilation=12, **options).explain()
    assert "read padding alone" not in plan_conv2d(*shapes, **options).explain()


@sampled
def test_integers_are_exact_on_every_kernel(capsys):
    """Small integers sum exactly in any order: equal to the last bit, every element written.

    Many problems each reach every width, tail and kind of block that the engine has.
    """
    reached = Counter()

    @examples(1500, 8000)
    @given(
        case=cases(),
        seed=st.integers(0, 2**31),
        tile_pixels=st.integers(1, 60),
        block_elements=st.sampled_from([1, 7, 20, 50, 5120]),
        packed=st.booleans(),
    )
    def check(case, seed, tile_pixels, block_elements, packed):
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
