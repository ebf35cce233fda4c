"""``python -m perf ndimage``: every row runs, and a wrong result is not timed."""

import numpy as np
import pytest

pytest.importorskip("scipy.ndimage", reason="pip install '.[ndimage]'")

from perf import ndimage

TIMES = {"scipy": 0.008, "strict": 0.004, "standard": 0.002, "OpenCV": 0.001}


def small(row):
    return row._replace(shape=tuple(max(3, size // 40) if size > 3 else 3 for size in row.shape))


@pytest.mark.parametrize(
    "row", [*ndimage.rows(), *ndimage.small_rows()], ids=lambda row: f"{row.name} {row.dtype}"
)
def test_every_contender_has_the_image(row):
    row = small(row)
    functions = ndimage.contenders(row, {})
    assert {"scipy", *row.precisions} == set(functions)
    assert all(run().shape == row.shape for run in functions.values())


def test_the_rivals_get_the_same_image():
    row = small(ndimage.rows()[0])
    functions = ndimage.contenders(row, {"OpenCV": "module"})
    assert functions["OpenCV"].func is row.opencv
    assert functions["OpenCV"].args[0] == "module"
    np.testing.assert_array_equal(functions["OpenCV"].args[1], ndimage.image(row))


def test_the_table_has_ratios_and_their_means():
    row = ndimage.rows()[0]
    samples = {name: np.full(3, n) for name, n in TIMES.items()}
    lines = ndimage.table([(row, ndimage.cells(samples))] * 2)
    assert lines[2] == "| gaussian, sigma 1 | 2000 x 2000, float32 | 8 | 2x | 4x | 1 | 0.5x |  |"
    assert lines[-3:] == [
        "- filters that sum, strict: geometric mean of 2 2.00, least 2.00",
        "- filters that sum, standard: geometric mean of 2 4.00, least 4.00",
        "- filters that sum, OpenCV/ours: geometric mean of 2 0.50, least 0.50",
    ]


def test_a_wrong_result_is_an_error():
    row = small(ndimage.rows()[0])

    def wrong(module, x, **options):
        return row.run(module, x) + np.float32("precision" in options)

    with pytest.raises(ArithmeticError, match="strict is off: 1"):
        ndimage.contenders(row._replace(run=wrong), {})
