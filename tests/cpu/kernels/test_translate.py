"""Translated functions compute what Python computes, and refuse what they cannot."""

import ctypes
import itertools
import math
import sys
from typing import NamedTuple

import numpy as np
import pytest
from compiled import entry, python_function

from implicit_conv.kernels.cpu.emit import memory, types
from implicit_conv.kernels.cpu.gemm.compiled.microkernel import make_microkernel
from implicit_conv.kernels.cpu.gemm.layout import RegisterTile
from implicit_conv.kernels.cpu.runtime.call import BLOB, X
from implicit_conv.kernels.cpu.runtime.compiled import source
from implicit_conv.kernels.cpu.runtime.compiled.entry import BLOB_POINTER, fields
from implicit_conv.kernels.cpu.runtime.compiled.source import ARRAY
from implicit_conv.kernels.cpu.runtime.machine import settings
from implicit_conv.kernels.cpu.translate import module
from implicit_conv.kernels.cpu.translate.values import TranslationError

INT, FLOAT = types.int64, types.float64
NUMBERS = (-7, -4, -1, 1, 2, 5, 8)
OFFSET = 3


class Pair(NamedTuple):
    """Two numbers."""

    first: int
    second: int


def swapped(pair):
    return Pair(pair.second, pair.first)


def sign(n):
    """Returns in several places, and from a loop."""
    if n > 0:
        return 1
    while True:
        if n == 0:
            return 0
        n += 1
        if n >= 0:
            break
    return -1


def scaled(n, factor=OFFSET, shift=2):
    return n * factor << shift


def arithmetic(a, b):
    total = a // b * 100000 + a % b * 1000 + (a + b) * (a - b)
    return total + (a << 2) + (a >> 1) + (a & b) + (a | b) + ~a - -b + a**3 + a // 4 + a % 8


def loops(a, b):
    total, last = 0, 0
    for i in range(a, b):
        if i % 3 == 0:
            continue
        if i > 6:
            break
        for j in range(b, a, -2):
            total += i * j
        for step in range(1, 3):
            for k in range(0, 9, step):
                total += k
        last = i
    while total > 100:
        total //= 2
    for x, y in ((a, 2), (b, 3)):
        if x < 0:
            continue
        total += x * y
    return total * 10 + last


def choices(a, b):
    larger = a if a > b else b
    flag = a > 0 and b > 0
    value = (a or b) + (a and b) + (not flag)
    chain = -5 <= a < b != 2
    inside = (a in (1, b, -7)) + 2 * (b not in (a, 5))
    first, second = (a, b) if flag else swapped(Pair(a, b))
    return value + 10 * larger + 100 * chain + 1000 * inside + first * 7 + second


def calls(a, b):
    pair = Pair(a, b)
    pair = swapped(pair)
    quotient, rest = divmod(a, b)
    known = len((a, b)) + OFFSET * 2
    return min(a, b, 3) + 10 * max(a, b) + abs(a) + pair.first * quotient + rest * known + sign(a)


def truths(a, b):
    """Numbers that are tests, and comparisons of tuples."""
    value = -(a > b) + 2 * bool(a - 2) + 4 * ((a, b) == (b, a)) + 8 * ((a, b) != (2, b))
    value += 64 * Pair(a, b).first + scaled(a, 5) + scaled(b)
    value += scaled(shift=1, n=a) + scaled(b, shift=3, factor=a) + Pair(second=a, first=b).first
    return value + 16 * ((a, -4) in ((1, b), (b, b))) + 32 * min((a, b)) + abs(-OFFSET)


@pytest.mark.parametrize("function", [arithmetic, loops, choices, calls, truths])
def test_integers_are_those_of_python(function):
    compiled = entry(INT(INT, INT))(function).ctypes
    for a, b in itertools.product(NUMBERS, NUMBERS):
        assert compiled(a, b) == int(function(a, b)), (a, b)


def test_floats_are_those_of_python():
    def mix(x, n):
        value = 0  # becomes a float
        if x > n:
            value = x / 3 - n * 0.5
        if n == 5:
            return n  # before a float
        return (
            value
            + float(x > n)
            + min(x, n)
            - max(-x, 1.5)
            + math.sqrt(abs(x))
            + math.tanh(x)
            + n / 4
        )

    compiled = entry(FLOAT(FLOAT, INT))(mix).ctypes
    for x, n in itertools.product((-2.5, -0.0, 0.25, 3.5), NUMBERS):
        assert compiled(x, n) == mix(x, n)


