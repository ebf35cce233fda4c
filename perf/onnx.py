"""Networks of one node in the format of ONNX, and two engines that read them."""

from __future__ import annotations

import numpy as np

from implicit_conv.problem.options import LAYOUTS_OF
from implicit_conv.testing import Array, Case
from implicit_conv.tools.rivals import Function
from perf.shapes import output_padding

OPSET = 17  # version of the operators in an ONNX network
IR = 8  # version of the file format; the lowest that has these operators


def network(case: Case, w: Array, operator: str = "fprop") -> bytes:
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
    shapes = case.shapes["x"], case.shapes["y"]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes[::-1] if transposed else shapes, strict=True)
    ]
    graph = helper.make_graph(
        [node], "convolution", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")]
    )
    opset = helper.make_opsetid("", OPSET)
    written: bytes = helper.make_model(
        graph, opset_imports=[opset], ir_version=IR
    ).SerializeToString()
    return written


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
        network(case, w, operator), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": x}

    def call() -> Array:
        y: Array = session.run(None, feed)[0]
        return y

    return call


def opencv(case: Case, x: Array, w: Array, threads: int) -> Function:
    """The module dnn of OpenCV."""
    import cv2

    cv2.setNumThreads(threads)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(network(case, w), np.uint8))

    def call() -> Array:
        net.setInput(x)
        y: Array = net.forward()
        return y

    return call
