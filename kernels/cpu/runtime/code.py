"""Compiled code, named by what makes it: a cached kernel is loaded without the modules that emit.

    code(".gemm.compiled.microkernel:make_microkernel", RegisterTile(...)).address()

The maker is a function of a module that emits, and its arguments say all that the code depends on
besides sources, versions and the machine. Their texts are the entry's name in the cache on disk, so
two kernels with one name do not exist. Only if the cache lacks it is the module imported: numba and
what emits LLVM's assembly are for those who compile.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite
import numpy as np

from implicit_conv.kernels import sources
from implicit_conv.kernels.cpu.runtime import objects
from implicit_conv.kernels.cpu.runtime.machine import Machine, machine, settings
from implicit_conv.kernels.sources import NJIT, TRANSLATOR
from implicit_conv.process.disk import store
from implicit_conv.process.disk_folder import KERNEL
from implicit_conv.process.preparation import COMPILING, checkpoint

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.compiled.source import Source

PACKAGE = __name__.rpartition(".runtime")[0]  # makers that begin with a dot are in it
FOLDER = Path(__file__).parents[1]
METH_FASTCALL = 0x80

_addresses: dict[Any, int] = {}  # of this process


class Code(NamedTuple):
    """What is compiled, by its maker and the maker's arguments; see `code`."""

    maker: str
    arguments: tuple[Any, ...]

    def address(self, compiler: str = TRANSLATOR) -> int:
        """The address of the compiled code.

        Raises
        ------
        CompilationError
            This thread must not compile; see `preparation`.
        TypeError
            An argument is of a type whose text may not tell it from others.
        """
        key = self, compiler
        if key not in _addresses:
            checkpoint()
            with COMPILING:
                if key not in _addresses:
                    _addresses[key] = _FINDERS[compiler](self, machine(*settings()))
        return _addresses[key]

    def is_loaded(self, compiler: str = TRANSLATOR) -> bool:
        """Whether `address` is known."""
        return (self, compiler) in _addresses

    def make(self) -> Source:
        """What the maker returns; this imports its module."""
        module, function = self.maker.split(":")
        made = getattr(importlib.import_module(module, PACKAGE), function)
        return made(*self.arguments) if callable(made) else made

    @property
    def title(self) -> str:
        """How names of it begin."""
        return self.maker.rpartition(":")[2].removeprefix("make_").lower()

    def name(self, target: Machine) -> str:
        """The name of its entry in the cache.

        Raises
        ------
        OSError
            A source cannot be read, so that it is unknown which code belongs to it.
        """
        hashes = sources.kernels_hash(), _own_hash(self.maker.partition(":")[0])
        spec = self.maker, *map(text, self.arguments)
        return sources.kernel_name(self.title, (versions(), target.settings, hashes, spec))


def code(maker: str, *arguments: Any) -> Code:
    """Code that is compiled when its address is asked for, unless the cache has it.

    Parameters
    ----------
    maker : str
        ``"module:name"``, a function that returns a `Source`, or where nothing differs a `Source`.
    arguments : str, numbers, None, members of enums, and tuples or frozen dataclasses of these
        What the function is called with.
    """
    return Code(maker, arguments)


def count() -> int:
    """How many kernels this process has compiled, or loaded from the cache."""
    return len(_addresses)


def forget() -> None:
    """Forget all addresses: code is found or compiled again."""
    _addresses.clear()


def _find(wanted: Code, target: Machine) -> int:
    """Load the code, or translate and save it."""
    try:
        name = wanted.name(target)
    except OSError as error:
        store().warn("source", f"kernels are not cached, as their source cannot be read: {error}")
        return target.load(_compile(wanted, target, wanted.title), wanted.title)
    symbol = name.removesuffix(KERNEL)
    found = store().load(name)
    if found is not None:
        try:
            return target.load(bytes(found), symbol)
        except (RuntimeError, ValueError) as error:
            store().warn_of_entry(name, error)
    _announce()
    compiled = _compile(wanted, target, symbol)
    store().save(name, compiled)
    return target.load(compiled, symbol)


