"""Faults planted in what surrounds a call: the n-th call of a site fails, once or for ever.

`attempt` runs a function in a forked child and plants a `Fault` at one of SITES:

- System calls. A seccomp filter in the child hands them to its parent, which counts them, and
  answers in the kernel's place with an error number, or lets them through. This reaches Python,
  numpy, LLVM, the C library and helper threads. A seccomp filter alone cannot count.
- Memory of numpy's arrays, by a handler as `PyDataMem_SetHandler` takes it.
- CPython's memory, by the hook that its own tests use.
- `sem_init`, which is no system call, and which compiled code finds in LLVM's table of symbols.
"""

import ctypes
import errno
import faulthandler
import fcntl
import functools
import json
import mmap
import os
import platform
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Numbers of x86-64's system calls, and the error that each site gives.
SYSTEM_CALLS: dict[str, tuple[tuple[int, ...], int]] = {
    "open": ((2, 85, 257, 437), errno.EMFILE),  # open, creat, openat, openat2
    "read": ((0, 17, 19), errno.EIO),  # read, pread64, readv
    "write": ((1, 18, 20), errno.ENOSPC),  # write, pwrite64, writev
    "rename": ((82, 264, 316), errno.EACCES),  # rename, renameat, renameat2
    "unlink": ((87, 263), errno.EACCES),  # unlink, unlinkat
    "stat": ((4, 5, 6, 262, 332), errno.EACCES),  # stat, fstat, lstat, newfstatat, statx
    "mkdir": ((83, 258), errno.ENOSPC),  # mkdir, mkdirat
    "mmap": ((9, 12, 25), errno.ENOMEM),  # mmap, brk, mremap
    "mprotect": ((10,), errno.ENOMEM),
    "thread": ((56, 435), errno.EAGAIN),  # clone, clone3
    "setaffinity": ((203,), errno.EPERM),  # sched_setaffinity
    "getaffinity": ((204,), errno.EPERM),  # sched_getaffinity
    "futex": ((202,), errno.EINTR),  # waits in semaphores and locks
}
BRK, FUTEX = 12, 202
FUTEX_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET: a signal may end these, and no others
SITES = (*SYSTEM_CALLS, "sem_init", "numpy", "cpython")
NEVER = 1 << 60  # the number of a first call that no call reaches

SET_MODE_FILTER, NEW_LISTENER, SECCOMP = 1, 8, 317
NO_NEW_PRIVS = 38
ASK, ALLOW = 0x7FC00000, 0x7FFF0000  # SECCOMP_RET_USER_NOTIF, SECCOMP_RET_ALLOW
RECEIVE, SEND = 0xC0502100, 0xC0182101  # ioctls of a listener
QUESTION, ANSWER, LET_THROUGH = 80, "QqiI", 1
SET_HANDLER = 304  # the place of PyDataMem_SetHandler in the table of numpy's C interface
TEXT = 1 << 16  # bytes of a report at most


