"""Plant faults in a convolution one by one: the first call of a site fails, the second, ...

`found` runs this file as a process of its own, which forks a child for each fault. Each child makes
the call with the fault, then calls without: the same one, another one in a new thread, and the same
in a forked child, which find locks that the fault left taken. It reports what it thinks of them.
"""

import contextlib
import importlib
import itertools
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fault_memory import NEVER, Fault
from faults import Outcome, attempt
from processes import ROOT, TEAMS, run_python

import implicit_conv
from implicit_conv import config
from implicit_conv.problem import reference

SETTLING = 5  # seconds until threads that end have ended
ONES = ((1, 1), (1, 1))
STEPS = {"stride": (1, 1), "pads": ONES, "dilation": (1, 1)}
Step = Callable[[], None]


class Sweep(NamedTuple):
    """What is called in a process.

    Attributes
    ----------
    kind : one of KINDS
    state : "cold", "warm" or "kept"
        All modules are imported. "cold": nothing is cached; "warm": kernels are cached on disk, as
        in a new process; "kept": this call was made before.
    threads : int
    team : one of TEAMS
    """

    kind: str
    state: str
    threads: int = 1
    team: str = "default"


class Found(NamedTuple):
    """A fault, what became of the call, and what becomes of a call without a fault."""

    sweep: Sweep
    site: str
    fault: Fault
    outcome: Outcome
    usual: Outcome


def integers(*shape: int) -> Any:
    """Integers so small that every sum of products is exact, in Winograd's domain too."""
    return np.random.default_rng(27).integers(-4, 5, shape).astype(np.float32)


X, W, DY = integers(2, 8, 30, 34), integers(24, 8, 3, 3), integers(2, 24, 30, 34)
Y = reference.conv(X, W, **STEPS)
DX = reference.input_grad(DY, W, X.shape, **STEPS)
DW = reference.weight_grad(X, DY, (3, 3), **STEPS)


class Kind(NamedTuple):
    """A call, and its result by the reference."""

    compute: Callable[[], Any]
    expected: Any


def conv() -> Any:
    return implicit_conv.conv2d(X, W, padding=1, precision="strict")


def pauses() -> Any:
    """Helpers fall asleep between calls, so that some are woken on the CPU of their caller."""
    for _ in range(40):
        time.sleep(2e-3)
        y = conv()
    return y


def packed() -> Any:
    plan = implicit_conv.plan_conv2d(X.shape, W.shape, "float32", padding=1, precision="strict")
    return plan(X, plan.pack(W))


KINDS = {
    "conv": Kind(conv, Y),
    "pauses": Kind(pauses, Y),
    "packed": Kind(packed, Y),
    "winograd": Kind(
        lambda: implicit_conv.conv2d(X, W, padding=1, algorithm="winograd_f2"),
        Y,
    ),
    "input_grad": Kind(
        lambda: implicit_conv.conv2d_input_grad(DY, W, X.shape, padding=1, precision="strict"),
        DX,
    ),
    "weight_grad": Kind(
        lambda: implicit_conv.conv2d_weight_grad(X, DY, W.shape, padding=1),
        DW,
    ),
}
# Another problem, with the kernels of "conv": a first call, which is planned.
ANOTHER = Kind(
    lambda: implicit_conv.conv2d(X[:, :, :20], W, precision="strict"), Y[:, :, 1:19, 1:-1]
)


def nothing() -> None:
    """Arm and disarm no fault."""


def verdict(kind: Kind, arm: Step = nothing, disarm: Step = nothing) -> str:
    """'right', 'wrong', or the exception of a call between `arm` and `disarm`."""
    try:
        arm()
        y = kind.compute()
    except BaseException as error:
        disarm()
        return f"{type(error).__name__}: {error}"[:500]
    disarm()
    return "right" if np.array_equal(y, kind.expected) else "wrong"


def in_thread(kind: Kind) -> str:
    """The verdict in a thread of its own."""
    verdicts: list[str] = []
    thread = threading.Thread(target=lambda: verdicts.append(verdict(kind)))
    thread.start()
    thread.join()
    return verdicts[0]


