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


def test_a_child_has_one_team():
    """However many of its threads call at once."""
    teams = check(
        """
from implicit_conv import config
from implicit_conv.kernels.cpu.runtime import launch
make, made = launch.make_team, []
launch.make_team = lambda: made.append(time.sleep(1e-3)) or make()
with config(num_threads=4):
    assert is_right(64)
    sys.setswitchinterval(1e-6)
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        made.clear()
        start, right = threading.Barrier(16), []
        def call():
            start.wait()
            with config(num_threads=4):
                right.append(is_right(64))
        threads = [threading.Thread(target=call) for _ in range(16)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(len(made), right == [True] * 16, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
""",
    )
    assert teams == "1 True\n"


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


FORKS = 20  # warm first calls are short
FIRST_CALLS = """
from implicit_conv.process import preparation

def imports():
    return "llvmlite" in sys.modules and preparation.LLVM not in sys.modules

def compiles():
    lock = preparation.COMPILING
    if not lock.acquire(blocking=False):
        return True
    lock.release()
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
    """They need what the thread holds at that time: the lock of compiled code, or of an import."""
    environment = {"NUMBA_NUM_THREADS": 2}
    for number in range(count(1, 3)):
        if cache == "cold":
            environment["IMPLICIT_CONV_CACHE_DIR"] = tmp_path / str(number)
        code = PROBLEM + TEAMS[team] + FIRST_CALLS
        result = run_python("-W", "ignore", "-c", code, FORKS, **environment)
        assert result.returncode == 0, result.stderr[-3000:]
        assert int(result.stdout) >= 1  # of FORKS: those that came at such a moment


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


FORKS_FROM_THREADS = """
import os, random, signal, sys, threading
import numpy as np
from implicit_conv import clear_plan_cache, conv2d

class Interrupt(Exception):
    pass

def handler(number, frame):
    # The loop below goes on. A hook of logging that is cut off loses its lock in Python 3.11.
    if frame.f_code.co_name not in ("<module>", "<lambda>", "_acquireLock", "_releaseLock"):
        signals.append(1)
        raise Interrupt

def is_right(filters):
    clear_plan_cache()
    x, w = np.ones((1, 8, 9, 9), np.float32), np.ones((filters, 8, 3, 3), np.float32)
    return bool((conv2d(x, w) == 72).all())

def fork(filters):
    # A child reports: its parent, cut off after it has waited for it, would lose its status.
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        os.write(reports, b"child ")
        os.write(reports, b"+" if is_right(filters) else b"-")
        os._exit(0)
    os.waitpid(child, 0)

def fork_often(seed):
    dice = random.Random(seed)
    for _ in range(each):
        fork(dice.choice((12, 20)))

def plan_often():
    while not over.is_set():
        right.append(is_right(12))

threads, each, interval = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
signals, right, unraisable, over = [], [], [], threading.Event()
reported, reports = os.pipe()
sys.unraisablehook = lambda report: unraisable.append(report.exc_type)
assert is_right(12) and is_right(20)
planner = threading.Thread(target=plan_often, daemon=True)
others = [threading.Thread(target=fork_often, args=(i,), daemon=True) for i in range(1, threads)]
[thread.start() for thread in (planner, *others)]
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, interval, interval)
started = 0
while started < each:  # the main thread, whose calls the handler cuts
    try:
        started += 1
        fork(20)
    except Interrupt:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
[thread.join(200) for thread in others]
over.set()
planner.join(100)
stuck = sum(thread.is_alive() for thread in (planner, *others))
while not stuck:  # children that the main thread was cut off from
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        break
assert set(unraisable) <= {Interrupt}, unraisable
os.close(reports)
with open(reported) as pipe:
    reports = pipe.read()
children = reports.count("child ")
wrong = children - reports.count("+")
print(children, wrong, stuck, all(right), len(right), len(signals))
sys.stdout.flush()
os._exit(0)
"""


@sampled
@pytest.mark.slow
def test_forks_from_several_threads(capsys):
    """Their children plan and compute, while a thread plans and signal handlers raise."""
    threads, each = count((4, 25), (8, 1000))
    result = run_python(
        *("-W", "ignore", "-c", FORKS_FROM_THREADS, threads, each, 0.02), OPENBLAS_NUM_THREADS=1
    )
    assert result.returncode == 0, result.stderr[-3000:]
    children, wrong, stuck, right, calls, signals = result.stdout.split()
    with capsys.disabled():
        print(f"\n{children} children, {calls} plans, {signals} interrupts")
    assert (wrong, stuck, right) == ("0", "0", "True")
    assert int(children) > 0.9 * threads * each
    assert int(calls) > 0 < int(signals)


@pytest.mark.parametrize(
    "lock", ["settings._lock", "preparation._preparing", "preparation.COMPILING"]
)
def test_a_fork_whose_wait_for_a_lock_is_interrupted(lock):
    """It waits on, and releases the lock in both processes."""
    check(
        f"""
