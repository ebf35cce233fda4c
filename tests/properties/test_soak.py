"""Everything at once: threads, forks, interrupts, changed settings, cleared caches, collections.

A child process computes random trials for some time and compares each result with the reference. It
prints what it did; a wrong result, a crash or a hang fails with its output.
"""

import faulthandler
import gc
import itertools
import json
import os
import random
import select
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
from implicit_conv.arrays import numpy_dtype
from implicit_conv.testing.check import check, verify
from implicit_conv.testing.draw import TRIALS, draw_trial
from implicit_conv.testing.trial import compute, inputs

SECONDS = count(5, 150)  # with each team of threads, after the warm-up
WORKERS = 4  # threads that compute all the time
THREADS = 3  # of a call at most
SEED = 0
KINDS = (9, 45, 48, 66, 94)  # of SEED, computed all the time; of three operators, five methods
# Share of the calls, in threads, children and under interrupts, of a kind that was never compiled.
FIRST_CALLS = 0.02
HANG_SECONDS = 120  # without an answer of a child, or after the end
SUPPORT = Path(__file__).parents[1] / "support"


@sampled
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("team", TEAMS)
def test_everything_at_once(team, capsys):
    package = Path(implicit_conv.__file__).parent.parent
    child = subprocess.run(
        [sys.executable, __file__, team, str(SECONDS), str(FIRST_CALLS)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": f"{package}{os.pathsep}{SUPPORT}",
            "PYTHONWARNINGS": "ignore",  # of forks while threads run
            "NUMBA_NUM_THREADS": str(THREADS),
            "OPENBLAS_NUM_THREADS": "1",  # forks while others sum the reference hang with more
        },
        timeout=SECONDS + 5 * HANG_SECONDS,
    )
    assert child.returncode == 0, f"exit {child.returncode}\n{child.stdout}{child.stderr[-9000:]}"
    done = json.loads(child.stdout)
    with capsys.disabled():
        print(f"\n{team}: {', '.join(f'{number} {what}' for what, number in done.items())}")
    assert min(done[what] for what in ("calls", "forks", "interrupts", "cleared caches")) > 0


class Soak:
    """The trials, what was done with them, and the errors of threads."""

    def __init__(self, first_calls):
        self.first_calls = first_calls
        self.done, self.errors, self.over = Counter(), [], threading.Event()
        self.known = []
        for kind, number in itertools.product(KINDS, range(0, TRIALS, 2)):
            trial = draw_trial(SEED, kind * TRIALS + number, THREADS)
            self.known.append((trial, inputs(trial)))
            check(trial)
        self._fresh = itertools.count(1 + max(KINDS))

    def pick(self, dice):
        """A trial with its arrays: a known one, or the first one of a kind."""
        if dice.random() >= self.first_calls:
            return dice.choice(self.known)
        trial = draw_trial(SEED, next(self._fresh) * TRIALS, THREADS)
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
        trial, given = self.pick(dice)
        verify(trial, given, compute(trial, given))
        self.done["calls"] += 1

    def clear(self, dice):
        """Drop plans and prepared calls, and sometimes collect garbage."""
        clear_plan_cache()
        self.done["cleared caches"] += 1
        if dice.random() < 0.2:
            gc.collect()
            self.done["collections"] += 1
        time.sleep(dice.uniform(0, 0.02))

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


def soak(seconds, first_calls):
    """Do everything at once, and print how often."""
    faulthandler.enable()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    what = Soak(first_calls)
    faulthandler.dump_traceback_later(seconds + 2 * HANG_SECONDS, exit=True)
    actions = [what.call] * WORKERS + [what.clear]
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
    print(json.dumps(what.done))


if __name__ == "__main__":
    exec(TEAMS[sys.argv[1]])
    soak(*map(float, sys.argv[2:]))
