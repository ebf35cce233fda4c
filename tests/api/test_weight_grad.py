"""Weight gradients: exact on integers, bounded on floats, and the same for any division of work."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

import implicit_conv as ic
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.candidates.tiling import Tiling
from implicit_conv.cpu.engines import wgrad
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.operators.plan import Plan
from implicit_conv.problem import reference
from implicit_conv.process import cache
from implicit_conv.testing import EPS, Case, error_units, from_nchw, to_kcrs
from implicit_conv.testing.operators import sums

SAME = ((1, 1), (1, 1))
CASES = {
    "rows of channels": Case(N=2, C=40, K=70, size=(9, 11), padding=SAME),
    "in place": Case(N=2, C=40, K=64, size=(9, 11), padding=SAME, layout="NHWC"),
    "panels that are not whole": Case(C=20, K=37, size=(9, 11), padding=SAME, layout="NHWC"),
    "columns joined": Case(C=3, K=33, size=(25, 19), kernel=(5, 5), stride=(2, 2)),
    "1x1": Case(N=7, C=20, K=20, size=(7, 7), kernel=(1, 1), stride=(2, 2)),
    "1x1 in place": Case(N=3, C=40, K=64, size=(7, 9), kernel=(1, 1), layout="NHWC"),
    "1x1 cropped": Case(
        N=2, C=70, K=40, size=(9, 11), kernel=(1, 1), stride=(2, 3), padding=((-1, 0), (-2, -1))
    ),
    "1x1 padded": Case(N=2, C=17, K=20, size=(9, 11), kernel=(1, 1), padding=SAME),
    "1x1 RSCK": Case(N=2, C=64, K=40, size=(9, 11), kernel=(1, 1), weight_layout="RSCK"),
    "levels": Case(N=66, C=16, K=30, size=(16, 16), padding=SAME),  # more tiles than one level adds
    "row phases": Case(C=17, K=9, size=(20, 21), stride=(2, 3), dilation=(3, 2), padding=SAME),
    "depthwise": Case(N=2, groups=40, size=(9, 11), padding=SAME),
    "small groups": Case(C=2, K=3, groups=17, size=(9, 11), padding=SAME, layout="NHWC"),
    "large groups": Case(C=20, K=40, groups=2, size=(9, 11), padding=SAME),
    "float64": Case(C=17, K=9, size=(9, 11), dtype="float64", layout="NHWC"),
    "cropped": Case(C=5, K=9, size=(9, 11), padding=((-1, 2), (0, -2))),
    "KRSC": Case(N=2, C=17, K=20, size=(9, 11), padding=SAME, weight_layout="KRSC"),
    "RSCK": Case(N=2, C=17, K=20, size=(9, 11), padding=SAME, weight_layout="RSCK"),
}


def inputs(case, seed=0, integers=False):
    """(x, dy) in N, C, H, W order, in the dtype of the case."""
    rng, dtype = np.random.default_rng(seed), numpy_dtype(case.dtype)
    shapes = (
        (case.N, case.C * case.groups, *case.size),
        (case.N, case.K * case.groups, *case.output),
    )
    draw = (lambda s: rng.integers(-3, 4, s)) if integers else rng.standard_normal
    return tuple(draw(shape).astype(dtype) for shape in shapes)


def expected(case, x, dy):
    """dw in K, C, R, S order, in float64, by its definition."""
    return sums("weight_grad", case, x, dy)


def arranged(case, x, dy):
    """Contiguous arrays in the case's layout."""
    return tuple(np.ascontiguousarray(from_nchw(a, case.layout)) for a in (x, dy))


def weight_shape(case):
    """The shape of w in the case's weight layout."""
    return case.problem.weight_shape


def compute(case, x, dy, **options):
    """dw of arrays in N, C, H, W order, in K, C, R, S order."""
    arrays = arranged(case, x, dy)
    dw = ic.conv2d_weight_grad(*arrays, weight_shape(case), **case.options, **options)
    return to_kcrs(dw, case.weight_layout)


