"""A team of threads for short launches; nobody waits for a thread that has nothing to finish.

A launch calls ``entry(blob, 0)`` in the thread of the caller and, if they come in time,
``entry(blob, 1)``, ``entry(blob, 2)``, ... in helpers. Entries take work items from a counter until
none is left, so any number of threads does all the work, and a helper that wakes too late is not
missed.

- The caller publishes a job, wakes helpers, works itself, closes the job (nobody enters it any
  more, so its blob may go) and waits for those helpers alone that are inside: they hold an item.
- Helpers wake each other as a tree: thread t wakes threads 2t + 1 and 2t + 2.
- A helper enters by compare-and-swap of the job's STATE, which has a generation: one that read an
  old state never gets in.
- A thread that waits spins for a short time, then sleeps in a semaphore. Whoever wakes a helper
  takes it off SLEEPERS first, so each wait gets exactly one post.
- No more threads run than there are CPUs: a launch asks for as many helpers as callers and helpers
  leave over, and a helper that finds too many threads at work takes no further item.
- After a helper was kept from its CPU while its caller waited, launches do without helpers for
  REST times as long. What a helper lost before, other threads made up for.
- Linux wakes a thread on the CPU of the thread that wakes it, even beside idle CPUs; such a helper
  moves to another CPU, since both would take turns. Where Linux always does so, as the option
  sched_vcpu_pack of some clouds makes it, the one that wakes gives way, lest the helper wait for
  its first turn for milliseconds.
- A forked child makes a team of its own at its first launch. At exit, helpers end with the process:
  they are no threads of Python's, and never need its lock.
"""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import atomic, memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.runtime.active_threads import CPUS, RUNNING
from implicit_conv.kernels.cpu.runtime.call import THREAD_COUNTS
from implicit_conv.kernels.cpu.runtime.call import WORD as BYTES
from implicit_conv.kernels.cpu.runtime.compiled import linux
from implicit_conv.kernels.cpu.runtime.compiled.entry import run_counted
from implicit_conv.kernels.cpu.runtime.compiled.source import for_python, of_function
from implicit_conv.kernels.cpu.runtime.compiled.subnormals import control_word, set_control_word
from implicit_conv.kernels.cpu.runtime.native_team import (
    JOB_COUNT,
    JOBS,
    LINE,
    PACKS,
    SEMAPHORE_BYTES,
)

WORD = types.int64

# Offsets of the words of a team; its jobs are behind them, at JOBS.
OPEN = 0 * LINE  # the mask of jobs that helpers may enter
TAKEN = 1 * LINE  # the mask of jobs in use
SLEEPERS = 2 * LINE  # helpers that sleep and whom nobody has woken yet
REST_UNTIL = 3 * LINE  # a time: launches before it go without helpers
BED = 4 * LINE  # the semaphore in which helpers sleep

# Offsets of the words of a job.
STATE, ENTRY, BLOB, LIMIT, BELL, CPU, CONTROL, WAITS_SINCE = (8 * i for i in range(8))
# STATE is generation << 32 | WAITS | CLOSED | threads that entered << 12 | helpers inside.
INSIDE, ENTERED, CLOSED, WAITS, GENERATION = 1, 1 << 12, 1 << 24, 1 << 25, 1 << 32

# Times in ns. A helper that spun for 3 ms would win 30 % where a call comes every 2 ms, and lose
# 15 % beside a busy process.
HELPER_SPIN = 50_000  # an idle helper spins before it sleeps
CALLER_SPIN = 20_000  # a caller that waits for helpers spins before it sleeps
STALL = 500_000  # a helper that is kept from its CPU for longer makes launches rest
LONGEST_STALL = 50_000_000  # of a longer one as much counts: a stopped process is no busy CPU
REST = 16


def wake(team: int, count: int) -> int:
    """Wake up to `count` helpers that sleep; returns how many of them do not."""
    while count > 0:
        sleepers = atomic.load(team + SLEEPERS)
        if sleepers == 0:
            return count
        if atomic.swap(team + SLEEPERS, sleepers, sleepers - 1):
            linux.post(atomic.load(team + BED))
            count -= 1
    return 0


def wake_next(team: int, thread: int, limit: int) -> None:
    """Wake the helpers that thread `thread` of a launch on `limit` threads has to wake."""
    first = 2 * thread + 1
    wanted = min(2, limit - first)
    if wake(team, wanted) < wanted and atomic.load(team + PACKS):
        give_way(team)


def give_way(team: int) -> None:
    """Let helpers that were woken on this CPU move to another one, which takes them some 10 us. If
    another process took the turn, launches rest.
    """
    began = linux.clock(linux.MONOTONIC)
    linux.give_way()
    now = linux.clock(linux.MONOTONIC)
    if now - began > STALL:
        atomic.store(team + REST_UNTIL, now + min(now - began, LONGEST_STALL) * REST)


def work_in(team: int, bit: int, job: int, thread: int, limit: int) -> None:
    """Work in a job that this helper has entered as `thread`."""
    if thread + 1 == limit:
        atomic.keep_bits(team + OPEN, ~bit)
    wake_next(team, thread, limit)
    began, worked = linux.clock(linux.MONOTONIC), linux.clock(linux.THREAD_CPU)
    before = control_word()
    set_control_word(atomic.load(job + CONTROL))
    run_counted(atomic.load(job + ENTRY), atomic.load(job + BLOB), thread)
    set_control_word(before)
    atomic.keep_bits(team + OPEN, ~bit)  # no item is left; the bit is this job's while we are in it
    now = linux.clock(linux.MONOTONIC)
    if atomic.load(job + STATE) & WAITS and now - atomic.load(job + WAITS_SINCE) > STALL:
        waited = now - atomic.load(job + WAITS_SINCE)
        kept = now - began - (linux.clock(linux.THREAD_CPU) - worked)
        lost = min(kept, waited, LONGEST_STALL)
        if lost > STALL:
            atomic.store(team + REST_UNTIL, now + lost * REST)
    state = atomic.add(job + STATE, -INSIDE)
    if state & WAITS and state & (ENTERED - 1) == INSIDE:
        linux.post(atomic.load(job + BELL))


