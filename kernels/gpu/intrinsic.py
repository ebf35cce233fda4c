"""Numba intrinsics that emit inline PTX, for the hooks that ptx.py declares.

Operands and results are described by PTX constraint letters: r (u32), i (s32), l (u64), h (u16), f
(f32); ``("f", 8)`` is a tuple of eight registers. In the text results come first: $0, $1, ...
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from implicit_conv.kernels.gpu.targets import requirement, supports, target_name

Spec: TypeAlias = "str | tuple[str, int]"  # one register, or a tuple of registers of one letter
Specs: TypeAlias = "str | tuple[Spec, ...]"


class Asm(NamedTuple):
    """One block of inline PTX."""

    text: str | Callable[[int], str]  # a function of the target's number where targets differ
    operands: Specs = ""
    results: Specs = ""
    target: str = "sm_80"  # the least target, a key of TARGETS
    tied: int = 0  # so many leading operands share registers with the results
    memory: bool = True  # False: a pure computation, which the compiler may move or drop


class TargetError(Exception):
    """A kernel uses a hook whose instruction its target lacks."""


@functools.cache
def need_numba_cuda() -> Any:
    """numba.cuda of the numba-cuda package; the one that is part of Numba itself lacks much."""
    if importlib.util.find_spec("numba_cuda") is None:
        raise ImportError(
            'GPU kernels need numba-cuda: pip install "numba-cuda[cu13]>=0.30,<0.31" "numpy<2.5", '
            "or with [cu12] for drivers of CUDA 12"
        )
    return importlib.import_module("numba.cuda")


def cuda_module(name: str) -> Any:
    """The module numba.cuda.`name`, imported on use; Numba publishes no types for it."""
    need_numba_cuda()
    return importlib.import_module(f"numba.cuda.{name}")


def signature_of(names: str) -> inspect.Signature:
    """The signature of a function with these positional arguments."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names.split()])


def make_intrinsic(name: str, signature: inspect.Signature, asm: Asm) -> Any:
    """The Numba intrinsic that emits `asm`."""
    returns = _return_type(asm.results)
    arguments = [numba_type(spec) for spec in asm.operands]

    def hook(typingctx: Any, *given: Any) -> Any:
        return returns(*arguments), functools.partial(_emit, name, asm)

    context = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    hook.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [context, *signature.parameters.values()]
    )
    hook.__name__ = name
    return cuda_module("extending").intrinsic(hook)


def current_target() -> Any:
    """The compute capability for which Numba compiles at the moment."""
    return cuda_module("core.targetconfig").ConfigStack().top().compute_capability


def _kinds() -> dict[str, tuple[Any, Any]]:
    """(Numba type, LLVM type) of each letter."""
    from implicit_conv.kernels.gpu.llvm import ir

    types = cuda_module("types")
    return {
        "r": (types.uint32, ir.IntType(32)),
        "i": (types.int32, ir.IntType(32)),
        "l": (types.uint64, ir.IntType(64)),
        "h": (types.uint16, ir.IntType(16)),
        "f": (types.float32, ir.FloatType()),
    }


def numba_type(spec: Spec) -> Any:
    """The Numba type of an operand or result."""
    kinds = _kinds()
    if isinstance(spec, str):
        return kinds[spec][0]
    letter, count = spec
    return cuda_module("types").UniTuple(kinds[letter][0], count)


def _return_type(results: Specs) -> Any:
    types = cuda_module("types")
    if not results:
        return types.void
    parts = [numba_type(spec) for spec in results]
    return parts[0] if len(parts) == 1 else types.Tuple(parts)


def _letters(specs: Sequence[Spec]) -> list[str]:
    """One letter for each register."""
    return [
        letter
        for spec in specs
        for letter in (spec if isinstance(spec, str) else spec[0] * spec[1])
    ]


def _constraints(asm: Asm) -> str:
    results, operands = _letters(asm.results), _letters(asm.operands)
    tied = len(_letters(asm.operands[: asm.tied]))
    parts = ["=" + _constraint(letter) for letter in results]
    parts += [str(index) for index in range(tied)]  # LLVM has no "+r": an input tied to its output
    parts += [_constraint(letter) for letter in operands[tied:]]
    return ",".join([*parts, "~{memory}"] if asm.memory else parts)


def _constraint(letter: str) -> str:
    return "r" if letter == "i" else letter


def _emit(
    name: str, asm: Asm, context: Any, builder: Any, signature: Any, arguments: Sequence[Any]
) -> Any:
    from implicit_conv.kernels.gpu.llvm import ir

    cc = tuple(current_target())
    if not supports(asm.target, cc):
        raise TargetError(
            f"{name} needs {requirement(asm.target)}, "
            f"but the kernel is compiled for {target_name(cc)}"
        )
    text = asm.text if isinstance(asm.text, str) else asm.text(10 * cc[0] + cc[1])
    values = _registers(builder, asm, arguments)
    function = ir.FunctionType(_result_type(asm), [value.type for value in values])
    inline = ir.InlineAsm(function, text, _constraints(asm), side_effect=asm.memory)
    attributes = ("convergent", "nounwind") if asm.memory else ()
    value = builder.call(inline, values, attrs=attributes)
    return _collect(context, builder, signature.return_type, asm.results, value)


def _registers(builder: Any, asm: Asm, arguments: Sequence[Any]) -> list[Any]:
    """One LLVM value for each operand register."""
    values: list[Any] = []
    for spec, value in zip(asm.operands, arguments, strict=True):
        if isinstance(spec, str):
            values.append(value)
        else:
            values += [builder.extract_value(value, index) for index in range(spec[1])]
    return values


def _result_type(asm: Asm) -> Any:
    """The LLVM type of the asm's results: void, one register, or a struct of registers."""
    from implicit_conv.kernels.gpu.llvm import ir

    kinds = _kinds()
    results = [kinds[letter][1] for letter in _letters(asm.results)]
    if not results:
        return ir.VoidType()
    return results[0] if len(results) == 1 else ir.LiteralStructType(results)


def _collect(context: Any, builder: Any, returns: Any, results: Specs, value: Any) -> Any:
    """The registers of the asm as Numba's value: nothing, a scalar, a tuple, a tuple of tuples."""
    from implicit_conv.kernels.gpu.llvm import ir

    if not results:
        return context.get_dummy_value()
    count = len(_letters(results))
    flat = [value] if count == 1 else [builder.extract_value(value, i) for i in range(count)]
    registers = iter(flat)
    parts = []
    for spec in results:
        if isinstance(spec, str):
            parts.append(next(registers))
            continue
        part = ir.Constant(context.get_value_type(numba_type(spec)), ir.Undefined)
        for index in range(spec[1]):
            part = builder.insert_value(part, next(registers), index)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    whole = ir.Constant(context.get_value_type(returns), ir.Undefined)
    for index, part in enumerate(parts):
        whole = builder.insert_value(whole, part, index)
    return whole
