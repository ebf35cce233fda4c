"""Twenty of the recorded mutants of GPU kernels, each with the test that noticed it.

tests/data/kernel_mutants.jsonl is the record of `mutation_run`, whose figures are in docs/trust.
"""

import collections
import importlib.util
import itertools
import json
import random

import pytest
from kernel_mutants import OPERATORS, ROOT, mutants, outcome

from perf.bringup.sass import tool

COUNT, SECONDS = 20, 10.0
ROWS = [
    json.loads(line)
    for line in (ROOT / "tests" / "data" / "kernel_mutants.jsonl").read_text().splitlines()
]


def current():
    """The rows whose line is still in its file, by the key that the mutant has now."""
    keys = collections.defaultdict(list)
    for each in itertools.chain(*mutants().values()):
        keys[each.file, each.was.strip(), each.now.strip()].append(each.key)
    found = {}
    for row in ROWS:
        same = keys[row["key"].partition(":")[0], row["was"], row["now"]]
        if row["key"] in same:
            found[row["key"]] = row
        elif len(same) == 1:  # the line has moved
            found[same[0]] = row
    return found


def some():
    quick = {
        key: row
        for key, row in current().items()
        if row["verdict"] == "killed" and row["seconds"] < SECONDS
    }
    return random.Random(0).sample(sorted(quick.items()), COUNT)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None or tool("nvdisasm") is None,
    reason="needs pip install '.[cu13,assemble]' in a checkout",
)
@pytest.mark.parametrize(("key", "row"), some(), ids=[key for key, _ in some()])
def test_a_mutant_is_noticed(key, row):
    verdict, found = outcome(key, [row["test"]], 300)
    assert verdict == "killed", (row["now"], found)


def test_the_record_is_of_these_sources():
    """Else draw mutants again, as mutation_run.py says, and write what survives into docs/trust."""
    assert len(current()) > 0.8 * len(ROWS)


def test_operators_change_what_they_say():
    found = mutants()
    assert all(found[operator.__name__] for operator in OPERATORS)
    for each in (each for some in found.values() for each in some):
        assert each.now != each.was and "\n" not in each.now
