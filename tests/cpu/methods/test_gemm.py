"""Packed panels depend on the numbers in a filter, not on where they lie in memory."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import examples

import implicit_conv as ic
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Query, Request
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.machine.costs import EPYC
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.plan.planner import plan
from implicit_conv.kernels.cpu.gemm.operator import Gemm as Operator
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import Array, Case, plan_of, to_nchw

IN_PLACE = [Gemm(in_place=True, channels=channels) for channels in (1, 2)]
LINE = 64  # bytes of a cache line
ARCHS = {  # by bytes and ways of L1
    "32 KiB, 8 ways": CpuArch(512, True, 32 << 10, 1 << 20, 1, 14),
    "48 KiB, 12 ways": CpuArch(512, True, 48 << 10, 1 << 20, 1, 14, l1_ways=12),
    "64 KiB, 4 ways": CpuArch(128, True, 64 << 10, 1 << 20, 1, 12, l1_ways=4),
    "AVX2": CpuArch(256, True, 32 << 10, 512 << 10, 1, 6),
}


SLOW_PAIRS = replace(EPYC, name="slow pairs", gemm=EPYC.gemm._replace(pairs=4.0))


@pytest.mark.parametrize("way", ["pairs", "amx"])
@pytest.mark.parametrize("channels", [3, 6, 64])
def test_bfloat16_is_widened_where_dot_products_of_pairs_are_slow(channels, way):
    """Where AMX multiplies, and they do not fill its tiles."""
    case = Case(C=channels, K=32, size=(30, 30), layout="NHWC", dtype="bfloat16")
    fast = replace(ARCHS["48 KiB, 12 ways"], bfloat16=way)
    slow = replace(fast, costs=SLOW_PAIRS)
    found = []
    for arch in (fast, slow):
        candidates = plan_of(case, arch, algorithm="implicit_gemm").candidates
        found.append({c.method.channels for c in candidates if type(c.method) is Gemm})
    assert found == [{2}, {1 if way == "amx" and channels < 64 else 2}]


def misses(arch: CpuArch, rows: int, pitch: int) -> int:
    """Misses of an L1 that drops the line used longest ago, while a line of each row is read
    element by element, row after row.
    """
    sets: list[list[int]] = [[] for _ in range(arch.l1_bytes // arch.l1_ways // LINE)]
    count = 0
    for element in range(LINE // 4):
        for row in range(rows):
            line = (row * pitch + 4 * element) // LINE
            kept = sets[line % len(sets)]
            if line in kept:
                kept.remove(line)
            else:
                count += 1
            kept.append(line)
            del kept[: -arch.l1_ways]
    return count


@pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)
def test_lines_that_l1_keeps_are_read_once(arch):
    for pitch in (64, 256, 1024, 1152, 2048, 2752, 4096, 6144, 8192, 16384, 20480):
        kept = arch.kept_lines(pitch)
        for rows in {2, 6, 14, kept} - {0}:
            assert misses(arch, rows, pitch) == rows or rows > kept, (pitch, rows)
        assert misses(arch, kept + 1, pitch) > kept + 1, pitch


@pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)
@pytest.mark.parametrize("channels", [256, 512, 1024, 1536, 2048, 3072, 4096])
@pytest.mark.parametrize("taps", [1, 2])
def test_pixels_of_a_register_tile_stay_in_l1(arch, channels, taps):
    problem = Problem.parse((1, 15, 15, channels), (64, channels, taps, taps), layout="NHWC")
    best = plan(Query(spatial(problem), arch, Request("strict", "implicit_gemm"))).candidates[0]
    pitch = 4 * (channels if best.method.in_place else best.geometry.tile_c)
    assert misses(arch, best.geometry.tile_m, pitch) == best.geometry.tile_m


def test_pixels_in_place_and_copied_have_equal_bits():
    """In place a register tile has fewer pixels of 4 KiB than copied, if L1 has sets of four lines;
    channels two apart must be copied.
    """
    case = Case(C=1024, K=40, size=(13, 14), kernel=(1, 1), layout="NHWC")
    x, w = case.arrange(*case.inputs(0))
    apart = np.repeat(x, 2, axis=3)[..., ::2]
    made = plan_of(case, replace(cpu_arch(), l1_ways=4, l1_bytes=16 << 10), precision="strict")
    tiles = {c.method.in_place: c.geometry.tile_m for c in made.engine.choice.candidates}
    assert tiles == {True: 4, False: cpu_arch().tile_pixels}
    np.testing.assert_array_equal(made(x, w), made(apart, w))
    np.testing.assert_allclose(
        to_nchw(made(x, w), "NHWC"), case.reference(x.transpose(0, 3, 1, 2), w), atol=1e-3
    )


def test_channel_blocks_that_spread_pixels_over_l1_are_added_up():
    for channels in (1024, 1040, 2048):
        case = Case(C=channels, K=20, size=(5, 5), kernel=(1, 1), layout="NHWC")
        x, w = case.inputs(0, integers=True)
        y = ic.conv2d(*case.arrange(x, w), algorithm="pointwise", **case.options)
        np.testing.assert_array_equal(y, case.reference(x, w).transpose(0, 2, 3, 1))


def lying(w: Array, order: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    """A copy of `w` whose axes lie in memory in this order, outermost first, as every |step|-th
    element of an axis that is longer; a negative step reverses the axis.
    """
    shape = tuple(extent * abs(step) for extent, step in zip(w.shape, steps, strict=True))
    memory = np.full([shape[axis] for axis in order], np.nan, w.dtype)
    view = memory.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    view[...] = w
    return view


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("taps", [(1, 1), (2, 2), (1, 4), (3, 3), (2, 7)], ids=str)
def test_a_filter_is_packed_from_any_strides(taps, dtype):
    rng = np.random.default_rng(0)
    filters = 32 + 9  # a whole panel, and a partial one
    w = rng.standard_normal((filters, 11, *taps)).astype(dtype)
    plan = ic.plan_conv2d((1, 11, 9, 40), w.shape, dtype, algorithm="implicit_gemm")
    expected = plan.pack(w).panels
    orders = [*itertools.permutations(range(4))]
    steps = [(1, 1, 1, 1), (1, 1, -1, -1), (1, 1, -2, 2), (2, 1, 1, 3), (-1, 1, 1, -4)]
    for order, step in itertools.product(orders, steps):
        panels = plan.pack(lying(w, order, step)).panels
        assert np.array_equal(panels, expected), (order, step)


@st.composite
def few_channels(draw):
    """A case with few channels in NHWC, whose windows overlap or touch, and with padding."""
    taps = draw(st.integers(1, 7))
    depth = draw(st.sampled_from([0, 0, 0, 1]))  # axes
    case = Case(
        N=draw(st.integers(1, 2)),
        C=draw(st.sampled_from([1, 2, 3, 4, 7])),
        K=draw(st.sampled_from([1, 16, 33])),
        size=(*[4] * depth, draw(st.integers(1, 9)), draw(st.integers(1, 40))),
        kernel=(*[draw(st.integers(1, 2))] * depth, draw(st.integers(1, 5)), taps),
        stride=(*[1] * depth, draw(st.integers(1, 3)), draw(st.integers(1, taps))),
        dilation=(*[1] * depth, draw(st.integers(1, 2)), 1),
        padding=(
            *[(0, 0)] * depth,
            *(draw(st.tuples(*[st.sampled_from([0, 0, -1, 1, 3, 6])] * 2)) for _ in "hw"),
        ),
        layout="NDHWC" if depth else "NHWC",
        weight_layout="KCTRS" if depth else "KCRS",
        dtype=draw(st.sampled_from(["float32", "float64", "bfloat16"])),
    )
    assume(min(case.output, default=0) >= 1)
    return case


@examples(150, 600)
@given(case=few_channels())
def test_rows_are_read_in_place_around_padding(case):
    """All around the image is NaN in memory, which a read beyond it would bring into a sum."""
    made = plan_of(case, algorithm="implicit_gemm").engine
    found = tuple(c for c in made.candidates if c.method in IN_PLACE)
    assume(found)
    inputs = case.inputs(0, integers=True)
    x, w = case.arrange(*inputs)
    *outer, h, width, c = x.shape
    memory = np.full((*outer, h + 20, width + 20, c), np.nan, x.dtype)
    image = memory[..., 10:-10, 10:-10, :]
    image[...] = x
    y = replace(made, choice=replace(made.choice, candidates=found)).run(image, w)
    np.testing.assert_array_equal(to_nchw(y, case.layout), case.rounded(case.reference(*inputs)))


@pytest.mark.parametrize(("pad", "words"), [(0, "no tap reads padding"), (1, "are skipped")])
def test_explain_tells_whether_rows_in_place_have_padding(pad, words):
    problem = Problem.parse((1, 60, 600, 4), (32, 4, 3, 3), layout="NHWC", padding=pad)
    best = plan(Query(spatial(problem), ARCHS["48 KiB, 12 ways"], Request())).candidates[0]
    assert best.method in IN_PLACE
    assert words in best.method.describe(best)["loads"]


@given(
    st.sampled_from([((3, 3), (1, 1)), ((1, 1), (1, 1)), ((3, 3), (2, 2))]),
    st.sampled_from([16, 48, 64, 40]),
    st.sampled_from([5, 6000]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, "relu"]),
    st.sampled_from([0, 4, 64]),
)
@examples(25, 200)
def test_results_that_are_stored_past_the_caches(taps, filters, channels, groups, activation, late):
    """Whole lines are; parts of lines, sums of several channel blocks and staging tiles are not."""
    kernel, stride = taps
    case = Case(C=channels * groups, K=filters * groups, groups=groups, size=(7, 19))
    case = replace(case, kernel=kernel, stride=stride, layout="NHWC")
    asked, told = Operator._large_result, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("implicit_conv.kernels.cpu.gemm.operator.STREAMED_BYTES", 0)
        patch.setattr(
            Operator, "_large_result", lambda self, y: told.append(asked(self, y)) or told[-1]
        )
        plan = plan_of(case, algorithm="implicit_gemm", activation=activation)
        x, w = case.inputs(0, integers=True)
        expected = case.reference(x, w).transpose(0, 2, 3, 1)
        expected = np.maximum(expected, 0) if activation else expected
        bytes_of_y = np.empty(expected.size * 4 + 128, np.uint8)
        first = -bytes_of_y.ctypes.data % LINE + late
        y = bytes_of_y[first:][: expected.size * 4].view(np.float32).reshape(expected.shape)
        plan(*case.arrange(x, w), out=y)
    np.testing.assert_array_equal(y, expected)
    whole_lines = cpu_arch().vector_bits == 512 and filters * groups % 16 == 0
    assert {fields["streams"] for fields in told} == {whole_lines}
