"""How Numba compiles the engine's functions: inner functions become part of entries alone."""

import ctypes

import numba
import pytest
from numba import types

from implicit_conv.kernels.cpu.runtime.cache import entry, kernel
from implicit_conv.kernels.cpu.runtime.pipeline import EntryLibrary, PartLibrary


@kernel()
def doubled(n):
    return 2 * n


@kernel()
def tripled(n):
    return doubled(n) + n


@kernel()
def mixed(n):
    """Two callers of one function, one of which is called by the other."""
    return 10 * tripled(n) + doubled(n + 1)


def library(function):
    """The library of a function that was compiled for one signature."""
    (compiled,) = function.overloads.values()
    return compiled.library


@pytest.fixture(scope="module")
def compiled():
    @entry(types.int64(types.int64))
    def whole(n):
        return mixed(n) + doubled(n)

    return whole


def test_an_entry_has_all_functions_that_it_reaches(compiled):
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(compiled.address)
    assert [call(n) for n in (0, 1, 7)] == [2, 30 + 4 + 2, 210 + 16 + 14]


def test_only_entries_are_optimised_and_loaded():
    """Of a new function, since entries of the cache on disk have no parts."""

    @kernel()
    def inner(n):
        return tripled(n) + 1

    @kernel([types.int64(types.int64)])
    def outer(n):
        return inner(n)

    assert outer(5) == 16
    assert type(library(outer)) in (EntryLibrary, EntryLibrary.__base__)  # the latter if cached
    numba.njit(lambda n: inner(n) + 1)(1)  # compiles it, whatever the cache has
    part = library(inner)
    assert type(part) is PartLibrary
    names = [function.name for function in part._final_module.functions]
    assert all(part.get_pointer_to_function(name) == 0 for name in names)
    assert not part._codegen._engine.is_symbol_defined(names[0])


def test_other_code_may_call_inner_functions():
    """Numba's own pipeline compiles the caller."""
    assert numba.njit(lambda n: mixed(n) - doubled(n))(7) == 210 + 16 - 14
