"""Kernels on a device: compiled and linked, loaded once per device, enqueued on a stream."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.gpu.arch import GpuArch
from implicit_conv.gpu.cuda import driver
from implicit_conv.kernels.gpu.variant import Variant

STREAMS_KEPT = 64  # launch configurations of a kernel


@functools.cache
def cubin(v: Variant, cc: tuple[int, int, str]) -> tuple[bytes, str]:
    """(image, entry) of a variant's kernel; needs no device."""
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel
    from implicit_conv.kernels.gpu.fprop import make_fprop

    kernel = compile_kernel(make_fprop(v), signature(), cc, v.threads)
    return kernel.cubin, kernel.entry


@functools.cache
def loaded(v: Variant, cc: tuple[int, int, str], device: int) -> Any:
    """The handle of a variant's kernel on `device`."""
    return load(*cubin(v, cc), device)


def load(image: bytes, entry: str, device: int) -> Any:
    """A kernel's handle; the kernel may use all of the device's shared memory."""
    library = driver.call("cuLibraryLoadData", image, [], [], 0, [], [], 0)
    kernel = driver.call("cuLibraryGetKernel", library, entry.encode())
    attribute = driver.bindings().CUfunction_attribute
    name = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    size = driver.device_arch(device).smem_bytes
    place = driver.call("cuDeviceGet", device)
    driver.call("cuKernelSetAttribute", name, size, kernel, place)
    return kernel


class Kernel:
    """A kernel's handle with the grid and block it is launched on."""

    def __init__(self, handle: Any, blocks: int, threads: int, smem_bytes: int) -> None:
        # cuLaunchKernelEx accepts a CUkernel cast to CUfunction.
        self.function = driver.bindings().CUfunction(int(handle))
        self.sizes = blocks, threads, smem_bytes
        self.configs: dict[int, Any] = {}  # by stream

    def enqueue(self, blob: npt.NDArray[np.uint8], stream: int) -> None:
        """Launch with `blob` as the one argument; the driver copies it before this returns."""
        config = self.configs.get(stream)
        if config is None:
            if len(self.configs) >= STREAMS_KEPT:
                self.configs.clear()
            config = self.configs[stream] = self._config(stream)
        parameters = ctypes.c_void_p(blob.__array_interface__["data"][0])
        pointer = ctypes.addressof(parameters)
        driver.call("cuLaunchKernelEx", config, self.function, pointer, 0)

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
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel
    from implicit_conv.kernels.gpu.dump import BARRIER_BYTES, THREADS, make_dump

    compiled = compile_kernel(make_dump(mode), signature(), arch.cc, THREADS)
    handle = load(compiled.cubin, compiled.entry, driver.current_device())
    rounds = -(-size // (16 * THREADS))
    smem_bytes = BARRIER_BYTES + rounds * 16 * THREADS
    Kernel(handle, 1, THREADS, smem_bytes).enqueue(np.frombuffer(blob, np.uint8), 0)
