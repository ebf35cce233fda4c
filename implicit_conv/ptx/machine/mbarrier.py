"""mbarrier instructions (PTX ISA 9.7.13, mbarrier), and the fences that tensor copies need."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine import order
from implicit_conv.ptx.machine.barriers import COUNT_LIMIT, Barrier
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.memory import clocks
from implicit_conv.ptx.memory.clocks import GENERIC, stamp
from implicit_conv.ptx.memory.shared import BARRIER, UNDEFINED
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE
from implicit_conv.ptx.memory.spaces import BLOCK_BYTES, WINDOW_BYTES

SIZE = 8  # bytes of an mbarrier object


def addresses(at: Lanes, mask: Lanes) -> list[int]:
    """Shared addresses of the lanes that run."""
    found: list[int] = (at[mask] & (WINDOW_BYTES - 1)).tolist()
    return found


def places(
    w: State, at: Lanes, mask: Lanes, cluster: bool, ordered: bool = True
) -> list[tuple[Any, int]]:
    """(block, address there) of the mbarriers of lanes; of the cluster's blocks, or the own one."""
    found = addresses(at, mask)
    return [w.cta.reach(w, a, ordered) if cluster else (w.cta, a) for a in found]


def find(w: State, cta: Any, address: int) -> Barrier:
    """The mbarrier at an address of a block, whose initialisation `w` must have seen."""
    barrier: Barrier | None = cta.barriers.get(address)
    hint = "" if cta is w.cta else ": a barrier.cluster in between is missing"
    if address >= BLOCK_BYTES:
        raise PtxError(
            f"the mbarrier at {address:#x}, by mapa, needs .shared::cluster, which waits lack"
        )
    if barrier is None:
        place = cta.shared.place(address - SHARED_BASE)
        raise PtxError(f"no mbarrier was initialised at {place}{hint}")
    if w.clock[GENERIC, barrier.maker] < barrier.born and barrier not in w.inits:
        raise PtxError(
            f"{barrier.name} is used, but no barrier orders that after its mbarrier.init by "
            f"{w.cta.actor(barrier.maker)}{hint}"
        )
    return barrier


def for_copy(w: State, cta: Any, address: int) -> Barrier:
    """The mbarrier at an address of a block, which a copy is about to complete on."""
    barrier = find(w, cta, address)
    if w.launch.unfenced_barriers or barrier in w.inits:
        return barrier
    fenced = barrier.fenced
    if fenced is None or w.clock[GENERIC, fenced[0]] < fenced[1]:
        raise PtxError(
            f"{barrier.name}: no fence.mbarrier_init or fence.proxy.async since its init, so a "
            "copy may not see it"
        )
    return barrier


def init(w: State, at: Lanes, count: Lanes, mask: Lanes) -> None:
    """``mbarrier.init``."""
    lanes = np.flatnonzero(mask).tolist()
    for lane, address, number in zip(lanes, addresses(at, mask), count[mask].tolist(), strict=True):
        start = address - SHARED_BASE
        w.shared.inside(start, start + SIZE, "mbarrier.init")
        if address % SIZE:
            raise PtxError(f"mbarrier.init at {address:#x}: not aligned to {SIZE}")
        name = w.cta.barrier_name(start)
        if address in w.cta.barriers:
            raise PtxError(f"{name} is initialised twice, with no mbarrier.inval in between")
        if not 1 <= number < COUNT_LIMIT:
            raise PtxError(f"{name} is initialised with count {number}")
        w.shared.note_write(w, np.array([start // SIZE]), SIZE, np.array([lane]), "mbarrier.init")
        w.shared.state[start : start + SIZE] = BARRIER
        actor, clock = w.cta.barrier_actor(), w.cta.actors.new_clock()
        barrier = Barrier(name, address, number, actor, w.actor, stamp(w.now), clock)
        w.cta.barriers[address] = barrier


def invalidate(w: State, at: Lanes, mask: Lanes) -> None:
    """``mbarrier.inval``."""
    for address in set(addresses(at, mask)):
        find(w, w.cta, address)
        del w.cta.barriers[address]
        start = address - SHARED_BASE
        w.shared.state[start : start + SIZE] = UNDEFINED


def expect(w: State, at: Lanes, cluster: bool, size: Lanes, mask: Lanes) -> None:
    """``mbarrier.expect_tx``."""
    for place, number in zip(places(w, at, mask, cluster, False), size[mask].tolist(), strict=True):
        find(w, *place).expect(number)


def complete(w: State, at: Lanes, cluster: bool, size: Lanes, mask: Lanes) -> None:
    """``mbarrier.complete_tx``."""
    for place, number in zip(places(w, at, mask, cluster, False), size[mask].tolist(), strict=True):
        find(w, *place).complete(number)


def arrive(
    w: State, at: Lanes, cluster: bool, count: Lanes | None, relaxed: bool, mask: Lanes
) -> Lanes:
    """``mbarrier.arrive``, each lane once or `count` times; the phases before, as tokens."""
    found = places(w, at, mask, cluster, not relaxed)
    clock = w.fence_released if relaxed else w.release()
    counts = [1] * len(found) if count is None else count[mask].tolist()
    totals: dict[tuple[Any, int], int] = {}
    for place, number in zip(found, counts, strict=True):
        totals[place] = totals.get(place, 0) + number
    tokens = {place: find(w, *place).phase for place in totals}
    for place, number in totals.items():
        find(w, *place).arrive(number, clock, w)
    out = np.zeros(LANES, np.uint64)
    out[mask] = [tokens[place] for place in found]
    return out


def fence(w: State, words: list[str]) -> None:
    """``fence``: of a proxy, of mbarrier.init, or of memory accesses (9.7.13, membar)."""
    proxy = words[:2] == ["proxy", "async"]
    if proxy or words[0] == "mbarrier_init":
        for barrier in w.cta.barriers.values():
            if barrier.fenced is None and w.clock[GENERIC, barrier.maker] >= barrier.born:
                barrier.fenced = w.actor, stamp(w.now)
            if not proxy and barrier.maker == w.actor:
                w.inits.add(barrier)
    if proxy:
        clocks.fence(w.clock)
    elif words[0] not in ("mbarrier_init", "proxy"):
        order.fence(w)
