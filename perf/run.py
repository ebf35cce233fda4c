"""``perf run``: check and time the layers of a suite, and rivals on the same layers.

"call" is conv2d(x, w), which packs the filter; "plan" has a packed filter. Absolute times drift
with the machine; ratios of functions that take turns do not. A record has one row for each layer.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from implicit_conv import conv2d
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.problem.options import FLOAT_DTYPES, PRECISIONS, Precision
from implicit_conv.testing import Array, Case
from implicit_conv.timing import Timed
from implicit_conv.tools.ceilings import measure_ceilings
from implicit_conv.tools.rivals import result_of
from perf import bursts, changing, outliers, tables, upsampling
from perf.engines import RIVALS
from perf.layers import SUITES, layers
from perf.model_names import ENGINES
from perf.models import catalogue
from perf.models import run as models
from perf.operators import inputs_of, is_conv2d, measure_operator
from perf.opponents import opponents
from perf.record import Record, layer_row, new_record, python
from perf.rival import rivals
from perf.session import add, session, status_of
from perf.shapes import Suite
from perf.upsampling import MIXED

REPEATS = 5  # processes per measurement of `startup`; the fastest counts
IMPORT = """
import time
import numpy
start = time.perf_counter()
import implicit_conv
print(time.perf_counter() - start)
"""
FIRST_CALL = """
import numpy as np
from implicit_conv import conv2d
conv2d(np.ones((1, 64, 56, 56), np.float32), np.ones((64, 64, 3, 3), np.float32), padding=1)
"""
# Suites of other things than layers.
RUNS: dict[str, Callable[[argparse.Namespace], int]] = {
    changing.SUITE: changing.run,
    bursts.SUITE: bursts.run,
    **dict.fromkeys(catalogue.SUITES, models.run),
}
SUITE_NAMES = (*SUITES, *RUNS, "all")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("run", help="time the layers of a suite", description=__doc__)
    parser.add_argument("--suite", default="resnet50", choices=SUITE_NAMES)
    parser.add_argument(
        "--operator",
        choices=("fprop", "dgrad", "wgrad", "transposed"),
        help="what to compute, on a CPU; suite transposed has the shapes for operator transposed, "
        "and each layer of audio and upsampling has its own; default: fprop",
    )
    parser.add_argument("--layer", action="append", help="only layers whose name contains this")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--dtype",
        action="append",
        choices=FLOAT_DTYPES,
        help="default: float32; on a GPU, bfloat16 and float16, and several options are allowed",
    )
    parser.add_argument(
        "--precision",
        default="standard",
        choices=PRECISIONS,
        help='that of conv2d, on a CPU; "fast" allows what inference engines do unasked',
    )
    parser.add_argument("--threads", type=int, help="default: all that are available")
    parser.add_argument("--layout", default="NCHW", choices=("NCHW", "NHWC"))
    parser.add_argument(
        "--batch", type=int, help="images; default: that of the suite, on a GPU 256 and 32"
    )
    parser.add_argument(
        "--against",
        action="append",
        choices=(*dict.fromkeys((*RIVALS, *ENGINES)), "nothing"),
        help="a rival, in a process of its own; several options are allowed; "
        f"default: torch if it is installed; of whole models also {', '.join(ENGINES)}",
    )
    parser.add_argument("--rounds", type=int, default=21, help="samples of each function")
    parser.add_argument("--sizes", type=int, default=100, help="new sizes of suite changing")
    parser.add_argument("-o", "--output", type=Path, help="write the record here, row by row")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0; 1 if rows were dropped; UNTOLD if no ratio can be told, for other work
    disturbs this machine; 130 after Ctrl-C, which keeps the finished rows.
    """
    if options.suite in RUNS:
        return RUNS[options.suite](options)
    require_layers(options)
    if options.device == "cuda":
        from perf.cuda import row_maker
    else:
        row_maker = cpu_row_maker
    suite = chosen_layers(options)
    if options.precision != "standard":
        require_images(options, suite)
    record = new_record("run", settings(options))
    threads = 1 if options.device == "cuda" else record["settings"]["threads"]
    with session(record, threads, options.output) as show, row_maker(options, record) as make_row:
        for done, (name, case) in enumerate(suite.items()):
            show(name, done, len(suite))
            row = make_row(name, case)
            if row is not None:
                add(record, row, options.output)
    print(tables.run_table(record))
    return status_of(record)


def require_layers(options: argparse.Namespace) -> None:
    """Raise ValueError for rivals that run whole models alone."""
    wrong = [name for name in options.against or () if name not in (*RIVALS, "nothing")]
    if wrong:
        raise ValueError(
            f"{' and '.join(wrong)} runs whole models and no layers: leave it out, or use --suite "
            f"{catalogue.MODELS}"
        )


