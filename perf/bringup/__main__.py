"""``python -m perf.bringup {run,rehearse,compare} FILE``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from implicit_conv.errors import DriverError, PlanError

COMPARE = "values, times of a kit's layers beside another kit's and cuDNN's, and of whole networks"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit status is 0 if nothing failed, else 1."""
    options = _parser().parse_args(arguments)
    if options.command == "step":
        return _step(options)
    if options.command == "measure":
        return _measure(options)
    if options.command == "compare":
        return _compare(options)
    from perf.bringup.run import run

    device = "gpu" if options.command == "run" else "interpreter"
    report = options.report or options.file.with_suffix(".txt")
    right = run(options.file.resolve(), device, report)
    print(*report.read_text().splitlines()[:3], f"report: {report}", sep="\n")
    return 0 if right else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.bringup", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("run", "run a kit on the GPU"), ("rehearse", "run it interpreted")):
        command = commands.add_parser(name, help=words)
        command.add_argument("file", type=Path)
        command.add_argument("--report", type=Path, help="by default FILE with suffix .txt")
    for name, words in (("compare", COMPARE), ("measure", "what compare runs in a process")):
        command = commands.add_parser(name, help=words)
        command.add_argument("file", type=Path)
        command.add_argument("--report", type=Path, help="by default FILE with suffix .json")
    step = commands.add_parser("step", help="one step, in this process")
    step.add_argument("file", type=Path)
    step.add_argument("step")
    step.add_argument("device", choices=("gpu", "interpreter"))
    step.add_argument("--first", type=int, default=0)
    step.add_argument("--count", type=int, default=1 << 30)
    step.add_argument("--match", default="", help="regular expression of names of items")
    return parser


def _measure(options: argparse.Namespace) -> int:
    from perf.bringup.compare import Torch, compared
    from perf.bringup.kit import read

    kit = read(options.file)
    compared(kit, Torch(kit), options.report)
    os._exit(0)  # freeing memory of a card that a kernel has left unusable would wait or fail


def _compare(options: argparse.Namespace) -> int:
    from perf.bringup.compare import run

    path = options.file.resolve()
    report = run(path, options.report or path.with_suffix(".json"))
    print(*report.lines(), sep="\n")
    return 1 if report.failures else 0


def _step(options: argparse.Namespace) -> int:
    from implicit_conv.testing.gpu.device_memory import StuckError
    from perf.bringup.emulated import Interpreter
    from perf.bringup.gpu import Gpu
    from perf.bringup.kit import read
    from perf.bringup.steps import Span, report_items

    kit = read(options.file)
    try:
        device = Gpu(kit) if options.device == "gpu" else Interpreter(kit)
        span = Span(options.first, options.count, options.match)
        return 0 if report_items(kit, options.file, options.step, device, span) else 1
    except (DriverError, PlanError, StuckError) as error:
        print(error, flush=True)
        os._exit(3)  # freeing memory would wait for the kernel, or fail once more


if __name__ == "__main__":
    sys.exit(main())
