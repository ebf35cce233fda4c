"""The filter and the bias of a convolution with the batch norm that follows it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.utils.fusion import fuse_conv_bn_weights

from implicit_conv.arrays.arrays import Array
from implicit_conv.arrays.tensors import tensor_array
from implicit_conv.errors import PlanError


class Folded(NamedTuple):
    """A filter as torch's convolution takes it, and the bias as calls take it."""

    filters: Any
    sums: Array | None


def folded(conv: Any, norm: Any) -> Folded:
    """The filter and bias of a convolution and its batch norm, None of none. They are computed in
    float64 and rounded once.

    Raises
    ------
    PlanError
        Its dtype cannot hold the filter as exactly as other numbers.
    """
    w, bias = conv.weight.detach(), conv.bias
    bias = None if bias is None else bias.detach()
    if norm is not None:
        w, bias = _with_norm(conv, norm, w.double(), None if bias is None else bias.double())
    if bias is None:
        return Folded(w, None)
    narrow = conv.weight.element_size() == 2  # 16-bit types are summed in float32
    bias = bias.to(torch.float32 if narrow else conv.weight.dtype)
    return Folded(w, tensor_array(bias.contiguous()))


def _with_norm(conv: Any, norm: Any, w: Any, bias: Any) -> tuple[Any, Any]:
    """The folded filter in its own dtype, and the bias in float64."""
    transposed, shape = conv.transposed, w.shape
    if transposed:  # (C, K / groups, ...) to (K, C / groups, ...)
        w = w.unflatten(0, (conv.groups, -1)).transpose(1, 2).flatten(0, 1)
    values = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    doubles = [v.detach().double() if isinstance(v, torch.Tensor) else v for v in values]
    exact, bias = fuse_conv_bn_weights(w, bias, *doubles)
    rounded = exact.detach().to(conv.weight.dtype)
    taps = tuple(range(1, w.dim()))
    error = (rounded.double() - exact).abs().amax(taps)
    if not bool((error <= torch.finfo(rounded.dtype).eps * exact.abs().amax(taps)).all()):
        raise PlanError(f"{rounded.dtype} cannot hold the filter with its batch norm")
    if transposed:
        rounded = rounded.unflatten(0, (conv.groups, -1)).transpose(1, 2).flatten(0, 1)
        assert rounded.shape == shape
    return rounded, bias.detach()
