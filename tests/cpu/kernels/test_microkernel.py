"""The emitted code of the microkernel, for targets that this machine need not have."""

import re

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from implicit_conv.cpu.machine.arch import REGISTER_PIXELS
from implicit_conv.kernels.cpu.gemm.compiled.microkernel import emit, multiply_tile
from implicit_conv.kernels.cpu.gemm.layout import RegisterTile

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()

TARGETS = {  # (triple, features, vector bits, registers, FMA mnemonic, vector register)
    "avx512": ("x86_64-linux-gnu", "+avx512f,+fma", 512, 32, "vfmadd", "zmm"),
    "avx512_bf16": ("x86_64-linux-gnu", "+avx512f,+avx512bf16", 512, 32, "vdpbf16ps", "zmm"),
    "avx2": ("x86_64-linux-gnu", "+avx2,+fma", 256, 16, "vfmadd", "ymm"),
    "neon": ("aarch64-linux-gnu", "+neon", 128, 32, "fmla", r"v\d+\.4s"),
}


def assembly(target):
    """Assembly of the largest register tile of float32 or, for the dot products, of bfloat16."""
    triple, features, bits, registers, _, _ = TARGETS[target]
    dots = {"dots": ("bfloat16", "bfloat16"), "y": "bfloat16"} if target == "avx512_bf16" else {}
    tile = RegisterTile(1, REGISTER_PIXELS[bits, registers], 2, bits // 32, 4, True, **dots)
    module = ir.Module(target)
    module.triple = triple
    part = multiply_tile.part
    kinds = [ir.IntType(64)] * len(part.integers) + [ir.DoubleType()] * len(part.floats)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "microkernel")
    builder = ir.IRBuilder(function.append_basic_block())
    emit(tile, builder, dict(zip(part.parameters, function.args, strict=True)))
    builder.ret_void()
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features, opt=3)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(parsed, passes)
    return tile, machine.emit_assembly(parsed)


def unrolled_loop(text, mnemonic):
    """The lines of the loop with the most FMAs."""
    blocks = re.split(r"^\.?\w*LBB\w*:.*$", text, flags=re.MULTILINE)
    return max(blocks, key=lambda block: block.count(mnemonic)).splitlines()


@pytest.mark.parametrize("target", TARGETS)
def test_the_inner_loop_is_fmas_and_loads(target):
    """Unrolled four times: one FMA a pixel and vector, accumulators in registers, no spills."""
    mnemonic, register = TARGETS[target][4:]
    tile, text = assembly(target)
    loop = unrolled_loop(text, mnemonic)
    fmas = [line for line in loop if mnemonic in line]
    assert len(fmas) == 4 * tile.pixels * tile.vectors
    assert all(re.search(register, line) for line in fmas)
    spills = [line for line in loop if re.search(rf"{register}.*\((%rsp|%rbp)|\[sp", line)]
    assert spills == []
