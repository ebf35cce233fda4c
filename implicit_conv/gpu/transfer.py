"""numpy arrays on the GPU: copied there, convolved, copied back. For ``device="cuda"``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.gpu import driver
from implicit_conv.gpu.arrays import Operand
from implicit_conv.gpu.call import packed_strides
from implicit_conv.gpu.launch import Arrays, launch, shapes
from implicit_conv.gpu.plan import GpuPlan

Array = npt.NDArray[Any]
STREAM = 0  # the legacy default stream, which a synchronous copy orders


class Buffer:
    """Device memory that lives as long as this object."""

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self.pointer = driver.call("cuMemAlloc", self.size)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            driver.bindings().cuMemFree(self.pointer)

    def operand(self, shape: tuple[int, ...], dtype: str, itemsize: int) -> Operand:
        """The memory as a packed array."""
        return Operand(int(self.pointer), shape, packed_strides(shape, itemsize), dtype, self)


def _sent(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> Operand:
    """A packed copy of `array` on the device, checked against the plan."""
    here = np.ascontiguousarray(array)
    buffer = Buffer(here.nbytes)
    there = buffer.operand(here.shape, here.dtype.name, here.itemsize).expect(name, shape, dtype)
    driver.call("cuMemcpyHtoD", buffer.pointer, here.ctypes.data, here.nbytes)
    return there


def run_numpy(
    plan: GpuPlan,
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> Array:
    """y = activation(conv(x, w) + bias + residual) of numpy arrays, computed on the GPU.

    Parameters
    ----------
    x, w, bias, residual : arrays in the problem's layouts and dtype; bfloat16 is ml_dtypes'
    out : array, optional
        Takes the result; C-contiguous.

    Raises
    ------
    ShapeError, DTypeError
        Arrays that are not those of the plan.
    PlanError, DriverError
        No usable GPU or driver, or not enough device memory.
    """
    problem, dtype = plan.problem, plan.problem.dtype
    x_shape, w_shape = shapes(problem)
    result = np.empty(problem.output_shape, x.dtype) if out is None else out
    if result.size == 0:
        return result
    driver.current_device()
    y = Buffer(result.nbytes)
    arrays = Arrays(
        _sent("x", x, x_shape, dtype),
        _sent("w", w, w_shape, dtype),
        y.operand(problem.output_shape, dtype, problem.itemsize),
        None if bias is None else _sent("bias", bias, (problem.K,), dtype),
        None if residual is None else _sent("residual", residual, problem.output_shape, dtype),
    )
    launch(plan, arrays, STREAM)
    driver.call("cuMemcpyDtoH", result.ctypes.data, y.pointer, result.nbytes)
    return result
