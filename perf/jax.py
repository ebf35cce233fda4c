"""``python -m perf jax``: JAX's convolutions here beside XLA's, and the gradients that it makes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import implicit_conv
from implicit_conv.timing import (
    UNTOLD,
    Local,
    disturbance,
    interleave,
    paired_ratio,
    summarise,
)

NHWC = ("NHWC", "HWIO", "NHWC")
OPERATORS = ("fprop", "dgrad", "wgrad")
MOST_DIFFERENCE = 1e-4  # of float32 results, relative to the largest one


class Row(NamedTuple):
    """A layer: channels, pixels of a side, filters, taps of a side and stride."""

    C: int
    size: int
    K: int
    taps: int
    stride: int

    @property
    def name(self) -> str:
        """The layer in a few words."""
        return f"{self.taps}x{self.taps}/{self.stride} {self.C} -> {self.K} at {self.size}"


ROWS = tuple(  # of ResNet-50, one of each kind
    Row(*sizes)
    for sizes in (
        *((3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1)),
        *((256, 56, 128, 1, 1), (128, 28, 128, 3, 1), (512, 28, 256, 1, 1)),
        *((256, 14, 256, 3, 1), (1024, 14, 512, 1, 1), (512, 7, 512, 3, 1)),
    )
)


def contenders(row: Row, operator: str, threads: int) -> dict[str, Callable[[], Any]]:
    """The jitted operator by name: of this package, and of XLA.

    Raises
    ------
    ArithmeticError
        Their results differ by more than rounding.
    """
    import jax
    import jax.numpy as jnp

    from implicit_conv.jax import conv_general_dilated

    rng = np.random.default_rng(0)
    pad = row.taps // 2
    options: dict[str, Any] = {"window_strides": (row.stride,) * 2, "padding": [(pad, pad)] * 2}
    shapes = (1, row.size, row.size, row.C), (row.taps, row.taps, row.C, row.K)
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    functions: dict[str, Callable[[], Any]] = {}
    results = []
    for name, conv in (("ours", conv_general_dilated), ("XLA", jax.lax.conv_general_dilated)):
        fprop = partial(conv, dimension_numbers=NHWC, **options)
        y = jax.eval_shape(fprop, x, w)
        dy = jnp.asarray(np.random.default_rng(1).standard_normal(y.shape), jnp.float32)

        def dgrad(dy: Any, w: Any, fprop: Any = fprop) -> Any:
            return jax.linear_transpose(lambda x: fprop(x, w), x)(dy)[0]

        def wgrad(x: Any, dy: Any, fprop: Any = fprop) -> Any:
            return jax.linear_transpose(lambda w: fprop(x, w), w)(dy)[0]

        # All operands are arguments, so that XLA computes nothing while it compiles.
        known = {"fprop": (fprop, (x, w)), "dgrad": (dgrad, (dy, w)), "wgrad": (wgrad, (x, dy))}
        call, given = known[operator]
        compiled = jax.jit(call)
        with implicit_conv.config(num_threads=threads):
            results.append(np.asarray(compiled(*given)))
        functions[name] = partial(_finished, compiled, given)
    difference = abs(results[0] - results[1]).max() / abs(results[1]).max()
    if not difference <= MOST_DIFFERENCE:
        raise ArithmeticError(f"{operator} of {row.name}: ours is off by {difference:.1e}")
    return functions


def _finished(compiled: Any, given: Any) -> Any:
    return compiled(*given).block_until_ready()


def line(row: Row, operator: str, threads: int, rounds: int) -> tuple[str, float]:
    """Time a row; milliseconds, and XLA's time over ours."""
    timed = {name: Local(run) for name, run in contenders(row, operator, threads).items()}
    samples = interleave(timed, rounds)
    ours, xla = (summarise(samples[name]).median * 1e3 for name in ("ours", "XLA"))
    ratio = paired_ratio(samples["XLA"], samples["ours"])
    return f"{operator} {row.name}: ours {ours:.3f} ms, XLA {xla:.3f} ms ({ratio:.2f}x)", ratio


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "jax",
        help="time convolutions of JAX, beside XLA's",
        description="Time ResNet-50's layers and their gradients in JAX, beside XLA's.",
    )
    parser.add_argument("--rounds", type=int, default=15, help="samples of each function")
    parser.add_argument("--threads", type=int, default=1, help="1, or the number of CPUs")
    parser.add_argument("--only", nargs="*", default=list(OPERATORS), choices=OPERATORS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a line for each row: milliseconds, and in brackets XLA's time over ours. Beside other
    work nothing is measured, and the exit status is UNTOLD.

    Raises
    ------
    ValueError
        XLA cannot be told to run on so many threads.
    """
    threads = options.threads
    if threads not in (1, len(os.sched_getaffinity(0))):
        cpus = len(os.sched_getaffinity(0))
        raise ValueError(
            f"--threads {threads}: XLA runs on one thread or on all {cpus} CPUs of the process; "
            f"use taskset for others"
        )
    disturbed = disturbance(threads)
    if disturbed:
        print(disturbed)
        return UNTOLD
    if threads == 1:  # before XLA starts; some of its kernels heed no flag for it
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    ratios = []
    for operator in options.only:
        for row in ROWS:
            text, ratio = line(row, operator, threads, options.rounds)
            print(text, flush=True)
            ratios.append(ratio)
    print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.2f}x")
    return 0
