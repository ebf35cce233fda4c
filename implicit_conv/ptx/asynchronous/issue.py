"""Instructions that start asynchronous copies or group them (PTX ISA 9.7.9)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from implicit_conv.ptx.asynchronous.copies import (
    AsyncCopy,
    BulkLoad,
    BulkStore,
    bulk_units,
    complete_tensor,
    tensor_units,
)
from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import Lanes
from implicit_conv.ptx.machine import mbarrier, reductions, tensor_maps
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.machine.watch import TensorCopy
from implicit_conv.ptx.memory.clocks import GENERIC, stamp
from implicit_conv.ptx.memory.shared import UNIT, SharedMemory
from implicit_conv.ptx.memory.spaces import BLOCK_BYTES, WINDOW_BYTES
from implicit_conv.ptx.memory.tensor_map import Inside

Whole = tuple[Lanes, ...]
Form = str | Lanes  # of a load: "cta", "cluster", or the mask of each lane's multicast


def copy_async(
    w: State,
    target: Lanes,
    source: Lanes,
    width: int,
    sizes: Lanes,
    mask: Lanes,
) -> None:
    """``cp.async``: `width` bytes, of which `sizes` are read and the rest zeros."""
    targets, sources = target[mask] & (WINDOW_BYTES - 1), source[mask]
    read = sizes.astype(np.int64)[mask]
    if w.launch.traffic is not None:
        w.launch.traffic.note_global("cp.async", sources[read > 0], width)
        w.launch.traffic.note_shared("cp.async to shared", targets // width, width)
    copy = AsyncCopy(w, targets, sources, read, width)
    w.copies = [*(other for other in w.copies if not other.done), copy]
    w.cta.cluster.pending.append(copy)


def commit_copies(w: State) -> None:
    """``cp.async.commit_group``."""
    w.copy_groups.append((w.copies_issued, w.copies))
    w.copies = []


def arrive_after_copies(w: State, at: Lanes, noinc: bool, mask: Lanes) -> None:
    """``cp.async.mbarrier.arrive``: lanes arrive once their earlier cp.async are complete.

    Without ``.noinc`` the phase's missing arrivals grow first, so that this one is not counted.
    """
    totals: dict[int, int] = {}
    for address in mbarrier.addresses(at, mask):
        totals[address] = totals.get(address, 0) + 1
    barriers = [(mbarrier.find(w, w.cta, address), count) for address, count in totals.items()]
    clock = w.release()
    groups = [copy for _, group in w.copy_groups for copy in group]
    waiting = [copy for copy in (*groups, *w.copies) if not copy.done]
    # What this warp's queue has written so far is seen by those who wait for the arrival.
    clock[GENERIC, w.cta.copy_queue(w)] = stamp(w.copies_issued)
    if not noinc:
        for barrier, lanes in barriers:
            barrier.pending += lanes
    left = [len(waiting)]

    def count_down() -> None:
        left[0] -= 1
        if left[0] <= 0:
            for barrier, lanes in barriers:
                barrier.arrive(lanes, clock, w)

    for copy in waiting:
        copy.then.append(count_down)
    if not waiting:
        count_down()


def tensor_load(
    w: State,
    line: int,
    mode: str,
    target: Lanes,
    map: Lanes,
    coordinates: Whole,
    offsets: Whole,
    barrier: Lanes,
    form: Form,
    mask: Lanes,
) -> None:
    """``cp.async.bulk.tensor`` to shared memory: a copy of each lane that comes here."""
    for lane in np.flatnonzero(mask).tolist():
        for cta, at, completes in _destinations(w, target, barrier, form, offsets, lane):
            copy = _tensor(w, line, "load", mode, (cta, at), map, coordinates, offsets, lane)
            found = mbarrier.for_copy(w, cta, completes)
            units, sources, end = _walk(w, copy, cta.shared, copy.operands, "tensor copy")
            actor, filling = found.actor, found.filling
            over = functools.partial(_has_seen, actor=actor, filling=filling)
            tensor_maps.note_use(w, int(map[lane]), line, over)
            load = BulkLoad(w, units, sources, cta.shared, found, "tensor copy", end)
            w.cta.cluster.pending.append(load)


def _destinations(
    w: State, target: Lanes, barrier: Lanes, form: Form, offsets: Whole, lane: int
) -> Iterator[tuple[Any, int, int]]:
    """(block, address, address of the mbarrier) of each block that a load of a lane goes to."""
    at, completes = _shared(target, lane), _shared(barrier, lane)
    if not isinstance(form, str):
        at, completes = at % BLOCK_BYTES, completes % BLOCK_BYTES
        given = tuple(int(values[lane]) for values in offsets)
        for cta in w.cta.cluster.named(int(form[lane]), given):
            cta.need_running()
            yield cta, at, completes
    elif form == "cta":
        yield w.cta, at, completes
    else:
        (cta, at), (other, completes) = w.cta.reach(w, at, False), w.cta.reach(w, completes, False)
        if cta is not other:
            raise PtxError(
                f"the copy goes to {cta}, but its mbarrier is of {other}: both must be of one block"
            )
        yield cta, at, completes


def tensor_store(
    w: State,
    line: int,
    mode: str,
    source: Lanes,
    map: Lanes,
    coordinates: Whole,
    reduction: str,
    mask: Lanes,
) -> None:
    """``cp.async.bulk.tensor`` to global memory, of a bulk group; what is outside is dropped.

    `reduction`: what ``cp.reduce`` does with each element; empty if elements are overwritten.
    """
    for lane in np.flatnonzero(mask).tolist():
        place = w.cta, _shared(source, lane)
        copy = _tensor(w, line, "store", mode, place, map, coordinates, (), lane)
        offsets = (0,) * (len(coordinates) - 2) if mode == "im2col" else ()
        units, targets, end = _walk(w, copy, w.shared, offsets, "tensor store")
        combine = None
        if reduction:
            reductions.check(reduction, copy.map.element)
            combine = functools.partial(reductions.reduced, reduction, copy.map.element)
        store = BulkStore(w, lane, units, targets, "tensor store", end, combine)
        tensor_maps.note_use(w, int(map[lane]), line, store.is_over_to)
        _start(store)


def _has_seen(w: State, actor: int, filling: int) -> bool:
    """Whether a warp has waited for the phase in which an mbarrier's copies arrive."""
    return bool(w.clock[GENERIC, actor] >= filling)


