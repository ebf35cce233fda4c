"""mbarrier instructions (PTX ISA 9.7.13, mbarrier), and the fences that tensor copies need."""

from __future__ import annotations

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine import order
from implicit_conv.ptx.machine.barriers import COUNT_LIMIT, Barrier
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.memory import clocks
from implicit_conv.ptx.memory.clocks import GENERIC, new_clock, stamp
from implicit_conv.ptx.memory.shared import BARRIER, UNDEFINED
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE
from implicit_conv.ptx.memory.spaces import WINDOW_BYTES

SIZE = 8  # bytes of an mbarrier object


def addresses(at: Lanes, mask: Lanes) -> list[int]:
    """Shared addresses of the lanes that run."""
    found: list[int] = (at[mask] & (WINDOW_BYTES - 1)).tolist()
    return found


def find(w: State, address: int) -> Barrier:
    """The mbarrier at an address, whose initialisation `w` must have seen."""
    barrier: Barrier | None = w.cta.barriers.get(address)
    if barrier is None:
        raise PtxError(f"no mbarrier was initialised at {w.shared.place(address - SHARED_BASE)}")
    if w.clock[GENERIC, barrier.maker] < barrier.born:
        raise PtxError(
            f"{barrier.name} is used, but no barrier orders that after its mbarrier.init by "
            f"warp {barrier.maker}"
        )
    return barrier


def for_copy(w: State, address: int) -> Barrier:
    """The mbarrier at an address, which a copy is about to complete on."""
    barrier = find(w, address)
    if w.launch.unfenced_barriers:
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
        actor, clock = w.cta.barrier_actor(), new_clock(w.cta.warps_count)
        barrier = Barrier(name, address, number, actor, w.index, stamp(w.now), clock)
        w.cta.barriers[address] = barrier


def invalidate(w: State, at: Lanes, mask: Lanes) -> None:
    """``mbarrier.inval``."""
    for address in set(addresses(at, mask)):
        find(w, address)
        del w.cta.barriers[address]
        start = address - SHARED_BASE
        w.shared.state[start : start + SIZE] = UNDEFINED


def expect(w: State, at: Lanes, size: Lanes, mask: Lanes) -> None:
    """``mbarrier.expect_tx``."""
    for address, number in zip(addresses(at, mask), size[mask].tolist(), strict=True):
        find(w, address).expect(number)


def complete(w: State, at: Lanes, size: Lanes, mask: Lanes) -> None:
    """``mbarrier.complete_tx``."""
    for address, number in zip(addresses(at, mask), size[mask].tolist(), strict=True):
        find(w, address).complete(number)


def arrive(w: State, at: Lanes, count: Lanes | None, relaxed: bool, mask: Lanes) -> Lanes:
    """``mbarrier.arrive``, each lane once or `count` times; the phases before, as tokens."""
    clock = None if relaxed else w.release()
    places = addresses(at, mask)
    counts = [1] * len(places) if count is None else count[mask].tolist()
    totals: dict[int, int] = {}
    for address, number in zip(places, counts, strict=True):
        totals[address] = totals.get(address, 0) + number
    tokens = {address: find(w, address).phase for address in totals}
    for address, number in totals.items():
        find(w, address).arrive(number, clock, w.index)
    out = np.zeros(LANES, np.uint64)
    out[mask] = [tokens[address] for address in places]
    return out


def fence(w: State, words: list[str]) -> None:
    """``fence``: of a proxy, of mbarrier.init, or of memory accesses (9.7.13, membar)."""
    proxy = words[:2] == ["proxy", "async"]
    if proxy or words[0] == "mbarrier_init":
        for barrier in w.cta.barriers.values():
            if barrier.fenced is None and w.clock[GENERIC, barrier.maker] >= barrier.born:
                barrier.fenced = w.index, stamp(w.now)
    if proxy:
        clocks.fence(w.clock)
    elif words[0] not in ("mbarrier_init", "proxy"):
        order.fence(w)
