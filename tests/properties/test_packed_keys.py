"""Packed filters given to other plans: one key means one order, and any other key is refused.

`Method.packed` gives the key. If it lacked an entry, a plan would read a filter in an order that is
not its own, and the result would be wrong without an error.
"""

import math
from dataclasses import fields, replace

import cost_tables
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import examples
from ways import OTHER_BITS

from implicit_conv import (
    ShapeError,
    config,
    plan_conv2d,
    plan_conv2d_input_grad,
    plan_conv_transpose2d,
)
from implicit_conv.cpu.candidates.tiling import Tiling
from implicit_conv.cpu.engines.fold import Fold
from implicit_conv.cpu.machine.arch import REGISTER_PIXELS, cpu_arch
from implicit_conv.cpu.methods import gemm_tilings
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.cpu.methods.few_outputs import FewOutputs
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.planar_depthwise import PlanarDepthwise
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.cpu.methods.small_groups import SmallGroups
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.cpu.methods.winograd import LargeWinograd, Winograd
from implicit_conv.cpu.run.packed import PackedFilter
from implicit_conv.problem.phases import phases_of
from implicit_conv.process.cache import clear
from implicit_conv.testing import Case, changed, plan_of, to_nchw

SAME = ((1, 1), (1, 1))
DENSE = Case(N=2, C=20, K=40, size=(9, 20), padding=SAME)
POINTWISE = replace(DENSE, size=(8, 16), kernel=(1, 1), padding=((0, 0), (0, 0)))
DEPTHWISE = Case(N=2, groups=128, size=(9, 20), padding=SAME)
GROUPED = Case(N=2, C=4, K=4, groups=24, size=(9, 20), padding=SAME)
WINDOW = Case(N=2, C=5, K=4, size=(3, 4), kernel=(3, 4))
VOLUMES = [  # whose filters have two planes, and three
    Case(
        C=20,
        K=40,
        size=(4, 9, 20),
        kernel=(planes, 3, 3),
        stride=(1, 1, 1),
        dilation=(1, 1, 1),
        padding=((0, 0), *SAME),
        layout="NCDHW",
        weight_layout="KCTRS",
    )
    for planes in (2, 3)
]
FEW = 90  # elements of a channel block that cut the channels of DENSE in two


