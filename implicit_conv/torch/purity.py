"""Whether code that is traced does nothing but compute: a graph has no other effects.

While a graph is made, a profile function sees each frame of Python and each C function that is
called. Of frames that are not torch's the bytecode is read: it may store to its own local names
alone, and what it reads of globals and attributes are modules, numbers, functions and containers of
these. C functions that such a frame calls must be torch's or compute values. What is not known to
be harmless is refused, with its line.
"""

from __future__ import annotations

import dis
import enum
import functools
import gc
import inspect
import itertools
import math
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Proxy
from torch.nn import functional
from torch.overrides import get_testing_overrides


class ImpureError(Exception):
    """Code that is traced has other effects than its result, or may have them."""


OURS = "torch", "implicit_conv"  # whose code is trusted
# Modules of the standard library whose code runs between: of references that end, and of types.
STANDARD = sys.stdlib_module_names - {"__main__"}
UNSEEN = "weakref", "_weakrefset", "abc", "_py_abc", "enum", "typing"
# What code stores to or does apart from its results. Handlers are here because torch.fx stops by
# exceptions, and contexts because a graph has none.
STORES = {
    **dict.fromkeys(("STORE_ATTR", "DELETE_ATTR"), "sets or deletes an attribute"),
    **dict.fromkeys(("STORE_GLOBAL", "DELETE_GLOBAL"), "sets or deletes a global name"),
    **dict.fromkeys(("STORE_NAME", "DELETE_NAME", "LOAD_BUILD_CLASS"), "defines a class"),
    **dict.fromkeys(("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"), "sets or deletes an item"),
    **dict.fromkeys(("IMPORT_NAME", "IMPORT_FROM", "IMPORT_STAR"), "imports"),
    **dict.fromkeys(("SETUP_WITH", "BEFORE_WITH", "LOAD_SPECIAL"), "enters a context"),
    **dict.fromkeys(("SETUP_FINALLY", "PUSH_EXC_INFO"), "catches exceptions"),
    **dict.fromkeys(("GET_AWAITABLE", "SETUP_ASYNC_WITH", "BEFORE_ASYNC_WITH"), "awaits"),
}
LOADS = "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "STORE_FAST_LOAD_FAST"
ATTRIBUTES = "LOAD_ATTR", "LOAD_METHOD"
HARMLESS = (  # types of values that calls leave as they are, or whose calls are seen
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...), enum.Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Tensor, torch.nn.Module),
    *(Proxy, types.ModuleType),
)
CHANGING = list, dict, set  # types of containers that may change
TYPES = (
    *(bool, int, float, complex, str, range, slice, enumerate, zip, reversed, type, object, super),
    *(tuple, list, dict, set, frozenset),
)
COMPUTING = (  # functions of C that change nothing
    *(abs, all, any, callable, divmod, getattr, hasattr, isinstance, issubclass, iter, len, max),
    *(min, pow, repr, round, sorted, sum),
    *(each for each in vars(math).values() if callable(each)),
)
LIST_WRITES = "append", "extend", "insert"  # which are allowed for lists that a frame makes
METHODS = {  # of C, by type; None is all
    **dict.fromkeys((str, tuple, int, float, range), None),
    list: ("index", "count", "copy", *LIST_WRITES),
    dict: ("get", "items", "keys", "values", "copy"),
}
SPECIAL_NAMES = "__class__", "__name__"


@functools.cache
def _torchs_functions() -> frozenset[Any]:
    """Functions of torch that compute with tensors, or tell how code runs."""
    told = torch.jit.is_scripting, torch.jit.is_tracing, torch.is_tensor, torch._assert
    like = [value for name, value in vars(torch).items() if name.endswith("_like")]
    of_functional = filter(callable, vars(functional).values())
    return frozenset((*get_testing_overrides(), *told, *like, *of_functional))


@contextmanager
def only_computing() -> Iterator[None]:
    """What this thread runs meanwhile has no effects but its results.

    Raises
    ------
    ImpureError
        It has, or may have.
    """
    if sys.getprofile() is not None:
        raise ImpureError("a profiler watches the thread that traces")
    found: list[ImpureError] = []

    def watch(frame: types.FrameType, event: str, called: Any) -> None:
        try:
            _watch(frame, event, called)
        except ImpureError as error:
            found.append(error)  # Python drops those of finalizers, and watches no more after any
            raise

    collects = gc.isenabled()
    gc.disable()  # a collection runs callbacks and finalizers of anybody, which are not the model's
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    if found:
        raise found[0]


