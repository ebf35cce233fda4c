"""The CPU engine: which candidate runs for arrays of any strides, and what is said about it."""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest
from conformance import examples

from implicit_conv import conv2d, plan_conv2d, plan_conv2d_input_grad
from implicit_conv.arrays.arrays import Binding
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines import dgrad, engine
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.machine.costs import EPYC
from implicit_conv.cpu.machine.peak import clock
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.planner import METHODS
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.cpu.run.packed import PlainOrder
from implicit_conv.errors import PlanError, ShapeError
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.options import ALGORITHMS
from implicit_conv.testing import Case, plan_of, to_nchw

SAME = ((1, 1), (1, 1))
# Methods that do not accept all strides.
WITH_NEEDS = [method for method in METHODS if "needs" in vars(method)]


def elements_apart(array, layout):
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def rows_apart(array, layout):
    """The pixels of the array with a gap after each image row."""
    axis = layout.index("W")
    shape = list(array.shape)
    shape[axis] += 3
    wide = np.full(shape, np.nan, array.dtype)
    view = wide[(*[slice(None)] * axis, slice(array.shape[axis]))]
    view[...] = array
    return view


GAPS = {"elements": elements_apart, "rows": rows_apart}


def choices(caplog):
    """(what runs instead, of what, what that needs) of each bound call that says so."""
    return [record.args for record in caplog.records if " runs, because " in record.msg]


def computed(method):
    """(case, plan) of a problem of the conformance suite that the method computes, plain and
    packed, if the planner prefers it, and for which it does not accept all strides.
    """
    for case in examples(method):
        plan = plan_of(case)
        best = plan.engine.best.method
        if best.needs and {type(best), type(plan.engine.best_packed.method)} == {method}:
            return case, plan
    raise AssertionError(f"{method.__name__} computes no such problem of the conformance suite")


def accepts(plan, x, w, y):
    """Whether the best candidate of a plan takes arrays of these strides."""
    c = plan.engine.best
    return planner.accepts(c, Arrays(x, w, y))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("method", WITH_NEEDS, ids=lambda method: method.__name__)
def test_the_next_candidate_of_the_same_order_runs(method, packed, force_method, caplog):
    """Its results are exact, and it is named; a plan remembers it."""
    force_method(method)
    case, plan = computed(method)
    x, w = case.inputs(0, integers=True)
    arrays, expected = case.arrange(x, w), case.reference(x, w)
    needs = plan.engine.best.method.needs
    filters = plan.pack(arrays[1]) if packed else arrays[1]
    caplog.set_level(logging.DEBUG, logger="implicit_conv")
    np.testing.assert_array_equal(to_nchw(plan(arrays[0], filters), case.layout), expected)
    assert choices(caplog) == []
    refused = 0
    for apart in (elements_apart, rows_apart):
        caplog.clear()
        strided = apart(arrays[0], case.layout)
        y = np.zeros(plan.problem.output_shape, np.float32)
        accepted = accepts(plan, strided, None if packed else arrays[1], y)
        for _ in range(2):
            np.testing.assert_array_equal(to_nchw(plan(strided, filters), case.layout), expected)
        said = choices(caplog)
        assert len(said) == (not accepted)  # once, though it ran twice
        refused += len(said)
        for runs, instead, what in said:
            assert (instead, what) == (plan.engine.best.name, needs)
            others = [c for c in plan.candidates[1:] if c.name == runs]
            assert others
            if packed and not isinstance(filters.order, PlainOrder):
                assert others[0].packed.key == filters.key
    assert refused, "it accepts all strides that were tried"


@pytest.mark.parametrize("method", WITH_NEEDS, ids=lambda method: method.__name__)
def test_strides_of_the_output_count_too(method, force_method, caplog):
    force_method(method)
    case, plan = computed(method)
    x, w = case.inputs(0, integers=True)
    arrays = case.arrange(x, w)
    out = rows_apart(np.zeros(plan.problem.output_shape, np.float32), case.layout)
    caplog.set_level(logging.DEBUG, logger="implicit_conv")
    assert plan(*arrays, out=out) is out
    np.testing.assert_array_equal(to_nchw(out, case.layout), case.reference(x, w))
    assert len(choices(caplog)) == (not accepts(plan, *arrays, out))


def explained(plan):
    """(words about the choice, the table of candidates), wrapped lines joined."""
    text = re.sub(r"\n {16}(?=\S)", " ", plan.explain())
    return re.split(r"candidates, in the order in which they are tried .*:\n", text)


