"""``perf cliffs``: where one more tap of a depthwise filter costs far more than the taps before.

Filters of one row on signals, of one column and of one row on images, with a logarithmic grid of
sizes and the neighbours of each threshold that the code names. A call of the next size may take at
most WORST times as long a tap as one of the size before; both take LEAST seconds or more, since
fixed costs hide what is below. Estimates that are off by more than FAR are listed too. A time is
the least of a call's samples, with the filter packed before the clock starts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from implicit_conv import config, plan_conv2d
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.methods import planar_depthwise, shifted_rows
from implicit_conv.cpu.plan.facts import Clock
from implicit_conv.kernels.cpu.depthwise import layout as depthwise
from implicit_conv.kernels.cpu.planar_depthwise import layout as planes
from implicit_conv.problem.options import Precision
from implicit_conv.timing import UNTOLD, Local, disturbance, interleave
from perf import terminal

WORST = 1.3  # time a tap over that of the neighbour with fewer taps, at most
FAR = 3.0  # measured time over the estimate, or the estimate over the measured time, at most
LEAST = 20e-6  # seconds of a call that is compared
ROUNDS, SAMPLE = 5, 0.002  # samples of a call, and seconds of one at least
STEPS = 2  # sizes of the grid from a power of two to the next one

# Sizes after which a method ends or kernels have another form.
THRESHOLDS = (
    planes.ROWS_TOGETHER,
    shifted_rows.TAPS,
    planes.TAPS_TOGETHER,
    depthwise.ROW_TAPS,
    max(planar_depthwise.TILE_ROWS),
)


class Axis(NamedTuple):
    """What grows: filters of `most` elements at most, along H or along W."""

    most: int
    along: int  # 0: filters of one column; 1: filters of one row
    output: tuple[int, int]  # rows and columns of the result

    def shapes(self, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """(image, filter) of a size."""
        kernel = (size, 1) if self.along == 0 else (1, size)
        rows, columns = (n + taps - 1 for n, taps in zip(self.output, kernel, strict=True))
        return (rows, columns), kernel


AXES = {
    "taps of a signal": Axis(8192, 1, (1, 8000)),
    "filter rows": Axis(512, 0, (200, 100)),
    "filter columns": Axis(512, 1, (100, 200)),
}


class Series(NamedTuple):
    """Problems that differ in the size of the filter alone."""

    axis: str
    dtype: str
    precision: Precision
    channels: int


VARIANTS = ("float32", "float64"), ("standard", "strict"), (1, 8)  # the other fields of Series


class Call(NamedTuple):
    """A measured call."""

    size: int
    method: str
    seconds: float
    estimate: float  # seconds

    @property
    def tap(self) -> float:
        """Seconds a tap."""
        return self.seconds / self.size


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "cliffs", help="sizes from which a tap takes longer", description=__doc__
    )
    parser.add_argument("--axis", action="append", choices=[*AXES], help="default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0; 1 if there is a cliff or an estimate that is far off; UNTOLD beside other
    work, where nothing is measured.
    """
    disturbed = disturbance(options.threads)
    if disturbed:
        print(disturbed)
        return UNTOLD
    chosen = [*map(Series._make, product(options.axis or AXES, *VARIANTS))]
    rows: terminal.Rows = []
    with terminal.progress() as show, config(num_threads=options.threads):
        for number, series in enumerate(chosen):
            show(" ".join(map(str, series)), number, len(chosen))
            rows += found(series, measured(series))
    if rows:
        print(terminal.table_of(rows))
    print(
        f"{len(chosen)} series of {STEPS} sizes an octave: {len(rows)} sizes take more than "
        f"{WORST} times as long a tap as the size before, or have estimates off by more than {FAR}"
    )
    return int(bool(rows))


def sizes(most: int) -> list[int]:
    """The grid of sizes up to `most`, in rising order, with both neighbours of each threshold."""
    octaves = int(np.log2(most))
    grid = {round(2 ** (i / STEPS)) for i in range(STEPS * octaves + 1)}
    grid |= {size for threshold in THRESHOLDS for size in (threshold, threshold + 1)}
    return sorted(size for size in grid if size <= most)


def measured(series: Series) -> list[Call]:
    """Time the calls of a series in turn."""
    axis = AXES[series.axis]
    rng = np.random.default_rng(0)
    calls, engines = {}, {}
    for size in sizes(axis.most):
        image, kernel = axis.shapes(size)
        x = rng.standard_normal((1, series.channels, *image)).astype(series.dtype)
        w = rng.standard_normal((series.channels, 1, *kernel)).astype(series.dtype)
        _, dtype, precision, channels = series
        plan = plan_conv2d(x.shape, w.shape, dtype, groups=channels, precision=precision)
        assert isinstance(plan.engine, CpuEngine)
        engines[size] = plan.engine
        calls[str(size)] = Local(partial(plan, x, plan.pack(w)))
    samples = interleave(calls, ROUNDS, SAMPLE)
    results = []
    for size, engine in engines.items():
        best = engine.best_packed
        milliseconds = Clock.of(best.arch).milliseconds(best, best.packed_cycles)
        least = float(samples[str(size)].min())
        results.append(Call(size, type(best.method).__name__, least, milliseconds / 1e3))
    return results


def found(series: Series, calls: Sequence[Call]) -> terminal.Rows:
    """Rows of the table: cliffs, then estimates that are far off."""
    return [*cliffs(series, calls), *misjudged(series, calls)]


def cliffs(series: Series, calls: Sequence[Call]) -> Iterator[dict[str, str]]:
    """The calls that take longer a tap than the one before."""
    for before, call in pairwise(call for call in calls if call.seconds >= LEAST):
        if call.tap > WORST * before.tap:
            what = f"{call.tap / before.tap:.2f} times as long a tap as with {before.size}"
            yield cells(series, call, f"{what} by {before.method}")


def misjudged(series: Series, calls: Sequence[Call]) -> Iterator[dict[str, str]]:
    """The calls whose estimates are off by more than FAR."""
    for call in calls:
        ratio = call.seconds / call.estimate
        if call.seconds >= LEAST and not 1 / FAR <= ratio <= FAR:
            yield cells(series, call, f"{ratio:.2f} times the estimate")


def cells(series: Series, call: Call, what: str) -> dict[str, str]:
    """A row of the table."""
    return {
        "series": f"{series.axis}, {series.dtype}, {series.precision}",
        "method": call.method,
        "channels": str(series.channels),
        "size": str(call.size),
        "us": f"{1e6 * call.seconds:.1f}",
        "what": what,
    }
