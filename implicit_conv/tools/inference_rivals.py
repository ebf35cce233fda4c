"""Rivals that are inference engines: a network of one convolution whose filter is a constant.

An engine rearranges or transforms the filter when it loads the network, before the clock starts, so
it compares with "plan", which has a packed filter. All engines here compute float32 convolutions of
NCHW images.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from implicit_conv.testing import Array, Case

ENGINES = ("onnxruntime", "ncnn", "opencv")
ONNX_OPSET = 17  # version of the operators in an ONNX network
ONNX_IR = 8  # version of the file format; the lowest that has these operators
NCNN_MAGIC = 7767517  # first line of a network of ncnn


def engine_rival(name: str, case: Case, x: Array, w: Array, threads: int) -> Callable[[], Array]:
    """A convolution by an engine; its result has axes N, K, P, Q.

    Parameters
    ----------
    name : "onnxruntime", "ncnn" or "opencv"
    x, w : arrays as `case.arrange` returns them, with axes N, C, H, W and K, C, R, S
    threads : int

    Raises
    ------
    ImportError
        The engine, or the package onnx, is not installed.
    ValueError
        The engine cannot compute the case.
    """
    if case.dtype != "float32" or case.layout != "NCHW":
        raise ValueError(f"{name} is compared for float32 NCHW, not {case.dtype} {case.layout}")
    return {"onnxruntime": _onnxruntime, "ncnn": _ncnn, "opencv": _opencv}[name](
        case, x, w, threads
    )


def _onnxruntime(case: Case, x: Array, w: Array, threads: int) -> Callable[[], Array]:
    """onnxruntime on its CPU provider (MLAS)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(
        onnx_network(case, w), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": x}

    def call() -> Array:
        y: Array = session.run(None, feed)[0]
        return y

    return call


def _opencv(case: Case, x: Array, w: Array, threads: int) -> Callable[[], Array]:
    """The module dnn of OpenCV."""
    import cv2

    cv2.setNumThreads(threads)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(onnx_network(case, w), np.uint8))

    def call() -> Array:
        net.setInput(x)
        y: Array = net.forward()
        return y

    return call


def onnx_network(case: Case, w: Array) -> bytes:
    """An ONNX network of one node Conv, from "x" to "y", with the filter as a constant."""
    from onnx import TensorProto, helper, numpy_helper

    (top, bottom), (left, right) = case.padding
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        kernel_shape=case.kernel,
        strides=case.stride,
        dilations=case.dilation,
        group=case.groups,
        pads=(top, left, bottom, right),
    )
    shapes = case.problem.input_shape, case.problem.output_shape
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes, strict=True)
    ]
    graph = helper.make_graph(
        [node], "convolution", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")]
    )
    opset = helper.make_opsetid("", ONNX_OPSET)
    network: bytes = helper.make_model(
        graph, opset_imports=[opset], ir_version=ONNX_IR
    ).SerializeToString()
    return network


def _ncnn(case: Case, x: Array, w: Array, threads: int) -> Callable[[], Array]:
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
