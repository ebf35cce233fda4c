"""What Python calls to start an entry, and to ask whether an earlier one may be started again."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.runtime.compiled import entry
from implicit_conv.kernels.cpu.runtime.compiled.source import (
    ARRAY,
    INT,
    OBJECT,
    for_python,
    for_python_locked,
)
from implicit_conv.kernels.cpu.runtime.objects import FIELDS, LOW_HALF, WORD
from implicit_conv.kernels.cpu.runtime.same_arrays import (
    SHAPE,
    SLOT_WORDS,
    STRIDES,
    Slot,
)

KIND, RANK, DTYPE, FLAGS, DATA, LOW, HIGH = (WORD * n for n in range(len(Slot._fields)))


def _address(array: Any) -> int:
    return array


def differing(record: Any, x: int, w: int, bias: int, residual: int, out: int) -> int:
    last = record + 4 * WORD * SLOT_WORDS
    if not _stored_alike(last, out):
        return 5
    place, slot = 1, record
    for array in (x, w, bias, residual):
        if not _stored_alike(slot, array) or _overlap(slot, array, last, out):
            return place
        place += 1
        slot += WORD * SLOT_WORDS
    return 0


def _stored_alike(slot: Any, array: int) -> bool:
    """Whether an object is what the slot of a record says."""
    if memory.read(array + FIELDS.kind) != memory.read(slot + KIND):
        return False
    rank = memory.read(slot + RANK)
    if rank < 0:
        return True
    flags = memory.read(slot + FLAGS)
    if (
        memory.read(array + FIELDS.rank) & LOW_HALF != rank
        or memory.read(array + FIELDS.dtype) != memory.read(slot + DTYPE)
        or memory.read(array + FIELDS.flags) & flags != flags
    ):
        return False
    data = memory.read(slot + DATA)
    if data != 0 and data != memory.read(array + FIELDS.data):
        return False
    shape, strides = memory.read(array + FIELDS.shape), memory.read(array + FIELDS.strides)
    for axis in range(rank):
        at = WORD * axis
        if memory.read(shape + at) != memory.read(slot + WORD * SHAPE + at) or memory.read(
            strides + at
        ) != memory.read(slot + WORD * STRIDES + at):
            return False
    return True


def _overlap(slot: Any, array: int, other_slot: Any, other: int) -> bool:
    """Whether the bytes of two arrays overlap; None has none."""
    if memory.read(slot + RANK) < 0 or memory.read(other_slot + RANK) < 0:
        return False
    data, other_data = memory.read(array + FIELDS.data), memory.read(other + FIELDS.data)
    ends_before = data + memory.read(slot + HIGH) <= other_data + memory.read(other_slot + LOW)
    begins_after = data + memory.read(slot + LOW) >= other_data + memory.read(other_slot + HIGH)
    return not (ends_before or begins_after)


# start(blob, scratch, x, w, y, panels, entry): see `entry.start`
START = for_python(types.void(*[INT] * 7), entry.start)
# run_counted(entry, blob, thread): see `entry.run_counted`
RUN_COUNTED = for_python(types.void(INT, INT, INT), entry.run_counted)
# address(array): that of its elements, which numpy takes much longer to tell
ADDRESS = for_python_locked(INT(ARRAY), _address)
# differing(record, x, w, bias, residual, out): the place, from 1 on, of the first array that is
# not stored as the record says, or shares memory with `out`; 0 if there is none
DIFFERING = for_python_locked(INT(ARRAY, *[OBJECT] * 5), differing)
