"""Bias, residual, activation and rounding of the epilogue, and the dump kernel, interpreted."""

import contextlib
import functools
import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import ptx, tma
from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import Limits, pack
from implicit_conv.kernels.gpu.sizes import DUMP_DATA_AT, DUMP_THREADS
from implicit_conv.problem.options import parse_activation
from implicit_conv.testing import Case, error_units, from_nchw, to_nchw
from implicit_conv.testing.gpu.problems import (
    dump_call,
    example_copies,
    loaded,
    plan_small,
    random_case,
    stored,
    with_epilogue,
)
from perf.bringup.emulated import encoded
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import tool

if importlib.util.find_spec("numba_cuda") is None or tool("nvdisasm") is None:
    pytest.skip("needs pip install '.[cu13,assemble]' in a checkout", allow_module_level=True)

EXACT = ("relu", "relu6", ("clamp", -3.0, 5.0))  # one kernel with other limits
SMOOTH = ("silu", "gelu", "sigmoid", "tanh", "hardswish")
CASE = Case(
    N=2, C=24, K=40, size=(5, 6), padding=((1, 1), (1, 1)), layout="NHWC", weight_layout="KRSC"
)
# family, variant of the family, layout: every producer's epilogue is the same
STORES = (
    ("fma", 0, "NHWC"),
    ("tma-mma", 0, "NHWC"),
    ("cp_async-mma", 0, "NHWC"),
    ("elements-mma", 0, "NCHW"),
    ("direct", 0, "NHWC"),
    ("direct", 4, "NCHW"),
)


@functools.cache
def kernel_of(v, cc):
    return ptx.parse(ptx_of(v, cc))


def interpreted(plan, x, w, bias=None, residual=None, **options):
    """A bias of two axes is pairs (scale, bias)."""
    scaled = bias is not None and bias.ndim == 2
    plan = with_epilogue(plan, bias is not None, residual is not None, scaled)
    kernel, dtype = kernel_of(plan.variant, plan.arch.cc), plan.variant.dtype
    out = plan.variant.y_dtype
    given = [None if array is None else stored(array, dtype) for array in (x, w, bias, residual)]
    if scaled:
        given[2] = bias
    return loaded(interpret(plan, kernel, *given, blocks=2, **options), out)


def apply(name, x):
    """The activation by its definition, in float64."""
    if isinstance(name, tuple):
        if name[0] == "leaky_relu":
            return np.where(x < 0, name[1] * x, x)
        return np.clip(x, *name[1:])
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-x))
    return {
        None: x,
        "relu": np.maximum(x, 0),
        "relu6": np.clip(x, 0, 6),
        "sigmoid": sigmoid,
        "silu": x * sigmoid,
        "tanh": np.tanh(x),
        "hardswish": x * np.clip(x + 3, 0, 6) / 6,
        "gelu": 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    }[name]