@functools.cache
def _announce() -> None:
    """Say, in the log and on a terminal, why the first call of this process takes its time."""
    text = f"compiling kernels for this CPU, once; later processes load them from {store().folder}"
    logging.getLogger("implicit_conv").info("%s", text)
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"implicit_conv: {text}", file=sys.stderr)


def _compile(wanted: Code, target: Machine, symbol: str) -> bytes:
    """The object of the code, with a function named `symbol`."""
    from implicit_conv.kernels.cpu.runtime.compiled.source import assembly

    return target.compile(assembly(wanted.make(), symbol, target.settings.triple))


def _compile_by_numba(wanted: Code, target: Machine) -> int:
    from implicit_conv.kernels.cpu.runtime.compiled.njit import address

    return address(wanted.make())


_FINDERS = {TRANSLATOR: _find, NJIT: _compile_by_numba}


def text(value: Any) -> str:
    """The text of a maker's argument, which no other value has."""
    if value is None or type(value) in (str, bool, int, float) or isinstance(value, enum.Enum):
        return repr(value)
    if isinstance(value, tuple):
        return f"{_kind(value)}({', '.join(map(text, value))})"
    if getattr(getattr(value, "__dataclass_params__", None), "frozen", False):
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return f"{_kind(value)}({', '.join(map(text, fields))})"
    raise TypeError(f"{value!r} of {_kind(value)} in the name of compiled code")


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


@functools.cache
def versions() -> tuple[str, ...]:
    """What tells versions of all that compiled code depends on."""
    tag = sys.implementation.cache_tag
    return tag, llvmlite.__version__, np.__version__, objects.stated()


@functools.cache
def _own_hash(module: str) -> str:
    """The hash of the source of a module that is not among ours, which have one hash."""
    if module.startswith(".") and (FOLDER / f"{module[1:].replace('.', '/')}.py").exists():
        return ""
    return sources.file_hash(Path(_origin(module)))


def _origin(module: str) -> str:
    """The path of a module's file."""
    loaded = sys.modules.get(module)
    spec = loaded.__spec__ if loaded else importlib.util.find_spec(module, PACKAGE)
    if spec is None or spec.origin is None:
        raise OSError(f"there is no file of the module {module}")
    return spec.origin


class Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [  # ctypes reads a list
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.POINTER(Method), ctypes.c_void_p, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


_methods: list[Method] = []  # CPython keeps pointers to them, so they are never freed


def python_code(maker: str, *arguments: Any) -> Callable[..., Any]:
    """A function that Python calls, of code that `source.for_python` makes.

    IMPLICIT_CONV_COMPILER chooses its compiler. CPython calls it by the protocol METH_FASTCALL.
    """
    wanted = code(maker, *arguments)
    if _compiler() == NJIT:
        from implicit_conv.kernels.cpu.runtime.compiled.njit import python_function

        return python_function(wanted.make())
    made = new_function(_method(wanted, wanted.address()), None, None)
    return _of_addresses(made) if "array" in objects.differing() else made


def _of_addresses(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gets the addresses of arrays that are its arguments."""
    return lambda *arguments: function(
        *(
            each if isinstance(each, (int, np.integer)) else objects.address(each)
            for each in arguments
        )
    )


def builtin(maker: str) -> Callable[[object], Callable[..., Any]]:
    """What makes a builtin function of its owner, of code that takes the owner, the address of its
    arguments and their number, as METH_FASTCALL says; it returns a new reference, or 0 after an
    error.

    IMPLICIT_CONV_COMPILER chooses its compiler.
    """
    wanted = code(maker)
    method = _method(wanted, wanted.address(_compiler()))
    return lambda owner: new_function(method, id(owner), None)


def _compiler() -> str:
    return NJIT if os.environ.get("IMPLICIT_CONV_COMPILER") == NJIT else TRANSLATOR


def _method(wanted: Code, address: int) -> Method:
    method = Method(wanted.title.encode(), address, METH_FASTCALL, None)
    _methods.append(method)
    return method
