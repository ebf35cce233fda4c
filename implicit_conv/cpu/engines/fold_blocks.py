"""The blocks of a fold: which pixels of an image have their products in the tile at once.

A block has some pixels along the first axis of an image that has several, and all along others. It
writes the elements of y that its pixels reach, and that no block before it has written. Where
windows overlap along that axis, neighbouring blocks share pixels, whose products are made twice.
All blocks have the same number of pixels, so that one plan serves them.

Here is also what a block multiplies: w as a filter of single taps, and the tile of their products.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from implicit_conv.arrays.arrays import Array, ordered
from implicit_conv.cpu.candidates.tiling import balanced, rounded_up
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem.options import ITEMSIZES, contiguous_strides
from implicit_conv.problem.problem import Problem

TILE_BYTES = 2 << 20  # bytes of a tile where a block may have so few pixels
SHARED_PIXELS = 16  # pixels of a block for each one that it shares with its neighbour, at least
# Strides and elements of the rows of a filter that are summed together, at most: their lines of the
# tile fill half of an L1, and their sums a half.
PART_STRIDES = 256
PART_ELEMENTS = 4096


class Block(NamedTuple):
    """A block of pixels along an axis."""

    first: int  # pixel of x
    begin: int  # first element of y that it writes
    end: int  # the end of these elements
    pad: int  # the elements that its first pixel reaches before `begin`


class Blocks(NamedTuple):
    """The blocks of an image: all have `extent` pixels along `axis`."""

    axis: int  # of D, H, W
    extent: int
    pixels: int  # pixels of a block
    pitch: int  # elements of the tile from a pixel to the next one
    tile_bytes: int
    all: tuple[Block, ...]


def blocks_of(problem: Problem, arch: CpuArch) -> Blocks:
    """The blocks of the input gradient of `problem`, which has three spatial axes."""
    size, itemsize = problem.output, ITEMSIZES[problem.dtype]
    axis = next((axis for axis in range(3) if size[axis] > 1), 2)
    taps, stride, whole = problem.kernel[axis], problem.stride[axis], size[axis]
    products = problem.C * math.prod(problem.kernel)
    pitch = tile_pitch(products, itemsize)
    inner = math.prod(size) // whole
    shared = ceil_div(taps, stride) - 1
    row = pitch * itemsize * inner
    extent = max(TILE_BYTES // row, SHARED_PIXELS * shared, 1)
    if shared and whole * row <= 2 * TILE_BYTES:  # no product is made twice
        extent = whole
    extent = whole if extent >= whole else _cheapest(extent, whole, shared, inner, arch)
    found, end = [], 0
    for number in range(ceil_div(max(0, whole - extent), max(1, extent - shared)) + 1):
        first = min(number * (extent - shared), whole - extent)
        last = first + extent == whole
        reach = (first + extent) * stride - problem.pad_lo[axis]
        begin, end = end, problem.size[axis] if last else min(reach, problem.size[axis])
        if end > begin:
            pad = begin + problem.pad_lo[axis] - first * stride
            found.append(Block(first, begin, end, pad))
        end = max(begin, end)
    tile = extent * inner * pitch * itemsize
    return Blocks(axis, extent, extent * inner, pitch, tile, tuple(found))


def _cheapest(most: int, whole: int, shared: int, inner: int, arch: CpuArch) -> int:
    """The extent of at most `most` pixels, and at least half as many, whose blocks make the fewest
    products; register tiles are whole.
    """

    def pixels(extent: int) -> int:
        blocks = ceil_div(whole - shared, extent - shared)
        return int(blocks * rounded_up(extent * inner, arch.tile_pixels))

    step = arch.tile_pixels if inner == 1 and most > 2 * (arch.tile_pixels + shared) else 1
    least = rounded_up(max(most // 2, shared + 1), step)
    extents: list[int] = [most, *range(least, most, step)]
    return min(extents, key=lambda extent: (pixels(extent), -extent))


def tile_pitch(products: int, itemsize: int) -> int:
    """Elements from a pixel of the tile to the next one: an odd number of cache lines, since pixels
    with a large power of two between them share the sets of a cache.
    """
    lines = ceil_div(products * itemsize, LINE)
    return int(lines | 1) * LINE // itemsize


def fold_geometry(problem: Problem, blocks: Blocks, block: Block) -> Geometry:
    """The geometry of the fold of a block: D, H and W count its pixels, and Z, P and Q the elements
    that it writes.
    """
    size, pads, written = list(problem.output), list(problem.pad_lo), list(problem.size)
    size[blocks.axis], pads[blocks.axis] = blocks.extent, block.pad
    written[blocks.axis] = block.end - block.begin
    _, down, across = problem.stride
    tile_q = balanced(written[2], min(PART_STRIDES * across, PART_ELEMENTS))
    strides = ceil_div(tile_q, across)
    together = min(PART_STRIDES // strides, PART_ELEMENTS // (strides * across))
    rows = balanced(written[1], max(1, together) * down)
    return Geometry(
        N=1,
        D=size[0],
        H=size[1],
        W=size[2],
        C=1,
        K=problem.C,
        groups=1,
        T=problem.kernel[0],
        R=problem.kernel[1],
        S=problem.kernel[2],
        Z=written[0],
        P=written[1],
        Q=written[2],
        stride_d=problem.stride[0],
        stride_h=down,
        stride_w=across,
        dilation_d=1,
        dilation_h=1,
        dilation_w=1,
        pad_d=pads[0],
        pad_h=pads[1],
        pad_w=pads[2],
        step_w=1,
        phases_h=1,
        phases_w=1,
        remainders_w=1,
        slots=written[2],
        tile_n=1,
        tile_p=rows,
        tile_q=tile_q,
        tile_m=1,
        tile_c=1,
        tile_k=1,
    )


def filters_together(problem: Problem) -> int:
    """The filters of a work item: their windows fill a cache line."""
    taps = math.prod(problem.kernel)
    return int(min(problem.C, ceil_div(LINE // ITEMSIZES[problem.dtype], taps)))


def single_strides(problem: Problem, lanes: int) -> int:
    """The short strides of a row of windows that are not summed as parts of a vector."""
    taps, stride, pixels = problem.kernel[-1], problem.stride[-1], problem.output[-1]
    if stride >= lanes // 2:
        return 0
    overlap = ceil_div(taps, stride)
    last = taps - (overlap - 1) * stride
    joins = lanes % stride == 0 and last & (last - 1) == 0
    inside = max(0, pixels - overlap + 1)
    together = inside // (lanes // stride) * (lanes // stride) if joins else 0
    return pixels + overlap - 1 - together


def fold_cycles(problem: Problem, arch: CpuArch, blocks: Blocks) -> float:
    """Cycles of one core to fold the products of a block, and to finish what it writes of y."""
    costs = arch.costs
    rows = blocks.pixels // problem.output[-1] * problem.C * math.prod(problem.kernel[:2])
    if blocks.axis == 2:
        rows = problem.C * math.prod(problem.kernel[:2])
    single = rows * single_strides(problem, arch.lanes(ITEMSIZES[problem.dtype]))
    products = blocks.pixels * problem.C * math.prod(problem.kernel)
    written = problem.C * math.prod(problem.size) / len(blocks.all)
    far = blocks.tile_bytes > 2 * TILE_BYTES  # then it is written to a far cache, and read again
    stream = far * 2 * blocks.tile_bytes / costs.common.far_bytes
    summed = products * costs.transposed.product + single * costs.transposed.single
    return costs.transposed.block + summed + written * costs.transposed.finish + stream


def is_row(problem: Problem, strides: tuple[int, ...]) -> bool:
    """Whether the filters and taps of a channel are one row of a w with these strides."""
    shape = problem.weight_shape
    given = [(shape[at], strides[at]) for at in problem.filter_axes[1:] if at >= 0]
    new = contiguous_strides(tuple([extent for extent, _ in given]), ITEMSIZES[problem.dtype])
    return all([extent == 1 or step == own for (extent, step), own in zip(given, new, strict=True)])


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
