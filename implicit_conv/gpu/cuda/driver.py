"""The calls, errors and devices of the CUDA driver; its bindings are imported on first use.

Every error names the function that was called, the driver's answer, and what the caller can do.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from implicit_conv.errors import DriverError, PlanError, install
from implicit_conv.gpu.cuda.arch import KNOWN, GpuArch, gpu_arch

ADVICE = {
    "CUDA_ERROR_OUT_OF_MEMORY": "free device memory, or use a smaller batch",
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible; leave device unset to compute on the CPU",
    "CUDA_ERROR_INVALID_DEVICE": "implicit-conv info lists the devices of this machine",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the GPU is newer or older than the kernel's target",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "this process cannot use the GPU any more; an array was freed "
    "too early, or the kernel is wrong: compute-sanitizer shows where",
}

# numba-cuda 0.30 asks numpy for a function that 2.5 lacks.
NUMBA_CUDA = {kind: (f"numba-cuda[{kind}]>=0.30,<0.31", "numpy<2.5") for kind in ("cu12", "cu13")}
PACKAGES = {  # generation of CUDA -> what its extra in pyproject.toml installs
    12: (*NUMBA_CUDA["cu12"], "cuda-python>=12.9,<13", "cuda-bindings>=12.9,<13"),
    13: (*NUMBA_CUDA["cu13"], "cuda-python>=13,<14", "cuda-bindings>=13,<14"),
}


@functools.cache
def bindings() -> Any:
    """cuda.bindings.driver, initialised.

    Raises
    ------
    PlanError
        The bindings or the driver are missing, or the driver is of an older CUDA generation than
        the bindings, whose compiler makes kernels for their own generation.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise PlanError(f"the GPU engine needs cuda-bindings: {install(*PACKAGES[13])}") from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise PlanError(
            f"no CUDA driver could be loaded ({error}); install one for CUDA 13 (R580 or later), "
            "or leave device unset to compute numpy arrays on the CPU"
        ) from error
    check(driver, "cuInit", status)
    _, version = driver.cuDriverGetVersion()
    needed = driver.CUDA_VERSION // 1000
    if version // 1000 < needed:
        packages = PACKAGES.get(version // 1000)
        raise PlanError(
            f"the CUDA driver is for CUDA {version // 1000}.{version % 1000 // 10}, but the "
            f"installed cuda-bindings are for CUDA {needed}: update the driver"
            + (f", or run {install(*packages)}" if packages else "")
        )
    return driver


def check(cuda: Any, what: str, status: Any) -> None:
    """DriverError where the function `what` of the bindings `cuda` answered a failure."""
    if status == cuda.CUresult.CUDA_SUCCESS:
        return
    name = getattr(status, "name", str(status))
    advice = ADVICE.get(name, "see the CUDA driver API's description of this error")
    if what.startswith("cuTensorMap"):
        advice = "implicit_conv.tma.lint explains what a tensor map must satisfy"
    raise DriverError(f"{what} failed with {name}: {advice}")


def call(name: str, *arguments: Any) -> Any:
    """The result of a driver function; a failure raises DriverError."""
    cuda = bindings()
    status, *results = getattr(cuda, name)(*arguments)
    check(cuda, name, status)
    return results[0] if len(results) == 1 else tuple(results) if results else None


def version() -> str:
    """The driver's version, for comparisons: that of Linux's module, or else of its CUDA."""
    try:
        return Path("/proc/driver/nvidia/version").read_text("utf-8").partition("\n")[0]
    except OSError:
        return str(call("cuDriverGetVersion"))


def current_device() -> int:
    """The device of the current context; where there is none, device 0 becomes current."""
    device = _device_if_any()
    if device is None:
        call("cuCtxSetCurrent", _primary_context(0))
    return device or 0


def _device_if_any() -> int | None:
    """The device of the current context; None where a thread has no context yet."""
    status, device = bindings().cuCtxGetDevice()
    return None if status else int(device)  # CUDA_SUCCESS is 0


@functools.cache
def _primary_context(device: int) -> Any:
    """The context of a device that all CUDA libraries share; retained until the process ends."""
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", device))


class on:  # noqa: N801 (reads as a verb: `with driver.on(1):`)
    """Make a device the current one for a ``with`` block; None keeps the current device. No other
    device has a context made.

    ``with driver.on(device) as number`` gives the number of the current device.
    """

    __slots__ = ("device", "pushed")

    def __init__(self, device: int | None) -> None:
        self.device = device
        self.pushed = False

    def __enter__(self) -> int:
        if self.device is None:
            return current_device()
        if self.device != _device_if_any():
            call("cuCtxPushCurrent", _primary_context(self.device))
            self.pushed = True
        return self.device

    def __exit__(self, *_: object) -> None:
        if self.pushed:
            call("cuCtxPopCurrent")


def device_of(address: int) -> int:
    """The number of the device whose memory holds an address."""
    attribute = bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call("cuPointerGetAttribute", attribute, address))


def current_arch() -> GpuArch:
    """The GPU of the current context, or device 0 where there is none; see `device_arch`."""
    return device_arch(current_device())


@functools.cache
def device_arch(device: int) -> GpuArch:
    """The arch of a device: the rates of its generation, its own counts, sizes and memory.

    Raises
    ------
    PlanError
        The GPU is older than sm_80, or there is no usable driver.
    """
    attributes, handle = bindings().CUdevice_attribute, call("cuDeviceGet", device)

    def attribute(name: str) -> int:
        return int(
            call("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)
        )

    major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    name = call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode()
    number = 10 * major + minor
    if number < min(KNOWN):
        raise PlanError(
            f"the GPU {name} has compute capability {major}.{minor}, but kernels need 8.0 or "
            "later; leave device unset to compute numpy arrays on the CPU"
        )
    nearest = gpu_arch(f"sm_{max(known for known in KNOWN if known <= number)}")
    return replace(
        nearest,
        cc=(major, minor, "a" if number >= 90 else ""),
        device=name,
        sms=attribute("MULTIPROCESSOR_COUNT"),
        smem_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        # two transfers a clock, which is in kHz
        memory=2e3 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8,
    )
