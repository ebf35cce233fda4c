"""Instructions of the microkernel's inner loop, by class, for several fixed CPUs.

The emitted IR is compiled for each fixed CPU, so the counts change with the emitter and with the
compiler's version, but not with the host.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from implicit_conv.cpu.machine.arch import REGISTER_PIXELS
from implicit_conv.kernels.cpu.gemm.compiled.microkernel import emit, multiply_tile
from implicit_conv.kernels.cpu.gemm.layout import RegisterTile
from implicit_conv.kernels.cpu.runtime.compiled.part import Part


@dataclass(frozen=True)
class Target:
    """A fixed CPU: what its code is compiled for, and how its assembly is read."""

    triple: str
    features: str
    bits: int  # width of a vector register
    registers: int  # number of vector registers
    fma: str  # pattern of the mnemonic
    vector: str  # pattern of a vector register
    stack: str  # pattern of an operand on the stack


TARGETS = {
    "avx512": Target(
        "x86_64-linux-gnu",
        "+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx2,+fma",
        512,
        32,
        "vfn?m(add|sub)",
        r"%zmm\d+",
        r"\(%rsp",
    ),
    "avx2": Target(
        "x86_64-linux-gnu", "+avx2,+fma", 256, 16, "vfn?m(add|sub)", r"%ymm\d+", r"\(%rsp"
    ),
    "neon": Target("aarch64-linux-gnu", "+neon", 128, 32, "fmla", r"\bv\d+\.", r"\[sp"),
}

# Class: pattern of its mnemonics on x86-64 and AArch64. Classes are tried in this order; an
# instruction that matches none is integer arithmetic.
CLASSES = {
    "prefetch": r"prefetch|prfm",
    "broadcast": r"vp?broadcast|ld1r|dup",
    "vector move": r"v(mov|extract|insert|perm|shuf|unpck)|ldr|ldp|ldur|str|stp|stur|ld1|st1",
    "scalar move": r"mov",
    "branch": r"j[a-z]+$|b\.|b$|cbn?z|tbn?z",
}


def largest_tile(target: Target, **changes: Any) -> RegisterTile:
    """The float32 register tile that the planner prefers on the target, changed if asked for."""
    pixels = REGISTER_PIXELS[target.bits, target.registers]
    tile = RegisterTile(1, pixels, 2, target.bits // 32, 4, True)
    return replace(tile, **changes)


def compile_for(target: Target, tile: RegisterTile) -> str:
    """Assembly of the microkernel of `tile`, in the syntax of the target's assembler."""
    return compile_emitted(target, multiply_tile.part, functools.partial(emit, tile))


def compile_emitted(
    target: Target,
    part: Part,
    emit: Callable[[ir.IRBuilder, dict[str, ir.Value]], None],
) -> str:
    """Assembly of a part whose body is emitted by ``emit(builder, at)``, as that of the engine."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module("part")
    module.triple = target.triple
    kinds = [ir.IntType(64)] * len(part.integers) + [ir.DoubleType()] * len(part.floats)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "part")
    builder = ir.IRBuilder(function.append_basic_block())
    emit(builder, dict(zip(part.parameters, function.args, strict=True)))
    builder.ret_void()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        features=target.features, opt=3
    )
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(parsed, passes)
    return str(machine.emit_assembly(parsed))


def inner_loop(text: str, target: Target) -> list[str]:
    """Instructions of the block with the most FMAs, which is the unrolled loop over elements."""
    blocks = re.split(r"^\.?L?BB\d+_\d+:.*$", text, flags=re.MULTILINE)

    def fmas(block: str) -> int:
        return len(re.findall(rf"^\s+{target.fma}", block, flags=re.MULTILINE))

    lines = max(blocks, key=fmas).splitlines()
    return [line.strip() for line in lines if re.match(r"\s+[a-z]", line)]


def instruction_class(line: str, target: Target) -> str:
    """The class of one instruction; an instruction that accesses the stack is a spill."""
    mnemonic = line.split(maxsplit=1)[0]
    if re.search(target.stack, line):
        return "spill"
    if re.match(target.fma, mnemonic):
        return "fma"
    for name, pattern in CLASSES.items():
        if re.match(pattern, mnemonic):
            return name
    return "integer"


def instruction_counts(target: Target) -> dict[str, int]:
    """Instructions by class in the inner loop of the largest register tile."""
    loop = inner_loop(compile_for(target, largest_tile(target)), target)
    found = Counter(instruction_class(line, target) for line in loop)
    return {name: found[name] for name in ("fma", "spill", *CLASSES, "integer")}


def compiler() -> str:
    """The versions that the counts depend on."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__}, LLVM {'.'.join(map(str, llvm.llvm_version_info))}"
