"""What a fold multiplies: w as a filter of single taps, and the tile of their products."""

from __future__ import annotations

import math
from dataclasses import replace

from implicit_conv.arrays.arrays import Array, ordered
from implicit_conv.cpu.engines.fold_blocks import Blocks
from implicit_conv.cpu.run.call import contiguous_strides
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.problem import Problem


def is_row(problem: Problem, strides: tuple[int, ...]) -> bool:
    """Whether the filters and taps of a channel are one row of a w with these strides."""
    shape = problem.weight_shape
    given = [(shape[at], strides[at]) for at in problem.filter_axes[1:] if at >= 0]
    new = contiguous_strides(tuple(extent for extent, _ in given), ITEMSIZES[problem.dtype])
    return all(extent == 1 or step == own for (extent, step), own in zip(given, new, strict=True))


def as_products(problem: Problem, w: Array) -> Array:
    """The filter of the products: a view of `w` with the axes t, r, s, c, k of single taps."""
    return ordered(w, problem.filter_axes).reshape(problem.K, -1)[None, None, None]


def product_problem(problem: Problem, blocks: Blocks) -> Problem:
    """The fprop of single taps that makes the products of a block."""
    size = list(problem.output)
    size[blocks.axis] = blocks.extent
    ones, zeros = (1, 1, 1), (0, 0, 0)
    return replace(
        problem,
        N=1,
        C=problem.K,
        K=problem.C * math.prod(problem.kernel),
        size=tuple(size),
        kernel=ones,
        stride=ones,
        dilation=ones,
        pad_lo=zeros,
        pad_hi=zeros,
        layout="NDHWC",
        weight_layout="TRSCK",
        padding_mode="zeros",
        batched=True,
        converted=not problem.channels_last,  # planes are transposed, not read in place
    )


def tile_strides(problem: Problem, blocks: Blocks) -> tuple[int, ...]:
    """The strides of the tile, with the axes n, d, h, w, c."""
    _, h, w = product_problem(problem, blocks).size
    size = ITEMSIZES[problem.dtype]
    pixel = blocks.pitch * size
    return blocks.pixels * pixel, h * w * pixel, w * pixel, pixel, size


def of_block(problem: Problem, blocks: Blocks, x: Array, n: int = 0, first: int = 0) -> Array:
    """The pixels of image `n` from `first` on that a block reads, with the axes n, d, h, w, c."""
    place = [slice(n, n + 1), *[slice(None)] * 4]
    place[1 + blocks.axis] = slice(first, first + blocks.extent)
    return ordered(x, problem.axes)[tuple(place)]