@pytest.mark.parametrize("precision", ["strict", "standard", "fast"])
@pytest.mark.parametrize("method", WITH_NEEDS, ids=lambda method: method.__name__)
def test_explain_lists_every_candidate_and_every_refusal(method, precision):
    """In the order in which candidates are tried; one takes any strides."""
    plan = plan_of(next(examples(method)), precision=precision)
    _, table = explained(plan)
    lines = table.splitlines()
    able = lines[: len(plan.candidates)]
    for line, c in zip(able, plan.candidates, strict=True):
        ms, words = re.fullmatch(r" +(\d+\.\d{3}) ms  (.*)", line).groups()
        wanted = 1e3 * c.cycles / c.threads / clock(c.arch)
        assert float(ms) == pytest.approx(wanted, abs=1e-3)
        needs = c.method.needs
        assert words == f"{c.name}; " + (f"needs {needs}" if needs else "takes any strides")
    assert any(line.endswith("takes any strides") for line in able)
    for line in lines[len(able) :]:
        assert re.fullmatch(r" +refused  .+: .+", line)
    missing = {algorithm for algorithm in ALGORITHMS if algorithm not in table}
    assert missing <= {"implicit_gemm"}, "neither candidates nor refused"
    assert not missing or "pointwise" in table  # its name where filters are 1x1


def test_the_first_line_of_the_table_is_what_runs():
    """The chosen algorithm stands in the words above, and first in the table."""
    plan = plan_conv2d((1, 64, 28, 28), (64, 64, 3, 3), padding=1)
    text, table = explained(plan)
    name = plan.engine.best.name
    assert f"algorithm   {name}, " in text
    assert name in table.splitlines()[0]


def test_the_estimate_speaks_of_the_peak_that_is_measured():
    """On this machine; a plan for wider vectors than it has speaks of a nominal clock."""
    plan = plan_of(Case(C=64, K=64, size=(28, 28)), algorithm="implicit_gemm")
    text = " ".join(plan.explain().split())
    rate = 4 * plan.engine.best.lanes * clock(cpu_arch())
    share, gflops = re.search(
        r"(\d+)% of .* peak on a core, measured as (\d+) GFLOP/s", text
    ).groups()
    assert int(gflops) == round(rate / 1e9)
    c = plan.engine.best
    milliseconds = float(re.search(r"estimate (\d+\.\d+) ms", text)[1])
    achieved = c.problem.flops / (milliseconds / 1e3) / c.threads
    assert int(share) == pytest.approx(100 * achieved / rate, abs=2)
    wider = CpuArch(2048, True, 48 << 10, 1 << 20, 1, 14)
    text = " ".join(plan_of(Case(C=64, K=64, size=(28, 28)), wider).explain().split())
    assert "peak on a core, by the nominal clock" in text


# Filters are read in place if each call would have to pack them.
FEW_PIXELS = Case(C=160, K=240, size=(7, 7), kernel=(1, 1), layout="NHWC")


def packed_apart(case=FEW_PIXELS, method=PlanarGemm, **options):
    """(plan, its best candidate, the best one for packed filters); they have different methods."""
    plan = plan_of(case, CpuArch(512, True, 48 << 10, 1 << 20, 1, 14), **options)
    best, packed = plan.engine.best, plan.engine.best_packed
    assert (type(best.method), type(packed.method)) == (method, Gemm)
    return plan, best, packed


def test_packed_filters_have_their_own_best_candidate():
    plan, best, packed = packed_apart()
    assert best.cycles <= packed.cycles
    assert packed.packed_cycles < best.packed_cycles
    assert f"run {packed.name}" in " ".join(plan.explain().split())
    x, w = FEW_PIXELS.inputs(0, integers=True)
    expected = FEW_PIXELS.reference(x, w)
    x, w = FEW_PIXELS.arrange(x, w)
    filters = plan.pack(w)
    assert filters.key == packed.packed.key
    assert filters.panels.nbytes == plan.packed_bytes
    assert plan.workspace_bytes == max(best.workspace_bytes, packed.workspace_bytes)
    for given in (w, filters):
        np.testing.assert_array_equal(to_nchw(plan(x, given), "NHWC"), expected)
    with pytest.raises(ShapeError, match="packed in another order"):
        plan(x, best.method.pack(best, w, plan.engine.formats))


