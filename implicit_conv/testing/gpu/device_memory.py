"""Device memory for checks: outputs filled with NaNs, and waits that end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.errors import DriverError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.transfer import STREAM, Buffer, fetched, send

Array = NDArray[Any]
PATIENCE = 20.0  # seconds after which a kernel is considered stuck
POISON = 0xFF  # a byte that makes a NaN in every floating-point type


class StuckError(Exception):
    """A kernel did not end in time."""


def wait() -> None:
    """Wait for the default stream; a kernel that does not end raises StuckError."""
    cuda, deadline = driver.bindings(), time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        (status,) = cuda.cuStreamQuery(STREAM)
        if status == cuda.CUresult.CUDA_SUCCESS:
            return
        if status != cuda.CUresult.CUDA_ERROR_NOT_READY:
            raise DriverError(f"the kernel failed with {status.name}")
    raise StuckError(f"the kernel did not end within {PATIENCE:.0f} s")


def poisoned(size: int) -> Buffer:
    """Device memory in which every element is a NaN."""
    return send(np.full(size, POISON, np.uint8))


def fetch(buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> Array:
    """A copy of the array in device memory, taken when all work is done."""
    wait()
    return fetched(buffer, shape, dtype)
