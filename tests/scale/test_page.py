"""The examples of docs/scale.md."""

import doctest
from pathlib import Path

import pytest


def test_examples_of_the_page():
    for name in ("dask.array", "scipy.ndimage", "xarray"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")
    page = Path(__file__).parents[2] / "docs" / "scale.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 10
    assert not failed
