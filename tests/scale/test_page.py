"""The examples of docs/how-to/scale.md."""

import doctest
from pathlib import Path

import pytest


def test_examples_of_the_page():
    for name in ("dask.array", "scipy.ndimage", "xarray"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")
    page = Path(__file__).parents[2] / "docs/how-to/scale.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 10
    assert not failed


def test_arrays_of_xarray_are_named():
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    pytest.importorskip("dask.array", reason="dask is not installed")
    from implicit_conv.dask import gaussian_filter
    from implicit_conv.errors import DTypeError

    with pytest.raises(DTypeError, match=r"pass x.data, or use it as docs/how-to/scale.md"):
        gaussian_filter(xarray.DataArray([[1.0, 2.0]]), 1.0)