def is_possible() -> bool:
    """Whether this machine has the system calls above, and a child may ask its parent for them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return attempt(lambda arm, disarm: {"done": True}, "rename", Fault(NEVER)).ended


class Fault(NamedTuple):
    """The call of number `first`, counted from 1, fails; `forever`: and all later ones."""

    first: int
    forever: bool = False


# Words that a child and its parent share. Calls are counted while faults are armed.
ARMED, FIRST, FOREVER, CALLS, LIVE, WORDS = range(6)


def strikes(words: Any) -> bool:
    """Count a call; whether it fails."""
    if words[ARMED] == 0:
        return False
    words[CALLS] += 1
    later = words[CALLS] > words[FIRST] and words[FOREVER] != 0
    return later or words[CALLS] == words[FIRST]


class Outcome(NamedTuple):
    """What became of a child."""

    status: int  # an exit code, or a signal's negative number
    calls: int  # of the site while the fault was armed; 0 for "cpython", which counts alone
    report: dict[str, Any]
    errors: str = ""  # what it wrote to stderr
    hung: bool = False

    @property
    def ended(self) -> bool:
        """Whether the child came to its end and reported."""
        return self.status == 0 and bool(self.report)


class Shared:
    """Memory that a child shares with its parent: the words of a fault, and a report."""

    def __init__(self, fault: Fault) -> None:
        self._memory = np.frombuffer(mmap.mmap(-1, TEXT + 8 * WORDS), np.uint8)
        self.words = self._memory[: 8 * WORDS].view(np.int64)
        self.words[FIRST], self.words[FOREVER] = fault

    @property
    def report(self) -> dict[str, Any]:
        """What the child says at its end."""
        text = self._memory[8 * WORDS :].tobytes().rstrip(b"\0")
        return json.loads(text) if text else {}

    @report.setter
    def report(self, value: dict[str, Any]) -> None:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        self._memory[8 * WORDS :][: text.size] = text


Body = Callable[[Callable[[], None], Callable[[], None]], dict[str, Any]]


def attempt(body: Body, site: str, fault: Fault, seconds: float = 60) -> Outcome:
    """Run ``body(arm, disarm)`` in a forked child, with a fault that strikes between the two.

    What `body` returns is the report. A child that has not ended after `seconds` is hung.
    """
    shared = Shared(fault)
    if site == "numpy":
        _allocators()  # compiled here, once for all children
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as errors, ours, theirs:
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            _run_child(body, site, fault, shared, theirs)
        theirs.close()
        listener = None
        if site in SYSTEM_CALLS:
            listener = next(iter(socket.recv_fds(ours, 1, 1)[1]), None)  # none if it is refused
        hung = not _wait(child, listener, shared, time.monotonic() + seconds)
        if listener is not None:
            os.close(listener)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    return Outcome(status, int(shared.words[CALLS]), shared.report, text, hung)


def _run_child(body: Body, site: str, fault: Fault, shared: Shared, channel: socket.socket) -> None:
    """What a child does all its life."""
    code = 1
    try:
        faulthandler.enable(2)  # SIGABRT tells where each thread of a hung child stands
        arm, disarm = _plant(site, fault, shared, channel)
        channel.close()
        shared.report = body(arm, disarm)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _plant(
    site: str, fault: Fault, shared: Shared, channel: socket.socket
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Plant a fault in this process; returns (arm, disarm)."""
    if site == "cpython":
        import _testcapi

        stop = 0 if fault.forever else fault.first + 1
        return (lambda: _testcapi.set_nomemory(fault.first, stop)), _testcapi.remove_mem_hooks
    if site in SYSTEM_CALLS:
        listener = _install_filter(SYSTEM_CALLS[site][0])
        socket.send_fds(channel, [b"."], [listener])
        os.close(listener)
    elif site == "numpy":
        take_numpy_memory(shared)
    else:
        _replace_symbol(site, shared)

    def set_armed(value: bool) -> None:
        shared.words[ARMED] = value

    return (lambda: set_armed(True)), (lambda: set_armed(False))


