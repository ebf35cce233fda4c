"""Numbers from the edges of int64 for every numeric argument: a right answer, or a clear error.

Nothing crashes, hangs or takes much memory, whatever the number. tests/tma/test_absurd_maps.py has
the functions of the laboratory.
"""

import math
from itertools import product

import numpy as np
import pytest
from edges import EDGES, SMALL, answer, numbers
from hypothesis import assume, example, given
from hypothesis import strategies as st
from sampling import examples

import implicit_conv as ic
from implicit_conv import settings
from implicit_conv.kernels.cpu.depthwise.layout import row_pieces, row_shapes
from implicit_conv.kernels.geometry import CIRCULAR, REFLECT, ZEROS, Geometry

CHEAP = 1 << 16  # operations of a convolution that is computed, at most
COLUMNS = 1 << 10  # elements of a matrix of windows, at most
LONG = 20_000  # characters of an explanation, at most
WORDS = (  # how messages name arguments that are not keywords
    *("x has", "w has", "y has", "an extent of", "x with its padding", "the output has no pixels"),
    *("matrix of windows", "kernel", "cols", "input_shape"),
)


def per_axis(number):
    """A number for both axes, or one for each."""
    return st.one_of(number, st.tuples(number, number), st.lists(number, min_size=2, max_size=2))


@st.composite
def window_options(draw, steps=(1, 2)):
    """Some of the options that conv2d and im2col share; strides and dilations are often `steps`."""
    number = numbers(0, 1, 2)
    names = st.sampled_from(["valid", "same", "same_lower", "full", "causal"])
    found = {
        "stride": per_axis(numbers(*steps)),
        "padding": st.one_of(per_axis(number), st.tuples(*[st.tuples(number, number)] * 2), names),
        "dilation": per_axis(numbers(*steps)),
        "layout": st.sampled_from(["NCHW", "NHWC"]),
    }
    kept = draw(st.sets(st.sampled_from(sorted(found))))
    return {name: draw(found[name]) for name in sorted(kept)}


@st.composite
def problems(draw, long=EDGES):
    """Shapes of x and w that match more often than not, and options.

    Some extents are taken from `long`.
    """
    options = draw(window_options((1, 2, 2**16, 2**31 - 1)))
    groups = draw(numbers(1, 2))
    usual = {
        "N": (1, 2),
        "C": (2, 4),
        "K": (2, 4),
        "H": (3, 5),
        "W": (3, 5),
        "R": (1, 2),
        "S": (1, 2),
    }
    extents = {axis: draw(numbers(*few, unusual=long)) for axis, few in usual.items()}
    channels = extents["C"] // 2 if groups == 2 else extents["C"]
    if draw(st.booleans()):
        options["groups"] = groups
    x = tuple(extents[letter] for letter in options.get("layout", "NCHW"))
    w = (extents["K"], channels, extents["R"], extents["S"])
    return (x if draw(st.booleans()) else x[1:]), w, options


@examples(200, 20_000)
@given(
    drawn=problems(),
    device=st.sampled_from([None, None, "sm_80", "sm_90a", "sm_120"]),
    dtype=st.sampled_from(["float32", "float16"]),
    threads=st.sampled_from([1, settings.MOST_THREADS]),
)
def test_plans(drawn, device, dtype, threads):
    """A plan is made and explained at once, and all its numbers fit in int64."""
    x_shape, w_shape, options = drawn
    with pytest.MonkeyPatch.context() as patch, ic.config(num_threads=threads):
        patch.setattr("implicit_conv.problem.schedule.MOST_LOADS", 1000)
        choices = {"dtype": dtype, "device": device, **options}
        plan = answer(ic.plan_conv2d, x_shape, w_shape, words=WORDS, **choices)
        if plan is None:
            return
        assert len(plan.explain()) < LONG
        answer(plan.trace, words=["lists at most 1000"])
    assert plan.peak_bytes < 2**62
    for candidate in plan.candidates:
        assert max(map(abs, candidate.geometry)) < 2**63
        if device is None:
            assert max(candidate.workspace_bytes, candidate.packed.bytes) < 2**62


def spread(shape):
    """An array of small integers that repeats a single element along long axes."""
    held = [extent if extent <= 5 else 1 for extent in shape]
    values = np.arange(math.prod(held), dtype=np.float32) % 7 - 3
    try:
        return np.broadcast_to(values.reshape(held), shape)
    except ValueError:  # numpy has no array of this size
        assume(False)


