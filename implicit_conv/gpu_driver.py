"""The CUDA driver, as far as a launch needs it: devices, maps, kernels, memory. Imported lazily.

Every failure says what was asked of the driver, what it answered and what the caller can do.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from implicit_conv.errors import PlanError
from implicit_conv.gpu_arch import KNOWN, GpuArch, gpu_arch
from implicit_conv.gpu_maps import BoxMap
from implicit_conv.kernels.call import MAP_BYTES
from implicit_conv.tma.driver import driver_arguments
from implicit_conv.tma.maps import TensorMap

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
def driver() -> Any:
    """cuda.bindings.driver, initialised.

    Raises
    ------
    PlanError
        No bindings, no driver, or one before CUDA 13.
    """
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise PlanError(
            "the GPU engine needs cuda-bindings: pip install 'implicit-conv[cu13]'"
        ) from error
    try:
        (status,) = bindings.cuInit(0)
    except RuntimeError as error:
        raise PlanError(
            f"no CUDA driver could be loaded ({error}); install one for CUDA 13 (R580 or later), "
            "or leave device unset to compute numpy arrays on the CPU"
        ) from error
    _check(bindings, "cuInit", status)
    status, version = bindings.cuDriverGetVersion()
    if version < LEAST_DRIVER:
        raise PlanError(
            f"the CUDA driver is for CUDA {version // 1000}.{version % 1000 // 10}; the GPU engine "
            f"needs CUDA {LEAST_DRIVER // 1000} (R580) or later"
        )
    return bindings


def _check(bindings: Any, what: str, status: Any) -> None:
    if status == bindings.CUresult.CUDA_SUCCESS:
        return
    name = getattr(status, "name", str(status))
    advice = ADVICE.get(name, "see the CUDA driver API's description of this error")
    raise DriverError(f"{what} failed with {name}: {advice}")


def call(name: str, *arguments: Any) -> Any:
    """The result of a driver function; DriverError where it fails."""
    bindings = driver()
    status, *results = getattr(bindings, name)(*arguments)
    _check(bindings, name, status)
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
    bindings = driver()
    status, device = bindings.cuCtxGetDevice()
    if status == bindings.CUresult.CUDA_SUCCESS:
        return int(device)
    device = call("cuDeviceGet", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))
    return int(device)


@functools.cache
def device_arch(device: int) -> GpuArch:
    """The arch of a device: known rates of its generation, its own counts."""
    attributes = driver().CUdevice_attribute

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


def encode(map: TensorMap | BoxMap) -> bytes:
    """The 128 bytes of a tensor map.

    Raises
    ------
    DriverError
        The driver refuses it; older drivers lack the wide form altogether.
    """
    made = _encode_box(map) if isinstance(map, BoxMap) else encode_arguments(driver_arguments(map))
    return bytes(np.array([int(word) for word in made.opaque], np.uint64).tobytes()[:MAP_BYTES])


def _words(name: str, values: Any) -> list[Any]:
    kind = getattr(driver(), name)
    return [kind(int(value)) for value in values]


def _enum(bindings: Any, kind: str, name: str) -> Any:
    return getattr(getattr(bindings, kind), name)


def encode_arguments(a: dict[str, Any]) -> Any:
    """The CUtensorMap that the driver makes of arguments by cuda.h's names; it may refuse them."""
    bindings = driver()
    if not hasattr(bindings, a["function"]):
        raise DriverError(f"cuda-bindings lacks {a['function']}: install version 13 or later")
    head = (
        _enum(bindings, "CUtensorMapDataType", a["tensorDataType"]), a["tensorRank"],
        a["globalAddress"], _words("cuuint64_t", a["globalDim"]),
        _words("cuuint64_t", a["globalStrides"]),
    )  # fmt: skip
    tail = (
        _enum(bindings, "CUtensorMapSwizzle", a["swizzle"]),
        _enum(bindings, "CUtensorMapL2promotion", a["l2Promotion"]),
        _enum(bindings, "CUtensorMapFloatOOBfill", a["oobFill"]),
    )
    interleave = _enum(bindings, "CUtensorMapInterleave", a["interleave"])
    counts = (
        a["channelsPerPixel"],
        a["pixelsPerColumn"],
        _words("cuuint32_t", a["elementStrides"]),
    )
    if "mode" in a:
        corners = (a["pixelBoxLowerCornerWidth"], a["pixelBoxUpperCornerWidth"])
        mode = _enum(bindings, "CUtensorMapIm2ColWideMode", a["mode"])
        return call(a["function"], *head, *corners, *counts, interleave, mode, *tail)
    corners = (list(a["pixelBoxLowerCorner"]), list(a["pixelBoxUpperCorner"]))
    return call(a["function"], *head, *corners, *counts, interleave, *tail)


def _encode_box(map: BoxMap) -> Any:
    bindings = driver()
    kind = {"uint16": "UINT16", "float32": "FLOAT32"}[map.dtype]
    return call(
        "cuTensorMapEncodeTiled",
        _enum(bindings, "CUtensorMapDataType", f"CU_TENSOR_MAP_DATA_TYPE_{kind}"), 3, map.address,
        _words("cuuint64_t", map.shape[::-1]), _words("cuuint64_t", map.strides[::-1]),
        _words("cuuint32_t", (map.channels, 1, map.box_rows)), _words("cuuint32_t", (1, 1, 1)),
        bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        _enum(bindings, "CUtensorMapSwizzle", f"CU_TENSOR_MAP_SWIZZLE_{map.swizzle}"),
        bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        bindings.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
