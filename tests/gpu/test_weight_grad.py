"""Weight gradients on a GPU: interpreted PTX against the CPU, plans, calls on a recorded driver.

Data are integers, so sums are exact in any order.
"""

import functools
import importlib.util
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import (
    conv1d_weight_grad,
    conv2d_weight_grad,
    plan_conv1d_weight_grad,
    plan_conv2d_weight_grad,
    ptx,
)
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan import families
from implicit_conv.gpu.plan.families import GRADIENTS, NOT_RUN, family_name
from implicit_conv.gpu.plan.image_copies import copies
from implicit_conv.gpu.plan.views import images
from implicit_conv.gpu.plan.wgrad import choose_wgrad, consider_all, wgrad_variants
from implicit_conv.gpu.run import wgrad
from implicit_conv.gpu.run.wgrad import GpuWgradEngine
from implicit_conv.kernels.gpu.targets import supports, target_name
from implicit_conv.kernels.gpu.wgrad_variant import ImageCopy, SplitSum, WgradVariant
from implicit_conv.problem.options import GPU_DTYPES, ITEMSIZES
from implicit_conv.problem.problem import Problem
from implicit_conv.testing.gpu.hardware import check_weight_gradients
from implicit_conv.testing.gpu.problems import loaded, stored
from implicit_conv.testing.gpu.weight_gradients import (
    db_by_cpu,
    gradient_by_cpu,
    gradient_inputs,
    gradient_problems,
    problems_on_copies,
    with_db,
    with_splits,
)
from perf import gates, gpu_gates
from perf.bringup.interpret import WriteError, interpret_wgrad, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
compiled = pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]'")
LAST = {"layout": "NHWC", "weight_layout": "KRSC"}
LIMIT = 2_000_000  # warp instructions


def chosen(v, x_shape, w_shape, splits, out_dtype=None, number=80, **options):
    """The choice of kernel `v`, with two stages and so many splits."""
    problem = Problem.parse(x_shape, w_shape, v.dtype, dtypes=GPU_DTYPES, **LAST, **options)
    made = choose_wgrad(problem, KNOWN[number], images(problem), out_dtype or v.dtype, variant=v)
    made = with_splits(made, splits, stages=2)
    assert made.best.splits == splits
    return made


@functools.cache
def kernel_of(v, cc):
    """The parsed kernel of a variant."""
    return ptx.parse(ptx_of(v, cc))


