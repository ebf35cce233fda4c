"""Hooks: asynchronous copies of 16 bytes a thread, whose addresses the kernel computes."""

from implicit_conv.kernels.gpu.ptx import Asm, instruction, instructions


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "rlr")
def copy16(smem, gmem, size):
    """``cp.async.cg``: 16 bytes, of which `size` are read and the rest are zero.

    PTX ISA 9.7.9.25.3, PTX 7.0, sm_80.
    """


@instruction("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r")
def arrive(barrier):
    """``cp.async.mbarrier.arrive.noinc``: each lane arrives once its copies are in.

    .noinc: the arrivals are among those the barrier was initialised to expect.

    PTX ISA 9.7.13.15, PTX 7.0, sm_80.
    """


@instruction("cp.async.commit_group;")
def commit():
    """``cp.async.commit_group``: the copies so far make a group.

    PTX ISA 9.7.9.25.3, PTX 7.0, sm_80.
    """


@instructions
def wait(groups):
    """``cp.async.wait_group``: at most `groups` groups are still under way.

    PTX ISA 9.7.9.25.3, PTX 7.0, sm_80.
    """
    return "", Asm(f"cp.async.wait_group {groups};")
