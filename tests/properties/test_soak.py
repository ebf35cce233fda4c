"""Everything at once: threads, forks from several of them, interrupts, changed affinity, cleared
caches in memory and on disk, collections, kinds of calls that were never compiled.

A child process computes random trials for some time and compares each result with the reference. It
prints what it did, and the memory, descriptors, threads and mappings that it had before and after;
a wrong result, a crash, a hang or a leak fails with its output.
"""

import faulthandler
import gc
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from processes import TEAMS
from sampling import count, sampled

import implicit_conv
from implicit_conv import clear_plan_cache
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.process import preparation
from implicit_conv.process.disk import store
from implicit_conv.testing.check import check, verify
from implicit_conv.testing.draw import Deck
from implicit_conv.testing.trial import compute, inputs

# After the warm-up, with each team of threads: the native one has an hour.
SECONDS = count(dict.fromkeys(TEAMS, 5), {"default": 3600, "queue": 150})
WORKERS = 3  # threads that compute all the time
FORKERS = 2  # threads that fork all the time, besides the main thread
THREADS = 3  # of a call at most
SEED = 0
KINDS = 5  # computed all the time
# Share of the calls, in threads, children and under interrupts, of a kind that was never compiled.
FIRST_CALLS = 0.02
HANG_SECONDS = 120  # without an answer of a child, or after the end
CHANGED_AFFINITY = 0.02  # share of the calls before which a thread is held to some of the CPUs
REMOVED_FILES = 3  # of the cache on disk, each time that caches are cleared
KIND_BYTES = 4 << 20  # that the compiled kernels of one kind of call may take, at most
SPARE_BYTES = 64 << 20  # by which the process may grow besides
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
SUPPORT = Path(__file__).parents[1] / "support"


@sampled
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
@pytest.mark.parametrize("team", TEAMS)
def test_everything_at_once(team, tmp_path, capsys):
    folder = tmp_path / "cache"  # files of it are removed
    if store().folder.is_dir():
        shutil.copytree(store().folder, folder)
    package = Path(implicit_conv.__file__).parent.parent
    child = subprocess.run(
        [sys.executable, __file__, team, str(SECONDS[team]), str(FIRST_CALLS)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "IMPLICIT_CONV_CACHE_DIR": str(folder),
            "PYTHONPATH": f"{package}{os.pathsep}{SUPPORT}",
            "PYTHONWARNINGS": "ignore",  # of forks while threads run
            "NUMBA_NUM_THREADS": str(THREADS),
            "OPENBLAS_NUM_THREADS": "1",  # forks while others sum the reference hang with more
        },
        timeout=SECONDS[team] + 5 * HANG_SECONDS,
    )
    assert child.returncode == 0, f"exit {child.returncode}\n{child.stdout}{child.stderr[-9000:]}"
    done = json.loads(child.stdout)
    with capsys.disabled():
        print(f"\n{team}: {', '.join(f'{number} {what}' for what, number in done.items())}")
    assert min(done[what] for what in ("calls", "forks", "interrupts", "cleared caches")) > 0
    assert done["descriptors after"] == done["descriptors before"]
    assert done["threads after"] <= done["threads before"]
    grown = done["bytes after"] - done["bytes before"]
    assert grown < SPARE_BYTES + KIND_BYTES * done["kinds"], f"{grown} bytes were not returned"