def drawn(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


def interpreted(made, x, dy, kernels=None, **options):
    """dw of float32 arrays as float32."""
    cc, dtype = made.arch.cc, made.variant.dtype
    kernels = kernels or [kernel_of(v, cc) for v, *_ in made.launches]
    arrays = stored(x, dtype), stored(dy, dtype)
    found = interpret_wgrad(made, kernels, *arrays, limit=LIMIT, **options)
    return loaded(found, made.out_dtype)


def both(made, x, dy, kernels=None, **options):
    """dw and db of float32 arrays as float32."""
    cc, dtype = made.arch.cc, made.variant.dtype
    kernels = kernels or [kernel_of(v, cc) for v, *_ in made.launches]
    arrays = stored(x, dtype), stored(dy, dtype)
    found = interpret_wgrad(made, kernels, *arrays, limit=LIMIT, **options)
    return [loaded(each, made.out_dtype) for each in found]


def expected(made, x, dy, **options):
    dw = conv2d_weight_grad(x, dy, made.problem.weight_shape, **LAST, **options)
    return loaded(stored(dw, made.out_dtype), made.out_dtype)


TMA, TMA_HALF = GRADIENTS["wgrad-wgmma"].variants
BF, HALF, WORDS, _ = GRADIENTS["wgrad-mma"].variants
FLOAT, FLOAT_ELEMENTS = GRADIENTS["wgrad-fma"].variants
PROBLEMS = {  # variant, x, w, splits, options
    "ragged": (BF, (2, 5, 9, 24), (72, 3, 3, 24), 2, {"padding": 1}),
    "stride": (
        BF,
        (3, 11, 8, 16),
        (8, 3, 2, 16),
        2,
        {"stride": (2, 3), "padding": ((1, 0), (0, 2))},
    ),
    "dilation": (BF, (3, 7, 9, 72), (16, 2, 3, 72), 3, {"dilation": (2, 3), "padding": 2}),
    "groups": (BF, (2, 6, 5, 32), (32, 2, 2, 16), 2, {"groups": 2}),
    "odd channels": (HALF, (2, 6, 7, 5), (9, 3, 3, 5), 2, {"padding": 1}),
    "words": (WORDS, (2, 6, 7, 10), (14, 3, 3, 10), 2, {"padding": 1, "stride": (1, 2)}),
    "odd groups": (HALF, (2, 6, 7, 9), (6, 3, 2, 3), 3, {"groups": 3, "stride": 2, "padding": 2}),
    "six splits": (BF, (2, 12, 16, 16), (8, 3, 1, 16), 6, {"padding": (1, 0)}),
    "copies": (TMA, (2, 5, 9, 24), (72, 3, 3, 24), 2, {"padding": 1}),
    "strided copies": (
        TMA_HALF,
        (3, 11, 8, 72),
        (136, 3, 2, 72),
        2,
        {"stride": (2, 3), "dilation": (1, 2), "padding": ((1, 0), (0, 2))},
    ),
    "float": (FLOAT, (2, 6, 7, 36), (68, 2, 3, 36), 2, {"padding": 1, "stride": (1, 2)}),
    "float elements": (FLOAT_ELEMENTS, (1, 6, 7, 3), (5, 3, 3, 3), 1, {"padding": (1, 0)}),
}


def problem(name, out_dtype=None, number=None):
    v, x_shape, w_shape, splits, options = PROBLEMS[name]
    number = number or (90 if v.producer == "tma" else 80)
    made = chosen(v, x_shape, w_shape, splits, out_dtype, number, **options)
    x, dy = drawn(len(name), x_shape, made.problem.output_shape)
    return made, x, dy, options


@compiled
@pytest.mark.parametrize(
    ("name", "out_dtype"), [*((name, None) for name in PROBLEMS), ("ragged", "float32")]
)
def test_kernels_equal_the_cpu(name, out_dtype):
    """NaN follows the channels of each pixel, and memory ends where an array does."""
    made, x, dy, options = problem(name, out_dtype)
    gap = {"cp_async": 8, "elements": 1, "tma": 0}[made.variant.producer]
    found = interpreted(made, x, dy, gap=gap, flaky=0.1)
    np.testing.assert_array_equal(found, expected(made, x, dy, **options))


@compiled
@pytest.mark.parametrize(
    "name", ["ragged", "odd channels", "words", "odd groups", "float elements"]
)
def test_each_axis_may_be_far_apart(name):
    """Elements of x, dy and dw along an axis are more than 32 bits of bytes apart."""
    made, x, dy, options = problem(name)
    right = expected(made, x, dy, **options)
    contiguous = made.variant.producer != "elements"  # along the channels
    for axis in range(4 - contiguous):
        shapes = {"x": x.shape, "dy": dy.shape, "dw": right.shape}
        far = {which: axis for which, shape in shapes.items() if shape[axis] > 1}
        np.testing.assert_array_equal(interpreted(made, x, dy, far=far), right, str(far))


@compiled
@pytest.mark.parametrize(
    ("name", "out_dtype"), [*((name, None) for name in PROBLEMS), ("ragged", "float32")]
)
def test_db_is_the_sum_of_dy(name, out_dtype):
    """Of all consumers, beside dw; NaN follows the channels of each pixel."""
    made, x, dy, options = problem(name, out_dtype)
    gap = {"cp_async": 8, "elements": 1, "tma": 0}[made.variant.producer]
    dw, db = both(with_db(made), x, dy, gap=gap, flaky=0.1)
    np.testing.assert_array_equal(dw, expected(made, x, dy, **options))
    np.testing.assert_array_equal(db, db_by_cpu(made, dy))


@compiled
@pytest.mark.parametrize("name", GRADIENTS)
def test_db_of_random_problems(name):
    """Of every kernel of a family: two tiles of filters and of columns, several splits."""
    family = GRADIENTS[name]
    arch = KNOWN[90 if family.target == "sm_90a" else 80]
    for seed, made in enumerate(gradient_problems(family.variants, arch, 1, seed=5)):
        assert min(made.tiles[1:]) > 1
        x, dy = gradient_inputs(made, seed)
        dw, db = both(with_db(made), x, dy, flaky=0.05 * (seed % 3))
        np.testing.assert_array_equal(dw, gradient_by_cpu(made, x, dy), err_msg=str(made.view))
        np.testing.assert_array_equal(db, db_by_cpu(made, dy), err_msg=str(made.view))


@compiled
@pytest.mark.parametrize("name", ["ragged", "copies", "float"])
def test_nan_is_in_the_db_of_its_filter_alone(name):
    """That of x is in none."""
    made, x, dy, _ = problem(name)
    x[0, 1, 1, 2] = dy[1, 2, 3, 4] = np.nan
    _, db = both(with_db(made), x, dy)
    np.testing.assert_array_equal(db, db_by_cpu(made, dy))
    assert (np.isnan(db) == (np.arange(len(db)) == 4)).all()


@compiled
@pytest.mark.parametrize("name", ["ragged", "copies", "float"])
def test_two_runs_have_the_same_db(name):
    """And one that is near that of float64, of sums that rounding makes depend on their order."""
    made, x, dy, _ = problem(name, out_dtype="float32")
    dy = loaded(stored(dy / 3 + np.float32(0.1), made.variant.dtype), made.variant.dtype)
    runs = [both(with_db(made), x, dy, seed=seed, flaky=seed / 4) for seed in (0, 1)]
    (_, first), (_, second) = runs
    assert first.tobytes() == second.tobytes()
    exact = dy.sum((0, 1, 2), dtype=np.float64)
    scale = np.abs(dy).sum((0, 1, 2), dtype=np.float64)
    assert np.max(np.abs(first - exact) / (2.0**-24 * scale)) < 64


def rows():
    """Every family on every target; all but one are slow."""
    for family in GRADIENTS.values():
        first, *_ = each = families.targets(family)
        for target in each:
            quick = (family.name, target) == ("wgrad-mma", first)
            mark = () if quick else pytest.mark.slow
            yield pytest.param(family, target, id=f"{family.name} {target}", marks=mark)


@compiled
@pytest.mark.parametrize(("family", "target"), list(rows()))
def test_random_problems_equal_the_cpu(family, target):
    """As many as the table of the documentation says."""
    arch = next(KNOWN[n] for n in families.GENERATIONS if target_name(KNOWN[n].cc) == target)
    each = families.INTERPRETED_PROBLEMS // len(family.variants)
    for seed, made in enumerate(gradient_problems(family.variants, arch, each, seed=0)):
        x, dy = gradient_inputs(made, seed)
        found = interpreted(made, x, dy, flaky=0.05 * (seed % 3))
        np.testing.assert_array_equal(found, gradient_by_cpu(made, x, dy), err_msg=str(made.view))


@compiled
def test_pixels_that_no_tap_reads():
    """NaN in them, and beside them where a tap is outside the image, is in no sum."""
    options = {"stride": 3, "padding": ((1, 0), (0, 1))}
    made = chosen(BF, (2, 8, 9, 16), (16, 2, 2, 16), 2, **options)
    x, dy = drawn(0, (2, 8, 9, 16), made.problem.output_shape)
    read = np.zeros(x.shape, bool)
    rows, columns = (np.add.outer(3 * np.arange(n), [0, 1]).ravel() for n in (3, 3))
    rows, columns = rows - 1, columns[columns < 9]
    read[:, rows[rows >= 0][:, None], columns] = True
    assert 0.2 < read.mean() < 0.8
    want = expected(made, np.where(read, x, 0), dy, **options)
    np.testing.assert_array_equal(interpreted(made, np.where(read, x, np.nan), dy), want)


@compiled
def test_nan_of_x_is_in_the_sums_of_its_taps_alone():
    made, x, dy, options = problem("ragged")
    x[1, 2, 3, 4] = np.nan
    found, want = interpreted(made, x, dy), expected(made, x, dy, **options)
    np.testing.assert_array_equal(found, want)
    assert (np.isnan(want) == (np.arange(24) == 4)).all()


@compiled
@pytest.mark.parametrize("name", ["ragged", "float", "a first layer"])
def test_two_runs_have_the_same_bits(name):
    """Of sums that rounding makes depend on their order, whichever warps run first."""
    if name in PROBLEMS:
        made, x, dy, _ = problem(name, out_dtype="float32")
    else:
        (*_, made), (x, dy), *_ = copied(name)
    x, dy = (array * np.float32(1 / 3) + np.float32(0.1) for array in (x, dy))
    first, second = (interpreted(made, x, dy, seed=seed, flaky=seed / 4) for seed in (0, 1))
    assert first.tobytes() == second.tobytes()


COPIED = {  # dtype, x, w, order of x and dy in memory, arrays to copy, options
    "a first layer": (
        "bfloat16",
        (2, 9, 12, 3),
        (8, 3, 5, 3),
        (0, 1, 2, 3),
        (),
        {"padding": 2, "stride": 2},
    ),
    "planes": (
        "bfloat16",
        (3, 8, 11, 3),
        (9, 3, 2, 3),
        (0, 3, 1, 2),
        ("x", "dy"),
        {"padding": ((1, 0), (0, 2)), "stride": (2, 1)},
    ),
    "one channel": (
        "float16",
        (1, 6, 21, 1),
        (16, 2, 7, 1),
        (0, 1, 2, 3),
        (),
        {"padding": ((0, 1), (3, 1)), "stride": (1, 3)},
    ),
    "one channel, no padding": (
        "bfloat16",
        (3, 5, 9, 1),
        (5, 3, 3, 1),
        (0, 1, 2, 3),
        (),
        {"dilation": (2, 1)},
    ),
    "four channels": (
        "float16",
        (3, 7, 9, 4),
        (24, 3, 3, 4),
        (0, 3, 1, 2),
        ("x", "dy"),
        {"padding": ((0, 2), (1, 0)), "stride": (1, 3)},
    ),
    "five channels": (
        "bfloat16",
        (1, 7, 9, 5),
        (8, 2, 3, 5),
        (0, 1, 2, 3),
        (),
        {"dilation": (1, 2), "padding": 1},
    ),
    "wide planes": (
        "float16",
        (1, 4, 9, 40),
        (24, 2, 2, 40),
        (3, 0, 1, 2),
        ("x", "dy"),
        {"padding": ((-1, 1), (0, 0))},
    ),
    "groups": ("bfloat16", (2, 5, 6, 32), (16, 2, 2, 16), (0, 3, 1, 2), ("x", "dy"), {"groups": 2}),
    "float": (
        "float32",
        (2, 6, 9, 3),
        (6, 3, 4, 3),
        (0, 3, 1, 2),
        ("x", "dy"),
        {"padding": (1, -1), "stride": 2},
    ),
    "narrow floats": (
        "float32",
        (2, 6, 9, 2),
        (4, 2, 3, 2),
        (0, 1, 2, 3),
        (),
        {"padding": ((2, 1), (-1, 2)), "stride": (3, 1)},
    ),
}


WIDE = "five channels", "wide planes", "groups", "float"  # a filter row is no pixel of these


def copied(name, number=80):
    """(choices of the smallest kernels on each kind of copies, arrays, order, options)."""
    dtype, x_shape, w_shape, order, names, options = COPIED[name]
    problem = Problem.parse(x_shape, w_shape, dtype, dtypes=GPU_DTYPES, **LAST, **options)
    made, each = choose_wgrad(problem, KNOWN[number], images(problem), dtype), []
    for views in copies(made.view, names):
        able = [c for c in consider_all([views], made.arch, None) if c.estimate]
        producers = {c.variant.producer for c in able}
        for producer in sorted(producers):
            same = [c for c in able if c.variant.producer == producer]
            best = min(same, key=lambda c: c.variant.tile_m * c.variant.tile_n)
            each.append(with_splits(replace(made, best=best), 2, stages=2))
    return each, drawn(len(name), x_shape, problem.output_shape), order, options


@compiled
@pytest.mark.parametrize("name", COPIED)
def test_kernels_on_copies_equal_the_cpu(name):
    """NaN follows the last axis in memory, and there is NaN in the workspace before."""
    each, (x, dy), order, options = copied(name)
    assert any(made.best.copies.x.window for made in each) == (name not in WIDE)
    for made in each:
        gap = 3 if made.best.copies.dy else 8
        found = interpreted(made, x, dy, order=order, gap=gap, flaky=0.1)
        np.testing.assert_array_equal(found, expected(made, x, dy, **options), made.best.name)


@compiled
@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("name", ["planes", "narrow floats"])
def test_copies_are_made_of_what_is_far_apart(name, axis):
    """Elements of x, and of dy where it is copied, are more than 32 bits of bytes apart."""
    each, (x, dy), order, options = copied(name)
    made = each[0]
    far = {"x": axis, **({"dy": axis} if made.best.copies.dy else {})}
    found = interpreted(made, x, dy, order=order, far=far)
    np.testing.assert_array_equal(found, expected(made, x, dy, **options))


@compiled
@pytest.mark.parametrize("name", COPIED)
def test_db_of_kernels_on_copies(name):
    each, (x, dy), order, options = copied(name)
    for made in map(with_db, each):
        gap = 3 if made.best.copies.dy else 8
        dw, db = both(made, x, dy, order=order, gap=gap)
        np.testing.assert_array_equal(dw, expected(made, x, dy, **options), made.best.name)
        np.testing.assert_array_equal(db, db_by_cpu(made, dy), made.best.name)


@compiled
@pytest.mark.parametrize("name", ["planes", pytest.param("wide planes", marks=pytest.mark.slow)])
def test_tensor_copies_of_copies_equal_the_cpu(name):
    each, (x, dy), order, options = copied(name, number=90)
    made = next(made for made in each if made.variant.producer == "tma")
    found = interpreted(made, x, dy, order=order, gap=3)
    np.testing.assert_array_equal(found, expected(made, x, dy, **options))


@compiled
@pytest.mark.parametrize("number", [80, pytest.param(90, marks=pytest.mark.slow)])
def test_random_problems_on_copies_equal_the_cpu(number):
    """By the kernels that the planner chooses, of arrays that are planes where both are copied."""
    for seed, made in enumerate(problems_on_copies(KNOWN[number], 2, seed=0)):
        x, dy = gradient_inputs(made, seed)
        order = (0, 3, 1, 2) if made.best.copies.dy else (0, 1, 2, 3)
        found = interpreted(made, x, dy, order=order)
        np.testing.assert_array_equal(found, gradient_by_cpu(made, x, dy), err_msg=str(made.view))


@compiled
def test_nan_is_in_the_sums_of_its_taps_alone_where_it_is_copied():
    each, (x, dy), _, options = copied("a first layer")
    x[1, 2, 3, 1] = np.nan
    for made in each:
        found, want = interpreted(made, x, dy), expected(made, x, dy, **options)
        np.testing.assert_array_equal(found, want)
        assert 0 < np.isnan(want).mean() < 1


TENSOR_FAULTS = {  # of the kernel that sums, with tensor copies
    "x is not transposed": ("p, 1, 1, 1, 1;", "p, 1, 1, 1, 0;"),
    "a step is 8 pixels": ("add.s64 ([ab]), (.*), 128;", r"add.s64 \1, \2, 64;"),
    "taps are one tap": (r", \{(%rs\d+), (%rs\d+)\};", r", {\1, \1};"),
    "an expected byte too few": (r"expect_tx(.*), (%r\d+|\d+);", r"expect_tx\1, 2048;"),
}
TEXT_FAULTS = {  # of the kernel that sums
    "fragments are not transposed": (r"\.x4\.trans", ".x4"),
    "copies fill nothing with zeros": (r"(cp\.async\.cg.*), 16, %r\d+;", r"\1, 16, 16;"),
    "the halves of a fragment are exchanged": (
        r"(m16n8k16.*\}, \{)(%r\d+), (%r\d+)(\}, \{%f)",
        r"\1\3, \2\4",
    ),
    "steps read one pixel too late": (r"(ldmatrix.*trans.*), \[t\];", r"\1, [t+128];"),
    "the last columns are stored by nobody": (
        "setp.gt.s32 p, (.*), 16;",
        r"setp.gt.s32 p, \1, 18;",
    ),
    "stages are full before copies are": ("cp.async.mbarrier.arrive.noinc", "mbarrier.arrive"),
}


@compiled
@pytest.mark.parametrize("fault", [*TEXT_FAULTS, *TENSOR_FAULTS])
def test_fault_in_the_text_is_seen(fault):
    made, x, dy, options = problem("strided copies" if fault in TENSOR_FAULTS else "ragged")
    cc, (old, new) = made.arch.cc, {**TEXT_FAULTS, **TENSOR_FAULTS}[fault]
    text = re.sub(old, new, ptx_of(made.variant, cc))
    assert text != ptx_of(made.variant, cc)
    if "arrive" in new:
        text = re.sub(r"(mbarrier\.arrive\.shared::cta\.b64) (\[%r\d+\];)", r"\1 _, \2", text)
    assert is_seen(made, x, dy, options, [ptx.parse(text), kernel_of(made.split_sum, cc)])


CALL_FAULTS = {
    "a pixel too many": lambda call: call._replace(rows=call.rows + 1),
    "a pixel too few": lambda call: call._replace(rows=call.rows - 1),
    "splits end a k-block early": lambda call: call._replace(k_blocks=call.k_blocks - 1),
    "the last split is not added": lambda call: call._replace(splits=call.splits - 1),
    "images are a pixel shorter": lambda call: call._replace(x_h=call.x_h - call.x_w),
}


@compiled
@pytest.mark.parametrize("fault", CALL_FAULTS)
def test_fault_in_the_arguments_is_seen(monkeypatch, fault):
    made, x, dy, options = problem("ragged")
    right = wgrad.arguments
    monkeypatch.setattr(
        wgrad,
        "arguments",
        lambda *given: [(CALL_FAULTS[fault](call), g) for call, g in right(*given)],
    )
    assert is_seen(made, x, dy, options)


COPY_FAULTS = {  # of the Call and Geometry of the launch that copies x
    "padding is a column wider": lambda call, g: (call, g._replace(pad_w=g.pad_w + 1)),
    "a channel too few": lambda call, g: (call, g._replace(C=g.C - 1)),
    "a chunk too few": lambda call, g: (call._replace(rows=call.rows - 1), g),
    "a row of chunks is shorter": lambda call, g: (call, g._replace(Q=g.Q - 1)),
    "rows of x are a pixel longer": lambda call, g: (call._replace(x_h=call.x_h + call.x_w), g),
}


@compiled
@pytest.mark.parametrize("fault", COPY_FAULTS)
def test_fault_in_a_copy_is_seen(monkeypatch, fault):
    (*_, made), (x, dy), _, options = copied("a first layer")
    right = wgrad.arguments

    def arguments(*given):
        first, *others = right(*given)
        return [COPY_FAULTS[fault](*first), *others]

    monkeypatch.setattr(wgrad, "arguments", arguments)
    assert is_seen(made, x, dy, options)


def is_seen(made, x, dy, options, kernels=None):
    try:
        found = interpreted(made, x, dy, kernels)
    except (ptx.PtxError, WriteError):
        return True
    return not np.array_equal(found, expected(made, x, dy, **options))


@compiled
@pytest.mark.parametrize(
    "v",
    [
        pytest.param(v, id=v.name, marks=() if v.tile_m == 128 else pytest.mark.slow)
        for v in wgrad_variants("bfloat16")
    ],
)
def test_tiles_of_production_equal_the_cpu(v):
    """A tile and a bit of rows and columns, a k-block and a bit of pixels."""
    options = {"padding": (1, 0), "number": 90 if v.producer == "tma" else 80}
    channels = 1 if v.producer == "elements" else 8
    c = v.tile_n // 2 + channels
    made = chosen(v, (1, 9, 10, c), (v.tile_m + channels, 2, 1, c), 2, **options)
    x, dy = drawn(1, (1, 9, 10, c), made.problem.output_shape)
    del options["number"]
    dw, db = both(with_db(made), x, dy)
    np.testing.assert_array_equal(dw, expected(made, x, dy, **options))
    np.testing.assert_array_equal(db, db_by_cpu(made, dy))
    np.testing.assert_array_equal(interpreted(made, x, dy), dw)


@compiled
@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=pytest.mark.slow if n > 80 else ()) for n in families.GENERATIONS],
)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_kernels_are_linked_without_spills(number, dtype):
    from implicit_conv.gpu.cuda.cubin import kernel_of as python_kernel
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel

    cc, expected = KNOWN[number].cc, json.loads(gates.EXPECTED.read_text())
    gated = {(v, cc): name for name, v, cc in gpu_gates.kernels()}
    kernels = {*wgrad_variants(dtype), *wgrad_variants(dtype, 4)}
    kernels |= {replace(v, biased=True) for v in kernels}
    size = ITEMSIZES[dtype]
    copies = [ImageCopy(size, pixels) for pixels in (1, 2, 4, 8) if pixels * size <= 16]
    for v in (*kernels, *copies, SplitSum(dtype), SplitSum(dtype, biased=True)):
        if isinstance(v, WgradVariant) and not supports(v.target, cc):
            continue
        made = compile_kernel(python_kernel(v), signature(), cc, v.threads, v.bound)
        assert (made.spills, made.stack, made.complaints) == (0, 0, []), v
        name = gated.get((v, cc))
        if name and gpu_gates.compiler() == expected["gpu compiler"]:
            assert gpu_gates.counts(made) == expected["gpu"][name], (
                "meant? python -m perf gates --update"
            )


