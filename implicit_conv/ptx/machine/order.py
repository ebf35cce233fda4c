"""Atomic operations, and the order that strong accesses and fences make (PTX ISA 8 and 9.7.13).

A release at an address leaves its warp's clock there, and an acquire that reads the address joins
it. A fence makes releases of the relaxed writes after it, and acquires of the relaxed reads before
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine.reductions import OPERATIONS
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.memory.clocks import Flags, join
from implicit_conv.ptx.memory.spaces import BLOCK_BYTES

RELEASES, ACQUIRES = ("release", "acq_rel", "sc"), ("acquire", "acq_rel", "sc")


def publish(w: State, flags: Flags, at: Lanes, semantics: str) -> None:
    """A strong write to addresses: what is released there."""
    clock = w.release() if semantics in RELEASES else w.fence_released
    if clock is not None:
        for address in np.unique(at).tolist():
            if address in flags:  # a release sequence goes on
                clock = np.maximum(clock, flags[address])
            flags[address] = clock


def observe(w: State, flags: Flags, at: Lanes, semantics: str) -> None:
    """A strong read of addresses: what is acquired, now or by the next fence."""
    for address in np.unique(at).tolist():
        clock = flags.get(address)
        if clock is None:
            continue
        if semantics in ACQUIRES:
            w.acquire(clock)
        else:
            join(w.fence_acquired, clock)


def fence(w: State) -> None:
    """``fence.acq_rel``, ``fence.sc`` and ``membar`` (9.7.13, membar)."""
    w.acquire(w.fence_acquired)
    w.fence_released = w.release()


def atomic(
    w: State,
    space: str,
    operation: str,
    at: Lanes,
    values: tuple[Lanes, ...],
    semantics: str,
    mask: Lanes,
    owner: Any = None,
) -> Lanes:
    """``atom`` and ``red``: lanes one after the other; the old values (9.7.13, atom and red).

    `owner`: the block whose shared memory is meant, by default the warp's own.
    """
    kind = values[0].dtype
    size = kind.itemsize
    lanes = np.flatnonzero(mask)
    if space == "shared::cluster":
        out = np.zeros(LANES, kind)
        for cta, these in w.cta.blocks_of(w, at, mask):
            own = at & (BLOCK_BYTES - 1)
            made = atomic(w, "shared", operation, own, values, semantics, these, cta)
            out[these] = made[these]
        return out
    here = at[lanes]
    if (here & (size - 1)).any():
        raise PtxError(f"atom of {size} bytes: an address is not aligned")
    shared = (owner or w.cta).shared
    flags = shared.flags if space == "shared" else w.cta.cluster.flags
    observe(w, flags, here, semantics)
    publish(w, flags, here, semantics)
    if space == "shared":
        offsets = shared.offsets(here, size, "atom.shared")
        shared.note_strong(w, offsets // size, size, "atom.shared", True)
    out = np.zeros(LANES, kind)
    for lane, address in zip(lanes.tolist(), here.tolist(), strict=True):
        if space == "shared":
            offset = address - int(here[0]) + int(offsets[0])
            cell = shared.data[offset : offset + size].view(kind)
        else:
            w.launch.note_store(address, size)
            cell = w.memory.bytes(address, size).view(kind)
        out[lane] = cell[0]
        if operation != "cas":
            cell[0] = OPERATIONS[operation](cell[0], values[0][lane])
        elif cell[0] == values[0][lane]:
            cell[0] = values[1][lane]
    return out
