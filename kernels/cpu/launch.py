"""Launch compiled entries on CPU threads: ``entry(blob, thread)``, as a GPU launches a kernel on
blocks.

Threads take items one by one from the blob's counter, so an interrupted core delays only its own
item; items write disjoint outputs, so their order never shows in a result. The parallel launch is
Numba's prange (1.8 us with OpenMP); what its threading layers cannot do is dealt with here:

- "workqueue" aborts the process when two threads launch at once: a lock takes them in turn;
- GNU OpenMP kills a forked child at its first parallel launch: such a child runs on one thread.
"""

import functools
import os
import threading

from llvmlite import ir
from numba import from_dtype, prange, types
from numba.extending import intrinsic

from implicit_conv.kernels.cpu import memory
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.call import BLOB, FLUSHES, PANELS, SCRATCH, W, X, Y
from implicit_conv.kernels.cpu.subnormals import FLUSH, control_word, set_control_word
from implicit_conv.kernels.cpu.vector import I64, VOID

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
    """The next work item of this launch, each given out once."""
    return memory.fetch_add(_address(blob), 1)


@intrinsic
def _call_entry(typingctx, entry, blob, thread):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(VOID, [I64, I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@kernel()
def _run_thread(entry, blob, thread, flushes):
    """Run the entry in this thread; where the launch asks for it, subnormal numbers are zeros."""
    before = control_word()
    if flushes:
        set_control_word(before | FLUSH)
    _call_entry(entry, blob, thread)
    if flushes:
        set_control_word(before)


@kernel([types.void(types.int64, types.int64[::1], types.int64)])
def _run_serial(entry, blob, threads):
    _run_thread(entry, blob.ctypes.data, 0, blob[FLUSHES])


@functools.cache
def _run_parallel():
    @kernel([types.void(types.int64, types.int64[::1], types.int64)], parallel=True)
    def run(entry, blob, threads):
        address, flushes = blob.ctypes.data, blob[FLUSHES]
        for thread in prange(threads):
            _run_thread(entry, address, thread, flushes)

    return run


@functools.cache
def threading_layer():
    """The layer Numba runs prange on: "tbb", "omp" or "workqueue"; starts its threads."""
    from numba import threading_layer as layer
    from numba.np.ufunc.parallel import _launch_threads

    _launch_threads()
    return layer()


# Elements of x and w, and of y; 16-bit floats come as integers.
TENSORS = (
    (types.float32, types.float32), (types.float64, types.float64), (types.uint16, types.uint16),
    (types.uint16, types.float32),
)  # fmt: skip


def _tensor(element, readonly):
    return types.Array(element, 4, "A", readonly=readonly)


@kernel(
    [
        types.void(
            types.int64[::1], _tensor(x, True), _tensor(x, True), _tensor(y, True), types.boolean,
            types.int64, types.int64, types.int64,
        )
        for x, y in TENSORS
    ]
)  # fmt: skip
def _place(blob, x, w, y, packed, panels, scratch, entry):
    """Fill in the addresses of three 4-d arrays, six times as fast as asking numpy for them.

    The filter is `w`, or `packed`. Where an `entry` is given, run it, in this thread.
    """
    blob[X], blob[Y], blob[SCRATCH] = x.ctypes.data, y.ctypes.data, scratch
    blob[W], blob[PANELS] = 0 if packed else w.ctypes.data, panels
    if entry:
        _run_thread(entry, blob.ctypes.data, 0, blob[FLUSHES])


def launch(entry, blob, threads):
    """Run the entry at address `entry` on up to `threads` threads and wait for all of them."""
    if threads == 1 or _forked:
        _run_serial(entry, blob, 1)
    elif threading_layer() == "workqueue":
        with _launching:
            _run_parallel()(entry, blob, threads)
    else:
        _run_parallel()(entry, blob, threads)


def launch_on(x, w, y, panels, scratch, entry, blob, threads):
    """`launch` on 4-d arrays x, w, y; `panels` (packed filters, read where w is None) and `scratch`
    are addresses.
    """
    alone = threads == 1 or _forked
    _place(blob, x, x if w is None else w, y, w is None, panels, scratch, entry if alone else 0)
    if not alone:
        launch(entry, blob, threads)
