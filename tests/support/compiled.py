"""Functions of tests, compiled like kernels, but not cached; and how to have code found anew."""

import ctypes
import itertools
from contextlib import contextmanager
from pathlib import Path

import pytest

from implicit_conv import clear_plan_cache
from implicit_conv.kernels.cpu.emit import types
from implicit_conv.kernels.cpu.runtime import code
from implicit_conv.kernels.cpu.runtime.code import METH_FASTCALL, Method, new_function
from implicit_conv.kernels.cpu.runtime.compiled import source
from implicit_conv.kernels.cpu.runtime.machine import machine, settings
from implicit_conv.kernels.sources import TRANSLATOR
from implicit_conv.process.disk import Store

CTYPES = {
    types.int64: ctypes.c_int64,
    types.float64: ctypes.c_double,
    types.boolean: ctypes.c_bool,
    types.void: None,
}
_numbers = itertools.count()


def forget_code():
    """Have all code found or compiled anew. Operators, which have addresses of it in their tables,
    are dropped too: other sizes would share these tables.
    """
    clear_plan_cache()
    code.forget()


@contextmanager
def uncached(makers):
    """Code of makers whose names begin with `makers`, which a test changes, is compiled anew and
    not cached; all other code is that of the cache.
    """
    find = code._FINDERS[TRANSLATOR]

    def find_unless_changed(wanted, target):
        with pytest.MonkeyPatch.context() as patch:
            if wanted.maker.startswith(makers):
                patch.setattr(code, "store", lambda: Store(Path()))  # no absolute path, so not used
            return find(wanted, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(code._FINDERS, TRANSLATOR, find_unless_changed)
        forget_code()
        try:
            yield
        finally:
            forget_code()


def address_of(made):
    """The address of the code of a source."""
    target, symbol = machine(*settings()), f"of_a_test_{next(_numbers)}"
    text = source.assembly(made, symbol, target.settings.triple)
    return target.load(target.compile(text), symbol)


class Entry:
    """A function that is called by address."""

    def __init__(self, signature, function):
        self.signature = signature
        self.address = address_of(source.of_function(signature, function))

    @property
    def ctypes(self):
        """The code as a function for calls from Python."""
        result, arguments = self.signature
        kinds = [CTYPES.get(kind, ctypes.c_void_p) for kind in arguments]
        return ctypes.CFUNCTYPE(CTYPES[result], *kinds)(self.address)


def entry(signature):
    """Compile a function that is called by address, for a signature."""
    return lambda function: Entry(signature, function)


def python_function(signature):
    """Compile a function that Python calls; see `source.for_python`."""

    def decorate(function):
        address = address_of(source.for_python(signature, function))
        method = Method(function.__name__.encode(), address, METH_FASTCALL, None)
        called = new_function(method, None, None)

        def call(*arguments):
            return called(*arguments)

        call.py_func, call.method = function, method
        return call

    return decorate
