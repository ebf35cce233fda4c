"""Parts are called by their declarations: a call that does not fit fails when it is translated."""

import ctypes
import math

import numpy as np
import pytest
from compiled import address_of, entry

from implicit_conv import clear_plan_cache, conv2d
from implicit_conv.kernels.cpu.emit import memory, types
from implicit_conv.kernels.cpu.runtime.code import Code
from implicit_conv.kernels.cpu.runtime.compiled import source
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.translate.values import TranslationError

INT = types.int64
OPTIONS = {"slot": 2}
put = declare(1, "put", "to value other", "factor limit", other=7, limit=math.inf)


def written(to, value, other, factor, limit):
    """What `put` does."""
    memory.write(to, value)
    memory.write(to + 8, other)
    memory.write(to + 16, int(factor * 10))
    memory.write(to + 24, limit > 1e300)


def right(kernels, to):
    put(kernels, to=to, value=to > 0, factor=2)


def in_another_order(kernels, to):
    put(kernels, slot=2, limit=1.0, factor=0.5, other=-1, value=3, to=to)


@pytest.fixture(scope="module")
def table():
    """A kernel table whose slots 1 and 2 have the part."""
    address = address_of(source.translated(put, written))
    return np.array([0, address, address], np.int64)


def run(function, table):
    """What a call of the part writes."""
    to = np.full(4, 99, np.int64)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    address = entry(types.void(INT, INT))(function).address
    kind(address)(table.ctypes.data, to.ctypes.data)
    return to.tolist()


def test_defaults_and_names(table):
    assert run(right, table) == [1, 7, 20, 1]
    assert run(in_another_order, table) == [3, -1, 5, 0]


def test_an_emitted_part_has_the_declared_parameters(table):
    seen = {}
    address_of(source.emitted(put, lambda builder, at: seen.update(at)))
    assert list(seen) == ["to", "value", "other", "factor", "limit"] == list(put.part.parameters)


def dropped(kernels, to):
    put(kernels, to=to, factor=1.0)


def misspelt(kernels, to):
    put(kernels, to=to, values=1, factor=1.0)


def without_names(kernels, to):
    put(kernels, to, 1, factor=1.0)


def swapped(kernels, to):
    put(kernels, 1, to, factor=1.0)


def a_float_for_an_integer(kernels, to):
    put(kernels, to=to, value=1.0, factor=1.0)


def a_tuple_for_an_integer(kernels, to):
    put(kernels, to=to, value=(1, 2), factor=1.0)


def by_a_dict(kernels, to):
    put(kernels, to=to, value=1, factor=1.0, **OPTIONS)


WRONG = [
    (dropped, "a call of put without value"),
    (misspelt, "a call of put, which has no parameter values"),
    (without_names, "arguments of the part put without names"),
    (swapped, "arguments of the part put without names"),
    (a_float_for_an_integer, "1.0 in place of a number of type int64"),
    (a_tuple_for_an_integer, "in place of a number of type int64|the argument"),
    (by_a_dict, r"arguments `\*\*`"),
]


@pytest.mark.parametrize(
    ("function", "message"), WRONG, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_call_that_does_not_fit_names_the_line(function, message):
    line = function.__code__.co_firstlineno + 1
    place = rf"{function.__name__} \(.*test_parts.py:{line}\)"
    with pytest.raises(TranslationError, match=f"{place}.*({message})"):
        entry(types.void(INT, INT))(function)


def test_a_template_has_the_declared_parameters():
    def other(to, value, factor, other, limit):
        pass

    with pytest.raises(AssertionError):
        source.translated(put, other)


def test_a_call_compiles_what_stores_staging_tiles_only_if_it_has_one(monkeypatch):
    asked, address = set(), Code.address

    def noted(wanted, *compiler):
        asked.add(wanted.title)
        return address(wanted, *compiler)

    monkeypatch.setattr(Code, "address", noted)
    clear_plan_cache()
    x, w = np.ones((1, 16, 24, 32), np.float32), np.ones((16, 1, 3, 3), np.float32)
    assert conv2d(x, w, groups=16, activation="relu").min() == 9
    assert not asked & {"store_tile", "load_tile", "finish"}
    assert conv2d(x, w, groups=16, activation="silu").max() < 9
    assert {"store_tile", "finish"} <= asked
