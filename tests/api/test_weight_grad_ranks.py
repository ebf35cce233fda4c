"""Weight gradients of signals, images and volumes: exact on integers, and adjoint to the others."""

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
from implicit_conv.problem.options import LAYOUTS_OF, PADDING_MODES, SPACE, WEIGHT_LAYOUTS_OF
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import from_kcrs


def problem(size, kernel, *, C=1, K=1, groups=1, pads=(0, 0), **options):
    """A problem of any rank; C and K count one group, and `pads` are for all axes or for each."""
    rank = len(size)
    pairs = pads if isinstance(pads[0], tuple) else (pads,) * rank
    defaults = {
        "N": 1,
        "stride": (1,) * rank,
        "dilation": (1,) * rank,
        "dtype": "float32",
        "layout": LAYOUTS_OF[rank][0],
        "weight_layout": WEIGHT_LAYOUTS_OF[rank][0],
    }
    return Problem(
        size=size,
        kernel=kernel,
        C=C * groups,
        K=K * groups,
        groups=groups,
        pad_lo=tuple(low for low, _ in pairs),
        pad_hi=tuple(high for _, high in pairs),
        **{**defaults, **options},
    )


CASES = {
    "rows of channels": problem((5, 9, 11), (3, 3, 3), N=2, C=20, K=37, pads=(1, 1)),
    "in place": problem((5, 9, 11), (3, 3, 3), N=2, C=20, K=32, pads=(1, 1), layout="NDHWC"),
    "columns joined": problem((5, 15, 19), (2, 3, 5), C=3, K=33, stride=(2, 2, 2), pads=(1, 2)),
    "1x1x1": problem((4, 7, 7), (1, 1, 1), N=3, C=20, K=20, stride=(2, 1, 2)),
    "1x1x1 in place": problem((5, 3, 9), (1, 1, 1), N=2, C=20, K=16, layout="NDHWC"),
    "1x1x1 cropped": problem(
        (6, 5, 9), (1, 1, 1), N=2, C=20, K=18, stride=(2, 1, 3), pads=((-1, 0), (-1, -1), (0, -2))
    ),
    "1x1x1 padded": problem((3, 5, 4), (1, 1, 1), N=2, C=17, K=20, pads=(1, 2)),
    "a plane before": problem((3, 5, 4), (1, 1, 1), N=2, C=17, K=20, pads=((1, 0), (0, 0), (0, 0))),
    "a plane after": problem((3, 5, 4), (1, 1, 1), N=2, C=17, K=20, pads=((0, 1), (0, 0), (0, 0))),
    "planes cut": problem((21, 5, 5), (3, 2, 2), N=2, C=17, K=9, pads=(2, 1)),
    "one plane of many images": problem((2, 5, 5), (4, 2, 3), N=30, C=9, K=9, pads=(1, 1)),
    "far planes": problem(
        (7, 6, 6), (3, 2, 2), N=2, C=17, K=9, stride=(2, 1, 2), dilation=(4, 1, 3), pads=(3, 2)
    ),
    "depthwise": problem((5, 9, 11), (3, 3, 3), N=2, groups=40, pads=(1, 1)),
    "small groups": problem((5, 6, 7), (2, 3, 3), C=2, K=3, groups=17, pads=(1, 1), layout="NDHWC"),
    "large groups": problem((5, 6, 7), (2, 3, 3), C=20, K=40, groups=2, pads=(1, 1)),
    "KTRSC": problem((5, 6, 7), (3, 2, 3), N=2, C=17, K=20, pads=(1, 1), weight_layout="KTRSC"),
    "TRSCK": problem((5, 6, 7), (3, 2, 3), N=2, C=17, K=32, pads=(1, 1), weight_layout="TRSCK"),
    "float16": problem((5, 6, 7), (3, 2, 3), C=17, K=20, dtype="float16", layout="NDHWC"),
    "without a batch": problem((5, 6, 7), (3, 2, 3), C=17, K=20, batched=False),
    "reflected": problem(
        (5, 6, 7), (3, 3, 3), N=2, C=17, K=20, pads=(2, 3), padding_mode="reflect"
    ),
    "symmetric, in place": problem(
        (5, 6, 7), (3, 3, 3), C=17, K=32, pads=(1, 1), layout="NDHWC", padding_mode="symmetric"
    ),
    "replicated, joined": problem(
        (9, 30), (3, 5), C=3, K=33, stride=(2, 2), pads=(3, 1), padding_mode="replicate"
    ),
    "circular, depthwise": problem(
        (6, 7), (3, 3), N=2, groups=40, pads=((9, 0), (1, 8)), padding_mode="circular"
    ),
    "circular, cropped": problem(
        (1, 40), (1, 5), C=17, K=9, pads=((0, 0), (-3, 7)), padding_mode="circular"
    ),
    "reflected, 1x1": problem(
        (6, 7), (1, 1), C=17, K=20, stride=(2, 2), pads=(2, 0), padding_mode="reflect"
    ),
    "a signal": problem((700,), (5,), N=2, C=17, K=20, stride=(2,), pads=(2, 3)),
    "a signal in place": problem((700,), (3,), N=2, C=16, K=32, dilation=(4,), layout="NWC"),
    "a signal of one channel": problem((3000,), (9,), K=17, pads=(8, 0)),
    "a depthwise signal": problem((300,), (4,), groups=33, pads=(3, 0), layout="NWC"),
    "a signal without a batch": problem((40,), (3,), C=3, K=5, batched=False, layout="NWC"),
    "a column": problem((300, 1), (5, 1), N=2, C=17, K=20, pads=((2, 2), (0, 0))),
    "a beam": problem((1, 200, 1), (1, 5, 1), N=2, C=17, K=20, pads=((0, 0), (2, 2), (0, 0))),
}
# So few elements of dw that pixels are divided, and more load tiles than one level adds.
PARTS = problem((20, 30, 30), (3, 3, 3), N=2, C=3, K=8, pads=(1, 1))
LEVELS = problem((70, 16, 16), (1, 3, 3), C=16, K=30, pads=((0, 0), (1, 1), (1, 1)))