def plan(shape=(64, 56, 56, 64), w_shape=(64, 3, 3, 64), dtype="bfloat16", **options):
    y_shape = (*shape[:3], w_shape[0])
    options = {"padding": (w_shape[1] // 2, w_shape[2] // 2), **LAST, "device": "sm_90a", **options}
    return plan_conv2d_weight_grad(shape, y_shape, w_shape, dtype, **options)


@pytest.mark.parametrize(
    ("shape", "w_shape"),
    [
        ((64, 56, 56, 64), (64, 3, 3, 64)),
        ((64, 7, 7, 512), (512, 3, 3, 512)),
        ((64, 14, 14, 256), (1024, 1, 1, 256)),
    ],
)
def test_splits_fill_the_multiprocessors(shape, w_shape):
    made = plan(shape, w_shape).engine.choice
    best, slots = made.best, made.arch.sms * made.variant.resident
    assert made.blocks > 0.7 * slots * best.estimate.waves
    pixels = shape[0] * shape[1] * shape[2]
    assert (best.splits - 1) * best.k_blocks * made.variant.tile_k < pixels
    assert pixels <= best.splits * best.k_blocks * made.variant.tile_k
    assert made.workspace_bytes == 4 * best.splits * int(np.prod(w_shape))


def test_explanation_and_facts():
    made = plan()
    text, facts = made.explain(), made.facts()
    for words in ("88 splits of the pixels", "workspace   12976128 bytes", "wgrad-wgmma", NOT_RUN):
        assert words in text
    assert facts["kernel"] == facts["candidates"][0]["kernel"] == made.engine.choice.variant.name
    assert made.workspace_bytes == 12976128 and made.packed_bytes == 0
    assert made.peak_bytes == made.workspace_bytes + 2 * 64 * 64 * 9
    with pytest.raises(PlanError, match="loads of weight gradients are listed on CPUs only"):
        made.trace()
    with pytest.raises(PlanError, match="reads no filter"):
        made.pack(np.zeros(1))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"max_workspace": 1000},
            PlanError,
            "sums take 147456 bytes, more than max_workspace=1000",
        ),
        ({"out_dtype": "float64"}, DTypeError, "on a GPU dw is float32, or has the dtype of x"),
        ({"precision": "exact"}, PlanError, "precision 'exact'"),
        ({"padding_mode": "circular"}, PlanError, "computes padding_mode 'zeros'"),
        ({"dtype": "float64"}, DTypeError, "float64"),
        ({"padding": 0}, ShapeError, "dy has shape"),
    ],
)
def test_what_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        plan(**options)


