"""The bound of sums on any data: a product takes part in few additions, whichever method adds it.

A sum of n products differs from the exact one by at most `most_units(n)` * eps * sum|x||w|. It is
tested on data that is made to lose much: a large product and small ones, each of which rounds the
sum in the same direction, placed for chains and for each level above them; equal products; signs
that alternate; exponents over the whole range. Exact sums are those of `math.fsum`.
"""

import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from ways import arches

import implicit_conv as ic
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.methods.gemm_tilings import BLOCK_ELEMENTS, BLOCKS, spread_block
from implicit_conv.cpu.methods.im2col import Im2col
from implicit_conv.kernels import schedule
from implicit_conv.testing import EPS, Case, changed, from_nchw, plan_of, to_nchw

EPS_OF = {dtype: EPS["float32"] for dtype in ("bfloat16", "float16")} | EPS
SPACINGS = (1, 5, 16, 64, 80, 128)  # products from one small one to the next


def most_units(n):
    """The bound in units of eps * sum|x||w|, as docs/trust/reliability.md states it."""
    return min(n, 18 + 16 * math.log2(n))


def most_units_of_weight_gradients(n):
    """The bound of sums over n pixels, of which 256 are added one by one."""
    return min(n, 130 + 16 * math.log2(n))


def patterns(n, dtype):
    """Rows of n values whose sums lose much when they are added in order."""
    unit, rng = EPS_OF[dtype], np.random.default_rng(n)
    step = 2.0**-7  # small values are this much above and below half a unit in the last place
    rows = []
    options = itertools.product((0, n // 3), SPACINGS, (64, n), (1 + step, 1 - step))
    for first, spacing, count, side in options:
        row = np.zeros(n)
        row[:128] = unit * side  # a chain
        row[: count * spacing : spacing] = unit * side  # one value in each of `count` chains
        row[:: 64 * spacing] = unit * side  # one value in each sum of 64 chains
        row[first] = 1
        rows += [row, -row, row[::-1]]
    for mantissa in (1.0, 1 + step, 4 / 3, 1.5, 1.1):
        equal = np.full(n, mantissa)
        rows += [equal, np.where(np.arange(n) % 2, -equal, equal * (1 + step))]
    for bits in (2, 8, 24):
        exponents = rng.integers(-bits, bits + 1, (2, n)).astype(float)
        rows += [*(np.exp2(exponents) * rng.uniform(1, 2, (2, n)))]
        rows += [*(np.exp2(exponents) * rng.uniform(-2, 2, (2, n)))]
    scale = 2.0**10 if dtype == "float16" else 1.0  # whose subnormals are larger
    return np.unique(np.clip(np.array(rows) * scale, -60_000, 60_000), axis=0).astype(
        numpy_dtype(dtype)
    )


def largest_units(y, rows, dtype):
    """The largest error of the sums `y` of the rows in units of eps * sum|x||w|; y[i] has sums of
    row i.
    """
    terms = rows.astype(np.float64)
    shape = (-1, *[1] * (y.ndim - 1))
    exact, size = (
        np.array([math.fsum(row) for row in values]).reshape(shape)
        for values in (terms, np.abs(terms))
    )
    return float((np.abs(y.astype(np.longdouble) - exact) / (EPS_OF[dtype] * size)).max())


def plans(case):
    """A plan for each method whose errors `most_units` bounds, on each way that this CPU has."""
    for arch in arches(case.dtype):
        plan = plan_of(case, arch, out_dtype="float64" if case.dtype == "float64" else "float32")
        found = {}
        for c in plan.candidates:
            if "winograd" not in c.algorithm:
                found.setdefault((type(c.method), c.method.order), c)
        for c in found.values():
            yield changed(plan, **{field.name: getattr(c, field.name) for field in fields(c)})


def filters(rows, case):
    """Filters (K, C, taps) whose elements are `rows`: in this order, and with channels last."""
    shape = case.shapes["w"][1:]
    if math.prod(case.kernel) == 1 or case.C == 1:
        return rows.reshape(len(rows), *shape)
    last = rows.reshape(len(rows), *shape[1:], shape[0])
    return np.concatenate([rows.reshape(len(rows), *shape), np.moveaxis(last, -1, 1)])


def bound_of(plan, n):
    """The bound of a plan's sums of n products: AMX and BLAS may add all of them one by one."""
    method = plan.engine.best.method
    one_by_one = isinstance(method, Im2col) or getattr(method, "multiplier", "") == "amx"
    return n if one_by_one else most_units(n)


def rank(size, kernel, **more):
    """A case of one or three spatial axes."""
    layouts = {1: ("NCW", "KCS"), 3: ("NCDHW", "KCTRS")}[len(size)]
    layout, weight_layout = layouts
    pads = ((0, 0),) * len(size)
    ones = (1,) * len(size)
    return Case(
        size=size,
        kernel=kernel,
        stride=ones,
        dilation=ones,
        padding=pads,
        layout=layout,
        weight_layout=weight_layout,
        **more,
    )


POINT = {"kernel": (1, 1)}
CASES = {
    **{f"1x1 C={C}": Case(C=C, size=(2, 9), **POINT) for C in (1, 2, 127, 129, 257, 1000, 3000)},
    "1x1 C=30000": Case(C=30_000, size=(4, 8), **POINT),
    "1x1 planes": Case(C=1000, size=(12, 12), **POINT),
    "1x1 NHWC": Case(C=3000, size=(4, 9), layout="NHWC", **POINT),
    "few pixels NHWC": Case(C=3000, size=(1, 2), layout="NHWC", weight_layout="KRSC", **POINT),
    "3x3": Case(C=300, size=(5, 20)),
    "3x3 NHWC": Case(C=64, size=(5, 20), layout="NHWC"),
    "7x7": Case(C=60, size=(9, 12), kernel=(7, 7)),
    "few channels": Case(C=3, size=(12, 24), kernel=(7, 7)),
    "long": rank((10_020,), (10_000,)),
    "volume": rank((5, 6, 9), (3, 5, 5), C=20),
    "float64": Case(C=1000, size=(2, 9), dtype="float64", **POINT),
    "float64 3x3": Case(C=70, size=(5, 9), dtype="float64"),
    "whole tiles of AMX": Case(C=1024, size=(4, 9), dtype="bfloat16", layout="NHWC", **POINT),
    "bfloat16": Case(C=1000, size=(2, 9), dtype="bfloat16", layout="NHWC", **POINT),
    "float16": Case(C=300, size=(3, 9), dtype="float16"),
}
DEPTHWISE = {
    "large planes": Case(size=(33, 50), kernel=(31, 31)),
    "large": Case(size=(32, 35), kernel=(31, 31), layout="NHWC"),
    "a long row": Case(size=(1, 700), kernel=(1, 601)),
    "groups of two": Case(C=2, K=2, size=(23, 26), kernel=(21, 21), layout="NHWC"),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_keep_the_bound(name):
    case = CASES[name]
    n = case.C * math.prod(case.kernel)
    rows = patterns(n, case.dtype)
    w = filters(rows, case)
    rows = np.resize(rows, (len(w), n))
    case = replace(case, K=len(w))
    x = np.ones(case.shapes["x"], w.dtype)
    for plan in plans(case):
        y = to_nchw(plan(*case.arrange(x, w)), case.layout)
        units = largest_units(np.moveaxis(y, 1, 0), rows, case.dtype)
        assert units <= bound_of(plan, n), plan.engine.best.name


@pytest.mark.parametrize("name", DEPTHWISE)
def test_sums_of_groups_keep_the_bound(name):
    case = DEPTHWISE[name]
    n = case.C * math.prod(case.kernel)
    rows = patterns(n, case.dtype)
    rows = rows[: len(rows) // case.K * case.K]
    case = replace(case, groups=len(rows) // case.K)
    w = rows.reshape(case.shapes["w"])
    x = np.ones(case.shapes["x"], w.dtype)
    for plan in plans(case):
        y = to_nchw(plan(*case.arrange(x, w)), case.layout)
        units = largest_units(np.moveaxis(y, 1, 0), rows, case.dtype)
        assert units <= bound_of(plan, n), plan.engine.best.name


EQUAL = {
    "128": Case(C=128, size=(4, 8), **POINT),
    "3000": Case(C=3000, size=(4, 8), **POINT),
    "30000": Case(C=30_000, size=(4, 8), **POINT),
    "3x3": Case(C=333, size=(4, 10)),
}
# The mantissas that lost most of 4,000.
WORST = (1.9833908, 1.5815811, 1.7753983, 1.5912399, 1.7565079, 1.664711, 1.972496, 1.9470594)


@pytest.mark.parametrize("name", EQUAL)
def test_equal_products_lose_half_of_the_bound(name):
    case = replace(EQUAL[name], K=40)
    n = case.C * math.prod(case.kernel)
    values = np.float32([*WORST, *np.random.default_rng(n).uniform(1, 2, case.K - len(WORST))])
    rows = np.repeat(values[:, None], n, axis=1)
    w, x = filters(rows, case)[: case.K], np.ones(case.shapes["x"], np.float32)
    for plan in plans(case):
        y = np.moveaxis(plan(x, w), 1, 0)
        assert largest_units(y, rows, "float32") <= (most_units(n) + 1) / 2, plan.engine.best.name


@pytest.mark.parametrize(
    ("N", "size", "kernel"),
    [
        (1, (1, 3000), (1, 1)),
        (2, (40, 41), (3, 3)),
        (3, (14, 14), (1, 1)),
        (1, (120, 125), (1, 1)),
        (300, (1, 1), (1, 1)),
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weight_gradients_keep_the_bound_of_their_pixels(N, size, kernel, layout, dtype):
    n = N * math.prod(size)
    rows = patterns(n, dtype)
    dy = np.moveaxis(rows.reshape(len(rows), N, *size), 0, 1)
    shape = (N, 1, *(s + taps - 1 for s, taps in zip(size, kernel, strict=True)))
    for groups in (1, len(rows)):
        x = np.ones((N, groups, *shape[2:]), dtype)
        given = (np.ascontiguousarray(from_nchw(array, layout)) for array in (x, dy))
        w_shape = (len(rows), 1, *kernel)
        dw = ic.conv2d_weight_grad(*given, w_shape, layout=layout, groups=groups)
        assert largest_units(dw, rows, dtype) <= most_units_of_weight_gradients(n)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_input_gradients_keep_the_bound(stride, layout):
    n, size = 2000, 9
    rows = patterns(n, "float32")
    w = np.ascontiguousarray(rows.T)[..., None, None]  # the sums are over the filters
    dy = np.ones((1, n, size, size), np.float32)
    shape = 1, len(rows), stride * (size - 1) + 1, stride * (size - 1) + 1
    given = np.ascontiguousarray(from_nchw(dy, layout))
    wanted = from_nchw(np.empty(shape), layout).shape
    dx = ic.conv2d_input_grad(given, w, wanted, stride=stride, layout=layout, precision="strict")
    dx = to_nchw(dx, layout)[:, :, ::stride, ::stride]
    assert largest_units(np.moveaxis(dx, 1, 0), rows, "float32") <= most_units(n)


def test_complex_sums_have_twice_the_products():
    n = 1000
    rows = patterns(2 * n, "float32")
    w = (rows[:, ::2] + 1j * rows[:, 1::2]).astype(np.complex64)[..., None, None]
    x = np.full((1, n, 2, 9), 1 - 1j, np.complex64)  # the real part adds up both parts of w
    y = ic.conv2d(x, w, precision="strict").real
    assert largest_units(np.moveaxis(y, 1, 0), rows, "float32") <= most_units(2 * n)


def test_an_epilogue_adds_one_unit_for_each_operand():
    n, rng = 1000, np.random.default_rng(0)
    rows = patterns(n, "float32").astype(np.float64)
    exact = np.array([math.fsum(row) for row in rows])
    size = np.array([math.fsum(abs(row)) for row in rows])
    scale, bias, residual = (
        np.float32(np.exp2(rng.uniform(-20, 20, len(rows))) * rng.choice((-1, 1), len(rows)))
        for _ in range(3)
    )
    x, w = np.ones((1, n, 1, 1), np.float32), rows.astype(np.float32)[..., None, None]
    y = ic.conv2d(x, w, bias, scale=scale, residual=residual.reshape(1, -1, 1, 1))
    wanted = scale.astype(float) * exact + bias + residual
    magnitude = abs(scale.astype(float)) * size + abs(bias) + abs(residual)
    error = np.abs(y.reshape(-1) - wanted) / (EPS["float32"] * magnitude)
    assert error.max() <= most_units(n) + 3


def additions(count):
    """The additions that a sum takes part in, at most, if `count` sums are added in levels."""
    if count <= 64:
        return count - 1
    levels = math.ceil(math.log(count, 64)) - 1
    return (
        63 * levels + math.ceil(count / 64**levels) - 1 + levels + 1
    )  # all levels, the last chain


def chains(row, rows, word):
    """(Products of the longest chain, the number of chains) of implicit GEMM for `rows` rows of
    elements, each of `word` channels.
    """
    chain = schedule.CHAIN // word
    if row > chain:
        return word * schedule.chain_length(row, chain), rows * schedule.chain_parts(row, chain)
    together = schedule.chain_rows(row, chain)
    return word * row * min(rows, together), -(-rows // together)


def test_no_product_takes_part_in_more_additions_than_the_bound():
    for taps, rows in itertools.product((1, 2, 3, 7, 31, 173, 1001), repeat=2):
        for C in (*range(1, 300), *range(300, 40_000, 397), 1 << 20):
            n = C * taps * rows
            for word in (1, 2):  # channels of an element: pairs of bfloat16 have two
                words = -(-C // word)
                blocks = min(-(-words * taps * rows // BLOCK_ELEMENTS), words, BLOCKS)
                longest, count = chains(-(-words // blocks) * taps, rows, word)
                added = longest + additions(count) + blocks - 1  # blocks are added one by one
                assert added <= most_units(words * word * taps * rows), (C, taps, rows, word)
            longest, count = min(schedule.CHAIN, n), -(-n // schedule.CHAIN)  # of other methods
            assert longest + additions(count) <= most_units(n), n
    for n in (*range(1, 3000), *(1 << bits for bits in range(12, 31))):  # pixels in 16 parts
        tiles = -(-n // 129) if n > 256 else 1
        assert min(n, 256) + additions(tiles) + 15 * (tiles > 64) <= most_units_of_weight_gradients(
            n
        ), n


@pytest.mark.parametrize("word", [1, 2])
@pytest.mark.parametrize("ways", [4, 8, 12])
def test_blocks_that_L1_makes_smaller_keep_the_bound(ways, word):
    """Pixels whose channels are a multiple of its sets displace each other."""
    arch = replace(cpu_arch(), l1_ways=ways, l1_bytes=ways << 12, tile_pixels=14)
    problem = ic.plan_conv2d((1, 1, 8, 8), (8, 1, 1, 1)).problem
    smaller = 0
    for C in (*range(32, 9000, 32), *(1 << bits for bits in range(14, 21))):
        block, size = spread_block(replace(problem, C=C // word), arch), C // word
        blocks = -(-size // block)
        longest, count = chains(block, 1, word)
        assert longest + additions(count) + blocks - 1 <= most_units(C), C
        smaller += blocks > -(-size // BLOCK_ELEMENTS)
    assert smaller
