"""Children of a fork compute, whatever other threads of the parent did at that time."""

import os

import pytest
from processes import TEAMS, run_python
from sampling import count, sampled

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

PROBLEM = """
import os, signal, sys, threading, time
import numpy as np
from implicit_conv import conv2d

def is_right(filters, channels=20):
    x = np.ones((1, channels, 40, 40), np.float32)
    w = np.ones((filters, channels, 3, 3), np.float32)
    return bool((conv2d(x, w) == 9 * channels).all())

def fork(*problem):
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # ends a child that waits for ever
        os._exit(0 if is_right(*problem) else 1)
    return os.waitpid(child, 0)[1]
"""


def check(code, **environment):
    """Run `code` after PROBLEM; forks while threads run are what is tested, so no warning."""
    result = run_python("-W", "ignore", "-c", PROBLEM + code, **environment)
    assert result.returncode == 0, result.stdout[-1000:] + result.stderr[-3000:]
    return result.stdout


@pytest.mark.parametrize("team", TEAMS)
def test_a_child_computes(team):
    check(
        TEAMS[team]
        + "assert is_right(64)\nassert fork(64) == 0\nassert fork(33) == 0\nassert is_right(64)",
        NUMBA_NUM_THREADS=2,
    )


@pytest.mark.slow
def test_children_forked_while_threads_compute():
    """A lock that a thread held at the fork must not stay locked in the child."""
    check(
        """
stop = threading.Event()
assert is_right(4, 2)
def work():
    while not stop.is_set():
        assert is_right(4, 2)
threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
[thread.start() for thread in threads]
assert [fork(4, 2) for _ in range(200)] == [0] * 200
stop.set()
"""
    )


FIRST_CALLS = """
def imports():
    return "numba.core.types" in sys.modules and "numba.np.ufunc" not in sys.modules

def compiles():
    lock = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    if lock is None or not lock._lock.acquire(blocking=False):
        return lock is not None
    lock._lock.release()
    return False

def fork_when(moment, number):
    # Fork when `moment` holds while another thread makes a first call; whether it ever did.
    thread = threading.Thread(target=lambda: right.append(is_right(30 + number, 1 + number)))
    thread.start()
    while thread.is_alive() and not moment():
        time.sleep(1e-4)
    held = thread.is_alive()
    assert fork(31 + number, 1 + number) == 0
    thread.join()
    return held

right, count = [], int(sys.argv[1])
held = [fork_when(compiles if number else imports, number) for number in range(count)]
assert right == [True] * count
print(sum(held))
"""


@sampled
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache", "team"),
    count([("warm", "default")], [(c, team) for c in ("warm", "cold") for team in TEAMS]),
)
def test_children_forked_while_a_thread_makes_first_calls(cache, team, tmp_path):
    """They need what the thread holds at that time: Numba's lock, or that of an import."""
    environment = {"NUMBA_NUM_THREADS": 2}
    for number in range(count(1, 3)):
        if cache == "cold":
            environment["IMPLICIT_CONV_CACHE_DIR"] = tmp_path / str(number)
        code = PROBLEM + TEAMS[team] + FIRST_CALLS
        result = run_python("-W", "ignore", "-c", code, 4, **environment)
        assert result.returncode == 0, result.stderr[-3000:]
        assert int(result.stdout) >= 1  # of 4 forks: those that came at such a moment


def test_a_child_forked_in_the_middle_of_planning():
    """A handler of log records runs in the thread that plans, which holds the lock."""
    check(
        """
import logging
class Fork(logging.Handler):
    statuses = []
    def emit(self, record):
        logging.getLogger("implicit_conv").removeHandler(self)
        self.statuses.append(fork(33))
logging.getLogger("implicit_conv").setLevel("DEBUG")
logging.getLogger("implicit_conv").addHandler(Fork())
assert is_right(64)
assert Fork.statuses == [0]
"""
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        PROBLEM
        + f"""
if __name__ == "__main__":
    import multiprocessing
    assert is_right(64)
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        assert pool.map(is_right, [64, 33, 64]) == [True] * 3
"""
    )
    result = run_python("-W", "ignore", script)
    assert result.returncode == 0, result.stderr[-3000:]
