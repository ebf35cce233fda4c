"""ncnn: networks of one convolution of an NCHW image in float32."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from implicit_conv.testing import Array, Case
from implicit_conv.tools.rivals import Function

MAGIC = 7767517  # first line of a network


def convolution(case: Case, x: Array, w: Array, threads: int) -> Function:
    """ncnn with sums and storage in float32."""
    import ncnn

    if case.N != 1:
        raise ValueError(f"ncnn convolves one image at a time, not {case.N}")
    net = ncnn.Net()
    net.opt.num_threads = threads
    for narrow in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{narrow}", False)
    if net.load_param_mem(network(case)):
        raise ValueError(f"ncnn refuses the network {network(case)!r}")
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


def network(case: Case) -> str:
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
        f"{MAGIC}\n2 2\nInput x 0 1 x\n"  # two layers, two arrays
        f"{kind} y 1 1 x y {written}\n"
    )
