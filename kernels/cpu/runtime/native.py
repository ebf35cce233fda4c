"""Compile functions that are called by address, each with all that it calls as one object of LLVM.

The object is what the cache keeps, and a new one is loaded like a cached one.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import sigutils, typing
from numba.core.compiler_lock import global_compiler_lock

from implicit_conv.kernels.cpu.runtime.cache import Names, warn_of_source
from implicit_conv.kernels.cpu.runtime.machine import Machine, description, machine
from implicit_conv.kernels.cpu.runtime.preparation import checkpoint
from implicit_conv.kernels.cpu.translate.function import translate
from implicit_conv.kernels.cpu.translate.module import Module
from implicit_conv.kernels.disk import store
from implicit_conv.kernels.disk_files import KERNEL

CTYPES: dict[Any, Any] = {
    types.int64: ctypes.c_int64,
    types.float64: ctypes.c_double,
    types.boolean: ctypes.c_bool,
    types.void: None,
}
Emit = Callable[[Module, ir.IRBuilder, list[Any]], Any]


class Entry:
    """Compiled code, called by its `address`.

    Parameters
    ----------
    name : str
    source : function
        It, and what it closes over, determine the code.
    signature : numba signature
        Numbers and pointers to records, and one number or void as the result.
    emit : function
        ``emit(module, builder, arguments)`` emits the code, and gives its result.

    Attributes
    ----------
    address : int
    cache_hits : int
        1 if the code was cached, else 0.
    """

    def __init__(self, name: str, source: Any, signature: Any, emit: Emit) -> None:
        checkpoint()
        arguments, result = sigutils.normalize_signature(signature)
        self._signature = typing.signature(result, *arguments)
        self._emit = emit
        self.cache_hits = 0
        with global_compiler_lock:
            self.address = self._find(name, source, machine(*description()))

    def _find(self, name: str, source: Any, target: Machine) -> int:
        """Load the code, or compile and save it."""
        try:
            file = Names(name, source, {"name": name}).name(self._signature, target.description)
        except OSError as error:
            warn_of_source(error)
            return target.load(self._compile(name, target), name)
        symbol = file.removesuffix(KERNEL)
        code = store().load(file)
        if code is not None:
            try:
                address = target.load(bytes(code), symbol)
            except (RuntimeError, ValueError) as error:
                store().warn_of_entry(file, error)
            else:
                self.cache_hits = 1
                return address
        compiled = self._compile(symbol, target)
        store().save(file, compiled)
        return target.load(compiled, symbol)

    def _compile(self, symbol: str, target: Machine) -> bytes:
        """The code, with a function named `symbol`."""
        module = Module(target.triple, translate)
        module.export(symbol, self._signature, self._emit)
        return target.compile(str(module.ir))

    @property
    def ctypes(self) -> Any:
        """The code as a function for calls from Python."""
        kinds: list[Any] = [CTYPES[kind] for kind in self._signature.args]
        return ctypes.CFUNCTYPE(CTYPES[self._signature.return_type], *kinds)(self.address)


def entry(signature: Any) -> Callable[[Any], Entry]:
    """Compile a function that is called by address, for a signature of Numba's."""

    def decorate(function: Any) -> Entry:
        def emit(module: Module, builder: ir.IRBuilder, arguments: list[Any]) -> Any:
            return module.call(builder, function, arguments)

        return Entry(function.__qualname__, function, signature, emit)

    return decorate
