"""Suite "changing": what a call costs whose size was never seen, in kinds of calls that are known.

Ours and torch have a process each for every kind, and take turns size by size; ours starts with an
empty cache of kernels. The first two sizes of a kind make it known, and count in no figure.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from typing import Any

from implicit_conv.cpu.machine.arch import cpu_arch
from perf import changes
from perf.kinds import KINDS, OURS, TORCH, Kind
from perf.opponents import opponents
from perf.record import ROOT, new_record
from perf.rival import THREAD_VARIABLES
from perf.session import add, refuse, session, status_of
from perf.workers import Process

SUITE = changes.PAGE
KNOWN = 2  # sizes that make a kind known
AGREE = 1e-5  # of the sum of absolute results: the largest difference of sums


def run(options: argparse.Namespace) -> int:
    """Exit status: 0; UNTOLD if other work disturbs this machine; 130 after Ctrl-C, which keeps the
    finished rows.
    """
    refuse_others(options)
    threads = options.threads or cpu_arch().threads
    kinds, left_out = installed(chosen(options.layer))
    against = opponents(options.against)
    own = {"threads": threads, "sizes": options.sizes, "against": against, "left_out": left_out}
    record = new_record(SUITE, {"suite": SUITE, **own})
    with session(record, threads, options.output) as show:
        for done, (place, kind) in enumerate(kinds.items()):
            show(kind.name, done, len(kinds))
            with callers([OURS, *against], threads) as alive:
                hello = {name: process.ask("hello") for name, process in alive.items()}
                record["rivals"] = {name: hello[name] for name in against}
                for process in alive.values():
                    process.ask("prepare", kind=place, sizes=KNOWN + options.sizes)
                found = row(kind.name, alive, options.sizes)
            add(record, found, options.output)
    print(changes.terminal_table(record))
    return status_of(record)


def refuse_others(options: argparse.Namespace) -> None:
    """Raise ValueError where an option asks for what the kinds do not have."""
    words = f"suite {SUITE} has kinds of its own, in float32 on a CPU, against torch or nothing"
    refuse(options, words, against=options.against not in (None, [TORCH], ["nothing"]))
    if options.sizes < 1:
        raise ValueError(f"--sizes is {options.sizes}, but at least 1 new size is needed")


def chosen(names: list[str] | None) -> dict[int, Kind]:
    """The kinds whose name contains one of `names`, by their place in KINDS."""
    wanted = names or [""]
    found = {at: kind for at, kind in enumerate(KINDS) if any(part in kind.name for part in wanted)}
    if not found:
        raise ValueError(f"no kind of {SUITE} has {' or '.join(wanted)!r} in its name")
    return found


def installed(kinds: dict[int, Kind]) -> tuple[dict[int, Kind], dict[str, str]]:
    """The kinds whose door can be opened, and why the others are left out, by name."""
    found = {at: kind for at, kind in kinds.items() if not kind.door or find_spec(kind.door)}
    missing = [kind for at, kind in kinds.items() if at not in found]
    return found, {kind.name: f"{kind.door} is not installed" for kind in missing}


@contextmanager
def callers(names: list[str], threads: int) -> Iterator[dict[str, Process]]:
    """The processes of ours and torch; they end with the block."""
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        variables = dict.fromkeys(THREAD_VARIABLES, str(threads))
        variables["IMPLICIT_CONV_CACHE_DIR"] = cache
        alive = {}
        for name in names:
            command = ["-m", "perf.kinds", name, str(threads)]
            process = Process(name, command, str(ROOT), variables)
            alive[name] = stack.enter_context(closing(process))
        yield alive


def row(name: str, alive: dict[str, Process], sizes: int) -> dict[str, Any]:
    """One kind: seconds of each first and each kept call after KNOWN sizes, and how many kernels
    the process of ours met after them.

    Raises
    ------
    ArithmeticError
        torch has another result.
    """
    timings: dict[str, dict[str, list[float]]] = {each: {"first": [], "kept": []} for each in alive}
    kernels = []
    for which in range(KNOWN + sizes):
        answers = {each: process.ask("call", which=which) for each, process in alive.items()}
        if TORCH in answers:
            differ(name, answers[OURS], answers[TORCH])
        kernels.append(answers[OURS]["kernels"])
        if which >= KNOWN:
            for each, answer in answers.items():
                timings[each]["first"].append(answer["first"])
                timings[each]["kept"].append(answer["kept"])
    return {"layer": name, "timings": timings, "kernels": kernels[-1] - kernels[KNOWN - 1]}


def differ(name: str, ours: dict[str, Any], torch: dict[str, Any]) -> None:
    """Raise ArithmeticError if two results have different sums."""
    if not abs(ours["sum"] - torch["sum"]) <= AGREE * torch["size"]:
        raise ArithmeticError(
            f"{name}: our result sums up to {ours['sum']:g} and torch's to {torch['sum']:g}, where "
            f"absolute values sum up to {torch['size']:g}"
        )