def convolved(x, w, problem):
    """The convolution by its definition, in Python's integers; x is in N, C, H, W order."""
    y = np.zeros((problem.N, problem.K, *problem.output))
    k, c = problem.K // problem.groups, problem.C // problem.groups
    for p, q, r, s in product(*map(range, (*problem.output, *problem.kernel))):
        row = p * problem.stride[0] + r * problem.dilation[0] - problem.pad_lo[0]
        column = q * problem.stride[1] + s * problem.dilation[1] - problem.pad_lo[1]
        if not (0 <= row < problem.size[0] and 0 <= column < problem.size[1]):
            continue
        for g in range(problem.groups):
            own = slice(g * k, (g + 1) * k)
            y[:, own, p, q] += x[:, g * c : (g + 1) * c, row, column] @ w[own, :, r, s].T
    return y


def test_the_call_that_crashed():
    x, w = np.ones((1, 8, 5, 5), np.float32), np.ones((20, 8, 3, 3), np.float32)
    with pytest.raises(ic.ShapeError, match=rf"stride is {2**61}; .* at most {2**31 - 1}"):
        ic.conv2d(x, w, padding=2**61, stride=2**61)


@examples(200, 10_000)
@given(drawn=problems(long=(0, 2**16, 2**20, 2**33, 2**45)))
@example(drawn=((1, 8, 5, 5), (20, 8, 3, 3), {"padding": 2**61, "stride": 2**61}))
@example(drawn=((1, 8, 5, 5), (20, 8, 3, 3), {"padding": 2**62, "stride": 2**62}))
@example(drawn=((1, 1, 2**40, 64), (1, 1, 1, 1), {"stride": (2**31 - 1, 60)}))
@example(drawn=((1, 2, 4, 5), (3, 2, 2, 3), {"padding": (2**31 - 1, 2), "stride": 2**31 - 1}))
@example(drawn=((1, 2, 5, 5), (3, 2, 2, 3), {"padding": 2**21, "stride": 2**21}))
@example(drawn=((1, 2, 5, 5), (3, 2, 2, 2), {"padding": 2**20, "dilation": 2**21}))
@example(drawn=((1, 2, 5, 5), (3, 2, 2, 2), {"padding": ((2**30, 4), (2**9, -(2**9)))}))
def test_calls(drawn):
    """Long arrays repeat one element. Convolutions that are cheap are computed."""
    x_shape, w_shape, options = drawn
    x, w = spread(x_shape), spread(w_shape)
    plan = answer(ic.plan_conv2d, x.shape, w.shape, words=WORDS, **options)
    if plan is None:
        assert answer(ic.conv2d, x, w, words=WORDS, **options) is None
        return
    problem = plan.problem
    steps = math.prod((*problem.output, *problem.kernel))
    assume(max(steps, problem.flops) <= CHEAP and plan.peak_bytes <= 1024 * CHEAP)
    y = ic.conv2d(x, w, **options)
    axes = (0, 3, 1, 2) if problem.layout == "NHWC" else (0, 1, 2, 3)
    images = (1,) * (not problem.batched)
    pixels = x.reshape(images + problem.input_shape).transpose(axes)
    y = y.reshape(images + problem.output_shape).transpose(axes)
    np.testing.assert_array_equal(y, convolved(pixels, w, problem))


