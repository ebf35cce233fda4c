"""scipy's own tests of its filters, from its wheel, with our filters in the place of scipy's."""

import importlib.util
import os
import re

import pytest
from processes import ROOT, run_python

pytest.importorskip("scipy.ndimage", reason="pip install '.[images]'")

FEWEST = {"correlate": 1000, "correlate1d": 1000, "uniform_filter1d": 100}  # scipy 1.11 to 1.17


@pytest.mark.slow
@pytest.mark.parametrize("way", ["patch", "names"])
def test_scipys_own_tests_pass(way, tmp_path):
    """In a folder without our settings of pytest, which scipy's tests do not obey."""
    tests = "scipy.ndimage.tests.test_filters"
    if importlib.util.find_spec(tests) is None:
        pytest.skip("this scipy comes without its tests")
    done = run_python(
        *(
            "-m",
            "pytest",
            "-p",
            "scipy_in_place",
            "-p",
            "no:cacheprovider",
            "-q",
            "--pyargs",
            tests,
        ),
        folder=tmp_path,
        SCIPY_FILTERS=way,
        PYTHONPATH=os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support"))),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 400
    computed = dict(re.findall(r"'(\w+)': (\d+)", done.stdout))
    assert all(int(computed[name]) >= fewest for name, fewest in FEWEST.items()), computed
