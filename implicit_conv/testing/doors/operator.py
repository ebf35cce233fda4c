"""Convolutions by the operator ``implicit_conv::convolution`` of torch."""

from __future__ import annotations

from typing import Any


def by_operator(x: Any, w: Any, bias: Any = None, *, transposed: bool, **options: int) -> Any:
    """What ``torch.nn.functional`` computes of tensors and options that are the same for all
    axes.
    """
    from implicit_conv.torch.op import convolution

    rank = x.dim() - 2
    stride, padding, dilation = (
        [options[name]] * rank for name in ("stride", "padding", "dilation")
    )
    sizes = stride, padding, dilation, transposed, [0] * rank
    return convolution(x, w, bias, *sizes, options["groups"])
