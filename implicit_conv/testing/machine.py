"""``python -m implicit_conv.testing check``: what a machine may do wrong, in about two minutes.

Each part runs in processes of its own, so that a crash or a hang is a result too.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from implicit_conv import PlanError, config, conv2d, plan_conv2d
from implicit_conv.cpu.candidates.phrases import count as counted
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.testing import Case
from implicit_conv.testing.check import check
from implicit_conv.testing.draw import Deck
from implicit_conv.testing.fuzz import compute
from implicit_conv.testing.loop import Tally
from implicit_conv.testing.trial import SIDES, Trial

PART_SECONDS = 45  # of random problems, and again of those with guard pages
MOST_SECONDS = 60  # of another part; a longer one hangs
FORKS, THREADS = 20, 3
PLAIN = Trial(Case(C=9, K=33, size=(9, 12), padding=((1, 1), (1, 1))), padding=1)
CACHE = "IMPLICIT_CONV_CACHE_DIR"


def check_machine(seed: int, threads: int, seconds: float = PART_SECONDS) -> int:
    """Check this machine; the last line that is printed is the one to report.

    Returns
    -------
    status : int
        0, or 1 if anything is wrong.
    """
    parts: dict[str, Callable[[], tuple[bool, str]]] = {
        "random problems": lambda: _fuzzed(compute(Deck(seed, threads), seconds)),
        "guard pages": lambda: _fuzzed(compute(Deck(seed + 1, threads, SIDES), seconds)),
        "forks": lambda: _alone(_forks, f"{FORKS} beside {THREADS} threads"),
        "cache": _cache,
        "limits": lambda: _alone(_limits, "threads, memory, affinity"),
    }
    missing = {"guard pages": "mprotect", "forks": "fork"} if os.name != "posix" else {}
    found, right = [], True
    for name, part in parts.items():
        print(f"{name} ...", flush=True)
        passed, words = (True, f"no {missing[name]} here") if name in missing else part()
        right &= passed
        found.append(f"{name}: {words}{'' if passed else ' WRONG'}")
    verdict = "all right" if right else "WRONG"
    print(f"{_versions()}; seed {seed}; {'; '.join(found)}: {verdict}")
    return int(not right)


def _versions() -> str:
    """The versions and the CPU that a report needs."""
    arch = cpu_arch()
    packages = " ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("implicit_conv", "numpy", "numba")
    )
    machine = f"{platform.system()} {platform.machine()}, {arch.vector_bits}-bit vectors"
    return f"{packages}, Python {platform.python_version()}, {machine}, {arch.threads} threads"


def _fuzzed(tally: Tally) -> tuple[bool, str]:
    return not tally.failed, f"{counted(tally.computed, 'problem')}, {tally.failed} failed"


def _alone(function: Callable[..., None], words: str, *arguments: Any) -> tuple[bool, str]:
    """Run a function in a new process; (whether it returned in time, `words` or how it ended)."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join(MOST_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return False, f"no end in {MOST_SECONDS} s"
    return process.exitcode == 0, words if process.exitcode == 0 else f"exit {process.exitcode}"


def _forks() -> None:
    """Fork children that compute, while threads do."""
    check(PLAIN)  # a thread that imports while another one forks would leave a lock of Python's
    ended = threading.Event()

    def call() -> None:
        for seed in range(1 << 30):
            if ended.is_set():
                return
            check(replace(PLAIN, seed=seed, threads=2))

    callers = [threading.Thread(target=call) for _ in range(THREADS)]
    for caller in callers:
        caller.start()
    try:
        for seed in range(FORKS):
            child = os.fork()
            if child == 0:
                with _exits():
                    signal.alarm(MOST_SECONDS // 2)  # ends a child that waits for ever
                    check(replace(PLAIN, seed=seed, threads=2))
            if os.waitpid(child, 0)[1] != 0:
                raise RuntimeError(f"child {seed} failed")
    finally:
        ended.set()
        for caller in callers:
            caller.join()


@contextlib.contextmanager
def _exits() -> Iterator[None]:
    """End a forked child with what is inside, with status 1 after an exception."""
    try:
        yield
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _cache() -> tuple[bool, str]:
    """Fill a cache folder, read it, damage all of its files, and have them repaired."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {CACHE: folder}):
        for step in ("write", "read", "repair"):
            passed, words = _alone(_check_quietly, step)
            contents = {path: path.read_bytes() for path in Path(folder).rglob("*.kernel")}
            if not passed or not contents:
                return False, f"cannot {step}: {words}, {counted(len(contents), 'file')}"
            if step == "write":
                written = contents
            elif contents != written:
                return False, f"files are not as they were written after step {step!r}"
            if step == "read":
                for path, content in contents.items():
                    path.write_bytes(content[: len(content) // 2])
    return True, f"{counted(len(written), 'file')} written, read and repaired"


def _check_quietly() -> None:
    """Compute without the cache's warning, which is of the damage that is done on purpose."""
    logging.getLogger("implicit_conv").setLevel(logging.ERROR)
    check(PLAIN)


def _limits() -> None:
    """Settings and limits of the process hold."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 16, 40, 40)).astype(np.float32)
    w = rng.standard_normal((32, 16, 3, 3)).astype(np.float32)
    results = []
    for threads in (1, 2):
        with config(num_threads=threads):
            results.append(conv2d(x, w, precision="strict"))
    if results[0].tobytes() != results[1].tobytes():
        raise RuntimeError("precision 'strict' has other bits on two threads")
    with contextlib.suppress(PlanError):
        plan_conv2d(x.shape, w.shape, max_workspace=0)
        raise RuntimeError("max_workspace=0 is not refused")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    check(replace(PLAIN, threads=2))