def test_a_limited_workspace_has_fewer_splits():
    assert plan(max_workspace=147456).engine.choice.best.splits == 1
    assert plan(max_workspace=1 << 20).workspace_bytes <= 1 << 20


def test_odd_channels_are_copied():
    made = plan((8, 28, 28, 3), (64, 3, 3, 3)).engine.choice
    assert (made.variant.producer, made.best.copies.names) == ("cp_async", "x")
    even = plan((8, 28, 28, 6), (64, 3, 3, 6)).engine.choice
    assert (even.variant.producer, even.variant.copy_bytes) == ("cp_async", 4)
    assert "6 bytes of channels in a group" in plan((8, 28, 28, 3), (64, 3, 3, 3)).explain()
    assert choose_wgrad(made.problem, made.arch, made.view, "float32").variant == made.variant


def test_a_first_layer_is_copied_by_filter_rows():
    """The 7 x 4 elements of a filter row are 28 of 32: columns are 2 x 4 elements apart."""
    options = {"stride": 2, "padding": 3, **LAST, "device": "sm_90a"}
    shapes = (64, 224, 224, 3), (64, 112, 112, 64), (64, 7, 7, 3)
    made = plan_conv2d_weight_grad(*shapes, "bfloat16", **options)
    best = made.engine.choice.best
    assert best.copies.x.shape == (64, 224, 230, 4)
    assert best.copies.x.strides[2] == best.variant.copy_bytes == 16
    assert (best.view.C, best.view.kernel, best.view.output) == (32, (7, 1), (112, 112))
    copy = 64 * 224 * 230 * 4 * 2
    assert made.workspace_bytes == copy + 4 * best.splits * 64 * 7 * 32
    text = made.explain()
    for words in (
        f"(64, 224, 230, 4), {copy} bytes, in every call",
        "on copies of x by filter row",
    ):
        assert words in text
    elements = next(c for c in made.candidates if c.variant.producer == "elements")
    assert best.cycles < elements.cycles / 10
    limited = plan_conv2d_weight_grad(*shapes, "bfloat16", max_workspace=copy, **options)
    assert limited.engine.choice.variant.producer == "elements"
    assert f"sums and copies take {copy + 4 * 64 * 7 * 32} bytes" in limited.explain()