def require_images(options: argparse.Namespace, suite: Suite) -> None:
    """Raise unless `measure`, which knows precisions, measures the whole suite."""
    images = all(len(case.size) == 2 for case in suite.values())
    if options.device == "cuda" or operator_of(options) != "fprop" or not images:
        raise ValueError(
            f"--precision {options.precision} is measured for conv2d on a CPU; leave it out, or "
            "choose another suite, --operator fprop and --device cpu"
        )


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options as a record keeps them."""
    return {
        "suite": options.suite,
        "device": options.device,
        "operator": operator_of(options),
        "precision": options.precision,
        "threads": options.threads or cpu_arch().threads,
        "layout": options.layout,
        "dtype": "uint8" if options.suite == "int8" else ",".join(dtypes(options)),
        "batch": options.batch,
        "against": opponents(options.against),
        "rounds": options.rounds,
    }


def operator_of(options: argparse.Namespace) -> str:
    """What to compute of every layer; MIXED where each layer has its own operator.

    Raises
    ------
    ValueError
        The suite has operators, and --operator or --device asks for another one.
    """
    if options.suite not in upsampling.SUITES:
        return options.operator or "fprop"
    if options.operator or options.device == "cuda":
        raise ValueError(
            f"each layer of suite {options.suite} has its own operator, on a CPU; leave --operator "
            "and --device out, and choose layers by --layer, such as --layer dgrad"
        )
    return MIXED


def dtypes(options: argparse.Namespace) -> list[str]:
    """The dtypes to measure; a run on the CPU has one."""
    if options.device == "cuda":
        return options.dtype or ["bfloat16", "float16"]
    if options.dtype and len(options.dtype) > 1:
        raise ValueError("a run on the CPU has one --dtype; run each dtype by itself")
    if options.dtype and options.suite == "int8":
        raise ValueError("suite int8 has its own dtypes, uint8 and int8; leave --dtype out")
    return options.dtype or ["float32"]


def chosen_layers(options: argparse.Namespace) -> Suite:
    """The layers of the suite, or those of them that --layer names."""
    suite = layers(options.suite, options.layout, options.batch)
    if options.device == "cuda":
        from perf.cuda import suite_of

        suite = suite_of(suite, options.batch, options.dtype)
    else:
        suite = {
            name: case if case.w_dtype else replace(case, dtype=dtype)
            for dtype in dtypes(options)
            for name, case in suite.items()
        }
    wanted = options.layer or [""]
    found = {name: case for name, case in suite.items() if any(part in name for part in wanted)}
    if not found:
        raise ValueError(f"no layer of {options.suite} has {' or '.join(wanted)!r} in its name")
    return found


def startup() -> dict[str, float]:
    """Seconds to import beyond numpy, and seconds of a whole process that convolves once.

    The cold process finds no compiled kernels and is run once; warm processes load its kernels. The
    other figures are the least of REPEATS.
    """
    with tempfile.TemporaryDirectory() as cache:

        def seconds() -> float:
            start = time.perf_counter()
            python(FIRST_CALL, cache)
            return time.perf_counter() - start

        cold = seconds()
        return {
            "import": min(float(python(IMPORT, cache)) for _ in range(REPEATS)),
            "first_call_cold": cold,
            "first_call_warm": min(seconds() for _ in range(REPEATS)),
        }


def result_beside_outlier(case: Case, precision: Precision) -> Array:
    """The result of conv2d beside an outlier, with axes N, K, P, Q."""
    x, w = case.arrange(*outliers.inputs(case))
    return result_of(case, "call", conv2d(x, w, **case.options, precision=precision))


@contextmanager
def cpu_row_maker(
    options: argparse.Namespace, record: Record
) -> Iterator[Callable[[str, Case], dict[str, Any]]]:
    """Measure start-up and ceilings and start the rivals; yield the function that makes a row."""
    from perf.counting import memory_of_call

    threads = record["settings"]["threads"]
    record["startup"] = startup()
    record["ceilings"] = measure_ceilings(threads, options.rounds, *dtypes(options))
    with rivals(record["settings"]["against"], threads) as found:
        record["rivals"] = found.facts
        operators = upsampling.operators(options.suite)

        def make_row(name: str, case: Case) -> dict[str, Any]:
            rounds = options.rounds
            operator = operators.get(name) or operator_of(options)
            reasons: dict[str, str] = {}

            def prepare(number: int) -> dict[str, Timed]:
                ready, why = found.prepare(operator, case, number)
                reasons.update(why)
                return ready

            plan, errors, samples = measure_operator(
                operator, case, prepare, threads, rounds, options.precision
            )
            row = layer_row(name, case, plan, plan.algorithm, errors, samples)
            memory = memory_of_call(plan.engine, *inputs_of(operator, case))
            row |= {"scratch_bytes": memory.scratch, "peak_bytes": memory.peak}
            if is_conv2d(operator, case) and outliers.has_outlier(case):
                timed = [name for name in found.processes if name in samples]
                row["outlier_errors"] = {
                    "call": outliers.error_of(case, result_beside_outlier(case, options.precision)),
                    **found.errors_beside_outlier(case, timed),
                }
            return row | {"operator": operator, "not_timed": reasons}

        yield make_row
