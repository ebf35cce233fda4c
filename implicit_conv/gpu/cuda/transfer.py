"""Copies of numpy arrays in device memory, for ``device="cuda"``."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.arrays.arrays import as_array
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arrays import Operand, check_form
from implicit_conv.problem.options import contiguous_strides

Array = npt.NDArray[Any]
POOL_BYTES = 64 << 20  # free memory that a pool keeps when its device has no work
STREAM = 0  # the legacy default stream: a synchronous copy waits for its work


class Buffer:
    """Memory of the current device, freed with this object."""

    def __init__(self, size: int) -> None:
        self.size, self.device = max(1, size), driver.current_device()
        self.pointer = driver.call("cuMemAlloc", self.size)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            with driver.on(self.device):
                driver.bindings().cuMemFree(self.pointer)

    def operand(self, shape: tuple[int, ...], dtype: str, itemsize: int) -> Operand:
        """The memory as a packed array."""
        strides = contiguous_strides(shape, itemsize)
        return Operand(int(self.pointer), shape, strides, dtype, self, self.device)


def send(array: Array) -> Buffer:
    """A copy of an array, packed, in memory of the current device."""
    here = np.ascontiguousarray(array)
    buffer = Buffer(here.nbytes)
    driver.call("cuMemcpyHtoD", buffer.pointer, here.ctypes.data, here.nbytes)
    return buffer


def sent(array: Array) -> Operand:
    """The operand of a copy of an array on the current device."""
    return send(array).operand(array.shape, array.dtype.name, array.itemsize)


def host_array(name: str, array: object, shape: tuple[int, ...], dtype: str) -> Array:
    """An array for a plan as a numpy array; errors as of `as_array` and `check_form`."""
    here = as_array(name, array)
    check_form(name, here, shape, dtype)
    return here


def fetched(buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> Array:
    """A numpy copy of `buffer`, taken when the work of the default stream is done."""
    array = np.empty(shape, dtype)
    driver.call("cuMemcpyDtoH", array.ctypes.data, buffer.pointer, array.nbytes)
    return array


@functools.cache
def pool(device: int) -> Any:
    """The pool for memory that is allocated and freed in the order of a stream of a device, so that
    no other work has it meanwhile, and a graph that captures the stream has its own.
    """
    cuda = driver.bindings()
    place, properties = cuda.CUmemLocation(), cuda.CUmemPoolProps()
    place.type, place.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
    properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = place
    made = driver.call("cuMemPoolCreate", properties)
    threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    driver.call("cuMemPoolSetAttribute", made, threshold, cuda.cuuint64_t(POOL_BYTES))
    return made