def run(
    family,
    number,
    layout,
    activation,
    integers,
    biased=True,
    added=True,
    scaled=False,
    rounded=True,
    **options,
):
    """(y, expected, dtype of y); residuals are `added`."""
    v = replace(FAMILIES[family].variants[number], rounded=rounded)
    layouts = {"layout": layout, "weight_layout": "KRSC" if layout == "NHWC" else "KCRS"}
    case = Case(**{**CASE.__dict__, **layouts})
    if v.strip:
        c, k = v.strip.group_c, v.strip.group_k
        case = replace(case, C=c, K=k, groups=CASE.K // k)
    plan = plan_small(case, FAMILIES[family], v, activation=parse_activation(activation))
    rng = np.random.default_rng(0)
    x, w = case.inputs(1, integers=integers)
    bias, residual = rng.integers(-4, 5, CASE.K), rng.integers(-4, 5, (2, CASE.K, 5, 6))
    if not integers:
        x, w = (loaded(stored(array, v.dtype), v.dtype) / 4 for array in (x, w))
    given = np.ascontiguousarray(from_nchw(residual, layout)).astype(np.float32)
    scale = 2.0 ** rng.integers(-1, 3, CASE.K) if scaled else np.ones(CASE.K)
    vector = np.stack((scale, bias), 1) if scaled else bias
    epilogue = vector.astype(np.float32) if biased else None, given if added else None
    y = interpreted(plan, *case.arrange(x, w), *epilogue, **options)
    total = scale[:, None, None] * case.reference(x, w) + biased * bias[:, None, None]
    total += added * residual
    return to_nchw(y, layout), apply(activation, total), v.y_dtype


@pytest.mark.slow
@pytest.mark.parametrize(("family", "number", "layout"), STORES)
def test_exact_on_integers(family, number, layout):
    for activation in EXACT:
        y, expected, dtype = run(family, number, layout, activation, integers=True)
        np.testing.assert_array_equal(y, loaded(stored(expected, dtype), dtype))


ABSENT = (
    ("tma-mma", 0, "NHWC", False, False),
    ("tma-mma", 0, "NHWC", True, False),
    ("tma-w-mma", 1, "NHWC", False, True),  # float16
    ("fma", 0, "NHWC", False, False),
    ("elements-mma", 0, "NCHW", False, False),
    ("direct", 0, "NHWC", False, True),
    ("direct", 3, "NHWC", False, False),
    ("direct", 4, "NCHW", True, False),
)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "number", "layout", "biased", "added"), ABSENT)
def test_without_bias_or_residual(family, number, layout, biased, added):
    y, expected, dtype = run(family, number, layout, None, True, biased, added)
    np.testing.assert_array_equal(y, loaded(stored(expected, dtype), dtype))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "number", "layout"), STORES)
@pytest.mark.parametrize("added", [True, False])
def test_scale(family, number, layout, added):
    """By powers of two, so that values are exact: each filter's own, before bias and residual."""
    y, expected, dtype = run(family, number, layout, "relu", True, True, added, scaled=True)
    np.testing.assert_array_equal(y, loaded(stored(expected, dtype), dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "number", "layout", "biased", "added", "scaled"),
    [
        ("tma-mma", 0, "NHWC", True, True, False),
        ("cp_async-mma", 1, "NHWC", True, False, False),  # float16
        ("tma-w-mma", 1, "NHWC", False, True, False),
        ("tma-mma", 0, "NHWC", True, True, True),
        ("elements-mma", 0, "NCHW", True, True, False),
        ("elements-mma", 1, "NCHW", False, False, False),
    ],
)
def test_sums_that_are_not_rounded(family, number, layout, biased, added, scaled):
    """y is float32, bias and residual have the dtype of x; sums exceed what 16 bits hold."""
    y, expected, dtype = run(
        family, number, layout, None, True, biased, added, scaled, rounded=False
    )
    assert dtype == "float32" and y.dtype == np.float32
    np.testing.assert_array_equal(y, expected)
    narrow = FAMILIES[family].variants[number].dtype
    if narrow == "bfloat16":
        assert (loaded(stored(expected, narrow), narrow) != expected).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(FAMILIES.keys() - {"direct", "fma", "volume-fma"})
)  # sums of float32 are kept in any case
def test_all_families_keep_their_sums(name):
    family, rng = FAMILIES[name], np.random.default_rng(3)
    v = replace(family.variants[0], rounded=False)
    plan = None
    while plan is None:
        case = random_case(rng, family, v)
        with contextlib.suppress(ValueError):  # no tensor map can express the walk
            plan = plan_small(case, family, v)
    x, w = case.inputs(3, integers=True)
    y = to_nchw(interpreted(plan, *case.arrange(x, w)), case.layout)
    np.testing.assert_array_equal(y, case.reference(x, w))


@pytest.mark.slow
def test_what_is_absent_is_not_loaded():
    """Tensor copies load x and w, so nothing else loads from global memory."""
    family = FAMILIES["tma-mma"]
    plan = with_epilogue(plan_small(CASE, family, family.variants[0]), False, False)
    text = ptx_of(plan.variant, plan.arch.cc)
    assert "st.global.v4" in text and "ld.global" not in text