def _install_filter(numbers: tuple[int, ...]) -> int:
    """Hand these system calls of this thread, and of those that it starts, to a listener."""
    steps = [(0x20, 0, 0, 0)]  # load the number
    for number in numbers:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, ASK)]
    steps.append((0x06, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    listener = int(libc.syscall(SECCOMP, SET_MODE_FILTER, NEW_LISTENER, program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "no listener of system calls")
    return listener


def _wait(child: int, listener: int | None, shared: Shared, deadline: float) -> bool:
    """Answer a child's system calls until it ends; ends it, and returns False, at the deadline."""
    poll = select.poll()
    if listener is not None:
        poll.register(listener, select.POLLIN)
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGABRT)
            time.sleep(0.5)
            os.kill(child, signal.SIGKILL)
            return False
        events = poll.poll(5)
        if listener is not None and events:
            if events[0][1] & select.POLLIN:
                _answer(listener, shared)
            else:
                poll.unregister(listener)  # no process is left that asks
                listener = None
    return True


def _answer(listener: int, shared: Shared) -> None:
    """Answer one system call in the kernel's place, or let it through."""
    question = bytearray(QUESTION)
    try:
        fcntl.ioctl(listener, RECEIVE, question)
        identity, number = struct.unpack_from("Q8xi", question)
        operation = struct.unpack_from("8xQ", question, 32)[0] & 0x7F  # of a futex
        answer = (identity, 0, 0, LET_THROUGH)
        counts = number != FUTEX or operation in FUTEX_WAITS
        if counts and strikes(shared.words):
            error = next(e for numbers, e in SYSTEM_CALLS.values() if number in numbers)
            # brk gives no error numbers: an end of 0 says that it did nothing.
            answer = (identity, 0, 0 if number == BRK else -error, 0)
        fcntl.ioctl(listener, SEND, bytearray(struct.pack(ANSWER, *answer)))
    except OSError as error:
        if error.errno != errno.ENOENT:  # the thread that asked was ended meanwhile
            raise


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of numpy's C interface."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


@functools.cache
def _allocators() -> tuple[Any, ...]:
    """malloc, calloc, realloc and free for numpy, of the words of a `Shared`. They are compiled:
    numpy frees arrays while an exception is on its way, where no code of Python's may run.
    """
    from numba import carray, cfunc, njit, types

    word, context = types.intp, types.CPointer(types.int64)
    c_malloc = types.ExternalFunction("malloc", word(word))
    c_calloc = types.ExternalFunction("calloc", word(word, word))
    c_realloc = types.ExternalFunction("realloc", word(word, word))
    c_free = types.ExternalFunction("free", types.void(word))
    bytes_of = types.ExternalFunction("malloc_usable_size", word(word))
    struck = njit(strikes)

    @cfunc(word(context, word))
    def malloc(context, size):
        words = carray(context, (WORDS,))
        if struck(words):
            return 0
        block = c_malloc(size)
        words[LIVE] += bytes_of(block)
        return block

    @cfunc(word(context, word, word))
    def calloc(context, count, size):
        words = carray(context, (WORDS,))
        if struck(words):
            return 0
        block = c_calloc(count, size)
        words[LIVE] += bytes_of(block)
        return block

    @cfunc(word(context, word, word))
    def realloc(context, block, size):
        words = carray(context, (WORDS,))
        if struck(words):
            return 0
        words[LIVE] -= bytes_of(block)
        block = c_realloc(block, size)
        words[LIVE] += bytes_of(block)
        return block

    @cfunc(types.void(context, word, word))
    def free(context, block, size):
        carray(context, (WORDS,))[LIVE] -= bytes_of(block)
        c_free(block)

    return malloc, calloc, realloc, free


def take_numpy_memory(shared: Shared) -> None:
    """Let numpy take memory in this context, and in its copies, until the end of the process: its
    allocations count as calls, and the bytes that are not freed are counted.
    """
    addresses = (function.address for function in _allocators())
    handler = _Handler(b"faults", 1, shared.words.ctypes.data, *addresses)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
    capsule = new(ctypes.addressof(handler), ctypes.cast(NAME, ctypes.c_void_p), None)
    _kept.append((shared, handler))
    _of_numpy(SET_HANDLER, ctypes.py_object)(capsule)


NAME = ctypes.c_char_p(b"mem_handler")  # of a capsule, which keeps its address


def _of_numpy(place: int, *arguments: Any) -> Any:
    """A function of numpy's C interface, which returns an object."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    interface = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
    functions = ctypes.cast(get(interface, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(functions[place])


_kept: list[Any] = []  # what code outside Python points to


def _replace_symbol(name: str, shared: Shared) -> None:
    """Replace a function of the C library, of three words, in code that LLVM loads from now on."""
    import llvmlite.binding as llvm

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    original = kind((name, ctypes.CDLL(None)))
    replacement = kind(lambda *words: -1 if strikes(shared.words) else original(*words))
    _kept.append(replacement)
    llvm.add_symbol(name, ctypes.cast(replacement, ctypes.c_void_p).value)
