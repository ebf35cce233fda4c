"""One convolution of a tensor, as ``torch.nn.functional`` has it, with a parameter as its filter.

It has those methods of a module that a run needs; a module would take a microsecond more a call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from implicit_conv.testing import Array, Case

CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)  # by spatial axes


class Call:
    """A function of x, of the layout NCHW."""

    def __init__(self, case: Case) -> None:
        """`case` has equal padding on both sides."""
        _, w = case.arrange(*case.inputs(0))
        self.case = case
        self.w = torch.nn.Parameter(torch.from_numpy(w))
        self.sizes = case.stride, tuple(low for low, _ in case.padding), case.dilation, case.groups
        self.convolve = CONVOLUTIONS[len(case.size) - 1]

    def __call__(self, x: Any) -> Any:
        """The convolution."""
        return self.convolve(x, self.w, None, *self.sizes)

    def array(self, x: Array) -> Any:
        """The same of an array, by `implicit_conv.conv2d` and the like of other ranks."""
        import implicit_conv

        name = f"conv{len(self.case.size)}d"
        return getattr(implicit_conv, name)(x, self.w.detach().numpy(), **self.case.options)

    def eval(self) -> Call:
        """Itself: it has one mode."""
        return self

    def to(self, dtype: Any) -> Call:
        """Itself, with a filter of this dtype."""
        self.w = torch.nn.Parameter(self.w.to(dtype))
        return self

    def parameters(self) -> list[Any]:
        """The filter."""
        return [self.w]
