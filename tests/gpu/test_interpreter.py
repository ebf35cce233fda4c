"""The PTX of the kernels, as it is linked, run by the interpreter against the float64 oracle.

No GPU is needed, but the compilers are; without them the tests are skipped. CI runs the slow tests
in a step of their own.
"""

import functools
import importlib.util
import json
import random
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from ptx_faults import FAULTS
from ptx_mutants import mutant

from implicit_conv import ptx
from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan import families
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.trace import trace
from implicit_conv.kernels.geometry import CLAMP
from implicit_conv.kernels.gpu import targets
from implicit_conv.problem.options import PADDING_MODES
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import (
    family_problems,
    loaded,
    plan_small,
    problem_of,
    production_variants,
    stored,
    with_epilogue,
)
from perf import gates, gpu_gates
from perf.bringup.interpret import WriteError, interpret, ptx_of
from perf.bringup.sass import sass, tool

if importlib.util.find_spec("numba_cuda") is None or tool("nvdisasm") is None:
    pytest.skip("needs pip install '.[cu13,assemble]' in a checkout", allow_module_level=True)

EXHAUSTIVE_PROBLEMS = 50
LIMIT = 1_000_000  # warp instructions: ten times what the longest of these problems needs


NUMBERS = {targets.target_name(KNOWN[n].cc): n for n in families.GENERATIONS}
FIRST = {name: NUMBERS[families.targets(family)[0]] for name, family in FAMILIES.items()}


@functools.cache
def kernel_of(v, cc, fault=None):
    """The parsed kernel of a variant, with a fault; None where the text lacks its place."""
    text = ptx_of(v, cc)
    planted = fault.planted(text) if fault else text
    return None if fault and planted == text else ptx.parse(planted)


def problems(family, count, seed):
    """`family_problems` with a bias and a residual."""
    for case, plan in family_problems(family, count, seed):
        yield case, with_epilogue(plan, True, True)


def wrong_elements(case, plan, kernel, seed, **options):
    """The number of wrong elements of y, on integers with bias and residual."""
    v, rng = plan.variant, np.random.default_rng(seed)
    x, w = case.inputs(seed, integers=True)
    shape = plan.view.output_shape
    bias = stored(rng.integers(-8, 9, case.K * case.groups).astype(np.float32), v.dtype)
    residual = stored(rng.integers(-8, 9, shape).astype(np.float32), v.dtype)
    arrays = (stored(array, v.dtype) for array in case.arrange(x, w))
    options = {"blocks": 2, "limit": LIMIT, **options}
    y = interpret(plan, kernel, *arrays, bias, residual, seed=seed, **options)
    expected = case.reference(x, w)
    bias = loaded(bias, v.dtype).astype(np.float64)
    expected = expected + bias.reshape(-1, *(1,) * case.rank)
    expected = expected + to_nchw(loaded(residual, v.dtype), case.layout)
    expected = loaded(stored(expected.astype(np.float32), v.dtype), v.dtype)
    return int((to_nchw(loaded(y, v.dtype), case.layout) != expected).sum())


def rows(first_mark):
    """Every family on every target that has its instructions; all but the first are exhaustive."""
    for rung in families.ladder():
        name, target = rung.family, rung.target
        if name not in FAMILIES:
            continue  # tests/gpu/test_weight_grad.py has weight gradients
        number = NUMBERS[target]
        mark = first_mark if number == FIRST[name] else pytest.mark.exhaustive
        marks = [pytest.mark.xdist_group(name), mark]
        yield pytest.param(name, number, id=f"{name} {target}", marks=marks)


def run_family(name, number, count, **options):
    """Problems of a family on a target: what is wrong, in words."""
    wrong = []
    for seed, (case, plan) in enumerate(problems(FAMILIES[name], count, seed=len(name))):
        kernel = kernel_of(plan.variant, KNOWN[number].cc)
        found = wrong_elements(case, plan, kernel, seed, flaky=0.05 * (seed % 3), **options)
        if found:
            wrong.append(f"{found} elements of {case}")
    return wrong