def test_families_have_the_kernels():
    for family in GRADIENTS.values():
        assert {family_name(v) for v in family.variants} == {family.name}


RUNS = 1, 2, 3, 4, 33, 40


class Memory:
    """Arrays in the memory of the recorded driver."""

    def __init__(self, recorder, device_array):
        self.recorder, self.device_array = recorder, device_array

    def __call__(self, content, order=None, gap=0, offset=0, stream=77):
        """(array on the device, view of its memory): axes in `order` in memory."""
        order = order or tuple(range(content.ndim))
        kept = content.transpose(order)
        room = (*kept.shape[:-1], kept.shape[-1] + gap)
        size = content.itemsize
        start = int(self.recorder._cuMemAlloc(int(np.prod(room)) * size + offset * size))
        whole = self.recorder.memory[start][offset * size :].view(content.dtype).reshape(room)
        view = whole[..., : kept.shape[-1]].transpose(np.argsort(order))
        view[...] = content
        address = start + offset * size
        made = self.device_array(address, content.shape, content.dtype, view.strides, stream)
        return made, view


KINDS = {  # dtype, x, w, options; order of x in memory, gap, offset; order of dw in memory
    "channels last": (
        "float16",
        (2, 16, 6, 7),
        (8, 16, 3, 3),
        {"padding": 1},
        (0, 2, 3, 1),
        0,
        0,
        None,
    ),
    "channels first": ("bfloat16", (2, 16, 6, 7), (8, 16, 3, 3), {}, None, 0, 0, None),
    "gaps": (
        "float16",
        (2, 16, 6, 7),
        (8, 16, 2, 3),
        {"stride": 2},
        (0, 2, 3, 1),
        8,
        0,
        (0, 2, 3, 1),
    ),
    "an offset": ("float32", (2, 16, 6, 7), (8, 16, 3, 3), {}, (0, 2, 3, 1), 0, 1, (2, 3, 1, 0)),
    "groups": ("float16", (2, 6, 6, 7), (4, 3, 2, 2), {"groups": 2}, None, 0, 0, None),
    "signals": ("bfloat16", (2, 16, 30), (8, 16, 5), {"stride": 2}, (0, 2, 1), 0, 0, None),
    "a first layer": (
        "bfloat16",
        (2, 3, 9, 12),
        (8, 3, 5, 4),
        {"stride": 2, "padding": 2},
        (0, 2, 3, 1),
        0,
        0,
        None,
    ),
    "planes of a first layer": ("float16", (1, 3, 7, 9), (9, 3, 3, 3), {}, None, 1, 1, None),
    "planes of floats": ("float32", (2, 2, 7, 9), (6, 2, 3, 3), {}, None, 0, 0, (2, 3, 1, 0)),
}


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_every_repetition_is_right(recorder, device_array, planned, kept):
    """Kinds of calls in turn, 40 times each: new values, in new arrays or in those of before."""
    memory = Memory(recorder, device_array)
    recorder.convolved.append("bfloat16")
    rng = np.random.default_rng(0)
    before = {}
    for time in range(1, max(RUNS) + 1):
        for name, (dtype, x_shape, w_shape, options, order, gap, offset, out) in KINDS.items():
            signals = len(x_shape) == 3
            padding, stride = options.get("padding", 0), options.get("stride", 1)
            sizes = [
                (n + 2 * padding - k) // stride + 1
                for n, k in zip(x_shape[2:], w_shape[2:], strict=True)
            ]
            shapes = x_shape, (x_shape[0], w_shape[0], *sizes)
            x, dy = (rng.integers(-1, 2, shape).astype(numpy_dtype(dtype)) for shape in shapes)
            result = np.full(w_shape, np.nan, x.dtype)
            if kept and name in before:
                arrays = before[name]
                for (_, view), content in zip(arrays, (x, dy, result), strict=True):
                    view[...] = content
            else:
                arrays = memory(x, order, gap, offset), memory(dy, order), memory(result, out)
            before[name] = arrays
            (on_x, _), (on_dy, _), (on_dw, dw) = arrays
            if planned:
                make = plan_conv1d_weight_grad if signals else plan_conv2d_weight_grad
                made = make(*shapes, w_shape, dtype, **options, device="cuda")
                assert made(on_x, on_dy, out=on_dw) is on_dw
            else:
                compute = conv1d_weight_grad if signals else conv2d_weight_grad
                compute(on_x, on_dy, w_shape, **options, out=on_dw)
            if time in RUNS:
                compute = conv1d_weight_grad if signals else conv2d_weight_grad
                wide = x.astype(np.float32), dy.astype(np.float32)
                want = compute(*wide, w_shape, **options, device="cpu")
                np.testing.assert_array_equal(dw.astype(np.float32), want, err_msg=name)
    kinds = {v for v in recorder.kernels if isinstance(v, ImageCopy)}
    assert kinds == {ImageCopy(2, 1), ImageCopy(4, 1)}


