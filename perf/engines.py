"""Rivals of this engine on one case: all that `perf run --against` knows.

An inference engine has a network of one convolution whose filter is a constant. It rearranges or
transforms the filter when it loads the network, before the clock starts, so it compares with
"plan", which has a packed filter. All engines here compute float32 convolutions of NCHW images, and
onnxruntime those of signals and volumes, transposed convolutions and input gradients, too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from implicit_conv.problem.options import INTEGER_RANGES, LAYOUTS_OF
from implicit_conv.problem.reference import pad_or_crop
from implicit_conv.testing import Array, Case, to_nchw
from implicit_conv.tools import rivals
from implicit_conv.tools.rivals import Function
from perf.shapes import output_padding

ENGINES = ("onnxruntime", "ncnn", "opencv")
RIVALS = ("torch", *ENGINES, "scipy", "numpy")
ONNX_OPSET = 17  # version of the operators in an ONNX network
ONNX_IR = 8  # version of the file format; the lowest that has these operators
NCNN_MAGIC = 7767517  # first line of a network of ncnn


def rival(name: str, case: Case, x: Array, w: Array, threads: int) -> Function:
    """A rival's convolution; its result has axes N, K, P, Q.

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
    if case.weight_layout != "KCRS":
        raise ValueError(f"rivals need weight_layout KCRS, not {case.weight_layout}")
    if name in ENGINES and (case.dtype != "float32" or case.layout != "NCHW"):
        raise ValueError(f"{name} is compared for float32 NCHW, not {case.dtype} {case.layout}")
    if name == "torch" and case.dtype in INTEGER_RANGES:
        name = "torch integers"
    builders = {
        **rivals.RIVALS,
        "torch integers": _onednn_integers,
        "numpy": _numpy,
        "onnxruntime": _onnxruntime,
        "ncnn": _ncnn,
        "opencv": _opencv,
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


def _onnxruntime(case: Case, x: Array, w: Array, threads: int) -> Function:
    return onnxruntime_operator("fprop", case, x, w, threads)


def onnxruntime_operator(operator: str, case: Case, x: Array, w: Array, threads: int) -> Function:
    """onnxruntime on its CPU provider (MLAS); `x` is dy for "dgrad" and "transposed". Its result
    has channels second.

    Raises
    ------
    ValueError
        It cannot compute the case.
    """
    first = LAYOUTS_OF[len(case.size)][0]
    if operator == "wgrad" or case.dtype != "float32" or case.layout != first:
        raise ValueError(
            f"onnxruntime is compared for float32 {first} and no weight gradients, not for "
            f"{operator} of {case.dtype} {case.layout}"
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(
        onnx_network(case, w, operator), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": x}

    def call() -> Array:
        y: Array = session.run(None, feed)[0]
        return y

    return call


def _opencv(case: Case, x: Array, w: Array, threads: int) -> Function:
    """The module dnn of OpenCV."""
    import cv2

    cv2.setNumThreads(threads)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(onnx_network(case, w), np.uint8))

    def call() -> Array:
        net.setInput(x)
        y: Array = net.forward()
        return y

    return call


def onnx_network(case: Case, w: Array, operator: str = "fprop") -> bytes:
    """An ONNX network of one node, Conv or for "dgrad" and "transposed" ConvTranspose, from "x" to
    "y", with the filter as a constant.
    """
    from onnx import TensorProto, helper, numpy_helper

    transposed = operator != "fprop"
    node = helper.make_node(
        "ConvTranspose" if transposed else "Conv",
        ["x", "w"],
        ["y"],
        kernel_shape=case.kernel,
        strides=case.stride,
        dilations=case.dilation,
        group=case.groups,
        pads=[low for low, _ in case.padding] + [high for _, high in case.padding],
        **({"output_padding": output_padding(case)} if transposed else {}),
    )
    shapes = case.problem.input_shape, case.problem.output_shape
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes[::-1] if transposed else shapes, strict=True)
    ]
    graph = helper.make_graph(
        [node], "convolution", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")]
    )
    opset = helper.make_opsetid("", ONNX_OPSET)
    network: bytes = helper.make_model(
        graph, opset_imports=[opset], ir_version=ONNX_IR
    ).SerializeToString()
    return network


def _ncnn(case: Case, x: Array, w: Array, threads: int) -> Function:
    """ncnn with sums and storage in float32."""
    import ncnn

    if case.N != 1:
        raise ValueError(f"ncnn convolves one image at a time, not {case.N}")
    net = ncnn.Net()
    net.opt.num_threads = threads
    for narrow in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{narrow}", False)
    if net.load_param_mem(ncnn_network(case)):
        raise ValueError(f"ncnn refuses the network {ncnn_network(case)!r}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.bin"
        path.write_bytes(np.int32(0).tobytes() + w.tobytes())  # 0: the weights are plain float32
        if net.load_model(str(path)):
            raise ValueError(f"ncnn refuses the weights of {case}")
    image = ncnn.Mat(x[0]).clone()

    def compute() -> Any:
        extractor = net.create_extractor()
        extractor.input("x", image)
        return extractor.extract("y")[1]

    return lambda: np.asarray(compute())[None]


def ncnn_network(case: Case) -> str:
    """The text of ncnn's network of one convolution, from "x" to "y"."""
    (top, bottom), (left, right) = case.padding
    sizes = {
        0: case.K * case.groups,
        **dict(zip((11, 1), case.kernel, strict=True)),
        **dict(zip((12, 2), case.dilation, strict=True)),
        **dict(zip((13, 3), case.stride, strict=True)),
        **{4: left, 15: right, 14: top, 16: bottom},
        6: int(np.prod(case.problem.weight_shape)),
    }
    kind = "Convolution"
    if case.groups > 1:
        kind, sizes[7] = "ConvolutionDepthWise", case.groups
    written = " ".join(f"{key}={value}" for key, value in sizes.items())
    return (
        f"{NCNN_MAGIC}\n2 2\nInput x 0 1 x\n"  # two layers, two arrays
        f"{kind} y 1 1 x y {written}\n"
    )