class Soak:
    """The trials, what was done with them, and the errors of threads."""

    def __init__(self, first_calls):
        self.first_calls = first_calls
        self.done, self.errors, self.over = Counter(), [], threading.Event()
        self._deck, self._dealing = Deck(SEED, THREADS), threading.Lock()
        trials = [trial for _ in range(KINDS) for trial in self._deck.deal()[1][::2]]
        for trial in trials:
            check(trial)
        self.known = [(trial, inputs(trial)) for trial in trials]

    def pick(self, dice):
        """A trial with its arrays: a known one, or the first one of a kind."""
        if dice.random() >= self.first_calls:
            return dice.choice(self.known)
        with self._dealing:
            trial = self._deck.deal()[1][0]
            self.done["kinds"] += 1
        return trial, inputs(trial)

    def repeat(self, action, seed):
        """A thread that repeats an action until the end."""

        def work():
            dice = random.Random(seed)
            try:
                while not self.over.is_set():
                    action(dice)
            except BaseException as error:
                self.errors.append(error)
                self.over.set()

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def call(self, dice):
        """Compute and compare."""
        if dice.random() < CHANGED_AFFINITY:
            os.sched_setaffinity(0, dice.sample(CPUS, dice.randint(1, len(CPUS))))
            self.done["changed affinities"] += 1
        trial, given = self.pick(dice)
        verify(trial, given, compute(trial, given))
        self.done["calls"] += 1

    def clear(self, dice):
        """Drop plans and prepared calls, and some files of the disk cache; sometimes collect
        garbage.
        """
        clear_plan_cache()
        files = list(store().folder.glob("*"))
        for path in dice.sample(files, min(len(files), REMOVED_FILES)):
            path.unlink(missing_ok=True)
            self.done["removed files"] += 1
        self.done["cleared caches"] += 1
        if dice.random() < 0.2:
            gc.collect()
            self.done["collections"] += 1
        time.sleep(dice.uniform(0, 0.2))

    def fork(self, dice):
        """Compute in a forked child and compare here."""
        trial, given = self.pick(dice)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                y = compute(trial, given)
                with open(writer, "wb") as pipe:
                    pipe.write(y.astype(y.dtype.newbyteorder("=")).tobytes())
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(writer)
        with open(reader, "rb") as pipe:
            if not select.select([pipe], [], [], HANG_SECONDS)[0]:
                os.kill(child, signal.SIGABRT)  # it prints where it hangs
            sent = pipe.read()
        _, status = os.waitpid(child, 0)
        assert status == 0, f"a child ended with {os.waitstatus_to_exitcode(status)} at {trial!r}"
        y = np.frombuffer(sent, numpy_dtype(trial.y_dtype))
        batched = replace(trial, unbatched=False)
        verify(trial, given, y.reshape(batched.shape(trial.made.result)))
        self.done["forks"] += 1

    def interrupt(self, dice):
        """Interrupt a call as Ctrl-C does, then compute the same and compare."""
        trial, given = self.pick(dice)
        longest = 3 if dice.random() < self.first_calls else 0.01  # seconds
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, longest))
            compute(trial, given)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            self.done["interrupts"] += 1
        verify(trial, given, compute(trial, given))


def idle():
    """Wait until nothing is prepared for later, and the threads that did have left the process."""
    end = time.monotonic() + HANG_SECONDS
    while preparation._later and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.1)  # from the last instruction of Python to the end of a thread


def used(when):
    """What this process has of each resource, named with a word that says `when`."""
    idle()
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found = {
        "bytes": int(status["VmRSS"].split()[0]) << 10,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }
    return {f"{what} {when}": number for what, number in found.items()}


def warmed(what):
    """What the process uses once as many threads have called as will call."""
    dice = random.Random(SEED)
    threads = [threading.Thread(target=what.call, args=[dice]) for _ in range(WORKERS + FORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    x, w = np.ones((8, 64, 56, 56), np.float32), np.ones((64, 64, 3, 3), np.float32)
    with implicit_conv.config(num_threads=THREADS):
        implicit_conv.conv2d(x, w)  # while nothing else runs: each CPU has its thread from now on
    return used("before")


def soak(seconds, first_calls):
    """Do everything at once, and print how often."""
    faulthandler.enable()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    what = Soak(first_calls)
    faulthandler.dump_traceback_later(seconds + 2 * HANG_SECONDS, exit=True)
    before = warmed(what)
    actions = [what.call] * WORKERS + [what.fork] * FORKERS + [what.clear]
    threads = [what.repeat(action, seed) for seed, action in enumerate(actions)]
    dice, end = random.Random(SEED), time.monotonic() + seconds
    try:
        while time.monotonic() < end and not what.over.is_set():
            what.fork(dice)
            what.interrupt(dice)
    finally:
        what.over.set()
        for thread in threads:
            thread.join()
    for error in what.errors:
        raise error
    print(json.dumps({**what.done, **before, **used("after")}))


if __name__ == "__main__":
    exec(TEAMS[sys.argv[1]])
    soak(*map(float, sys.argv[2:]))