def enter(team: int, bit: int, job: int) -> bool:
    """Take part in a job; whether this helper did."""
    moved = False
    while True:
        state = atomic.load(job + STATE)
        thread = (state & (CLOSED - 1)) // ENTERED
        limit = atomic.load(job + LIMIT)
        if state & CLOSED or thread >= limit:
            return False
        if not moved and atomic.load(job + CPU) == linux.this_cpu():
            moved = True
            linux.leave_cpu(linux.this_cpu())
        elif atomic.swap(job + STATE, state, state + ENTERED + INSIDE):
            work_in(team, bit, job, thread, limit)
            return True


def help_somebody(team: int) -> bool:
    """Take part in an open job; whether there was one."""
    jobs = atomic.load(team + OPEN)
    while jobs:
        place = atomic.lowest_bit(jobs)
        bit = 1 << place
        if enter(team, bit, team + JOBS + place * LINE):
            return True
        jobs &= ~bit
    return False


def helper(team: int) -> int:
    """What a helper does all its life."""
    while True:
        while help_somebody(team):
            pass
        until = linux.clock(linux.MONOTONIC) + HELPER_SPIN
        while atomic.load(team + OPEN) == 0 and linux.clock(linux.MONOTONIC) < until:
            atomic.pause()
        if help_somebody(team):
            continue
        atomic.add(team + SLEEPERS, 1)
        if help_somebody(team):  # a job that was opened before this helper counted as a sleeper
            sleepers = atomic.load(team + SLEEPERS)
            while sleepers > 0 and not atomic.swap(team + SLEEPERS, sleepers, sleepers - 1):
                sleepers = atomic.load(team + SLEEPERS)
            if sleepers > 0:
                continue  # nobody has woken it
        linux.wait(atomic.load(team + BED))
    return 0


def take_job(team: int) -> int:
    """The bit of a job that nobody uses, now taken; 0 if there is none."""
    while True:
        taken = atomic.load(team + TAKEN)
        place = atomic.lowest_bit(~taken)
        if place >= JOB_COUNT:
            return 0
        if atomic.swap(team + TAKEN, taken, taken | 1 << place):
            return 1 << place


def close(job: int) -> None:
    """Let nobody else enter, and wait for the helpers inside."""
    state = atomic.set_bits(job + STATE, CLOSED)
    if state & (ENTERED - 1) == 0:
        return
    now = linux.clock(linux.MONOTONIC)
    atomic.store(job + WAITS_SINCE, now)
    until = now + CALLER_SPIN
    while atomic.load(job + STATE) & (ENTERED - 1) != 0:
        if linux.clock(linux.MONOTONIC) >= until:
            if atomic.set_bits(job + STATE, WAITS) & (ENTERED - 1) != 0:
                linux.wait(atomic.load(job + BELL))  # the last helper inside posts, once
            return
        atomic.pause()


def helpers_for(team: int, thread_counts: int, threads: int) -> int:
    """How many helpers a launch on `threads` threads may have."""
    rest = atomic.load(team + REST_UNTIL)
    if rest and linux.clock(linux.MONOTONIC) < rest:
        return 0
    return (
        min(threads, atomic.load(thread_counts + CPUS) - atomic.load(thread_counts + RUNNING)) - 1
    )


def launch(team: int, entry: int, blob: int, threads: int) -> None:
    """Run an entry on up to `threads` threads, of which this one is the first."""
    helpers = helpers_for(team, memory.read(blob + BYTES * THREAD_COUNTS), threads)
    bit = take_job(team) if helpers > 0 else 0
    if bit == 0:
        run_counted(entry, blob, 0)
    else:
        job = team + JOBS + atomic.lowest_bit(bit) * LINE
        atomic.store(job + ENTRY, entry)
        atomic.store(job + BLOB, blob)
        atomic.store(job + LIMIT, helpers + 1)
        atomic.store(job + CPU, linux.this_cpu())
        atomic.store(job + CONTROL, control_word())
        generation = (atomic.load(job + STATE) // GENERATION + 1) * GENERATION
        atomic.store(job + STATE, generation + ENTERED)
        atomic.set_bits(team + OPEN, bit)
        wake_next(team, 0, helpers + 1)
        run_counted(entry, blob, 0)
        atomic.keep_bits(team + OPEN, ~bit)
        close(job)
        atomic.keep_bits(team + TAKEN, ~bit)


def make(team: int, semaphores: int, function: int, helpers: int, scratch: int) -> int:
    """Make the semaphores and start the helpers of a team; returns how many could be started."""
    linux.make_semaphore(semaphores)
    atomic.store(team + BED, semaphores)
    for place in range(JOB_COUNT):
        job = team + JOBS + place * LINE
        bell = semaphores + (place + 1) * SEMAPHORE_BYTES
        linux.make_semaphore(bell)
        atomic.store(job + BELL, bell)
        atomic.store(job + STATE, CLOSED)
    for started in range(helpers):
        if linux.start_thread(function, team, scratch) != 0:
            return started
    return helpers


HELPER = of_function(WORD(WORD), helper)  # helper(team)
MAKE = for_python(WORD(*[WORD] * 5), make)  # make(team, semaphores, function, helpers, scratch)
LAUNCH = for_python(types.void(*[WORD] * 4), launch)  # launch(team, entry, blob, threads)
