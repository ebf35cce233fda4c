"""A wrong call shows where it was made and what is wrong, not how the package got to the check."""

import gc
import traceback
import weakref

import numpy as np
import pytest

import implicit_conv as ic

X, W = np.ones((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
FRAMES = 3
WRONG = {
    "channels": lambda: ic.conv2d(X, W[:, :2]),
    "dtypes": lambda: ic.conv2d(X, W.astype(np.float64)),
    "no array": lambda: ic.conv2d("photo.png", W),
    "axes": lambda: ic.conv2d(X[0, 0, 0], W),
    "bias": lambda: ic.conv2d(X, W, np.ones(5, np.float32)),
    "out": lambda: ic.conv2d(X, W, out=np.empty((1, 4, 5, 5), np.float32)),
    "padding": lambda: ic.conv2d(X, W, padding="sam"),
    "stride": lambda: ic.conv2d(X, W, stride=-1),
    "algorithm": lambda: ic.conv2d(X, W, algorithm="winogrd"),
    "activation": lambda: ic.conv2d(X, W, activation="rel"),
    "keyword": lambda: ic.conv2d(X, W, strides=2),
    "plan": lambda: ic.plan_conv2d((1, 3, 8, 8), (4, 4, 3, 3)),
    "plan of a GPU": lambda: ic.plan_conv2d((1, 3, 8, 8), (4, 3, 3, 3), device="sm_1"),
    "transposed": lambda: ic.conv_transpose2d(X, W),
    "input gradient": lambda: ic.conv2d_input_grad(X, W, (1, 3, 8, 8)),
    "weight gradient": lambda: ic.conv2d_weight_grad(X, X, (4, 3, 3, 3)),
    "causal": lambda: ic.CausalConv1d(np.ones((3, 3)), 1),
    "a second bias": lambda: [ic.conv2d(X, W, b) for b in (np.ones(4, np.float32), X)],
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_few_frames_are_ours(call):
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    frames = traceback.extract_tb(raised.value.__traceback__)
    ours = [frame for frame in frames if "/implicit_conv/" in frame.filename]
    assert 0 < len(ours) <= FRAMES, "".join(traceback.format_list(ours))


def test_the_error_that_the_caller_handles_stays_its_context():
    with pytest.raises(ic.ShapeError) as raised:
        try:
            raise KeyError("photo")
        except KeyError:
            ic.conv2d(X, W[:, :2])
    assert "KeyError: 'photo'" in "".join(traceback.format_exception(raised.value))


def test_a_dropped_error_keeps_no_array():
    x = np.ones((1, 4, 8, 8), np.float32)
    kept, errors = weakref.ref(x), []
    try:
        ic.conv2d(x, W)
    except ic.ShapeError as error:
        errors.append(error)
    gc.disable()
    try:
        del x
        errors.clear()
        assert kept() is None
    finally:
        gc.enable()
