"""Checks of a PTX text: whether all of it is covered, and runs of a kernel under many schedules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from implicit_conv.ptx.errors import LaunchError, PtxError, UnsupportedError
from implicit_conv.ptx.limits import SECONDS
from implicit_conv.ptx.machine.control import control_of
from implicit_conv.ptx.memory.spaces import lay_out
from implicit_conv.ptx.run import run
from implicit_conv.ptx.syntax import Kernel
from implicit_conv.ptx.text.blocks import is_control, parse
from implicit_conv.ptx.text.emit import Emitter
from implicit_conv.ptx.text.handlers import statements
from implicit_conv.ptx.text.module import read_module


def entries(text: str) -> list[str]:
    """The names of the kernels of a module."""
    return [function.name for function in read_module(text).functions.values() if function.entry]


def uncovered(kernel: Kernel) -> Iterator[str]:
    """A line for each instruction that the interpreter does not cover, or that is wrong."""
    emitter = Emitter(lay_out(kernel), kernel.target)
    for instruction in kernel.instructions:
        try:
            if is_control(instruction.opcode):
                control_of(instruction)
            else:
                statements(emitter, instruction, True)
        except PtxError as error:
            message = str(error)
            placed = message.startswith("line ")
            yield message if placed else f"{instruction.place}: {message}"


def check_text(text: str, entry: str | None = None, seconds: float = SECONDS) -> Iterator[str]:
    """Lines that say what is not covered, in all kernels or in one; none if all is.

    Raises
    ------
    PtxError
        The text is malformed, or its kernels take more than `seconds`.
    """
    names = [entry] if entry else entries(text)
    stop = time.monotonic() + seconds
    for number, name in enumerate(names):
        if time.monotonic() > stop:
            done = f"{number} of {len(names)} kernels were checked in {seconds:g} seconds"
            raise PtxError(f"{done}; name one as entry, or raise seconds")
        try:
            yield from uncovered(parse(text, name))
        except UnsupportedError as error:
            yield str(error)


def check_runs(text: str, seeds: int, arguments: Sequence[Any], **options: Any) -> Iterator[str]:
    """Lines that say what goes wrong in runs with seeds 0, 1, ...

    That is the first error, or a result that differs from that of seed 0. Arrays among the
    arguments are copied for each run; `options` are those of `run`.

    Raises
    ------
    LaunchError
        The arguments, sizes or target do not fit the kernel.
    """
    first: list[Any] = []
    for seed in range(seeds):
        given = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        try:
            run(text, arguments=given, seed=seed, **options)
        except LaunchError:
            raise
        except PtxError as error:
            yield f"seed {seed}: {error}"
            return
        first = first or given
        for number, (one, other) in enumerate(zip(first, given, strict=True)):
            if isinstance(one, np.ndarray) and one.tobytes() != other.tobytes():
                differ = int((one.view(np.uint8) != other.view(np.uint8)).sum())
                yield (
                    f"seed {seed}: the result depends on the schedule: argument {number} differs "
                    f"from that of seed 0 in {differ} bytes"
                )
                return
