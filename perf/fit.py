"""``perf fit``: a table of costs for the CPU at hand, fitted to the times of layers.

Layers of all suites are measured in turn until the time is up, each with the candidates that
`Plan.tune` measures, of packed and of plain filters. Their times fit the numbers of a table, see
`perf.fitting`; what the planner's choices then cost is printed beside what they cost by each table
that is known, also those of other CPUs. The table is written as a module; it belongs into
`cpu/machine/costs`, and `nearest_costs` must know it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.candidates.kernel_method import KernelMethod
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines.engine import plan
from implicit_conv.cpu.machine.arch import TABLES, cpu_arch
from implicit_conv.cpu.machine.costs import GROUPS, Costs
from implicit_conv.cpu.plan import tuning
from implicit_conv.testing import Case
from implicit_conv.timing import UNTOLD, Local, disturbance, interleave
from perf import terminal
from perf.fitting import Fit, Layer, fitted
from perf.layers import OTHERS, SUITES

MINUTES = 4.0
ROUNDS, SAMPLE = 5, 0.006  # samples of a candidate, and seconds of one at least
LEAST = 10e-6  # seconds of a call whose estimate is compared
SMALL = Case(C=8, K=8, size=(1, 1), kernel=(1, 1), layout="NHWC")  # no cycles to speak of
DTYPES = {"resnet50": ("bfloat16",), "mobilenet": ("bfloat16",), "first": ("bfloat16",)}
DIGITS = 4  # of a number


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("fit", help="a table of costs for this CPU", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of measuring, at most")
    parser.add_argument("--name", default="COSTS", help="of the table, in its module")
    parser.add_argument("--title", default="this CPU", help="of the family of CPUs, in words")
    parser.add_argument("--output", type=Path, help="the module to write")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0; UNTOLD beside other work, where nothing is measured."""
    disturbed = disturbance(1)
    if disturbed:
        print(disturbed)
        return UNTOLD
    layers = measured(60 * options.minutes)
    fit = fitted(layers, cpu_arch(1).costs)
    known = [summary(costs.name, Fit(layers, costs)) for costs in TABLES]
    print(terminal.table_of([*known, summary("fitted", fit)]))
    made = f"fitted by `perf fit` to {len(layers)} layers, {time.strftime('%Y-%m-%d')}"
    if options.output is not None:
        costs = replace(fit.costs, name=options.title, made=made)
        options.output.write_text(module(options.name, costs), encoding="utf-8")
        print(f"wrote {options.output}; format it, and let nearest_costs choose it")
    return 0


def cases() -> Iterator[tuple[str, Case]]:
    """The layers of all suites, one of each suite after another, in both layouts."""
    names = [name for name in SUITES if name not in OTHERS]
    suites = []
    for suite in names:
        found = []
        for name, case in dict(SUITES[suite][1]()).items():
            for layout in ("NCHW", "NHWC"):
                for dtype in ("float32", *DTYPES.get(suite, ())):
                    title = f"{suite} {name} {layout} {dtype}"
                    found.append((title, replace(case, layout=layout, dtype=dtype)))
        # A layer far from the last one comes next: the time may be up early.
        step = next(step for step in range(7, 2 * len(found) + 8) if np.gcd(step, len(found)) == 1)
        suites.append([found[i * step % len(found)] for i in range(len(found))])
    for together in zip_longest(*suites):
        yield from (each for each in together if each is not None)


def measured(seconds: float) -> list[Layer]:
    """The candidates of as many layers as there is time for."""
    begun = time.monotonic()
    end, layers, known = begun + seconds, list[Layer](), set[Case]()
    fixed = times_of(SMALL, True)[1][0]  # what Python takes of each call
    with terminal.progress() as show:
        for name, case in cases():
            if time.monotonic() > end:
                break
            if case in known:
                continue
            known.add(case)
            show(name, int(time.monotonic() - begun), int(seconds))
            for packs in (True, False):
                candidates, times = times_of(case, packs)
                if len(candidates) > 1 and min(times) >= LEAST:
                    own = tuple(each - fixed for each in times)
                    layers.append(Layer(name, packs, candidates, own))
    return layers


def times_of(case: Case, packs: bool) -> tuple[tuple[Candidate, ...], list[float]]:
    """The candidates of a layer, and the least seconds of each."""
    engine = plan(case.problem, cpu_arch(1), Request())
    query = engine.choice.query
    candidates = [c for c in tuning.few(query, packs) if isinstance(c.method, KernelMethod)]
    make = tuning.run_of(query, engine.arrays, engine.formats, packs)
    calls = {str(number): Local(make(c)) for number, c in enumerate(candidates)}
    for call in calls.values():
        call.result()
    samples = interleave(calls, ROUNDS, SAMPLE).values()
    return tuple(candidates), [float(own.min()) for own in samples]


def summary(name: str, fit: Fit) -> dict[str, str]:
    """A row of the table: regret, and how far estimates are off."""
    regrets, off = fit.regrets(), fit.residuals()
    worst = int(regrets.argmax())
    return {
        "table": name,
        "regret": f"{np.exp(np.log(regrets).mean()):.3f}",
        "of 95 %": f"{np.quantile(regrets, 0.95):.3f}",
        "worst": f"{regrets[worst]:.3f}, {fit.layers[worst].name}",
        "estimates": f"within {np.exp(np.quantile(np.abs(off), 0.9)):.2f} for 90 %",
    }


def module(name: str, costs: Costs) -> str:
    """The text of a module with a table."""
    types = [type(getattr(costs, group)).__name__ for group in GROUPS]
    lines = [
        f'"""Costs on {costs.name}, {costs.made}."""\n',
        "from __future__ import annotations\n",
        f"from implicit_conv.cpu.machine.costs import {', '.join(sorted(('Costs', *types)))}\n",
        f"{name} = Costs(",
        f"    {costs.name!r},",
        f"    {costs.made!r},",
    ]
    for group, kind in zip(GROUPS, types, strict=True):
        values = getattr(costs, group)
        numbers = ", ".join(
            f"{field}={float(f'{value:.{DIGITS}g}'):g}"
            for field, value in values._asdict().items()
            if value != values._field_defaults[field]
        )
        lines.append(f"    {kind}({numbers}),")
    return "\n".join([*lines, ")\n"])
