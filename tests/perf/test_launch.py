"""``python -m perf.launch`` reports every row; what it reports is not compared."""

import re

import pytest
from processes import run_python

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings", exc_type=ImportError)


def test_host_time_of_a_call_is_reported():
    done = run_python("-m", "perf.launch", "2")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.endswith(" us")]
    assert len(rows) in (5, 11)
    assert all(re.search(r"^(interface|torch) +[a-z2, ]+ +\d+\.\d us$", row) for row in rows)
