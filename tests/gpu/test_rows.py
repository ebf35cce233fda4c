"""First layers by rows: when they are chosen, which arrays they take, and what a window may see."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import ptx
from implicit_conv.gpu.cuda.arch import KNOWN, gpu_arch
from implicit_conv.gpu.cuda.arrays import Operand
from implicit_conv.gpu.plan.candidate import shared_room
from implicit_conv.gpu.plan.explain import explain
from implicit_conv.gpu.plan.layout import shared_layout
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.rows import few_channels_rule, rows_variant, rows_variants
from implicit_conv.gpu.plan.trace import trace
from implicit_conv.gpu.run.call import adapted
from implicit_conv.gpu.run.launch import Arrays
from implicit_conv.kernels.gpu.variant import Rows
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import FIRST_LAYERS, loaded, problem_of, stored
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
STEM = FIRST_LAYERS[0]


@pytest.mark.parametrize("device", [f"sm_{number}" for number in KNOWN])
@pytest.mark.parametrize("case", FIRST_LAYERS)
def test_first_layers_are_computed_by_rows(case, device):
    """They were 5 times as long by folded columns, or a tap at a time, on an H200."""
    made = choose(problem_of(case, "bfloat16"), gpu_arch(device))
    others = [c.cycles for c in made.candidates if not c.variant.band and c.estimate]
    assert made.variant.band and made.estimate.cycles < min(others)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"C": 8}, "a pixel has 8 channels in 1 groups"),
        ({"groups": 2}, "a pixel has 6 channels in 2 groups"),
        ({"dilation": (1, 2)}, "are no runs of a row"),
        ({"kernel": (3, 17)}, "3 x 17 taps"),
        ({"C": 0}, "a pixel has 0 channels"),
    ],
)
def test_what_is_not_staged(change, reason):
    problem = problem_of(replace(STEM, **change), "float16")
    assert reason in few_channels_rule(problem)
    assert not list(rows_variants(problem))


def test_float32_is_summed_by_fma():
    assert choose(problem_of(STEM, "float32"), gpu_arch("sm_90")).variant.consumer == "fma"


def packed_operand(shape, dtype="bfloat16", address=4096):
    strides = tuple(2 * int(np.prod(shape[axis + 1 :])) for axis in range(4))
    return Operand(address, shape, strides, dtype, None, None)


@pytest.mark.parametrize(
    ("order", "offset", "producer"),
    [
        ((0, 1, 2, 3), 0, "vectors"),
        ((0, 2, 3, 1), 0, "planes"),
        ((0, 1, 2, 3), 2, "elements"),
        ((0, 2, 3, 1), 4, "elements"),
        ((0, 2, 1, 3), 0, "elements"),
    ],
)
def test_x_may_have_any_order(order, offset, producer):
    """`order` is that of N, H, W, C in memory, `offset` moves the address."""
    made = choose(problem_of(STEM, "bfloat16"), gpu_arch("sm_90"))
    view = made.view
    stored_shape = [view.input_shape[axis] for axis in np.argsort(order)]
    memory = packed_operand(tuple(stored_shape), address=4096 + offset)
    x = memory.view(tuple(order))
    assert x.shape == view.input_shape
    arrays = Arrays(x, packed_operand(view.weight_shape), packed_operand(view.output_shape))
    assert adapted(made, arrays).variant.producer == producer


@pytest.mark.parametrize("case", [STEM, *(replace(STEM, C=c, K=256) for c in (8, 64, 256))])
def test_stores_of_any_order_have_room_in_shared_memory(case):
    """Planned for whole lines, a kernel that stores elements has larger staging tiles."""
    made = choose(problem_of(case, "bfloat16"), gpu_arch("sm_90"))
    view, (n, p, q, k) = made.view, made.view.output_shape
    x, w = packed_operand(view.input_shape), packed_operand(view.weight_shape)
    y = packed_operand((n, k, p, q)).view((0, 2, 3, 1))
    found = adapted(made, Arrays(x, w, y))
    v, room = found.variant, shared_room(found.arch, found.variant)
    assert made.variant.packed and not v.packed
    assert v.staging_bytes > made.variant.staging_bytes
    assert found.layout == shared_layout(v, found.geometry, room)


def test_trace_and_explanation():
    made = choose(problem_of(replace(STEM, N=2), "bfloat16"), gpu_arch("sm_90"))
    band, (_, tiles, _) = made.variant.band, made.tiles
    loads = [load for load in trace(made) if load.operand == "x"]
    first, second = loads[:2]
    assert len(loads) == tiles
    assert (first.coords, first.rows) == ((0, -3, -3, 0), band.staged)
    assert (second.coords[1], second.rows) == (-3 + band.staged, band.fresh)
    assert "rows vectors bfloat16" in explain(made)
    assert f"{band.fresh} rows of x a tile" in explain(made)


def run(case, v, x, w, blocks=2):
    """(y, expected) of float64 values, NaN and infinities included."""
    plan = choose(problem_of(case, v.dtype), KNOWN[80], variant=v)
    given = (stored(array, v.dtype) for array in case.arrange(x, w))
    with np.errstate(invalid="ignore"):
        y = interpret(plan, ptx.parse(ptx_of(plan.variant, KNOWN[80].cc)), *given, blocks=blocks)
        expected = loaded(stored(case.reference(x, w).astype(np.float32), v.dtype), v.dtype)
    return to_nchw(loaded(y, v.dtype), case.layout), expected


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout")
@pytest.mark.parametrize(
    ("kernel", "stride"), [((3, 3), (2, 2)), ((1, 7), (1, 2)), ((2, 5), (1, 1)), ((3, 4), (2, 3))]
)
def test_infinities_stay_in_their_windows(kernel, stride):
    """A window's last step has pixels of no tap, whose zeros in the filter would make NaN."""
    layouts = {"layout": "NHWC", "weight_layout": "KRSC"}
    case = Case(
        1, 3, 32, size=(6, 44), kernel=kernel, stride=stride, padding=((1, 1),) * 2, **layouts
    )
    v = rows_variant("vectors", "bfloat16", Rows(2, 3, kernel, stride), 2, 32)
    x, w = case.inputs(0, integers=True)
    w[w == 0] = 1
    x[0, 1, 2, 8], x[0, 0, 3, 21], x[0, 2, 5, 43] = np.inf, np.nan, -np.inf
    y, expected = run(case, replace(v, packed=True, plain=True), x, w)
    assert np.isfinite(expected).any() and np.isnan(expected).any()
    np.testing.assert_array_equal(y, expected)