@examples(200, 5000)
@given(
    extents=st.tuples(*[st.sampled_from([1, 2, 5])] * 4),
    kernel=per_axis(numbers(1, 2)),
    options=window_options(),
    shape=st.one_of(numbers(1), st.lists(numbers(1, 2, 5), min_size=2, max_size=5)),
)
def test_columns(extents, kernel, options, shape):
    """A matrix of windows is the convolution with one filter for each of its columns."""
    x = spread(extents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("implicit_conv.problem.parse.MOST_ELEMENTS", COLUMNS)
        columns = answer(ic.im2col, x, kernel, words=WORDS, **options)
    if columns is None:
        return
    taps = tuple(kernel) if isinstance(kernel, (tuple, list)) else (kernel, kernel)
    axes = (0, 3, 1, 2) if options.get("layout") == "NHWC" else (0, 1, 2, 3)
    pixels = x.transpose(axes)
    width = columns.shape[1]
    w = np.eye(width).reshape(width, pixels.shape[1], *taps)
    problem = ic.plan_conv2d(x.shape, w.shape, **options).problem
    expected = convolved(pixels, w, problem).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(columns, expected.reshape(-1, width))
    back = ic.col2im(columns, x.shape, kernel, **options)
    assert (back * x).sum() == (columns**2).sum()
    other = answer(ic.col2im, columns, shape, kernel, words=WORDS, **options)
    assert other is None or other.shape == tuple(shape)


NAMES = ("residual", "out", "layout", "weight_layout", "precision", "algorithm")


@examples(100, 1000)
@given(number=st.sampled_from((*EDGES, *SMALL[1:])))
def test_numbers_in_place_of_arrays_and_names(number):
    x, w = np.ones((1, 2, 4, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    plan = ic.plan_conv2d(x.shape, w.shape)
    for call, name in (
        (lambda: plan(number, w), "x"),
        (lambda: plan(x, number), "w"),
        (lambda: plan.pack(number), "w"),
        (lambda: ic.conv2d(number, w), "x"),
        (lambda: ic.conv2d(x, number), "w"),
        (lambda: ic.im2col(number, 1), "x"),
        (lambda: ic.col2im(number, (1, 1, 1, 1), 1), "cols"),
    ):
        assert answer(call, words=[f"{name} is", f"{name} has", f"{name} must be"]) is None
    for name in (*NAMES, "activation", "device"):
        assert answer(ic.conv2d, x, w, **{name: number}) is None
    with np.errstate(over="ignore"):  # one number is a bias of all filters
        expected = ic.conv2d(x, w) + np.float32(number)
        y = answer(ic.conv2d, x, w, bias=number)
    assert y is None or np.array_equal(y, expected, equal_nan=True)
    for name in ("x_shape", "w_shape", "dtype", "out_dtype"):
        if name.endswith("dtype") and isinstance(number, np.float32):
            continue  # numpy takes it for its dtype
        arguments = {"x_shape": x.shape, "w_shape": w.shape, name: number}
        assert answer(ic.plan_conv2d, words=["as a data type"], **arguments) is None


@examples(100, 1000)
@given(
    name=st.sampled_from(["leaky_relu", "clamp"]),
    parameters=st.lists(numbers(*SMALL, 2**2000), max_size=3),
)
def test_parameters_of_activations(name, parameters):
    x = np.arange(-3, 3, dtype=np.float32).reshape(1, 1, 1, 6)
    activation = (name, *parameters)
    y = answer(ic.conv2d, x, np.ones((1, 1, 1, 1), np.float32), activation=activation)
    if y is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = np.array(list(map(float, parameters))).astype(np.float32)
        expected = np.where(x < 0, x * bounds[0], x) if name == "leaky_relu" else x.clip(*bounds)
    np.testing.assert_array_equal(y, expected)


@examples(100, 1000)
@given(number=st.sampled_from((*EDGES, *SMALL)))
def test_thread_counts(number):
    def configured():
        with ic.config(num_threads=number) as chosen:
            return chosen.num_threads

    threads = answer(configured, words=["num_threads"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMPLICIT_CONV_NUM_THREADS", str(number))
        read = answer(settings._from_environment.__wrapped__, words=["NUM_THREADS"])
    for count in (threads, read and read.num_threads):
        assert count is None or (1 <= count <= settings.MOST_THREADS and count == number)


@pytest.mark.parametrize("text", ["4097", "1" * 5000, "-1", "0", "1e3", "²"])
def test_thread_counts_of_the_environment(text, monkeypatch):
    monkeypatch.setenv("IMPLICIT_CONV_NUM_THREADS", text)
    with pytest.raises(ValueError, match=r"NUM_THREADS=.* must be an integer from 1 to 4096"):
        settings._from_environment.__wrapped__()


@examples(300, 10_000)
@given(
    taps=st.integers(1, 9),
    stride=st.integers(1, 2),
    size=st.integers(1, 60),
    pads=st.tuples(*[st.integers(-9, 40)] * 2),
    tile=st.tuples(st.integers(1, 20), st.integers(1, 14)),
    mode=st.sampled_from([ZEROS, ZEROS, REFLECT, CIRCULAR]),
)
def test_a_rows_shapes_are_those_of_all_its_pieces(taps, stride, size, pads, tile, mode):
    """They are found without a look at every load tile, of which absurd rows have too many."""
    if mode != ZEROS:  # rows with more padding than this have no kernels that take a row at once
        pads = tuple(min(pad, taps - 1) for pad in pads)
        assume(size + min(0, pads[0]) + min(0, pads[1]) >= 1)
    columns = (size + sum(pads) - taps) // stride + 1
    assume(columns >= 1)
    sizes = {"S": taps, "stride_w": stride, "W": size, "pad_w": pads[0], "Q": columns}
    tiles = {"tile_q": min(tile[0], columns), "tile_m": tile[1], "padding_mode": mode}
    g = Geometry(**{**dict.fromkeys(Geometry._fields, 1), **sizes, **tiles})
    assert row_shapes(g) == sorted({piece.shape for row in row_pieces(g) for piece in row})
