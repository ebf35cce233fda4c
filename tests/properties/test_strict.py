"""precision="strict": bits do not depend on batch, threads, tiles and the size of an image."""

from dataclasses import replace

import numpy as np
import pytest

import implicit_conv
from implicit_conv import clear_plan_cache, config, conv2d, plan_conv2d
from implicit_conv.cpu.candidates import tiling
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.cpu.methods.planar_depthwise import PlanarDepthwise
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


# (size, filter, axis, first output along it, end) of a part: of one pixel along an axis that a view
# may move, or of planes that fill less than half of the lanes of a vector.
PARTS = {
    "column": ((30, 9), (4, 1), 1, 5, 6),
    "row": ((9, 30), (1, 4), 0, 5, 6),
    "volume of a column": ((7, 12, 6), (2, 4, 1), 2, 3, 4),
    "volume of a row": ((12, 6, 40), (4, 1, 3), 1, 3, 4),
    "narrow": ((12, 40), (3, 3), 1, 4, 7),
}


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize("depthwise", [False, True], ids=["full", "depthwise"])
@pytest.mark.parametrize("channels", [4, 40, 200])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_an_image_have_the_bits_of_the_whole(name, step, channels, depthwise, layout):
    size, kernel, axis, first, end = PARTS[name]
    rank = len(size)
    rng = np.random.default_rng(0)
    groups, filters = (channels, channels) if depthwise else (1, 3)
    x = rng.standard_normal((1, channels, *size)).astype(np.float32)
    w = rng.standard_normal((filters, channels // groups, *kernel)).astype(np.float32)
    stride = [step] * rank
    stride[axis] = 1
    part = x.take(range(first, end + kernel[axis] - 1), 2 + axis)
    convolve = getattr(implicit_conv, f"conv{rank}d")
    space = "DHW"[3 - rank :]
    options = {"layout": f"N{space}C"} if layout == "channels last" else {}

    def compute(x):
        x = np.moveaxis(x, 1, -1).copy() if options else x
        y = convolve(x, w, stride=tuple(stride), groups=groups, precision="strict", **options)
        return np.moveaxis(y, -1, 1) if options else y

    np.testing.assert_array_equal(compute(part), compute(x).take(range(first, end), 2 + axis))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [
        ((7, 7), (3, 3), 1, 1),
        ((20, 21), (5, 4), 2, 1),
        ((20, 30), (8, 5), 1, (1, 6)),
        ((20, 30), (1, 7), (3, 1), 1),
        ((5, 20), (2, 3), 1, 2),
    ],
)
def test_planes_and_channels_have_the_same_bits(size, kernel, stride, dilation):
    """Which of them is faster depends on the width of the image."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 20, *size)).astype(np.float32)
    w = rng.standard_normal((20, 1, *kernel)).astype(np.float32)
    options = {"stride": stride, "dilation": dilation, "padding": 2, "groups": 20}
    plan = plan_conv2d(x.shape, w.shape, dtype="float32", precision="strict", **options)
    candidates = plan.engine.choice.candidates
    assert {type(c.method) for c in candidates} == {PlanarDepthwise, Depthwise}
    results = []
    for candidate in candidates:
        one = replace(plan.engine, choice=replace(plan.engine.choice, candidates=(candidate,)))
        results.append(replace(plan, engine=one)(x, w))
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_a_column_of_few_channels_is_a_row():
    """Its sums have one order as a row and as a column; columns took 12 times as long."""
    plan = plan_conv2d((1, 1, 16000, 1), (16, 1, 9, 1), dtype="float32", precision="strict")
    assert plan.engine.best.problem.size == (1, 1, 16000)
