"""OpenVINO: x and y are plain arrays in the layout of the case."""

from __future__ import annotations

import sys

from implicit_conv.problem.options import LAYOUTS_OF
from implicit_conv.testing import Array, Case, to_nchw
from implicit_conv.tools.rivals import Function
from perf.onnx import network

# OpenVINO would report each conversion to its makers, by processes that compute beside others.
SILENT = "openvino_telemetry"


def convolution(case: Case, x: Array, w: Array, threads: int) -> Function:
    """The convolution with sums in float32; its result has channels second, and is overwritten by
    the next call.
    """
    sys.modules[SILENT] = None  # type: ignore[assignment]
    import openvino

    model = openvino.Core().read_model(network(case, w))
    first = LAYOUTS_OF[len(case.size)][0]
    if case.layout != first:
        form = openvino.preprocess.PrePostProcessor(model)
        for end in (form.input(), form.output()):
            end.tensor().set_layout(openvino.Layout(case.layout))
            end.model().set_layout(openvino.Layout(first))
        model = form.build()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.compile_model(model, "CPU", settings).create_infer_request()
    request.set_input_tensor(openvino.Tensor(x, shared_memory=True))
    y: Array = to_nchw(request.get_output_tensor().data, case.layout)

    def call(held: Array = x) -> Array:  # the tensor shares the memory of x, and does not own it
        request.infer(share_outputs=True)
        return y

    return call
