"""fprop whose vector lanes are pixels of an output row: nothing is packed."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv import PlanError, plan_conv2d
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.machine.costs import EPYC
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.testing import Case, changed, plan_of

PAGES = EPYC.planar_gemm._replace(page=1e6, keep=9.0, kept=2.0)  # where planes in place cost time


@pytest.fixture(autouse=True)
def chosen(force_method):
    """Lanes are pixels wherever they can be."""
    force_method(PlanarGemm)


def planar_gemm_plan(case, threads=2, activation=None, **machine):
    """The plan of `case`, whose lanes are pixels where its tiles fit into L2."""
    arch = replace(cpu_arch(threads), **machine)
    plan = plan_of(case, arch, algorithm="implicit_gemm", activation=activation)
    assert is_chosen(plan) or machine
    return plan


def is_chosen(plan):
    return isinstance(plan.engine.best.method, PlanarGemm)


def is_flat(plan):
    return is_chosen(plan) and plan.engine.best.method.flat


def in_place(plan):
    return plan.engine.best.method.in_place


@st.composite
def cases(draw):
    pad = st.tuples(st.integers(-1, 3), st.integers(-1, 3))
    taps = st.sampled_from([1, 2, 3, 5, 7])
    case = Case(
        N=draw(st.integers(1, 3)),
        C=draw(st.sampled_from([1, 2, 3, 8, 17])),
        K=draw(st.sampled_from([1, 2, 9, 13, 14, 15, 29, 64, 141])),
        groups=draw(st.sampled_from([1, 1, 2, 3])),
        size=draw(st.tuples(st.integers(1, 20), st.sampled_from([1, 3, 7, 8, 15, 16, 17, 40]))),
        kernel=(draw(taps), draw(taps)),
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, 2))),
        dilation=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        padding=(draw(pad), draw(pad)),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=draw(st.sampled_from(["float32", "float64"])),
    )
    if draw(st.booleans()):  # all pixels of a tile are one row
        case = replace(case, kernel=(1, 1), C=draw(st.sampled_from([1, 3, 17, 40])))
        if draw(st.booleans()):  # and may be read in place
            case = replace(case, stride=(1, 1), padding=((0, 0), (0, 0)))
    assume(min(case.output) >= 1)
    return case


@examples(130, 400)
@given(
    case=cases(),
    added=st.sets(st.sampled_from(["bias", "residual", "leaky_relu", "packed", "x", "y", "rows"])),
    l2_bytes=st.sampled_from([16 << 10, 1 << 20]),
    seed=st.integers(0, 2**31),
)
def test_integers_are_exact(case, added, l2_bytes, seed):
    """Over every epilogue, packed and plain filters, gaps between pixels, small tiles."""
    x, w = case.inputs(seed, integers=True)
    activation, operands, expected = case.epilogue(case.reference(x, w), added)
    plan = planar_gemm_plan(case, l2_bytes=l2_bytes, activation=activation)
    assume(is_chosen(plan))
    x, w = case.arrange(x, w)
    if "x" in added:
        wide = np.full((*x.shape[:3], 2 * x.shape[3]), np.nan, case.dtype)
        wide[..., ::2] = x
        x = wide[..., ::2]
    if case.layout == "NHWC":
        expected = expected.transpose(0, 2, 3, 1)
    out = None
    if "y" in added:
        out = np.empty((*expected.shape[2:], *expected.shape[:2]), case.dtype).transpose(2, 3, 0, 1)
    elif "rows" in added:  # a gap after each
        wide = (*expected.shape[:2], 2 * expected.shape[2], expected.shape[3])
        if case.layout == "NCHW":
            wide = (*expected.shape[:3], 2 * expected.shape[3])
        out = np.empty(wide, case.dtype)[tuple(map(slice, expected.shape))]
    y = plan(x, plan.pack(w) if "packed" in added else w, **operands, out=out)
    np.testing.assert_array_equal(y, expected)


def kept(case, threads=2):
    """The plan of a case whose first panel of filters copies the pixels, and what it chose from."""
    costs = replace(EPYC, name="pages", planar_gemm=PAGES)
    every = plan_of(case, replace(cpu_arch(threads), costs=costs, l2_bytes=2 << 20))
    copied = next(c for c in every.candidates if c.method.keeps)
    return changed(every, **{f.name: getattr(copied, f.name) for f in fields(copied)}), every


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [(20, 28), (9, 11), (67, 65)])
def test_planes_on_many_pages_are_copied_by_the_first_filters(size, packed):
    """On a CPU where reading each channel from a page of its own costs time."""
    case = Case(N=2, C=140, K=40, groups=2, size=size, kernel=(1, 1))
    plan, every = kept(case)
    arch = plan.engine.best.arch
    placed, copied = PlanarGemm.candidates(spatial(case.problem), arch, Request())
    assert (placed.method.keeps, copied.method.keeps) == (False, True)
    estimates = [c.method.repriced(c, arch).cycles for c in (copied, placed)]
    assert (estimates[0] < estimates[1]) == (case.C * min(1, size[0] * size[1] * 4 / 4096) > 64)
    x, w = case.arrange(*case.inputs(0, integers=True))
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())
    for seed in range(3):
        x, w = case.arrange(*case.inputs(seed, integers=True))
        expected = case.reference(x, w)
        np.testing.assert_array_equal(plan(x, plan.pack(w) if packed else w), expected)
    wide = np.zeros((*x.shape[:3], x.shape[3] + 3), np.float32)  # rows with gaps are no row
    wide[..., :-3] = x
    np.testing.assert_array_equal(every(wide[..., :-3], w), expected)
    with pytest.raises(PlanError, match="reshape to one row"):
        plan(wide[..., :-3], plan.pack(w) if packed else w)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", [1, 5, 130, 300])  # less and more than a chain of sums
@pytest.mark.parametrize("filters", [1, 7, 9, 64])
@pytest.mark.parametrize("side", [3, 7, 10, 28])  # whole vectors, a part of one, dot products
def test_filters_read_the_copy_of_the_first(side, filters, channels, dtype, threads):
    """Of each work item: threads share the filters of a tile."""
    kernel = (1, 1)
    case = Case(N=2, C=channels, K=filters, size=(side, side), kernel=kernel, dtype=dtype)
    plan, _ = kept(case, threads)
    x, w = case.arrange(*case.inputs(side, integers=True))
    residual = np.arange(side * side, dtype=dtype).reshape(side, side)
    expected = case.reference(x, w)
    np.testing.assert_array_equal(plan(x, w), expected)
    given = np.broadcast_to(residual, expected.shape).copy()
    np.testing.assert_array_equal(plan(x, w, residual=given), expected + residual)


def test_a_column_of_wider_images_is_written_as_one_row():
    """Its pixels are as far apart as rows; a residual is such a column too."""
    case = Case(N=2, C=70, K=40, size=(130, 1), kernel=(1, 1))
    plan, _ = kept(case)
    x, w = case.arrange(*case.inputs(0, integers=True))
    out, residual = (np.zeros((2, 40, 130, 5), np.float32) for _ in range(2))
    residual[..., :1] = np.arange(130)[:, None]
    expected = case.reference(x, w) + np.arange(130)[:, None]
    for filters in w, plan.pack(w):
        y = plan(x, filters, residual=residual[..., :1], out=out[..., :1])
        np.testing.assert_array_equal(y, expected)
        assert not out[..., 1:].any()


@pytest.mark.parametrize("stride", [1, 2])
def test_executed_loads_are_the_planned_ones(stride):
    """Rows that all filter taps share, one load for all channels."""
    case = Case(
        N=2,
        C=3,
        K=40,
        groups=2,
        size=(40, 50),
        kernel=(3, 5),
        stride=(stride, stride),
        dilation=(2, 1),
        padding=((1, 1), (2, 2)),
    )
    x, w = case.arrange(*case.inputs(0))
    plan = planar_gemm_plan(case)
    loads = plan.trace()
    assert executed_loads(plan.engine, x, w) == sorted(loads)
    assert {load.w_offset for load in loads} == set(range(stride))
    assert all(load.bytes == 4 * case.C * load.rows for load in loads)


@pytest.mark.parametrize("size", [(20, 28), (9, 11), (1, 3)])
def test_planes_are_read_in_place_as_rows(size):
    """Whatever their shape, where filters are 1x1."""
    case = Case(N=2, C=30, K=40, groups=2, size=size, kernel=(1, 1))
    plan = planar_gemm_plan(case)
    assert in_place(plan)
    g = plan.engine.best.geometry
    assert (g.P, g.Q) == (1, size[0] * size[1])
    x, w = case.arrange(*case.inputs(0))
    loads = plan.trace()
    assert executed_loads(plan.engine, x, w) == sorted(loads)
    assert {load.buffer for load in loads} == {-1}
    assert not in_place(planar_gemm_plan(replace(case, padding=((0, 0), (0, 1)))))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_long_rows_are_loaded_row_by_row(layout, stride):
    """As planned, though contiguous rows are copied as one."""
    case = Case(
        N=2,
        C=20,
        K=40,
        size=(14, 14),
        kernel=(1, 1),
        stride=(stride, stride),
        layout=layout,
        padding=((0, 0), (0, stride - 1)),
    )
    x, w = case.arrange(*case.inputs(0))
    plan = planar_gemm_plan(case)
    assert is_flat(plan)
    assert in_place(plan) == (layout == "NCHW" and stride == 1)
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())


def test_threads_and_tiles_leave_the_bits_alone():
    case = Case(N=2, C=3, K=40, size=(64, 50), padding=((1, 1), (1, 1)))
    x, w = case.arrange(*case.inputs(3))
    plan = planar_gemm_plan(case, threads=1)
    expected = plan(x, w)
    other = planar_gemm_plan(case, threads=3)
    c, d = plan.engine.best, other.engine.best
    assert (d.threads, d.chunk, d.geometry) != (1, c.chunk, c.geometry)
    np.testing.assert_array_equal(other(x, w), expected)


def test_it_is_chosen_for_few_channels_or_filters_but_not_for_strict(monkeypatch):
    monkeypatch.undo()
    first = (1, 3, 224, 224), (64, 3, 3, 3)
    assert is_chosen(plan_conv2d(*first, padding=1))
    assert is_chosen(plan_conv2d((1, 64, 64, 64), (2, 64, 3, 3), padding=1))
    assert not is_chosen(plan_conv2d(*first, padding=1, precision="strict"))
    assert not is_chosen(plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), padding=1))
    assert is_chosen(plan_conv2d((1, 128, 56, 56), (128, 4, 3, 3), groups=32))
    assert not is_chosen(plan_conv2d((1, 56, 56, 64), (64, 64, 3, 3), padding=1, layout="NHWC"))
    assert "filters are read in place" in plan_conv2d(*first, padding=1).explain()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_long_rows_are_chosen_for_few_pixels(monkeypatch, layout):
    """Where a packed filter would hardly be used."""
    monkeypatch.undo()

    def plan(c, k, size, stride=1, **options):
        x = (1, c, size, size) if layout == "NCHW" else (1, size, size, c)
        return plan_conv2d(x, (k, c, 1, 1), stride=stride, layout=layout, **options)

    assert is_flat(plan(512, 2048, 7))
    assert is_flat(plan(1024, 2048, 14, stride=2))
    assert not is_flat(plan(512, 2048, 7, precision="strict"))
    assert not is_flat(plan(512, 2048, 7, dtype="bfloat16"))
    assert "as one row" in plan(512, 2048, 7).explain()
