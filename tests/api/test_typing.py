"""What mypy says of users' scripts: right ones pass without casts, and wrong ones do not.

A comment `# [code]` says that mypy refuses the line with an error of this code.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("mypy")
ROOT = Path(__file__).parents[2]
EDITABLE = ROOT / ".ci" / "editable"  # which an editable install puts on the path
CONFIG = f"""
[mypy]
strict = true
mypy_path = {EDITABLE}
[mypy-implicit_conv.*]
ignore_errors = true
"""
NUMPY = """
from collections.abc import Callable
from typing import Any
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type
import implicit_conv
from implicit_conv import CausalConv1d, Plan, conv1d, conv2d, conv_transpose3d, im2col, plan_conv2d
from implicit_conv import conv2d_input_grad, conv2d_weight_grad, plan_conv3d_weight_grad
from implicit_conv import conv4d  # [attr-defined]

Array = NDArray[Any]
x = np.ones((1, 4, 8, 8), np.float32)
w = np.ones((4, 4, 3, 3), np.float32)
assert_type(conv2d(x=x, w=w, padding=((1, 1), (0, 2)), activation=("leaky_relu", 0.1)), Array)
assert_type(conv2d(x, w, None, (1, 2), "same", out=x, out_dtype=np.float64), Array)
assert_type(conv1d([[[1.0, 2.0]]], np.ones((1, 1, 1))), Array)
name: str = conv1d(x, w)  # [assignment]
assert_type(conv_transpose3d(x, w, weight_layout="CKTRS", output_size=(4, 4, 4)), Array)
assert_type(conv2d_input_grad(dy=x, w=w, input_shape=x.shape), Array)
assert_type(conv2d_weight_grad(x, dy=x, weight_shape=w.shape), Array)
assert_type(im2col(x, 3), Array)
assert_type(CausalConv1d(w[0]).chunk(x[0]), Array)
conv2d(x, w, layout="NCWH")  # [arg-type]
conv2d(x, w, weight_layout="CKRS")  # [arg-type]
conv2d(x, w, padding="some")  # [arg-type]
conv2d(x, w, padding_mode="mirror")  # [arg-type]
conv2d(x, w, precision="fats")  # [arg-type]
conv2d(x, w, algorithm="winograd")  # [arg-type]
conv2d(x, w, activation="relu7")  # [arg-type]
conv2d(x, w, activation=("clamp", 1.0))  # [arg-type]
conv2d(x, w, strides=2)  # [call-arg]
conv2d(x)  # [call-arg]
conv1d(object(), w)  # [arg-type]
implicit_conv.convolve2d(x, w)  # [attr-defined]
implicit_conv.tma.Im2col  # [attr-defined]
implicit_conv.config(subnormals="flush", algorithm=None)
implicit_conv.config(algorithm="winograd")  # [arg-type]

plan = plan_conv2d(x.shape, w.shape, np.float32, padding=1)
assert_type(plan, Plan)
assert_type(plan(x, plan.pack(w)), Array)
assert_type(plan.prepare(x, w, np.empty_like(x)), Callable[[], Array])
assert_type(plan.tune("plain"), Plan)
plan.tune("all")  # [arg-type]
plan.pack(object())  # [arg-type]
plan_conv2d(x, w)  # [arg-type] [arg-type]
plan_conv3d_weight_grad((1,), (1,), (1,), algorithm="auto")  # [call-arg]
"""
TORCH = """
from typing import Any
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type
from implicit_conv import conv1d, conv2d, conv_transpose2d, conv3d_weight_grad, plan_conv2d


def blurred(image: torch.Tensor, taps: torch.nn.Parameter) -> torch.Tensor:
    return conv2d(image, taps, torch.zeros(4), padding="same").relu()


x = torch.ones(1, 4, 8, 8)
layer = torch.nn.Conv2d(4, 4, 3)
assert_type(conv1d(x[0], torch.ones(4, 4, 3), groups=1), torch.Tensor)
assert_type(conv_transpose2d(layer.weight, x.numpy()), torch.Tensor)
assert_type(conv3d_weight_grad(x, x, x.shape), torch.Tensor)
assert_type(plan_conv2d(tuple(x.shape), (4, 4, 3, 3))(x, layer.weight), torch.Tensor)
array: NDArray[Any] = conv2d(x, x)  # [arg-type]
tensor: torch.Tensor = conv2d(x.numpy(), x)  # [assignment]
conv2d(x, x, out=x)  # [arg-type]
"""
IMAGES = """
from typing import Any
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type
from implicit_conv import ndimage, signal
from implicit_conv.ndimage import gaussian_filter, patch, unpatch
from implicit_conv.ndimage import gauss  # [attr-defined]

Array = NDArray[Any]
x = np.ones((40, 40))
assert_type(gaussian_filter(x, 2, mode="wrap", precision="fast", channel_axis=-1), Array)
assert_type(ndimage.prewitt(x, axis=0, nan="propagate"), Array)
assert_type(ndimage.gaussian_laplace(x, (1.0, 2.0), truncate=3.0), Array)
gaussian_filter(x, 2, precision="fats")  # [arg-type]
ndimage.correlate(x)  # [call-arg]
ndimage.laplac(x)  # [attr-defined]
with patch("standard"):
    unpatch()
assert_type(signal.convolve(x, x, "same"), Array)
assert_type(signal.lfilter([1.0], 1.0, x), Array)
assert_type(signal.lfilter([1.0], 1.0, x, zi=x), tuple[Array, Array])
assert_type(signal.choose_conv_method(x, x), signal.Choice)
signal.convolve2d(x, x, boundary="mirror")  # [arg-type]
"""


def refused(text):
    """(line, code) of each error that mypy reports, or that a script expects."""
    found = re.finditer(r"^(?:\w+\.py:)?(\d+):.*?((?: *\[[a-z-]+\])+)$", text, re.M)
    return sorted((int(m[1]), code) for m in found for code in re.findall(r"\[[a-z-]+\]", m[2]))


@pytest.mark.slow  # mypy reads the package, numpy and torch
def test_scripts_are_accepted_and_refused_as_they_say(tmp_path):
    scripts = {"arrays.py": NUMPY, "images.py": IMAGES}
    if find_spec("torch"):
        scripts["tensors.py"] = TORCH
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-pretty", *scripts],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not result.stderr
    for name, text in scripts.items():
        lines = enumerate(text.split("\n"), 1)
        expected = "\n".join(f"{n}: {line}" for n, line in lines if line.endswith("]"))
        errors = [
            line for line in result.stdout.split("\n") if line.startswith(name) and "error:" in line
        ]
        assert refused("\n".join(errors)) == refused(expected), "\n".join(errors)
