"""fprop by dot products: the lanes of vectors are channels, nothing is packed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv import ShapeError, conv2d, plan_conv2d
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.methods import few_outputs
from implicit_conv.cpu.methods.few_outputs import FewOutputs
from implicit_conv.testing import Case, changed, plan_of, to_nchw

LITTLE_L2 = 8 << 10  # bytes: rows of a few pixels


@pytest.fixture(autouse=True)
def chosen(force_method):
    """Lanes are channels wherever they can be."""
    force_method(FewOutputs)


def few_outputs_plan(case, threads=2, pixels=None, activation=None, **machine):
    """The plan of `case` whose lanes are channels, register tiles of `pixels` where there are."""
    with pytest.MonkeyPatch.context() as patch:
        geometries = few_outputs.geometries

        def of_pixels(view, arch, near=None):
            found = geometries(view, arch, near)
            most = max(g.tile_m for g in found if g.tile_m <= (pixels or 64))
            return [g for g in found if pixels is None or g.tile_m == most]

        patch.setattr(few_outputs, "geometries", of_pixels)
        plan = plan_of(case, replace(cpu_arch(threads), **machine), activation=activation)
    assert is_chosen(plan)
    return plan


def is_chosen(plan):
    return isinstance(plan.engine.best.method, FewOutputs)


@st.composite
def cases(draw):
    """Pointwise problems of channels-last arrays, and windows over all of x."""
    dtype = st.sampled_from(["float32", "float64", "float16", "bfloat16"])
    case = Case(
        N=draw(st.integers(1, 5)),
        C=draw(st.sampled_from([1, 2, 3, 15, 16, 17, 70])),
        K=draw(st.sampled_from([1, 2, 3, 4, 15, 16, 17, 33, 65, 140, 193])),
        size=draw(st.sampled_from([(1, 1), (3, 2), (4, 7), (7, 7)])),
        kernel=(1, 1),
        layout="NHWC",
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC"])),
        dtype=draw(dtype),
    )
    if draw(st.booleans()):
        return case
    layout, weight_layout = draw(st.sampled_from([("NCHW", "KCRS"), ("NHWC", "KRSC")]))
    return replace(
        case,
        kernel=case.size,
        layout=layout,
        weight_layout=weight_layout,
        stride=(draw(st.integers(1, 3)), 1),
    )


def with_gaps(array):
    """`array` with a gap after every element; a view."""
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


@examples(100, 300)
@given(
    case=cases(),
    pixels=st.sampled_from([1, 2, 4, 8, 16]),
    machine=st.sampled_from(
        [{}, {"l2_bytes": LITTLE_L2}, {"vector_bits": 256}, {"vector_bits": 128, "fma": False}]
    ),
    added=st.sets(st.sampled_from(["bias", "residual", "leaky_relu", "packed", "x", "w", "y"])),
    seed=st.integers(0, 2**31),
)
def test_integers_are_exact(case, pixels, machine, added, seed):
    """Every register tile and tail, over every epilogue, for contiguous arrays and others."""
    x, w = case.inputs(seed, integers=True)
    activation, operands, expected = case.epilogue(case.reference(x, w), added)
    plan = few_outputs_plan(case, pixels=pixels, activation=activation, **machine)
    x, w = case.arrange(x, w)
    x, w = with_gaps(x) if "x" in added else x, with_gaps(w) if "w" in added else w
    out = None
    if "y" in added:
        out = np.full(plan.problem.output_shape, np.nan, x.dtype, order="F")
    y = plan(x, plan.pack(w) if "packed" in added else w, **operands, out=out)
    np.testing.assert_array_equal(to_nchw(y, case.layout).astype(float), case.rounded(expected))


@examples(20, 60)
@given(case=cases(), seed=st.integers(0, 2**31))
def test_neither_threads_nor_the_batch_change_a_bit(case, seed):
    assume(case.N > 1)
    x, w = case.arrange(*case.inputs(seed))
    plan = few_outputs_plan(case, threads=1, pixels=1)
    other = few_outputs_plan(case, pixels=1, l2_bytes=LITTLE_L2)
    tiling = other.engine.best.tiling._replace(chunk=1)
    other = changed(other, threads=2, tiling=tiling)
    y = plan(x, w)
    np.testing.assert_array_equal(other(x, w), y)
    single = few_outputs_plan(replace(case, N=1), pixels=1)
    np.testing.assert_array_equal(single(x[-1:], w), y[-1:])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_executed_loads_are_the_planned_ones(layout):
    """Rows of pixels, read in place."""
    case = Case(N=40, C=30, K=70, size=(1, 1), kernel=(1, 1), layout=layout)
    x, w = case.arrange(*case.inputs(0))
    plan = few_outputs_plan(case, l2_bytes=LITTLE_L2)
    loads = plan.trace()
    assert executed_loads(plan.engine, x, w) == sorted(loads)
    assert {load.buffer for load in loads} == {-1}
    assert len(loads) > 1
    assert sum(load.rows for load in loads) % 40 == 0


def test_a_nan_stays_in_its_pixel_and_its_filter():
    case = Case(N=3, C=40, K=19, size=(5, 7), kernel=(1, 1), layout="NHWC")
    plan = few_outputs_plan(case)
    x, w = case.arrange(*case.inputs(0))
    x[1, 2, 3, 39], w[7, 3] = np.nan, np.inf
    y = plan(x, w)
    wrong = ~np.isfinite(y)
    assert wrong[1, 2, 3].all()
    assert wrong[..., 7].all()
    assert wrong.sum() == 3 * 35 + 18


def test_it_is_chosen_for_few_pixels_or_filters_but_not_for_strict(monkeypatch):
    monkeypatch.undo()
    classifier = (1, 512, 1, 1), (1000, 512, 1, 1)
    assert is_chosen(plan_conv2d(*classifier))
    assert not is_chosen(plan_conv2d(*classifier, precision="strict"))
    assert "lanes are channels" in plan_conv2d(*classifier).explain()
    assert is_chosen(plan_conv2d((1, 56, 56, 64), (2, 64, 1, 1), layout="NHWC"))
    assert not is_chosen(plan_conv2d((1, 56, 56, 64), (256, 64, 1, 1), layout="NHWC"))
    assert is_chosen(plan_conv2d((1, 512, 7, 7), (4096, 512, 7, 7)))
    assert not is_chosen(plan_conv2d((1, 512, 7, 7), (4096, 512, 7, 7), padding=1))


def test_planes_are_no_rows_of_channels():
    """In NCHW channels are contiguous only where an image has a single pixel."""
    assert not is_chosen(plan_conv2d((2, 8, 3, 5), (4, 8, 1, 1)))


def test_a_filter_packed_in_another_layout_is_refused():
    """The windows of NCHW and of NHWC hold their elements in different orders."""
    case = Case(N=2, C=5, K=4, size=(3, 3))
    x, w = case.arrange(*case.inputs(0))
    packed = few_outputs_plan(case).pack(w)
    other = few_outputs_plan(replace(case, layout="NHWC", weight_layout="KRSC"))
    with pytest.raises(ShapeError, match="packed in another order"):
        other(x.transpose(0, 2, 3, 1), packed)


def test_a_filter_packed_for_another_window_is_refused():
    """Of as many elements, in another window."""
    case = Case(N=2, C=5, K=4, size=(2, 6), kernel=(2, 6))
    packed = few_outputs_plan(case).pack(np.ones((4, 5, 2, 6), np.float32))
    for c, size in (5, (3, 4)), (10, (2, 3)):
        other = few_outputs_plan(replace(case, C=c, size=size, kernel=size))
        with pytest.raises(ShapeError, match="packed in another order"):
            other(np.ones((2, c, *size), np.float32), packed)


def test_nothing_to_sum_and_nothing_to_write():
    y = conv2d(np.ones((2, 0, 1, 1), "f"), np.ones((3, 0, 1, 1), "f"))
    np.testing.assert_array_equal(y, np.zeros((2, 3, 1, 1)))
    assert conv2d(np.ones((2, 3, 1, 1), "f"), np.ones((0, 3, 1, 1), "f")).shape == (2, 0, 1, 1)


@pytest.mark.parametrize(("channels", "filters"), [(1008, 16), (1024, 8), (4096, 8)])
def test_lines_of_a_register_tiles_filters_fit_in_l1(channels, filters):
    """1024 floats are 4 KiB: lines of such rows share one set, which has 8 ways here."""
    case = Case(C=channels, K=20, size=(1, 1), kernel=(1, 1))
    machine = {"vector_bits": 512, "l1_bytes": 32 << 10, "l1_ways": 8}
    assert few_outputs_plan(case, **machine).engine.best.layout.tile_filters == filters
    x, w = case.inputs(0, integers=True)
    plan = few_outputs_plan(case, l1_bytes=32 << 10, l1_ways=8)
    np.testing.assert_array_equal(plan(x, w), case.reference(x, w))
