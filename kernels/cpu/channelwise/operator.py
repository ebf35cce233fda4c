"""The launches of channelwise operators."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.channelwise.layout import SLOT, Images
from implicit_conv.kernels.cpu.images.operator import launch_of
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.tile.storage import Stored


def windows(
    dtype: Stored, largest: bool, images: Images, items: int, threads: int, keep: Any
) -> Launch:
    """The launch of windows: of maxima if `largest`, else of means. `keep` owns their tables."""
    part = ".channelwise.compiled.windows:make_reduce_row", dtype, largest
    entry = ".channelwise.compiled.windows:WINDOWS"
    return launch_of(entry, {SLOT: part}, images, items, 0, threads, keep)


def pairs(dtype: Stored, adds: bool, images: Images, items: int, threads: int) -> Launch:
    """The launch of sums with the second operand, if it `adds`, else of products with a gate."""
    part = ".channelwise.compiled.pairs:make_combine_row", dtype, adds
    entry = ".channelwise.compiled.pairs:PAIRS"
    return launch_of(entry, {SLOT: part}, images, items, 0, threads, None)
