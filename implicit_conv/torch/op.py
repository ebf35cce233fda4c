"""The operator ``implicit_conv::convolution`` of torch, for graphs that name this package.

Importing this module imports torch and registers the operator, which is computed here whether or
not `enable` is in force. A program that loads an exported graph with it needs no more than ``import
implicit_conv.torch.op``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from implicit_conv.torch import override

__all__ = ["ConvolutionPass", "convolution"]

SIZES = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, "
    "SymInt[] output_padding, SymInt groups"
)
LIBRARY: Any = torch.library.Library("implicit_conv", "FRAGMENT")  # lives as long as the process
aten, tags = torch.ops.aten, (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


def convolution(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    transposed: bool = False,
    output_padding: Sequence[int] = (0, 0),
    groups: int = 1,
) -> Any:
    """``torch.ops.aten.convolution`` of tensors on the CPU, computed here, and of tensors on a GPU,
    computed here where that was measured to be faster.

    Tensors of other devices, and what this package does not serve, are computed by torch, with its
    errors. Gradients, second ones too, ``torch.vmap``, ``torch.compile`` and ``torch.export`` work;
    graphs then have the node ``implicit_conv.convolution``. Autocast leaves its operands as they
    are, and ``torch.func.grad`` does not take operators like this one.

    Parameters
    ----------
    x : tensor of shape (N, C, ...), with one to three spatial axes
    w : tensor of shape (K, C / groups, ...), or (C, K / groups, ...) if `transposed`
    bias : tensor of shape (K,), optional
    stride, padding, dilation, output_padding : sequences of int, one for each spatial axis
    transposed : bool
    groups : int

    Returns
    -------
    y : tensor, with the strides that torch's own operator would give it

    Raises
    ------
    RuntimeError
        Those of ``torch.ops.aten.convolution``.

    Examples
    --------
    >>> import torch
    >>> from implicit_conv.torch.op import convolution
    >>> convolution(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)).item()
    9.0
    """
    return torch.ops.implicit_conv.convolution(
        x, w, bias, stride, padding, dilation, transposed, output_padding, groups
    )


class ConvolutionPass:
    """A pass of Inductor that has convolutions of a compiled graph computed here.

    With ``torch._inductor.config.freezing`` Inductor computes them by oneDNN, with weights in its
    order, and `enable` never sees them; a graph that went through this pass computes them here.

    Examples
    --------
    >>> import torch
    >>> from implicit_conv.torch.op import ConvolutionPass
    >>> options = {"freezing": True, "joint_custom_pre_pass": ConvolutionPass()}
    >>> compiled = torch.compile(torch.nn.Conv2d(1, 1, 3).eval(), options=options)
    """

    def __call__(self, graph: Any) -> None:
        """Put this package's operators in the place of torch's, where it has kernels for the device
        of all tensors.
        """
        for node in graph.nodes:
            if node.op == "call_function" and node.target in OURS and _is_served(node):
                node.target = OURS[node.target]

    def uuid(self) -> str:
        """What tells versions of this pass apart in Inductor's cache of graphs."""
        return f"implicit_conv {Path(__file__).read_text('utf-8')}"


def _is_served(node: Any) -> bool:
    tensors = [argument.meta.get("val") for argument in node.all_input_nodes]
    devices = {getattr(tensor, "device", None) for tensor in tensors}
    return len(devices) == 1 and getattr(devices.pop(), "type", "").upper() in override.REGISTERED


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradients of `convolution` need."""
    x, w, bias, *ctx.sizes = inputs
    ctx.bias_sizes = None if bias is None else list(bias.shape)
    ctx.save_for_backward(x, w)


def _gradients(ctx: Any, dy: Any) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    mask = [*ctx.needs_input_grad[:2], ctx.bias_sizes is not None and ctx.needs_input_grad[2]]
    backward = torch.ops.implicit_conv.convolution_backward
    found = backward(dy, x, w, ctx.bias_sizes, *ctx.sizes, mask)
    return *(own if asked else None for own, asked in zip(found, mask, strict=True)), *[None] * 6


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the second gradients need."""
    dy, x, w, _, *ctx.sizes, _ = inputs
    ctx.save_for_backward(dy, x, w)


def _second_gradients(ctx: Any, *of_gradients: Any) -> tuple[Any, ...]:
    """By torch's own formula, whose convolutions `enable` computes where it is in force."""
    dy, x, w = ctx.saved_tensors
    mask = list(ctx.needs_input_grad[:3])
    found = aten._convolution_double_backward(*of_gradients, dy, w, x, *ctx.sizes, mask)
    return *(own if asked else None for own, asked in zip(found, mask, strict=True)), *[None] * 8


def _batched(name: str) -> Any:
    """The rule of vmap: one call, one after another, for each of the batch."""

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
        def one(place: int) -> Any:
            taken = (
                argument.select(dim, place) if isinstance(dim, int) else argument
                for argument, dim in zip(arguments, in_dims, strict=True)
            )
            return getattr(torch.ops.implicit_conv, name)(*taken)

        results = [one(place) for place in range(info.batch_size)]
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        columns = zip(*results, strict=True)
        stacked = tuple(None if each[0] is None else torch.stack(each) for each in columns)
        return stacked, tuple(None if each is None else 0 for each in stacked)

    return rule


def _register() -> None:
    library, define = torch.library, LIBRARY.define
    define(f"convolution(Tensor x, Tensor w, Tensor? bias, {SIZES}) -> Tensor", tags=tags)
    define(
        f"convolution_backward(Tensor dy, Tensor x, Tensor w, SymInt[]? bias_sizes, {SIZES}, "
        "bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        tags=tags,
    )
    rules = {
        "convolution": (aten.convolution, _gradients, _keep),
        "convolution_backward": (aten.convolution_backward, _second_gradients, _keep_gradients),
    }
    for name, (theirs, gradients, keep) in rules.items():
        for key, kernels in override.REGISTERED.items():
            if name in kernels:
                LIBRARY.impl(name, kernels[name], key, with_keyset=True)
        LIBRARY.impl(name, theirs, "CompositeExplicitAutograd")
        full = f"implicit_conv::{name}"
        library.register_fake(full, theirs, lib=LIBRARY)
        library.register_autograd(full, gradients, setup_context=keep, lib=LIBRARY)
        library.register_vmap(full, _batched(name), lib=LIBRARY)


_register()
own = torch.ops.implicit_conv
OURS = {
    aten.convolution.default: own.convolution.default,
    aten.convolution_backward.default: own.convolution_backward.default,
}
