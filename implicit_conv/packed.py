"""Packed filters, and what plans that share them must have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from implicit_conv.kernels import schedule

if TYPE_CHECKING:
    from implicit_conv.arrays import Array
    from implicit_conv.plan import Plan

OWN_ORDER = {"depthwise": 1, "gemm_im2col": 2}  # of packed filters


@dataclass(frozen=True, eq=False)
class PackedFilter:
    """A filter in the engine's own order, for plans that cut filters alike.

    Images of another size may get a plan with another algorithm, which takes another order: pack
    with each plan.

    Attributes
    ----------
    panels : uint8 array, 64-byte aligned
    key : tuple
        What must agree between the plan that packed it and the one that runs it.
    address : int
        Where the panels lie.
    """

    panels: Array
    key: tuple[object, ...]
    address: int

    def __reduce__(self) -> tuple[object, ...]:
        """A copy, pickled or deep, is aligned anew: kernels rely on it."""
        return copy_packed, (self.panels.tobytes(), self.key)


def copy_packed(content: bytes, key: tuple[object, ...]) -> PackedFilter:
    """A packed filter of these bytes."""
    from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes

    panels = aligned_bytes(len(content))
    panels[:] = np.frombuffer(content, np.uint8)
    return PackedFilter(panels, key, panels.ctypes.data)


def filter_key(plan: Plan) -> tuple[object, ...]:
    """What the order of a packed filter depends on."""
    g, problem = plan.geometry, plan.problem
    phases = g.phases_w if g.step_w > 1 else 1  # where rows lie as they are, taps keep their order
    return (
        plan.winograd and schedule.box_products(g, plan.winograd), OWN_ORDER.get(plan.algorithm, 0),
        plan.swapped, plan.pixel_lanes, plan.channel_lanes and problem.weight_layout,
        plan.group_lanes and plan.group_channels,
        problem.K, problem.C, problem.kernel, problem.dtype,  # a geometry may count others
        plan.pairs, plan.arch.vector_bits, g.K, g.groups, g.tile_c, g.tile_k, phases,
    )  # fmt: skip
