"""Arrays of other libraries: who made them, which are refused, and results of their kind."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from implicit_conv.errors import DTypeError, PlanError

KNOWN = ("torch", "cupy", "numba")  # libraries whose own functions are called


def library(array: Any) -> str:
    """The package that defines an array's type, or a base of it: "torch", "cupy", "numba", ..."""
    return _package(type(array))  # type: ignore[arg-type]  # mypy takes no type for hashable


@functools.lru_cache(64)
def _package(kind: type) -> str:
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return next((package for package in packages if package in KNOWN), packages[0])


def detached(name: str, array: Any) -> Any:
    """The array itself, or the tensor without its gradients where torch records none.

    Parameters of torch require gradients, also under ``torch.no_grad()``. `name` is the array's
    name in messages.

    Raises
    ------
    PlanError
        It requires gradients, and they would be recorded.
    TypeError
        It is a module of torch, or another object of torch that is no tensor.
    """
    if library(array) == "torch" and not isinstance(array, sys.modules["torch"].Tensor):
        kind = type(array).__name__
        if not isinstance(array, sys.modules["torch"].nn.Module):
            raise TypeError(f"{name} must be an array, not torch's {kind}; pass a tensor")
        raise TypeError(
            f"{name} must be an array, not the module {kind}: call the module itself, under "
            f"implicit_conv.torch.enable(), or pass its weight.detach() and bias.detach()"
        )
    if not getattr(array, "requires_grad", False):
        return array
    if library(array) == "torch" and not sys.modules["torch"].is_grad_enabled():
        return array.detach()
    raise PlanError(
        f"{name} requires gradients, which are not recorded; pass {name}.detach(), or call under "
        "torch.no_grad()"
    )


def check_tensor(name: str, tensor: Any) -> None:
    """Refuse a tensor of torch whose memory does not hold its values.

    Raises
    ------
    DTypeError
        It is sparse, in another layout that is not strided, quantized, or of a class of tensors
        that wraps others, as torch.export uses.
    PlanError
        It is on torch's device "meta".
    """
    kind, torch = type(tensor), sys.modules["torch"]
    if str(tensor.layout) != "torch.strided":
        raise DTypeError(f"{name} is a tensor of layout {tensor.layout}; pass {name}.to_dense()")
    if tensor.is_quantized:
        raise DTypeError(f"{name} is a quantized tensor; pass {name}.dequantize()")
    if (
        kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        or torch._is_functional_tensor(tensor)  # of torch.func.functionalize
    ):
        raise DTypeError(
            f"{name} is a {kind.__name__}, whose memory is not its own; pass a torch.Tensor"
        )
    if tensor.device.type == "meta":
        raise PlanError(f"{name} is on device meta, which holds no values; pass a tensor with data")


def as_library_of(x: Any, y: Any) -> Any:
    """The numpy array `y` as an array of the library of `x`; a tensor of torch shares its memory.

    It stays a numpy array if that library has no `from_dlpack`, or one that changes its dtype.
    """
    if isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return y
    if library(x) == "torch":
        torch = sys.modules["torch"]
        if y.dtype.name == "bfloat16":  # torch cannot import this dtype of ml_dtypes
            return torch.from_numpy(y.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(y)
    namespace = getattr(x, "__array_namespace__", None)
    if namespace is None:
        return y
    try:
        result = namespace().from_dlpack(y)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return y
    kept = str(result.dtype).rpartition(".")[2] == y.dtype.name  # JAX may narrow 64 bits to 32
    return result if kept else y