def plans_by(method, case, *, bits=None, bfloat16="widen", int8="widen", block=None, elements=None):
    """Plans of a case, of one candidate each: all of one method, or of any method for None.

    Vectors have `bits` bits, channel blocks at most `elements` elements. Depthwise methods get
    blocks of `block` filters.
    """
    arch = replace(cpu_arch(1), bfloat16=bfloat16, int8=int8)
    if bits is not None:
        arch = replace(arch, vector_bits=bits, tile_pixels=REGISTER_PIXELS[bits, 16])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm_tilings, "BLOCK_ELEMENTS", elements or gemm_tilings.BLOCK_ELEMENTS)
        plan = plan_of(case, arch, precision="fast")
        kinds = (Winograd, LargeWinograd) if method is Winograd else (method,)
        found = [c for c in plan.candidates if method is None or type(c.method) in kinds]
        found.sort(key=lambda c: getattr(c.method, "m", 0))  # F2, F4, F6
    if block is not None:
        blocks = {"tile_c": block // case.K * case.C, "tile_k": block}
        found = [replace(c, tiling=Tiling(c.geometry._replace(**blocks), c.chunk)) for c in found]
    return [changed(plan, **{f.name: getattr(c, f.name) for f in fields(c)}) for c in found]


def key_of(plan):
    return plan.engine.best_packed.packed.key


def is_refused(plan, case, packed):
    """Whether the plan of `case` refuses a packed filter, before it reads it."""
    x, _ = case.arrange(*case.inputs(0))
    try:
        plan.engine.filters(packed)
    except ShapeError as error:
        assert "packed in another order" in str(error)
        with pytest.raises(ShapeError, match="packed in another order"):
            plan(x, packed)
        return True
    return False


def pair(name, method, first, second, one=None, other=None, which=(0, 0)):
    """Two plans of a method, each with its case."""
    sides = [
        (plans_by(method, case, **(options or {}))[number], case)
        for case, options, number in ((first, one, which[0]), (second, other, which[1]))
    ]
    return pytest.param(*sides, id=f"{method.__name__} {name}")


def kernels(case):
    """The case with filters of one column, and of one row."""
    return [replace(case, kernel=kernel) for kernel in ((3, 1), (1, 3))]


def one_entry_apart():
    """Pairs of plans whose keys differ in a single entry."""
    half = {"dtype": "bfloat16"}
    dense, tall, wide = replace(DENSE, **half), *kernels(DENSE)
    few, paired, squared = {"elements": FEW}, {"bfloat16": "pairs"}, {"bfloat16": "matrices"}
    yield pair("pairs", Gemm, dense, dense, few, paired)
    yield pair("matrices", Gemm, dense, dense, paired, squared)
    yield pair("channels", Gemm, replace(dense, C=19), dense, paired, paired)
    yield pair("kernel", Gemm, tall, wide)
    yield pair("dtype", Gemm, DENSE, dense)
    yield pair("channel blocks", Gemm, DENSE, DENSE, {}, few)
    yield pair("phases", Gemm, wide, replace(wide, stride=(1, 2)))
    bytes_, quads = replace(DENSE, dtype="int8"), {"int8": "quads"}
    mixed = replace(bytes_, dtype="uint8", w_dtype="int8")
    yield pair("channels of a word", Gemm, bytes_, bytes_, {"elements": FEW // 2}, quads)
    yield pair("dtype of integers", Gemm, bytes_, mixed, quads, quads)  # one has heads
    yield pair("dtype of w", Gemm, replace(mixed, w_dtype="uint8"), mixed, quads, quads)
    blocks = [{"block": size} for size in (32, 64)]
    for method, case in (Depthwise, DEPTHWISE), (SmallGroups, GROUPED):
        one, other = replace(case, dtype="uint8"), replace(case, dtype="uint8", w_dtype="int8")
        yield pair("dtype of w", method, one, other)
    for method, case in (
        (PlanarDepthwise, DEPTHWISE),
        (Depthwise, DEPTHWISE),
        (SmallGroups, GROUPED),
    ):
        yield pair("kernel", method, *kernels(case), *blocks[:1] * 2)
        yield pair("dtype", method, case, replace(case, **half), *blocks[:1] * 2)
        more = replace(case, groups=case.groups + 8)
        yield pair("groups", method, case, more, *blocks[:1] * 2)
    wider = replace(GROUPED, C=8, K=8)
    yield pair("size of groups", SmallGroups, GROUPED, wider, *blocks[:1] * 2)
    strided = replace(DENSE, stride=(2, 2))
    yield pair("m", Winograd, DENSE, DENSE, which=(0, 1))
    yield pair("m", Winograd, DENSE, DENSE, which=(1, 2))
    yield pair("stride", Winograd, DENSE, strided)
    yield pair("planes", Winograd, *VOLUMES)
    tall, wide = (replace(DENSE, kernel=kernel) for kernel in ((3, 2), (2, 3)))
    yield pair("kernel", Winograd, tall, wide)
    yield pair("filters", Winograd, DENSE, replace(DENSE, K=41))
    yield pair("channels", Winograd, DENSE, replace(DENSE, C=21))
    halves = replace(DENSE, C=16, K=32, groups=2)
    yield pair("groups", Winograd, replace(halves, C=32, K=64, groups=1), halves)
    yield pair("dtype", Winograd, DENSE, dense)
    last = replace(WINDOW, layout="NHWC", weight_layout="KRSC", size=(1, 5), kernel=(1, 5), C=3)
    yield pair("layout", FewOutputs, replace(WINDOW, C=1, size=(5, 3), kernel=(5, 3)), last)
    for method, case in (PlanarGemm, DENSE), (TransposedGemm, POINTWISE), (FewOutputs, WINDOW):
        double = replace(case, dtype="float64")
        yield pair("shape", method, case, replace(case, K=case.K + 1))
        yield pair("dtype", method, case, double)


def a_choice_apart():
    """Pairs of plans whose keys differ in several entries, since one choice decides them all."""
    grouped, blocks = replace(DENSE, C=10, K=20, groups=2), [{"block": 32}, {"block": 64}]
    few = {"elements": FEW}
    yield pair("filters", Gemm, DENSE, replace(DENSE, K=41))
    yield pair("groups", Gemm, DENSE, grouped, few, few)
    yield pair("vector bits", Gemm, DENSE, DENSE, {}, {"bits": OTHER_BITS})
    yield pair("vector bits", Winograd, DENSE, DENSE, {}, {"bits": OTHER_BITS})
    yield pair("blocks", Depthwise, DEPTHWISE, DEPTHWISE, *blocks)
    yield pair("blocks", SmallGroups, GROUPED, GROUPED, *blocks)
    few_channels = replace(GROUPED, C=2)
    yield pair("channels of a group", SmallGroups, few_channels, GROUPED, *blocks[:1] * 2)


def check_refused(first, second):
    """Each plan refuses what the other one packed, and takes its own."""
    for (packs, its_case), (runs, case) in ((first, second), (second, first)):
        packed = PackedFilter(np.zeros(0, np.uint8), packs.engine.best_packed.packed)  # never read
        assert is_refused(runs, case, packed)
        assert not is_refused(packs, its_case, packed)


@pytest.mark.parametrize(("first", "second"), list(one_entry_apart()))
def test_plans_that_differ_in_one_entry_refuse_each_others_filters(first, second):
    one, other = (key_of(plan) for plan, _ in (first, second))
    assert sum(a != b for a, b in zip(one, other, strict=True)) == 1
    check_refused(first, second)


@pytest.mark.parametrize(("first", "second"), list(a_choice_apart()))
def test_plans_of_different_blocks_refuse_each_others_filters(first, second):
    check_refused(first, second)


BASES = {  # layouts and dtypes are drawn
    "dense": DENSE,
    "pointwise": POINTWISE,
    "depthwise": DEPTHWISE,
    "grouped": GROUPED,
    "window": WINDOW,
}


DTYPES = [
    {"dtype": "float32"},
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "int8"},
    {"dtype": "uint8", "w_dtype": "int8"},
]


@st.composite
def images(draw, base):
    """A case with the filter of `base`, options of `plans_by`, and which plan to take."""
    case = replace(base, layout=draw(st.sampled_from(["NCHW", "NHWC"])))
    if base.kernel == (3, 3):
        case = replace(
            case,
            stride=draw(st.sampled_from([(1, 1), (2, 2), (1, 2)])),
            dilation=draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3)])),
            padding=((2, 2), (3, 3)),
        )
    machines = [{}, {}, {"bits": OTHER_BITS}]
    if cpu_arch(1).bfloat16 != "widen":
        machines.append({"bfloat16": "pairs"})
    if cpu_arch(1).int8 != "widen":
        machines.append({"int8": "quads"})
    options = draw(st.sampled_from(machines)) | {"elements": draw(st.sampled_from([None, FEW]))}
    return case, options, draw(st.integers(0, 5))


