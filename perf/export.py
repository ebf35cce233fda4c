"""``perf export``: convert a run to the JSON of pyperf or pytest-benchmark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from perf.record import Record, read


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("export", help="convert a run to pyperf or pytest-benchmark JSON")
    parser.add_argument("record", type=Path)
    parser.add_argument("--format", required=True, choices=("pyperf", "pytest-benchmark"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the file; exit status 0."""
    record = read(options.record)
    if record["kind"] != "run" or not record["rows"]:
        raise ValueError(
            f"{options.record} is not a run with rows, and nothing else can be exported"
        )
    if options.format == "pyperf":
        options.output.unlink(missing_ok=True)
        pyperf_suite(record).dump(str(options.output))
    else:
        options.output.write_text(json.dumps(pytest_benchmark(record), indent=1) + "\n")
    return 0


def pyperf_suite(record: Record) -> Any:
    """A pyperf.BenchmarkSuite with a benchmark for each layer and function."""
    import pyperf

    shared = {"cpu_model_name": record["machine"]["cpu"], "date": record["created"]}
    return pyperf.BenchmarkSuite(
        [
            pyperf.Benchmark(
                [
                    pyperf.Run(
                        timing["samples"],
                        metadata={"name": f"{row['layer']} {name}", "unit": "second", **shared},
                        collect_metadata=False,
                    )
                ]
            )
            for row in record["rows"]
            for name, timing in row["timings"].items()
        ]
    )


def pytest_benchmark(record: Record) -> dict[str, Any]:
    """The document that pytest-benchmark writes, with statistics of each layer and function."""
    machine = record["machine"]
    return {
        "machine_info": {
            "node": machine["cpu"],
            "machine": machine["system"],
            "cpu": {"brand_raw": machine["cpu"], "count": machine["cores"]},
        },
        "commit_info": {
            "id": record["commit"]["hash"],
            "dirty": bool(record["commit"]["changed"]),
        },
        "benchmarks": [
            {
                "group": row["layer"],
                "name": f"{row['layer']} {name}",
                "fullname": f"perf::{row['layer']} {name}",
                "params": None,
                "param": None,
                "extra_info": {"algorithm": row["algorithm"], "flops": row["flops"]},
                "options": {},
                "stats": statistics_of(np.array(timing["samples"])),
            }
            for row in record["rows"]
            for name, timing in row["timings"].items()
        ],
        "datetime": record["created"],
        "version": "5.0.0",
    }


def statistics_of(samples: Any) -> dict[str, Any]:
    """The statistics that pytest-benchmark stores; samples are seconds per call."""
    q1, median, q3 = np.percentile(samples, [25, 50, 75]).tolist()
    mean, deviation = float(samples.mean()), float(samples.std(ddof=1)) if len(samples) > 1 else 0.0
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    outside = int(((samples < low) | (samples > high)).sum())
    off_mean = int((np.abs(samples - mean) > deviation).sum())
    return {
        "min": float(samples.min()),
        "max": float(samples.max()),
        "mean": mean,
        "stddev": deviation,
        "rounds": len(samples),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": off_mean,
        "outliers": f"{off_mean};{outside}",
        "ld15iqr": float(samples[samples >= low].min()),
        "hd15iqr": float(samples[samples <= high].max()),
        "ops": 1 / mean,
        "total": float(samples.sum()),
        "iterations": 1,
        "data": samples.tolist(),
    }
