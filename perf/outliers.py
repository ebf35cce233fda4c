"""Results beside an outlier, which tell whose error lies within the bound of precision "standard".

That bound is in proportion to the pixels in the window of each output. Winograd with large tiles
multiplies pixels outside the window, too, and subtracts them again. On normally distributed data it
errs little; beside a pixel that is far larger than others, what is left of it drowns the result.
"""

from __future__ import annotations

from implicit_conv.testing import Array, Case, error_units
from implicit_conv.testing.check import WINOGRAD_UNITS, window_scale
from implicit_conv.tools.rivals import oracle

TIMES = 1e6  # the outlier, compared with other pixels
# Units of eps * window_scale: what is promised for Winograd whose outputs keep their own windows.
LIMIT_UNITS = WINOGRAD_UNITS[1]


def has_outlier(case: Case) -> bool:
    """Whether results of a case are compared beside an outlier: those of images of float32."""
    return len(case.size) == 2 and case.dtype == "float32"


def inputs(case: Case) -> tuple[Array, Array]:
    """(x, w) with axes N, C, H, W and K, C, R, S: `case.inputs(0)`, but for the pixel in the middle
    of each image.
    """
    x, w = case.inputs(0)
    row, column = (extent // 2 for extent in case.size)
    x[..., row, column] *= TIMES
    return x, w


def error_of(case: Case, y: Array) -> float:
    """The largest error of `y` (N, K, P, Q) for `inputs`, in units of eps * window_scale."""
    x, w = inputs(case)
    return error_units(y, oracle(case, x, w), window_scale(case, x, w), case.dtype)