@pytest.mark.parametrize(("name", "number"), list(rows(pytest.mark.slow)))
def test_family_equals_oracle(name, number):
    assert run_family(name, number, families.INTERPRETED_PROBLEMS) == []


@pytest.mark.parametrize(("name", "number"), list(rows(pytest.mark.exhaustive)))
def test_family_equals_oracle_on_many_problems(name, number):
    assert run_family(name, number, EXHAUSTIVE_PROBLEMS, blocks=3) == []


GROUPED = [name for name, family in FAMILIES.items() if 2 in family.groups]
WIDE_FMA = {"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2}  # two chunks of columns
STORES = [  # packed kernels, by what stores their results
    ("fma", 0, {}),
    ("fma", 0, WIDE_FMA),
    ("cp_async-mma", 1, {}),
    ("tma-mma", 0, {}),
    ("tma-wgmma-registers", 0, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in GROUPED]
)
def test_groups_of_each_variant_equal_the_oracle(name):
    family = replace(FAMILIES[name], groups=(2,))
    for seed, (case, plan) in enumerate(problems(family, len(family.variants), seed=1)):
        kernel = kernel_of(plan.variant, KNOWN[FIRST[name]].cc)
        assert wrong_elements(case, plan, kernel, seed) == 0, case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "changes"),
    [pytest.param(*each, marks=pytest.mark.xdist_group(each[0])) for each in STORES],
)
def test_no_column_behind_the_last_filter_is_read(name, number, changes):
    """Where filters end in each part of a chunk; the last pixel's residual is the end of memory."""
    v = replace(FAMILIES[name].variants[number], **changes)
    assert v.packed
    for filters in (8, 16, 24, 32, v.tile_n):
        sizes = {"N": 1, "C": v.tile_c, "K": filters, "size": (5, 7), "kernel": (1, 1)}
        case = Case(**sizes, layout="NHWC", weight_layout="KRSC")
        plan = with_epilogue(plan_small(case, FAMILIES[name], v), True, True)
        kernel = kernel_of(plan.variant, KNOWN[FIRST[name]].cc)
        assert wrong_elements(case, plan, kernel, filters) == 0, filters


WALKS = [name for name, family in FAMILIES.items() if family.variants[0].wide]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in WALKS])
@pytest.mark.parametrize(("stride", "dilation"), [(2, 1), (2, 3), (3, 4)])
def test_tiles_that_begin_within_a_row(name, stride, dilation):
    """Rows of more slots than a tile has, with strides; the second phase begins at a shift."""
    v = FAMILIES[name].variants[0]
    sizes = {"N": 14, "C": v.tile_c, "K": 16, "size": (2, 32), "kernel": (1, 3)}
    steps = {"stride": (1, stride), "dilation": (1, dilation), "padding": ((0, 0), (1, 2))}
    case = Case(**sizes, **steps, layout="NHWC", weight_layout="KRSC")
    plan = with_epilogue(plan_small(case, FAMILIES[name], v), True, True)
    assert plan.tiles[1] > plan.geometry.P
    kernel = kernel_of(plan.variant, KNOWN[FIRST[name]].cc)
    assert wrong_elements(case, plan, kernel, stride) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ("rows-mma", "direct")]
)
def test_one_block_computes_all_panels(name):
    """It stages the filters of the next panel when all its warps have read the last ones."""
    assert run_family(name, FIRST[name], len(FAMILIES[name].variants), blocks=1) == []


WORDS = FAMILIES["cp_async-words"]


