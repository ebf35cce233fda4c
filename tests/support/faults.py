"""Faults planted in what surrounds a call: the n-th call of a site fails, once or for ever.

`attempt` runs a function in a forked child and plants a `Fault` at one of these sites:

- SYSTEM_CALLS. A seccomp filter in the child hands them to its parent, which counts them, and
  answers in the kernel's place with an error number, or lets them through. This reaches Python,
  numpy, LLVM, the C library and helper threads. A seccomp filter alone cannot count.
- "numpy": memory of arrays, by a handler as `PyDataMem_SetHandler` takes it.
- "cpython": memory of objects, by allocators as `PyMem_SetAllocator` takes them.
- "sem_init", which is no system call, and which compiled code finds in LLVM's table of symbols.
"""

import ctypes
import errno
import faulthandler
import fcntl
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

from fault_memory import (
    ARMED,
    CALLS,
    NEVER,
    Fault,
    Shared,
    compile_allocators,
    replace_symbol,
    strikes,
    take_numpy_memory,
    take_python_memory,
)

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

SET_MODE_FILTER, NEW_LISTENER, SECCOMP = 1, 8, 317
NO_NEW_PRIVS = 38
ASK, ALLOW = 0x7FC00000, 0x7FFF0000  # SECCOMP_RET_USER_NOTIF, SECCOMP_RET_ALLOW
RECEIVE, SEND = 0xC0502100, 0xC0182101  # ioctls of a listener
QUESTION, ANSWER, LET_THROUGH = 80, "QqiI", 1


def is_possible() -> bool:
    """Whether this machine has the system calls above, and a child may ask its parent for them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return attempt(lambda arm, disarm: {"done": True}, "rename", Fault(NEVER)).ended


class Outcome(NamedTuple):
    """What became of a child."""

    status: int  # an exit code, or a signal's negative number
    calls: int  # of the site while the fault was armed
    report: dict[str, Any]
    errors: str = ""  # what it wrote to stderr
    hung: bool = False

    @property
    def ended(self) -> bool:
        """Whether the child came to its end and reported."""
        return self.status == 0 and bool(self.report)


Body = Callable[[Callable[[], None], Callable[[], None]], dict[str, Any]]


def attempt(body: Body, site: str, fault: Fault, seconds: float = 60) -> Outcome:
    """Run ``body(arm, disarm)`` in a forked child, with a fault that strikes between the two.

    What `body` returns is the report. A child that has not ended after `seconds` is hung.
    """
    shared = Shared(fault)
    compile_allocators(site)
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as errors, ours, theirs:
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            _run_child(body, site, shared, theirs)
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


def _run_child(body: Body, site: str, shared: Shared, channel: socket.socket) -> None:
    """What a child does all its life."""
    code = 1
    try:
        os.setpgid(0, 0)  # with its own children, so that all of them can be ended
        faulthandler.enable(2)  # SIGABRT tells where each thread of a hung child stands
        arm, disarm = _plant(site, shared, channel)
        channel.close()
        shared.report = body(arm, disarm)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _plant(
    site: str, shared: Shared, channel: socket.socket
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Plant a fault in this process; returns (arm, disarm)."""
    if site in SYSTEM_CALLS:
        listener = _install_filter(SYSTEM_CALLS[site][0])
        socket.send_fds(channel, [b"."], [listener])
        os.close(listener)
    elif site == "numpy":
        take_numpy_memory(shared)
    elif site == "cpython":
        take_python_memory(shared)
    else:
        replace_symbol(site, shared)

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
            for end in (signal.SIGABRT, signal.SIGKILL):
                os.killpg(child, end)
                time.sleep(0.5)
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
