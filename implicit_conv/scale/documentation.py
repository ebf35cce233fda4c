"""The documentation of functions of lazy arrays: texts of all doors, which differ in few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Door(NamedTuple):
    """What the texts of a door say of its library.

    Attributes
    ----------
    name : str
        "dask" or "cubed".
    module : str
        The module that examples take ``ones`` from, with its usual alias: "dask.array as da".
    inputs : str
        What the functions take.
    masks : str
        When they raise a DTypeError for a mask.
    """

    name: str
    module: str
    inputs: str
    masks: str


CONVOLUTION = """`implicit_conv.{name}` of a {door.name} array: a lazy {door.name} array.

    Parameters
    ----------
    x : {door.inputs}
        The input.
    w, bias, scale : numpy arrays
        As in `implicit_conv.{name}`.
    {others}
        As in `implicit_conv.{name}`, which has residual, out and device too.

    Returns
    -------
    y : {door.name} array
        Its chunks follow those of x; channels are one chunk.

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `implicit_conv.{name}`, at once, not in a task.
    DTypeError
        {door.masks}

    Examples
    --------
    >>> import {door.module}
    >>> import numpy as np
    >>> from implicit_conv.{door.name} import {name}
    >>> x = {alias}.ones((1, 2, {size}), chunks=(1, 2, {chunk}), dtype="float32")
    >>> y = {name}(x, np.ones((2, 2, {taps}), np.float32), padding=1)
    >>> y.shape, y.chunks[-1]
    ((1, 2, {size}), (16, 16))
    """
IMAGE_FILTER = """`implicit_conv.ndimage.{name}` of a {door.name} array: a lazy {door.name} array.

    Parameters
    ----------
    input : {door.inputs}
        The image.
    *args, **kwargs
        As in `implicit_conv.ndimage.{name}`, which has channel_axis and an array as output too.

    Returns
    -------
    y : {door.name} array
        Its chunks are those of the input.

    Raises
    ------
    ImportError
        scipy is not installed.
    PlanError
        An argument is not taken here.
    DTypeError
        {door.masks}

    Examples
    --------
    >>> import {door.module}
    >>> from implicit_conv.{door.name} import {name}
    >>> y = {name}({alias}.ones((64, 64), chunks=32){argument})
    >>> y.shape, y.chunks[-1]
    ((64, 64), (32, 32))
    """
AXIS = {"size": "32", "chunk": "16", "taps": "3"}  # of an example of convolutions, for each axis
ARGUMENTS = {  # of the examples of filters, where a size or a deviation of 3 is none
    **dict.fromkeys(("convolve", "correlate"), ", [[1.0, 2.0, 1.0]] * 3"),
    **dict.fromkeys(("convolve1d", "correlate1d"), ", [1.0, 2.0, 1.0]"),
    **dict.fromkeys(("laplace", "prewitt", "sobel"), ""),
    **dict.fromkeys(("percentile_filter", "rank_filter"), ", 3, 3"),
}


def convolution(door: Door, name: str, parameters: Iterable[str]) -> str:
    """The documentation of a convolution that has these parameters."""
    others = ", ".join(each for each in parameters if each not in ("x", "w", "bias", "scale"))
    axes = {word: ", ".join([value] * int(name[-2])) for word, value in AXIS.items()}
    return CONVOLUTION.format(door=door, name=name, alias=_alias(door), others=others, **axes)


def image_filter(door: Door, name: str) -> str:
    """The documentation of a filter."""
    argument = ARGUMENTS.get(name, ", 3")
    return IMAGE_FILTER.format(door=door, name=name, alias=_alias(door), argument=argument)


def _alias(door: Door) -> str:
    return door.module.rpartition(" ")[2]
