"""Hooks: a thread's place, and synchronisation of a warp, a warpgroup or a block."""

from __future__ import annotations

from implicit_conv.kernels.gpu.intrinsic import Asm
from implicit_conv.kernels.gpu.ptx import instruction, instructions


@instruction("mov.u32 $0, %laneid;", results="r", memory=False)
def lane() -> int:
    """``mov.u32 %laneid``: the number of this thread in its warp, 0 to 31.

    PTX ISA 10.8, sm_80.
    """


@instruction(
    "{ .reg .u32 t; mov.u32 t, %tid.x; shr.u32 t, t, 5; "
    "shfl.sync.idx.b32 $0, t, 0, 31, 0xffffffff; }",
    results="r",
)
def index() -> int:
    """``shfl.sync.idx`` of %tid.x / 32: the number of the warp in its block.

    The shuffle tells ptxas that the value is the same in all lanes, which branch on it.

    PTX ISA 9.7.9, sm_80.
    """


@instruction("mov.u32 $0, %ctaid.x;", results="i", memory=False)
def block() -> int:
    """``mov.u32 %ctaid.x``: the number of the block in the grid.

    It is signed, as counts are, because Numba compares signed with unsigned integers as float64.

    PTX ISA 10.6, sm_80.
    """


@instruction("mov.u32 $0, %nctaid.x;", results="i", memory=False)
def blocks() -> int:
    """``mov.u32 %nctaid.x``: the number of blocks in the grid.

    PTX ISA 10.7, sm_80.
    """


@instruction(
    "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 $0, 1, 0, p; }",
    results="r",
    target="sm_90",
)
def elect() -> int:
    """``elect.sync``: 1 in one lane of the warp, 0 in the others.

    Tensor copies are guarded by it, because ptxas would wrap each of them in a loop if a thread
    index guarded them.

    PTX ISA 9.7.13, PTX 8.0, sm_90.
    """


@instruction("bar.warp.sync 0xffffffff;")
def sync() -> None:
    """``bar.warp.sync``: the lanes wait for each other and see each other's memory accesses.

    PTX ISA 9.7.13, PTX 6.0, sm_80.
    """


@instruction("barrier.sync.aligned 0;")
def sync_block() -> None:
    """``barrier.sync.aligned 0``: all threads of the block wait for each other.

    PTX ISA 9.7.13, PTX 6.0, sm_80.
    """


@instruction("bar.sync $0, $1;", "rr")
def sync_named(barrier: int, threads: int) -> None:
    """``bar.sync a, b``: `threads` threads wait for each other at one of barriers 1 to 15.

    PTX ISA 9.7.13, sm_80.
    """


@instructions
def set_registers(change: str, count: int) -> tuple[str, Asm]:
    """``setmaxnreg``: a warpgroup has `count` registers per thread from here on.

    With `change` "dec" it gives back the rest, with "inc" it waits until it can have them. `count`
    is a multiple of 8 from 24 to 256. ptxas drops the instruction unless the kernel has launch
    bounds and is linked with LTO.

    PTX ISA 9.7.19.5, PTX 8.0, sm_90a and a/f.
    """
    return "", Asm(f"setmaxnreg.{change}.sync.aligned.u32 {count};", target="sm_90a+")
