"""Tensors as the arrays of a plan: their layouts and their memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from implicit_conv.arrays.arrays import Array
from implicit_conv.arrays.tensors import tensor_array

DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
CHANNELS_LAST = torch.channels_last, torch.channels_last_3d  # of images and of volumes
PIXELS, TAPS = ("W", "HW", "DHW"), ("S", "RS", "TRS")  # letters of 1, 2 and 3 spatial axes


class View:
    """How a plan sees tensors of one shape, strides and dtype.

    Attributes
    ----------
    shape, strides : tuple of int
        Those of the tensor, strides in elements.
    axes : tuple of int or None
        The tensor's axes in the order of the plan, which has axis 1, the channels, last; None if
        the plan has the axes of the tensor.
    planned_shape, planned_strides : tuple of int
        Those of the plan, strides in bytes.
    layout : str
        The plan's name for the order of the axes: `letters`, such as "NC" or "KC", and those of
        pixels or taps.
    """

    def __init__(
        self, shape: Sequence[int], strides: Sequence[int], size: int, letters: str, last: bool
    ) -> None:
        """The view of tensors with elements of `size` bytes; `last` says whether the plan has their
        channels last.
        """
        rank = len(shape) - 2
        space = (PIXELS if letters == "NC" else TAPS)[rank - 1]
        order = (0, *range(2, rank + 2), 1) if last else tuple(range(rank + 2))
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.axes = order if last else None
        self.planned_shape = tuple(map(self.shape.__getitem__, order))
        self.planned_strides = tuple([self.strides[axis] * size for axis in order])
        self.layout = f"{letters[0]}{space}{letters[1]}" if last else f"{letters}{space}"

    @classmethod
    def of_images(cls, x: Any, order: Any, shape: Sequence[int] | None = None) -> View:
        """The view of images such as `x`, for a plan whose results are in torch's memory format
        `order`; or with `shape` that of the results, which have the dtype of `x`.
        """
        strides = x.stride() if shape is None else _new_strides(shape, order)
        shape = x.shape if shape is None else shape
        return cls(shape, strides, x.element_size(), "NC", order in CHANNELS_LAST)

    @classmethod
    def of_filter(cls, w: Any, letters: str, order: Any = None) -> View:
        """The view of the filter `w`, whose first axes are `letters`: "KC", or transposed "CK"; or
        with `order` that of its gradient in this memory format.
        """
        strides = w.stride() if order is None else _new_strides(w.shape, order)
        taps = zip(w.shape[2:], strides[2:], strict=True)
        last = strides[1] == 1 and any(size > 1 and step > 1 for size, step in taps)
        return cls(w.shape, strides, w.element_size(), letters, last)

    def array(self, tensor: Any) -> Array:
        """Such a tensor as the plan's array."""
        return self.planned(tensor_array(tensor))

    def planned(self, array: Array) -> Array:
        """An array with the axes of the tensor as the plan's array."""
        return array if self.axes is None else array.transpose(self.axes)


def _new_strides(shape: Sequence[int], order: Any) -> tuple[int, ...]:
    """The strides of new tensors in a memory format of torch; signals are images of one row."""
    rows = (1,) * (len(shape) == 3 and order is torch.channels_last)
    extents = (*shape[:2], *rows, *shape[2:])
    new = torch.empty(extents, memory_format=order, device="meta")
    return tuple((new.squeeze(2) if rows else new).stride())


def sums_array(bias: Any) -> Array:
    """A bias as the array that calls take: 16-bit types are summed in float32."""
    return tensor_array(bias if bias.element_size() > 2 else bias.detach().float())
