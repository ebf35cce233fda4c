"""Opcodes that each lane computes by itself, against Python's integers, fractions and math."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx

LANES = 32
# Registers that hold lane l's word of the first, second and third input, by the letter of a type.
LOADS = "\n".join(
    f"ld.global.b64 %d{n}, [%d10+{8 * n - 8}]; cvt.u32.u64 %r{n}, %d{n}; cvt.u16.u64 %h{n}, %d{n}; "
    f"mov.b32 %f{n}, %r{n}; mov.b64 %e{n}, %d{n}; setp.ne.b32 %p{n}, %r{n}, 0;"
    for n in (1, 2, 3)
)
STORES = {
    "r": "st.global.b32 [%d11], %r0;",
    "d": "st.global.b64 [%d11], %d0;",
    "h": "st.global.b16 [%d11], %h0;",
    "f": "st.global.f32 [%d11], %f0;",
    "e": "st.global.f64 [%d11], %e0;",
    "p": "selp.b32 %r9, 1, 0, %p0; st.global.b32 [%d11], %r9;",
}
BYTES = {"r": 4, "d": 8, "h": 2, "f": 4, "e": 8, "p": 4}


def text_of(line):
    """A kernel that does one line on three inputs of each lane."""
    result = line.split("%", 1)[1][0]
    return kernel(
        f"""
        ld.param.u64 %d9, [y];
        mov.u32 %r10, %tid.x;
        mul.wide.u32 %d10, %r10, 24; add.s64 %d10, %d1, %d10;
        mul.wide.u32 %d11, %r10, 8; add.s64 %d11, %d9, %d11;
        {LOADS}
        {line};
        {STORES[result]}
        """,
        ".param .u64 x, .param .u64 y",
    )


def evaluate(line, inputs):
    """The bits of the result of a line, for (32, 3) words of 64 bits."""
    out = np.zeros(LANES, np.uint64)
    ptx.run(text_of(line), 1, LANES, [np.array(inputs, np.uint64), out], "sm_90a")
    size = BYTES[line.split("%", 1)[1][0]]
    return [int(value) & ((1 << 8 * size) - 1) for value in out]


def signed(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def towards_zero(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def s(function, bits=32):
    """`function` of signed integers."""
    return lambda *values: function(*(signed(value, bits) for value in values))


def u(function, bits=32):
    """`function` of unsigned integers."""
    return lambda *values: function(*(value & ((1 << bits) - 1) for value in values))


def extracted(a, position, length):
    return (a >> position) & ((1 << length) - 1)


def permuted(a, b, selector):
    source = struct.pack("<II", a, b)
    out = 0
    for byte in range(4):
        choice = selector >> (4 * byte) & 15
        value = source[choice & 7]
        out |= ((255 if value & 128 else 0) if choice & 8 else value) << (8 * byte)
    return out


INTEGER_LINES = {
    "add.s32 %r0, %r1, %r2": u(lambda a, b, c: a + b),
    "add.u64 %d0, %d1, %d2": u(lambda a, b, c: a + b, 64),
    "add.u16 %h0, %h1, %h2": u(lambda a, b, c: a + b, 16),
    "sub.s32 %r0, %r1, %r2": u(lambda a, b, c: a - b),
    "sub.s64 %d0, %d1, %d2": u(lambda a, b, c: a - b, 64),
    "mul.lo.s32 %r0, %r1, %r2": u(lambda a, b, c: a * b),
    "mul.lo.s64 %d0, %d1, %d2": u(lambda a, b, c: a * b, 64),
    "mul.hi.s32 %r0, %r1, %r2": s(lambda a, b, c: a * b >> 32),
    "mul.hi.u32 %r0, %r1, %r2": u(lambda a, b, c: a * b >> 32),
    "mul.hi.s64 %d0, %d1, %d2": s(lambda a, b, c: a * b >> 64, 64),
    "mul.hi.u64 %d0, %d1, %d2": u(lambda a, b, c: a * b >> 64, 64),
    "mul.wide.s32 %d0, %r1, %r2": s(lambda a, b, c: a * b),
    "mul.wide.u32 %d0, %r1, %r2": u(lambda a, b, c: a * b),
    "mul.wide.u16 %r0, %h1, %h2": u(lambda a, b, c: a * b, 16),
    "mad.lo.s32 %r0, %r1, %r2, %r3": u(lambda a, b, c: a * b + c),
    "mad.lo.s64 %d0, %d1, %d2, %d3": u(lambda a, b, c: a * b + c, 64),
    "mad.hi.u32 %r0, %r1, %r2, %r3": u(lambda a, b, c: (a * b >> 32) + c),
    "mad.wide.u32 %d0, %r1, %r2, %d3": lambda a, b, c: (a % 2**32) * (b % 2**32) + c,
    "sad.s32 %r0, %r1, %r2, %r3": s(lambda a, b, c: abs(a - b) + c),
    "div.s32 %r0, %r1, %r2": s(lambda a, b, c: towards_zero(a, b)),
    "div.u32 %r0, %r1, %r2": u(lambda a, b, c: a // b),
    "div.s64 %d0, %d1, %d2": s(lambda a, b, c: towards_zero(a, b), 64),
    "rem.s32 %r0, %r1, %r2": s(lambda a, b, c: a - b * towards_zero(a, b)),
    "rem.u64 %d0, %d1, %d2": u(lambda a, b, c: a % b, 64),
    "abs.s32 %r0, %r1": s(lambda a, b, c: abs(a)),
    "neg.s64 %d0, %d1": s(lambda a, b, c: -a, 64),
    "min.s32 %r0, %r1, %r2": s(lambda a, b, c: min(a, b)),
    "max.u32 %r0, %r1, %r2": u(lambda a, b, c: max(a, b)),
    "max.s64 %d0, %d1, %d2": s(lambda a, b, c: max(a, b), 64),
    "popc.b32 %r0, %r1": u(lambda a, b, c: bin(a).count("1")),
    "popc.b64 %r0, %d1": u(lambda a, b, c: bin(a).count("1"), 64),
    "clz.b32 %r0, %r1": u(lambda a, b, c: 32 - a.bit_length()),
    "bfind.u32 %r0, %r1": u(lambda a, b, c: a.bit_length() - 1),
    "bfind.s32 %r0, %r1": s(lambda a, b, c: (a if a >= 0 else ~a).bit_length() - 1),
    "brev.b32 %r0, %r1": u(lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
    "bfe.u32 %r0, %r1, 5, 9": u(lambda a, b, c: extracted(a, 5, 9)),
    "bfe.s32 %r0, %r1, 5, 9": u(lambda a, b, c: signed(extracted(a, 5, 9), 9)),
    "bfe.s32 %r0, %r1, 28, 9": u(lambda a, b, c: signed(a >> 28, 4)),
    "bfi.b32 %r0, %r1, %r2, 3, 7": u(lambda a, b, c: (b & ~(127 << 3)) | (a & 127) << 3),
    "bfi.b64 %d0, %d1, %d2, 40, 30": u(
        lambda a, b, c: (b & ~(((1 << 30) - 1) << 40)) | (a % 2**24) << 40, 64
    ),
    "and.b32 %r0, %r1, %r2": u(lambda a, b, c: a & b),
    "or.b64 %d0, %d1, %d2": u(lambda a, b, c: a | b, 64),
    "xor.b32 %r0, %r1, %r2": u(lambda a, b, c: a ^ b),
    "not.b32 %r0, %r1": u(lambda a, b, c: ~a),
    "cnot.b32 %r0, %r1": u(lambda a, b, c: int(a == 0)),
    "lop3.b32 %r0, %r1, %r2, %r3, 0x96": u(lambda a, b, c: a ^ b ^ c),
    "lop3.b32 %r0, %r1, %r2, %r3, 0xea": u(lambda a, b, c: (a & b) | c),
    "shl.b32 %r0, %r1, %r3": u(lambda a, b, c: a << min(c, 64)),
    "shr.u32 %r0, %r1, %r3": u(lambda a, b, c: a >> min(c, 64)),
    "shr.s32 %r0, %r1, %r3": lambda a, b, c: signed(a, 32) >> min(c % 2**32, 64),
    "shl.b64 %d0, %d1, 40": u(lambda a, b, c: a << 40, 64),
    "shr.s64 %d0, %d1, 40": s(lambda a, b, c: a >> 40, 64),
    "shf.l.wrap.b32 %r0, %r1, %r2, 7": u(lambda a, b, c: (b << 7) | a >> 25),
    "shf.r.wrap.b32 %r0, %r1, %r2, 39": u(lambda a, b, c: a >> 7 | b << 25),
    "shf.r.clamp.b32 %r0, %r1, %r2, 39": u(lambda a, b, c: b),
    "shf.l.clamp.b32 %r0, %r1, %r2, 4": u(lambda a, b, c: (b << 4) | a >> 28),
    "prmt.b32 %r0, %r1, %r2, 0x7a14": u(lambda a, b, c: permuted(a, b, 0x7A14)),
    "selp.b32 %r0, %r1, %r2, %p3": u(lambda a, b, c: a if c else b),
    "mov.b64 %d0, {%r1, %r2}": u(lambda a, b, c: a | b << 32),
    "mov.b32 {%h0, _}, %r1": u(lambda a, b, c: a),
    "cvt.s64.s32 %d0, %r1": s(lambda a, b, c: a),
    "cvt.u64.u32 %d0, %r1": u(lambda a, b, c: a),
    "cvt.s32.s16 %r0, %h1": s(lambda a, b, c: a, 16),
    "cvt.s32.s8 %r0, %r1": s(lambda a, b, c: a, 8),
    "cvt.sat.s16.s32 %h0, %r1": s(lambda a, b, c: min(max(a, -32768), 32767)),
    "setp.lt.s32 %p0, %r1, %r2": s(lambda a, b, c: int(a < b)),
    "setp.hi.u32 %p0, %r1, %r2": u(lambda a, b, c: int(a > b)),
    "setp.ge.and.s64 %p0, %d1, %d2, %p3": s(lambda a, b, c: int(a >= b and c % 2**32 != 0), 64),
    "set.eq.u32.u32 %r0, %r1, %r2": u(lambda a, b, c: -int(a == b)),
}
EDGES = [0, 1, 2, 3, 31, 32, 200, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1]


def words(seed, positive_divisor):
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 1 << 63, (LANES, 3), np.uint64, endpoint=True) << np.uint64(1)
    drawn |= rng.integers(0, 2, (LANES, 3), np.uint64)
    for lane, edge in enumerate(EDGES):
        drawn[lane, lane % 3] = edge
    drawn[::3, 2] %= np.uint64(70)
    if positive_divisor:
        drawn[:, 1] |= np.uint64(1)
    return drawn


@pytest.mark.parametrize("line", INTEGER_LINES)
def test_integers(line):
    inputs = words(len(line), line.startswith(("div", "rem")))
    mask = (1 << 8 * BYTES[line.split("%", 1)[1][0]]) - 1
    expected = [INTEGER_LINES[line](*map(int, row)) & mask for row in inputs]
    assert evaluate(line, inputs) == expected


def rounded(value, digits=24, least=-149, mode="rn"):
    """A fraction rounded to `digits` binary digits, none below 2**least; as a Fraction."""
    if value == 0:
        return Fraction(0)
    exponent = math.floor(math.log2(abs(value)))
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    unit = Fraction(2) ** max(exponent - digits + 1, least)
    scaled = value / unit
    whole = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}[mode](scaled)
    return whole * unit


def single(value):
    return Fraction(float(np.float32(value)))


FLOAT_LINES = {
    "add.f32 %f0, %f1, %f2": lambda a, b, c: rounded(a + b),
    "add.rz.f32 %f0, %f1, %f2": lambda a, b, c: rounded(a + b, mode="rz"),
    "add.rm.f32 %f0, %f1, %f2": lambda a, b, c: rounded(a + b, mode="rm"),
    "sub.rp.f32 %f0, %f1, %f2": lambda a, b, c: rounded(a - b, mode="rp"),
    "mul.rn.f32 %f0, %f1, %f2": lambda a, b, c: rounded(a * b),
    "mul.rp.f32 %f0, %f1, %f2": lambda a, b, c: rounded(a * b, mode="rp"),
    "fma.rn.f32 %f0, %f1, %f2, %f3": lambda a, b, c: rounded(a * b + c),
    "fma.rm.f32 %f0, %f1, %f2, %f3": lambda a, b, c: rounded(a * b + c, mode="rm"),
    "fma.rz.f32 %f0, %f1, %f2, %f3": lambda a, b, c: rounded(a * b + c, mode="rz"),
    "div.rn.f32 %f0, %f1, %f2": lambda a, b, c: rounded(a / b),
    "rcp.rn.f32 %f0, %f2": lambda a, b, c: rounded(1 / b),
    "abs.f32 %f0, %f1": lambda a, b, c: abs(a),
    "neg.f32 %f0, %f1": lambda a, b, c: -a,
    "min.f32 %f0, %f1, %f2": lambda a, b, c: min(a, b),
    "max.f32 %f0, %f1, %f2": lambda a, b, c: max(a, b),
    "copysign.f32 %f0, %f1, %f2": lambda a, b, c: abs(b) if a >= 0 else -abs(b),
    "add.sat.f32 %f0, %f1, %f2": lambda a, b, c: min(max(rounded(a + b), 0), 1),
    "selp.f32 %f0, %f1, %f2, %p3": lambda a, b, c: a if c else b,
    "cvt.rzi.f32.f32 %f0, %f1": lambda a, b, c: math.trunc(a),
    "cvt.rni.f32.f32 %f0, %f1": lambda a, b, c: round(a),
}


def floats(seed):
    """(32, 3) float32 with ties of sums and products, large ratios and small numbers."""
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(LANES, 3)) * 2.0 ** rng.integers(-20, 20, (LANES, 3))).astype("f4")
    values[0] = 1 + 2.0**-12, 1 + 2.0**-12, 2.0**-70  # a tie that the addend breaks
    values[1] = 1 + 2.0**-12, 1 + 2.0**-12, -(2.0**-70)
    values[2] = 1 + 2.0**-23, 2.0**-24, 1
    values[3] = 1, 2.0**-24, 2.0**-60
    values[4] = 2.0**-70, 2.0**-70, 2.0**-149
    values[5] = 2.5, -3.5, 0.5
    return values


@pytest.mark.parametrize("line", FLOAT_LINES)
def test_floats_are_rounded_once(line):
    values = floats(len(line))
    inputs = values.view(np.uint32).astype(np.uint64)
    got = np.array(evaluate(line, inputs), np.uint32).view(np.float32)
    expected = [FLOAT_LINES[line](*map(single, row)) for row in values]
    assert [Fraction(float(x)) for x in got] == expected


def test_fma_of_float64_is_rounded_once():
    values = np.random.default_rng(0).normal(size=(LANES, 3))
    values[0] = 1 + 2.0**-27, 1 + 2.0**-27, -1
    values[1] = 1 + 2.0**-52, 1 - 2.0**-53, 2.0**-120
    got = np.array(evaluate("fma.rn.f64 %e0, %e1, %e2, %e3", values.view(np.uint64)), np.uint64)
    exact = [Fraction(a) * Fraction(b) + Fraction(c) for a, b, c in values]
    assert list(got.view(np.float64)) == [float(value) for value in exact]


CONVERSIONS = {  # line: (numpy or ml_dtypes name of the input, of the result)
    "cvt.f32.f16 %f0, %h1": ("float16", "float32"),
    "cvt.f32.bf16 %f0, %h1": ("bfloat16", "float32"),
    "cvt.rn.f16.f32 %h0, %f1": ("float32", "float16"),
    "cvt.rn.bf16.f32 %h0, %f1": ("float32", "bfloat16"),
    "cvt.rn.f32.s32 %f0, %r1": ("int32", "float32"),
    "cvt.rn.f32.u32 %f0, %r1": ("uint32", "float32"),
    "cvt.rn.f32.f64 %f0, %e1": ("float64", "float32"),
    "cvt.f64.f32 %e0, %f1": ("float32", "float64"),
    "cvt.rn.f64.s64 %e0, %d1": ("int64", "float64"),
}


def dtype_of(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize("line", CONVERSIONS)
def test_conversions(line):
    given, made = map(dtype_of, CONVERSIONS[line])
    rng = np.random.default_rng(1)
    if given.kind in "iu":
        low = np.iinfo(given).min
        values = rng.integers(low, np.iinfo(given).max, LANES, given)
    else:
        values = (rng.normal(size=LANES) * 300).astype(given)
        values[:3] = 1 + 2.0**-9, -65000, np.inf
    inputs = np.zeros((LANES, 3), np.uint64)
    inputs[:, 0] = values.view(f"u{given.itemsize}")
    with np.errstate(over="ignore"):
        expected = values.astype(made).view(f"u{made.itemsize}")
    assert evaluate(line, inputs) == expected.tolist()


def test_floats_to_integers_are_clamped():
    values = np.array([1.5, -1.5, 2.5, 3e9, -3e9, np.nan, np.inf, 0.49] * 4, np.float32)
    inputs = np.repeat(values.view(np.uint32).astype(np.uint64)[:, None], 3, axis=1)
    top = (1 << 31) - 1
    nearest = [2, -2, 2, top, -(1 << 31), 0, top, 0]
    cut = [1, -1, 2, top, -(1 << 31), 0, top, 0]
    for how, expected in (("rni", nearest), ("rzi", cut)):
        got = evaluate(f"cvt.{how}.s32.f32 %r0, %f1", inputs)
        assert [signed(value, 32) for value in got[:8]] == expected


@pytest.mark.parametrize("form", ["bf16x2", "f16x2"])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add.rn", lambda a, b, c: a + b),
        ("sub.rn", lambda a, b, c: a - b),
        ("mul.rn", lambda a, b, c: a * b),
        ("fma.rn", lambda a, b, c: a * b + c),
        ("max", lambda a, b, c: np.maximum(a, b)),
    ],
)
def test_pairs_of_halves(form, name, function):
    kind = dtype_of("bfloat16" if form == "bf16x2" else "float16")
    values = np.random.default_rng(2).normal(size=(LANES, 3, 2)).astype(kind)
    inputs = values.view(np.uint32).reshape(LANES, 3).astype(np.uint64)
    operands = ", ".join(f"%r{n}" for n in range(1, 4 if name == "fma.rn" else 3))
    got = np.array(evaluate(f"{name}.{form} %r0, {operands}", inputs), np.uint32)
    exact = function(*(values[:, n].astype(np.float64) for n in range(3)))
    digits, least = (8, -133) if form == "bf16x2" else (11, -24)
    expected = [float(rounded(Fraction(x), digits, least)) for x in exact.reshape(-1)]
    assert got.view(kind).astype(np.float64).tolist() == expected


def test_packed_conversion_puts_the_first_operand_high():
    values = np.random.default_rng(3).normal(size=(LANES, 3)).astype(np.float32)
    inputs = values.view(np.uint32).astype(np.uint64)
    got = np.array(evaluate("cvt.rn.f16x2.f32 %r0, %f1, %f2", inputs), np.uint32)
    pairs = got.view(np.float16).reshape(LANES, 2)
    assert np.array_equal(pairs, values[:, 1::-1].astype(np.float16))


def test_tf32_rounds_ties_away():
    values = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12] * 8, "f4")
    inputs = np.repeat(values.view(np.uint32).astype(np.uint64)[:, None], 3, axis=1)
    got = np.array(evaluate("cvt.rna.tf32.f32 %r0, %f1", inputs), np.uint32).view(np.float32)
    assert got[:4].tolist() == [1 + 2.0**-10, 1 + 2 * 2.0**-10, -1 - 2.0**-10, 1]


@pytest.mark.parametrize(
    ("line", "function"),
    [
        ("ex2.approx.ftz.f32 %f0, %f1", np.exp2),
        ("lg2.approx.f32 %f0, %f1", np.log2),
        ("sqrt.rn.f32 %f0, %f1", np.sqrt),
        ("rsqrt.approx.f32 %f0, %f1", lambda x: 1 / np.sqrt(x)),
        ("sin.approx.f32 %f0, %f1", np.sin),
        ("cos.approx.f32 %f0, %f1", np.cos),
        ("tanh.approx.f32 %f0, %f1", np.tanh),
    ],
)
def test_functions(line, function):
    values = np.random.default_rng(4).uniform(0.1, 4, (LANES, 3)).astype(np.float32)
    got = np.array(evaluate(line, values.view(np.uint32).astype(np.uint64)), np.uint32)
    np.testing.assert_allclose(got.view(np.float32), function(values[:, 0].astype("f8")), 3e-7)


def test_nan_and_zero_in_minimum_and_comparison():
    nan, minus = 0x7FC00000, 0x80000000
    inputs = np.zeros((LANES, 3), np.uint64)
    inputs[0, :2] = nan, 0x3F800000
    inputs[1, :2] = minus, 0
    assert evaluate("min.f32 %f0, %f1, %f2", inputs)[:2] == [0x3F800000, minus]
    assert evaluate("max.f32 %f0, %f1, %f2", inputs)[:2] == [0x3F800000, 0]
    assert evaluate("max.NaN.f32 %f0, %f1, %f2", inputs)[0] & nan == nan
    results = {"eq": 0, "ne": 0, "lt": 0, "ltu": 1, "geu": 1, "neu": 1, "num": 0, "nan": 1}
    for how, expected in results.items():
        assert evaluate(f"setp.{how}.f32 %p0, %f1, %f2", inputs)[0] == expected
        assert evaluate(f"set.{how}.u32.f32 %r0, %f1, %f2", inputs)[0] == expected * 0xFFFFFFFF


def test_ftz_flushes_subnormals():
    inputs = np.full((LANES, 3), 1, np.uint64)  # the least subnormal
    assert evaluate("add.f32 %f0, %f1, %f2", inputs)[0] == 2
    assert evaluate("add.ftz.f32 %f0, %f1, %f2", inputs)[0] == 0


def test_division_by_zero_is_an_error():
    with pytest.raises(ptx.PtxError, match=r"line \d+: div.s32.*\n.*divided by zero"):
        evaluate("div.s32 %r0, %r1, %r2", np.zeros((LANES, 3)))
