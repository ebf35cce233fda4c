"""Every operator in one to three dimensions, against its definition in float64 or int64."""

import copy
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from operator_calls import CONV, GRADIENT, TRANSPOSED, Call
from sampling import count, examples, sampled

import implicit_conv as ic
from implicit_conv import reference
from implicit_conv.arrays import numpy_dtype
from implicit_conv.options import (
    FLOAT_DTYPES,
    INTEGER_RANGES,
    LAYOUTS_OF,
    SPACE,
    WEIGHT_LAYOUTS_OF,
)
from implicit_conv.testing import error_units
from implicit_conv.testing.storage import STORAGES, WRITABLE, stored

# conv2d has tests of its own.
FAMILIES = [
    (CONV, 1),
    (CONV, 3),
    *((name, rank) for name in (TRANSPOSED, GRADIENT) for rank in SPACE),
]
of_each_family = pytest.mark.parametrize(
    ("family", "rank"), FAMILIES, ids=[name.format(rank) for name, rank in FAMILIES]
)
DIRECT_UNITS = 16  # the error that conv2d promises for direct sums of normal numbers
ACTIVATIONS = {  # exact for integers
    None: lambda sums: sums,
    "relu": lambda sums: np.maximum(sums, 0),
    ("clamp", -3.0, 5.0): lambda sums: np.clip(sums, -3, 5),
    ("leaky_relu", 0.5): lambda sums: np.where(sums < 0, sums / 2, sums),
}


@st.composite
def calls(draw, family, rank):
    """Few extents by default, since each tile of another height has a kernel of its own."""

    def axes(*values):
        return tuple(draw(st.sampled_from(values)) for _ in range(rank))

    pad = st.sampled_from([-2, -1, 0, 0, 1, 2, 5])
    wide = draw(st.booleans())  # more than two vectors of channels
    floats = count(("float32", "float32", "float64"), FLOAT_DTYPES)
    integers = () if family == GRADIENT else count(("int8",), tuple(INTEGER_RANGES))
    dtype = draw(st.sampled_from((*floats, *integers)))
    stride, dilation = axes(1, 2, 3, *count((), (4,))), axes(1, 1, 2, *count((), (3,)))
    call = Call(
        family,
        size=(*axes(1, 3, 4)[1:], draw(st.sampled_from([1, 2, 7, 19]))),
        kernel=axes(1, 2, 3, *count((), (4, 5))),
        stride=stride,
        dilation=dilation,
        padding=tuple((draw(pad), draw(pad)) for _ in range(rank)),
        output_padding=tuple(
            draw(st.integers(0, max(pair) - 1)) for pair in zip(stride, dilation, strict=True)
        )
        if family == TRANSPOSED
        else (),
        N=draw(st.sampled_from([1, 1, 2, 3])),
        C=draw(st.sampled_from([33, 40, 70] if wide else [1, 2, 3, 17])),
        K=draw(st.sampled_from([33, 40, 70] if wide else [1, 2, 5, 17])),
        groups=draw(st.sampled_from([1, 1, 1, 2, 3])),
        layout=draw(st.sampled_from(LAYOUTS_OF[rank])),
        dtype=dtype,
        w_dtype=draw(st.sampled_from(integers)) if dtype in INTEGER_RANGES else None,
    )
    order = draw(st.sampled_from(WEIGHT_LAYOUTS_OF[rank]))
    swapped = str.maketrans("CK", "KC") if family == TRANSPOSED and draw(st.booleans()) else {}
    assume(min(call.output) >= 1)
    return replace(call, weight_layout=order.translate(swapped))


@dataclass(frozen=True)
class Use:
    """How an operator is called, and what is added to its sums."""

    scaled: bool = False
    biased: bool = False
    added: bool = False
    activation: object = None
    out: str = ""  # how `out` is stored, one of WRITABLE, or none
    storages: tuple = ("contiguous", "contiguous")
    packed: bool = False
    unbatched: bool = False
    threads: int = 1
    precision: str = "standard"
    seed: int = 0


@st.composite
def uses(draw, family):
    common = {
        "out": draw(st.sampled_from(["", "", *WRITABLE])),
        "storages": tuple(draw(st.sampled_from(["contiguous", *STORAGES])) for _ in range(2)),
        "packed": draw(st.booleans()),
        "unbatched": draw(st.booleans()),
        "threads": draw(st.sampled_from([1, 2, 3])),
        "precision": draw(st.sampled_from(["standard", "standard", "strict"])),
        "seed": draw(st.integers(0, 2**31)),
    }
    if family == GRADIENT:
        return Use(**common)
    finish = {name: draw(st.booleans()) for name in ("scaled", "biased", "added")}
    return Use(**finish, activation=draw(st.sampled_from(list(ACTIVATIONS))), **common)


@sampled
@of_each_family
def test_integers_are_exact(family, rank):
    @examples(7, 20_000)
    @given(call=calls(family, rank), use=uses(family))
    def check(call, use):
        assert_exact(call, use)

    check()


