"""Instructions that start asynchronous copies or group them (PTX ISA 9.7.9)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.asynchronous.copies import (
    AsyncCopy,
    BulkLoad,
    BulkStore,
    Combine,
    bulk_units,
    complete_tensor,
    tensor_units,
)
from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.machine import mbarrier, reductions, tensor_maps
from implicit_conv.ptx.machine.watch import TensorCopy
from implicit_conv.ptx.memory.clocks import GENERIC, stamp
from implicit_conv.ptx.memory.shared import UNIT
from implicit_conv.ptx.memory.spaces import WINDOW_BYTES

if TYPE_CHECKING:
    from implicit_conv.ptx.machine.state import State

Lanes = NDArray[Any]
Whole = tuple[Lanes, ...]


def copy_async(
    w: State,
    target: Lanes,
    to: int,
    source: Lanes,
    offset: int,
    width: int,
    sizes: Lanes,
    mask: Lanes,
) -> None:
    """``cp.async``: `width` bytes, of which `sizes` are read and the rest zeros."""
    targets = (target.astype(np.int64)[mask] + to) & (WINDOW_BYTES - 1)
    sources = source.view(np.int64)[mask] + offset
    read = sizes.astype(np.int64)[mask]
    if w.launch.traffic is not None:
        w.launch.traffic.note_global("cp.async", sources[read > 0], width)
        w.launch.traffic.note_shared("cp.async to shared", targets // width, width)
    copy = AsyncCopy(w, targets, sources, read, width)
    w.copies = [*(other for other in w.copies if not other.done), copy]
    w.cta.pending.append(copy)


def commit_copies(w: State) -> None:
    """``cp.async.commit_group``."""
    w.copy_groups.append((w.copies_issued, w.copies))
    w.copies = []


def arrive_after_copies(w: State, base: Lanes, offset: int, noinc: bool, mask: Lanes) -> None:
    """``cp.async.mbarrier.arrive``: lanes arrive once their earlier cp.async are complete.

    Without ``.noinc`` the phase's missing arrivals grow first, so that this one is not counted.
    """
    totals: dict[int, int] = {}
    for address in mbarrier.addresses(base, offset, mask):
        totals[address] = totals.get(address, 0) + 1
    barriers = [(mbarrier.find(w, address), count) for address, count in totals.items()]
    clock = w.release()
    groups = [copy for _, group in w.copy_groups for copy in group]
    waiting = [copy for copy in (*groups, *w.copies) if not copy.done]
    # What this warp's queue has written so far is seen by those who wait for the arrival.
    clock[GENERIC, w.cta.copy_queue(w.index)] = stamp(w.copies_issued)
    if not noinc:
        for barrier, lanes in barriers:
            barrier.pending += lanes
    left = [len(waiting)]

    def count_down() -> None:
        left[0] -= 1
        if left[0] <= 0:
            for barrier, lanes in barriers:
                barrier.arrive(lanes, clock)

    for copy in waiting:
        copy.then.append(count_down)
    if not waiting:
        count_down()


def tensor_load(
    w: State,
    line: int,
    mode: str,
    target: tuple[Lanes, int],
    map: tuple[Lanes, int],
    coordinates: Whole,
    offsets: Whole,
    barrier: tuple[Lanes, int],
    mask: Lanes,
) -> None:
    """``cp.async.bulk.tensor`` to shared memory: a copy of each lane that comes here."""
    for lane in np.flatnonzero(mask).tolist():
        copy = _tensor(w, line, "load", mode, target, map, coordinates, offsets, lane)
        found = mbarrier.for_copy(w, _shared(barrier, lane))
        rows = copy.map.rows(copy.coordinates, copy.operands, mode)
        units = tensor_units(w, copy.address, copy.map, rows, "tensor copy")
        sources = [copy.map.address_of(row) for row in rows]
        end = functools.partial(complete_tensor, w, copy, units)
        w.cta.pending.append(BulkLoad(w, units, sources, found, "tensor copy", end))


def tensor_store(
    w: State,
    line: int,
    mode: str,
    source: tuple[Lanes, int],
    map: tuple[Lanes, int],
    coordinates: Whole,
    reduction: str,
    mask: Lanes,
) -> None:
    """``cp.async.bulk.tensor`` to global memory, of a bulk group; what is outside is dropped.

    `reduction`: what ``cp.reduce`` does with each element; empty if elements are overwritten.
    """
    for lane in np.flatnonzero(mask).tolist():
        copy = _tensor(w, line, "store", mode, source, map, coordinates, (), lane)
        offsets = (0,) * (len(coordinates) - 2) if mode == "im2col" else ()
        rows = copy.map.rows(copy.coordinates, offsets, mode)
        units = tensor_units(w, copy.address, copy.map, rows, "tensor store")
        targets = [copy.map.address_of(row) for row in rows]
        end = functools.partial(complete_tensor, w, copy, units)
        combine = None
        if reduction:
            reductions.check(reduction, copy.map.element)
            combine = functools.partial(reductions.reduced, reduction, copy.map.element)
        _store(w, lane, units, targets, "tensor store", end, combine)


def _tensor(
    w: State,
    line: int,
    direction: str,
    mode: str,
    place: tuple[Lanes, int],
    map: tuple[Lanes, int],
    coordinates: Whole,
    offsets: Whole,
    lane: int,
) -> TensorCopy:
    """The tensor copy of a lane, told to those who watch before any operand is checked."""
    copy = TensorCopy(
        block=w.cta.index,
        warp=w.index,
        line=line,
        direction=direction,
        mode=mode,
        map=tensor_maps.for_copy(w, int(map[0][lane]) + map[1]),
        coordinates=tuple(int(values[lane]) for values in coordinates),
        operands=tuple(int(values[lane]) for values in offsets),
        address=_shared(place, lane),
    )
    w.launch.watch(copy)
    return copy


def bulk_load(
    w: State,
    target: tuple[Lanes, int],
    source: tuple[Lanes, int],
    size: Lanes,
    barrier: tuple[Lanes, int],
    mask: Lanes,
) -> None:
    """``cp.async.bulk`` from global to shared memory: contiguous bytes."""
    for lane in np.flatnonzero(mask).tolist():
        found = mbarrier.for_copy(w, _shared(barrier, lane))
        units = bulk_units(w, _shared(target, lane), int(size[lane]), "bulk copy")
        rows = _rows(int(source[0][lane]) + source[1], int(size[lane]), "bulk copy")
        w.cta.pending.append(BulkLoad(w, units, rows, found, "bulk copy"))


def bulk_store(
    w: State, target: tuple[Lanes, int], source: tuple[Lanes, int], size: Lanes, mask: Lanes
) -> None:
    """``cp.async.bulk`` from shared to global memory, of a bulk group."""
    for lane in np.flatnonzero(mask).tolist():
        units = bulk_units(w, _shared(source, lane), int(size[lane]), "bulk store")
        rows = _rows(int(target[0][lane]) + target[1], int(size[lane]), "bulk store")
        _store(w, lane, units, rows, "bulk store")


def commit_stores(w: State, mask: Lanes) -> None:
    """``cp.async.bulk.commit_group``, of each thread."""
    for lane in np.flatnonzero(mask).tolist():
        w.store_groups[lane].append(w.stores[lane])
        w.stores[lane] = []


def _store(
    w: State,
    lane: int,
    units: Lanes,
    rows: list[tuple[int, int, int] | None],
    what: str,
    end: Callable[[], None] = lambda: None,
    combine: Combine | None = None,
) -> None:
    store = BulkStore(w, lane, units, rows, what, end, combine)
    w.stores[lane].append(store)
    w.cta.pending.append(store)


def _shared(place: tuple[Lanes, int], lane: int) -> int:
    return (int(place[0][lane]) + place[1]) & (WINDOW_BYTES - 1)


def _rows(address: int, size: int, what: str) -> list[tuple[int, int, int] | None]:
    if address % UNIT:
        raise PtxError(f"{what}: the global address {address:#x} is not aligned to {UNIT}")
    return [(at, 0, UNIT) for at in range(address, address + size, UNIT)]
