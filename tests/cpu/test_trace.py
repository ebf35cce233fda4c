"""The loads that the CPU engine executes are those of the plan, and they are im2col::w walks."""

from dataclasses import fields, replace

import numpy as np
import pytest

from implicit_conv import plan_conv2d
from implicit_conv.cpu.candidates.tiling import Tiling
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.winograd import Winograd
from implicit_conv.testing import Case, changed, plan_of, to_nchw

CASES = [
    Case(N=2, C=20, K=40, size=(9, 11), padding=((1, 1), (1, 1))),
    Case(N=3, C=5, K=3, groups=2, size=(19, 31), kernel=(3, 2), stride=(2, 3), dilation=(2, 1)),
    Case(N=2, C=16, K=70, size=(7, 7), kernel=(1, 1), layout="NHWC"),
    Case(N=1, C=3, K=8, size=(30, 32), kernel=(7, 7), stride=(2, 2), padding=((3, 3), (3, 3))),
    Case(N=2, C=1200, K=3, size=(5, 6), padding=((1, 0), (0, 1)), layout="NHWC"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_executed_loads_are_the_planned_ones(case):
    x, w = case.arrange(*case.inputs(0))
    plan = plan_conv2d(x.shape, w.shape, **case.options)
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())


VOLUME = Case(
    N=2,
    C=3,
    K=5,
    size=(9, 4, 6),
    kernel=(3, 3, 3),
    padding=((1, 1), (1, 1), (1, 0)),
    layout="NCDHW",
    weight_layout="KCTRS",
)


@pytest.mark.parametrize("method", [Gemm, Winograd])
@pytest.mark.parametrize(
    ("stride", "dilation", "overlap"),
    [(1, 1, True), (2, 1, True), (3, 1, False), (4, 1, False), (1, 2, False)],
)
def test_output_planes_of_a_tile_share_input_planes(method, stride, dilation, overlap):
    """Where their windows overlap without gaps, each input plane is loaded once."""
    case = replace(VOLUME, stride=(stride, 1, 1), dilation=(dilation, 1, 1))
    x, w = case.arrange(*case.inputs(0, integers=True))
    plan = plan_of(case)
    c = next(c for c in plan.candidates if type(c.method) is method)
    g = c.geometry._replace(tile_n=2, tile_p=c.geometry.P, tile_q=c.geometry.Q)
    made = {field.name: getattr(c, field.name) for field in fields(c)}
    plan = changed(plan, **made | {"tiling": Tiling(g, c.chunk)})
    loads = executed_loads(plan.engine, x, w)
    assert loads == sorted(plan.trace())
    depths, rows = range(case.output[0]), g.P + 2
    windows = [
        [z * stride + t * dilation for z in depths[first : first + 2] for t in range(3)]
        for first in depths[::2]
    ]
    buffered = sum(len(set(reads) if overlap else reads) for reads in windows)
    assert len([load for load in loads if load.operand == "x"]) == case.N * buffered * rows
    np.testing.assert_array_equal(to_nchw(plan(x, w), case.layout), case.reference(x, w))


@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 2)])
def test_pointwise_pixels_are_read_in_place_only_where_no_stride_leaves_gaps(stride):
    case = Case(N=2, C=32, K=32, size=(8, 9), kernel=(1, 1), stride=stride, layout="NHWC")
    x, w = case.arrange(*case.inputs(0))
    loads = executed_loads(plan_conv2d(x.shape, w.shape, **case.options).engine, x, w)
    copied = {load.buffer >= 0 for load in loads if load.operand == "x"}
    assert copied == {stride != (1, 1)}


def test_a_load_names_where_it_reads_and_what_it_moves():
    """3x3, stride 2, one pixel of padding: two phase buffers, as in the documented Example 1."""
    plan = plan_conv2d((1, 64, 6, 67), (16, 64, 3, 3), stride=2, padding=1)
    rows = [load for load in plan.trace() if load.operand == "x" and load.coords[1] == -1]
    assert [(load.w_offset, load.w_halo, load.rows) for load in rows] == [(0, 1, 35), (1, 0, 34)]
    assert {load.coords for load in rows} == {(0, -1, -1, 0)}
    assert [load.bytes for load in rows] == [35 * 64 * 4, 34 * 64 * 4]
