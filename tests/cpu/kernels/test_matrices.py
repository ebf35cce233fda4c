"""BFMMLA: sums and packing with the instruction of 64-bit Arm, which other CPUs emulate."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from compiled import uncached
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir
from sampling import examples, sampled

from implicit_conv.cpu.candidates import tiling
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.methods import gemm_tilings
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.kernels.cpu.emit.vector import I32
from implicit_conv.kernels.cpu.gemm.compiled import matrices
from implicit_conv.testing import Case, error_units, plan_of, to_nchw

UNITS = 16
HAS_BFMMLA = cpu_arch().bfloat16 == "matrices"
SQUARES = replace(cpu_arch(1), vector_bits=128, tile_pixels=12, bfloat16="matrices")
# 16-bit results need an instruction that rounds.
OUT_DTYPES = ("float32", None) if cpu_arch().rounds_bfloat16 else ("float32",)


def emulated_bfmmla(e, sums, x, w):
    """The products of float32 that BFMMLA adds, pair by pair."""

    def factors(value, lanes, high):
        words = e.builder.bitcast(value, e.words)
        words = e.builder.shuffle_vector(words, words, ir.Constant(ir.VectorType(I32, 4), lanes))
        bits = e.word(-0x10000) if high else e.word(16)
        words = e.builder.and_(words, bits) if high else e.builder.shl(words, bits)
        return e.builder.bitcast(words, e.vector)

    for word in range(2):
        pixels, filters = [word, word, 2 + word, 2 + word], [word, 2 + word] * 2
        low, high = (
            e.builder.fmul(factors(x, pixels, high), factors(w, filters, high))
            for high in (False, True)
        )
        sums = e.builder.fadd(sums, e.builder.fadd(low, high))
    return sums


@contextmanager
def squares():
    """The engine with BFMMLA, or with microkernels that emulate it; these are not cached."""
    if HAS_BFMMLA:
        yield
        return
    with pytest.MonkeyPatch.context() as patch, uncached(".gemm.compiled.microkernel:"):
        patch.setattr(matrices, "bfmmla", emulated_bfmmla)
        yield


def compute(case, x, w, *, out_dtype=None, pixels=None, block=None, arch=SQUARES):
    """The convolution by squares; axes N, K, P, Q."""
    arrays = case.arrange(x, w)
    with pytest.MonkeyPatch.context() as patch:
        if pixels:
            patch.setattr(tiling, "TILE_PIXELS", (pixels,))
        if block:
            patch.setattr(gemm_tilings, "BLOCK_ELEMENTS", block)
        plan = plan_of(case, arch, precision="strict", out_dtype=out_dtype)
    assert plan.engine.best.method.multiplier == ("matrices" if arch is SQUARES else "")
    return to_nchw(plan(*arrays), case.layout)


@st.composite
def cases(draw):
    groups = draw(st.sampled_from([1, 1, 2]))
    low = st.integers(0, 2)
    return Case(
        N=draw(st.integers(1, 3)),
        C=draw(st.sampled_from([4, 16, 20] if groups > 1 else [4, 7, 16, 20, 35])),
        K=draw(st.sampled_from([1, 4, 5, 8, 19])),
        groups=groups,
        size=(draw(st.integers(3, 6)), draw(st.integers(4, 24))),
        kernel=draw(st.sampled_from([(1, 1), (3, 3), (1, 4)])),
        stride=draw(st.sampled_from([(1, 1), (2, 2)])),
        padding=((draw(low), draw(low)), (draw(low), draw(low))),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype="bfloat16",
    )


@sampled
def test_squares_are_exact_on_integers():
    """Register tiles of any height, one and two vectors of filters, several blocks of channels."""

    @examples(20, 80)
    @given(
        case=cases(),
        seed=st.integers(0, 2**31),
        pixels=st.sampled_from([1, 7, 10, 200]),
        block=st.sampled_from([4, 5120]),  # words: blocks of four, and a last one of two
    )
    def check(case, seed, pixels, block):
        compare(case, seed, pixels, block)

    def compare(case, seed, pixels, block):
        x, w = case.inputs(seed, integers=True)
        expected = case.reference(x, w)
        block = block if case.kernel == (1, 1) else None
        for out_dtype in OUT_DTYPES:
            y = compute(case, x, w, out_dtype=out_dtype, pixels=pixels, block=block)
            wanted = expected if out_dtype else case.rounded(expected)
            np.testing.assert_array_equal(y.astype(float), wanted)

    with squares():
        for columns in range(1, 12):  # each height of a register tile
            row = Case(C=8, K=13, size=(1, columns), kernel=(1, 1), dtype="bfloat16")
            compare(row, columns, 200, 5120)
        check()


LONG = Case(N=2, C=40, K=13, size=(5, 19), padding=((1, 1), (1, 1)), dtype="bfloat16")


def test_sums_do_not_depend_on_tiles_or_batch():
    """Each sum has several chains."""
    x, w = LONG.inputs(0)
    with squares():
        whole = compute(LONG, x, w, out_dtype="float32")
        for pixels in (1, 7, 5000):
            part = compute(LONG, x, w, out_dtype="float32", pixels=pixels)
            np.testing.assert_array_equal(part, whole)
        single = compute(replace(LONG, N=1), x[1:2], w, out_dtype="float32")
    np.testing.assert_array_equal(single, whole[1:2])
    scale = LONG.reference(x, w, True)
    assert error_units(whole, LONG.reference(x, w), scale, "float32") <= UNITS


@pytest.mark.skipif(not HAS_BFMMLA, reason="the CPU has no BFMMLA")
def test_squares_have_the_bits_of_dot_products():
    x, w = LONG.inputs(0)
    pairs = replace(SQUARES, bfloat16="pairs")
    sums = compute(LONG, x, w, out_dtype="float32")
    np.testing.assert_array_equal(sums, compute(LONG, x, w, out_dtype="float32", arch=pairs))


def test_swapped_operands_are_multiplied_as_squares(force_method):
    force_method(TransposedGemm)
    case = Case(N=2, C=12, K=9, size=(4, 9), kernel=(1, 1), dtype="bfloat16")
    x, w = case.inputs(0, integers=True)
    method = plan_of(case, SQUARES, precision="strict", out_dtype="float32").engine.best.method
    assert isinstance(method, TransposedGemm)
    with squares():
        y = compute(case, x, w, out_dtype="float32")
    np.testing.assert_array_equal(y, case.reference(x, w))


@pytest.mark.parametrize(
    ("channels", "kernel", "squared"),
    [(64, (3, 3), True), (7, (3, 3), True), (5, (3, 3), False), (2 * 1168, (5, 5), False)],
)
def test_squares_take_blocks_of_an_even_number_of_words(channels, kernel, squared):
    """Other blocks use dot products: blocks of 195 pairs, for example, of 1168 with 5x5 taps."""
    case = Case(C=channels, K=8, size=(9, 9), kernel=kernel, dtype="bfloat16")
    plan = plan_of(case, SQUARES, precision="strict")
    method = plan.engine.best.method
    assert (method.channels, method.multiplier) == (2, "matrices" * squared)
    assert ("BFMMLA" in plan.explain()) == squared
