"""scipy's and scikit-image's own tests, from their wheels, with our filters in scipy's place."""

import importlib.util
import os
import re

import pytest
from processes import ROOT, run_python

pytest.importorskip("scipy.ndimage", reason="pip install '.[ndimage]'")

MORPHOLOGY = "scipy.ndimage.tests.test_morphology"
SCIPY, SCIKIT_IMAGE = "scipy.ndimage.tests.test_filters", "skimage.filters.tests"


def found(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "way", "passed", "fewest"),  # of scipy 1.11 to 1.17, and scikit-image 0.25
    [
        (SCIPY, "patch", 400, 2000),
        (SCIPY, "names", 400, 2000),
        (MORPHOLOGY, "patch", 100, 1),
        (MORPHOLOGY, "names", 100, 1),
        (SCIKIT_IMAGE, "patch", 400, 1000),
    ],
)
def test_their_own_tests_pass(tests, way, passed, fewest, tmp_path):
    """In a folder without our settings of pytest, which their tests do not obey."""
    if not found(tests):
        pytest.skip(f"{tests.partition('.')[0]} is not installed, or its wheel has no tests")
    done = run_python(
        *("-m", "pytest", "-p", "scipy_in_place", "-p", "no:cacheprovider", "-q", "--pyargs"),
        tests,
        folder=tmp_path,
        SCIPY_FILTERS=way,
        PYTHONPATH=os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support"))),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > passed
    assert int(re.search(r"'steps': (\d+)", done.stdout)[1]) >= fewest