def test_zeros_have_signs():
    def magnitude(x):
        return abs(x)

    def negative(x):
        return -x

    for function, zero in itertools.product((magnitude, negative), (0.0, -0.0)):
        found = entry(FLOAT(FLOAT))(function).ctypes(zero)
        assert math.copysign(1, found) == math.copysign(1, function(zero))


def test_nan_is_unordered_as_in_python():
    def compare(x, y):
        low, high = min(x, y) != y, max(y, x) == y
        return (x < y) + 2 * (x == y) + 4 * (x != y) + 8 * low + 16 * high + 32 * (not x)

    compiled = entry(INT(FLOAT, FLOAT))(compare).ctypes
    for pair in itertools.product((math.nan, math.inf, 0.0, 1.0), repeat=2):
        assert compiled(*pair) == compare(*pair), pair


def test_a_division_by_zero_gives_zero():
    def divide(a, b):
        return a // b + a % b

    assert entry(INT(INT, INT))(divide).ctypes(5, 0) == 0


def test_what_is_known_to_be_false_is_not_translated():
    wide = False

    def choose(n):
        if wide:
            return n.nothing
        return n + 1 if not wide else n.nothing

    assert entry(INT(INT))(choose).ctypes(1) == 2


def test_what_need_not_be_computed_is_not():
    def guarded(address):
        if address != 0 and memory.read(address) > 0:
            return 1
        return 0 if address == 0 else memory.read(address)

    words = np.array([-3, 4], np.int64)
    compiled = entry(INT(INT))(guarded).ctypes
    assert [compiled(address) for address in (0, words.ctypes.data, words[1:].ctypes.data)] == [
        0,
        -3,
        1,
    ]


