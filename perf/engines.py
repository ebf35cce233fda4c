"""Rivals of this engine on one case: all that `perf run --against` knows.

An inference engine has a network of one convolution whose filter is a constant. It rearranges or
transforms the filter when it loads the network, before the clock starts, so it compares with
"plan", which has a packed filter. It may write each result into the same memory, where "plan" makes
a new array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from implicit_conv.problem.options import INTEGER_RANGES, LAYOUTS_OF, WEIGHT_LAYOUTS_OF
from implicit_conv.problem.reference import pad_or_crop
from implicit_conv.testing import Array, Case, to_nchw
from implicit_conv.tools import rivals
from implicit_conv.tools.rivals import Function
from perf import ncnn, onednn, onnx, openvino, xnnpack

# Engine: the layouts of its arrays, as 2-d ones are called. All compute in float32.
PLAIN = {
    "onnxruntime": ("NCHW",),
    "ncnn": ("NCHW",),
    "opencv": ("NCHW",),
    "openvino": ("NCHW", "NHWC"),
    "xnnpack": ("NHWC",),
    **dict.fromkeys(onednn.PACKAGES, ("NCHW", "NHWC")),
}
ENGINES = tuple(PLAIN)
RIVALS = ("torch", *ENGINES, "scipy", "numpy")
ANY_RANK = ("onnxruntime", "openvino", *onednn.PACKAGES)  # signals and volumes, too

Builder = Callable[[Case, Array, Array, int], Function]


def rival(name: str, case: Case, x: Array, w: Array, threads: int) -> Function:
    """A rival's convolution; its result has axes N, K, P, Q, or those of its rank.

    Parameters
    ----------
    name : one of RIVALS
    x, w : arrays as `case.arrange` returns them
    threads : int
        Threads of torch and OpenCV, set for the whole process, and of the other engines. scipy and
        numpy have those of their BLAS.

    Raises
    ------
    ImportError
        The rival is not installed, or the package onnx where an engine needs it.
    ValueError
        The rival cannot compute the case.
    """
    rank = len(case.size)
    wanted = WEIGHT_LAYOUTS_OF[rank][0]
    if case.weight_layout != wanted:
        raise ValueError(f"rivals need weight_layout {wanted}, not {case.weight_layout}")
    if name in ENGINES:
        places = [LAYOUTS_OF[2].index(layout) for layout in PLAIN[name]]
        plain = [LAYOUTS_OF[rank][place] for place in places]
        if case.dtype != "float32" or case.layout not in plain:
            raise ValueError(
                f"{name} is compared for float32 {' and '.join(plain)}, not {case.dtype} "
                f"{case.layout}"
            )
    if name == "torch" and case.dtype in INTEGER_RANGES:
        name = "torch integers"
    builders: dict[str, Builder] = {
        **rivals.RIVALS,
        "torch integers": _onednn_integers,
        "numpy": _numpy,
        "onnxruntime": partial(onnx.onnxruntime_operator, "fprop"),
        "ncnn": ncnn.convolution,
        "opencv": onnx.opencv,
        "openvino": openvino.convolution,
        "xnnpack": xnnpack.convolution,
        **{each: partial(_onednn, each) for each in onednn.PACKAGES},
    }
    return builders[name](case, x, w, threads)


def _onednn_integers(case: Case, x: Array, w: Array, threads: int) -> Function:
    """torch.ops.onednn.qconv2d_pointwise with scales of 1 and zero points of 0: its float32 results
    are the sums. The filter is packed before.
    """
    import torch

    if any(low != high for low, high in case.padding):
        raise ValueError(f"torch needs equal low and high padding, not {case.padding}")
    torch.set_num_threads(threads)
    if (case.dtype, case.w_dtype) != ("uint8", "int8"):
        raise ValueError(f"oneDNN needs uint8 x and int8 w, not {case.dtype} and {case.w_dtype}")
    x_t, w_t = torch.from_numpy(to_nchw(x, case.layout)), torch.from_numpy(w)
    ones, zeros = torch.ones(len(w)), torch.zeros(len(w), dtype=torch.int32)
    padding = [low for low, _ in case.padding]
    steps = list(case.stride), padding, list(case.dilation), case.groups
    ops = torch.ops.onednn
    packed = ops.qconv_prepack(w_t, ones, 1.0, 0, *steps, list(x_t.shape))
    result: Any = (1.0, 0, torch.float32, "none", [], "")  # scale, zero point, no activation

    def call() -> Any:
        with torch.inference_mode():
            return ops.qconv2d_pointwise(x_t, 1.0, 0, packed, ones, zeros, None, *steps, *result)

    return call


def _onednn(name: str, case: Case, x: Array, w: Array, threads: int) -> Function:
    """oneDNN by its C interface; its process was told the number of threads when it began."""
    return onednn.Library(name).convolution(case, x, w)


def _numpy(case: Case, x: Array, w: Array, threads: int) -> Function:
    """The usual numpy code: multiply a matrix of all windows (im2col) by the filters."""
    if case.groups != 1 or case.dilation != (1, 1):
        raise ValueError("the numpy rival has neither groups nor dilation")
    images = to_nchw(x, case.layout)
    stride_h, stride_w = case.stride
    window = (case.C, *case.kernel)

    def call() -> Array:
        padded = pad_or_crop(images, case.padding)
        views = np.lib.stride_tricks.sliding_window_view(padded, window, axis=(1, 2, 3))
        views = views[:, 0, ::stride_h, ::stride_w]
        columns = views.reshape(-1, w[0].size)
        y = columns @ w.reshape(len(w), -1).T
        return y.reshape(*views.shape[:3], len(w)).transpose(0, 3, 1, 2)

    return call