@pytest.mark.parametrize("name", COPIED)
def test_calls_on_copies_are_right_in_every_repetition(recorder, device_array, name):
    """New values at new addresses, as channels-last arrays and as planes."""
    recorder.convolved.append("bfloat16")
    memory, rng = Memory(recorder, device_array), np.random.default_rng(1)
    each, _, _, options = copied(name, number=90)
    for made in each:
        engine = GpuWgradEngine(replace(made, candidates=(made.best,)))
        shapes, dtype = (made.view.input_shape, made.view.output_shape), made.view.dtype
        for time in range(1, max(RUNS) + 1):
            x, dy = (rng.integers(-1, 2, shape).astype(numpy_dtype(dtype)) for shape in shapes)
            order = ((0, 1, 2, 3), (0, 3, 1, 2))[time % 2] if made.best.copies.dy else None
            out, dw = memory(np.full(made.view.weight_shape, np.nan, x.dtype))
            recorder.calls.clear()
            assert engine.run(memory(x, order)[0], memory(dy, order)[0], out=out) is out
            assert len(recorder["cuLaunchKernelEx"]) == 2 + len(made.best.copies.all)
            if time in RUNS:
                wide = x.astype(np.float32), dy.astype(np.float32)
                want = conv2d_weight_grad(*wide, made.view.weight_shape, **LAST, **options)
                np.testing.assert_array_equal(dw.astype(np.float32), want, made.best.name)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_numpy_arrays_are_copied(recorder, layout):
    rng = np.random.default_rng(1)
    x, dy = (rng.integers(-1, 2, (2, 8, 8, 8)).astype(np.float16) for _ in range(2))
    options = {"padding": 1, "layout": layout, "weight_layout": "RSCK"}
    out = np.empty((3, 3, 8, 8), np.float32)
    for _ in range(2):
        found = conv2d_weight_grad(
            x, dy, (3, 3, 8, 8), **options, device="cuda", out=out, out_dtype="float32"
        )
        assert found is out
        want = conv2d_weight_grad(x, dy, (3, 3, 8, 8), **options, out_dtype="float32")
        np.testing.assert_array_equal(out, want)
    assert conv2d_weight_grad(x, dy, (3, 3, 8, 8), **options, device="cuda").dtype == np.float16


