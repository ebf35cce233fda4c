"""scipy's own tests of its convolutions, from its wheel, with ours in their place."""

import importlib.util
import os
import re

import pytest
from processes import ROOT, run_python

pytest.importorskip("scipy.signal", reason="pip install '.[ndimage]'")

TESTS = ("scipy.signal.tests.test_signaltools", "scipy.signal.tests.test_upfirdn")


@pytest.mark.slow
def test_scipys_own_tests_pass(tmp_path):
    """In a folder without our settings of pytest, which its tests do not obey."""
    if importlib.util.find_spec("scipy.signal.tests") is None:
        pytest.skip("this scipy comes without its tests")
    done = run_python(
        *("-m", "pytest", "-p", "scipy_signal_in_place", "-p", "no:cacheprovider", "-q"),
        *("--pyargs", *TESTS),
        folder=tmp_path,
        PYTHONPATH=os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support"))),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 1000
    computed = dict(re.findall(r"'(\w+)': (\d+)", done.stdout))
    assert int(computed["conv1d"]) > 100
    assert int(computed["conv2d"]) > 10