from implicit_conv import config, settings
from implicit_conv.process import preparation
class Interrupt(Exception):
    pass
def handler(*_):
    raise Interrupt
def hold():
    with {lock}:
        held.set()
        time.sleep(0.5)
assert is_right(4, 2)
held, unraisable = threading.Event(), []
sys.unraisablehook = lambda report: unraisable.append(report.exc_type)
thread = threading.Thread(target=hold)
thread.start()
held.wait()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
assert fork(5, 2) == 0
assert unraisable == [Interrupt], unraisable
thread.join()
with config(num_threads=1):
    free = threading.Thread(target=lambda: right.append(is_right(6, 2)))
    right = []
    free.start()
    free.join(100)
assert right == [True]
"""
    )


def test_a_fork_waits_for_few_of_those_that_plan():
    """It waits its turn, however many threads plan again and again."""
    overtaken = check(
        """
import statistics
import numba
from implicit_conv.process.preparation import prepare
over, planned = threading.Event(), []
def step():
    time.sleep(1e-3)
    planned.append(1)
def plan():
    while not over.is_set():
        prepare(step)
threads = [threading.Thread(target=plan, daemon=True) for _ in range(8)]
[thread.start() for thread in threads]
waits = []
for _ in range(30):
    before = len(planned)
    child = os.fork()
    if child == 0:
        os._exit(0)
    waits.append(len(planned) - before)
    os.waitpid(child, 0)
over.set()
[thread.join() for thread in threads]
print(statistics.median(waits))
"""
    )
    assert float(overtaken) <= 4  # 16 before threads queued


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


def test_a_fork_while_a_first_step_is_logged():
    """Planning takes the lock of logging after that of preparation, and a fork must do so too,
    although its hooks run in the reverse order of their registration, by imports.
    """
    code = """
import os, signal, sys, threading, time
from implicit_conv.process.preparation import prepare  # before logging is imported
import logging
def log():
    plans.set()
    time.sleep(0.3)  # until the main thread forks
    logging.getLogger("new").isEnabledFor(logging.DEBUG)  # the first time it takes the lock
plans = threading.Event()
thread = threading.Thread(target=prepare, args=(log,))
thread.start()
plans.wait()
signal.alarm(20)
child = os.fork()
if child == 0:
    os._exit(0)
thread.join()
sys.exit(os.waitpid(child, 0)[1])
"""
    assert run_python("-W", "ignore", "-c", code).returncode == 0


# Imports, and what makes a first call; its result is 1 everywhere.
DOORS = {
    "numpy": ("", "conv2d(np.ones((1, 4, 9, 9)), np.full((1, 4, 3, 3), 1 / 36))"),
    "explain": (
        "from implicit_conv import plan_conv2d",
        "len(plan_conv2d((1, 4, 9, 9), (1, 4, 3, 3)).explain()) > 0",
    ),
    "tune": (
        "from implicit_conv import plan_conv2d",
        "plan_conv2d((1, 4, 9, 9), (1, 4, 3, 3)).tune() is not None",
    ),
    "prepare": (
        "from implicit_conv import plan_conv1d",
        "plan_conv1d((1, 1, 9), (1, 1, 3), dtype='float64')"
        ".prepare(np.ones((1, 1, 9)), np.ones((1, 1, 3)), out=np.ones((1, 1, 7)))() / 3",
    ),
    "torch": ("import torch", "conv2d(torch.ones(1, 4, 9, 9), torch.full((1, 4, 3, 3), 1 / 36))"),
    "dask": (
        "import dask.array as da, implicit_conv.dask as door",
        "door.conv2d(da.ones((1, 4, 40, 40), chunks=20), np.full((1, 4, 3, 3), 1 / 36))"
        ".compute(scheduler='sync')",
    ),
    "dask images": (
        "import dask.array as da, implicit_conv.dask as door",
        "door.uniform_filter(da.ones((80, 80), chunks=40), 3).compute(scheduler='sync')",
    ),
    "cubed images": (
        "import cubed.array_api as xp, implicit_conv.cubed as door",
        "door.uniform_filter(xp.ones((80, 80), chunks=40), 3).compute()",
    ),
    "ndimage": (
        "import scipy.ndimage, implicit_conv.ndimage as door",
        "(door.patch(), scipy.ndimage.gaussian_filter(np.ones((900, 900)), 3))[1]",
    ),
    "signal": (
        "import implicit_conv.signal as door",
        "door.convolve(np.ones(3000), np.full(9, 1 / 9), 'valid', 'direct')",
    ),
}
LIBRARIES = {
    "torch": "torch",
    "dask": "dask",
    "cubed": "cubed",
    "ndimage": "scipy",
    "signal": "scipy",
}


@pytest.mark.parametrize("door", DOORS)
def test_a_fork_during_the_imports_of_a_first_call(door):
    """The child would wait for ever for the lock of a module that another thread imports."""
    pytest.importorskip(LIBRARIES.get(door.split()[0], "numpy"), reason="the door needs it")
    imports, call = DOORS[door]
    check(
        f"""