def options_of(p):
    """Keyword arguments of the functions for a problem."""
    names = ("stride", "dilation", "groups", "layout", "weight_layout", "padding_mode")
    padding = tuple(zip(p.pad_lo, p.pad_hi, strict=True))
    return {"padding": padding, **{name: getattr(p, name) for name in names}}


def integers(p, *shapes, seed=0):
    """Arrays of small integers in the dtype of a problem."""
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(-3, 4, shape).astype(numpy_dtype(p.dtype)) for shape in shapes)


def inputs(p, seed=0):
    """(x, dy) of a problem."""
    return integers(p, p.input_shape, p.output_shape, seed=seed)


def channels_first(p, array):
    """An x or dy of a problem, in float64, with the axes N, C and the spatial ones."""
    array = array.astype(np.float64) if p.batched else array.astype(np.float64)[None]
    return array if p.layout[1] == "C" else np.moveaxis(array, -1, 1)


def expected(p, x, dy):
    """dw in the weight layout, in float64, by its definition."""
    x, dy = channels_first(p, x), channels_first(p, dy)
    pads = tuple(zip(p.pad_lo, p.pad_hi, strict=True))
    options = {"stride": p.stride, "dilation": p.dilation, "pads": pads}
    more = {"groups": p.groups, "padding_mode": p.padding_mode}
    return from_kcrs(reference.weight_grad(x, dy, p.kernel, **options, **more), p.weight_layout)


def compute(p, x, dy, **others):
    """dw by the function of the problem's rank."""
    function = getattr(ic, f"conv{p.rank}d_weight_grad")
    return function(x, dy, p.weight_shape, **options_of(p), **others)


