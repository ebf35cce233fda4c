"""Special registers (PTX ISA 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.kinds import LANES

if TYPE_CHECKING:
    from implicit_conv.ptx.machine.state import State

Lanes = NDArray[Any]
LANE = np.arange(LANES)
AXES = "xyz"
CLUSTER_OF_ONE = {  # values outside of any cluster launch
    "%cluster_ctarank": 0, "%cluster_nctarank": 1, "%is_explicit_cluster": 0,
    **{f"%cluster_ctaid.{axis}": 0 for axis in AXES},
    **{f"%cluster_nctaid.{axis}": 1 for axis in AXES},
}  # fmt: skip
LANE_MASKS = {
    "%lanemask_eq": 1 << LANE, "%lanemask_lt": (1 << LANE) - 1, "%lanemask_le": (2 << LANE) - 1,
    "%lanemask_gt": ~((2 << LANE) - 1) & 0xFFFFFFFF,
    "%lanemask_ge": ~((1 << LANE) - 1) & 0xFFFFFFFF,
}  # fmt: skip
CLOCKS = ("%clock", "%clock64", "%globaltimer")  # count instructions here
OTHERS = (
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%dynamic_smem_size",
    "%total_smem_size",
)  # fmt: skip
SIZES = ("%tid", "%ntid", "%ctaid", "%nctaid")
SPECIALS = {
    *CLUSTER_OF_ONE, *LANE_MASKS, *CLOCKS, *OTHERS,
    *(f"{base}.{axis}" for base in SIZES for axis in AXES),
}  # fmt: skip


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
    if base in SIZES:
        place = AXES.index(axis)
        if base == "%tid":
            thread = LANE + LANES * w.index
            return thread // int(np.prod(launch.block[:place])) % launch.block[place]
        return {"%ntid": launch.block, "%ctaid": cta.index, "%nctaid": launch.grid}[base][place]
    values = {
        "%laneid": LANE, "%warpid": w.index, "%nwarpid": cta.warps_count, "%smid": 0, "%nsmid": 1,
        "%gridid": 0, "%dynamic_smem_size": launch.dynamic_bytes,
        "%total_smem_size": launch.shared_bytes, **dict.fromkeys(CLOCKS, launch.executed),
        **LANE_MASKS, **CLUSTER_OF_ONE,
    }  # fmt: skip
    return values[name]
