"""Teams of threads: every item is done once, by no more threads than CPUs, and nobody is left."""

import itertools
import os
import sys
import threading
import time

import numpy as np
import pytest
from compiled import entry, python_function

from implicit_conv.kernels.cpu.emit import atomic, types
from implicit_conv.kernels.cpu.runtime import active_threads, launch, queue_team
from implicit_conv.kernels.cpu.runtime.call import BLOB, WORD
from implicit_conv.kernels.cpu.runtime.compiled.entry import ENTRY, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.subnormals import (
    FLUSH,
    control_word,
    set_control_word,
)

TEAMS = {"queue": queue_team.QueueTeam}
if sys.platform == "linux":
    from implicit_conv.kernels.cpu.runtime import native_team
    from implicit_conv.kernels.cpu.runtime.compiled import team as native

    TEAMS["native"] = native_team.Team

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="written for systems that fork")
PAUSES = 1 << 31  # of a thread that waits for something, at most: minutes
SECONDS = 60  # until a test that waits for something fails


@entry(ENTRY)
def count_items(blob, thread):
    """Count each item in the words at `call.y`, after `call.chunk` turns of a loop, and the items
    of each thread in the words at `call.x`.
    """
    call = fields(blob).call
    item = next_item(blob, thread)
    while item < call.items:
        for _ in range(call.chunk):
            atomic.pause()
        atomic.add(call.y.address + 8 * item, 1)
        atomic.add(call.x.address + 8 * thread, 1)
        item = next_item(blob, thread)


@entry(ENTRY)
def wait_at_gates(blob, thread):
    """Write 1 + thread to each item's word at `call.y`, then wait for its word at `call.x`."""
    call = fields(blob).call
    item = next_item(blob, thread)
    while item < call.items:
        atomic.store(call.y.address + 8 * item, 1 + thread)
        for _ in range(PAUSES):
            if atomic.load(call.x.address + 8 * item):
                break
            atomic.pause()
        item = next_item(blob, thread)


@entry(ENTRY)
def note_control_words(blob, thread):
    """Write the control word of the thread of each item to the words at `call.y`."""
    call = fields(blob).call
    item = next_item(blob, thread)
    while item < call.items:
        atomic.store(call.y.address + 8 * item, control_word())
        for _ in range(PAUSES * (thread == 0)):
            if atomic.load(call.y.address + 8 * (call.items - 1)):
                break  # a helper has come
            atomic.pause()
        item = next_item(blob, thread)


_usleep = types.ExternalFunction("usleep", types.int32(types.int32))


@entry(ENTRY)
def sleep_in_helper(blob, thread):
    """Write 1 to the word at `call.x`, and sleep for `call.chunk` us, in a helper; thread 0 ends
    when one has come.
    """
    call = fields(blob).call
    if thread:
        atomic.store(call.x.address, 1)
        _usleep(types.int32(call.chunk))
    for _ in range(PAUSES):
        if atomic.load(call.x.address):
            break
        atomic.pause()


