"""Processes with a time limit whose output is kept, also if they do not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """How a process ended: its exit status (None: it was stopped), what it printed, seconds."""

    status: int | None
    output: str
    seconds: float


def run_module(*arguments: str, seconds: float, prefix: Sequence[str] = ()) -> Ended:
    """``python -m *arguments`` in the checkout, stopped after `seconds` with all its children.

    `prefix` is the command that runs it, as a profiler does.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Ended(status, output.read(), time.monotonic() - started)
