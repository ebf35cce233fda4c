"""Padding that repeats pixels of x: every method, rank, mode and amount, against numpy.pad."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import count, examples, sampled

import implicit_conv
from implicit_conv import (
    PlanError,
    ShapeError,
    config,
    conv1d,
    conv2d,
    plan_conv2d,
    plan_conv2d_input_grad,
)
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.candidates.problem_views import spatial, ungrouped, widened
from implicit_conv.cpu.candidates.tiling import Tiling, rounded_up
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.planar_depthwise import PlanarDepthwise
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.cpu.methods.small_groups import SmallGroups
from implicit_conv.cpu.methods.winograd import Winograd
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.layout import depthwise_row
from implicit_conv.problem import reference
from implicit_conv.problem.options import (
    FLOAT_DTYPES,
    LAYOUTS_OF,
    PADDING_MODES,
    SPACE,
    WEIGHT_LAYOUTS_OF,
)
from implicit_conv.problem.schedule import geometry
from implicit_conv.testing import Case, changed, error_units, plan_of, to_nchw

MODES = PADDING_MODES[1:]
COPYING = (PlanarDepthwise, Depthwise, Gemm, PlanarGemm, SmallGroups, Winograd)
FUNCTIONS = {rank: getattr(implicit_conv, f"conv{rank}d") for rank in SPACE}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_position_repeats_the_pixel_that_numpy_repeats(mode, size):
    padded = np.pad(np.arange(size), 40, reference.MODES[mode])
    number = PADDING_MODES.index(mode)
    read = [schedule.source(number, at, size, 40, size + 39) for at in range(-40, size + 40)]
    assert read == padded.tolist()


@dataclass(frozen=True)
class Call:
    """A convolution with any number of spatial axes."""

    size: tuple
    kernel: tuple
    stride: tuple
    dilation: tuple
    padding: tuple
    N: int
    C: int  # of a group
    K: int
    groups: int
    mode: str
    layout: str
    weight_layout: str
    dtype: str

    @property
    def rank(self):
        return len(self.size)

    @property
    def options(self):
        return {
            "stride": self.stride,
            "dilation": self.dilation,
            "padding": self.padding,
            "groups": self.groups,
            "padding_mode": self.mode,
            "layout": self.layout,
            "weight_layout": self.weight_layout,
        }

    def check(self, algorithm="auto"):
        """Compare integers with the reference; the products are small enough for any dtype."""
        rng = np.random.default_rng(7)
        x = rng.integers(-2, 3, (self.N, self.C * self.groups, *self.size))
        w = rng.integers(-1, 2, (self.K * self.groups, self.C, *self.kernel))
        geometry = {"stride": self.stride, "dilation": self.dilation, "pads": self.padding}
        expected = reference.conv(x, w, **geometry, groups=self.groups, padding_mode=self.mode)
        dtype, letters = numpy_dtype(self.dtype), "NC" + SPACE[self.rank]
        x = np.ascontiguousarray(permuted(x, letters, self.layout)).astype(dtype)
        filters = WEIGHT_LAYOUTS_OF[self.rank][0]
        w = np.ascontiguousarray(permuted(w, filters, self.weight_layout)).astype(dtype)
        y = FUNCTIONS[self.rank](x, w, algorithm=algorithm, **self.options)
        rounded = expected.astype("float32").astype(dtype).astype(float)
        np.testing.assert_array_equal(permuted(y, self.layout, letters).astype(float), rounded)


def permuted(array, letters, order):
    return array.transpose([letters.index(letter) for letter in order])


@st.composite
def calls(draw, method=None):
    """Few extents, since each tile of another height has a kernel of its own to compile."""
    rank = draw(st.sampled_from([1, 2, 2, 3]))

    def axes(*values):
        return tuple(draw(st.sampled_from(values)) for _ in range(rank))

    pad = st.sampled_from([-2, -1, 0, 1, 2, 3, 11])
    channels, filters, groups = draw(
        {
            PlanarDepthwise: st.sampled_from([(1, 1, 1), (1, 1, 3)]),
            Depthwise: st.sampled_from([(1, 1, 17), (1, 1, 40)]),
            SmallGroups: st.sampled_from([(1, 2, 9), (2, 4, 5)]),
            Winograd: st.sampled_from([(3, 5, 1), (20, 33, 1)]),
        }.get(method, st.sampled_from([(3, 5, 1), (20, 33, 1), (2, 3, 3)]))
    )
    square = method is Winograd
    rank = max(rank, 2) if square else rank
    step = draw(st.sampled_from([1, 2])) if square else 0
    planes = (draw(st.sampled_from([2, 3])),) * (rank - 2)  # of a filter, if it has several
    call = Call(
        size=(*axes(1, 2, 5)[1:], draw(st.sampled_from([1, 2, 9, 21]))),
        kernel=(*planes, 3, 3) if square else axes(*count((1, 2, 3), (1, 2, 3, 5))),
        stride=(*(1 for _ in planes), step, step)
        if square
        else axes(*count((1, 1, 2), (1, 1, 2, 3))),
        dilation=(1,) * rank if square else axes(1, 1, 2, 6),
        padding=tuple((draw(pad), draw(pad)) for _ in range(rank)),
        N=draw(st.sampled_from([1, 2])),
        C=channels,
        K=filters,
        groups=groups,
        mode=draw(st.sampled_from(MODES)),
        layout=draw(st.sampled_from(LAYOUTS_OF[rank])),
        weight_layout=draw(st.sampled_from(WEIGHT_LAYOUTS_OF[rank])),
        dtype=draw(st.sampled_from(count(["float32", "float32", "bfloat16"], FLOAT_DTYPES))),
    )
    sizes = zip(call.size, call.padding, call.kernel, call.dilation, strict=True)
    for size, (lo, hi), taps, dilation in sizes:
        assume(size + min(lo, 0) + min(hi, 0) >= 1)
        assume(size + lo + hi > (taps - 1) * dilation)
    return call


@sampled
@pytest.mark.parametrize("method", COPYING, ids=lambda method: method.__name__)
def test_integers_are_exact_in_every_method(method, force_method):
    force_method(method)

    @examples(6, 1500)
    @given(call=calls(method))
    def check(call):
        call.check()

    check()


@examples(12, 1500)
@given(call=calls())
def test_the_baseline_is_exact(call):
    assume(call.dtype in ("float32", "float64"))
    call.check("gemm_im2col")


@st.composite
def cases_in_place(draw):
    """A depthwise case whose x is read in place, and the tile its rows are cut into."""
    pad = st.sampled_from([-1, 0, 1, 2, 3, 4, 9, 40])
    case = Case(
        N=2,
        groups=draw(st.sampled_from([16, 37])),
        size=(draw(st.sampled_from([1, 3, 6])), draw(st.sampled_from([1, 2, 3, 9, 30]))),
        kernel=draw(st.sampled_from([(1, 2), (1, 5), (3, 3), (3, 1), (2, 6)])),
        stride=(draw(st.integers(1, 2)), draw(st.integers(1, 3))),
        dilation=(draw(st.sampled_from([1, 1, 3])), draw(st.sampled_from([1, 1, 2]))),
        padding=((draw(pad), draw(pad)), (draw(pad), draw(pad))),
        layout="NHWC",
        dtype=draw(st.sampled_from(FLOAT_DTYPES)),
        padding_mode=draw(st.sampled_from(MODES)),
    )
    assume(case.is_valid)
    return case, draw(st.sampled_from([1, 4, 40])), draw(st.sampled_from([1, 2, 5, 14]))


@examples(15, 1500)
@given(cut=cases_in_place())
def test_depthwise_in_place_is_exact_however_rows_are_cut(cut):
    case, columns, tile_m = cut
    check_in_place(plan_in_place(case, columns, tile_m), case)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("width", [3, 30])
def test_kernels_of_filter_rows_repeat_pixels_on_both_sides(width, stride, mode):
    case = Case(
        groups=16,
        size=(2, width),
        kernel=(2, 5),
        stride=(1, stride),
        padding=((1, 1), (4, 3)),
        layout="NHWC",
        padding_mode=mode,
    )
    plan = plan_in_place(case, columns=width + 7, tile_m=6)
    assert depthwise_row(plan.engine.best.geometry, in_place=True)
    check_in_place(plan, case)


def plan_in_place(case, columns, tile_m):
    """A depthwise plan that reads x in place, with load tiles of `columns` output columns."""
    plan = plan_of(case)
    view = ungrouped(widened(spatial(plan.problem)))
    channels = rounded_up(case.groups, plan.engine.best.lanes)
    g = geometry(view, tile=(1, 2, columns), tile_m=tile_m, tile_c=channels, tile_k=channels)
    return changed(plan, method=Depthwise(in_place=True), view=view, tiling=Tiling(g, 1))


def check_in_place(plan, case):
    x, w = case.inputs(0, integers=True)
    y = plan(*case.arrange(x, w))
    np.testing.assert_array_equal(to_nchw(y, "NHWC"), case.rounded(case.reference(x, w)))


CASES = [
    Case(C=5, K=7, size=(6, 9), padding=((1, 2), (3, 0))),
    Case(C=20, K=40, size=(9, 11), padding=((1, 1), (2, 2)), layout="NHWC"),
    Case(C=20, K=40, size=(9, 11), padding=((8, 9), (15, 2)), stride=(2, 2), dilation=(3, 2)),
    Case(groups=20, size=(9, 30), padding=((1, 1), (1, 1))),
    Case(groups=20, size=(9, 30), padding=((1, 1), (1, 1)), layout="NHWC"),
    Case(groups=8, K=2, size=(9, 30), padding=((-1, 2), (1, -1)), layout="NHWC"),
    Case(C=3, K=5, size=(7, 7), kernel=(1, 1), padding=((1, 2), (2, 0)), layout="NHWC"),
]


@pytest.mark.parametrize("precision", ["standard", "strict"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_number_that_is_not_finite_shows_where_its_pixel_is_read(case, mode, precision):
    """In no other output, also where Winograd tiles run over the end of the image."""
    case = replace(case, padding_mode=mode)
    x, w = case.inputs(1)
    plan = plan_of(case, precision=precision)
    for at in [(0, 0, 0, 0), (0, -1, -1, -1), (0, 0, 2, 4)]:
        spoiled = x.copy()
        spoiled[at] = np.nan
        expected = case.reference(np.isnan(spoiled), np.ones_like(w)) > 0
        y = to_nchw(plan(*case.arrange(spoiled, w)), case.layout)
        assert np.array_equal(np.isnan(y), expected), at
    w[:, 0, 0, 0] = np.nan
    assert np.isnan(plan(*case.arrange(x, w))).all()  # no tap reads zeros alone


@pytest.mark.parametrize("mode", MODES)
def test_winograd_reads_no_more_than_its_outputs_need(mode):
    """The pixels after the last window would be those of the other side, or of the middle."""
    for algorithm, m in (("winograd_f2", 4), ("winograd_f4", 4), ("winograd_f6", 6)):
        size = (m + 2, m + 2)
        case = Case(C=16, K=16, size=size, padding=((1, 0), (1, 0)), padding_mode=mode)
        x, w = case.inputs(1)
        x[0, 0, 1, 1] = x[0, 0, m, m] = np.inf
        expected = case.reference(np.isinf(x), np.ones_like(w)) > 0
        y = plan_of(case, algorithm=algorithm, precision="fast")(x, w)
        assert np.isfinite(y[0, :, m, 0]).all(), algorithm
        if algorithm == "winograd_f2":
            assert np.array_equal(~np.isfinite(y), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_errors_are_those_of_the_reference(case, mode):
    case = replace(case, padding_mode=mode)
    x, w = case.inputs(2)
    y = to_nchw(plan_of(case)(*case.arrange(x, w)), case.layout)
    scale = case.reference(x, w, magnitude=True)
    assert error_units(y, case.reference(x, w), scale, case.dtype) <= 16


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_strict_sums_depend_on_neither_batch_nor_threads(case, mode):
    case = replace(case, N=3, padding_mode=mode)
    x, w = case.arrange(*case.inputs(3))
    options = {**case.options, "precision": "strict"}
    with config(num_threads=1):
        alone = conv2d(x[1:2], w, **options)
    with config(num_threads=2):
        together = conv2d(x, w, **options)
    assert np.array_equal(alone, together[1:2])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_executed_loads_are_the_planned_ones(case, mode):
    case = replace(case, padding_mode=mode)
    x, w = case.arrange(*case.inputs(0))
    plan = plan_conv2d(x.shape, w.shape, **case.options)
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_strides_are_taken(case, mode):
    case = replace(case, padding_mode=mode)
    x, w = case.inputs(4, integers=True)
    arranged, filters = case.arrange(x, w)
    wide = np.repeat(arranged, 2, axis=-1)[..., ::-2]  # elements of the last axis reversed
    y = conv2d(wide[..., ::-1], filters, **case.options)
    np.testing.assert_array_equal(to_nchw(y, case.layout), case.reference(x, w))


def test_padding_repeats_what_is_left_after_cropping():
    x, w = np.arange(6, dtype=np.float32).reshape(1, 1, 6), np.ones((1, 1, 1), np.float32)
    low = conv1d(x, w, padding=((-1, 2),), padding_mode="reflect")
    assert low.ravel().tolist() == [1, 2, 3, 4, 5, 4, 3]
    low = conv1d(x, w, padding=((-3, 4),), padding_mode="circular")
    assert low.ravel().tolist() == [3, 4, 5, 3, 4, 5, 3]
    high = conv1d(x, w, padding=((5, -2),), padding_mode="Symmetric")
    assert high.ravel().tolist() == [3, 3, 2, 1, 0, 0, 1, 2, 3]


def test_named_padding_is_made_of_repeated_pixels():
    x, w = np.arange(5, dtype=np.float32).reshape(1, 1, 5), np.ones((1, 1, 3), np.float32)
    y = conv1d(x, w, padding="causal", padding_mode="REPLICATE")
    assert y.ravel().tolist() == [0, 1, 3, 6, 9]


def test_a_mode_without_padding_changes_no_plan():
    given = (1, 64, 9, 9), (64, 64, 1, 1)
    plans = [plan_conv2d(*given, padding_mode=mode, padding=-1) for mode in PADDING_MODES]
    assert len({plan.engine.best for plan in plans}) == 1


def test_explain_and_the_problem_name_the_mode():
    plan = plan_conv2d((1, 8, 9, 9), (8, 8, 3, 3), padding=1, padding_mode="Circular")
    assert "padding (1, 1) in mode 'circular'" in plan.explain()
    assert plan.problem.padding_mode == "circular"
    assert "mode" not in str(plan_conv2d((1, 8, 9, 9), (8, 8, 3, 3), padding=1).problem)


@pytest.mark.parametrize(
    ("shape", "padding", "words"),
    [
        ((1, 3, 0, 5), 1, ["along H", "of 0 pixels", "padding (1, 1)", "'zeros'"]),
        ((1, 3, 5, 2), ((0, 0), (-2, 5)), ["along W", "of 2 pixels", "crops 2"]),
        ((1, 3, 5, 2), ((0, 0), (9, -4)), ["along W", "crops 4", "pad by 0"]),
    ],
)
def test_padding_needs_a_pixel_to_repeat(shape, padding, words):
    with pytest.raises(ShapeError) as refused:
        plan_conv2d(shape, (4, 3, 1, 1), padding=padding, padding_mode="reflect")
    assert all(word in str(refused.value) for word in words)
    assert plan_conv2d(shape, (4, 3, 1, 1), padding=padding).problem


def test_empty_axes_without_padding_are_computed():
    x, w = np.ones((0, 3, 4, 5), np.float32), np.ones((2, 3, 3, 3), np.float32)
    assert conv2d(x, w, padding=1, padding_mode="reflect").shape == (0, 2, 4, 5)


@pytest.mark.parametrize("mode", ["mirrored", "", None, 3])
def test_an_unknown_mode_is_refused_with_all_modes(mode):
    with pytest.raises(ShapeError, match="reflect, symmetric, replicate, circular"):
        plan_conv2d((1, 3, 5, 5), (4, 3, 3, 3), padding=1, padding_mode=mode)


def test_gpus_repeat_pixels_but_not_in_gradients():
    given = {"x_shape": (1, 8, 9, 9), "w_shape": (8, 8, 3, 3), "dtype": "float16", "padding": 1}
    for device in ("sm_90", "cpu"):
        for mode in ("Zeros", "reflect"):
            assert plan_conv2d(**given, padding_mode=mode, device=device)
    given = {"dtype": "float16", "padding": 1, "padding_mode": "reflect", "device": "sm_90"}
    with pytest.raises(PlanError, match="'zeros', not 'reflect'; use device='cpu'"):
        plan_conv2d_input_grad((1, 8, 9, 9), (8, 8, 3, 3), (1, 8, 9, 9), **given)