def in_fork(kind: Kind) -> str:
    """The verdict in a forked child."""
    child = os.fork()
    if child == 0:
        os._exit(0 if verdict(kind) == "right" else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "right" if status == 0 else f"status {status}"


def census(folder: Path, threads: int) -> dict[str, Any]:
    """What may leak; threads that end have a while until there are `threads` left."""
    deadline = time.monotonic() + SETTLING
    while len(os.listdir("/proc/self/task")) > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    from implicit_conv.kernels.cpu.runtime import active_threads

    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "running": active_threads.running(),
        "temporary": [path.name for path in folder.glob("*.tmp")],
    }


def body(kind: Kind, folder: Path, threads: int) -> Callable[[Step, Step], dict[str, Any]]:
    """What a child does: the call with a fault, then calls without."""

    def run(arm: Step, disarm: Step) -> dict[str, Any]:
        return {
            "call": verdict(kind, arm, disarm),
            "next": verdict(kind),
            "thread": in_thread(ANOTHER),
            "fork": in_fork(kind),
            "census": census(folder, threads),
        }

    return run


def imported_by(kind: Kind) -> None:
    """Import what the call imports, and nothing more."""

    def names(arm: Any, disarm: Any) -> dict[str, Any]:
        assert verdict(kind) == "right"
        return {"names": list(sys.modules)}

    outcome = attempt(names, "numpy", Fault(NEVER))
    assert outcome.ended, outcome
    for name in outcome.report["names"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class Parent:
    """A process that has imported all that a call needs, and forks a child for each fault.

    Parameters
    ----------
    sweep : Sweep
    folder : Path
        That of the cache of compiled kernels.
    """

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        self._kind, self._sweep, self._folder = KINDS[sweep.kind], sweep, folder
        imported_by(self._kind)
        if sweep.state == "kept":
            assert verdict(self._kind) == "right"
        helpers = len(os.sched_getaffinity(0)) - 1 if sweep.threads > 1 else 0
        self._threads = 1 + helpers
        self.outcome("rename", Fault(NEVER))  # fills the cache

    def outcome(self, site: str, fault: Fault) -> Outcome:
        """What becomes of the call with a fault."""
        if self._sweep.state == "cold":
            shutil.rmtree(self._folder, ignore_errors=True)
        return attempt(body(self._kind, self._folder, self._threads), site, fault)

    def outcomes(self, site: str, most: int) -> Iterator[tuple[Fault, Outcome]]:
        """Outcomes of a fault at the first call of the site, at the second, ... until one is not
        met, once and for ever; of every call, or of about `most` ones. The first outcome is without
        a fault.
        """
        usual = self.outcome(site, Fault(NEVER))
        yield Fault(NEVER), usual
        step = max(1, usual.calls // most) if most else 1
        # If no object can be made at all, CPython 3.11 looks for the handler of an exception for
        # ever (ceval's exception_unwind).
        for forever in (False,) if site == "cpython" else (False, True):
            for first in itertools.count(1, step):
                found = self.outcome(site, Fault(first, forever))
                yield Fault(first, forever), found
                if found.calls < first:
                    break


def main() -> None:
    """Plant faults in the call that the arguments describe, and print what was found."""
    sweep, sites, most = (json.loads(argument) for argument in sys.argv[1:])
    sweep = Sweep(*sweep)
    folder = Path(os.environ["IMPLICIT_CONV_CACHE_DIR"])
    exec(TEAMS[sweep.team], {})
    with config(num_threads=sweep.threads):
        parent = Parent(sweep, folder)
        for site in sites:
            for fault, outcome in parent.outcomes(site, most):
                print(json.dumps([site, fault, outcome]), flush=True)


def found(sweep: Sweep, sites: Sequence[str], most: int, folder: Path) -> list[Found]:
    """Plant faults in a call, in a process of its own whose cache is in `folder`; at most about
    `most` faults for each site and mode, or 0 for all.
    """
    result = run_python(
        *("-W", "ignore", __file__, *map(json.dumps, (sweep, sites, most))),
        IMPLICIT_CONV_CACHE_DIR=folder,
        MALLOC_PERTURB_=165,  # no new array has the results of the last one
        PYTHONPATH=os.pathsep.join((str(ROOT), str(Path(__file__).parent))),
        timeout=24 * 3600,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    outcomes = []
    for line in result.stdout.splitlines():
        site, fault, outcome = json.loads(line)
        if fault[0] == NEVER:
            usual = Outcome(*outcome)
        outcomes.append(Found(sweep, site, Fault(*fault), Outcome(*outcome), usual))
    return outcomes


if __name__ == "__main__":
    main()
