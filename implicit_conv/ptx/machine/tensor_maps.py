"""Tensor maps that a kernel makes: ``tensormap.replace`` and fences of their proxy (PTX ISA 9.7.9).

Zeros are a map of one axis of bytes, as in Triton's kernels. A copy that takes a map in global
memory needs ``fence.proxy.tensormap::generic.acquire`` of its address in its block; parameters and
constants need none. If this launch has written it, the writer needs a release before, which
``tensormap.cp_fenceproxy`` has in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from implicit_conv.ptx import limits
from implicit_conv.ptx.errors import PtxError, UnsupportedError
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine import access
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.memory.global_memory import MAP_BYTES
from implicit_conv.ptx.memory.tensor_map import TensorMap

ELEMENTS = (  # the driver's names, which have the bits of an element, by the values of .elemtype
    *("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT32_FTZ"),
    *("FLOAT64", "BFLOAT16", "TFLOAT32", "TFLOAT32_FTZ"),
)
SPANS = (0, 32, 64, 128)  # by the values of .swizzle_mode
AXES = {  # field with an ordinal: that of TensorMap
    "box_dim": "box",
    "global_dim": "dims",
    "global_stride": "strides",
    "element_stride": "steps",
}
SCALARS = ("global_address", "rank", "elemtype", "swizzle_mode")
ONLY_ZERO = ("interleave_layout", "swizzle_atomicity", "fill_mode")  # other values are not covered
MOST_AXES, ALIGNMENT, MOST_BOX = 5, 16, 256
DIVISIBLE = f"divisible by {ALIGNMENT}"
WORDS = MAP_BYTES // 8


def blank() -> TensorMap:
    """The map that zeros are."""
    return TensorMap("tile", 1, 0, (0,), (), (0,), box=(0,), element="UINT8")


def replaced(map: TensorMap, field: str, ordinal: int, value: int) -> TensorMap:
    """The map with another value in a field."""
    if map.mode != "tile":
        raise PtxError(f"tensormap.replace.tile of a tensor map for {map.mode}")
    # A map of the host may be of a class that knows its argument; the new one is another map.
    map = TensorMap(**{f.name: getattr(map, f.name) for f in fields(TensorMap)})
    if field == "global_address":
        return replace(map, address=value)
    if field == "rank":
        return _of_rank(map, value + 1)
    if field in AXES:
        values = list(getattr(map, AXES[field]))
        if ordinal >= len(values):
            rank = f"{len(map.dims)} axes"
            raise PtxError(f"{field} {ordinal} of a tensor map of {rank}: replace its .rank before")
        values[ordinal] = value
        changed: dict[str, Any] = {AXES[field]: tuple(values)}
        return replace(map, **changed)
    if field == "elemtype" and value < len(ELEMENTS):
        element = ELEMENTS[value]
        itemsize = int("".join(filter(str.isdigit, element))) // 8
        return replace(map, element=element, itemsize=itemsize)
    if field == "swizzle_mode" and value < len(SPANS):
        return replace(map, span=SPANS[value])
    if field in ONLY_ZERO and value == 0:
        return map
    raise UnsupportedError(f"tensormap.replace of .{field} by {value} is not covered")


def _of_rank(map: TensorMap, rank: int) -> TensorMap:
    """The map with so many axes; new ones are zeros."""
    if not 1 <= rank <= MOST_AXES:
        raise PtxError(f".rank of {rank - 1}, which is one less than the axes: at most 4")

    def fit(values: tuple[int, ...], count: int) -> tuple[int, ...]:
        return (values + (0,) * count)[:count]

    axes: dict[str, Any] = {
        name: fit(getattr(map, name), rank) for name in ("dims", "steps", "box")
    }
    return replace(map, strides=fit(map.strides, rank - 1), **axes)


def change(
    w: State, space: str, place: Lanes, field: str, ordinal: int, value: Lanes, mask: Lanes
) -> None:
    """``tensormap.replace``: a weak access to all 128 bytes, of each lane that comes here."""
    load, store = access.LOADS[space], access.STORES[space]
    for lane in np.flatnonzero(mask).tolist():
        alone = np.arange(LANES) == lane
        words = np.ascontiguousarray(load(w, place, "u8", WORDS, alone, "")[:, lane])
        data = words.tobytes()
        map = w.memory.decode(data) if words.any() else blank()
        made = w.memory.encode(replaced(map, field, ordinal, int(value[lane])))
        store(w, place, "u8", _columns(np.frombuffer(made, np.uint64)), alone, "")
        if space != "shared":
            address = int(place[lane])
            need_unused(w, address, "tensormap.replace")
            w.cta.acquired_maps.discard(address)
            w.launch.unreleased_maps.add(address)


def note_use(w: State, address: int, line: int, is_over: Callable[[State], bool]) -> None:
    """The copy of a line takes the map at an address, until `is_over` to a warp that has waited."""
    if w.launch.may_change(address):
        w.cta.map_uses.setdefault(address, []).append((line, is_over))


def need_unused(w: State, address: int, what: str) -> None:
    """Raise PtxError unless a warp has waited for all copies that take the map at an address."""
    for line, is_over in w.cta.map_uses.pop(address, []):
        if not is_over(w):
            raise PtxError(
                f"{what} of the tensor map at {address:#x}, which the copy of line {line} takes: "
                f"{w} has not waited for it yet"
            )


def copy_and_release(w: State, target: Lanes, source: Lanes, mask: Lanes) -> None:
    """``tensormap.cp_fenceproxy``: a map from shared to global memory, then a release."""
    w.need_all(mask)
    alone = np.arange(LANES) == int(np.flatnonzero(mask)[0])
    words = access.load_shared(w, source, "u8", WORDS, alone, "")[:, alone].reshape(-1)
    access.store_global(w, target, "u8", _columns(words), alone, "")
    address = int(target[alone][0])
    need_unused(w, address, "tensormap.cp_fenceproxy")
    w.cta.acquired_maps.discard(address)
    w.launch.unreleased_maps.discard(address)


def release(w: State) -> None:
    """``fence.proxy.tensormap::generic.release``."""
    w.launch.unreleased_maps.clear()


def acquire(w: State, place: Lanes, mask: Lanes) -> None:
    """``fence.proxy.tensormap::generic.acquire`` of an address."""
    for lane in np.flatnonzero(mask).tolist():
        w.cta.acquired_maps.add(int(place[lane]))


def for_copy(w: State, address: int) -> TensorMap:
    """The map at an address, which a copy of this block may take."""
    map: TensorMap = w.launch.map_at(address)
    if not w.launch.may_change(address):
        return map
    made = w.launch.has_written(address, MAP_BYTES)
    whose = "was written by this launch" if made else "lies in global memory"
    if address in w.launch.unreleased_maps:
        lacks = "release since it was replaced"
    else:
        lacks = "" if address in w.cta.acquired_maps else "acquire of it in this block"
    if lacks:
        raise PtxError(
            f"the tensor map at {address:#x} {whose}, with no "
            f"fence.proxy.tensormap::generic.{lacks}"
        )
    if made:
        _check(map)
    return map


def _check(map: TensorMap) -> None:
    """Raise PtxError if a map that the kernel has made breaks a rule of the driver."""
    row, least, most = map.row_bytes, "must be at least 1", f"must be 1 to {MOST_BOX}"
    aligned = all(x % ALIGNMENT == 0 for x in map.strides)
    short = f"is less than the {row} bytes of a row of the box"
    for name, values, right, rule in (
        ("global_address", (map.address,), map.address % ALIGNMENT == 0, f"must be {DIVISIBLE}"),
        ("global_dim", map.dims, min(map.dims) > 0, least),
        ("global_stride", map.strides, aligned, f"must be {DIVISIBLE}"),
        ("box_dim", map.box, all(0 < x <= MOST_BOX for x in map.box), most),
        ("element_stride", map.steps, min(map.steps) > 0, least),
        ("box_dim", map.box, row % ALIGNMENT == 0, f"makes rows of {row} bytes, not {DIVISIBLE}"),
        ("swizzle_mode", (map.span,), row <= (map.span or row), short),
    ):
        if not right:
            shown = ", ".join(str(value) for value in values)
            raise PtxError(
                f"the tensor map of this kernel breaks a rule: its {name} is {shown}, which {rule}"
            )
    counts = [-(-size // step) for size, step in zip(map.box, map.steps, strict=True)]
    size, room = map.row_bytes * math.prod(counts[1:]), limits.SPACE_BYTES["shared"]
    if size > room:
        raise PtxError(f"the box of this kernel's tensor map has {size} bytes, a block {room}")


def _columns(words: Lanes) -> tuple[Lanes, ...]:
    """Each word for all lanes."""
    return tuple(np.full(LANES, word, np.uint64) for word in words)