from pathlib import Path
import implicit_conv
from implicit_conv.process.preparation import _preparing
try:
    import distributed  # which dask imports in the first `compute`, where a fork may meet it
except ImportError:
    pass
{imports}
OURS = [str(Path(implicit_conv.__file__).parent / name) for name in (".", "kernels")]
OURS = tuple(os.path.realpath(path) + os.sep for path in OURS)

def importer(frame):
    # The file whose code imports; numpy imports for whoever reads an attribute of it.
    while "importlib" in frame.f_code.co_filename or "numpy/__init__" in frame.f_code.co_filename:
        frame = frame.f_back
    return os.path.realpath(frame.f_code.co_filename)

def note(event, arguments):
    if event not in ("import", "open") or threading.current_thread() is threading.main_thread():
        return
    if event == "import" and importer(sys._getframe(1)).startswith(OURS):
        if not _preparing._is_owned():
            unprepared.append(arguments[0])
    works.set()
    time.sleep(0.001)

def first():
    return bool(np.allclose({call}, 1))

right, unprepared, works = [], [], threading.Event()
thread = threading.Thread(target=lambda: right.append(first()))
sys.addaudithook(note)
thread.start()
assert works.wait(60)
signal.alarm(60)
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if first() else 1)
status = os.waitpid(child, 0)[1]
thread.join()
assert (right, unprepared, status) == ([True], [], 0), (right, unprepared, status)
"""
    )


def test_other_threads_import_with_a_lock_that_forks_wait_for():
    """Also those that prepare what later calls take: other sizes, and calls that come again."""
    check(
        """
from pathlib import Path
import implicit_conv
from implicit_conv.process.preparation import COMPILING, _later, _preparing
OURS = [str(Path(implicit_conv.__file__).parent / name) for name in (".", "kernels")]
OURS = tuple(os.path.realpath(path) + os.sep for path in OURS)

def note(event, arguments):
    if event != "import" or threading.current_thread() is threading.main_thread():
        return
    frame = sys._getframe(1)
    while "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    if os.path.realpath(frame.f_code.co_filename).startswith(OURS):
        held = _preparing._is_owned() or COMPILING._is_owned()
        (prepared if held else unprepared).append(arguments[0])

def wait():
    while _later:
        time.sleep(1e-3)

prepared, unprepared = [], []
sys.addaudithook(note)
for width in range(40, 44):
    conv2d(np.ones((1, 20, 40, width), np.float32), np.ones((33, 20, 3, 3), np.float32))
wait()
x, w = np.ones((1, 2, 9, 9), np.float32), np.ones((4, 2, 3, 3), np.float32)
for _ in range(100):
    conv2d(x, w)
wait()
assert "implicit_conv.kernels.cpu.runtime.repeated" in prepared
assert not unprepared, unprepared
"""
    )


def test_children_forked_while_another_thread_prepares_other_sizes(tmp_path):
    """They need what that thread holds, and have none of what waits for it."""
    check(
        """
from implicit_conv.process import preparation

def is_right_at(width):
    x = np.ones((1, 20, 40, width), np.float32)
    return bool((conv2d(x, np.ones((33, 20, 3, 3), np.float32)) == 180).all())

assert is_right_at(40) and is_right_at(41)
beside = 0
for width in range(42, 54):
    beside += bool(preparation._later)
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        ok = not preparation._later and is_right_at(width) and is_right_at(2 * width)
        while preparation._later:
            time.sleep(1e-3)
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert is_right_at(width)
assert beside
""",
        IMPLICIT_CONV_CACHE_DIR=tmp_path,
    )