def test_a_record_is_not_read_in_vain():
    def guarded(blob, flag):
        if flag and fields(blob).call.items > 0:
            return 1
        call = fields(blob).call
        some = flag and call.chunk > 0
        return call.x.address if some else -1

    compiled = entry(INT(BLOB_POINTER, INT))(guarded)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    assert kind(compiled.address)(None, 0) == -1
    words = np.zeros(BLOB.itemsize // 8, np.int64)
    words.view(BLOB)[0]["call"]["chunk"], words[X] = 3, -5
    assert kind(compiled.address)(words.ctypes.data, 1) == -5


def test_a_record_is_no_address():
    def wrong(blob):
        return memory.read(fields(blob).call.x)

    with pytest.raises(TranslationError, match="a record in place of a number of type int64"):
        entry(INT(BLOB_POINTER))(wrong)


def test_python_calls_with_integers_and_arrays():
    @python_function(INT(ARRAY, INT))
    def element(array, index):
        return memory.read(array + 8 * index)

    array = np.array([5, -1, 7], np.int64)
    assert [element(array, i) for i in range(3)] == [5, -1, 7]
    assert element(array[1:].reshape(2, 1), 1) == 7
    assert element(array, -0) == 5
    with pytest.raises(TypeError):
        element(array)
    with pytest.raises(TypeError):
        element(array, "one")
    with pytest.raises(OverflowError):
        element(array, 1 << 70)


def test_python_gets_none_where_nothing_is_returned():
    @python_function(types.void(ARRAY, INT))
    def write(array, value):
        memory.write(array, value)

    array = np.zeros(1, np.int64)
    before = sys.getrefcount(None)
    for _ in range(1000):
        assert write(array, -1) is None
    assert sys.getrefcount(None) > before - 500
    assert array[0] == -1


def listed(n):
    return [n][0]


def unbound(n):
    return n + missing  # noqa: F821


def mixed(n):
    pair = n
    if n > 0:
        pair = (n, n)
    return pair


def indexed(n):
    return (1, 2)[n]


def otherwise(n):
    while n > 9:
        n -= 1
    else:  # noqa: PLW0120
        return n


def assigned_in_a_branch(n):
    if n > 0:
        m = n
    return m


def assigned_in_a_loop(n):
    for i in range(n):
        n -= i
    return n + i


def assigned_before_some_breaks(n):
    while True:
        if n > 0:
            break
        m = n
        break
    return m


def hidden(n):
    n += OFFSET  # noqa: F823
    OFFSET = n
    return OFFSET


def recursive(n):
    return recursive(n - 1) if n else 0


def stepless(n):
    for i in range(0, n, 0):
        n = i
    return n


def halves(n):
    for i in range(n / 2):
        n = i
    return n


def nothing(n):
    if n > 0:
        return n


def huge(n):
    return n + (1 << 63)


def outside(n):
    return (n, 1)[2]  # noqa: PLE0643


def too_few(n):
    return scaled() + n


def too_many(n):
    return scaled(n, 1, 2, 3)


def unknown_keyword(n):
    return scaled(n, factors=2)


def given_twice(n):
    return scaled(n, n=2)


def a_field_too_few(n):
    return Pair(n).first


def an_unknown_field(n):
    return Pair(n, third=n).first


def an_unknown_parameter(n):
    return memory.read(where=n)


def a_keyword_of_python(n):
    return min(n, 3, key=n)


def open_ended(n, *rest):
    return n


REFUSED = [
    *(listed, unbound, mixed, indexed, otherwise, assigned_in_a_branch, assigned_in_a_loop),
    *(assigned_before_some_breaks, hidden, recursive, stepless, halves, nothing, huge, outside),
    *(too_few, too_many, unknown_keyword, given_twice, a_field_too_few, an_unknown_field),
    *(an_unknown_parameter, a_keyword_of_python),
]


@pytest.mark.parametrize("function", REFUSED)
def test_an_error_names_the_function_and_its_line(function):
    lines = range(function.__code__.co_firstlineno + 1, function.__code__.co_firstlineno + 7)
    place = f"{function.__name__} \\(.*test_translate.py:({'|'.join(map(str, lines))})\\)"
    with pytest.raises(TranslationError, match=place):
        entry(INT(INT))(function)


def test_parameters_of_other_kinds_are_refused():
    with pytest.raises(TranslationError, match=r"open_ended .* has parameters"):
        entry(INT(INT))(open_ended)


def test_an_integer_becomes_an_int32_where_it_says_so():
    low = types.ExternalFunction("labs", types.int32(types.int32))

    def narrowed(n):
        return low(n)

    def said(n):
        return types.int64(low(types.int32(n)))

    with pytest.raises(TranslationError, match="a int64 in place of a number of type int32"):
        entry(INT(INT))(narrowed)
    assert entry(INT(INT))(said).ctypes(7) == 7


@pytest.mark.parametrize("signature", [INT(FLOAT), types.boolean(INT)])
def test_a_result_is_not_narrowed(signature):
    def same(x):
        return x

    with pytest.raises(TranslationError, match=" returns "):
        entry(signature)(same)


def test_a_source_that_could_not_be_read_is_read_by_the_next_call(tmp_path):
    """As when a process has no file descriptor left for a moment."""
    path = tmp_path / "absent.py"
    source = "def plus_two(n):\n    return n + 2\n"
    names = {"__name__": __name__}
    exec(compile(source, path, "exec"), names)
    with pytest.raises(TranslationError, match="cannot be read"):
        entry(INT(INT))(names["plus_two"])
    path.write_text(source)
    assert entry(INT(INT))(names["plus_two"]).ctypes(40) == 42


def test_other_threads_may_run_while_texts_are_made(monkeypatch):
    """The thread of `prepare_later` gives way: else it would keep the GIL for 20 ms."""
    instructions, turns = 0, []
    export = module.Module.export

    def counted(made, *arguments):
        nonlocal instructions
        export(made, *arguments)
        blocks = (block for function in made.ir.functions for block in function.blocks)
        instructions = sum(len(block.instructions) for block in blocks)

    monkeypatch.setattr(module.Module, "export", counted)
    monkeypatch.setattr(module, "give_way", lambda: turns.append(1))
    tile = RegisterTile(1, 14, 2, 16, 4, True)
    source.assembly(make_microkernel(tile), "kernel", settings().triple)
    assert instructions > 1000
    assert len(turns) * module.TOGETHER >= instructions
