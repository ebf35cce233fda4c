"""Hooks: PTX that a Numba kernel calls as a function, and the switch to their simulator twins.

A hook is declared by a documented function; `instruction` and `instructions` turn it into a Numba
intrinsic that emits inline PTX, or, where NUMBA_ENABLE_CUDASIM is 1, into the function of the same
name in the module of the same name of kernels/sim. A kernel's source is the same either way. Of the
kernel files, this one and blob.py know llvmlite.

Operands and results are told by PTX constraint letters: r (u32), i (s32), l (u64), h (u16), f
(f32); ``("f", 8)`` is a tuple of eight registers. In the text results come first: $0, $1, ...
"""

import functools
import importlib
import importlib.util
import inspect
import math
import os
from collections.abc import Callable
from typing import NamedTuple

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"

TARGETS = {
    "sm_80": (lambda number, suffix: number >= 80, "sm_80 or later"),
    "sm_90": (lambda number, suffix: number >= 90, "sm_90 or later"),
    "sm_90a": (lambda number, suffix: (number, suffix) == (90, "a"), "sm_90a and no other"),
    "sm_90a+": (lambda number, suffix: number >= 90 and suffix, "sm_90a or a later a/f variant"),
    "sm_100": (lambda number, suffix: number >= 100, "sm_100 or later"),
    "sm_100a": (
        lambda number, suffix: number in (100, 103, 107, 110) and suffix,
        "an a/f variant of sm_100, 103, 107 or 110",
    ),
}


class Asm(NamedTuple):
    """One block of inline PTX; `tied` leading operands share registers with the results."""

    text: str | Callable[[int], str]  # a function of the target's number where targets differ
    operands: tuple | str = ""
    results: tuple | str = ""
    target: str = "sm_80"
    tied: int = 0
    memory: bool = True  # False: a pure computation, which the compiler may move or drop


class TargetError(Exception):
    """A hook asked for on a target that lacks its instruction."""


def supports(target, cc):
    """Whether compute capability `cc` = (major, minor[, suffix]) has instructions of `target`."""
    suffix = cc[2] if len(cc) > 2 else ""
    return bool(TARGETS[target][0](10 * cc[0] + cc[1], suffix))


def requirement(target):
    """The GPUs that have instructions of `target`, in words."""
    return TARGETS[target][1]


def target_name(cc):
    """How ptxas spells a compute capability: sm_90a."""
    return f"sm_{10 * cc[0] + cc[1]}{cc[2] if len(cc) > 2 else ''}"


class Hook(NamedTuple):
    """A declared hook: its documentation and operands, and what it emits for given choices."""

    function: Callable
    assembly: Callable[..., tuple[str, Asm]]


HOOKS: dict[str, Hook] = {}  # by "module.name": for tests and documentation


def instruction(text, operands="", results="", **options):
    """Declare a hook: the decorated function gives name, operands' names and documentation."""

    def declare(function):
        asm = Asm(text, operands, results, **options)
        signature = inspect.signature(function)
        name = _register(function, lambda: (" ".join(signature.parameters), asm))
        return _twin(function) if SIMULATED else _intrinsic(name, signature, asm)

    return declare


def instructions(function):
    """Declare a family of hooks: `function` of compile-time choices gives (operand names, Asm)."""
    name = _register(function, function)
    if SIMULATED:
        return functools.cache(_twin(function))

    @functools.cache
    @functools.wraps(function)
    def make(*choices):
        names, asm = function(*choices)
        return _intrinsic(name, signature_of(names), asm)

    return make


