"""``python -m perf ndimage``: every row runs, and a wrong result is not timed."""

import numpy as np
import pytest

pytest.importorskip("scipy.ndimage", reason="pip install '.[ndimage]'")

from perf import ndimage


def small(row):
    return row._replace(shape=tuple(max(3, size // 40) if size > 3 else 3 for size in row.shape))


@pytest.mark.parametrize("row", ndimage.rows(), ids=lambda row: f"{row.name} {row.dtype}")
def test_every_contender_has_the_image(row):
    row = small(row)
    functions = ndimage.contenders(row, ndimage.image(row), None)
    assert {"scipy", "strict", "standard"} <= set(functions)
    assert all(run().shape == row.shape for run in functions.values())


def test_a_line_has_ratios_to_scipy():
    text = ndimage.line(small(ndimage.rows()[1]), 1, None)
    assert text.startswith("correlate 5x5, 27x48 float32: scipy ")
    assert text.count("x)") == 2


def test_a_wrong_result_is_an_error():
    row = small(ndimage.rows()[1])

    def wrong(module, x, **options):
        return row.run(module, x) + np.float32("precision" in options)

    with pytest.raises(ArithmeticError, match="strict is off by"):
        ndimage.contenders(row._replace(run=wrong), ndimage.image(row), None)