def assert_exact(call, use):
    """Whatever is added to the sums, the result is rounded once."""
    rng = np.random.default_rng(use.seed)
    first, w = stored_operands(call, use.storages, rng)
    sums = call.sums(call.restore(first), call.restore_filter(w))
    options = {"precision": use.precision, "activation": use.activation}
    if call.is_integer and (use.scaled or use.activation == ("leaky_relu", 0.5)):
        options["out_dtype"] = "float64"
    options = {name: value for name, value in options.items() if value}
    plan = call.plan(**options)
    dtype = numpy_dtype(plan.engine.out_dtype)
    sums, arrays = finished(call, use, sums, dtype, rng)
    if use.unbatched and call.N == 1:
        first = first[0]
        for name in {"residual", "out"} & set(arrays):
            arrays[name] = arrays[name][0]
    with ic.config(num_threads=use.threads):
        if use.packed and first.ndim == call.rank + 2:
            plan = call.plan(**options)
            result = plan(first, plan.pack(w), **arrays)
        else:
            result = call.function(**options)(first, w, **arrays)
    assert result is arrays.get("out", result)
    assert result.dtype.newbyteorder("=") == dtype
    if not call.is_integer and dtype != "float64":
        sums = sums.astype("float32")
    result = call.restore(result if result.ndim == call.rank + 2 else result[None])
    np.testing.assert_array_equal(result.astype(float), sums.astype(dtype).astype(float))


def stored_operands(call, storages, rng):
    first, w = call.inputs(rng)
    for array, storage in (
        (call.arrange(first), storages[0]),
        (call.arrange_filter(w), storages[1]),
    ):
        yield stored(array, "contiguous" if array.dtype == "bfloat16" else storage, rng)


def finished(call, use, sums, dtype, rng):
    """(The result in exact arithmetic, the arrays besides both operands)."""
    arrays = {}
    vector = (sums.shape[1], *[1] * call.rank)
    if use.scaled:
        arrays["scale"] = rng.choice([0.5, -1.0, 2.0, 0.25], sums.shape[1])
        sums = sums * arrays["scale"].reshape(vector)
    if use.biased:
        arrays["bias"] = rng.integers(-9, 10, sums.shape[1])
        sums = sums + arrays["bias"].reshape(vector)
    if use.added:
        residual = rng.integers(-9, 10, sums.shape)
        arrays["residual"] = call.arrange(residual).astype(dtype)
        sums = sums + residual
    if use.out:
        unwritten = np.nan if dtype.kind != "i" else 77
        blank = call.arrange(np.full(sums.shape, unwritten).astype(dtype))
        arrays["out"] = stored(blank, use.out if dtype != "bfloat16" else "strided", rng)
    return ACTIVATIONS[use.activation](sums), arrays


@sampled
@of_each_family
def test_floats_are_within_the_error_that_is_promised(family, rank):
    @examples(2, 2_000)
    @given(call=calls(family, rank), seed=st.integers(0, 2**31))
    def check(call, seed):
        assume(not call.is_integer)
        first, w = call.inputs(np.random.default_rng(seed), normal=True)
        result = call.function(precision="strict")(call.arrange(first), call.arrange_filter(w))
        found = call.restore(result), call.sums(first, w), call.sums(first, w, magnitude=True)
        assert error_units(*found, call.dtype) <= DIRECT_UNITS

    check()


@sampled
@pytest.mark.parametrize("rank", SPACE)
def test_the_input_gradient_is_the_adjoint(rank):
    """<conv(x, w), dy> = <x, input_grad(dy, w)>, in integers that are exact."""

    @examples(3, 2_000)
    @given(call=calls(GRADIENT, rank), seed=st.integers(0, 2**31))
    def check(call, seed):
        rng = np.random.default_rng(seed)
        dy, w = call.inputs(rng)
        x = rng.integers(-2, 3, call.shapes[2]).astype(dy.dtype)
        filters = call.arrange_filter(w)
        y = replace(call, family=CONV).function()(call.arrange(x), filters)
        dx = call.function()(call.arrange(dy), filters)
        forward, backward = (
            (call.restore(result).astype("int64") * array.astype("int64")).sum()
            for result, array in ((y, dy), (dx, x))
        )
        assert forward == backward or call.dtype in ("float16", "bfloat16")  # results are rounded

    check()


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


# Stride 3 gives phases of all kinds: with two taps, with one, and pixels that no tap reaches.
SHAPES = {
    1: {"size": (29,), "kernel": (2,), "stride": (3,), "dilation": (1,), "padding": ((1, 0),)},
    2: {"size": (5, 9), "kernel": (4, 2), "stride": (3, 3), "dilation": (1, 2)},
    3: {"size": (3, 4, 6), "kernel": (2, 3, 2), "stride": (2, 1, 3), "dilation": (1, 1, 1)},
}
WIDE = [
    Call(
        family,
        **{"padding": ((0, 1),) * rank, **SHAPES[rank]},
        output_padding=(0,) * rank if family == TRANSPOSED else (),
        N=3,
        C=20,
        K=37,
        groups=2,
        layout=LAYOUTS_OF[rank][rank % 2],
    )
    for family, rank in FAMILIES
]
of_wide_calls = pytest.mark.parametrize(
    "call", WIDE, ids=[call.family.format(call.rank) for call in WIDE]
)