def _watch(frame: types.FrameType, event: str, called: Any) -> None:
    """The profile function, which sees calls before they run."""
    home, caller = _home(frame.f_globals), frame.f_back
    if not _is_users(home):  # torch may call what it likes
        is_called = event == "call" and home not in (*OURS, *UNSEEN)
        if is_called and caller is not None and _is_users(_home(caller.f_globals)):
            raise ImpureError(f"{place(caller)} calls {home}.{frame.f_code.co_name}()")
    elif event == "call":
        _Reader(frame).read()
    elif event == "c_call" and not _computes(called):
        raise ImpureError(f"{place(frame)} calls {_name(called)}")


def _is_users(home: str) -> bool:
    """Whether code of a package is read: it is neither torch's nor of the standard library."""
    return home not in OURS and home not in STANDARD and not home.startswith("namedtuple_")


def _home(names: dict[str, Any]) -> str:
    """The package of the code that has these global names."""
    return str(names.get("__name__")).partition(".")[0]


def place(frame: types.FrameType, line: int | None = None) -> str:
    """Where a frame is, or a line of its code."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{line or frame.f_lineno}"


def _name(value: Any) -> str:
    """The words for a value that code reads or calls."""
    name = getattr(value, "__qualname__", None)
    return f"{name}()" if isinstance(name, str) else f"an object of {type(value).__name__}"


def _computes(called: Any) -> bool:
    """Whether a C function is torch's, or changes nothing that lasts longer than the call."""
    of = getattr(called, "__self__", None)
    if called in _torchs_functions() or any(called is each for each in COMPUTING):
        return True
    if isinstance(of, torch.Tensor) or type(of).__module__ == "torch":
        return True
    names = METHODS.get(type(of), ())
    return names is None or called.__name__ in names


def _is_harmless(value: Any, has_sums: bool, depth: int = 0) -> bool:
    """Whether a value that code reads cannot be changed by it, and no call of it is unseen; in
    place sums, which a frame may have, write to lists that are in other containers.
    """
    kind = type(value)
    if kind in CHANGING or isinstance(value, (tuple, frozenset)):
        items = [*value, *value.values()] if kind is dict else value
        is_hidden = depth > 3 or (kind in CHANGING and depth > 0 and has_sums)
        return not is_hidden and all(_is_harmless(each, has_sums, depth + 1) for each in items)
    if isinstance(value, type):
        is_torchs = _home({"__name__": value.__module__}) == "torch"
        return value in TYPES or is_torchs or issubclass(value, (BaseException, torch.nn.Module))
    if kind is types.MethodType:
        return isinstance(value.__func__, types.FunctionType)
    if kind in (types.FunctionType, types.BuiltinFunctionType):
        inner = inspect.unwrap(value)  # what torch.fx wraps meanwhile
        names = getattr(inner, "__globals__", {"__name__": "torch"})  # of C
        return _home(names) not in OURS or _computes(inner)
    return isinstance(value, HARMLESS)


def _attribute(value: Any, name: str) -> tuple[bool, Any]:
    """Whether an attribute is known without running code, and its value."""
    if isinstance(value, types.ModuleType):
        return hasattr(value, name), getattr(value, name, None)
    if isinstance(value, (torch.Tensor, Proxy)):
        return False, None
    stores = [getattr(value, "__dict__", {})]
    if isinstance(value, torch.nn.Module):
        stores += [value._parameters, value._buffers, value._modules]
    for store in stores:
        if name in store and not isinstance(value, type):
            return True, store[name]
    found = inspect.getattr_static(value, name, None)
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if found is None or isinstance(found, (types.FunctionType, property)):
        return False, None  # a frame that is seen, or nothing
    if type(value) in METHODS:
        return False, None  # a function of C that is seen
    return True, found