@pytest.mark.slow
@pytest.mark.parametrize(("family", "number", "layout"), STORES)
def test_residual_that_is_the_output(family, number, layout):
    """It is not read by ld.global.nc, which the interpreter would refuse."""
    y, expected, dtype = run(family, number, layout, "relu", True, in_place=True)
    np.testing.assert_array_equal(y, loaded(stored(expected, dtype), dtype))


@pytest.mark.slow
def test_leaky_relu():
    y, expected, dtype = run("tma-mma", 0, "NHWC", ("leaky_relu", 0.5), integers=True)
    np.testing.assert_array_equal(y, loaded(stored(expected, dtype), dtype))


@pytest.mark.slow
@pytest.mark.parametrize("activation", SMOOTH)
def test_smooth_activations(activation):
    y, expected, _ = run("fma", 0, "NHWC", activation, integers=False)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_float32_meets_its_bound():
    """Products are not rounded to fewer bits than float32 has."""
    plan = plan_small(CASE, FAMILIES["fma"], FAMILIES["fma"].variants[0])
    x, w = CASE.inputs(2)
    y = interpreted(plan, *CASE.arrange(x, w))
    scale = CASE.reference(x, w, magnitude=True)
    assert error_units(to_nchw(y, "NHWC"), CASE.reference(x, w), scale, "float32") < 16


@pytest.mark.slow
def test_nan_reaches_its_receptive_field_only():
    family = FAMILIES["tma-w-mma"]
    x, w = CASE.inputs(3, integers=True)
    w[w == 0] = 1
    x[0, 0, 2, 3] = np.nan
    y = interpreted(plan_small(CASE, family, family.variants[0]), *CASE.arrange(x, w))
    expected = np.zeros((2, 5, 6), bool)
    expected[0, 1:4, 2:5] = True
    np.testing.assert_array_equal(np.isnan(y), np.repeat(expected[..., None], CASE.K, axis=-1))


@pytest.mark.slow
def test_no_channels_sum_to_zero():
    """The consumer waits for one k-block even then, so the producer fills it with zeros."""
    case = replace(CASE, C=0)
    family = FAMILIES["elements-mma"]
    y = interpreted(plan_small(case, family, family.variants[-1]), *case.arrange(*case.inputs(0)))
    assert y.size and not y.any()


@functools.cache
def dump_kernel(mode):
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_ptx
    from implicit_conv.kernels.gpu.dump import make_dump

    return ptx.parse(compile_ptx(make_dump(mode), signature(), KNOWN[100].cc, DUMP_THREADS))


@pytest.mark.slow
@pytest.mark.parametrize("copy", example_copies(), ids=lambda copy: copy.name)
def test_dump_returns_the_image(copy):
    """The bytes that implicit_conv.tma derives for a copy, from the interpreter's own walk."""
    memory = ptx.Memory()
    bits, x = copy.tensor(np.random.default_rng(0))
    map = copy.at(memory.put(bits))
    image = tma.smem_image(
        map, x, copy.coords, dst=0, offsets=copy.offsets, w_halo=copy.halo, w_offset=copy.offset
    )
    size = len(image.bytes)
    y = np.full(size, 0xFF, np.uint8)
    nothing = Geometry(*[0] * len(Geometry._fields))
    call = dump_call(copy, memory.put(y), size)
    ptx.Launch(
        dump_kernel(copy.mode),
        parameters=pack(encoded(memory, map.arguments), None, call, nothing, Limits(0.0, 0.0)),
        memory=memory,
        grid=(1, 1, 1),
        block=(DUMP_THREADS, 1, 1),
        shared_bytes=DUMP_DATA_AT + -(-size // (16 * DUMP_THREADS)) * 16 * DUMP_THREADS,
    ).run()
    np.testing.assert_array_equal(y, image.bytes)
