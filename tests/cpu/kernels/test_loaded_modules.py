"""How many modules of this package the first call of each operator imports, with cached kernels."""

import pytest
from processes import output_of

OPERATOR_CALLS = [  # (names, a call of them, how many modules of ours it may load)
    ("conv2d", "conv2d(x, w, padding=1)", 90),
    ("conv2d", "conv2d(x, w, bias, padding=1, activation='gelu')", 90),
    ("conv2d", "conv2d(x, w, padding=1, padding_mode='reflect')", 90),
    ("conv2d", "conv2d(x.astype('i1'), w.astype('i1'), padding=1)", 90),
    ("conv2d", "conv2d(x.astype('F'), w.astype('F'), padding=1)", 100),
    ("conv1d", "conv1d(x[:, :, 0], w[:, :, 0])", 90),
    ("conv3d", "conv3d(x[:, :, None], w[:, :, None])", 90),
    ("conv_transpose2d", "conv_transpose2d(x, w, stride=2)", 100),
    ("conv2d_input_grad", "conv2d_input_grad(x, w, x.shape, padding=1)", 100),
    ("conv2d_weight_grad", "conv2d_weight_grad(x, x, w.shape, padding=1)", 100),
    ("col2im, im2col", "col2im(im2col(x, (3, 3)), x.shape, (3, 3))", 90),
    ("CausalConv1d", "CausalConv1d(w[:, :, 0]).step(x[:, :, 0, 0])", 100),
]


@pytest.mark.slow
@pytest.mark.parametrize(("names", "call", "most"), OPERATOR_CALLS)
def test_an_operator_loads_few_modules(names, call, most, tmp_path):
    program = f"""
import sys
import numpy as np
from implicit_conv import {names}
x, w, bias = np.ones((1, 64, 28, 28), "f"), np.ones((64, 64, 3, 3), "f"), np.ones(64, "f")
{call}
print("numba" in sys.modules, sum(name.startswith("implicit_conv") for name in sys.modules))
"""
    for _ in range(2):  # the first process compiles
        found = output_of(program, IMPLICIT_CONV_CACHE_DIR=str(tmp_path / "cache"))
    numba, modules = found.split()
    assert numba == "False"
    assert int(modules) <= most
