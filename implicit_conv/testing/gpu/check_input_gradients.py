"""Check that input gradients on the GPU here equal those of the CPU, on integers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv import conv2d_input_grad
from implicit_conv.gpu.cuda.transfer import fetched, send
from implicit_conv.testing import Case

Array = NDArray[Any]


def layer(
    N: int,
    C: int,
    K: int,
    size: Any,
    kernel: Any,
    stride: Any = 1,
    dilation: Any = 1,
    padding: Any = 0,
    groups: int = 1,
) -> Case:
    """A convolution; C and K are those of a group, a number stands for both axes."""
    size, kernel, stride, dilation = (
        (each, each) if isinstance(each, int) else each for each in (size, kernel, stride, dilation)
    )
    pads = ((padding, padding),) * 2 if isinstance(padding, int) else padding
    return Case(N, C, K, groups, size, kernel, stride, dilation, pads)


CASES = {
    "3x3": layer(2, 24, 16, (5, 6), 3, padding=1),
    "3x3/2": layer(2, 16, 24, (7, 8), 3, 2, padding=1),
    "1x1/2, empty phases": layer(2, 8, 16, (5, 6), 1, 2),
    "3x3/3, dilated": layer(1, 8, 16, (11, 10), 3, 3, 2, padding=2),
    "stride and dilation share a factor": layer(2, 8, 16, (13, 15), 3, 4, 2, padding=2),
    "rectangular": layer(2, 8, 16, (9, 11), (2, 5), (1, 3), (2, 1), ((1, 0), (3, 1))),
    "groups": layer(2, 8, 16, (7, 6), 3, 2, padding=1, groups=3),
    "depthwise": layer(2, 1, 1, (8, 9), 3, 2, padding=1, groups=16),
    "odd channels": layer(2, 11, 19, (6, 7), 3, 2, padding=1),
    "three channels": layer(2, 3, 64, (12, 12), 7, 2, padding=3),
    "negative padding": layer(2, 8, 16, (9, 9), 3, 2, padding=((-1, 1), (0, -1))),
    "windows apart": layer(2, 8, 8, (11, 10), 2, 4),
    "pixels past the last window": layer(2, 8, 8, (8, 9), 3, 3),
}


def options_of(case: Case) -> dict[str, Any]:
    """The options of a public function."""
    window = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation}
    return {**window, "groups": case.groups}


def gradient(case: Case, dtype: Any = np.float32, seed: int = 0) -> tuple[Array, Array, Array]:
    """(dy, w, dx by the CPU) in N, C, H, W of integers."""
    rng = np.random.default_rng(seed)
    x_shape = (case.N, case.C * case.groups, *case.size)
    dy = rng.integers(-2, 3, (case.N, case.K * case.groups, *case.output)).astype(np.float32)
    w = rng.integers(-2, 3, (case.K * case.groups, case.C, *case.kernel)).astype(np.float32)
    dx = conv2d_input_grad(dy, w, x_shape, **options_of(case))
    return dy.astype(dtype), w.astype(dtype), dx.astype(dtype)


def check_input_gradients() -> Iterator[str]:
    """Lines that report wrong elements of dx, which holds NaNs before; arrays are read in place."""
    for name, case in CASES.items():
        for dtype in (np.float16, np.float32):
            dy, w, expected = gradient(case, dtype)
            for order in ((0, 1, 2, 3), (0, 2, 3, 1)):
                out = np.full(expected.shape, np.nan, dtype)
                dx, given = _on_gpu(out, order), (_on_gpu(dy, order), _on_gpu(w, order))
                conv2d_input_grad(*given, expected.shape, **options_of(case), out=dx)
                stored = expected.transpose(order)
                found = fetched(dx.buffer, stored.shape, dtype)
                wrong = int((found != stored).sum())
                if wrong:
                    yield f"{name}, {np.dtype(dtype)}, axes in order {order}: {wrong} elements"


def _on_gpu(array: Array, order: tuple[int, ...]) -> Any:
    """A device array with a copy of an array, whose axes are in memory in this order."""
    stored = np.ascontiguousarray(array.transpose(order))
    buffer = send(stored)
    interface = {
        "data": (int(buffer.pointer), False),
        "shape": array.shape,
        "typestr": array.dtype.str,
        "strides": tuple(stored.strides[order.index(axis)] for axis in range(array.ndim)),
        "version": 3,
        "stream": None,
    }
    return SimpleNamespace(__cuda_array_interface__=interface, buffer=buffer)
