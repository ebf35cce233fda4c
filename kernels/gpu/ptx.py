"""Hooks: PTX that a Numba kernel calls as a function.

A documented function declares a hook; `instruction` and `instructions` turn it into a Numba
intrinsic that emits inline PTX.

Together the hook modules are a library of instructions, each documented, and assembled by tests.
Kernels in work need those that no kernel uses yet: TF32, TMA stores, clusters, prefetches.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from implicit_conv.kernels.gpu.intrinsic import (
    Asm,
    Specs,
    cuda_module,
    make_intrinsic,
    need_numba_cuda,
    signature_of,
)
from implicit_conv.kernels.gpu.sizes import SWIZZLE_ATOM_BYTES

Function = Callable[..., Any]


class Hook(NamedTuple):
    """A declared hook: its documented function, and (operand names, Asm) for given choices."""

    function: Function
    assembly: Callable[..., tuple[str, Asm]]


HOOKS: dict[str, Hook] = {}  # by "module.name": for tests and documentation


def instruction(
    text: str | Callable[[int], str], operands: Specs = "", results: Specs = "", **options: Any
) -> Callable[[Function], Any]:
    """Declare a hook: the decorated function gives name, operand names and documentation."""

    def declare(function: Function) -> Any:
        asm = Asm(text, operands, results, **options)
        signature = inspect.signature(function)
        name = _register(function, lambda: (" ".join(signature.parameters), asm))
        return make_intrinsic(name, signature, asm)

    return declare


def instructions(function: Callable[..., tuple[str, Asm]]) -> Any:
    """Declare a family of hooks: `function` maps compile-time choices to (operand names, Asm)."""
    name = _register(function, function)

    @functools.cache
    @functools.wraps(function)
    def make(*choices: Any) -> Any:
        names, asm = function(*choices)
        return make_intrinsic(name, signature_of(names), asm)

    return make


def _register(function: Function, assembly: Callable[..., tuple[str, Asm]]) -> str:
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    HOOKS[name] = Hook(function, assembly)
    return name


_device_functions: dict[Any, Any] = {}  # by what they are made of
_overloads: dict[Any, dict[Any, Any]] = {}  # by device function, then by target


def device(function: Function) -> Any:
    """A function that kernels call; the compiler inlines it.

    Factories make the same function for many kernels. Functions of equal code over equal values are
    one here, so that Numba compiles it once. The values must be there, and not be replaced later.
    """
    made_of = ingredients(function)
    if made_of not in _device_functions:
        compiled = need_numba_cuda().jit(device=True, forceinline=True)(function)
        _device_functions[made_of] = compiled
    return _device_functions[made_of]


def ingredients(function: Function) -> Any:
    """What compiled code depends on: code, globals, defaults, and values of enclosing functions."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    given = function.__defaults__, function.__kwdefaults__
    return function.__code__, id(function.__globals__), *map(_ingredient, (*given, *values))


def _ingredient(value: Any) -> Any:
    """A number or a string by its type and text, a tuple by its parts, all else by its identity."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value), repr(value)
    if isinstance(value, tuple):
        return type(value), *map(_ingredient, value)
    return id(value)  # the function keeps it alive


def choose_target(cc: Any) -> None:
    """Let device functions have the code that was compiled for `cc`, and no other.

    Numba keeps compiled device functions by argument types alone, as if a process had one target. A
    function compiled for another target would bring the instructions of that target along.
    """
    for function in _device_functions.values():
        by_target = _overloads.setdefault(function, {})
        function.overloads = by_target.setdefault(cc, type(function.overloads)())


@functools.cache
def device_module(module: ModuleType) -> Any:
    """A copy of `module` whose plain integer functions are device functions.

    The functions call each other as globals. So each is rebuilt over a namespace in which the
    functions that it calls are device functions already; a module defines its functions in order of
    use.
    """
    namespace = dict(vars(module))
    for name, value in vars(module).items():
        if inspect.isfunction(value):
            code = (value.__code__, namespace, name, value.__defaults__, value.__closure__)
            namespace[name] = device(type(value)(*code))
    compiled = ModuleType(f"{module.__name__} (device)", module.__doc__)
    vars(compiled).update(namespace)
    return compiled


def shared_base() -> Any:
    """A hook: the address of the block's dynamic shared memory, a multiple of 1024."""
    from implicit_conv.kernels.gpu.llvm import ir

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        module = builder.module
        symbol = module.globals.get("dynamic_shared")
        if symbol is None:
            kind = ir.ArrayType(ir.IntType(8), 0)
            symbol = ir.GlobalVariable(module, kind, "dynamic_shared", addrspace=3)
            symbol.linkage, symbol.align = "external", SWIZZLE_ATOM_BYTES
        return builder.trunc(builder.ptrtoint(symbol, ir.IntType(64)), ir.IntType(32))

    def base(typingctx: Any) -> Any:
        return cuda_module("types").uint32(), codegen

    return cuda_module("extending").intrinsic(base)
