"""Records: JSON that says what was measured, where and with which versions; a schema describes it.

A record is written after every row, so an interrupted run leaves a valid record with ``"complete":
false``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.machine.compiler import host_features
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import Case
from implicit_conv.timing import Seconds, paired_ratio, summarise
from implicit_conv.tools.info import cpu_name

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = json.loads(Path(__file__).with_name("record.schema.json").read_text())
PACKAGES = (
    "implicit-conv",
    "numpy",
    "numba",
    "llvmlite",
    "numba-cuda",
    "torch",
    "scipy",
    "transformers",
    "diffusers",
)

Record = dict[str, Any]


def new_record(kind: str, settings: dict[str, Any]) -> Record:
    """A record without rows, of kind "run" or "compare", on this machine and at this time."""
    return {
        "schema": "implicit-conv-perf",
        "version": 1,
        "kind": kind,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "complete": False,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "load": {"before": load(), "after": None},
        "settings": settings,
        "noise_floor": None,
        "rows": [],
    }


def machine() -> dict[str, Any]:
    """The properties of this machine that affect times."""
    arch = cpu_arch()
    return {
        "cpu": cpu_name(),
        "flags": sorted(name for name, there in host_features().items() if there),
        "cores": os.cpu_count() or 1,
        "threads_available": arch.threads,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "l1_bytes": arch.l1_bytes,
        "l2_bytes": arch.l2_bytes,
        "vector_bits": arch.vector_bits,
        "gpu": None,
    }


def versions() -> dict[str, str]:
    """Versions of the installed packages of PACKAGES."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> dict[str, Any]:
    """The commit of the checkout, and whether tracked files differ from it; None without git."""
    try:
        head = git("rev-parse", "HEAD")
        changed = bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return {"hash": None, "changed": None}
    return {"hash": head, "changed": changed}


def git(*arguments: str) -> str:
    """The output of git in the checkout; an error carries the messages of git."""
    result = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def python(code: str, cache: str, *arguments: str) -> str:
    """The output of `code` in a new process in the checkout, with compiled kernels in `cache`."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "IMPLICIT_CONV_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def load() -> float | None:
    """Load average of the last minute; None if the system has none."""
    average = getattr(os, "getloadavg", None)
    return average()[0] if average else None


def ratios(samples: Mapping[str, Seconds]) -> dict[str, float]:
    """Time of each function over that of "call" (key: its name) and of "plan" (name + "/plan")."""
    found = {}
    for ours, suffix in (("call", ""), ("plan", "/plan")):
        others = (name for name in samples if name not in ("call", "plan"))
        for name in others:
            found[f"{name}{suffix}"] = paired_ratio(samples[name], samples[ours])
    return found


def layer_row(
    name: str,
    case: Case,
    work: Plan | Problem,
    algorithm: str,
    errors: Mapping[str, float],
    samples: Mapping[str, Seconds],
) -> dict[str, Any]:
    """One measured layer as a record keeps it; `work` is its plan or its problem."""
    return {
        "layer": name,
        "case": asdict(case),
        "algorithm": algorithm,
        "flops": work.flops,
        "bytes": work.bytes,
        "errors": errors,
        "timings": {
            name: {**summarise(values)._asdict(), "samples": values.tolist()}
            for name, values in samples.items()
        },
        "ratios": ratios(samples),
    }


def validate(record: Record) -> None:
    """Check `record` against the schema if jsonschema is installed.

    Raises
    ------
    ValueError
        The record does not match; the message says where and why.
    """
    try:
        import jsonschema
    except ImportError:
        return  # a GPU machine need not have jsonschema; the reader of the record checks it
    try:
        jsonschema.validate(record, SCHEMA)
    except jsonschema.ValidationError as error:
        where = " / ".join(map(str, error.absolute_path)) or "the record"
        raise ValueError(f"{where}: {error.message}") from None


def save(record: Record, path: Path) -> None:
    """Write `record`; the file is replaced at once, so a reader never sees a part of it."""
    validate(record)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)


def told(path: Path) -> Record:
    """The record at `path`, whose ratios can be told.

    Raises
    ------
    ValueError
        The file is not a record of this version, or other work disturbed what was measured.
    """
    record = read(path)
    if "disturbed" in record:
        raise ValueError(f"{path} has no ratio that can be told: {record['disturbed']}")
    return record


def read(path: Path) -> Record:
    """The record at `path`.

    Raises
    ------
    ValueError
        The file is not a record of this version.
    """
    try:
        record: Record = json.loads(path.read_text())
        validate(record)
    except ValueError as error:
        raise ValueError(f"{path} is not a record of this version: {error}") from None
    return record
