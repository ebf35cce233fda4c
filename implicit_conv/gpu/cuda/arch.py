"""What a GPU offers: capability, multiprocessors, shared memory, rates.

A target name such as "sm_90a" stands for the GPU of that generation in `KNOWN`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from implicit_conv.errors import PlanError

Capability: TypeAlias = "tuple[int, int, str]"


@dataclass(frozen=True)
class GpuArch:
    """A GPU as the planner sees it.

    Attributes
    ----------
    cc : (major, minor, suffix)
        Compute capability; the suffix "a" admits instructions of that generation alone.
    device : str
        Name of the GPU that has these figures.
    sms : int
        Number of multiprocessors.
    smem_bytes : int
        Largest shared memory of a block (CUDA programming guide, technical specifications).
    mma_flops, fma_flops : int
        Multiplications and additions per cycle and multiprocessor: 16-bit operands by mma.sync, and
        float32. Only the estimate uses them.
    hertz : float
        Boost clock, which turns estimated cycles into seconds.
    memory : float
        Bytes per second of device memory. Only the estimate uses it.
    """

    cc: Capability
    device: str
    sms: int
    smem_bytes: int
    mma_flops: int
    fma_flops: int = 256
    hertz: float = 1.8e9
    memory: float = 1e12

    @property
    def target(self) -> str:
        """The name by which ptxas knows the capability: sm_90a."""
        return f"sm_{10 * self.cc[0] + self.cc[1]}{self.cc[2]}"


KB = 1 << 10
WGMMA_FLOPS = 4096  # per cycle and multiprocessor of sm_90; mma.sync reaches about 5/8 of it

# mma_flops is the data sheet's dense 16-bit rate with float32 sums, divided by multiprocessors and
# boost clock. The data sheets of sm_100 and sm_103 give the rate of tcgen05 only, so mma.sync is
# assumed to be as fast there as on sm_90. hertz is the data sheet's boost clock; for sm_90, sm_100
# and sm_103 it is the dense 16-bit rate divided by multiprocessors and operations per cycle, for
# sm_121 it is a guess.
KNOWN = {
    80: GpuArch((8, 0, ""), "A100", 108, 163 * KB, 2048, 128, 1.41e9, 1.56e12),
    86: GpuArch((8, 6, ""), "RTX 3090", 82, 99 * KB, 512, 256, 1.70e9, 0.94e12),
    89: GpuArch((8, 9, ""), "RTX 4090", 128, 99 * KB, 512, 256, 2.52e9, 1.01e12),
    90: GpuArch((9, 0, "a"), "H100 SXM", 132, 227 * KB, 2560, 256, 1.83e9, 3.35e12),
    100: GpuArch((10, 0, "a"), "B200", 148, 227 * KB, 2560, 256, 1.86e9, 8.0e12),
    103: GpuArch((10, 3, "a"), "B300", 148, 227 * KB, 2560, 256, 1.86e9, 8.0e12),
    120: GpuArch((12, 0, "a"), "RTX 5090", 170, 99 * KB, 512, 256, 2.41e9, 1.79e12),
    121: GpuArch((12, 1, "a"), "GB10", 48, 99 * KB, 512, 256, 2.4e9, 0.27e12),
}


TARGET = re.compile(r"sm_(\d{1,4})[af]?")
DEVICE = re.compile(r"cuda(?::(\d{1,4}))?")


def device_number(device: object) -> int | None:
    """The number in "cuda:1"; None for "cuda", the current GPU.

    Raises
    ------
    PlanError
        `device` has another form.
    """
    match = DEVICE.fullmatch(device) if isinstance(device, str) else None
    if match is None:
        raise PlanError(
            f"device {device!r} is none of None, 'cpu', 'cuda' and 'cuda:N'; to plan for a GPU "
            f"that this machine lacks, {_names()}"
        )
    return None if match[1] is None else int(match[1])


def is_target(device: str) -> bool:
    """Whether `device` has the form of a target name, supported or not."""
    return TARGET.fullmatch(device) is not None


def gpu_arch(device: str) -> GpuArch:
    """The arch of a target name such as "sm_90" or "sm_100a".

    Raises
    ------
    PlanError
        The target does not exist or is older than sm_80.
    """
    match = TARGET.fullmatch(device)
    if match is None:
        raise PlanError(f"device {device!r} is not a target; {_names()}")
    number = int(match[1])
    if number not in KNOWN:
        least = "GPUs before sm_80 lack asynchronous copies; " if number < 80 else ""
        raise PlanError(f"device {device!r} is not supported: {least}{_names()}")
    return KNOWN[number]


def _names() -> str:
    return f"name one of {', '.join(f'sm_{number}' for number in KNOWN)}"