@pytest.mark.parametrize("name", CASES)
def test_every_candidate_is_exact(name):
    p = CASES[name]
    x, dy = inputs(p)
    exact = expected(p, x, dy)
    wide = {"out_dtype": "float32"} if p.itemsize == 2 else {}
    for _ in range(2):  # the second time by the prepared call
        np.testing.assert_array_equal(compute(p, x, dy, **wide), exact)
    made = wgrad.plan(p, cpu_arch(1), Request(), **wide)
    for candidate in made.candidates:
        plan = Plan(replace(made, choice=replace(made.choice, candidates=(candidate,))))
        np.testing.assert_array_equal(plan(x, dy), exact, candidate.name)


@st.composite
def problems(draw, dtypes=("float32", "float32", "float64", "float16", "bfloat16")):
    """Any small problem of rank 1, 2 or 3 whose output has pixels."""
    rank = draw(st.sampled_from([1, 2, 3, 3]))
    extents = st.integers(1, {1: 300, 2: 20, 3: 9}[rank])

    def each(values):
        return tuple(draw(values) for _ in range(rank))

    size, kernel = each(extents), each(st.integers(1, 4))
    mode = draw(st.sampled_from(["zeros", *PADDING_MODES]))
    least = -1 if mode == "zeros" or min(size) > 2 else 0  # other modes need a pixel to repeat
    pads = tuple((draw(st.integers(least, 3)), draw(st.integers(least, 3))) for _ in range(rank))
    dilation = each(st.integers(1, 3))
    reaches = ((taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True))
    pads = tuple(
        (low, max(high, reach - extent - low))
        for (low, high), extent, reach in zip(pads, size, reaches, strict=True)
    )
    batched = draw(st.booleans())
    return problem(
        size,
        kernel,
        N=draw(st.sampled_from([0, 1, 2, 5])) if batched else 1,
        C=draw(st.sampled_from([1, 2, 3, 16, 17, 33])),
        K=draw(st.sampled_from([1, 3, 8, 17, 33])),
        groups=draw(st.sampled_from([1, 1, 1, 2, 5])),
        stride=each(st.integers(1, 3)),
        dilation=dilation,
        pads=pads,
        padding_mode=mode,
        layout=draw(st.sampled_from(LAYOUTS_OF[rank])),
        weight_layout=draw(st.sampled_from(WEIGHT_LAYOUTS_OF[rank])),
        dtype=draw(st.sampled_from(dtypes)),
        batched=batched,
    )


@examples(16, 20_000)
@given(problems())
def test_random_problems(p):
    x, dy = inputs(p)
    wide = {"out_dtype": "float32"} if p.itemsize == 2 else {}
    np.testing.assert_array_equal(compute(p, x, dy, **wide), expected(p, x, dy))


@examples(8, 2_000)
@given(problems(dtypes=("float64",)), st.integers(0, 1 << 20))
def test_the_adjoint_identity_holds_exactly(p, seed):
    """<conv(x, w), dy> == <w, dw> == <x, dx>, in integers; dx where padding is zeros."""
    x, dy, w = integers(p, p.input_shape, p.output_shape, p.weight_shape, seed=seed)
    conv, input_grad = (getattr(ic, f"conv{p.rank}d{end}") for end in ("", "_input_grad"))
    y, dw, options = conv(x, w, **options_of(p)), compute(p, x, dy), options_of(p)
    assert np.sum(y * dy) == np.sum(w * dw)
    if options.pop("padding_mode") == "zeros":
        assert np.sum(y * dy) == np.sum(x * input_grad(dy, w, p.input_shape, **options))


