"""Suite "bursts": calls on several threads after a pause, against the same calls on one thread.

Threads that wait sleep after a while, and have to be woken. A burst of calls follows each pause;
bursts on one thread and on several take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.settings import config
from implicit_conv.testing import Case
from implicit_conv.timing import no_collection
from implicit_conv.tools.rivals import Function, check, local, ours
from perf.layers import layers
from perf.record import Record, new_record
from perf.session import add, refuse, session, status_of
from perf.tables import disturbed_lines, threads_text
from perf.terminal import Rows, table_of

SUITE = "bursts"
LAYER = "3x3 128-128 @28"  # of ResNet-50: some 1 ms on one thread
PAUSES = (0.0, 0.001, 0.01, 0.05, 0.3)  # seconds
CALLS = 5  # of a burst


def run(options: argparse.Namespace) -> int:
    """Exit status: 0; UNTOLD if other work disturbs this machine; 130 after Ctrl-C, which keeps the
    finished rows.
    """
    threads = options.threads or cpu_arch().threads
    refuse_others(options, threads)
    record = new_record(SUITE, {"suite": SUITE, "threads": threads, "rounds": options.rounds})
    with session(record, threads, options.output) as show:
        calls = calls_of(layers("resnet50")[LAYER], threads)
        for done, pause in enumerate(PAUSES):
            show(words(pause), done, len(PAUSES))
            add(record, row(pause, calls, options.rounds), options.output)
    print(terminal_table(record))
    return status_of(record)


def refuse_others(options: argparse.Namespace, threads: int) -> None:
    """Raise ValueError where an option asks for what bursts do not have."""
    refuse(
        options,
        f"suite {SUITE} has one layer, in float32 on a CPU, without rivals",
        layer=bool(options.layer),
        against=options.against not in (None, ["nothing"]),
    )
    if threads < 2 or options.rounds < 1:
        raise ValueError(
            f"suite {SUITE} needs at least 2 threads and 1 round, not {threads} and "
            f"{options.rounds}; it compares several threads with one"
        )


def calls_of(case: Case, threads: int) -> dict[int, Function]:
    """The plan on one thread and on `threads`, checked, by the number of threads."""
    arrays = case.arrange(*case.inputs(0))
    found = {}
    for number in (1, threads):
        with config(num_threads=number):
            found[number] = ours(case, *arrays)[1]["plan"]
            check(case, local({"plan": found[number]}))
    return found


def row(pause: float, calls: dict[int, Function], rounds: int) -> dict[str, Any]:
    """Bursts after one pause: seconds of each call, one list a burst, by threads."""
    timings: dict[str, dict[str, list[list[float]]]] = {
        str(number): {"calls": []} for number in calls
    }
    with no_collection():
        for _ in range(rounds):
            for number, call in calls.items():
                if pause:
                    time.sleep(pause)
                timings[str(number)]["calls"].append(burst(call))
    return {"layer": words(pause), "pause": pause, "timings": timings}


def burst(call: Function, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Seconds of each of CALLS calls."""
    seconds = []
    for _ in range(CALLS):
        start = clock()
        call()
        seconds.append(clock() - start)
    return seconds


def words(pause: float) -> str:
    """A pause as a text."""
    return f"{1e3 * pause:g} ms"


def medians(row: dict[str, Any]) -> list[list[float]]:
    """Seconds of the calls of a burst, by their place: on one thread, and on several."""
    return [
        [median(place) for place in zip(*timing["calls"], strict=True)]
        for _, timing in sorted(row["timings"].items())
    ]


def speedups(row: dict[str, Any]) -> list[float]:
    """Time on one thread over that on several, for each place in a burst."""
    one, several = medians(row)
    return [alone / together for alone, together in zip(one, several, strict=True)]


def burst_rows(record: Record) -> Rows:
    """One row a pause."""
    return [_cells(row, disturbed="disturbed" in record) for row in record["rows"]]


def _cells(row: dict[str, Any], disturbed: bool) -> dict[str, str]:
    one, _ = medians(row)
    told = {
        f"call {place + 1}": "" if disturbed else f"{ratio:.2f}"
        for place, ratio in enumerate(speedups(row))
    }
    return {"pause": row["layer"], "1 thread": " ".join(f"{1e6 * each:.0f}" for each in one)} | told


def terminal_table(record: Record) -> str:
    """A run for the terminal."""
    lines = [*disturbed_lines(record), table_of(burst_rows(record)), *sum_lines(record)]
    return "\n".join(lines)


def sum_lines(record: Record) -> list[str]:
    """What was run, and whether rows are missing."""
    several, bursts = threads_text(record["settings"]["threads"]), record["settings"]["rounds"]
    lines = [f"{LAYER}: {bursts} bursts on {several} and as many on one after each pause"]
    return lines if record["complete"] else [*lines, "incomplete: the run was interrupted"]