def _tensor(
    w: State,
    line: int,
    direction: str,
    mode: str,
    place: tuple[Any, int],
    map: Lanes,
    coordinates: Whole,
    offsets: Whole,
    lane: int,
) -> TensorCopy:
    """The tensor copy of a lane, told to those who watch before any operand but the mask of a
    multicast is checked; `place` is a block and the address there.
    """
    copy = TensorCopy(
        block=w.cta.index,
        warp=w.index,
        line=line,
        direction=direction,
        mode=mode,
        map=tensor_maps.for_copy(w, int(map[lane])),
        coordinates=tuple(int(values[lane]) for values in coordinates),
        operands=tuple(int(values[lane]) for values in offsets),
        address=place[1],
        destination=place[0].index,
    )
    w.launch.watch(copy)
    return copy


def _walk(
    w: State, copy: TensorCopy, shared: SharedMemory, operands: tuple[int, ...], what: str
) -> tuple[Lanes, list[Inside], Callable[[], None]]:
    """(units of shared memory, rows of global memory, what ends the copy) of a tensor copy."""
    rows = copy.map.rows(copy.coordinates, operands, copy.mode)
    units = tensor_units(shared, copy.address, copy.map, rows, what)
    places = [copy.map.address_of(row, copy.direction == "store") for row in rows]
    return units, places, functools.partial(complete_tensor, w, copy, shared, units)


def bulk_load(
    w: State,
    target: Lanes,
    source: Lanes,
    size: Lanes,
    barrier: Lanes,
    form: Form,
    mask: Lanes,
) -> None:
    """``cp.async.bulk`` from global to shared memory: contiguous bytes."""
    for lane in np.flatnonzero(mask).tolist():
        for cta, at, completes in _destinations(w, target, barrier, form, (), lane):
            found = mbarrier.for_copy(w, cta, completes)
            units = bulk_units(cta.shared, at, int(size[lane]), "bulk copy")
            rows = _rows(int(source[lane]), int(size[lane]), "bulk copy")
            load = BulkLoad(w, units, rows, cta.shared, found, "bulk copy")
            w.cta.cluster.pending.append(load)


def bulk_store(w: State, target: Lanes, source: Lanes, size: Lanes, mask: Lanes) -> None:
    """``cp.async.bulk`` from shared to global memory, of a bulk group."""
    for lane in np.flatnonzero(mask).tolist():
        units = bulk_units(w.shared, _shared(source, lane), int(size[lane]), "bulk store")
        rows = _rows(int(target[lane]), int(size[lane]), "bulk store")
        _start(BulkStore(w, lane, units, rows, "bulk store"))


def commit_stores(w: State, mask: Lanes) -> None:
    """``cp.async.bulk.commit_group``, of each thread."""
    for lane in np.flatnonzero(mask).tolist():
        w.store_groups[lane].append(w.stores[lane])
        w.stores[lane] = []


def _start(store: BulkStore) -> None:
    store.w.stores[store.lane].append(store)
    store.w.cta.cluster.pending.append(store)


def _shared(place: Lanes, lane: int) -> int:
    return int(place[lane]) & (WINDOW_BYTES - 1)


def _rows(address: int, size: int, what: str) -> list[Inside]:
    if address % UNIT:
        raise PtxError(f"{what}: the global address {address:#x} is not aligned to {UNIT}")
    return [(at, 0, UNIT) for at in range(address, address + size, UNIT)]
