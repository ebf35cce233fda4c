"""What a user of xarray is told."""

import pytest


def test_arrays_of_xarray_are_named():
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    pytest.importorskip("dask.array", reason="dask is not installed")
    from implicit_conv.dask import gaussian_filter
    from implicit_conv.errors import DTypeError

    with pytest.raises(DTypeError, match=r"pass x\.data, or keep its dimensions as the page "):
        gaussian_filter(xarray.DataArray([[1.0, 2.0]]), 1.0)
