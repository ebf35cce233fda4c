"""Draw mutants of the GPU kernels, and run the tests that execute their lines, until one is red.

    PYTHONPATH=tests/support python -m mutation_run lines LINES      which test executes which lines
    PYTHONPATH=tests/support python -m mutation_run LINES OUT --seed 65 --count 300 --seconds 60

The first takes ten minutes of two cores. The second goes on where OUT ends. `--seconds` are those
of tests that a mutant is given, the quickest first; what survives is given more by a later run.
Tests that run no kernel are added by hand: test_ring_protocol.py and test_address_proofs.py.
"""

import argparse
import ast
import itertools
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernel_mutants
from kernel_mutants import FILES, KERNELS, ROOT

WORKERS = 2


def record_lines(path):
    """Run the tests of kernels, with the lines of sources in their PTX."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    command += ["-W", "ignore", "-p", "executed_lines", "--executed-lines", path]
    command += ["-m", "not gpu and not exhaustive", "tests/gpu"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


class Tests:
    """The tests that execute lines of kernels."""

    def __init__(self, path):
        self.rows = {}
        for text in Path(path).read_text().splitlines():
            row = json.loads(text)
            if "test_fault_is_seen" in row["test"]:  # red where its own fault has no place any more
                continue
            places = (line.rsplit(":", 1) for line in row["lines"])
            executed = {(file, int(number)) for file, number in places}
            self.rows[row["test"]] = row["seconds"], executed

    def of(self, mutant):
        """[(seconds, test)] of the line; then of the function; else of what names the function."""
        line, around = [], []
        for test, (seconds, executed) in self.rows.items():
            if (mutant.file, mutant.line) in executed:
                line.append((seconds, test))
            elif touches(executed, mutant.file, mutant.first, mutant.last):
                around.append((seconds, test))
        if not line and not around:
            spans = callers(mutant)
            around = [
                (seconds, test)
                for test, (seconds, executed) in self.rows.items()
                if any(touches(executed, *span) for span in spans)
            ]
        narrowed = mutant.operator.startswith("narrow")

        def order(row):
            return narrowed and "far" not in row[1], row[0]

        return sorted(line, key=order) + sorted(around, key=order)


def touches(executed, file, first, last):
    return any(name == file and first <= number <= last for name, number in executed)


def callers(mutant):
    """(file, first line, last line) of functions that name the one around a mutant, and so on."""
    texts = {file: (KERNELS / file).read_text() for file in FILES}
    spans = {}
    for file, text in texts.items():
        lines = text.splitlines()
        for f in ast.parse(text).body:
            if isinstance(f, ast.FunctionDef):
                place = file, f.lineno, f.end_lineno
                spans[place] = f.name, "\n".join(lines[f.lineno - 1 : f.end_lineno])
    own = next(p for p in spans if p[0] == mutant.file and p[1] <= mutant.line <= p[2])
    found = [own]
    for place in found:
        name = spans[place][0]
        abroad = f"{Path(place[0]).stem}.{name}"
        for other, (_, text) in spans.items():
            word = name if other[0] == place[0] else abroad
            if other not in found and re.search(rf"\b{re.escape(word)}\b", text):
                found.append(other)
    return found[1:]


def tried(mutant, tests, seconds):
    """A row of the record."""
    given, spent = [], 0
    rows = tests.of(mutant)
    for each, test in rows:
        if spent <= seconds:
            given.append(test)
            spent += each
    start = time.monotonic()
    row = {"key": mutant.key, "was": mutant.was.strip(), "now": mutant.now.strip()}
    row |= {"tests": len(given), "of": len(rows), "verdict": "not executed"}
    if given:
        try:
            row["verdict"], found = kernel_mutants.outcome(mutant.key, given, 120 + 5 * spent)
            row |= found or {}
        except subprocess.TimeoutExpired:
            row["verdict"] = "no end"
    return row | {"seconds": round(time.monotonic() - start, 1)}


def main():
    if sys.argv[1] == "lines":
        return record_lines(sys.argv[2])
    parser = argparse.ArgumentParser()
    parser.add_argument("lines")
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=65)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    tests, out, valid = Tests(options.lines), Path(options.out), 0
    texts = out.read_text().splitlines() if out.exists() else []
    known = {(row["key"], row["now"]): row for row in map(json.loads, texts)}
    mutants = kernel_mutants.drawn(options.seed)
    with ThreadPoolExecutor(WORKERS) as pool:
        while valid < options.count:
            some = [*itertools.islice(mutants, WORKERS)]
            for row in pool.map(lambda mutant: given(mutant, known, tests, options.seconds), some):
                if row is not known.get((row["key"], row["now"])):
                    with out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(valid, row["verdict"], row["key"], row.get("said", "")[-100:], flush=True)
                valid += row["verdict"] != "no kernel"
    return 0


def given(mutant, known, tests, seconds):
    """The row of a mutant that is known, unless there are tests that it has not been given."""
    row = known.get((mutant.key, mutant.now.strip()))
    if row and (row["verdict"] in ("killed", "no kernel") or row["tests"] == row["of"] > 0):
        return row
    return tried(mutant, tests, seconds)


if __name__ == "__main__":
    sys.exit(main())
