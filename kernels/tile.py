"""Tile: the compile-time choices of one plan, and the counts and bytes that follow from them."""

from dataclasses import dataclass

MODES = ("im2col", "w", "w128", "rows")


@dataclass(frozen=True)
class Tile:
    """How a problem is cut: gemm_m x gemm_n x gemm_k of a block, stages of its ring, register tile.

    `mode` says what one activation load is: "im2col" (tile_m pixels of one tap), "w" and "w128"
    (tile_m pixels of one output row and their halo, shared by the taps of a filter row), or "rows"
    (the CPU: whole image rows, each an im2col::w walk, shared by the filter rows too).
    """

    mode: str
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int = 1
    slots_per_row: int = 0
    reg_m: int = 0
    reg_n: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is none of {', '.join(MODES)}")