def signature_of(names):
    """The signature of a function of positional arguments."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names.split()])


def _register(function, assembly):
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    HOOKS[name] = Hook(function, assembly)
    return name


def _twin(function):
    module = function.__module__.rpartition(".")[2]
    return getattr(
        importlib.import_module(f"implicit_conv.kernels.sim.{module}"), function.__name__
    )


_device_functions = []


def device(function):
    """A function that kernels call: compiled into its callers."""
    if SIMULATED:
        return function
    compiled = need_numba_cuda().jit(device=True, forceinline=True)(function)
    _device_functions.append(compiled)
    return compiled


def forget_compiled():
    """Let device functions be compiled anew.

    Numba keeps them by argument types alone, as if a process had one target: a function made for
    another would come along with that target's instructions.
    """
    for function in _device_functions:
        function.overloads.clear()


def float_function(name):
    """math.exp and the like for kernels; over all lanes in the simulator."""
    if SIMULATED:
        return getattr(importlib.import_module("implicit_conv.kernels.sim.gmem"), name)
    return getattr(math, name)


def device_module(module):
    """A namespace like `module` whose plain integer functions kernels may call.

    The functions call one another as globals, so each is rebuilt over a namespace in which its
    callees are device functions already (a module's functions stand in order of use).
    """
    if SIMULATED:
        return module
    namespace = dict(vars(module))
    for name, value in vars(module).items():
        if inspect.isfunction(value):
            code = (value.__code__, namespace, name, value.__defaults__, value.__closure__)
            namespace[name] = device(type(value)(*code))
    compiled = type(module)(f"{module.__name__} (device)", module.__doc__)
    vars(compiled).update(namespace)
    return compiled


@functools.cache
def need_numba_cuda():
    """numba.cuda of the numba-cuda package; an older one is part of Numba itself and lacks much."""
    if importlib.util.find_spec("numba_cuda") is None:
        raise ImportError(
            "GPU kernels need numba-cuda: run pip install '.[cu13]' (or '.[cu12]') in a checkout"
        )
    from numba import cuda

    return cuda


def _types():
    from llvmlite import ir
    from numba.cuda import types

    return {
        "r": (types.uint32, ir.IntType(32)),
        "i": (types.int32, ir.IntType(32)),
        "l": (types.uint64, ir.IntType(64)),
        "h": (types.uint16, ir.IntType(16)),
        "f": (types.float32, ir.FloatType()),
    }


def _numba_type(spec):
    from numba.cuda import types

    kinds = _types()
    if isinstance(spec, str):
        return kinds[spec][0]
    letter, count = spec
    return types.UniTuple(kinds[letter][0], count)


def _return_type(results):
    from numba.cuda import types

    if not results:
        return types.void
    parts = [_numba_type(spec) for spec in results]
    return parts[0] if len(parts) == 1 else types.Tuple(parts)


def _letters(specs):
    """One letter a register."""
    return [
        letter
        for spec in specs
        for letter in (spec if isinstance(spec, str) else spec[0] * spec[1])
    ]


def _constraints(asm):
    results, operands = _letters(asm.results), _letters(asm.operands)
    tied = len(_letters(asm.operands[: asm.tied]))
    parts = ["=" + _constraint(letter) for letter in results]
    parts += [str(index) for index in range(tied)]  # LLVM has no "+r": an input tied to its output
    parts += [_constraint(letter) for letter in operands[tied:]]
    return ",".join([*parts, "~{memory}"] if asm.memory else parts)


def _constraint(letter):
    return "r" if letter == "i" else letter


def _intrinsic(name, signature, asm):
    """The Numba intrinsic that emits `asm`."""
    need_numba_cuda()
    from numba.cuda.extending import intrinsic

    returns = _return_type(asm.results)
    arguments = [_numba_type(spec) for spec in asm.operands]

    def hook(typingctx, *given):
        return returns(*arguments), functools.partial(_emit, name, asm)

    context = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    hook.__signature__ = inspect.Signature([context, *signature.parameters.values()])
    hook.__name__ = name
    return intrinsic(hook)


def current_target():
    """The compute capability being compiled for."""
    from numba.cuda.core.targetconfig import ConfigStack

    return ConfigStack().top().compute_capability


def _emit(name, asm, context, builder, signature, arguments):
    from llvmlite import ir

    cc = tuple(current_target())
    if not supports(asm.target, cc):
        raise TargetError(
            f"{name} needs {requirement(asm.target)}, "
            f"but the kernel is compiled for {target_name(cc)}"
        )
    kinds = _types()
    values = []
    for spec, value in zip(asm.operands, arguments, strict=True):
        if isinstance(spec, str):
            values.append(value)
        else:
            values += [builder.extract_value(value, index) for index in range(spec[1])]
    text = asm.text if isinstance(asm.text, str) else asm.text(10 * cc[0] + cc[1])
    results = [kinds[letter][1] for letter in _letters(asm.results)]
    kind = (
        ir.VoidType()
        if not results
        else ir.LiteralStructType(results)
        if len(results) > 1
        else results[0]
    )
    function = ir.FunctionType(kind, [value.type for value in values])
    inline = ir.InlineAsm(function, text, _constraints(asm), side_effect=asm.memory)
    attributes = ("convergent", "nounwind") if asm.memory else ()
    value = builder.call(inline, values, attrs=attributes)
    return _collect(context, builder, signature.return_type, asm.results, value)


def _collect(context, builder, returns, results, value):
    """The asm's registers as Numba's value: nothing, a scalar, a tuple, or a tuple of them."""
    from llvmlite import ir

    if not results:
        return context.get_dummy_value()
    registers = len(_letters(results))
    flat = (
        [value] if registers == 1 else [builder.extract_value(value, i) for i in range(registers)]
    )
    parts, at = [], 0
    for spec in results:
        if isinstance(spec, str):
            parts.append(flat[at])
            at += 1
            continue
        part = ir.Constant(context.get_value_type(_numba_type(spec)), ir.Undefined)
        for index in range(spec[1]):
            part = builder.insert_value(part, flat[at + index], index)
        parts.append(part)
        at += spec[1]
    if len(parts) == 1:
        return parts[0]
    whole = ir.Constant(context.get_value_type(returns), ir.Undefined)
    for index, part in enumerate(parts):
        whole = builder.insert_value(whole, part, index)
    return whole


def shared_base():
    """A hook: the address of the block's dynamic shared memory, a multiple of 1024."""
    if SIMULATED:
        return lambda: importlib.import_module("implicit_conv.kernels.sim.smem").BASE
    need_numba_cuda()
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    def codegen(context, builder, signature, arguments):
        module = builder.module
        symbol = module.globals.get("dynamic_shared")
        if symbol is None:
            kind = ir.ArrayType(ir.IntType(8), 0)
            symbol = ir.GlobalVariable(module, kind, "dynamic_shared", addrspace=3)
            symbol.linkage, symbol.align = "external", 1024
        return builder.trunc(builder.ptrtoint(symbol, ir.IntType(64)), ir.IntType(32))

    @intrinsic
    def base(typingctx):
        return types.uint32(), codegen

    return base