@pytest.mark.slow
@pytest.mark.xdist_group("cp_async-words")
@pytest.mark.parametrize(
    ("number", "channels"), [(0, 2), (0, 6), (0, 100), (1, 4), (1, 100), (2, 1), (2, 3), (2, 5)]
)
def test_words_of_pixels_read_no_others(number, channels):
    """NaN follows the channels of each pixel and tap, as in views of arrays with more channels."""
    v = WORDS.variants[number]
    layouts = {"layout": "NHWC", "weight_layout": "KRSC"}
    padding = ((1, 2), (2, 1))
    case = Case(1, channels, 8, 2, (3, 4), (2, 2), (2, 1), padding=padding, **layouts)
    plan = with_epilogue(plan_small(case, WORDS, v), True, True)
    kernel = kernel_of(plan.variant, KNOWN[80].cc)
    assert wrong_elements(case, plan, kernel, number, gap=16 // v.itemsize) == 0


def outcome(fault, case, plan, seed):
    """What a fault leads to: a report, "wrong values", "right", or None where it has no place."""
    kernel = kernel_of(plan.variant, KNOWN[FIRST[fault.family]].cc, fault)
    if kernel is None:
        return None
    try:
        found = wrong_elements(case, plan, kernel, seed)
    except (ptx.PtxError, WriteError) as error:
        return str(error)
    return "wrong values" if found else "right"


def grouped(faults):
    return [
        pytest.param(fault, id=fault.name, marks=pytest.mark.xdist_group(fault.family))
        for fault in faults
    ]


@pytest.mark.slow
@pytest.mark.parametrize("fault", grouped(FAULTS))
def test_fault_is_seen(fault):
    """In at least one of its four problems, in the words that are expected."""
    family = FAMILIES[fault.family]
    seen = []
    for seed, (case, plan) in enumerate(problems(family, 4, seed=len(fault.family))):
        seen.append(outcome(fault, case, plan, seed))
        if seen[-1] and re.search(fault.said, seen[-1], re.DOTALL):
            return
    pytest.fail("\n".join(map(str, seen)))


MUTANTS, NOTICED = 40, 0.5  # share; what is left changes nothing on these problems


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_random_mutants(name):
    """Most random changes of instructions that run are noticed."""
    family, rng = FAMILIES[name], random.Random(0)
    step = max(2, len(family.variants))
    some = [*problems(family, 2 * step, seed=5)][::step]  # of one variant
    kernel = kernel_of(some[0][1].variant, KNOWN[FIRST[name]].cc)
    for seed, problem in enumerate(some):
        assert wrong_elements(*problem, kernel, seed) == 0
    left = []
    for _ in range(MUTANTS):
        changed, words = mutant(kernel, rng)
        for seed, problem in enumerate(some):
            try:
                if wrong_elements(*problem, changed, seed, limit=LIMIT // 4):
                    break
            except (ptx.PtxError, WriteError):
                break
        else:
            left.append(words)
    assert len(left) <= (1 - NOTICED) * MUTANTS, "\n".join(left)


def issued_as(load, plan):
    """A planned load as the interpreter tells it: mode, coordinates and operands, W first."""
    g, v = plan.geometry, plan.variant
    if load.operand == "w":
        k, *tap, c = load.coords
        return "tile", (c, np.ravel_multi_index(tap, (g.T, g.R, g.S)[-len(tap) :]), k), ()
    if load.mode == "im2col":
        n, *pixel, c = load.coords
        return "im2col", (c, *pixel[::-1], n), tuple(load.offsets[::-1])
    n, h, w, c = load.coords
    if v.permuted:
        return "im2col", (c, w, n, h), (load.w_offset, 0)
    return "im2col::w", (c, w, h, n), (load.w_halo, load.w_offset)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in FAMILIES if "tma" in n],
)
def test_kernel_issues_the_plan(name):
    """The tensor copies of a launch are those of the plan, in its order."""
    for seed, (case, plan) in enumerate(problems(FAMILIES[name], 2, seed=7)):
        copies = []
        kernel = kernel_of(plan.variant, KNOWN[FIRST[name]].cc)
        assert wrong_elements(case, plan, kernel, seed, blocks=1, watch=copies.append) == 0
        planned = trace(plan)
        told = {id(copy): copy for copy in copies}  # twice each
        loads = [copy for copy in told.values() if copy.direction == "load"]
        issued = [(copy.mode, copy.coordinates, copy.operands) for copy in loads]
        assert issued == [issued_as(load, plan) for load in planned]
        assert [len(copy.places) for copy in loads] == [load.rows for load in planned]


