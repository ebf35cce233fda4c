"""First layers: the columns of a filter row as channels of one load."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import ptx
from implicit_conv.gpu.cuda.arch import KNOWN, gpu_arch
from implicit_conv.gpu.cuda.arrays import Operand
from implicit_conv.gpu.plan.candidate import fold_rule, gpu_geometry
from implicit_conv.gpu.plan.explain import explain
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.trace import trace
from implicit_conv.gpu.run.engine import GpuEngine
from implicit_conv.gpu.run.launch import fold_misfit
from implicit_conv.operators.plan import Plan
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import loaded, problem_of, stored, with_epilogue
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
LAYOUTS = {"layout": "NHWC", "weight_layout": "KRSC"}
STEM = Case(
    N=1, C=3, K=64, size=(20, 22), kernel=(7, 7), stride=(2, 2), padding=((3, 3), (3, 3)), **LAYOUTS
)


def folded(case, dtype, arch):
    """The best kernel with folded loads: others may be faster."""
    able = (c for c in choose(problem_of(case, dtype), arch).candidates if c.variant.folded)
    best = min(able, key=lambda candidate: candidate.cycles)
    return choose(problem_of(case, dtype), arch, variant=best.variant)


def test_the_stem_is_folded():
    made = folded(STEM, "bfloat16", gpu_arch("sm_90"))
    g = made.geometry
    assert made.variant.folded and (g.C, g.S, g.tile_c) == (21, 1, 32)
    assert "folded element im2col" in explain(made)
    loads = [load for load in trace(made) if load.operand == "x"]
    assert len(loads) == made.tiles[1] * 7 and loads[0].coords == (0, -3, -3, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"groups": 2}, "in 2 groups"),
        ({"dilation": (1, 2)}, "a dilation of 2 leaves gaps"),
        ({"kernel": (3, 1)}, "no columns to fold"),
        ({"layout": "NCHW"}, "need channels-last x and w"),
    ],
)
def test_what_is_not_folded(change, reason):
    case = Case(**{**STEM.__dict__, **change})
    problem = problem_of(case, "float16")
    assert reason in fold_rule(problem)
    assert not choose(problem, gpu_arch("sm_90")).variant.folded


def test_whole_channels_are_copied_instead():
    case = replace(STEM, C=8)
    assert choose(problem_of(case, "float16"), gpu_arch("sm_90")).variant.producer == "tma"


def test_a_folded_load_reads_what_the_taps_read():
    """Element c of the load at column w, for every output column and filter column."""
    for case in (STEM, replace(STEM, C=5, kernel=(2, 3), stride=(1, 3), padding=((0, 0), (1, 2)))):
        problem = problem_of(case, "float16")
        v = folded(case, "float16", gpu_arch("sm_90")).variant
        g = gpu_geometry(problem, v)
        for q in range(g.Q):
            for s in range(case.kernel[1]):
                column = q * case.stride[1] + s - case.padding[1][0]
                for c in range(case.C):
                    at = q * g.stride_w - g.pad_w + s * case.C + c
                    assert (0 <= column < case.size[1]) == (0 <= at < g.W)
                    assert at == column * case.C + c
    assert g.C == case.C * case.kernel[1]


def test_gaps_in_a_row_are_refused():
    shape = (1, 20, 22, 3)
    whole = Operand(4096, shape, (2640, 132, 6, 2), "float16", None, None)
    padded = whole._replace(strides=(3520, 176, 8, 2))
    assert fold_misfit(whole, 2) == ""
    assert "leave gaps in a row" in fold_misfit(padded, 2)


@pytest.mark.parametrize(
    ("channels", "address", "strides", "loader"),
    [
        (6, 4100, None, "folded 4-byte cp.async"),
        (6, 4098, None, "folded element"),
        (6, 4100, 7, "element"),
        (6, 4100, 8, "4-byte cp.async"),
        (6, 4096, 8, "4-byte cp.async"),
        (5, 4096, 8, "element"),
        (4, 4096, 12, "8-byte cp.async"),
    ],
)
def test_gaps_in_a_row_and_odd_addresses_take_other_kernels(
    recorder, device_array, channels, address, strides, loader
):
    """x is a view of arrays with more channels, and so is w where x is aligned to 16 bytes."""
    case = replace(STEM, C=channels)
    made = folded(case, "float16", gpu_arch("sm_90"))
    shape, filters = (1, 20, 22, channels), (64, 7, 7, channels)
    pitch = channels if strides is None else strides
    steps = (20 * 22 * pitch * 2, 22 * pitch * 2, pitch * 2, 2)
    taps = pitch if strides and address % 16 == 0 else channels
    x = device_array(address, shape, np.float16, steps)
    w = device_array(1 << 16, filters, np.float16, (49 * taps * 2, 7 * taps * 2, taps * 2, 2))
    Plan(GpuEngine(made))(x, w, out=device_array(1 << 24, made.problem.output_shape))
    assert recorder.variants[-1].name.startswith(f"{loader} im2col + mma float16")


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout")
@pytest.mark.parametrize(
    ("dtype", "case"),
    [
        ("bfloat16", STEM),
        ("float32", replace(STEM, C=1, K=40, kernel=(3, 5), stride=(1, 1))),
    ],
)
def test_stem_equals_oracle(dtype, case):
    plan = folded(case, dtype, KNOWN[80])
    plan = with_epilogue(plan, True, False)
    x, w = case.inputs(0, integers=True)
    bias = np.arange(case.K, dtype=np.float32) % 9
    arrays = (stored(array, dtype) for array in (*case.arrange(x, w), bias))
    kernel = ptx.parse(ptx_of(plan.variant, plan.arch.cc))
    y = to_nchw(loaded(interpret(plan, kernel, *arrays, blocks=2), dtype), "NHWC")
    expected = (case.reference(x, w) + bias[:, None, None]).astype(np.float32)
    np.testing.assert_array_equal(y, loaded(stored(expected, dtype), dtype))
