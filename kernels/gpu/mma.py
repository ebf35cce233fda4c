"""Hooks: matrix instructions, and float32 multiply-adds on the same fragments.

An accumulator of tiles_m x tiles_n tiles of 16 x 8 is a tuple; value 4 * (m * tiles_n + n) + j of
lane l is in row ``l / 4 + 8 * (j / 2)`` and column ``2 * (l % 4) + j % 2`` of tile (m, n). A warp
of wgmma holds 16 of the 64 rows in the same layout (PTX ISA 9.7.14 and 9.7.15).
"""

from __future__ import annotations

import numpy as np

from implicit_conv.kernels.gpu.intrinsic import Asm
from implicit_conv.kernels.gpu.ptx import instructions

SHORT = {"bfloat16": "bf16", "float16": "f16"}
ONES = {"bfloat16": np.uint32(0x3F80_3F80), "float16": np.uint32(0x3C00_3C00)}  # a register of two

# Constant part of a K-major shared-memory descriptor, by swizzle span: LBO 1 (unused), SBO of 8
# rows, swizzle mode.
DESCRIPTOR = {128: 0x4000_0040_0001_0000, 64: 0x8000_0020_0001_0000}
# The same of an MN-major one with a swizzle of 128 bytes: SBO of 8 elements of gemm_k. LBO is the
# distance between panels of 64 rows or columns.
TRANSPOSED_DESCRIPTOR = 0x4000_0040_0000_0000


def _list(first: int, count: int) -> str:
    return "{" + ", ".join(f"${first + i}" for i in range(count)) + "}"


@instructions
def multiply(dtype: str, tiles_m: int, tiles_n: int) -> tuple[str, Asm]:
    """``mma.sync.aligned.m16n8k16`` over all tiles: acc + a x b.

    a holds 4 registers per tile of 16 rows, b 2 per tile of 8 columns; bfloat16 or float16.

    PTX ISA 9.7.14, PTX 7.0, sm_80.
    """
    kind, count = SHORT[dtype], 4 * tiles_m * tiles_n
    a, b = 2 * count, 2 * count + 4 * tiles_m
    lines = []
    for m in range(tiles_m):
        for n in range(tiles_n):
            acc = _list(4 * (m * tiles_n + n), 4)
            lines.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
                f"{acc}, {_list(a + 4 * m, 4)}, {_list(b + 2 * n, 2)}, {acc};"
            )
    operands = (("f", count), ("r", 4 * tiles_m), ("r", 2 * tiles_n))
    asm = Asm("\n".join(lines), operands, (("f", count),), tied=1, memory=False)
    return "acc a b", asm


@instructions
def multiply_float(tiles_m: int, tiles_n: int) -> tuple[str, Asm]:
    """``fma.rn.f32`` over the same accumulator, four elements of gemm_k deep.

    a holds float32 values [tile][row l / 4, row l / 4 + 8][4 of gemm_k]. b_even and b_odd hold
    [tile][4 of gemm_k] of columns 2 * (l % 4) and 2 * (l % 4) + 1.

    PTX ISA 9.7.3, sm_80.
    """
    count = 4 * tiles_m * tiles_n
    a = 2 * count
    b = (a + 8 * tiles_m, a + 8 * tiles_m + 4 * tiles_n)
    lines = [
        f"fma.rn.f32 ${acc}, ${a + 4 * (2 * m + j // 2) + k}, ${b[j % 2] + 4 * n + k}, ${acc};"
        for k in range(4)
        for m in range(tiles_m)
        for n in range(tiles_n)
        for j in range(4)
        for acc in (4 * (m * tiles_n + n) + j,)
    ]
    operands = (("f", count), ("f", 8 * tiles_m), ("f", 4 * tiles_n), ("f", 4 * tiles_n))
    asm = Asm("\n".join(lines), operands, (("f", count),), tied=1, memory=False)
    return "acc a b_even b_odd", asm


@instructions
def wgmma(
    dtype: str, columns: int, steps: int, descriptors: bool, transposed: bool = False
) -> tuple[str, Asm]:
    """``wgmma.mma_async.m64nNk16`` `steps` times, B by descriptor.

    A is in registers, 4 for each step in the fragments of mma.sync, or by descriptor; its view then
    starts at a multiple of 8 rows. If they are `transposed`, both descriptors are MN-major, and a
    step is 16 rows of 128 bytes. It is one asm block (wgmma.fence, the steps, commit_group,
    wait_group 0), because ptxas serialises wgmma if other code touches its registers in between.

    PTX ISA 9.7.15, PTX 8.0, sm_90a.
    """
    kind, count = SHORT[dtype], columns // 2
    acc, a = _list(0, count), 2 * count
    b = a + (1 if descriptors else 4 * steps)
    apart = 16 * 128 // 16 if transposed else 2  # of steps, in units of 16 bytes
    major = f", {int(transposed)}" * (2 if descriptors else 1)
    lines = ["{ .reg .pred p; .reg .b64 a, b; setp.ne.b32 p, 1, 0;", "wgmma.fence.sync.aligned;"]
    for step in range(steps):
        lines.append(f"add.s64 b, ${b}, {apart * step};")
        if descriptors:
            lines.append(f"add.s64 a, ${a}, {apart * step};")
        source = "a" if descriptors else _list(a + 4 * step, 4)
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
            f"{acc}, {source}, b, p, 1, 1{major};"
        )
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0; }"]
    operands = (("f", count), "l" if descriptors else ("r", 4 * steps), "l")
    return "acc a b", Asm("\n".join(lines), operands, (("f", count),), "sm_90a", tied=1)
