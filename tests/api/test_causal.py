"""CausalConv1d: chunks and steps are the whole signal's result, bit by bit."""

import pickle

import numpy as np
import pytest

import implicit_conv as ic

SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 80)]
DTYPES = ("float32", "float64", "float16", "int8", "complex64")


class Draw:
    """Drawn options, filter and signal."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.rng, pick = rng, rng.choice
        groups = int(pick([1, 1, 2, 4]))
        channels, filters = groups * int(pick([1, 2, 8])), groups * int(pick([1, 2, 5, 16]))
        taps, dtype = int(rng.integers(1, 9)), DTYPES[seed % len(DTYPES)]
        self.options = {
            "stride": int(pick([1, 1, 2, 3])),
            "dilation": int(pick([1, 2, 3])),
            "groups": groups,
            "activation": None if dtype in ("int8", "complex64") else pick([None, "relu"]),
            "weight_layout": str(pick(["KCS", "KSC", "SCK"])),
        }
        size = int(rng.integers(1, pick([20, 200])))
        batch = [int(pick([1, 3]))] if pick([False, True]) else []
        self.x = self.values((*batch, channels, size), dtype)
        shape = {"K": filters, "C": channels // groups, "S": taps}
        self.w = self.values([shape[axis] for axis in self.options["weight_layout"]], dtype)
        self.options["bias"] = None if dtype == "int8" else self.values([filters], dtype)

    def values(self, shape, dtype):
        values = self.rng.standard_normal(shape) * (20 if dtype == "int8" else 1)
        if dtype == "complex64":
            values = values + 1j * self.rng.standard_normal(shape)
        return values.astype(dtype)

    def cuts(self):
        """Chunks of any sizes, empty ones too."""
        size = self.x.shape[-1]
        cuts = np.sort(self.rng.integers(0, size + 1, self.rng.integers(0, 9)))
        return np.split(self.x, cuts, axis=-1)


@pytest.mark.parametrize("seed", [*range(12), *SLOW])
def test_chunks_have_the_bits_of_the_whole_signal(seed):
    draw = Draw(seed)
    whole = ic.conv1d(draw.x, draw.w, padding="causal", precision="strict", **draw.options)
    stream = ic.CausalConv1d(draw.w, **draw.options)
    y = np.concatenate([stream.chunk(chunk) for chunk in draw.cuts()], -1)
    assert y.dtype == whole.dtype
    np.testing.assert_array_equal(y, whole)
    stream.reset()
    np.testing.assert_array_equal(stream.chunk(draw.x), whole)


@pytest.mark.parametrize("seed", range(6))
def test_steps_have_the_bits_of_the_whole_signal(seed):
    draw = Draw(seed)
    whole = ic.conv1d(draw.x, draw.w, padding="causal", precision="strict", **draw.options)
    stream = ic.CausalConv1d(draw.w, **draw.options)
    steps = [stream.step(sample) for sample in np.moveaxis(draw.x, -1, 0)]
    assert [i for i, y in enumerate(steps) if y is not None] == list(
        range(0, len(steps), draw.options["stride"])
    )
    np.testing.assert_array_equal(np.stack([y for y in steps if y is not None], -1), whole)


def test_a_sum_by_hand():
    stream = ic.CausalConv1d(np.array([[[1, 10, 100]]], np.int16), stride=2, dilation=2)
    x = np.arange(1, 10, dtype=np.int16)[None]  # y[t] = x[t - 4] + 10 x[t - 2] + 100 x[t]
    found = [stream.chunk(x[:, :4]), stream.chunk(x[:, 4:5]), stream.chunk(x[:, 5:])]
    assert [y.tolist() for y in found] == [[[100, 310]], [[531]], [[753, 975]]]


def test_copies_and_pickles_go_on_from_the_same_state():
    x = np.random.default_rng(1).standard_normal((2, 3, 50)).astype("f")
    w = np.random.default_rng(2).standard_normal((4, 3, 5)).astype("f")
    stream = ic.CausalConv1d(w, stride=2)
    expected = ic.conv1d(x, w, stride=2, padding="causal", precision="strict")
    w[:] = 0  # the stream has its own
    begin = stream.chunk(x[..., :17])
    again = stream.copy(), pickle.loads(pickle.dumps(stream))
    x[..., :17] = 7  # what has passed is kept by nobody
    for other in (stream, *again):
        y = np.concatenate([begin, other.chunk(x[..., 17:])], -1)
        np.testing.assert_array_equal(y, expected)


def test_errors_leave_the_state_as_it_was():
    stream = ic.CausalConv1d(np.ones((1, 2, 3)))
    stream.chunk(np.ones((2, 5)))
    for wrong, error, message in [
        (np.ones((3, 5)), ic.ShapeError, r"\(2,\).*\(3,\).*reset"),
        (np.ones((2, 5), "f"), ic.DTypeError, "float64.*float32.*reset"),
        (np.ones(5), ic.ShapeError, r"\(5,\)"),
    ]:
        with pytest.raises(error, match=message):
            stream.chunk(wrong)
    np.testing.assert_array_equal(stream.step(np.ones(2)), [6])
    for options in ({"stride": 0}, {"dilation": 1.5}, {"weight_layout": "CSK"}):
        with pytest.raises(ic.PlanError, match=next(iter(options))):
            ic.CausalConv1d(np.ones((1, 2, 3)), **options)
    with pytest.raises(ic.ShapeError, match="KCS"):
        ic.CausalConv1d(np.ones(3))
