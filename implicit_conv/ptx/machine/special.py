"""Special registers (PTX ISA 10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.ptx.kinds import LANE, LANES, Lanes
from implicit_conv.ptx.machine.state import State

AXES = "xyz"
_BELOW, _ALL = (1 << LANE) - 1, (1 << LANES) - 1
CONSTANTS: dict[str, Any] = {
    "%laneid": LANE,
    "%lanemask_eq": 1 << LANE,
    "%lanemask_lt": _BELOW,
    "%lanemask_le": 2 * _BELOW + 1,
    "%lanemask_gt": _ALL ^ (2 * _BELOW + 1),
    "%lanemask_ge": _ALL ^ _BELOW,
    **dict.fromkeys(("%smid", "%gridid"), 0),
    "%nsmid": 1,
}
CLOCKS = ("%clock", "%clock64", "%globaltimer")  # count instructions here
OTHERS = (
    *("%warpid", "%nwarpid", "%dynamic_smem_size", "%total_smem_size"),
    *("%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster"),
)
BASES = (
    *("%tid", "%ntid", "%ctaid", "%nctaid"),
    *("%cluster_ctaid", "%cluster_nctaid", "%clusterid", "%nclusterid"),
)
SIZES = [f"{base}.{axis}" for base in BASES for axis in AXES]
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
        size, at, count = launch.cluster[place], cta.index[place], launch.grid[place]
        return {
            "%ntid": launch.block[place],
            "%ctaid": at,
            "%nctaid": count,
            "%cluster_ctaid": at % size,
            "%cluster_nctaid": size,
            "%clusterid": at // size,
            "%nclusterid": count // size,
        }[base]
    if name in CLOCKS:
        return launch.executed
    sizes = w.index, cta.warps_count, launch.dynamic_bytes, launch.shared_bytes
    rank = cta.actors.rank, cta.actors.blocks, launch.is_explicit_cluster
    return (*sizes, *rank)[OTHERS.index(name)]
