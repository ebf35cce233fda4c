"""One launch: a choice and device arrays whose axes have the view's order.

The kernel of a choice is compiled, linked and loaded once, and its tensor maps are encoded once. A
launch then calls the driver with the params blob: it allocates no device memory and waits for
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arrays import Operand
from implicit_conv.gpu.cuda.encode import encode
from implicit_conv.gpu.cuda.kernel import Blob, Kernel
from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.direct import direct_tiles, load_bytes
from implicit_conv.gpu.plan.maps import maps_of
from implicit_conv.gpu.plan.rows import row_tiles as tiles_of_rows
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import Call as KernelCall
from implicit_conv.kernels.gpu.call import pack, reciprocal
from implicit_conv.kernels.gpu.sizes import MAP_BYTES, VECTOR_BYTES
from implicit_conv.kernels.gpu.variant import STAGED_BYTES, STAGED_TOGETHER, Variant
from implicit_conv.problem.options import LAYOUTS, WEIGHT_LAYOUTS
from implicit_conv.problem.problem import Problem

BLOBS_KEPT = 64  # blobs of a launcher, one for each tuple of addresses
CALL_AT = 2 * MAP_BYTES  # offset in the blob of the Call, which follows two tensor maps
ADDRESSES = np.dtype((np.int64, 5))  # the first fields of the Call
assert KernelCall._fields[:5] == ("x", "w", "bias", "residual", "y")
Addresses = tuple[int | None, int | None, int | None, int | None, int | None]


class DeviceArray(NamedTuple):
    """An array in device memory: address and byte strides."""

    address: int
    strides: tuple[int, ...]


NOWHERE = DeviceArray(0, (0, 0, 0, 0))


def arguments(
    choice: Choice,
    x: DeviceArray,
    w: DeviceArray,
    y: DeviceArray,
    bias: int = 0,
    residual: DeviceArray = NOWHERE,
) -> KernelCall:
    """The Call of one launch; `bias` is an address (0: none).

    Arrays have the view's layouts, without an axis of planes, which are stacked (views.py).
    """
    groups, tiles_m, tiles_n = choice.tiles
    axes = LAYOUTS[choice.view.layout.replace("D", "")]
    filter_axes = WEIGHT_LAYOUTS[choice.view.weight_layout.replace("T", "")]
    g, wide = choice.geometry, choice.variant.wide
    row_tiles = tiles_m // g.P
    image, row = (g.slots, row_tiles) if wide else (g.Z * g.P * g.Q, g.Q)
    if choice.variant.strip:
        row_tiles = row = direct_tiles(g, choice.variant).strips
        image = g.P * row
    panel = tiles_n
    if choice.variant.band:
        (row, image, panel) = tiles_of_rows(g, choice.variant)
    divisors = {
        "group": tiles_m * tiles_n,
        "panel": panel,
        "image": image,
        "row": row,
        "dilation": g.dilation_h,
        "phases": g.phases_w,
        "step": g.step_w,
    }
    counts = {
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tiles": groups * tiles_m * tiles_n,
        "row_tiles": row_tiles,
        "rows": g.N * g.Z * g.P * g.Q,
        "k_blocks": int(schedule.block_count(g)),
        "splits": 1,
        **{f"by_{name}": reciprocal(divisor) for name, divisor in divisors.items()},
    }
    shared = choice.layout._asdict()
    del shared["total"]  # the driver is told it, not the kernel
    steps = _strides("x", "nhwc", x, axes)
    if choice.variant.folded:  # columns of x are elements
        steps["x_w"] = steps["x_c"]
    return KernelCall(
        x=x.address,
        w=w.address,
        bias=bias,
        residual=residual.address,
        y=y.address,
        **steps,
        **_strides("w", "kcrs", w, filter_axes),
        **_strides("y", "npqk", y, axes),
        **_strides("residual", "npqk", residual, axes),
        **counts,
        **shared,
    )


def _strides(name: str, letters: str, array: DeviceArray, axes: tuple[int, ...]) -> dict[str, int]:
    """The fields of Call that hold the byte strides of an array: x_n, x_h, ..."""
    return {
        f"{name}_{letter}": array.strides[axis] for letter, axis in zip(letters, axes, strict=True)
    }


@dataclass(slots=True)
class Arrays:
    """The operands of one launch; if values are `scaled`, the bias is pairs (scale, bias)."""

    x: Operand
    w: Operand
    y: Operand
    bias: Operand | None = None
    residual: Operand | None = None
    scaled: bool = False

    @property
    def all(self) -> tuple[Operand | None, ...]:
        """x, w, bias, residual and y, in the order of the Call."""
        return self.x, self.w, self.bias, self.residual, self.y

    @property
    def addresses(self) -> Addresses:
        """Addresses of x, w, bias, residual and y, in the order of the Call; None if absent."""
        x, w, bias, residual, y = (array and array.address for array in self.all)
        return x or 0, w or 0, bias, residual, y or 0

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
    if v.band:
        return _rows_misfit(v, arrays.x)
    for name, array in (("x", arrays.x), ("w", arrays.w)):
        reason = fold_misfit(array, v.itemsize) if v.folded else ""
        reason = reason or unaligned(array, v.itemsize, v.alignment)
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


def _rows_misfit(v: Variant, x: Operand) -> str:
    """As `misfit`, of a kernel by rows, which loads groups of pixels and single taps."""
    *others, w, c = x.strides
    others += [c] if v.producer == "planes" else []
    if x.shape[2] % STAGED_TOGETHER:
        return f"x has rows of {x.shape[2]} pixels, no multiple of {STAGED_TOGETHER}"
    if v.producer == "planes" and w != v.itemsize:
        return "x is not contiguous along its rows"
    if v.producer == "vectors" and (w, c) != (x.shape[3] * v.itemsize, v.itemsize):
        return "x is not contiguous along its rows of pixels"
    if any(value % STAGED_BYTES for value in (x.address, *others)):
        return f"x is not aligned to {STAGED_BYTES} bytes"
    return ""


def fold_misfit(array: Operand, itemsize: int) -> str:
    """The reason why an array's rows are not contiguous elements, or an empty string."""
    channels = array.shape[-1]
    if array.strides[-2:] == (channels * itemsize, itemsize):
        return ""
    return f"has strides {array.strides[-2:]} of columns and channels, which leave gaps in a row"


