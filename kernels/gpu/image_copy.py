"""A kernel that copies images with any strides as channels-last ones, padded with zeros.

    x, x_n, x_h, ...       the images
    y                      the copy, (N, H, columns, channels), contiguous
    H, W, C, pad_w         of the images; the copy has so many columns of zeros before each row
    Q                      chunks of 16 bytes along the columns of the copy
    tiles_m                chunks of a pixel of the copy; one where a chunk has several pixels
    tiles_n, row_tiles     chunks that neighbouring threads copy, and groups of these in a pixel
    rows                   chunks in this order: tiles_n, Q, row_tiles, H, N

Two neighbouring chunks of a pixel are a sector of memory, and so are 16 pixels of a channel plane.
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels.gpu import blob, gmem, warp
from implicit_conv.kernels.gpu.integer import divide
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import VECTOR_BYTES
from implicit_conv.kernels.gpu.wgrad_variant import ImageCopy


@functools.cache
def make_image_copy(v: ImageCopy) -> Any:
    """The kernel of variant `v`; its one argument is the params blob."""
    threads, unit, pixels = v.threads, v.unit, v.pixels
    word = make_word(v)
    words = VECTOR_BYTES // 4
    step = unit // words

    def image_copy(argument: Any) -> None:
        params = blob.unpack(argument)
        g, call = params.geometry, params.call
        index = warp.block() * threads + warp.index() * 32 + warp.lane()
        while index < call.rows:
            rest = divide(index, call.by_group)
            chunk = index - rest * call.tiles_n
            row = divide(rest, call.by_row)
            q = rest - row * g.Q
            rest = divide(row, call.by_panel)
            chunk += (row - rest * call.row_tiles) * call.tiles_n
            n = divide(rest, call.by_image)
            c, w = chunk * unit, q * pixels - g.pad_w
            source = call.x + n * call.x_n + (rest - n * g.H) * call.x_h
            source += w * call.x_w + c * call.x_c
            place = source, w, c
            content = (
                word(params, place, 0),
                word(params, place, step),
                word(params, place, 2 * step),
                word(params, place, 3 * step),
            )
            target = call.y + ((rest * g.Q + q) * call.tiles_m + chunk) * VECTOR_BYTES
            gmem.store_quad(target, content, chunk < call.tiles_m)
            index += warp.blocks() * threads

    return image_copy


def make_word(v: ImageCopy) -> Any:
    """word(params, place, number): 4 bytes of a chunk, which begin with the given element."""
    itemsize, channels, load = v.itemsize, v.unit // v.pixels, gmem.load(v.itemsize, True)

    @device
    def element(params: Any, place: Any, number: int) -> Any:
        g, call, (source, w, c) = params.geometry, params.call, place
        pixel, channel = number // channels, number % channels
        w += pixel
        inside = (w >= 0) & (w < g.W) & (c + channel < g.C)
        return load(source + pixel * call.x_w + channel * call.x_c, inside)

    @device
    def word(params: Any, place: Any, number: int) -> Any:
        bits = element(params, place, number)
        if itemsize == 4:
            return bits
        return bits | element(params, place, number + 1) << 16

    return word
