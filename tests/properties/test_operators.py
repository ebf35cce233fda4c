"""Every operator in one to three dimensions, against its definition in float64 or int64."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from sampling import count, sampled
from small_trials import EACH, of_every_operator, small_trial

import implicit_conv as ic
from implicit_conv.problem import reference
from implicit_conv.problem.options import LAYOUTS_OF, SPACE
from implicit_conv.testing import Case
from implicit_conv.testing.check import check, verify
from implicit_conv.testing.draw import Dice, kind_of, trial_of
from implicit_conv.testing.operators import arranged, restored
from implicit_conv.testing.trial import Trial, inputs

of_each_operator = pytest.mark.parametrize(("operator", "rank"), EACH)
TRIALS = 10  # of a kind
IMAGES = 3  # of a kind, whose trials share kernels


@sampled
@pytest.mark.parametrize(("operator", "rank"), [each for each in EACH if each != ("conv", 2)])
def test_random_trials(operator, rank):
    """With all options, dtypes and kinds of arrays; conv2d has tests of its own."""
    for number in range(count(1, 2_000)):
        kind = kind_of(operator, rank, Dice(number, rank))
        for other in range(TRIALS):
            image = kind.trials[other % IMAGES]
            check(trial_of(kind, image, Dice(number, rank, other), threads=3))


@sampled
@pytest.mark.parametrize("rank", SPACE)
def test_gradients_are_adjoint(rank):
    """<conv(x, w), dy> = <x, input_grad(dy, w)> = <w, weight_grad(x, dy)>, in exact integers."""
    for number in range(count(1, 2_000)):
        trial = kind_of("input_grad", rank, Dice(number, 7, rank)).trials[0]
        case = replace(trial.case, dtype="float64")
        rng = np.random.default_rng(number)
        shapes = case.shapes.items()
        arrays = {role: rng.integers(-3, 4, shape).astype(float) for role, shape in shapes}
        products = set()
        for operator in ("conv", "input_grad", "weight_grad"):
            call = Trial(case, operator, padding=case.padding)
            result = call.call(*(arranged(case, role, arrays[role]) for role in call.roles))
            products.add(
                (restored(case, call.made.result, result) * arrays[call.made.result]).sum()
            )
        assert len(products) == 1


@pytest.mark.parametrize("rank", SPACE)
@pytest.mark.parametrize("name", ["same", "same_lower", "SAME_UPPER"])
def test_named_paddings_are_those_of_onnx(rank, name):
    """ConvTranspose with auto_pad; its formula of total_padding, and how an odd pixel is shared."""
    for number in range(count(6, 500)):
        rng = np.random.default_rng(number)
        size, kernel, stride, dilation = (rng.integers(1, most, rank) for most in (5, 5, 5, 4))
        added = rng.integers(0, np.maximum(stride, dilation))
        total = stride * (size - 1) + added + (kernel - 1) * dilation + 1 - stride * size
        less, more = np.maximum(total, 0) // 2, np.maximum(total, 0) - np.maximum(total, 0) // 2
        low, high = (more, less) if name == "same_lower" else (less, more)
        x = rng.integers(-3, 4, (1, 2, *size)).astype("float32")
        w = rng.integers(-3, 4, (2, 3, *kernel)).astype("float32")
        steps = {"stride": tuple(stride.tolist()), "dilation": tuple(dilation.tolist())}
        pads = list(zip(low.tolist(), high.tolist(), strict=True))
        shape = (1, 3, *(stride * size).tolist())
        function = getattr(ic, f"conv_transpose{rank}d")
        y = function(x, w, padding=name, output_padding=tuple(added.tolist()), **steps)
        np.testing.assert_array_equal(y, reference.input_grad(x, w, shape, pads=pads, **steps))


@pytest.mark.parametrize("rank", SPACE)
def test_an_output_size_decides_the_output_padding(rank):
    x, w = np.ones((1, 2, *[3] * rank), np.float32), np.ones((2, 4, *[2] * rank), np.float32)
    function = getattr(ic, f"conv_transpose{rank}d")
    for more in range(3):
        sized = function(x, w, stride=3, output_size=8 + more)
        np.testing.assert_array_equal(sized, function(x, w, stride=3, output_padding=more))
        assert sized.shape == (1, 4, *[8 + more] * rank)


def resized(trial, **extents):
    """The trial with other numbers of images, channels or filters."""
    return replace(trial, case=replace(trial.case, **extents))


@of_every_operator
def test_copies_of_plans_and_packed_filters(trial):
    """They compute what the originals do, and read the same packed filters."""
    given, plan = inputs(trial), trial.plan()
    second = given.second if trial.made.result == "w" else plan.pack(given.second)
    expected = trial.call(given.first, given.second)
    copies = copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))
    for duplicate in copies:
        assert duplicate(plan) == plan
        np.testing.assert_array_equal(duplicate(plan)(given.first, duplicate(second)), expected)


@of_every_operator
def test_strict_bits_do_not_depend_on_threads(trial):
    trial = replace(trial, values="normal", precision="strict")
    given = inputs(trial)
    expected = trial.call(given.first, given.second)
    verify(trial, given, expected)
    for threads in (1, 2, 3):
        with ic.config(num_threads=threads):
            np.testing.assert_array_equal(trial.call(given.first, given.second), expected)
            for n in range(trial.case.N if trial.made.result != "w" else 0):
                one = resized(trial, N=1).call(given.first[n : n + 1], given.second)
                np.testing.assert_array_equal(one, expected[n : n + 1])


SUMMED = {"conv": "C", "conv_transpose": "K", "input_grad": "K", "weight_grad": "N"}


@of_every_operator
def test_empty_sums_and_empty_results(trial):
    """Sums without terms are zero: what is left is the bias."""
    nothing = replace(resized(trial, **{SUMMED[trial.operator]: 0}), biased=trial.made.epilogue)
    check(nothing)
    for extent in {"N", "C", "K"} - {SUMMED[trial.operator]}:
        empty = resized(trial, **{extent: 0})
        check(empty)
        check(replace(empty, packed=True))


def test_filters_without_results_are_packed():
    """Their strides were once compared with those of the first filter, which is missing."""
    dy, w = np.ones((1, 5, 4, 4), np.float32), np.ones((5, 1, 3, 3), np.float32)[:, :0]
    plan = ic.plan_conv2d_input_grad(dy.shape, w.shape, (1, 0, 6, 6))
    assert plan(dy, plan.pack(w)).shape == (1, 0, 6, 6)


@pytest.mark.parametrize("operator", SUMMED)
@pytest.mark.parametrize("stride", [1, 2])
def test_signals_rows_and_columns_have_the_same_bits(operator, stride):
    """The long axis is the row, in whichever axis of an image it is."""
    line = Case(
        N=2,
        C=20,
        K=37,
        size=(50,),
        kernel=(5,),
        stride=(stride,),
        dilation=(1,),
        padding=((2, 1),),
        layout="NCW",
        weight_layout="KCS",
    )
    signal = Trial(line, operator, padding=line.padding, values="normal")
    given = inputs(signal)
    expected = signal.call(given.first, given.second)
    neutral = {"size": 1, "kernel": 1, "stride": 1, "dilation": 1, "padding": (0, 0)}
    for axis in (2, 3):
        extents = {
            name: (*getattr(line, name), one) if axis == 3 else (one, *getattr(line, name))
            for name, one in neutral.items()
        }
        image = replace(line, layout="NCHW", weight_layout="KCRS", **extents)
        operands = (np.expand_dims(array, axis) for array in (given.first, given.second))
        result = Trial(image, operator, padding=image.padding).call(*operands)
        np.testing.assert_array_equal(result.squeeze(axis), expected)


@of_each_operator
def test_operands_that_repeat_their_elements(operator, rank):
    """Taps of a broadcast filter share elements: packing once wrote only the last of them."""
    case = replace(small_trial(operator, rank).case, groups=1, layout=LAYOUTS_OF[rank][0])
    trial = Trial(replace(case, stride=(1,) * rank), operator, padding=case.padding)
    given = inputs(trial)
    for axis in range(2, 2 + rank):
        repeated = np.broadcast_to(given.second.take([0], axis), given.second.shape)
        other = given._replace(second=repeated)
        verify(trial, other, trial.call(other.first, other.second))


def test_a_residual_and_a_scale_where_some_pixels_have_no_tap():
    """The pixels of the only phase are not contiguous: they were once finished in whole vectors."""
    x, w = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 1), np.float32)
    residual = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    y = ic.conv_transpose1d(
        x, w, stride=2, output_padding=1, scale=np.array([-1.0]), residual=residual
    )
    np.testing.assert_array_equal(y[0, 0], np.arange(8) - np.tile([1, 0], 4))


def test_a_residual_and_a_scale_with_a_stride_along_an_axis_of_one_pixel():
    """The phase has all pixels: the stride of the axis was once taken for gaps between them."""
    x, w = np.ones((1, 1, 4, 1), np.float32), np.ones((1, 1, 1, 3), np.float32)
    options = {"stride": (1, 2), "padding": ((0, 0), (3, 0)), "output_padding": (0, 1)}
    residual = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    y = ic.conv_transpose2d(x, w, scale=np.array([-1.0]), residual=residual, **options)
    np.testing.assert_array_equal(y, residual - ic.conv_transpose2d(x, w, **options))


@pytest.mark.parametrize("filters", [1, 40])
def test_rows_are_spread_with_every_stride(filters):
    """More than a vector of pixels, of one filter and of several vectors of them."""
    for stride in (2, 3, 4, 5):
        line = Case(
            C=filters,
            K=3,
            size=(39 * stride + 3,),
            kernel=(3,),
            stride=(stride,),
            dilation=(1,),
            padding=((0, 0),),
            layout="NCW",
            weight_layout="KCS",
        )
        check(Trial(line, "conv_transpose", seed=stride))
