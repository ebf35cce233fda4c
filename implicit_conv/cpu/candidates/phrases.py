"""The phrases of `explain` that several methods share."""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import segments
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem

LISTED_BUFFERS = 8  # buffers of a row that are listed one by one


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 image", "2 images"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def options_of(problem: Problem) -> str:
    """The options and the dtype of a problem, as its text has them after the shapes."""
    return str(problem).partition(f" -> y {problem.output_shape}")[2]


def gradient_text(problem: Problem, names: tuple[str, str], result: str) -> str:
    """The gradient of `problem` with respect to its input, in the words of the operator.

    The letters C and K of the filter of a transposed convolution, which reads an x, are swapped.
    """
    layout = problem.weight_layout
    if names[0] == "x":
        layout = layout.translate(str.maketrans("CK", "KC"))
    return (
        f"{names[0]} {problem.output_shape} {problem.array_layout}, {names[1]} "
        f"{problem.weight_shape} {layout} -> {result} {problem.input_shape}{options_of(problem)}"
    )


def plane_word(g: Geometry) -> str:
    """What the outermost axis of a load tile counts."""
    return "output plane" if g.Z > 1 else "image"


def buffered_rows(g: Geometry) -> tuple[int, str]:
    """The buffered rows of a load tile whose output planes share some, else those of a plane; and
    what has so many.
    """
    if g.tile_n > 1 and schedule.plane_pitch(g) < g.T:
        return schedule.tile_rows(g), "load tile"
    return schedule.image_rows(g), plane_word(g)


def loads_of(g: Geometry) -> str:
    """How the rows of a load tile are copied to row buffers."""
    buffers = [
        f"w_offset {schedule.column_offset(g, b)} halo {schedule.column_halo(g, b)}"
        for b in range(min(g.phases_w, LISTED_BUFFERS))
    ]
    if g.phases_w > LISTED_BUFFERS:
        buffers.append(f"and {g.phases_w - LISTED_BUFFERS} more")
    order = "whole rows" if g.step_w != g.stride_w else "im2col::w order"
    rows, per = buffered_rows(g)
    return (
        f"x is copied to buffers in {order}: {count(rows, 'row')} of "
        f"{count(schedule.column_pixels(g, g.tile_q), 'pixel')} plus halo per {per}, "
        f"{count(g.phases_w, 'buffer')} per row ({'; '.join(buffers)}), for "
        f"{count(schedule.filter_rows(g), 'filter row')}"
    )


def geometry_items(g: Geometry, chunk: int) -> str:
    """How the work is divided: "1 group x 8 tiles x 1 chunk of 2 panels"."""
    chunks = schedule.ceil_div(schedule.panel_count(g), chunk)
    return (
        f"{count(g.groups, 'group')} x {count(schedule.tile_count(g), 'tile')} x "
        f"{count(chunks, 'chunk')} of {count(chunk, 'panel')}"
    )


def share_left_out(g: Geometry, in_place: bool) -> str:
    """The share of the taps that read padding alone and are skipped, in words; empty if small."""
    used = sum(columns * taps for columns, taps in segments(g, in_place))
    left_out = 1 - used / (g.Q * g.S)
    return (
        f", of which {left_out:.0%} read padding alone and are skipped" if left_out >= 0.01 else ""
    )


def blocks_of(g: Geometry, per: str = "") -> str:
    """The k-blocks and panels of a group: "1 block of 64 channels x 9 taps; 2 panels per group"."""
    return (
        f"{count(schedule.block_count(g), 'block')} of {count(g.tile_c, 'channel')}{per}; "
        f"{count(schedule.panel_count(g), 'filter panel')} per group"
    )