GATES = json.loads(gates.EXPECTED.read_text())
COUNTED = {name: (v, cc) for name, v, cc in gpu_gates.first_targets()}
QUICKLY = ("cp_async-mma sm_80", "tma-wgmma sm_90a")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICKLY)
def test_traffic_is_the_committed_one(name):
    """Sectors, passes of the banks and instructions; `perf gates` counts the other families."""
    if gpu_gates.compiler() != GATES["gpu compiler"]:
        pytest.skip(f"counted for {GATES['gpu compiler']}, this is {gpu_gates.compiler()}")
    found = gpu_gates.traffic(*COUNTED[name])
    assert found == GATES["gpu traffic"][name], "meant? python -m perf gates --update"


def split_plan():
    """A kernel of three warpgroups, whose consumers claim the registers that its producer gives."""
    case = Case(
        N=2, C=48, K=40, size=(5, 7), padding=((1, 1), (1, 1)), layout="NHWC", weight_layout="KRSC"
    )
    v = replace(FAMILIES["tma-wgmma"].variants[0], tile_m=128, warps_m=8)
    plan = plan_small(case, replace(FAMILIES["tma-wgmma"], variants=(v,)), v)
    return case, with_epilogue(plan, True, True)


@pytest.mark.slow
@pytest.mark.xdist_group("tma-wgmma")
def test_register_pool():
    case, plan = split_plan()
    cc = KNOWN[90].cc
    assert wrong_elements(case, plan, kernel_of(plan.variant, cc), 0) == 0
    text = ptx_of(plan.variant, cc)
    greedy = re.sub(r"(setmaxnreg\.dec\.sync\.aligned\.u32) 72;", r"\1 80;", text)
    assert greedy != text
    with pytest.raises(ptx.PtxError, match=r"deadlock(.|\n)*waits for 1536 registers, of which"):
        wrong_elements(case, plan, ptx.parse(greedy), 0)


@pytest.mark.slow
@pytest.mark.xdist_group("tma-mma")
def test_error_names_the_lines():
    """Of the PTX and of the Python source, the warp, and the barrier's stage and parity."""
    family = FAMILIES["tma-mma"]
    (case, plan), *_ = problems(family, 1, seed=0)
    text = ptx_of(plan.variant, KNOWN[90].cc, lineinfo=True)
    late = next(fault for fault in FAULTS if fault.name == "a relaxed wait").planted(text)
    with pytest.raises(ptx.PtxError) as caught:
        wrong_elements(case, plan, ptx.parse(late), 0)
    assert re.search(
        r"block 0: warp \d, line \d+ \(.*/\w+\.py:\d+\): ldmatrix.*\n.*A stage 0",
        str(caught.value),
    )
    never = next(fault for fault in FAULTS if fault.name == "a stage is never released")
    with pytest.raises(ptx.PtxError) as caught:
        wrong_elements(case, plan, ptx.parse(never.planted(text)), 0)
    assert re.search(
        r"deadlock:\n.*waits for \w \w+\[\d\] phase \d lacks .* \(waits for parity [01]\)",
        str(caught.value),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ("cp_async-mma", "tma-wgmma")],
)
def test_what_is_interpreted_is_what_is_linked(name, tmp_path):
    """ptxas makes of the text the instructions of the linked kernel."""
    from implicit_conv.gpu.cuda.cubin import cubin

    v, cc = FAMILIES[name].variants[0], KNOWN[FIRST[name]].cc
    text, made = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    text.write_text(ptx_of(v, cc))
    command = [tool("ptxas"), f"-arch={targets.target_name(cc)}", "-O3", text, "-o", made]
    subprocess.run(command, check=True, capture_output=True)
    linked, _ = cubin(v, cc)
    assert sass(made.read_bytes()) == sass(linked)