def arranged(call, seed=0, normal=False):
    """Both operands in the layouts of the call."""
    first, w = call.inputs(np.random.default_rng(seed), normal)
    return call.arrange(first), call.arrange_filter(w)


@of_wide_calls
def test_copies_of_plans_and_packed_filters(call):
    """They compute what the originals do, and read the same packed filters."""
    first, w = arranged(call)
    plan = call.plan()
    packed = plan.pack(w)
    expected = call.function()(first, w)
    copies = copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))
    for duplicate in copies:
        assert duplicate(plan) == plan
        np.testing.assert_array_equal(duplicate(plan)(first, duplicate(packed)), expected)


@of_wide_calls
def test_strict_bits_do_not_depend_on_threads(call):
    first, w = arranged(call, normal=True)
    results = []
    for threads in (1, 2, 3):
        with ic.config(num_threads=threads):
            results.append(call.function(precision="strict")(first, w))
            for n in range(call.N):
                one = replace(call, N=1).function(precision="strict")(first[n : n + 1], w)
                np.testing.assert_array_equal(one, results[0][n : n + 1])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@of_wide_calls
def test_no_channels_and_empty_batches(call):
    """Sums without terms are zero: what is left is the bias."""
    summed = "K" if call.family == GRADIENT else "C"
    nothing = replace(call, **{summed: 0})
    bias = np.arange(nothing.shapes[2][1]) - 5.0
    arrays = {} if call.family == GRADIENT else {"bias": bias}
    result = call.restore(nothing.function()(*arranged(nothing), **arrays))
    expected = bias.reshape(-1, *[1] * call.rank) if arrays else 0.0
    np.testing.assert_array_equal(result, np.broadcast_to(expected, nothing.shapes[2]))
    empty = replace(call, N=0)
    result = empty.function()(*arranged(empty))
    assert result.shape == empty.shape_of(empty.shapes[2]) and result.size == 0


@pytest.mark.parametrize("family", [CONV, TRANSPOSED, GRADIENT])
@pytest.mark.parametrize("stride", [1, 2])
def test_signals_rows_and_columns_have_the_same_bits(family, stride):
    """The long axis is the row, in whichever axis of an image it is."""
    line = Call(
        family,
        size=(50,),
        kernel=(5,),
        stride=(stride,),
        dilation=(1,),
        padding=((2, 1),),
        output_padding=(0,) if family == TRANSPOSED else (),
        N=2,
        C=20,
        K=37,
    )
    first, w = arranged(line, normal=True)
    expected = line.function()(first, w)
    names = "size", "kernel", "stride", "dilation", "output_padding"
    neutral = {"size": 1, "kernel": 1, "stride": 1, "dilation": 1, "output_padding": 0}
    for axis in (2, 3):
        extents = {name: getattr(line, name) for name in names}
        both = {
            name: own and ((*own, neutral[name]) if axis == 3 else (neutral[name], *own))
            for name, own in extents.items()
        }
        padding = (*line.padding, (0, 0)) if axis == 3 else ((0, 0), *line.padding)
        image = replace(line, padding=padding, **both)
        y = image.function()(np.expand_dims(first, axis), np.expand_dims(w, axis))
        np.testing.assert_array_equal(y.squeeze(axis), expected)


@pytest.mark.parametrize(("family", "rank"), [(CONV, 2), *FAMILIES])
def test_filters_that_repeat_their_elements(family, rank):
    """Taps of a broadcast filter share elements: packing once wrote only the last of them."""
    for axis in range(2, 2 + rank):
        call = Call(family, *[(n,) * rank for n in (9, 3, 1, 1)], padding=((0, 0),) * rank, C=20)
        call = replace(call, K=40, output_padding=(0,) * rank if family == TRANSPOSED else ())
        first, w = call.inputs(np.random.default_rng(0))
        repeated = np.broadcast_to(w.take([0], axis), w.shape)
        np.testing.assert_array_equal(call.function()(first, repeated), call.sums(first, repeated))


def test_a_residual_and_a_scale_where_some_pixels_have_no_tap():
    """The pixels of the only phase are not contiguous: they were once finished in whole vectors."""
    x, w = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 1), np.float32)
    residual = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    y = ic.conv_transpose1d(
        x, w, stride=2, output_padding=1, scale=np.array([-1.0]), residual=residual
    )
    np.testing.assert_array_equal(y[0, 0], np.arange(8) - np.tile([1, 0], 4))


@pytest.mark.parametrize("filters", [1, 40])
def test_rows_are_spread_with_every_stride(filters):
    """More than a vector of pixels, of one filter and of several vectors of them."""
    for stride in (2, 3, 4, 5):
        steps = {"stride": (stride,), "dilation": (1,), "padding": ((0, 0),)}
        line = Call(TRANSPOSED, (40,), (3,), **steps, output_padding=(0,), C=3, K=filters)
        first, w = line.inputs(np.random.default_rng(stride))
        np.testing.assert_array_equal(line.function()(first, w), line.sums(first, w))
