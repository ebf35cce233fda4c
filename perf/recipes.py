"""```python -m perf recipes```: the site's recipes beside the tools that their readers use.

A recipe (docs/recipes/*.py) defines functions without arguments: ``with_implicit_conv``, and one
for each neighbour, such as ``with_scipy``. Each recipe runs in a process of its own, on one thread,
which times them in turn. The record, perf/recipes.json, holds the figures, and the paragraph
**Time** at the end of each recipe is made from it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from implicit_conv.timing import (
    UNTOLD,
    Local,
    disturbance,
    interleave,
    paired_ratio,
    summarise,
)
from perf.machines import machine_of
from perf.record import ROOT, Record, commit, load, machine

RECIPES = ROOT / "docs" / "recipes"
RECORD = ROOT / "perf" / "recipes.json"
OURS = "implicit_conv"
PREFIX = "with_"  # of the functions that are timed
MODULES = {"opencv": "cv2"}  # of neighbours that are not named by their module
TITLES = {"opencv": "OpenCV"}
ENVIRONMENT = {  # of a process that measures: one thread
    "IMPLICIT_CONV_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
    "DASK_SCHEDULER": "synchronous",
    "MPLBACKEND": "agg",
    # glibc keeps freed arrays of up to 32 MiB. Else some runs take page faults in each call, up to
    # three times as long, and others none.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
TIME = re.compile(r"^# \*\*Time\*\*.*\n(?:# .+\n)*", re.MULTILINE)
UNMEASURED = "**Time** is not measured yet: ``python -m perf recipes`` needs an idle machine."
WIDTH = 76  # of lines, as docs/recipes/ruff.toml has it
MONTHS = 7  # characters of a date up to its month


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Run a recipe in this process and time its functions.

    Returns
    -------
    row : dict of neighbour, or "implicit_conv", to version, milliseconds (median and least),
        relative spread, and the median ratio of its time to ours
    """
    found = runpy.run_path(str(path), run_name="__main__")
    functions = {
        name.removeprefix(PREFIX): Local(value)
        for name, value in found.items()
        if name.startswith(PREFIX)
    }
    samples = interleave(functions, rounds)
    row = {}
    for name, seconds in samples.items():
        median, least, spread = summarise(seconds)
        row[name] = {
            "version": importlib.import_module(MODULES.get(name, name)).__version__,
            "median_ms": float(f"{median * 1e3:.4g}"),
            "least_ms": float(f"{least * 1e3:.4g}"),
            "spread": round(spread, 3),
            "ratio": round(paired_ratio(seconds, samples[OURS]), 3),
        }
    return row


def measure_alone(path: Path, rounds: int) -> dict[str, Any]:
    """`measure` in a fresh process on one thread; what the recipe prints is dropped."""
    code = "import json, perf.recipes as r, pathlib, sys; path, rounds = sys.argv[1:]; "
    code += "print('\\n' + json.dumps(r.measure(pathlib.Path(path), int(rounds))))"
    output = subprocess.run(
        [sys.executable, "-c", code, str(path), str(rounds)],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    row: dict[str, Any] = json.loads(output.splitlines()[-1])
    return row


def milliseconds(figure: dict[str, Any]) -> str:
    """A median with three digits."""
    value = figure["median_ms"]
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.3g} ms"


def sentence(record: Record, name: str) -> str:
    """The paragraph **Time** of a recipe, also of one that is newer than the record."""
    if name not in record["recipes"]:
        return UNMEASURED
    row = record["recipes"][name]
    others = [
        f"{milliseconds(figure)} with {TITLES.get(other, other)} "
        f"{figure['version'].partition('+')[0]}, {figure['ratio']:.1f} times as long"
        for other, figure in row.items()
        if other != OURS
    ]
    return (
        f"**Time** on one thread ({machine_of(record)}, {record['created'][:MONTHS]}): "
        f"{milliseconds(row[OURS])} here; {'; '.join(others)}."
    )


def renewed(text: str, paragraph: str) -> str:
    """The text of a recipe with this paragraph **Time**.

    Raises
    ------
    ValueError
        The recipe has no such paragraph.
    """
    lines = textwrap.wrap(
        paragraph, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
    text, count = TIME.subn(lambda _: "\n".join(lines) + "\n", text)
    if count != 1:
        raise ValueError(f"a recipe needs one text block that begins with **Time**, not {count}")
    return text


def register(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("recipes", help=__doc__.partition("\n")[0].partition(": ")[2])
    parser.add_argument("--rounds", type=int, default=9, help="samples of each function")
    parser.add_argument(
        "--update", action="store_true", help="write perf/recipes.json and the recipes' lines"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a line for each recipe; beside other work print none, and return 3."""
    record: Record = {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "commit": commit(),
        "load": load(),
        "threads": 1,
        "rounds": options.rounds,
        "recipes": {},
    }
    paths = sorted(RECIPES.glob("*.py"))
    for path in paths:
        before = disturbance(1)
        row = measure_alone(path, options.rounds) if not before else {}
        disturbed = before or disturbance(1)
        if disturbed:
            print(disturbed, flush=True)
            return UNTOLD
        record["recipes"][path.stem] = row
        print(f"{path.stem}: {sentence(record, path.stem)}", flush=True)
    if options.update:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        for path in paths:
            path.write_text(renewed(path.read_text(), sentence(record, path.stem)))
    return 0
