"""Checks of arrays of other libraries on a GPU: results, layouts, streams, graphs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np

from implicit_conv.operators.conv import conv2d, plan_conv2d
from implicit_conv.testing import Case

CASE = Case(2, 64, 48, size=(9, 11), padding=((1, 1), (1, 1)))


def check_arrays() -> Iterator[str]:
    """Lines that report wrong results or layouts for arrays of numpy and other libraries."""
    checks = {
        "torch": (_torch_layouts, _torch_epilogue, _torch_graph),
        "cupy": (_cupy,),
        "numba": (_numba,),
        "numpy": (_numpy,),
    }
    for name, functions in checks.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: not checked")
            continue
        library: Any = importlib.import_module(name)
        for function in functions:
            yield from function(library)


def _tensors(torch: Any, dtype: Any) -> tuple[Any, Any]:
    x = torch.randint(-3, 4, (2, 64, 9, 11), device="cuda").to(dtype)
    w = torch.randint(-3, 4, (48, 64, 3, 3), device="cuda").to(dtype)
    return x, w


def _torch_layouts(torch: Any) -> Iterator[str]:
    """Both memory formats, on a stream that the caller made."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x, w = _tensors(torch, dtype)
        expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1).to(dtype)
        for order in (torch.channels_last, torch.contiguous_format):
            source = x.contiguous(memory_format=order)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y: Any = conv2d(source, w, padding=1)
            stream.synchronize()
            if not torch.equal(y, expected) or not y.is_contiguous(memory_format=order):
                yield f"torch {dtype} {order}: wrong result or layout"


def _torch_epilogue(torch: Any) -> Iterator[str]:
    """Bias, residual and relu; sums are small integers, so only the result is rounded."""
    x, w = _tensors(torch, torch.bfloat16)
    bias = torch.arange(48, device="cuda").to(torch.bfloat16)
    sums = torch.nn.functional.conv2d(x.double(), w.double(), bias.double(), padding=1)
    residual = torch.randint(-9, 9, sums.shape, device="cuda").to(torch.bfloat16)
    y: Any = conv2d(x, w, bias, padding=1, residual=residual, activation="relu")
    if not torch.equal(y, (sums + residual.double()).relu().to(torch.bfloat16)):
        yield "torch: wrong result with bias, residual and relu"


def _torch_graph(torch: Any) -> Iterator[str]:
    """A plan that has run once can be captured, and the capture replayed on new values."""
    x, w = _tensors(torch, torch.float16)
    x = x.contiguous(memory_format=torch.channels_last)
    made: Any = plan_conv2d(tuple(x.shape), tuple(w.shape), "float16", padding=1, device="cuda")
    packed, y = made.pack(w), torch.empty(2, 9, 11, 48, dtype=x.dtype, device="cuda")
    y = y.permute(0, 3, 1, 2)
    made(x, packed, out=y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made(x, packed, out=y)
    x.add_(1)
    y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1).to(x.dtype)
    if not torch.equal(y, expected):
        yield "torch: wrong result from a captured graph"


def _cupy(cupy: Any) -> Iterator[str]:
    x, w = CASE.inputs(0, integers=True)
    for dtype in ("float16", "float32"):
        y = conv2d(cupy.asarray(x, dtype), cupy.asarray(w, dtype), padding=1)
        if not np.array_equal(cupy.asnumpy(y), CASE.reference(x, w).astype(dtype)):
            yield f"cupy {dtype}: wrong result"


def _numba(numba: Any) -> Iterator[str]:
    cuda = importlib.import_module("numba.cuda")
    x, w = CASE.inputs(0, integers=True)
    y: Any = conv2d(cuda.to_device(x), cuda.to_device(w), padding=1)
    cuda.synchronize()
    if not np.array_equal(y.copy_to_host(), CASE.reference(x, w)):
        yield "numba: wrong result"


def _numpy(numpy: Any) -> Iterator[str]:
    x, w = CASE.inputs(0, integers=True)
    if not np.array_equal(conv2d(x, w, padding=1, device="cuda"), CASE.reference(x, w)):
        yield "numpy: wrong result"
