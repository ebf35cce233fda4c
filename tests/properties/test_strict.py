"""precision="strict": the same bits for any batch size, thread count and tiling."""

import numpy as np
import pytest

from implicit_conv import clear_plan_cache, config, conv2d
from implicit_conv.cpu import tiling
from implicit_conv.testing import Case

CASES = [
    Case(N=6, C=20, K=40, size=(14, 15), padding=((1, 1), (1, 1))),
    Case(N=6, C=70, K=33, size=(9, 30), stride=(2, 2), padding=((1, 1), (1, 1)), layout="NHWC"),
    Case(N=6, C=64, K=96, size=(9, 7), kernel=(1, 1), layout="NHWC"),
    Case(N=6, C=700, K=16, size=(7, 7), padding=((1, 1), (1, 1)), layout="NHWC"),
    Case(N=6, groups=2, size=(5, 5), stride=(2, 2), dilation=(3, 3), padding=((3, 3), (3, 3))),
    Case(N=6, groups=40, size=(9, 9), stride=(2, 2), dilation=(3, 3), padding=((3, 3), (3, 3))),
    Case(N=6, C=71, K=33, size=(9, 30), stride=(2, 2), padding=((1, 1), (1, 1)), dtype="bfloat16"),
    Case(N=6, C=700, K=16, size=(7, 7), padding=((1, 1), (1, 1)), layout="NHWC", dtype="float16"),
    Case(N=6, C=1400, K=40, size=(7, 7), padding=((1, 1), (1, 1)), layout="NHWC", dtype="bfloat16"),
    Case(N=6, C=3, K=8, groups=4, size=(20, 20), kernel=(5, 5), dtype="float64"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_do_not_depend_on_batch_threads_or_tiles(case, monkeypatch):
    x, w = case.arrange(*case.inputs(0))
    bias = np.linspace(-1, 1, case.K * case.groups, dtype=np.float32)

    def compute(x, threads):
        with config(num_threads=threads):
            return conv2d(x, w, bias, **case.options, precision="strict")

    whole = compute(x, threads=1)
    for threads in (2, 3):
        np.testing.assert_array_equal(compute(x, threads), whole)
    for n in range(case.N):
        np.testing.assert_array_equal(compute(x[n : n + 1], threads=2), whole[n : n + 1])
    for pixels in (1, 17, 5000):
        monkeypatch.setattr(tiling, "TILE_PIXELS", (pixels,))
        clear_plan_cache()
        np.testing.assert_array_equal(compute(x, threads=1), whole)
    clear_plan_cache()
