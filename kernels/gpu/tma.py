"""Hooks: tensor copies. Coordinates are in the order of PTX, fastest first: c, w, h, n.

A load writes to shared memory `smem` and reports its bytes to `barrier`; `map` is the address of a
tensor map. One lane issues it (`warp.elect`). Sections: PTX ISA 9.7.9.25.5 (copies), 5.5 (tensors
and modes).
"""

from __future__ import annotations

from implicit_conv.kernels.gpu.intrinsic import Asm
from implicit_conv.kernels.gpu.ptx import instruction, instructions

LOAD = "cp.async.bulk.tensor.%dd.shared::%s.global%s.mbarrier::complete_tx::bytes%s "


@instruction(
    LOAD % (3, "cta", ".tile", "") + "[$0], [$1, {$2, $3, $4}], [$5];", "rliiir", target="sm_90"
)
def load_tile_3d(smem: int, map: int, c: int, b: int, a: int, barrier: int) -> None:
    """``cp.async.bulk.tensor.3d.tile``: the map's box at (c, b, a).

    PTX 8.6 for .shared::cta, sm_90.
    """


@instructions
def load_im2col(
    mode: str, cluster: bool = False, multicast: bool = False, cta_group: int = 0
) -> tuple[str, Asm]:
    """``cp.async.bulk.tensor.4d`` of a mode of im2col; its last operands depend on the mode.

        im2col          pixels_per_column pixels of one filter tap; offsets of w and of h (sm_90)
        im2col::w       pixels of one row per image, and `halo` more; halo, offset of w (sm_100)
        im2col::w::128  128 pixels and the halos of four groups; halo, offset of w (sm_100a)

    With `cluster` it is a load into the blocks of a cluster; those of w then need sm_100a.
    `multicast` adds an operand with a mask of blocks. `cta_group` is 1 or 2 (sm_100a); with 2 the
    barrier may be in either block of a pair.

    PTX 8.6; im2col into a cluster PTX 8.0.
    """
    suffix = ".multicast::cluster" if multicast else ""
    suffix += f".cta_group::{cta_group}" if cta_group else ""
    text = LOAD % (4, "cluster" if cluster else "cta", f".{mode}", suffix)
    text += "[$0], [$1, {$2, $3, $4, $5}], [$6], {$7, $8}" + (", $9;" if multicast else ";")
    names = "smem map c w h n barrier first second" + (" blocks" if multicast else "")
    target = {"im2col": "sm_90", "im2col::w": "sm_100", "im2col::w::128": "sm_100a"}[mode]
    if cta_group or (cluster and mode != "im2col"):
        target = "sm_100a"
    return names, Asm(text, "rliiiirhh" + "h" * multicast, target=target)
