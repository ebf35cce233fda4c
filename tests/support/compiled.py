"""Functions of tests, compiled like kernels, but not cached; and how to have code found anew."""

import ctypes
import itertools

from numba import types
from numba.core import sigutils  # noqa: TID251

from implicit_conv import clear_plan_cache
from implicit_conv.kernels.cpu.runtime import code
from implicit_conv.kernels.cpu.runtime.code import METH_FASTCALL, Method, new_function
from implicit_conv.kernels.cpu.runtime.compiled import source
from implicit_conv.kernels.cpu.runtime.machine import machine, settings

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


def address_of(made):
    """The address of the code of a source."""
    target, symbol = machine(*settings()), f"of_a_test_{next(_numbers)}"
    text = source.assembly(made, symbol, target.settings.triple)
    return target.load(target.compile(text), symbol)


class Entry:
    """A function that is called by address."""

    def __init__(self, signature, function):
        self.signature = sigutils.normalize_signature(signature)
        self.address = address_of(source.of_function(signature, function))

    @property
    def ctypes(self):
        """The code as a function for calls from Python."""
        arguments, result = self.signature
        kinds = [CTYPES.get(kind, ctypes.c_void_p) for kind in arguments]
        return ctypes.CFUNCTYPE(CTYPES[result], *kinds)(self.address)


def entry(signature):
    """Compile a function that is called by address, for a signature of Numba's."""
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