@st.composite
def two_images(draw):
    """Two problems that share a filter."""
    base = replace(
        BASES[draw(st.sampled_from(sorted(BASES)))],
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC"])),
        **draw(st.sampled_from(DTYPES)),
    )
    return draw(images(base)), draw(images(base))


def plan_number(which, case, options):
    """One of the plans of a case by all methods."""
    found = plans_by(None, case, **options)
    return found[which % len(found)]


@examples(40, 1000)
@given(drawn=two_images(), seed=st.integers(0, 2**31))
def test_a_filter_gives_exact_results_wherever_it_is_accepted(drawn, seed):
    """By plans of any methods; F4 and F6, which round, have the bits of their own filter."""
    (its_case, *_), (case, *_) = drawn
    packs, runs = (plan_number(which, case, options) for case, options, which in drawn)
    assume(key_of(packs) == key_of(runs))
    x, w = case.inputs(seed, integers=True)
    packed = packs.pack(its_case.arrange(x, w)[1])
    x_arranged, w_arranged = case.arrange(x, w)
    y = runs(x_arranged, packed)
    if getattr(runs.engine.best.method, "m", 2) > 2:
        np.testing.assert_array_equal(y, runs(x_arranged, runs.pack(w_arranged)))
    else:
        expected = case.reference(x, w)
        if case.problem.sum_dtype == "float32":
            expected = case.rounded(expected)
        np.testing.assert_array_equal(to_nchw(y, case.layout).astype(float), expected)


