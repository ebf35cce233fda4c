"""Rivals of whole models, each as it is: torch.compile, onnxruntime and OpenVINO.

They read the model before the clock starts, and have its weights as constants. All compute in
float32, which OpenVINO has to be told on CPUs with instructions for bfloat16.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch

from perf.model_names import NEEDED
from perf.models.workload import Workload

# OpenVINO would report each conversion to its makers, by processes that compute beside others.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

Model = Callable[[Any], Any]  # of the input


def version(name: str) -> str:
    """The version of an engine.

    Raises
    ------
    ImportError
        It is not installed, or what it needs is not.
    """
    for module in NEEDED[name]:
        import_module(module)
    return metadata.version((*NEEDED[name], "torch")[0])


def model_of(name: str, workload: Workload, threads: int) -> Model:
    """The model as the engine runs it.

    Raises
    ------
    ValueError
        The engine does not train models.
    """
    return MAKERS[name](workload, threads)


def _compiled(workload: Workload, threads: int) -> Model:
    """torch.compile with its defaults, Inductor among them."""
    torch.set_num_threads(threads)
    model: Model = torch.compile(workload.model)
    return model


def _onnxruntime(workload: Workload, threads: int) -> Model:
    """torch.onnx writes the network that onnxruntime reads."""
    import onnxruntime

    x = _only_input(workload)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(workload.model, (x,), path, dynamo=True, verbose=False)
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(path, options, providers=providers)
    name, wanted = session.get_inputs()[0].name, [session.get_outputs()[0].name]
    return lambda x: torch.from_numpy(session.run(wanted, {name: x.numpy()})[0])


def _openvino(workload: Workload, threads: int) -> Model:
    """OpenVINO reads the module itself."""
    import openvino

    model = openvino.convert_model(workload.model, example_input=_only_input(workload))
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.compile_model(model, "CPU", settings).create_infer_request()
    return lambda x: torch.from_numpy(request.infer([x.numpy()])[0])


def _only_input(workload: Workload) -> Any:
    """The input of a workload that is not training."""
    if workload.trains:
        raise ValueError("the engine does not train models")
    return workload.inputs[-1]


MAKERS: dict[str, Callable[[Workload, int], Model]] = {
    "torch.compile": _compiled,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
