"""Host time of a call on a GPU, without one: every function of the driver does nothing.

Usage: ``python -m perf.launch [CALLS]``; it needs cuda-bindings. It prints microseconds of a call
of a plan and of `conv2d`, the least of five rounds, for tensors of torch (where torch is installed)
and for arrays that have ``__cuda_array_interface__`` alone: with the arrays of the call before,
with two inputs in turn, with a bias and a residual besides, with addresses that are always new, and
with a result that is made. Tensors are of a class of their own, whose attributes take about twice
as long as those of plain ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from implicit_conv import conv2d, plan_conv2d
from implicit_conv.arrays.libraries import library
from implicit_conv.gpu.cuda import cubin, driver

ROUNDS = 5
SHAPES = {"x": (2, 8, 8, 64), "w": (64, 3, 3, 64), "y": (2, 8, 8, 64)}
LAYOUT: dict[str, Any] = {"layout": "NHWC", "weight_layout": "KRSC"}


class Idle:
    """cuda.bindings.driver of one GPU of sm_90, whose functions do nothing."""

    def __init__(self, real: Any) -> None:
        for name in dir(real):
            value = getattr(real, name)
            if name.startswith("cu") and name[2].isupper() and callable(value):
                value = self._answering(real, name)
            setattr(self, name, value)

    def _answering(self, real: Any, name: str) -> Callable[..., Any]:
        numbers = {
            "MAJOR": 9,
            "MINOR": 0,
            "COUNT": 132,
            "OPTIN": 227 << 10,
            "RATE": 2_619_000,
            "WIDTH": 5120,
        }
        success = real.CUresult.CUDA_SUCCESS
        if name.startswith("cuTensorMapEncode"):
            return lambda *_: (success, real.CUtensorMap())
        if name == "cuDeviceGetAttribute":
            return lambda attribute, _: (success, numbers[attribute.name.split("_")[-1]])
        answers = {"cuDeviceGetName": b"idle\0", "cuCtxGetDevice": real.CUdevice(0)}
        answer = answers.get(name, 0)
        return lambda *_: (success, answer)


class Interface:
    """A device array that has the interface alone."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": "<f2",
            "strides": None,
            "version": 3,
        }


def tensors(torch: Any) -> Callable[[int, tuple[int, ...]], Any]:
    """A function that makes tensors of torch that claim to be on a GPU."""

    class Tensor(torch.Tensor):  # type: ignore[misc]
        __torch_function__ = torch._C._disabled_torch_function_impl
        is_cuda = True
        device = SimpleNamespace(index=0, type="cuda")

    Tensor.__module__ = "torch.launch"
    torch._C._cuda_getCurrentRawStream = lambda device: 77
    torch.empty_strided = lambda *sizes, dtype, device: made

    def make(address: int, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=torch.float16).as_subclass(Tensor)

    made: Any = make(0, SHAPES["y"])
    return make


def least(function: Callable[[], Any], calls: int) -> float:
    """Microseconds of a call, the least of `ROUNDS` rounds."""
    function()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append(time.perf_counter() - start)
    return 1e6 * min(times) / calls


def rows(make: Callable[[int, tuple[int, ...]], Any], calls: int) -> Iterator[tuple[str, float]]:
    """(what is timed, microseconds) for arrays that `make` makes."""
    plan: Any = plan_conv2d(SHAPES["x"], SHAPES["w"], "float16", padding=1, device="cuda", **LAYOUT)
    x, other, w, y, residual = (
        make(n << 20, SHAPES[name]) for n, name in enumerate(("x", "x", "w", "y", "y"), start=1)
    )
    bias = make(1 << 30, SHAPES["w"][:1])
    many = [make(n << 21, SHAPES["x"]) for n in range(512, 2 * 512)]

    def turn() -> None:
        plan(x, w, out=y)
        plan(other, w, out=y)

    def moving() -> None:
        for each in many:
            plan(each, w, out=y)

    yield "the same arrays", least(lambda: plan(x, w, out=y), calls)
    yield "two inputs in turn", least(turn, calls) / 2
    yield "bias and residual", least(lambda: plan(x, w, bias, residual=residual, out=y), calls)
    yield "new addresses", least(moving, -(-calls // len(many))) / len(many)
    yield "conv2d", least(lambda: conv2d(x, w, padding=1, out=y, **LAYOUT), calls)
    if library(x) == "torch":
        yield "conv2d, new result", least(lambda: conv2d(x, w, padding=1, **LAYOUT), calls)


def main(arguments: list[str]) -> int:
    """Print all rows."""
    from cuda.bindings import driver as real

    calls, idle = int(arguments[0]) if arguments else 2000, Idle(real)
    names: dict[str, Any] = vars(driver)
    names["bindings"] = lambda: idle
    vars(cubin)["cubin"] = lambda v, cc: (b"image", "entry")
    makers: dict[str, Callable[[int, tuple[int, ...]], Any]] = {"interface": Interface}
    try:
        import torch
    except ImportError:
        print("torch is not installed")
    else:
        makers["torch"] = tensors(torch)
    for name, make in makers.items():
        for what, microseconds in rows(make, calls):
            print(f"{name:10}{what:20}{microseconds:8.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
