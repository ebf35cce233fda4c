"""Loads and stores of all spaces (PTX ISA 9.7.9, ld and st), and ldmatrix and stmatrix.

`at` are 32 addresses of 64 bits; `mask` is None where all lanes run. A load returns one array of 32
values for each element.
"""

from __future__ import annotations

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANE, LANES, Lanes
from implicit_conv.ptx.machine import order
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.machine.watch import tell_read
from implicit_conv.ptx.memory.shared import SharedMemory, need_aligned
from implicit_conv.ptx.memory.spaces import (
    BLOCK_BYTES,
    LOCAL_BASE,
    PARAM_BASE,
    WINDOW_BYTES,
    WINDOWS,
)

Mask = Lanes | None
Whole = tuple[Lanes, ...]  # arrays of all elements
LOW32 = WINDOW_BYTES - 1


def _columns(rows: Lanes, mask: Mask, count: int) -> Lanes:
    """Rows of the lanes that loaded -> one array of 32 for each element."""
    if mask is not None:
        whole = np.zeros((LANES, count), rows.dtype)
        whole[mask] = rows
        rows = whole
    return np.ascontiguousarray(rows.T)


def _rows(values: Whole, mask: Mask) -> Lanes:
    rows = np.stack(values, axis=1)
    return np.ascontiguousarray(rows if mask is None else rows[mask]).view(np.uint8)


def _some(at: Lanes, mask: Mask) -> Lanes:
    """The addresses of the lanes that run."""
    return at if mask is None else at[mask]


def _global(w: State, at: Lanes, size: int, what: str) -> None:
    """An access to global memory: it must be aligned, and costs sectors."""
    need_aligned(at, size, what)
    if w.launch.traffic is not None:
        w.launch.traffic.note_global(what, at, size)


def _shared(w: State, shared: SharedMemory, at: Lanes, size: int, what: str) -> Lanes:
    """The units of `size` bytes of an access to shared memory, which costs passes."""
    units = shared.offsets(at, size, what) // size
    if w.launch.traffic is not None:
        w.launch.traffic.note_shared(what, units, size)
    return units


def load_parameter(w: State, offset: int, kind: str, count: int) -> Lanes:
    """``ld.param`` of a named parameter: the same in all lanes."""
    size = np.dtype(kind).itemsize
    data = w.launch.parameters
    if offset < 0 or offset + size * count > data.size or offset % (size * count):
        raise PtxError(f"ld.param at offset {offset}: outside {data.size} bytes, or not aligned")
    values = data[offset : offset + size * count].view(kind)
    return np.repeat(values[:, None], LANES, axis=1)


def load_param(w: State, at: Lanes, kind: str, count: int, mask: Mask, _: str) -> Lanes:
    """``ld.param`` by address."""
    size = np.dtype(kind).itemsize * count
    at = (_some(at, mask) & LOW32) - PARAM_BASE
    data = w.launch.parameters
    need_aligned(at, size, "ld.param")
    if at.min() < 0 or at.max() + size > data.size:
        raise PtxError(f"ld.param outside the {data.size} bytes of parameters")
    rows = np.ascontiguousarray(data[at[:, None] + np.arange(size)]).view(kind)
    return _columns(rows, mask, count)


def load_local(w: State, at: Lanes, kind: str, count: int, mask: Mask, _: str) -> Lanes:
    """``ld.local``."""
    size = np.dtype(kind).itemsize * count
    at = _local(w, at, size, mask, "ld.local")
    rows = w.local[w.lanes(mask)[:, None], at[:, None] + np.arange(size)]
    return _columns(np.ascontiguousarray(rows).view(kind), mask, count)


def store_local(w: State, at: Lanes, kind: str, values: Whole, mask: Mask, _: str) -> None:
    """``st.local``."""
    size = np.dtype(kind).itemsize * len(values)
    at = _local(w, at, size, mask, "st.local")
    w.local[w.lanes(mask)[:, None], at[:, None] + np.arange(size)] = _rows(values, mask)