class _Reader:
    """Reads the bytecode of a frame that begins."""

    def __init__(self, frame: types.FrameType) -> None:
        self._code, self._frame = frame.f_code, frame
        self._instructions = _instructions(self._code)
        self._stored = {name for each in self._instructions for name in _stored(each)}
        self._lists = _own_lists(self._instructions, self._stored)
        self._has_sums = any(map(_is_in_place, self._instructions))
        self._values = {
            name: value
            for name, value in frame.f_locals.items()
            if name not in self._stored and not name.startswith(".")  # iterators of comprehensions
        }

    def read(self) -> None:
        """Refuse what has other effects than the result, or may have them.

        Raises
        ------
        ImpureError
            There is something.
        """
        line = None
        has_containers = any(type(value) in CHANGING for value in self._frame.f_locals.values())
        for at, each in enumerate(self._instructions):
            line = _line(each) or line
            name, what = each.opname, STORES.get(each.opname)
            if name == "STORE_DEREF" and each.argval in self._code.co_freevars:
                what = f"sets {each.argval} of another function"
            if has_containers and _is_in_place(each):
                what = "may write to a list by a sum in place"
            if what is None and name.startswith(LOADS):
                what = self._names(at)
            if name in ATTRIBUTES and what is None:
                what = self._attribute(at)
            if what is not None:
                raise ImpureError(f"{place(self._frame, line)} {what}")

    def _names(self, at: int) -> str | None:
        """What is wrong with the names that an instruction loads; None if nothing."""
        each = self._instructions[at]
        *others, name = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        if not each.opname.startswith("STORE"):
            for other in others:
                known, value = self._base(each.opname, other)
                if known and not _is_harmless(value, self._has_sums):
                    return f"uses {other}, {_name(value)}"
        known, value = self._base(each.opname, name)
        words = name
        while known:
            at += 1
            if self._instructions[at].opname not in ATTRIBUTES:
                is_harmless = _is_harmless(value, self._has_sums)
                return None if is_harmless else f"uses {words}, {_name(value)}"
            attribute = self._instructions[at].argval
            known, value = _attribute(value, attribute)
            words = f"{words}.{attribute}"
        return None

    def _base(self, opname: str, name: str) -> tuple[bool, Any]:
        """Whether a name has a value that is known before the frame runs, and the value."""
        if opname != "LOAD_GLOBAL":
            return name in self._values, self._values.get(name)
        for names in (self._frame.f_globals, self._frame.f_builtins):
            if name in names:
                return True, names[name]
        return False, None

    def _attribute(self, at: int) -> str | None:
        """What is wrong with an attribute by its name, whosever it is; None if nothing."""
        name, before = self._instructions[at].argval, self._instructions[at - 1]
        if name.startswith("__") and name not in SPECIAL_NAMES:
            return f"uses {name}"
        is_written = name in LIST_WRITES and _last(before.argval) not in self._lists
        return f"uses {name} of what may last longer than the call" if is_written else None


@functools.lru_cache(1024)
def _instructions(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    skipped = "CACHE", "NOP", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "NOT_TAKEN", "RESUME"
    return tuple(each for each in dis.get_instructions(code) if each.opname not in skipped)


def _line(instruction: dis.Instruction) -> int | None:
    """The line that begins with an instruction, which is another attribute since Python 3.13."""
    found = getattr(instruction, "line_number", instruction.starts_line)
    return found if type(found) is int else None


def _last(argval: Any) -> Any:
    """The name that is on top afterwards, of instructions that load two."""
    return argval[-1] if isinstance(argval, tuple) and argval else argval


def _stored(instruction: dis.Instruction) -> tuple[Any, ...]:
    """The local names that an instruction may store to."""
    name, argval = instruction.opname, instruction.argval
    if not name.startswith(("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "LOAD_FAST_AND_CLEAR")):
        return ()
    names = argval if isinstance(argval, tuple) else (argval,)
    return names[:1] if name == "STORE_FAST_LOAD_FAST" else names


def _own_lists(instructions: tuple[dis.Instruction, ...], stored: set[Any]) -> set[Any]:
    """The names to which nothing but a list that was just made is stored."""
    found, others = set[Any](), set[Any]()
    for before, each in itertools.pairwise(instructions):
        names = _stored(each)
        is_new = before.opname == "BUILD_LIST" and len(names) == 1
        (found if is_new else others).update(names)
    return (found - others) & stored


def _is_in_place(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith("INPLACE_") or (
        instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("=")
    )