def test_strict_results_of_packed_filters_have_the_same_bits():
    case = replace(FEW_PIXELS, size=(6, 8), layout="NCHW")
    plan, *_ = packed_apart(case, TransposedGemm, precision="strict")
    x, w = case.arrange(*case.inputs(0))
    np.testing.assert_array_equal(plan(x, plan.pack(w)), plan(x, w))


def test_a_measured_candidate_is_best_for_packed_filters_too():
    plan, best, _ = packed_apart()
    choice = replace(plan.engine.choice, tuned="measured")
    assert choice.best_packed is best
    assert "the result of plan.pack(w)" not in Plan(replace(plan.engine, choice=choice)).explain()


def test_a_packed_filter_in_plain_order_is_not_packed_again():
    """A plain filter in RSCK order would be copied for planar GEMM: panels are no dearer."""
    case = Case(C=16, K=16, size=(4, 4), kernel=(1, 1), weight_layout="RSCK")
    plan = plan_of(case, CpuArch(512, True, 48 << 10, 1 << 20, 1, 14))
    best, packed = plan.engine.best, plan.engine.best_packed
    assert (type(best.method), type(packed.method)) == (Gemm, PlanarGemm)
    x, w = case.arrange(*case.inputs(0, integers=True))
    y = np.empty(plan.problem.output_shape, np.float32)
    bound = plan.engine.bind(Binding(x.strides, None, y.strides))
    (step,) = bound.program.steps  # which packs nothing
    assert step.sums is None and step.panels == 0
    np.testing.assert_array_equal(plan(x, plan.pack(w)), plan(x, w))


def test_phases_take_the_filters_that_they_packed():
    """The filter of an input gradient 1x1 is transposed, so that each call would copy it."""
    rng = np.random.default_rng(0)
    dy = rng.integers(-4, 5, (1, 64, 7, 7)).astype(np.float32)
    w = rng.integers(-4, 5, (64, 96, 1, 1)).astype(np.float32)
    problem = plan_conv2d_input_grad(dy.shape, w.shape, (1, 96, 7, 7)).problem
    plan = Plan(dgrad.plan(problem, CpuArch(512, True, 48 << 10, 1 << 20, 1, 14), Request()))
    (part,) = plan.engine.best.parts
    assert part.best.packed.key != part.best_packed.packed.key
    expected = np.einsum("nkhw,kc->nchw", dy, w[..., 0, 0])
    for given in (w, plan.pack(w)):
        np.testing.assert_array_equal(plan(dy, given), expected)


def every_second(rng):
    """(x, w) of a 1x1 convolution, of which x has every second column of another array."""
    x = rng.integers(-4, 5, (1, 64, 16, 32)).astype(np.float32)[..., ::2]
    return x, rng.integers(-4, 5, (64, 64, 1, 1)).astype(np.float32)


def test_a_limit_that_strides_exceed_names_one_that_suffices():
    x, w = every_second(np.random.default_rng(0))
    expected = conv2d(x, w)
    with pytest.raises(PlanError) as error:
        conv2d(x, w, max_workspace=0)
    least = int(re.search(r"max_workspace=(\d+)", str(error.value))[1])
    with pytest.raises(PlanError, match=f"max_workspace is {least} bytes.*because pointwise") as e:
        conv2d(x, w, max_workspace=least)
    more = int(re.search(r"max_workspace=(\d+)", str(e.value))[1])
    np.testing.assert_array_equal(conv2d(x, w, max_workspace=more), expected)
    np.testing.assert_array_equal(conv2d(x.copy(), w, max_workspace=least), expected)


def test_strides_that_no_method_takes_are_no_matter_of_memory(monkeypatch):
    monkeypatch.setattr(planner, "METHODS", (PlanarGemm,))
    x, w = every_second(np.random.default_rng(0))
    arch = replace(cpu_arch(), costs=EPYC)  # with others it also copies x
    plan = Plan(engine.plan(plan_conv2d(x.shape, w.shape).problem, arch, Request()))
    with pytest.raises(
        PlanError,
        match=r"no method takes x and w of these strides, because.* pass contiguous arrays$",
    ):
        plan(x, w)
    np.testing.assert_array_equal(plan(x.copy(), w), np.einsum("nchw,kc->nkhw", x, w[..., 0, 0]))


def test_an_explanation_names_the_table_of_costs():
    plan = plan_of(Case(), replace(cpu_arch(), costs=replace(EPYC, name="a CPU", made="by hand")))
    assert "\ncosts       those of a CPU, by hand\n" in plan.explain()
