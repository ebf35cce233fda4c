"""Run all steps, each in a process with a time limit, and write one report.

The report begins with the first thing that failed. After an item that ends its process, each of the
next items of that step has a process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perf.bringup.processes import Ended, run_module
from perf.bringup.steps import BEGIN, END

SECONDS = {  # of a process, by step, on a GPU
    **dict.fromkeys(("driver", "maps", "copies", "descriptors"), 60),
    **{"problems": 240, "rates": 300, "tools": 600},
}
PATIENCE = 20  # times as long for the interpreter
CRASHES = 4  # processes of a step that may end early
MODULE = "perf.bringup"
HEAD = re.compile(rf"^{BEGIN} (\d+) (.*)$")


@dataclass
class Outcome:
    """What an item has printed, and its verdict."""

    step: str
    number: int
    name: str
    lines: list[str] = field(default_factory=list)
    verdict: str = ""

    @property
    def failed(self) -> bool:
        """Whether it is wrong or has ended its process."""
        return self.verdict != "right" and not self.verdict.startswith("not run")


def outcomes(step: str, done: Ended) -> list[Outcome]:
    """The items of a process that has ended; the last one may have no verdict."""
    found: list[Outcome] = []
    for line in done.output.splitlines():
        head = HEAD.match(line)
        if head:
            found.append(Outcome(step, int(head[1]), head[2]))
        elif not found:
            found.append(Outcome(step, -1, "start of the process", [line]))
        elif line.startswith(f"{END} "):
            found[-1].verdict = line.removeprefix(f"{END} ")
        else:
            found[-1].lines.append(line)
    ended = f"ended with status {done.status}"
    if done.status is None:
        ended = f"did not end within {done.seconds:.0f} s"
    if not found and done.status != 0:
        found.append(Outcome(step, -1, "start of the process"))
    if found and not found[-1].verdict:
        found[-1].verdict = f"CRASHED: its process {ended}"
    elif found and done.status not in (0, 1):
        last = Outcome(step, found[-1].number, f"after {found[-1].name}")
        last.verdict = f"CRASHED: the process {ended}"
        found.append(last)
    return found


def run_step(path: Path, step: str, device: str) -> Iterator[Outcome]:
    """The outcomes of a step's items."""
    seconds = SECONDS[step] * (1 if device == "gpu" else PATIENCE)
    first, count, crashes = 0, 1 << 30, 0
    while True:
        options = ("--first", str(first), "--count", str(count))
        done = run_module(MODULE, "step", str(path), step, device, *options, seconds=seconds)
        found = outcomes(step, done)
        yield from found
        if not found or (count > 1 and done.status in (0, 1)):
            return
        if found[-1].verdict.startswith("CRASHED"):
            crashes, count = crashes + 1, 1
            if crashes > CRASHES or found[-1].number < 0:
                return
        first = found[-1].number + 1


def run(path: Path, device: str, report: Path) -> bool:
    """Run all steps and write the report; whether nothing has failed."""
    found: list[Outcome] = []
    for step in SECONDS:
        for outcome in run_step(path, step, device):
            found.append(outcome)
            report.write_text(text_of(path, device, found))
        last = [outcome.verdict for outcome in found if outcome.step == step]
        print(f"{step}: {summary(last)}", flush=True)
        if step == "driver" and any(outcome.number < 1 and outcome.failed for outcome in found):
            break  # nothing can run
    return not any(outcome.failed for outcome in found)


def summary(verdicts: list[str]) -> str:
    """Counts of verdicts, in words."""
    right = sum(verdict == "right" for verdict in verdicts)
    skipped = sum(verdict.startswith("not run") for verdict in verdicts)
    return f"{right} right, {len(verdicts) - right - skipped} failed, {skipped} not run"


def text_of(path: Path, device: str, found: list[Outcome]) -> str:
    """The report."""
    failed = [outcome for outcome in found if outcome.failed]
    head = [f"# Bring-up on {'a GPU' if device == 'gpu' else 'the PTX interpreter'}: {path.name}"]
    if failed:
        first = failed[0]
        head += ["", f"FIRST FAILURE: {first.step}: {first.name}: {first.verdict}"]
        head += [f"    {line}" for line in first.lines]
        head += ["", f"failures ({len(failed)}):"]
        head += [f"    {other.step}: {other.name}: {other.verdict}" for other in failed]
    else:
        head += ["", "Nothing has failed so far."]
    body = []
    for step in dict.fromkeys(outcome.step for outcome in found):
        mine = [outcome for outcome in found if outcome.step == step]
        body += ["", f"## {step}: {summary([outcome.verdict for outcome in mine])}", ""]
        for outcome in mine:
            body.append(f"{outcome.name}: {outcome.verdict}")
            body += [f"    {line}" for line in outcome.lines]
    return "\n".join([*head, *body]) + "\n"