class Job:
    """A blob with `items` items, and the words that its entry reads and writes."""

    def __init__(self, items, turns=0, threads=8):
        self.x, self.y = np.zeros(max(items, threads), np.int64), np.zeros(items, np.int64)
        self.blob = np.zeros(BLOB.itemsize // WORD, np.int64)
        call = self.blob.view(BLOB)[0]["call"]
        call["items"], call["chunk"], call["thread_counts"] = items, turns, active_threads.ADDRESS
        call["x"]["address"], call["y"]["address"] = self.x.ctypes.data, self.y.ctypes.data
        self.address = self.blob.ctypes.data

    @property
    def taken(self):
        return int(self.blob[0])

    def is_done(self):
        return bool((self.y == 1).all())


@pytest.fixture
def make(request):
    """make(kind, cpus): a team for so many CPUs, whatever this machine has."""
    yield lambda kind, cpus: active_threads.reset(cpus) or TEAMS[kind](cpus)
    assert active_threads.running() == 0
    active_threads.reset(active_threads.cpu_count())


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(1e-3)


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", TEAMS)
@pytest.mark.parametrize("cpus", [1, 2, 5])
def test_every_item_is_done_once(make, kind, cpus):
    team = make(kind, cpus)
    dice = np.random.default_rng(0)
    for _ in range(300):
        threads = int(dice.integers(1, 9))
        job = Job(int(dice.integers(0, 40)), int(dice.choice([0, 30, 1000])), threads)
        team.run(count_items.address, job.address, threads)
        assert job.is_done()
        assert job.x[threads:].sum() == 0


@pytest.mark.parametrize("kind", TEAMS)
def test_helpers_take_part(make, kind):
    """Five threads each take one of five items, and none of them ends before all are taken."""
    team, job = make(kind, 5), Job(5)
    caller = in_thread(team.run, wait_at_gates.address, job.address, 5)
    wait_until(job.y.all)
    assert active_threads.running() == 5
    assert sorted(job.y) == [1, 2, 3, 4, 5]
    job.x[:] = 1
    caller.join()


@pytest.mark.parametrize("kind", TEAMS)
def test_no_more_threads_run_than_there_are_cpus(make, kind):
    team, first, second = make(kind, 2), Job(3), Job(2)
    callers = [in_thread(team.run, wait_at_gates.address, first.address, 3)]
    wait_until(first.y[:2].all)  # taken by the caller and a helper
    callers.append(in_thread(team.run, wait_at_gates.address, second.address, 2))
    wait_until(lambda: second.y[0])
    assert active_threads.running() == 3  # the helper has begun an item, which it ends
    first.x[:2] = first.y[:2] == 2
    wait_until(lambda: active_threads.running() == 2)
    assert (first.taken, second.taken) == (2, 1)
    first.x[:] = second.x[:] = 1
    for caller in callers:
        caller.join()
    assert list(second.y) == [1, 1]
    assert first.y[2] == 1


@pytest.mark.parametrize("kind", TEAMS)
def test_callers_at_once(make, kind):
    team, wrong = make(kind, 4), []

    def call(seed):
        dice = np.random.default_rng(seed)
        for _ in range(200):
            job = Job(int(dice.integers(0, 20)), int(dice.choice([0, 100])))
            team.run(count_items.address, job.address, int(dice.integers(2, 6)))
            if not job.is_done():
                wrong.append(job)
            job.blob[:] = 0  # whoever came later would read address 0

    callers = [in_thread(call, seed) for seed in range(6)]
    for caller in callers:
        caller.join()
    assert wrong == []


def test_callers_at_once_start_no_helper_twice(make):
    team, before = make("queue", 4), threading.active_count()
    sys.setswitchinterval(1e-6)
    try:
        jobs = [Job(20) for _ in range(16)]
        callers = [in_thread(team.run, count_items.address, job.address, 4) for job in jobs]
        for caller in callers:
            caller.join()
    finally:
        sys.setswitchinterval(0.005)
    assert all(job.is_done() for job in jobs)
    assert threading.active_count() - before == team.helpers <= 3


def test_a_stop_is_not_followed_by_a_long_rest(make):
    """A helper that sleeps while its caller waits seems to be kept from its CPU, as in a process
    that was stopped meanwhile.
    """
    if "native" not in TEAMS:
        pytest.skip("threads of Python's do not rest")
    team = make("native", 2)
    for _ in range(30):  # in case the caller itself is kept from its CPU for as long
        job = Job(1, 100_000)
        team.run(sleep_in_helper.address, job.address, 2)
        if team.words[native.REST_UNTIL // 8] > 0:
            break
    rest = team.words[native.REST_UNTIL // 8] - time.monotonic_ns()
    assert team.words[native.REST_UNTIL // 8] > 0
    assert rest <= native.REST * native.LONGEST_STALL


def interrupt(place):
    """Raise KeyboardInterrupt at the `place`-th step of this thread at which Python looks for
    signals: the start of a function, and the return of one in C.
    """
    steps = itertools.count()

    def look(frame, event, argument):
        if event not in ("call", "c_return"):
            return
        if next(steps) == place:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(look)


def test_an_interrupted_launch_leaves_a_team_that_works(make):
    """A launch of the native team is one compiled call, which nothing interrupts."""
    team, first = make("queue", 3), Job(3)
    team.run(count_items.address, first.address, 3)  # starts helpers
    for place in itertools.count():
        job, after = Job(3), Job(3)
        interrupt(place)
        try:
            team.run(count_items.address, job.address, 3)
        except KeyboardInterrupt:
            interrupted = True
        else:
            interrupted = False
        sys.setprofile(None)
        job.blob[:] = 0  # whoever came later would read address 0
        caller = in_thread(team.run, wait_at_gates.address, after.address, 3)
        wait_until(after.y.all)  # only with both helpers
        after.x[:] = 1
        caller.join()
        if not interrupted:
            break
    assert job.is_done()


def test_a_launch_needs_no_helper_to_start(make, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    team, job = make("queue", 3), Job(5)
    team.run(count_items.address, job.address, 3)
    assert job.is_done()
    assert team.helpers == 0


@python_function(types.int64())
def flush():
    """Treat subnormals as zeros in this thread; returns the control word from before."""
    before = control_word()
    set_control_word(before | FLUSH)
    return before


@python_function(types.void(types.int64))
def restore(word):
    """Set the control word of this thread."""
    set_control_word(word)


@pytest.mark.skipif(not FLUSH, reason="the control word of this CPU is unknown")
def test_helpers_round_and_flush_as_their_caller(make):
    if "native" not in TEAMS:
        pytest.skip("threads of Python's keep their own control word")
    flushing, keeping = Job(2), Job(2)
    first, second = make("native", 2), make("native", 2)  # new threads have the word of this one
    before = flush()
    try:
        first.run(note_control_words.address, flushing.address, 2)
    finally:
        restore(before)
    second.run(note_control_words.address, keeping.address, 2)
    assert list(flushing.y & FLUSH) == [FLUSH, FLUSH]
    assert list(keeping.y & FLUSH) == [0, 0]


def test_a_forked_child_has_a_team_of_its_own():
    parents = launch.team()
    child = os.fork()
    if child == 0:
        job = Job(40, 100)
        launch.launch(count_items.address, job.address, 2)
        right = job.is_done() and launch.team() is not parents and active_threads.running() == 0
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert launch.team() is parents