def test_no_images_have_zeros(recorder):
    x, dy = np.zeros((0, 8, 5, 5), np.float16), np.zeros((0, 8, 3, 3), np.float16)
    found = conv2d_weight_grad(x, dy, (8, 8, 3, 3), device="cuda")
    assert len(recorder["cuLaunchKernelEx"]) == 1 and not found.any()


def test_no_channels_have_no_gradient(recorder):
    x, dy = np.zeros((2, 0, 5, 5), np.float16), np.zeros((2, 8, 3, 3), np.float16)
    assert conv2d_weight_grad(x, dy, (8, 0, 3, 3), device="cuda").shape == (8, 0, 3, 3)
    assert not recorder["cuLaunchKernelEx"]


def gradient(device_array, dw=1 << 22, stream=77, out_stream=77, **options):
    x = device_array(1 << 20, (2, 8, 8, 8), stream=stream)
    dy = device_array(1 << 21, (2, 8, 6, 6), stream=options.pop("dy_stream", stream))
    out = device_array(dw, (8, 8, 3, 3), stream=out_stream)
    return conv2d_weight_grad(x, dy, (8, 8, 3, 3), out=out, **options)


def test_out_may_not_overlap(recorder, device_array):
    for _ in range(2):
        gradient(device_array)
        with pytest.raises(ShapeError, match="out overlaps x in memory"):
            gradient(device_array, dw=(1 << 20) + 512)
        with pytest.raises(ShapeError, match="out overlaps dy in memory"):
            gradient(device_array, dw=(1 << 21) - 512)


def test_workspace_is_freed_and_kernels_follow_each_other(recorder, device_array):
    for _ in range(3):
        recorder.calls.clear()
        gradient(device_array)
        names = [name for name, _ in recorder.calls]
        at = [place for place, name in enumerate(names) if name == "cuLaunchKernelEx"]
        first, second, adds = recorder.variants[0], recorder.variants[1], recorder.variants[-1]
        assert (first, adds) == (ImageCopy(2, 1), SplitSum("float16"))
        assert isinstance(second, WgradVariant)
        assert len(at) == 4  # copies of x and of dy by one kernel
        assert names.index("cuMemAlloc") < at[0] and at[-1] < names.index("cuMemFree")
        assert {int(config.hStream) for config, *_ in recorder["cuLaunchKernelEx"]} == {77}
        assert not recorder.memory


@pytest.mark.parametrize("other", ["dy_stream", "out_stream"])
def test_a_launch_is_among_the_work_of_every_array(recorder, device_array, other):
    recorder._cuEventCreate = lambda _: 1
    for _ in range(2):
        recorder.calls.clear()
        gradient(device_array, **{other: 99})
        names = [n for n, _ in recorder.calls if n.startswith(("cuStreamWait", "cuLaunch"))]
        assert names == ["cuStreamWaitEvent", *["cuLaunchKernelEx"] * 4, "cuStreamWaitEvent"]


