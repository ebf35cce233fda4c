"""Calls from many threads, with every team, and by two processes at once."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from processes import TEAMS, run_python
from sampling import count, sampled

from implicit_conv import conv2d
from implicit_conv.testing import Case

CASES = [
    Case(N=2, C=33, K=40, size=(30, 30), padding=((1, 1), (1, 1))),
    Case(N=2, C=64, K=64, size=(30, 30), kernel=(1, 1), layout="NHWC"),
]
SECONDS = count(20, 60)  # how long eight threads call the engine

HAMMER = """
import sys, threading
import numpy as np
from implicit_conv import conv2d

x = np.ones((1, 64, 40, 40), np.float32)
w = np.ones((64, 64, 3, 3), np.float32)
wrong = []

def work():
    for _ in range(20):
        y = conv2d(x, w)
        if not (y == 576).all():
            wrong.append(y)

threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
sys.exit(len(wrong))
"""


@sampled
@pytest.mark.slow
def test_eight_threads_at_once():
    answers = [(case, *case.inputs(0, integers=True)) for case in CASES]
    expected = [case.reference(x, w).astype(case.dtype) for case, x, w in answers]
    failures = []
    end = time.monotonic() + SECONDS

    def work(which):
        case, x, w = answers[which]
        arrays = case.arrange(x, w)
        reference = expected[which]
        if case.layout == "NHWC":
            reference = reference.transpose(0, 2, 3, 1)
        while time.monotonic() < end:
            if not np.array_equal(conv2d(*arrays, **case.options), reference):
                failures.append(which)

    threads = [threading.Thread(target=work, args=(i % len(CASES),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("team", TEAMS)
def test_eight_threads_with_every_team(team):
    result = run_python("-c", TEAMS[team] + HAMMER, NUMBA_NUM_THREADS=2)
    assert result.returncode == 0, result.stderr[-2000:]


def test_two_processes_fill_an_empty_cache_at_once(tmp_path):
    code = """
import numpy as np
from implicit_conv import conv2d
x, w = np.ones((1, 2, 6, 6), np.float32), np.ones((3, 2, 3, 3), np.float32)
assert (conv2d(x, w) == 18).all()
"""
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "IMPLICIT_CONV_CACHE_DIR": str(tmp_path)}
    racers = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [racer.wait(timeout=300) for racer in racers] == [0, 0]
    assert list(tmp_path.glob("*.kernel"))
    assert subprocess.run(command, env=environment, check=False, timeout=300).returncode == 0


def test_an_unwritable_cache_only_costs_time(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    code = """
import numpy as np
from implicit_conv import conv2d
assert conv2d(np.ones((1, 1, 3, 3)), np.ones((1, 1, 3, 3))) == 9
"""
    result = run_python("-c", code, IMPLICIT_CONV_CACHE_DIR=blocked)
    assert result.returncode == 0, result.stderr[-2000:]
