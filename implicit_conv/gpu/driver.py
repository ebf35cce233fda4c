"""The CUDA driver, as far as a launch needs it: its calls, errors and devices. Imported lazily.

Every failure says what was asked of the driver, what it answered and what the caller can do.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from implicit_conv.errors import PlanError
from implicit_conv.gpu.arch import KNOWN, GpuArch, gpu_arch

LEAST_DRIVER = 13000  # cuDriverGetVersion: cubins of our compiler load from CUDA 13.0 (R580) on

ADVICE = {
    "CUDA_ERROR_OUT_OF_MEMORY": "free device memory, or take a smaller batch",
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible; leave device unset to stay on the CPU",
    "CUDA_ERROR_INVALID_VALUE": "implicit_conv.tma.lint explains what a tensor map must satisfy",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the GPU is newer or older than the kernel's target",
}


class DriverError(RuntimeError):
    """A call that the CUDA driver refused."""


@functools.cache
def bindings() -> Any:
    """cuda.bindings.driver, initialised.

    Raises
    ------
    PlanError
        No bindings, no driver, or one before CUDA 13.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise PlanError(
            "the GPU engine needs cuda-bindings: pip install 'implicit-conv[cu13]'"
        ) from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise PlanError(
            f"no CUDA driver could be loaded ({error}); install one for CUDA 13 (R580 or later), "
            "or leave device unset to compute numpy arrays on the CPU"
        ) from error
    _check(driver, "cuInit", status)
    status, version = driver.cuDriverGetVersion()
    if version < LEAST_DRIVER:
        raise PlanError(
            f"the CUDA driver is for CUDA {version // 1000}.{version % 1000 // 10}; the GPU engine "
            f"needs CUDA {LEAST_DRIVER // 1000} (R580) or later"
        )
    return driver


def _check(cuda: Any, what: str, status: Any) -> None:
    if status == cuda.CUresult.CUDA_SUCCESS:
        return
    name = getattr(status, "name", str(status))
    advice = ADVICE.get(name, "see the CUDA driver API's description of this error")
    raise DriverError(f"{what} failed with {name}: {advice}")


def call(name: str, *arguments: Any) -> Any:
    """The result of a driver function; DriverError where it fails."""
    cuda = bindings()
    status, *results = getattr(cuda, name)(*arguments)
    _check(cuda, name, status)
    return results[0] if len(results) == 1 else tuple(results) if results else None


def current_arch() -> GpuArch:
    """The GPU of the current context, or of device 0 where there is none.

    Raises
    ------
    PlanError
        A GPU before sm_80, or a driver that cannot be used.
    """
    return device_arch(current_device())


def current_device() -> int:
    """The device of the current context; the primary context of device 0 where there is none."""
    cuda = bindings()
    status, device = cuda.cuCtxGetDevice()
    if status == cuda.CUresult.CUDA_SUCCESS:
        return int(device)
    device = call("cuDeviceGet", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    return int(device)


@functools.cache
def device_arch(device: int) -> GpuArch:
    """The arch of a device: known rates of its generation, its own counts."""
    attributes = bindings().CUdevice_attribute

    def attribute(name: str) -> int:
        return int(
            call("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
        )

    number = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
    nearest = max((known for known in KNOWN if known <= number), default=number)
    known = gpu_arch(f"sm_{nearest}")
    suffix = "a" if number >= 90 else ""
    name = call("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
    return replace(
        known, cc=(number // 10, number % 10, suffix), device=name,
        sms=attribute("MULTIPROCESSOR_COUNT"),
        smem_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )  # fmt: skip