def _local(w: State, at: Lanes, size: int, mask: Mask, what: str) -> Lanes:
    at = _some(at, mask) & LOW32
    need_aligned(at, size, what)
    if at.min() < LOCAL_BASE or at.max() + size > w.local.shape[1]:
        raise PtxError(f"{what} outside the thread's {w.local.shape[1] - LOCAL_BASE} bytes")
    return at


def load_global(w: State, at: Lanes, kind: str, count: int, mask: Mask, semantics: str) -> Lanes:
    """``ld.global``; `semantics` is "nc" where nobody may write the bytes meanwhile."""
    at = _some(at, mask)
    size = np.dtype(kind).itemsize * count
    _global(w, at, size, "ld.global")
    if semantics == "nc":
        w.launch.note_constant(at, size)
    elif semantics:
        order.observe(w, w.cta.cluster.flags, at, semantics)
    else:
        w.cta.global_order.read(w, at, size, "ld.global")
    rows = w.memory.gather(at, size).view(kind)
    return _columns(rows, mask, count)


def store_global(
    w: State,
    at: Lanes,
    kind: str,
    values: Whole,
    mask: Mask,
    semantics: str,
) -> None:
    """``st.global``."""
    at = _some(at, mask)
    size = np.dtype(kind).itemsize * len(values)
    _global(w, at, size, "st.global")
    if semantics:
        order.publish(w, w.cta.cluster.flags, at, semantics)
    rows = _rows(values, mask)
    for which, buffer, cells in w.memory.places(at, size):
        w.launch.note_cells(buffer, cells)
        if semantics:
            buffer.data[cells] = rows[which]
        else:
            w.cta.global_order.write(w, buffer, cells, rows[which])


def load_shared(
    w: State,
    at: Lanes,
    kind: str,
    count: int,
    mask: Mask,
    semantics: str,
    given: SharedMemory | None = None,
) -> Lanes:
    """``ld.shared``, of the block's own shared memory or of that which is given."""
    size, shared = np.dtype(kind).itemsize * count, given or w.shared
    at = _some(at, mask) & LOW32
    units = _shared(w, shared, at, size, "ld.shared")
    if semantics:
        order.observe(w, shared.flags, at, semantics)
        shared.note_strong(w, units, size, "ld.shared", False)
    else:
        shared.note_read(w, units, size, w.lanes(mask), "ld.shared")
    rows = shared.data.view(kind).reshape(-1, count)[units]
    return _columns(rows, mask, count)


def load_cluster(w: State, at: Lanes, kind: str, count: int, mask: Mask, semantics: str) -> Lanes:
    """``ld.shared::cluster``: each lane reads of the block that its address belongs to."""
    out = np.zeros((count, LANES), kind)
    for cta, here in w.cta.blocks_of(w, at, mask):
        own = at & (BLOCK_BYTES - 1)
        out[:, here] = load_shared(w, own, kind, count, here, semantics, cta.shared)[:, here]
    return out


def store_shared(
    w: State,
    at: Lanes,
    kind: str,
    values: Whole,
    mask: Mask,
    semantics: str,
    given: SharedMemory | None = None,
) -> None:
    """``st.shared``, to the block's own shared memory or to that which is given."""
    size, shared = np.dtype(kind).itemsize * len(values), given or w.shared
    at = _some(at, mask) & LOW32
    units, rows = _shared(w, shared, at, size, "st.shared"), _rows(values, mask)
    if not semantics:
        shared.write(w, units, size, w.lanes(mask), rows, "st.shared")
        return
    order.publish(w, shared.flags, at, semantics)
    shared.note_strong(w, units, size, "st.shared", True)
    shared.data.reshape(-1, size)[units] = rows


