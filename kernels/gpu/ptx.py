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


_device_functions: list[Any] = []


def device(function: Function) -> Any:
    """A function that kernels call; the compiler inlines it."""
    compiled = need_numba_cuda().jit(device=True, forceinline=True)(function)
    _device_functions.append(compiled)
    return compiled


def forget_compiled() -> None:
    """Make Numba compile all device functions again.

    Numba keeps compiled device functions by argument types alone, as if a process had one target. A
    function compiled for another target would bring the instructions of that target along.
    """
    for function in _device_functions:
        function.overloads.clear()


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
