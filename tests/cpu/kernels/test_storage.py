"""Elements converted by loads and stores: every 16-bit pattern, and every kind of rounding."""

import functools

import ml_dtypes
import numpy as np
import pytest
from compiled import entry

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.kernels.cpu.emit import types
from implicit_conv.kernels.cpu.tile.compiled.convert import make_move
from implicit_conv.kernels.cpu.tile.storage import HARD_BFLOAT16, SIZES, SOFT_FLOAT16

NUMPY = {
    "float16": np.float16,
    SOFT_FLOAT16: np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    HARD_BFLOAT16: ml_dtypes.bfloat16,
    "float32": np.float32,
}
KINDS = ["float16", SOFT_FLOAT16, "bfloat16"] + [HARD_BFLOAT16] * cpu_arch().rounds_bfloat16
ALL_BITS = np.arange(1 << 16, dtype=np.uint16)


@functools.cache
def callable_move(source, target, lanes):
    move = make_move(source, target, lanes)
    return entry(types.void(*[types.int64] * 3))(move).ctypes


def converted(array, source, target, lanes):
    """`array` as `target`, with an element on each side that must not be written."""
    array = np.ascontiguousarray(array, NUMPY[source])
    out = np.full(len(array) + 2, 7, NUMPY[target])
    move = callable_move(source, target, lanes)
    move(out.ctypes.data + SIZES[target], array.ctypes.data, len(array))
    assert out[0] == out[-1] == 7
    return out[1:-1]


def assert_same(got, expected):
    """Equal to the bit, signs of zeros too; a NaN is any NaN."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_number_is_widened_exactly(kind, lanes):
    numbers = ALL_BITS.view(NUMPY[kind])
    with np.errstate(invalid="ignore"):
        expected = numbers.astype(np.float32)
    assert_same(converted(numbers, kind, "float32", lanes), expected)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rounding_is_to_nearest_even(kind, lanes):
    """Every value, the ties between neighbours, and the values next to both."""
    with np.errstate(invalid="ignore", over="ignore"):
        numbers = ALL_BITS.view(NUMPY[kind]).astype(np.float64)
    finite = np.sort(numbers[np.isfinite(numbers)])
    largest = finite[-1]
    ties = (finite[1:] + finite[:-1]) / 2
    beyond = largest + (largest - finite[-2]) * np.array([0.25, 0.5, 0.75, 1])
    with np.errstate(invalid="ignore", over="ignore"):
        marks = np.concatenate([numbers, ties, beyond, -beyond]).astype(np.float32)
        below, above = (np.nextafter(marks, np.float32(end)) for end in (-np.inf, np.inf))
        values = np.concatenate([marks, below, above])
        expected = values.astype(NUMPY[kind])
    assert_same(converted(values, "float32", kind, lanes), expected)


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_nan_stays_a_nan(kind, lanes):
    """NaNs whose payload is in the bits that are cut off, and those that a carry would wrap."""
    payloads = np.array([1, 0x1FFF, 0x8000, 0xFFFF, 0x7FFFFF, 0x400000], np.uint32)
    for sign in (0, 1 << 31):
        nans = np.repeat((payloads | 0x7F800000 | sign).view(np.float32), 4)
        assert np.isnan(converted(nans, "float32", kind, lanes).astype(np.float32)).all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lanes", [4, 16])
def test_any_count_is_converted_whole(kind, lanes):
    """No element more, no element less: below, at and past the vectors."""
    for count in range(3 * lanes):
        values = np.arange(1, count + 1)
        for source, target in ((kind, "float32"), ("float32", kind)):
            np.testing.assert_array_equal(converted(values, source, target, lanes), values)
