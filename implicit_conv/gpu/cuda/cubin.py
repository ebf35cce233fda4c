"""Compiled kernels: from the disk cache, else compiled and linked; loaded once per device.

The disk cache is that of the CPU's kernels (process/disk.py), so the same rules hold: what a disk
does never decides whether a call works. A kernel that is found there needs no compiler.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

from implicit_conv.gpu.cuda import driver
from implicit_conv.kernels import sources
from implicit_conv.kernels.gpu.sizes import COPY_WARPS, DUMP_THREADS, WARP
from implicit_conv.kernels.gpu.targets import target_name
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.kernels.gpu.wgrad_variant import ImageCopy, SplitSum, WgradVariant
from implicit_conv.process.disk import store

COMPILERS = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")
LIBRARIES = {"nvidia-nvvm": "nvvm", "nvidia-nvjitlink": "nvjitlink"}  # modules of cuda.bindings
Capability = tuple[int, int, str]
AnyVariant = Variant | WgradVariant | SplitSum | ImageCopy
FILTERS_TITLE = "phase filters {}"  # of the kernel of `filters_cubin`
# (image, entry) of kernels that were compiled elsewhere, by title, target and hash of the sources.
PROVIDED: dict[tuple[str, str, str], tuple[bytes, str]] = {}


@functools.cache
def cubin(v: AnyVariant, cc: Capability) -> tuple[bytes, str]:
    """(image, entry) of a variant's kernel; needs no device."""
    return cached(repr(v), lambda: kernel_of(v), cc, v.threads, v.bound)


def kernel_of(v: AnyVariant) -> Callable[..., Any]:
    """The Python function of a variant's kernel, which needs the compilers."""
    from implicit_conv.kernels.gpu import fprop, image_copy, wgrad

    makers = {
        WgradVariant: wgrad.make_wgrad,
        SplitSum: wgrad.make_split_sum,
        ImageCopy: image_copy.make_image_copy,
    }
    made: Callable[..., Any] = makers.get(type(v), fprop.make_fprop)(v)
    return made


def dump_cubin(mode: str, cc: Capability) -> tuple[bytes, str]:
    """(image, entry) of the kernel of kernels/gpu/dump.py for copies of `mode`."""

    def make() -> Callable[..., Any]:
        from implicit_conv.kernels.gpu.dump import make_dump

        made: Callable[..., Any] = make_dump(mode)
        return made

    return cached(f"dump {mode}", make, cc, DUMP_THREADS)


def filters_cubin(itemsize: int, cc: Capability) -> tuple[bytes, str]:
    """(image, entry) of the kernel of kernels/gpu/phase_filters.py."""

    def make() -> Callable[..., Any]:
        from implicit_conv.kernels.gpu.phase_filters import make_phase_filters

        made: Callable[..., Any] = make_phase_filters(itemsize)
        return made

    return cached(FILTERS_TITLE.format(itemsize), make, cc, COPY_WARPS * WARP)


def cached(
    title: str,
    make: Callable[[], Callable[..., Any]],
    cc: Capability,
    threads: int,
    resident: int = 1,
) -> tuple[bytes, str]:
    """(image, entry) of the kernel that `make` makes: provided, from the disk cache or compiled.

    `title` tells it from all other kernels of the same sources; `threads` and `resident` are those
    of `compile_ltoir`.
    """
    if PROVIDED:
        provided = PROVIDED.get((title, target_name(cc), sources.kernels_hash()))
        if provided is not None:
            return provided
    name = _entry_name(title, cc, threads)
    kept = store().load(name) if name else None
    if kept is not None:
        entry, _, image = bytes(kept).partition(b"\n")
        return image, entry.decode()
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel

    kernel = compile_kernel(make(), signature(), cc, threads, resident)
    if name:
        store().save(name, kernel.entry.encode() + b"\n" + kernel.cubin)
    return kernel.cubin, kernel.entry


def _entry_name(kernel: str, cc: Capability, threads: int) -> str:
    """The name of a kernel's entry: a hash of all that its code depends on; empty if unknown."""
    try:
        code = sources.kernels_hash(), kernel, target_name(cc), threads
    except OSError as error:
        store().warn("source", f"kernels are not cached, as their source cannot be read: {error}")
        return ""
    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_"))
    title = re.sub("[^A-Za-z0-9_]+", "-", f"gpu-{target_name(cc)}")
    return sources.kernel_name(title, (code, compiler_versions(), settings))


@functools.cache
def compiler_versions() -> tuple[str, ...]:
    """The versions of all that compiles and links, without importing it where it is a package."""
    return tuple(f"{name} {_version(name)}" for name in COMPILERS)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
    try:  # a library of a CUDA toolkit outside of packages
        return str(importlib.import_module(f"cuda.bindings.{LIBRARIES[name]}").version())
    except Exception:  # it is missing: the compiler will say so, if a kernel must be compiled
        return "unknown"


@functools.cache
def loaded(v: AnyVariant, cc: Capability, device: int) -> Any:
    """The handle of a variant's kernel on `device`."""
    return load(*cubin(v, cc), device)


@functools.cache
def loaded_filters(itemsize: int, cc: Capability, device: int) -> Any:
    """The handle of the kernel that copies filters of stride phases on `device`."""
    return load(*filters_cubin(itemsize, cc), device)


def load(image: bytes, entry: str, device: int) -> Any:
    """A kernel's handle; the kernel may use all of the device's shared memory."""
    return load_library(image, entry, device)[1]


def load_library(image: bytes, entry: str, device: int) -> tuple[Any, Any]:
    """(handle of the loaded image, handle of its kernel), as `load`."""
    library = driver.call("cuLibraryLoadData", image, [], [], 0, [], [], 0)
    kernel = driver.call("cuLibraryGetKernel", library, entry.encode())
    attribute = driver.bindings().CUfunction_attribute
    name = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    size = driver.device_arch(device).smem_bytes
    place = driver.call("cuDeviceGet", device)
    driver.call("cuKernelSetAttribute", name, size, kernel, place)
    return library, kernel
