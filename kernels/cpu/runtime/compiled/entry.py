"""What compiled code knows of its launch: the params blob, work items, the start of an entry.

An entry is compiled code called as ``entry(blob, thread)`` on each of a launch's threads.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from implicit_conv.kernels.cpu.emit import atomic, memory
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting, function_at
from implicit_conv.kernels.cpu.emit.vector import I64, VOID
from implicit_conv.kernels.cpu.runtime.active_threads import CPUS, RUNNING
from implicit_conv.kernels.cpu.runtime.call import (
    BLOB,
    FLUSHES,
    PANELS,
    SCRATCH,
    THREAD_COUNTS,
    WORD,
    W,
    X,
    Y,
)
from implicit_conv.kernels.cpu.runtime.compiled.subnormals import (
    FLUSH,
    control_word,
    set_control_word,
)

Blob: TypeAlias = Any  # a pointer to the record that `fields` reads
RECORD = types.from_dtype(BLOB)
BLOB_POINTER = types.pointer(RECORD)
ENTRY = types.void(BLOB_POINTER, types.int64)
BLOB_BYTES = BLOB.itemsize
NO_ITEM = 1 << 62


@emitting(RECORD(BLOB_POINTER))
def fields(builder: ir.IRBuilder, blob: ir.Value) -> ir.Value:
    """The record that a blob's pointer points to: `fields(blob).call`, `fields(blob).geometry`."""
    return blob


@emitting(types.int64(BLOB_POINTER))
def _address(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    return builder.ptrtoint(pointer, I64)


_call_entry = function_at("call_entry", VOID, I64, I64)  # the entry, of a blob and a thread


def next_item(blob: Blob, thread: int) -> int:
    """The next work item of this launch; no two threads get the same.

    A helper gets none, but NO_ITEM, while more threads run than there are CPUs; the thread of the
    caller, which is thread 0, takes all that is left.
    """
    if thread:
        thread_counts = fields(blob).call.thread_counts
        if atomic.load(thread_counts + RUNNING) > atomic.load(thread_counts + CPUS):
            return NO_ITEM
    return memory.fetch_add(_address(blob), 1)


def run_thread(entry: int, blob: int, thread: int) -> None:
    """Run the entry in this thread, with subnormals treated as zero if the launch asks for it."""
    flushes = memory.read(blob + WORD * FLUSHES)
    before = control_word()
    if flushes:
        set_control_word(before | FLUSH)
    _call_entry(entry, blob, thread)
    if flushes:
        set_control_word(before)


def run_counted(entry: int, blob: int, thread: int) -> None:
    """`run_thread` of a thread that counts as running."""
    thread_counts = memory.read(blob + WORD * THREAD_COUNTS)
    atomic.add(thread_counts + RUNNING, 1)
    run_thread(entry, blob, thread)
    atomic.add(thread_counts + RUNNING, -1)


def start(blob: int, scratch: int, x: int, w: int, y: int, panels: int, entry: int) -> None:
    """Copy a blob behind the scratch at address `scratch`; fill in addresses, those of three arrays
    much faster than numpy would tell them.

    Where an `entry` is given, run it, in this thread.
    """
    to = scratch + memory.read(blob + WORD * SCRATCH)
    memory.copy(to, blob, BLOB_BYTES)
    memory.write(to + WORD * X, x)
    if memory.read(blob + WORD * W):
        memory.write(to + WORD * W, w)
    memory.write(to + WORD * PANELS, panels)
    memory.write(to + WORD * Y, y)
    memory.write(to + WORD * SCRATCH, scratch)
    if entry:
        run_counted(entry, to, 0)
