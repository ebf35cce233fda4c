"""What a team of threads asks of Linux, called from compiled code: threads, semaphores, clocks.

The functions are those of POSIX.1-2017 and of sched_getcpu(3) and sched_setaffinity(2).
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.emit import atomic, internals
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import I32, I64
from implicit_conv.kernels.cpu.runtime.native_team import SIGNAL_SET_BYTES

WORD, INT = types.int64, types.int32
MONOTONIC, THREAD_CPU = 1, 3  # clock ids
CPU_SET_BYTES = 128  # of a cpu_set_t: 1024 CPUs
SIG_SETMASK = 2

_sem_init = types.ExternalFunction("sem_init", INT(WORD, INT, INT))
_sem_post = types.ExternalFunction("sem_post", INT(WORD))
_sem_wait = types.ExternalFunction("sem_wait", INT(WORD))
_pthread_create = types.ExternalFunction("pthread_create", INT(WORD, WORD, WORD, WORD))
_pthread_detach = types.ExternalFunction("pthread_detach", INT(WORD))
_pthread_sigmask = types.ExternalFunction("pthread_sigmask", INT(INT, WORD, WORD))
_sigfillset = types.ExternalFunction("sigfillset", INT(WORD))
_sched_yield = types.ExternalFunction("sched_yield", INT())
_sched_getcpu = types.ExternalFunction("sched_getcpu", INT())
_sched_getaffinity = types.ExternalFunction("sched_getaffinity", INT(INT, WORD, WORD))
_sched_setaffinity = types.ExternalFunction("sched_setaffinity", INT(INT, WORD, WORD))


@emitting(WORD(WORD))
def clock(builder: ir.IRBuilder, which: ir.Value) -> ir.Value:
    """The time of a clock in ns."""
    time = internals.alloca_once(builder, ir.ArrayType(I64, 2))
    kind = ir.FunctionType(I32, [I32, I64])
    function = internals.get_or_insert_function(builder.module, kind, "clock_gettime")
    builder.call(function, [builder.trunc(which, I32), builder.ptrtoint(time, I64)])
    seconds, ns = (builder.extract_value(builder.load(time), i) for i in range(2))
    return builder.add(builder.mul(seconds, ir.Constant(I64, 10**9)), ns)


@emitting(WORD())
def _cpu_sets(builder: ir.IRBuilder) -> ir.Value:
    """The address of two CPU sets on the stack."""
    room = internals.alloca_once(builder, ir.ArrayType(I64, 2 * CPU_SET_BYTES // 8))
    return builder.ptrtoint(room, I64)


def make_semaphore(address: int) -> None:
    """Make a semaphore in the SEMAPHORE_BYTES at `address`; it counts 0."""
    _sem_init(address, INT(0), INT(0))


def post(semaphore: int) -> None:
    """Let one thread that waits for the semaphore go on."""
    _sem_post(semaphore)


def wait(semaphore: int) -> None:
    """Sleep until there is a post for this thread."""
    while _sem_wait(semaphore) != 0:  # the handler of a signal came between
        pass


def give_way() -> None:
    """Let other threads of this CPU run first."""
    _sched_yield()


def this_cpu() -> Any:
    """The number of the CPU that runs this thread."""
    return WORD(_sched_getcpu())


def leave_cpu(cpu: int) -> None:
    """Move this thread from `cpu` to another CPU that it may run on, if there is one."""
    usual = _cpu_sets()
    others = usual + CPU_SET_BYTES
    if _sched_getaffinity(INT(0), CPU_SET_BYTES, usual) < 0 or cpu >= 8 * CPU_SET_BYTES:
        return
    for word in range(0, CPU_SET_BYTES, 8):
        atomic.store(others + word, atomic.load(usual + word))
    atomic.keep_bits(others + 8 * (cpu >> 6), ~(1 << (cpu & 63)))
    if _sched_setaffinity(INT(0), CPU_SET_BYTES, others) == 0:  # it fails where no CPU is left
        _sched_setaffinity(INT(0), CPU_SET_BYTES, usual)


def start_thread(function: int, argument: int, scratch: int) -> int:
    """Start a detached thread that blocks all signals and calls ``function(argument)``.

    `scratch` has room for two sets of signals and a word. Returns an error number, or 0.
    """
    everything, before = scratch, scratch + SIGNAL_SET_BYTES
    thread = scratch + 2 * SIGNAL_SET_BYTES
    _sigfillset(everything)
    _pthread_sigmask(INT(SIG_SETMASK), everything, before)
    error = _pthread_create(thread, 0, function, argument)
    _pthread_sigmask(INT(SIG_SETMASK), before, 0)
    if error == 0:
        _pthread_detach(atomic.load(thread))
    return error