def store_cluster(
    w: State, at: Lanes, kind: str, values: Whole, mask: Mask, semantics: str
) -> None:
    """``st.shared::cluster``: each lane writes to the block that its address belongs to."""
    for cta, here in w.cta.blocks_of(w, at, mask):
        own = at & (BLOCK_BYTES - 1)
        store_shared(w, own, kind, values, here, semantics, cta.shared)


def _spaces_of(at: Lanes, mask: Mask) -> list[tuple[str, Lanes]]:
    """(space, mask of its lanes) of generic addresses (PTX ISA 5.1, generic addressing).

    Those of shared memory may be of another block.
    """
    left = np.ones(LANES, bool) if mask is None else mask
    found = []
    for space, start in WINDOWS.items():
        here = left & (at >= start) & (at < start + WINDOW_BYTES)
        if here.any():
            mapped = space == "shared" and (at[here] >= start + BLOCK_BYTES).any()
            found.append(("shared::cluster" if mapped else space, here))
            left = left & ~here
    return [*found, ("global", left)] if left.any() else found


def load_generic(w: State, at: Lanes, kind: str, count: int, mask: Mask, semantics: str) -> Lanes:
    """``ld`` of generic addresses."""
    out = np.zeros((count, LANES), kind)
    for space, here in _spaces_of(at, mask):
        out[:, here] = LOADS[space](w, at, kind, count, here, semantics)[:, here]
    return out


def store_generic(
    w: State,
    at: Lanes,
    kind: str,
    values: Whole,
    mask: Mask,
    semantics: str,
) -> None:
    """``st`` to generic addresses."""
    for space, here in _spaces_of(at, mask):
        if space not in STORES:
            raise PtxError("st to a parameter of the kernel")
        STORES[space](w, at, kind, values, here, semantics)


LOADS = {  # by the state space of an instruction; without one, addresses are generic
    "global": load_global,
    "shared": load_shared,
    "shared::cluster": load_cluster,
    "local": load_local,
    "param": load_param,
    "const": load_global,
    "": load_generic,
}
STORES = {
    "global": store_global,
    "shared": store_shared,
    "shared::cluster": store_cluster,
    "local": store_local,
    "": store_generic,
}


def load_matrix(w: State, line: int, at: Lanes, count: int, transposed: bool, mask: Lanes) -> Lanes:
    """``ldmatrix``: 8 rows of 16 bytes for each matrix, whose addresses 8 lanes each give.

    Lane l receives word l % 4 of row l / 4; transposed, the halves of column l / 4 (9.7.14,
    ldmatrix).
    """
    w.need_all(mask)
    units = _shared(w, w.shared, at[: 8 * count] & LOW32, 16, "ldmatrix")
    w.shared.note_read(w, units, 16, LANE[: 8 * count], "ldmatrix")
    for matrix in units.reshape(count, 8, 1):
        tell_read(w, line, "ldmatrix", None, matrix)
    rows = w.shared.data.reshape(-1, 16)[units]
    if transposed:
        halves = rows.view(np.uint16).reshape(count, 8, 8).transpose(0, 2, 1)
        rows = np.ascontiguousarray(halves)
    words: Lanes = rows.view(np.uint32).reshape(count, LANES)
    return words


def store_matrix(
    w: State,
    at: Lanes,
    values: Whole,
    transposed: bool,
    mask: Lanes,
) -> None:
    """``stmatrix``: the inverse of ldmatrix (9.7.14, stmatrix)."""
    w.need_all(mask)
    count = len(values)
    units = _shared(w, w.shared, at[: 8 * count] & LOW32, 16, "stmatrix")
    rows = np.stack(values).reshape(count, 8, 4)
    if transposed:
        halves = np.ascontiguousarray(rows).view(np.uint16).transpose(0, 2, 1)
        rows = np.ascontiguousarray(halves)
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, 16)
    w.shared.write(w, units, 16, LANE[: 8 * count], data, "stmatrix")