def test_a_result_is_of_torch(recorder, on_gpu, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    made = []
    real = torch.empty_strided

    def empty(sizes, steps, dtype, device):
        made.append((tuple(sizes), dtype))
        return on_gpu(real(sizes, steps, dtype=dtype))

    monkeypatch.setattr(torch, "empty_strided", empty)
    x, dy = (
        on_gpu(torch.zeros(shape).half().to(memory_format=torch.channels_last))
        for shape in ((2, 8, 8, 8), (2, 8, 6, 6))
    )
    for _ in range(2):
        made.clear()
        found = conv2d_weight_grad(x, dy, (8, 8, 3, 3))
        assert type(found) is type(x) and found.shape == (8, 8, 3, 3)
        (shape, dtype), ((count,), sums) = made
        assert (shape, dtype, sums) == ((8, 8, 3, 3), torch.float16, torch.float32)
        assert count % (8 * 8 * 9) == 0


@pytest.mark.parametrize("words", ["bias", "scale", "residual"])
def test_plans_take_x_and_dy_alone(recorder, device_array, words):
    made = plan_conv2d_weight_grad(
        (2, 8, 8, 8), (2, 8, 6, 6), (8, 8, 3, 3), "float16", device="cuda"
    )
    x, dy = device_array(1 << 20, (2, 8, 8, 8)), device_array(1 << 21, (2, 8, 6, 6))
    with pytest.raises(PlanError, match="weight gradients have no bias, scale or residual"):
        made(x, dy, **{words: 1.0})


def test_maps_follow_the_arrays(recorder, device_array):
    """One describes x, the other dy, in a first call and for new addresses."""
    made = plan_conv2d_weight_grad(
        (2, 8, 8, 16), (2, 8, 8, 16), (16, 3, 3, 16), "float16", padding=1, **LAST, device="cuda"
    )
    assert made.engine.choice.variant.producer == "tma"
    for move in (0, 1 << 12):
        recorder.calls.clear()
        x, dy = (device_array((1 << n) + move, (2, 8, 8, 16)) for n in (20, 21))
        made(x, dy, out=device_array(1 << 22, (16, 3, 3, 16)))
        moved = [int(address) for _, address in recorder["cuTensorMapReplaceAddress"]]
        assert moved == [(1 << 20) + move, (1 << 21) + move]
    recorder.calls.clear()
    made(
        device_array(1 << 20, (2, 8, 8, 16), strides=(2304, 288, 32, 2)),
        dy,
        out=device_array(1 << 22, (16, 3, 3, 16)),
    )
    assert not recorder["cuTensorMap"]
    assert recorder.variants[-1].producer == "cp_async"


def test_images_without_a_batch_axis(recorder):
    rng = np.random.default_rng(2)
    x, dy = (rng.integers(-1, 2, (8, 6, 7)).astype(np.float16) for _ in range(2))
    found = conv2d_weight_grad(x, dy, (8, 8, 3, 3), padding="same", device="cuda")
    want = conv2d_weight_grad(x, dy, (8, 8, 3, 3), padding="same")
    np.testing.assert_array_equal(found, want)


DB_KINDS = {  # dtype of x, x, w, order in memory, gap, options
    "channels last": ("float16", (2, 9, 8, 16), (24, 3, 3, 16), (0, 1, 2, 3), 0, {"padding": 1}),
    "planes": ("bfloat16", (2, 9, 8, 16), (9, 3, 2, 16), (0, 3, 1, 2), 0, {"stride": 2}),
    "gaps": ("float32", (3, 5, 8, 20), (12, 2, 2, 20), (0, 1, 2, 3), 4, {}),
    "groups": ("bfloat16", (2, 5, 6, 32), (16, 2, 2, 16), (0, 1, 2, 3), 0, {"groups": 2}),
    "a first layer": ("float16", (2, 9, 12, 3), (8, 3, 5, 3), (0, 1, 2, 3), 0, {"padding": 2}),
}


@pytest.mark.parametrize("kept", [False, True])
def test_db_is_right_in_every_repetition(recorder, device_array, kept):
    """With db and without, of one plan: new values, in new arrays or in those of before."""
    recorder.convolved.append("bfloat16")
    memory, rng, before = Memory(recorder, device_array), np.random.default_rng(3), {}
    for time in range(1, max(RUNS) + 1):
        for name, (dtype, x_shape, w_shape, order, gap, options) in DB_KINDS.items():
            problem = Problem.parse(x_shape, w_shape, dtype, dtypes=GPU_DTYPES, **LAST, **options)
            shapes = x_shape, problem.output_shape
            x, dy = (rng.integers(-1, 2, shape).astype(numpy_dtype(dtype)) for shape in shapes)
            results = (np.full(shape, np.nan, x.dtype) for shape in (w_shape, w_shape[:1]))
            given = x, dy, *results
            if kept and name in before:
                for (_, view), content in zip(before[name], given, strict=True):
                    view[...] = content
            else:
                before[name] = [
                    memory(x, order, gap),
                    memory(dy, order, gap),
                    *map(memory, given[2:]),
                ]
            (on_x, _), (on_dy, _), (on_dw, dw), (on_db, db) = before[name]
            engine = plan_conv2d_weight_grad(
                *shapes, w_shape, dtype, **LAST, **options, device="cuda"
            ).engine
            if time % 3 == 1:
                engine.run(on_x, on_dy, out=on_dw)
                assert np.isnan(db.astype(np.float32)).all()
            assert engine.run(on_x, on_dy, out=on_dw, db=on_db) is on_dw
            if time in RUNS:
                wide = x.astype(np.float32), dy.astype(np.float32)
                want = conv2d_weight_grad(*wide, w_shape, **LAST, **options)
                np.testing.assert_array_equal(dw.astype(np.float32), want, err_msg=name)
                np.testing.assert_array_equal(
                    db.astype(np.float32), wide[1].sum((0, 1, 2)), err_msg=name
                )


def test_db_takes_no_launch_of_its_own(recorder, device_array):
    """Sums of dy are K of each split, in a workspace that the plan counts."""
    engine = plan_conv2d_weight_grad(
        (2, 8, 8, 16), (2, 8, 8, 16), (16, 3, 3, 16), "float16", padding=1, **LAST, device="cuda"
    ).engine
    choice = wgrad.with_bias(engine.choice)
    best = choice.best
    assert best.workspace_bytes == 4 * best.splits * (16 * 9 * 64 + 16)  # tensor copies pad C
    shapes = [((16, 3, 3, 16), 22), ((16,), 23)]
    out, db = (device_array(1 << n, shape) for shape, n in shapes)
    engine.run(
        device_array(1 << 20, (2, 8, 8, 16)), device_array(1 << 21, (2, 8, 8, 16)), out=out, db=db
    )
    assert len(recorder["cuLaunchKernelEx"]) == 2
    assert recorder.variants == [choice.variant, SplitSum("float16", biased=True)]
    call, *_ = recorder.launched()
    assert (call.bias, call.w) == (1 << 23, 1 << 22)


def test_the_estimate_counts_db():
    """By less than a tenth of the time, and with the same refusals."""
    for shape, w_shape in (
        ((64, 56, 56, 64), (64, 3, 3, 64)),
        ((64, 14, 14, 256), (1024, 1, 1, 256)),
    ):
        choice = plan(shape, w_shape).engine.choice
        more = wgrad.with_bias(choice)
        assert choice.best.cycles < more.best.cycles < 1.1 * choice.best.cycles
        assert all(c.variant.biased for c in more.candidates)
        assert [bool(c.reason) for c in more.candidates] == [
            bool(c.reason) for c in choice.candidates
        ]
        assert "db" in more.best.name and more.limit == choice.limit
        able = [
            (own.estimate.multiply, other.estimate.multiply)
            for own, other in zip(choice.candidates, more.candidates, strict=True)
            if own.estimate
        ]
        assert all(1.02 < other / own < 1.2 for own, other in able)


def test_db_in_a_limited_workspace():
    choice = plan(max_workspace=147456 + 255).engine.choice
    with pytest.raises(PlanError, match="sums take 147712 bytes, more than max_workspace=147711"):
        wgrad.with_bias(choice)
    assert wgrad.with_bias(plan(max_workspace=147712).engine.choice).best.splits == 1


def test_db_needs_channels():
    made = plan_conv2d_weight_grad(
        (2, 5, 5, 0), (2, 3, 3, 8), (8, 3, 3, 0), "float16", **LAST, device="sm_90a"
    )
    with pytest.raises(PlanError, match="no block sums dy where there are no channels"):
        wgrad.with_bias(made.engine.choice)


def test_db_of_no_images_is_zero(recorder, device_array):
    memory = Memory(recorder, device_array)
    engine = plan_conv2d_weight_grad(
        (0, 5, 5, 8), (0, 3, 3, 8), (8, 3, 3, 8), "float16", **LAST, device="cuda"
    ).engine
    (out, dw), (added, db) = (memory(np.full(s, np.nan, "f2")) for s in ((8, 3, 3, 8), (8,)))
    x, dy = (device_array(1 << 20, shape) for shape in ((0, 5, 5, 8), (0, 3, 3, 8)))
    engine.run(x, dy, out=out, db=added)
    assert not dw.any() and not db.any()


def test_warps_share_the_rows_of_dy():
    WgradVariant("cp_async", "bfloat16", 64, 64, 2, 1)
    with pytest.raises(ValueError, match="a warp adds up 16 rows of dy"):
        WgradVariant("cp_async", "bfloat16", 64, 64, 2, 1, biased=True)


def test_the_check_of_hardware_passes_on_a_recorded_driver(recorder):
    """Each kernel with db and without; a launch that adds up nothing is reported."""
    recorder.convolved.append("bfloat16")
    assert not [*check_weight_gradients("1")]
    recorder.convolved.remove("float32")
    assert any("float32" in line for line in check_weight_gradients("1"))