def test_subnormals_flushed_by_one_plan_are_not_missed_by_another():
    """Winograd calculates with filters when it packs them."""
    case = replace(DENSE, dtype="float64")
    x, w = case.inputs(0, integers=True)
    x, w = case.arrange(x, w * 4 * np.finfo(np.float64).smallest_subnormal)

    def plan(subnormals):
        with config(subnormals=subnormals):
            return plan_conv2d(x.shape, w.shape, "float64", **case.options, algorithm="winograd_f2")

    keeps = plan("keep")
    expected = keeps(x, keeps.pack(w)).view(np.uint64)
    flushed = plan("flush").pack(w)
    if not is_refused(keeps, case, flushed):
        np.testing.assert_array_equal(keeps(x, flushed).view(np.uint64), expected)


def test_phases_with_other_taps_refuse_each_others_filters():
    """Of images of one pixel, on whose other side the padding is: of two phases each has one."""
    w = np.arange(8 * 6 * 4, dtype=np.float32).reshape(8, 6, 2, 2)
    dy = np.ones((1, 8, 1, 3), np.float32)
    plans = [
        plan_conv2d_input_grad(
            dy.shape, w.shape, (1, 6, 1, 8), stride=3, padding=(pads, (0, 0)), precision="strict"
        )
        for pads in ((1, 0), (0, 1))
    ]
    first, second = (
        [[tap.start for tap in phase.taps] for phase in phases_of(plan.problem)] for plan in plans
    )
    assert first != second and len(first) == len(second)
    for plan, other in zip(plans, reversed(plans), strict=True):
        np.testing.assert_array_equal(plan(dy, plan.pack(w)), plan(dy, w))
        with pytest.raises(ShapeError, match="packed in another order"):
            plan(dy, other.pack(w))


def test_folds_of_other_filters_refuse_each_others_filters(monkeypatch):
    """Of as many products of a pixel: filters and taps are rows of the same length."""
    cost_tables.change(monkeypatch, "transposed", phase_launch=1.0)  # whichever is faster here
    clear()
    shapes = (16, 8, 4, 2), (16, 8, 2, 4), (16, 4, 4, 4)
    x, plans = np.ones((1, 16, 8, 8), np.float32), []
    for shape in shapes:
        plans.append(plan_conv_transpose2d(x.shape, shape, stride=2))
        assert isinstance(plans[-1].engine.best_packed.method, Fold)
    for plan, shape in zip(plans, shapes, strict=True):
        w = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        for other in plans:
            if other is plan:
                np.testing.assert_array_equal(plan(x, plan.pack(w)), plan(x, w))
                continue
            with pytest.raises(ShapeError, match="packed in another order"):
                other(x, plan.pack(w))
    clear()
