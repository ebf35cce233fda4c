"""Hooks: asynchronous copies of 16 bytes per thread from addresses that the kernel computes."""

from __future__ import annotations

from implicit_conv.kernels.gpu.ptx import instruction


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "rlr")
def copy16(smem: int, gmem: int, size: int) -> None:
    """``cp.async.cg``: write 16 bytes, of which `size` are copied and the rest are zero.

    PTX ISA 9.7.9.25.3, PTX 7.0, sm_80.
    """


@instruction("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r")
def arrive(barrier: int) -> None:
    """``cp.async.mbarrier.arrive.noinc``: each lane arrives when its copies are complete.

    With .noinc these arrivals count among those for which the barrier was initialised.

    PTX ISA 9.7.13.15, PTX 7.0, sm_80.
    """
