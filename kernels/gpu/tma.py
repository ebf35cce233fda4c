"""Hooks: tensor copies. Coordinates are in the order of PTX, fastest first: c, w, h, [d,] n.

A load writes to shared memory `smem` and reports its bytes to `barrier`; `map` is the address of a
tensor map. One lane issues it (`warp.elect`). Sections: PTX ISA 9.7.9.25.5 (copies), 5.5 (tensors
and modes).
"""

from __future__ import annotations

from implicit_conv.kernels.gpu.intrinsic import Asm
from implicit_conv.kernels.gpu.ptx import instruction, instructions

LOAD = "cp.async.bulk.tensor.%dd.shared::cta.global%s.mbarrier::complete_tx::bytes "


@instruction(LOAD % (3, ".tile") + "[$0], [$1, {$2, $3, $4}], [$5];", "rliiir", target="sm_90")
def load_tile_3d(smem: int, map: int, c: int, b: int, a: int, barrier: int) -> None:
    """``cp.async.bulk.tensor.3d.tile``: the map's box at (c, b, a).

    PTX 8.6 for .shared::cta, sm_90.
    """


@instructions
def load_im2col(mode: str) -> tuple[str, Asm]:
    """``cp.async.bulk.tensor.4d`` of a mode of im2col; its last operands depend on the mode.

        im2col          pixels_per_column pixels of one filter tap; offsets of w and of h (sm_90)
        im2col::w       pixels of one row per image, and `halo` more; halo, offset of w (sm_100)
        im2col::w::128  128 pixels and the halos of four groups; halo, offset of w (sm_100a)

    PTX 8.6.
    """
    text = LOAD % (4, f".{mode}") + "[$0], [$1, {$2, $3, $4, $5}], [$6], {$7, $8};"
    target = {"im2col": "sm_90", "im2col::w": "sm_100", "im2col::w::128": "sm_100a"}[mode]
    return "smem map c w h n barrier first second", Asm(text, "rliiiirhh", target=target)


@instruction(
    LOAD % (5, ".im2col") + "[$0], [$1, {$2, $3, $4, $5, $6}], [$7], {$8, $9, $10};",
    "rliiiiirhhh",
    target="sm_90",
)
def load_im2col_5d(
    smem: int,
    map: int,
    c: int,
    w: int,
    h: int,
    d: int,
    n: int,
    barrier: int,
    offset_w: int,
    offset_h: int,
    offset_d: int,
) -> None:
    """``cp.async.bulk.tensor.5d.im2col``: pixels_per_column pixels of one tap of a volume.

    PTX 8.6 for .shared::cta, sm_90.
    """
