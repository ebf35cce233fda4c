"""Compile sources with Numba, which is the reference for the translator: no fastmath, no SVML.

Kernels are plain functions. Numba compiles calls of its own functions alone, so every function that
is called becomes one: a copy whose globals, closure and modules hold compiled functions in place of
plain ones. Nothing is cached on disk.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

import numba

from implicit_conv.kernels.cpu.emit import numbas, types
from implicit_conv.kernels.cpu.runtime.compiled.source import ARRAY, OBJECT, Source
from implicit_conv.kernels.cpu.runtime.objects import address as address_of

OPTIONS = {"error_model": "numpy", "boundscheck": False}  # as the translator: x // 0 is 0
_compiled: dict[Any, Any] = {}  # for Numba, by what it stands for
# What stands for an argument: objects that are laid out as arrays may be given in their place.
_WORDS = {
    ARRAY: address_of,
    OBJECT: id,
}
_kept: list[Any] = []  # compiled entries, which live as long as the process


def address(source: Source) -> int:
    """The address of a source that is called by address."""
    signature = numbas.signature_of(source.signature)
    _kept.append(numba.cfunc(signature, **OPTIONS)(_callable(source.function)))
    return int(_kept[-1].address)


def python_function(source: Source) -> Callable[..., Any]:
    """A function for Python; arrays and objects stand for their addresses."""
    result, kinds = source.signature
    words = [types.int64 if kind in _WORDS else kind for kind in kinds]
    signature = numbas.signature_of(result(*words))
    _kept.append(numba.cfunc(signature, **OPTIONS)(_callable(source.function)))
    called, readers = _kept[-1].ctypes, [_WORDS.get(kind, int) for kind in kinds]

    def call(*arguments: Any) -> Any:
        pairs = zip(arguments, readers, strict=True)
        return called(*(read(value) for value, read in pairs))

    return call


def _callable(function: Any) -> Any:
    """A Python function that Numba can compile, of a kernel or an intrinsic."""
    if isinstance(function, FunctionType):
        return _copy(function)
    code = function.definition.__code__
    listed = ", ".join(code.co_varnames[: code.co_argcount])
    scope = {"body": _numbas(function, set())}
    exec(f"def entry({listed}): body({listed})", scope)
    return scope["entry"]


def _copy(function: FunctionType) -> FunctionType:
    """A function whose names mean compiled functions."""
    names, given = set(function.__code__.co_names), function.__globals__
    loads = (step for step in dis.get_instructions(function.__code__) if "GLOBAL" in step.opname)
    read = {step.argval for step in loads} & given.keys()
    scope = {name: _numbas(given[name], names) for name in read}
    scope |= {"__name__": function.__module__, "__builtins__": given["__builtins__"]}
    closure = tuple(
        CellType(_numbas(cell.cell_contents, names)) for cell in function.__closure__ or ()
    )
    copied = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, closure or None
    )
    copied.__qualname__ = function.__qualname__
    return copied


def _numbas(value: Any, names: set[str]) -> Any:
    """What Numba compiles in place of a value that a function has by name; `names` are all names
    of that function.
    """
    if type(value) in _CONVERTERS:
        if value not in _compiled:
            _compiled[value] = _CONVERTERS[type(value)](value)
        return _compiled[value]
    if isinstance(value, ModuleType) and value.__name__.startswith("implicit_conv"):
        module = ModuleType(value.__name__)
        for name in names & vars(value).keys():
            setattr(module, name, _numbas(getattr(value, name), names))
        return module
    return value


_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    FunctionType: lambda function: numba.njit(**OPTIONS)(_copy(function)),
    types.Intrinsic: numbas.of_intrinsic,
    types.ExternalFunction: numbas.external,
    types.Type: numbas.type_of,
}
