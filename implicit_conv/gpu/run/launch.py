"""One launch: a choice and device arrays whose axes have the view's order.

The kernel of a choice is compiled, linked and loaded once, and its tensor maps are encoded once. A
launch then calls the driver with the params blob: it allocates no device memory and waits for
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arrays import Operand
from implicit_conv.gpu.cuda.encode import encode
from implicit_conv.gpu.cuda.kernel import Blob, Kernel
from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.direct import load_bytes
from implicit_conv.gpu.plan.folded import fold_misfit
from implicit_conv.gpu.plan.maps import activation_map, filter_map
from implicit_conv.gpu.run.arguments import NOWHERE, DeviceArray, arguments
from implicit_conv.kernels.gpu.call import Call as KernelCall
from implicit_conv.kernels.gpu.call import pack
from implicit_conv.kernels.gpu.sizes import MAP_BYTES, VECTOR_BYTES
from implicit_conv.kernels.gpu.variant import Variant

BLOBS_KEPT = 64  # blobs of a launcher, one for each tuple of addresses
CALL_AT = 2 * MAP_BYTES  # offset in the blob of the Call, which follows two tensor maps
ADDRESSES = np.dtype((np.int64, 5))  # the first fields of the Call
assert KernelCall._fields[:5] == ("x", "w", "bias", "residual", "y")
Addresses = tuple[int | None, int | None, int | None, int | None, int | None]


@dataclass(slots=True)
class Arrays:
    """The operands of one launch."""

    x: Operand
    w: Operand
    y: Operand
    bias: Operand | None = None
    residual: Operand | None = None

    @property
    def all(self) -> tuple[Operand | None, ...]:
        """x, w, y, bias and residual."""
        return self.x, self.w, self.y, self.bias, self.residual

    @property
    def addresses(self) -> Addresses:
        """Addresses of x, w, bias, residual and y, in the order of the Call; None if absent."""
        bias, residual = self.bias, self.residual
        return (
            self.x.address,
            self.w.address,
            bias and bias.address,
            residual and residual.address,
            self.y.address,
        )

    def named(self) -> Iterator[tuple[str, Operand]]:
        """(name of the caller's argument, operand) of those that were given."""
        for name in ("x", "w", "bias", "residual"):
            array = getattr(self, name)
            if array is not None:
                yield name, array
        yield "out", self.y


def misfit(v: Variant, arrays: Arrays) -> str:
    """The reason why a kernel cannot load these arrays, or an empty string."""
    if v.producer == "elements" and not v.folded:
        return ""
    if v.strip:
        return _vector_misfit(v, arrays)
    for name, array in (("x", arrays.x), ("w", arrays.w)):
        reason = (fold_misfit if v.folded else unaligned)(array, v.itemsize)
        if reason:
            return f"{name} {reason}"
        if v.producer == "tma" and not array.packed:
            return f"{name} is not contiguous, as its tensor map would need it to be"
    return ""


def _vector_misfit(v: Variant, arrays: Arrays) -> str:
    """As `misfit`, of a kernel on the CUDA cores, which reads w element by element."""
    images = (("x", arrays.x), ("out", arrays.y), ("residual", arrays.residual))
    for name, array in images:
        size = load_bytes(v) if name == "x" else VECTOR_BYTES
        reason = "" if array is None else unaligned(array, v.itemsize, size)
        if reason:
            return f"{name} {reason}"
    return ""


def unaligned(array: Operand, itemsize: int, size: int = VECTOR_BYTES) -> str:
    """The reason why an array cannot be read or written `size` bytes at a time, or nothing."""
    if array.strides[-1] != itemsize:
        return "is not contiguous along its channels"
    if any(value % size for value in (array.address, *array.strides[:-1])):
        return f"is not aligned to {size} bytes"
    return ""


class Launcher:
    """The kernel of a choice and its params blobs, for arrays of the strides of `arrays`.

    A blob is kept for each tuple of addresses, so a repeated call copies nothing. For new addresses
    the first blob is copied, and the addresses in it are replaced.
    """

    def __init__(self, choice: Choice, arrays: Arrays) -> None:
        handle = load.loaded(choice.variant, choice.arch.cc, driver.current_device())
        threads, smem_bytes = choice.variant.threads, choice.layout.total
        self.kernel = Kernel(handle, choice.blocks, threads, smem_bytes)
        self.maps = choice.variant.producer == "tma"
        self.first = _content(choice, arrays)
        self.blobs: dict[Addresses, Blob] = {}

    def __call__(self, addresses: Addresses, stream: int) -> None:
        """Enqueue the kernel for arrays at `addresses` on `stream` of the current device."""
        self.kernel.enqueue(self.blobs.get(addresses) or self._moved(addresses), stream)

    def _moved(self, addresses: Addresses) -> Blob:
        """The blob for arrays at other addresses."""
        blob = Blob(self.first)
        numbers = [address or 0 for address in addresses]
        blob.bytes[CALL_AT : CALL_AT + ADDRESSES.itemsize].view(np.int64)[:] = numbers
        if self.maps:
            for number in range(2):
                blob.move_map(number, numbers[number])
        if len(self.blobs) >= BLOBS_KEPT:
            self.blobs.clear()
        self.blobs[addresses] = blob
        return blob


def _content(choice: Choice, arrays: Arrays) -> npt.NDArray[np.uint8]:
    """The params blob for `arrays`."""
    x, w, y, bias, residual = (_place(array) for array in arrays.all)
    call = arguments(choice, x, w, y, bias.address, residual)
    maps: tuple[bytes | None, bytes | None] = (None, None)
    if choice.variant.producer == "tma":
        maps = (
            encode(activation_map(choice.view, choice.variant, x.address), choice.arch.cc),
            encode(filter_map(choice.view, choice.variant, w.address), choice.arch.cc),
        )
    return np.frombuffer(pack(*maps, call, choice.geometry, choice.limits), np.uint8)


def _place(array: Operand | None) -> DeviceArray:
    return NOWHERE if array is None else DeviceArray(array.address, array.strides)