def production():
    """The largest and the smallest tile that the planner may choose, of each family and target."""
    for number in families.GENERATIONS:
        for dtype in ("bfloat16", "float16", "float32"):
            found = {}
            for v in production_variants(dtype, plain=False):
                how = v.producer, v.copy_bytes, v.folded
                key = v.mode, *how, v.consumer, v.permuted, v.descriptors, v.strip
                if targets.supports(v.target, KNOWN[number].cc):
                    found[key] = [*found.get(key, [])[:1], v]
            for v in dict.fromkeys(v for pair in found.values() for v in pair):
                yield pytest.param(number, v, id=f"sm_{number} {v.name}")


def production_case(v):
    """A problem of two tiles along gemm_m and gemm_n, or of two panels of groups."""
    options = {"size": (9, 14), "layout": "NHWC", "weight_layout": "KRSC"}
    if not v.strip:
        padding = ((1, 0), (1, 1))
        channels = v.tile_c + v.copy_bytes // v.itemsize
        return Case(2, channels, v.tile_n + 8, kernel=(2, 3), padding=padding, **options)
    step = (v.strip.stride, v.strip.stride)
    images = v.tile_m // (9 * 14) * v.strip.stride**2 + 1
    c, k = v.strip.group_c, v.strip.group_k
    groups = (v.tile_n + 16) // k
    return Case(images, c, k, groups, stride=step, padding=((1, 1), (1, 0)), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("producer", "consumer", "number"), [("cp_async", "mma", 80), ("tma", "wgmma", 90)]
)
def test_one_whole_tile_of_production(producer, consumer, number):
    """The largest one: tiles of the families have fewer row tiles a warp, and fewer columns."""
    found = [
        v
        for v in production_variants("bfloat16", plain=False)
        if (v.producer, v.consumer, v.strip, v.band) == (producer, consumer, None, None)
    ]
    v = max(found, key=lambda v: v.tile_m * v.tile_n)
    assert (v.tile_m, v.tile_n) == (128, 128 if consumer == "mma" else 256)
    layouts = {"layout": "NHWC", "weight_layout": "KRSC"}
    size, padding = (8, v.tile_m // 8), ((0, 0), (1, 0))
    case = Case(1, v.tile_c, v.tile_n, size=size, kernel=(1, 2), padding=padding, **layouts)
    equals_oracle(case, v, number)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "v"), list(production()))
def test_production_tile_equals_oracle(number, v):
    equals_oracle(production_case(v), v, number)


def equals_oracle(case, v, number):
    limits = (float(CLAMP), -np.inf, np.inf)
    plan = choose(problem_of(case, v.dtype), KNOWN[number], variant=v, activation=limits)
    plan = with_epilogue(plan, True, True)
    kernel = kernel_of(plan.variant, KNOWN[number].cc)
    assert wrong_elements(case, plan, kernel, 0, limit=50_000_000) == 0


PADDED = (("cp_async-mma", 0, "NHWC"), ("elements-mma", 1, "NCHW"), ("fma", 0, "NHWC"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", PADDING_MODES[1:])
@pytest.mark.parametrize(("name", "number", "layout"), PADDED)
def test_padding_that_repeats_pixels(name, number, layout, mode):
    """Up to a whole axis, with strides and dilation, in several tiles whose last rows are none."""
    layouts = {"layout": layout, "weight_layout": "KRSC" if layout == "NHWC" else "KCRS"}
    padding, kernel = ((3, 4), (5, 2)), (3, 4)
    case = Case(2, 16, 40, 1, (5, 6), kernel, (1, 2), (2, 1), padding, **layouts, padding_mode=mode)
    family = FAMILIES[name]
    v = replace(family.variants[number], padding_mode=PADDING_MODES.index(mode))
    plan = with_epilogue(plan_small(case, family, v), True, True)
    assert wrong_elements(case, plan, kernel_of(plan.variant, KNOWN[80].cc), number) == 0
