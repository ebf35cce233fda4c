"""Special registers (PTX ISA 10), and the ranks of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANE, LANES, Lanes
from implicit_conv.ptx.machine.state import State

AXES = "xyz"
_BELOW, _ALL = (1 << LANE) - 1, (1 << LANES) - 1
CONSTANTS: dict[str, Any] = {  # those of clusters have their values outside of any cluster launch
    "%laneid": LANE,
    "%lanemask_eq": 1 << LANE,
    "%lanemask_lt": _BELOW,
    "%lanemask_le": 2 * _BELOW + 1,
    "%lanemask_gt": _ALL ^ (2 * _BELOW + 1),
    "%lanemask_ge": _ALL ^ _BELOW,
    **dict.fromkeys(("%smid", "%gridid", "%cluster_ctarank", "%is_explicit_cluster"), 0),
    **dict.fromkeys(("%nsmid", "%cluster_nctarank"), 1),
    **{f"%cluster_ctaid.{axis}": 0 for axis in AXES},
    **{f"%cluster_nctaid.{axis}": 1 for axis in AXES},
}
CLOCKS = ("%clock", "%clock64", "%globaltimer")  # count instructions here
OTHERS = ("%warpid", "%nwarpid", "%dynamic_smem_size", "%total_smem_size")
SIZES = [f"{base}.{axis}" for base in ("%tid", "%ntid", "%ctaid", "%nctaid") for axis in AXES]
SPECIALS = {*CONSTANTS, *CLOCKS, *OTHERS, *SIZES}


def special_values(w: State, name: str) -> Lanes:
    """The 32 values of a special register, as uint64."""
    made = w.specials.get(name)
    if made is None:
        made = np.broadcast_to(np.asarray(_value(w, name), np.uint64), LANES).copy()
        if name not in CLOCKS:
            w.specials[name] = made
    return made


def _value(w: State, name: str) -> Any:
    launch, cta = w.launch, w.cta
    base, _, axis = name.partition(".")
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name in SIZES:
        place = AXES.index(axis)
        if base == "%tid":
            thread = LANE + LANES * w.index
            return thread // int(np.prod(launch.block[:place])) % launch.block[place]
        return {"%ntid": launch.block, "%ctaid": cta.index, "%nctaid": launch.grid}[base][place]
    if name in CLOCKS:
        return launch.executed
    values = w.index, cta.warps_count, launch.dynamic_bytes, launch.shared_bytes
    return values[OTHERS.index(name)]


def need_own_block(ranks: Lanes, mask: Lanes) -> None:
    """A block's rank in its cluster is 0, where a cluster has one block.

    Raises
    ------
    PtxError
        A lane names another.
    """
    if ranks[mask].any():
        raise PtxError(f"block {ranks[mask].max()} of a cluster of one block")