@pytest.mark.parametrize("name", CASES)
def test_integers_are_exact(name):
    case = CASES[name]
    x, dy = inputs(case, integers=True)
    for _ in range(2):  # the second time by the prepared call
        np.testing.assert_array_equal(compute(case, x, dy), expected(case, x, dy))


pads = st.tuples(st.integers(-2, 4), st.integers(-2, 4))
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def cases(draw):
    """Any small weight gradient whose output has pixels."""
    case = Case(
        N=draw(st.sampled_from([0, 1, 2, 5])),
        C=draw(st.sampled_from([1, 2, 3, 16, 17, 33])),
        K=draw(st.sampled_from([1, 3, 8, 17, 33])),
        groups=draw(st.sampled_from([1, 1, 1, 2, 5])),
        size=draw(st.tuples(st.integers(3, 18), st.sampled_from([*range(3, 20), 300]))),
        kernel=draw(st.tuples(st.integers(1, 4), st.integers(1, 5))),
        stride=draw(pairs),
        dilation=draw(pairs),
        padding=draw(st.tuples(pads, pads)),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=draw(st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"])),
    )
    while min(case.output) < 1:
        case = replace(case, padding=tuple((lo + 2, hi + 3) for lo, hi in case.padding))
    return case


@examples(12, 20_000)
@given(cases())
def test_random_problems(case):
    x, dy = inputs(case, integers=True)
    wide = {"out_dtype": "float32"} if case.problem.itemsize == 2 else {}
    np.testing.assert_array_equal(compute(case, x, dy, **wide), expected(case, x, dy))


@examples(4, 2_000)
@given(cases(), st.integers(0, 1 << 20))
def test_the_adjoint_identity_holds_exactly(case, seed):
    """The sum of conv(x, w) * dy equals that of w * dw, in integers."""
    case = replace(case, dtype="float64")
    x, dy = inputs(case, seed, integers=True)
    w = np.random.default_rng(seed + 1).integers(
        -3, 4, (case.K * case.groups, case.C, *case.kernel)
    )
    y = reference.conv(
        x, w, stride=case.stride, pads=case.padding, dilation=case.dilation, groups=case.groups
    )
    assert np.sum(y * dy) == np.sum(w * compute(case, x, dy))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["rows of channels", "in place", "depthwise", "columns joined"])
def test_floats_are_close(name, dtype):
    case = replace(CASES[name], dtype=dtype)
    x, dy = inputs(case)
    exact, scale = expected(case, x, dy), expected(case, abs(x), abs(dy))
    assert error_units(compute(case, x, dy), exact, scale, dtype) <= 16


def candidate_plans(case):
    """A plan for each candidate of a case: one of every method, in place and copied."""
    made = wgrad.plan(case.problem, cpu_arch(1), Request("strict"))
    for candidate in made.candidates:
        yield Plan(replace(made, choice=replace(made.choice, candidates=(candidate,))))


@pytest.mark.parametrize("name", CASES)
def test_every_candidate_is_exact(name):
    case = CASES[name]
    x, dy = inputs(case, integers=True)
    for plan in candidate_plans(case):
        dw = to_kcrs(plan(*arranged(case, x, dy)), case.weight_layout)
        np.testing.assert_array_equal(dw, expected(case, x, dy), plan.engine.best.name)


PARTS = Case(N=2, C=3, K=8, size=(70, 70), padding=SAME)  # so few elements that pixels are divided
STRICT = [
    *(CASES[name] for name in ("rows of channels", "in place", "1x1", "large groups", "depthwise")),
    CASES["small groups"],
    Case(groups=40, size=(70, 70), padding=SAME, layout="NHWC"),  # parts of a depthwise dw
    PARTS,
    CASES["levels"],
]


