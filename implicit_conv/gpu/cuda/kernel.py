"""Launches of loaded kernels: the params blob in memory that the driver reads, and the queue."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arch import GpuArch
from implicit_conv.kernels.gpu.sizes import DUMP_DATA_AT, DUMP_THREADS, MAP_BYTES

STREAMS_KEPT = 64  # launch configurations of a kernel
BLOB_ALIGNMENT = 64  # bytes, of a tensor map


class Blob:
    """The bytes of a kernel's one argument, which begin with its tensor maps."""

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        room = np.empty(content.size + BLOB_ALIGNMENT, np.uint8)
        start = -room.__array_interface__["data"][0] % BLOB_ALIGNMENT
        self.bytes = room[start : start + content.size]
        self.bytes[:] = content
        self.address = self.bytes.__array_interface__["data"][0]
        self._argument = ctypes.c_void_p(self.address)
        self.pointer = ctypes.addressof(self._argument)  # what cuLaunchKernelEx takes

    def move_map(self, number: int, address: int) -> None:
        """Let tensor map `number` describe the same array at another address."""
        encoded = driver.bindings().CUtensorMap(_ptr=self.address + MAP_BYTES * number)
        driver.call("cuTensorMapReplaceAddress", encoded, address)


class Kernel:
    """A kernel's handle with the grid and block it is launched on."""

    def __init__(self, handle: Any, blocks: int, threads: int, smem_bytes: int) -> None:
        # cuLaunchKernelEx accepts a CUkernel cast to CUfunction.
        cuda = driver.bindings()
        self.function = cuda.CUfunction(int(handle))
        self.launch, self.success = cuda.cuLaunchKernelEx, cuda.CUresult.CUDA_SUCCESS
        self.sizes = blocks, threads, smem_bytes
        self.configs: dict[int, Any] = {}  # by stream

    def enqueue(self, blob: Blob, stream: int) -> None:
        """Launch with `blob` as the one argument; the driver copies it before this returns."""
        config = self.configs.get(stream)
        if config is None:
            if len(self.configs) >= STREAMS_KEPT:
                self.configs.clear()
            config = self.configs[stream] = self._config(stream)
        status = self.launch(config, self.function, blob.pointer, 0)[0]
        if status != self.success:
            driver.check(driver.bindings(), "cuLaunchKernelEx", status)

    def _config(self, stream: int) -> Any:
        cuda = driver.bindings()
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.sizes[0], 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.sizes[1], 1, 1
        config.sharedMemBytes, config.hStream = self.sizes[2], cuda.CUstream(stream)
        config.numAttrs = 0
        return config


def run_dump(mode: str, arch: GpuArch, blob: bytes, size: int) -> None:
    """Launch the kernel of kernels/gpu/dump.py for a copy of `size` bytes on the default stream."""
    rounds = -(-size // (16 * DUMP_THREADS))
    smem_bytes = DUMP_DATA_AT + rounds * 16 * DUMP_THREADS
    handle = load.load(*load.dump_cubin(mode, arch.cc), driver.current_device())
    kernel = Kernel(handle, 1, DUMP_THREADS, smem_bytes)
    kernel.enqueue(Blob(np.frombuffer(blob, np.uint8)), 0)
