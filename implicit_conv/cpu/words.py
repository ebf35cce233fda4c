"""Sentences of `explain` that several methods share."""

from __future__ import annotations

from implicit_conv.cpu.tiling import column_share
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 image", "2 images"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def loads_of(g: Geometry) -> str:
    """How a tile's rows come into row buffers."""
    buffers = [
        f"w_offset {schedule.column_offset(g, b)} halo {schedule.column_halo(g, b)}"
        for b in range(g.phases_w)
    ]
    walk = "whole rows" if g.step_w != g.stride_w else "im2col::w walks"
    return (
        f"{walk} of {schedule.column_pixels(g, g.tile_q)} pixels and halo into "
        f"{count(len(buffers), 'buffer')} per row ({'; '.join(buffers)}), "
        f"{count(schedule.image_rows(g), 'row')} per image, shared by "
        f"{count(g.R, 'filter row')}"
    )


def geometry_items(g: Geometry, chunk: int) -> str:
    """The division of the work."""
    chunks = schedule.ceil_div(schedule.panel_count(g), chunk)
    return (
        f"{count(g.groups, 'group')} x {count(schedule.tile_count(g), 'tile')} x "
        f"{count(chunks, 'chunk')} of {count(chunk, 'panel')}"
    )


def share_left_out(g: Geometry) -> str:
    """How much of the filter meets padding alone and is not multiplied; empty if nothing."""
    share = column_share(g)
    return f", of which {1 - share:.0%} meet padding alone and are skipped" if share < 1 else ""