@pytest.mark.parametrize(
    "p",
    [
        *(CASES[name] for name in ("rows of channels", "in place", "1x1x1", "depthwise")),
        *(CASES[name] for name in ("small groups", "a signal", "a signal of one channel")),
        PARTS,
        LEVELS,
    ],
    ids=str,
)
def test_bits_do_not_depend_on_threads_or_tiles(p):
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(s).astype("f4") for s in (p.input_shape, p.output_shape))

    def bits(threads):
        with ic.config(num_threads=threads):
            return compute(p, x, dy, precision="strict")

    whole = bits(1)
    for threads in (2, 3):
        np.testing.assert_array_equal(bits(threads), whole)
    made = wgrad.plan(p, cpu_arch(1), Request("strict"))
    for c in made.candidates:
        tiles = [] if c.algorithm == "depthwise" else [(16, 1), (32, 2)]
        for block, chunk in [(c.geometry.tile_c, c.chunk), *tiles]:
            g = c.geometry._replace(tile_c=min(block, c.geometry.C))
            other = replace(c, tiling=Tiling(g, chunk))
            plan = Plan(replace(made, choice=replace(made.choice, candidates=(other,))))
            np.testing.assert_array_equal(plan(x, dy), whole, c.name)


def test_a_case_has_parts_and_another_has_levels():
    """The cases above reach the code for them."""
    parts, levels = (wgrad.plan(p, cpu_arch(1), Request()).best.layout for p in (PARTS, LEVELS))
    assert parts.parts > 1
    assert levels.levels > 1


@pytest.mark.parametrize("name", ["rows of channels", "in place", "depthwise", "1x1x1", "KTRSC"])
def test_arrays_of_any_strides(name):
    p = CASES[name]
    x, dy = inputs(p)
    exact = expected(p, x, dy)

    def spread(array, axis):
        """A copy that is reversed along an axis, where its elements are not contiguous."""
        wide = np.repeat(np.flip(array, axis), 2, axis)
        return np.flip(wide, axis)[(slice(None),) * axis + (slice(None, None, 2),)]

    for axis in range(5):
        shape = tuple(2 * extent for extent in p.weight_shape)
        out = np.full(shape, np.nan, np.float32)[(slice(None, None, 2),) * 5]
        assert compute(p, spread(x, axis), spread(dy, axis), out=out) is out
        np.testing.assert_array_equal(out, exact)
        out = np.flip(np.full(p.weight_shape, np.nan, np.float32), axis)
        np.testing.assert_array_equal(compute(p, x, dy, out=out), exact)


@pytest.mark.parametrize("name", ["rows of channels", "in place", "depthwise", "small groups"])
def test_non_finite_values_show_where_they_belong(name):
    p = CASES[name]
    x, dy = inputs(p)
    dy = abs(dy) + 1
    where = [0, 4, 4, 5]  # the last plane, which not all filter planes read
    where.insert(p.layout.index("C"), 1)
    x[tuple(where)] = np.nan
    read = np.where(np.isnan(x), 1, 0)
    np.testing.assert_array_equal(np.isnan(compute(p, x, dy)), expected(p, read, dy) != 0)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_messages_name_the_arrays(rank):
    function = getattr(ic, f"conv{rank}d_weight_grad")
    plan = getattr(ic, f"plan_conv{rank}d_weight_grad")
    space, taps = (6,) * rank, (3,) * rank
    x, dy = np.ones((1, 4, *space), "f4"), np.ones((1, 8, *(4,) * rank), "f4")
    with pytest.raises(ic.ShapeError, match=r"dy has shape \(1, 7, .* output of shape \(1, 8, "):
        function(x, dy[:, :7], (8, 4, *taps))
    with pytest.raises(ic.DTypeError, match="x is float32 but dy is float64"):
        function(x, dy.astype("f8"), (8, 4, *taps))
    with pytest.raises(TypeError, match="weight_shape must be a shape, not an array"):
        function(x, dy, np.ones((8, 4, *taps)))
    with pytest.raises(TypeError, match="dy_shape must be a shape, not an array"):
        plan(x.shape, dy, (8, 4, *taps))
    made = plan(x.shape, dy.shape, (8, 4, *taps))
    assert f"dy {dy.shape}" in made.explain()
    with pytest.raises(ic.ShapeError, match="dy has shape"):
        made(x, dy[:, :7])
    assert {len(load.coords) for load in made.trace()} == {len(SPACE[rank]) + 2}
