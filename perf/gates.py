"""``perf gates``: compare noise-free counts with the committed ones.

The counts change only if the code changes. A difference is shown as a table and fails unless
``gates.json`` changes with it (``--update``). The counts do not depend on the host: loads, FLOPs
and scratch are counted while the engine executes plans for fixed CPUs, instructions in code
compiled for fixed CPUs, cycles of such code in llvm-mca's models, and registers of GPU kernels in
code linked for fixed targets.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines.engine import CpuEngine, plan
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.testing import Case
from perf.layers import layers
from perf.record import python
from perf.terminal import table_of

EXPECTED = Path(__file__).with_name("gates.json")

ARCHES = {
    "avx512": CpuArch(512, True, 32 << 10, 1 << 20, 1, 14),
    "avx2": CpuArch(256, True, 32 << 10, 512 << 10, 1, 6),
}
# (suite, layer): one layer of each kind, such as few channels, a phase buffer per stride, in-place
# reads, staged outputs, channel blocks, groups that share vectors, depthwise, a tail in filters.
LAYERS = (
    ("resnet50", "7x7/2 3-64 @224"),
    ("resnet50", "1x1 256-64 @56"),
    ("resnet50", "3x3 128-128 @28"),
    ("resnet50", "3x3/2 256-256 @28"),
    ("resnet50", "1x1/2 1024-2048 @14"),
    ("resnet50", "3x3 512-512 @7"),
    ("resnext50", "3x3/2 256-256 g32 @56"),
    ("mobilenet", "3x3 dw 144 @56"),
    ("mobilenet", "1x1 144-24 @56"),
)

ENGINE = """
import json, sys
from perf.gates import engine_counts
print(json.dumps(engine_counts(sys.argv[1])))
"""
IMPORTED = """
import sys
import numpy
before = set(sys.modules)
import implicit_conv
new = {name for name in sys.modules if name not in before}
own = {name for name in new if name.split(".")[0] == "implicit_conv"}
foreign = {name.split(".")[0] for name in new - own} - set(sys.stdlib_module_names)
print(*sorted(own | foreign))
"""

Numbers = dict[str, Any]
COMPILERS = {  # version of a tool: what depends on it
    "compiler": ("instructions",),
    "gpu compiler": ("gpu", "gpu traffic", "gpu narrow groups"),
    "llvm-mca": ("share of peak",),
}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("gates", help="compare noise-free counts with the committed ones")
    parser.add_argument("--update", action="store_true", help="write the counts to gates.json")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 if all counts are the expected ones, else 1."""
    measured = measure()
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    changes = differences(expected, measured)
    print_changes(changes)
    for key, counted in COMPILERS.items():
        if expected and expected.get(key) != measured.get(key):
            print(
                f"not compared: {' and '.join(counted)}; gates.json has the counts of "
                f"{expected.get(key)}, this machine has {measured.get(key, 'no such compiler')}"
            )
    if options.update:
        EXPECTED.write_text(json.dumps({**_kept(expected, measured), **measured}, indent=1) + "\n")
        return 0
    return 1 if changes else 0


def _kept(expected: Numbers, measured: Numbers) -> Numbers:
    """The expected sections that this machine cannot measure, because it lacks the compilers."""
    return {key: value for key, value in expected.items() if key not in measured}


def measure() -> Numbers:
    """All counts, nested by section, then by layer, kernel or target."""
    from perf import gpu_gates, neon
    from perf.assembly import TARGETS, compiler, instruction_counts

    return {
        "compiler": compiler(),
        "engine": {name: json.loads(_python(ENGINE, name)) for name in ARCHES},
        "instructions": {name: instruction_counts(target) for name, target in TARGETS.items()},
        "modules imported": _python(IMPORTED).split(),
        **neon.measure(),
        **gpu_gates.measure(),
    }


def engine_counts(arch: str) -> Numbers:
    """Counts of the executing engine for each layout and layer on one fixed CPU.

    It must run in a process with its own empty kernel cache, because it counts the files there to
    find the number of compiled kernels.
    """
    from implicit_conv.process.disk import store
    from implicit_conv.process.disk_folder import KERNEL
    from perf.counting import count

    found: Numbers = {}
    for layout in ("NCHW", "NHWC"):
        for suite, name in LAYERS:
            case = layers(suite, layout)[name]
            engine = plan_for(case, ARCHES[arch])
            found[f"{layout} {name}"] = count(engine, *case.arrange(*case.inputs(0)))
    found["kernels compiled"] = len(store().files(KERNEL))
    return found


def plan_for(case: Case, arch: CpuArch) -> CpuEngine:
    """The plan of `case` on a fixed CPU."""
    return plan(case.problem, arch, Request())


def _python(code: str, *arguments: str) -> str:
    """The output of `code` in a new process with an empty kernel cache."""
    with tempfile.TemporaryDirectory() as cache:
        return python(code, cache, *arguments)


def differences(expected: Numbers, measured: Numbers) -> list[tuple[str, object, object]]:
    """(name, expected, measured) of every count that differs; None if one side lacks the count.

    Counts that depend on a compiler are compared only if its version is the expected one.
    """
    skipped = set(COMPILERS)
    for key, counted in COMPILERS.items():
        if expected.get(key) != measured.get(key):
            skipped |= set(counted)
    before = _flat({k: v for k, v in expected.items() if k not in skipped})
    after = _flat({k: v for k, v in measured.items() if k not in skipped})
    names = [*after, *(name for name in before if name not in after)]
    return [
        (name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _flat(tree: Numbers, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in tree.items():
        path = f"{prefix} / {name}" if prefix else name
        found |= _flat(value, path) if isinstance(value, dict) else {path: value}
    return found


def print_changes(changes: list[tuple[str, object, object]]) -> None:
    """Print the changes as a table."""
    if not changes:
        print("gates: all counts are as expected")
        return
    print("counts that changed")
    names = ("count", "expected", "measured")
    print(table_of([dict(zip(names, map(str, change), strict=True)) for change in changes]))
    print("If you intend this change, run `python -m perf gates --update` and commit gates.json.")