def unaligned(array: Operand, itemsize: int, size: int = VECTOR_BYTES) -> str:
    """The reason why an array cannot be read or written `size` bytes at a time, or nothing."""
    if array.strides[-1] != itemsize:
        return "is not contiguous along its channels"
    if any(value % size for value in (array.address, *array.strides[:-1])):
        return f"is not aligned to {size} bytes"
    return ""


class Blobs:
    """The params blobs of launches that differ in addresses, of which `first` is one.

    `maps` are the places among the addresses of the arrays that the two tensor maps describe.

    A blob is kept for each tuple of addresses, so a repeated call copies nothing. For new addresses
    `first` is copied, and the addresses in it are replaced; with `maps`, in its tensor maps too.
    """

    def __init__(self, first: npt.NDArray[np.uint8], maps: tuple[int, ...] = ()) -> None:
        self.first, self.maps = first, maps
        self.blobs: dict[Addresses, Blob] = {}

    def moved(self, addresses: Addresses) -> Blob:
        """A new blob for arrays at these addresses; it is kept."""
        blob = Blob(self.first)
        numbers = [address or 0 for address in addresses]
        blob.bytes[CALL_AT : CALL_AT + ADDRESSES.itemsize].view(np.int64)[:] = numbers
        for number, place in enumerate(self.maps):
            blob.move_map(number, numbers[place])
        if len(self.blobs) >= BLOBS_KEPT:
            self.blobs.clear()
        self.blobs[addresses] = blob
        return blob


class Launcher(Blobs):
    """A kernel and its params blobs, for arrays of the same strides."""

    def __init__(
        self, kernel: Kernel, first: npt.NDArray[np.uint8], maps: tuple[int, ...] = ()
    ) -> None:
        super().__init__(first, maps)
        self.kernel, self.enqueue = kernel, kernel.enqueue

    def __call__(self, addresses: Addresses, stream: int) -> None:
        """Enqueue the kernel for arrays at `addresses` on `stream` of the current device."""
        self.kernel.enqueue(self.blobs.get(addresses) or self.moved(addresses), stream)


def launcher_of(choice: Choice, arrays: Arrays) -> Launcher:
    """The launcher of a choice for arrays of the strides of `arrays`."""
    v = choice.variant
    handle = load.loaded(v, choice.arch.cc, driver.current_device())
    kernel = Kernel(handle, choice.blocks, v.threads, choice.layout.total)
    x, w, bias, residual, y = (_place(array) for array in arrays.all)
    call = arguments(choice, x, w, y, bias.address, residual)
    blob = content(choice.view, v, call, choice.geometry, choice.limits, choice.arch.cc)
    return Launcher(kernel, blob, (0, 1) if v.producer == "tma" else ())


def content(
    view: Problem,
    v: load.AnyVariant,
    call: KernelCall,
    geometry: Geometry,
    limits: tuple[float, float],
    cc: load.Capability,
) -> npt.NDArray[np.uint8]:
    """The params blob of a call of the kernel of `v`, which computes `view`."""
    first, second = [encode(each, cc) for each in maps_of(view, v, call)] or (None, None)
    return np.frombuffer(pack(first, second, call, geometry, limits), np.uint8)


def _place(array: Operand | None) -> DeviceArray:
    return NOWHERE if array is None else DeviceArray(array.address, array.strides)