@pytest.mark.parametrize("case", STRICT, ids=str)
def test_bits_do_not_depend_on_threads_or_tiles(case):
    x, dy = arranged(case, *inputs(case))

    def bits(threads):
        with ic.config(num_threads=threads):
            options = {**case.options, "precision": "strict"}
            return ic.conv2d_weight_grad(x, dy, weight_shape(case), **options)

    whole = bits(1)
    for threads in (2, 3):
        np.testing.assert_array_equal(bits(threads), whole)
    made = wgrad.plan(case.problem, cpu_arch(1), Request("strict"))
    for c in made.candidates:
        tiles = [(c.geometry.tile_c, c.chunk)]
        if c.algorithm != "depthwise":
            tiles += [(16, 1), (32, 2)]
        for block, chunk in tiles:
            g = c.geometry._replace(tile_c=min(block, c.geometry.C))
            other = replace(c, tiling=Tiling(g, chunk))
            plan = Plan(replace(made, choice=replace(made.choice, candidates=(other,))))
            np.testing.assert_array_equal(plan(x, dy), whole, c.name)


def test_a_case_has_parts_and_another_has_levels():
    """The cases above reach the code for them."""
    layouts = [wgrad.plan(c.problem, cpu_arch(1), Request()).best.layout for c in STRICT[-2:]]
    assert layouts[0].parts > 1
    assert layouts[1].levels > 1


TERMS = (0.1, 0.7, 1.1000001)  # whose sums are rounded, always in the same direction for a while


@pytest.mark.parametrize(
    "case",
    [
        Case(N=2, C=17, K=17, size=(130, 130), kernel=(1, 1)),
        Case(groups=3, size=(180, 180), kernel=(1, 1)),
        Case(C=2, K=2, size=(180, 190), kernel=(1, 1), layout="NHWC"),
    ],
    ids=str,
)
def test_thirty_thousand_equal_terms_lose_at_most_64_units(case):
    dy = np.ones(case.problem.output_shape, np.float32)
    for term in np.float32(TERMS):
        x = np.full(case.problem.input_shape, term)
        exact = case.N * case.output[0] * case.output[1] * float(term)
        for plan in candidate_plans(case):
            error = np.abs(plan(x, dy).astype(np.float64) - exact).max() / (EPS["float32"] * exact)
            assert error <= 64, plan.engine.best.name


@pytest.mark.parametrize("name", ["rows of channels", "in place", "depthwise", "KRSC"])
def test_arrays_of_any_strides(name):
    case = CASES[name]
    x, dy = inputs(case, integers=True)
    exact = expected(case, x, dy)
    x, dy = arranged(case, x, dy)
    shape = weight_shape(case)

    def spread(array, axis):
        """A copy whose elements along an axis are not contiguous, and reversed along the last."""
        wide = np.repeat(array[..., ::-1], 2, axis=axis)
        return wide[(slice(None),) * axis + (slice(None, None, 2),)][..., ::-1]

    for axis in range(4):
        out = np.full(tuple(2 * n for n in shape), np.nan, np.float32)[::2, 1::2, ::2, 1::2]
        given = ic.conv2d_weight_grad(
            spread(x, axis), spread(dy, axis), shape, out=out, **case.options
        )
        assert given is out
        np.testing.assert_array_equal(to_kcrs(out, case.weight_layout), exact)
    other = np.zeros(shape, np.float32)[::-1]
    ic.conv2d_weight_grad(x.astype(">f4"), dy, shape, out=other, **case.options)
    np.testing.assert_array_equal(to_kcrs(other, case.weight_layout), exact)


