"""Launch compiled entries on CPU threads: ``entry(blob, thread)``, as a GPU launches a kernel on
blocks.

Threads take items one by one from the blob's counter, so an interrupted core delays only its own
item. Items write disjoint outputs, so their order does not affect a result. A parallel launch uses
Numba's prange (1.8 us with OpenMP). Two hazards of its threading layers are avoided here:

- "workqueue" aborts the process if two threads launch at once, so a lock serialises launches;
- GNU OpenMP kills a forked child at its first parallel launch, so a forked child uses one thread.
"""

import functools
import os
import threading

from llvmlite import ir
from numba import from_dtype, prange, types
from numba.extending import intrinsic

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import I64, VOID
from implicit_conv.kernels.cpu.runtime.cache import kernel
from implicit_conv.kernels.cpu.runtime.call import (
    BIAS,
    BLOB,
    FLUSHES,
    PANELS,
    RESIDUAL,
    SCRATCH,
    WORD,
    W,
    X,
    Y,
    blob_of,
)
from implicit_conv.kernels.cpu.runtime.pool import POOL
from implicit_conv.kernels.cpu.runtime.subnormals import FLUSH, control_word, set_control_word

BLOB_POINTER = types.CPointer(from_dtype(BLOB))
ENTRY = types.void(BLOB_POINTER, types.int64)

_forked = False
_launching = threading.Lock()


def _after_fork():
    global _forked, _launching
    _forked, _launching = True, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@intrinsic
def fields(typingctx, blob):
    """The record that a blob's pointer points to: `fields(blob).call`, `fields(blob).geometry`."""
    return from_dtype(BLOB)(blob), lambda context, builder, signature, args: args[0]


@intrinsic
def _address(typingctx, pointer):
    def codegen(context, builder, signature, args):
        return builder.ptrtoint(args[0], I64)

    return types.int64(pointer), codegen


@kernel()
def next_item(blob):
    """The next work item of this launch; no two threads get the same."""
    return memory.fetch_add(_address(blob), 1)


@intrinsic
def _call_entry(typingctx, entry, blob, thread):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(VOID, [I64, I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@kernel()
def _run_thread(entry, blob, thread):
    """Run the entry in this thread, with subnormals treated as zero if the launch asks for it."""
    flushes = memory.read(blob + WORD * FLUSHES)
    before = control_word()
    if flushes:
        set_control_word(before | FLUSH)
    _call_entry(entry, blob, thread)
    if flushes:
        set_control_word(before)


@kernel([types.void(types.int64, types.int64)])
def _run_serial(entry, blob):
    _run_thread(entry, blob, 0)


@functools.cache
def _run_parallel():
    @kernel([types.void(types.int64, types.int64, types.int64)], parallel=True)
    def run(entry, blob, threads):
        for thread in prange(threads):
            _run_thread(entry, blob, thread)

    return run


@functools.cache
def threading_layer():
    """The layer that runs Numba's prange, "tbb", "omp" or "workqueue"; its threads are started."""
    from numba import threading_layer as layer
    from numba.np.ufunc.parallel import _launch_threads

    _launch_threads()
    return layer()


# Dtypes of (x and w, y); 16-bit floats are viewed as integers.
TENSORS = (
    (types.float32, types.float32),
    (types.float64, types.float64),
    (types.uint16, types.uint16),
    (types.uint16, types.float32),
)


def _signature(x, y):
    x, y = (types.Array(element, 4, "A", readonly=True) for element in (x, y))
    words = types.int64[::1]
    return types.void(words, types.int64, x, x, y, types.int64, types.int64)


@kernel([_signature(*elements) for elements in TENSORS])
def _start(blob, scratch, x, w, y, panels, entry):
    """Copy a blob to the end of the scratch memory at address `scratch`, and fill in addresses.

    Compiled code reads the addresses of the three 4-d arrays six times as fast as numpy's
    attributes. If `entry` is not 0, run it in this thread.
    """
    to = scratch + blob[SCRATCH]
    memory.copy(to, blob.ctypes.data, blob.nbytes)
    memory.write(to + WORD * X, x.ctypes.data)
    if blob[W]:
        memory.write(to + WORD * W, w.ctypes.data)
    memory.write(to + WORD * PANELS, panels)
    memory.write(to + WORD * Y, y.ctypes.data)
    memory.write(to + WORD * SCRATCH, scratch)
    if entry:
        _run_thread(entry, to, 0)


@kernel(
    [types.int64(types.Array(t, 1, "C", readonly=True)) for t in (types.float32, types.float64)]
)
def _address_of(sums):
    return sums.ctypes.data


@functools.cache
def _starter(x_dtype, y_dtype):
    """`_start` compiled for these dtypes, which saves Numba's dispatch on every argument."""
    return _start.get_overload(_signature(from_dtype(x_dtype), from_dtype(y_dtype)))


def launch(entry, blob, threads):
    """Run the entry at address `entry` on up to `threads` threads, and wait for all of them.

    `blob` is the address of its params blob.
    """
    if threads == 1 or _forked:
        _run_serial(entry, blob)
    elif threading_layer() == "workqueue":
        with _launching:
            _run_parallel()(entry, blob, threads)
    else:
        _run_parallel()(entry, blob, threads)


class Launch:
    """An entry that is ready for arrays of fixed dtypes and strides; a run fills in addresses."""

    def __init__(self, entry, g, scratch_bytes, threads, call, dtypes, keep=None):
        self._entry, self._threads = entry, threads
        self._scratch = scratch_bytes * threads
        self._bytes = self._scratch + BLOB.itemsize
        self._blob = blob_of(call._replace(scratch=self._scratch), g)
        self._start = _starter(*dtypes)
        self._keep = keep  # owners of the memory that the blob's constant addresses point to

    def run(self, x, w, y, panels=0, sums=None, residual=None):
        """Convolve 4-d arrays, or pack a filter.

        Parameters
        ----------
        x, w, y : 4-d arrays
            With packed panels, `w` is not read: pass x. A launch that packs reads `w`, and neither
            x nor y.
        panels : int
            The address of packed panels: a launch that packs writes them, another one reads them.
        sums : array, optional
            The initial sums, from `Operator.initial_sums`.
        residual : 4-d array, optional
        """
        blob = self._blob
        if sums is not None or residual is not None:
            blob = blob.copy()
            if sums is not None:
                blob[BIAS] = _address_of(sums)
            if residual is not None:
                blob[RESIDUAL] = residual.ctypes.data
        block = POOL.take(self._bytes)
        try:
            if self._threads == 1 or _forked:
                self._start(blob, block.address, x, w, y, panels, self._entry)
            else:
                self._start(blob, block.address, x, w, y, panels, 0)
                launch(self._entry, block.address + self._scratch, self._threads)
        finally:
            POOL.give(block)