@pytest.mark.parametrize("name", ["rows of channels", "in place", "depthwise", "small groups"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_values_show_where_they_belong(name, value):
    case = CASES[name]
    x, dy = inputs(case)
    x[0, 1, 4, 5], dy = value, abs(dy) + 1
    dw = compute(case, x, dy)
    affected = np.zeros(dw.shape, bool)
    group = 1 // case.C
    affected[group * case.K : (group + 1) * case.K, 1 % case.C] = True
    np.testing.assert_array_equal(~np.isfinite(dw), affected)


def test_batchless_arrays():
    case = CASES["rows of channels"]
    case = replace(case, N=1)
    x, dy = inputs(case, integers=True)
    dw = ic.conv2d_weight_grad(x[0], dy[0], weight_shape(case), **case.options)
    np.testing.assert_array_equal(dw, expected(case, x, dy))


def test_out_dtype():
    case = replace(CASES["in place"], dtype="float16")
    x, dy = inputs(case, integers=True)
    for dtype in ("float16", "float32", "float64"):
        dw = compute(case, x, dy, out_dtype=dtype)
        assert dw.dtype == dtype
        np.testing.assert_array_equal(dw, expected(case, x, dy))


def test_a_plan_explains_traces_and_pickles():
    case = CASES["rows of channels"]
    x, dy = inputs(case, integers=True)
    shapes = x.shape, dy.shape, weight_shape(case)
    plan = ic.plan_conv2d_weight_grad(*shapes, **case.options)
    assert plan is ic.plan_conv2d_weight_grad(*shapes, **case.options)
    assert "output rows" in plan.explain()
    assert {load.operand for load in plan.trace()} == {"x"}
    assert plan.packed_bytes == 0
    assert plan.peak_bytes == plan.workspace_bytes + 70 * 40 * 9 * 4
    for copy in (plan, pickle.loads(pickle.dumps(plan))):
        np.testing.assert_array_equal(copy(x, dy), expected(case, x, dy))
    with pytest.raises(ic.PlanError, match="call the plan with x and dy"):
        plan.pack(x)
    with pytest.raises(ic.PlanError, match="no bias, residual or scale"):
        plan(x, dy, np.zeros(70))


def test_known_calls_are_kept():
    ic.clear_plan_cache()
    case = CASES["1x1"]
    x, dy = inputs(case, integers=True)
    for _ in range(3):
        np.testing.assert_array_equal(compute(case, x, dy), expected(case, x, dy))
    assert len(cache.CALLS) == 1


X, DY, SHAPE = np.ones((1, 4, 6, 6), "f4"), np.ones((1, 8, 4, 4), "f4"), (8, 4, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((X, DY[:, :, 1:], SHAPE), {}, ic.ShapeError, r"\(1, 8, 3, 4\).*\(1, 8, 4, 4\)"),
        ((X, DY, SHAPE), {"padding": 1}, ic.ShapeError, r"\(1, 8, 6, 6\)"),
        ((X, DY, (8, 3, 3, 3)), {}, ic.ShapeError, "C/groups=3"),
        ((X, DY, (9, 2, 3, 3)), {"groups": 2}, ic.ShapeError, "K=9 is not a multiple"),
        ((X, DY.astype("f8"), SHAPE), {}, ic.DTypeError, r"dy is float64.*dy.astype\('float32'\)"),
        ((X.astype("i4"), DY.astype("i4"), SHAPE), {}, ic.DTypeError, "convert it to one of"),
        ((X, DY, X), {}, TypeError, "must be a shape, not an array"),
        ((X, DY, SHAPE), {"device": "gpu"}, ic.PlanError, "device .gpu. is none of None"),
        ((X, DY, SHAPE), {"precision": "exact"}, ic.PlanError, "precision 'exact'"),
        ((X, DY, SHAPE), {"layout": []}, TypeError, "layout"),
        ((X, DY, SHAPE), {"out": np.zeros((8, 4, 3, 2), "f4")}, ic.ShapeError, "out has shape"),
        ((X, DY, SHAPE), {"out": np.zeros(SHAPE)}, ic.DTypeError, "out is float64"),
        ((X, DY, SHAPE), {"stride": 1.0}, ic.ShapeError, "stride must be an integer"),
    ],
)
def test_bad_input(arguments, options, error, words):
    with pytest.raises(error, match=words):
        ic.conv2d_weight_grad(*arguments, **options)


class OnGpu:
    """An array of another library on a GPU, as far as its type tells."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": X.shape, "typestr": "<f4", "data": (0, False), "version": 3}


def test_arrays_on_a_gpu_with_three_axes_are_refused():
    with pytest.raises(ic.PlanError, match="conv3d_weight_grad is computed on the CPU"):
        ic.conv3d_weight_grad(OnGpu(), OnGpu(), (8, 4, 3, 3, 3))
