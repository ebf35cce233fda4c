"""Run a chosen kernel's PTX in the interpreter of `implicit_conv.ptx`, on numpy arrays.

Everything between the plan and the driver is the engine's own: arguments, params blob, tensor maps.
Only the driver's cuTensorMapEncode* calls are replaced: the interpreter encodes their arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv import ptx
from implicit_conv.gpu.cuda.cubin import AnyVariant, kernel_of
from implicit_conv.gpu.plan.candidate import UNBOUNDED, Choice
from implicit_conv.gpu.plan.layout import buffers, region_names
from implicit_conv.gpu.plan.maps import maps_of
from implicit_conv.gpu.plan.views import stacked
from implicit_conv.gpu.plan.wgrad import WgradChoice
from implicit_conv.gpu.run import wgrad
from implicit_conv.gpu.run.launch import NOWHERE, DeviceArray, arguments
from implicit_conv.kernels.gpu.call import Call, pack
from implicit_conv.kernels.gpu.sizes import VECTOR_BYTES
from implicit_conv.problem.options import ITEMSIZES, contiguous_strides
from implicit_conv.problem.problem import Problem
from perf.bringup.emulated import encoded

Array = npt.NDArray[Any]
FAR = (1 << 32) + 4096  # bytes: 2^31 elements of 16 bits, and a page


class WriteError(Exception):
    """A kernel has written some bytes of y never, or more than once."""


@functools.cache
def ptx_of(v: AnyVariant, cc: tuple[int, int, str], lineinfo: bool = False) -> str:
    """The PTX of a variant's kernel; needs the compilers, but no GPU."""
    return kernel_ptx(kernel_of(v), cc, v.threads, v.bound, lineinfo)


def kernel_ptx(
    kernel: Any,
    cc: tuple[int, int, str],
    threads: int,
    resident: int = 1,
    lineinfo: bool = False,
) -> str:
    """The PTX of a kernel whose argument is the params blob; needs the compilers, but no GPU."""
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_ptx

    return compile_ptx(kernel, signature(), cc, threads, resident, lineinfo)


def interpret_wgrad(
    choice: WgradChoice,
    kernels: list[Any],
    x: Array,
    dy: Array,
    *,
    order: tuple[int, ...] = (0, 1, 2, 3),
    gap: int = 0,
    far: Mapping[str, int] = MappingProxyType({}),
    **options: Any,
) -> Any:
    """dw of `choice` for arrays in the view's layouts, or [dw, db]; parameters as of `interpret`.

    `kernels` are those of all launches. Each must write the bytes of its result once, and no other.
    The axes of x and dy have this `order` in memory. Of `far` are "x" and "dy", in that order, and
    "dw".
    """
    memory, view, size = ptx.Memory(), choice.view, ITEMSIZES[choice.out_dtype]
    put = [
        _put(memory, array.transpose(order), gap=gap, far=far.get(name))
        for name, array in (("x", x), ("dy", dy))
    ]
    x_at, dy_at = (
        DeviceArray(array.address, tuple(array.strides[order.index(axis)] for axis in range(4)))
        for array in put
    )
    shapes = (view.weight_shape, (view.K,))[: 1 + choice.variant.biased]
    outs, parts = [], []
    for shape, axis in zip(shapes, (far.get("dw"), None), strict=False):
        before = len(memory.buffers)
        outs.append(_put(memory, np.full(shape, -1, f"i{size}"), far=axis))
        parts.append(memory.buffers[before:])
    sums = np.full(choice.workspace_bytes // 4, np.nan, np.float32)
    at = memory.put(sums)
    made = wgrad.arguments(choice, x_at, dy_at, outs[0], at, outs[-1].address)
    results = [
        {at: slice(start, start + copy.bytes)} for _, copy, start in choice.best.copies_in_order
    ]
    results.append({at: slice(choice.best.sums_bytes)})
    results.append({part.address: slice(None) for some in parts for part in some})
    launches = zip(choice.launches, kernels, made, results, strict=True)
    for (v, blocks, shared), kernel, (call, geometry), result in launches:
        maps = encoded_maps(choice.best.view, v, call, memory)
        launch = ptx.Launch(
            kernel,
            parameters=pack(*maps, call, geometry, UNBOUNDED),
            memory=memory,
            grid=(blocks, 1, 1),
            block=(v.threads, 1, 1),
            shared_bytes=shared,
            **{"strict": True, **options},
        ).run()
        if launch.written.keys() != result.keys():
            raise WriteError(f"{len(launch.written)} arrays were written, not {len(result)}")
        for buffer, times in launch.written.items():
            due = np.zeros_like(times)
            due[result[buffer]] = 1
            if (times != due).any():
                raise WriteError(f"bytes were written {np.unique(times).tolist()} times")
    dw, *db = (
        _read(some, size, shape, axis)
        for some, shape, axis in zip(parts, shapes, (far.get("dw"), None), strict=False)
    )
    return [dw, *db] if db else dw


def interpret(
    choice: Choice,
    kernel: Any,
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    blocks: int | None = None,
    in_place: bool = False,
    gap: int = 0,
    far: Mapping[str, int] = MappingProxyType({}),
    **options: Any,
) -> Array:
    """y of `choice` for C-contiguous arrays in the view's layouts.

    Parameters
    ----------
    kernel : ptx.syntax.Kernel
        The parsed PTX of the choice's variant.
    x, w, bias, residual : arrays
        float32 elements, or the bits of float16 and bfloat16 as uint16. Where the kernel scales
        values, the bias is float32 pairs (scale, bias).
    blocks : int, optional
        Blocks of the grid; where there are more tiles, a block visits several of them.
    in_place : bool
        y is written over the residual.
    gap : int
        Elements that follow the channels of each pixel of x and tap of w, all NaN.
    far : mapping of "x", "w", "y" or "residual" -> axis
        The axis of an array along which elements are FAR bytes apart, with no memory in between; a
        tensor map takes none.
    options
        Those of `ptx.Launch`: seed, flaky, watch, limit.

    Raises
    ------
    ValueError
        The kernel reads a bias or residual that is not given, or the other way round.
    ptx.PtxError
        The kernel does what PTX leaves undefined.
    WriteError
        It has not written each byte of y once.
    """
    memory, v, view = ptx.Memory(), choice.variant, choice.view
    if (v.biased, v.residual) != (bias is not None, residual is not None):
        raise ValueError(f"biased {v.biased}, residual {v.residual}: other arrays are given")
    x = x.reshape(stacked(x.shape, view.layout))
    w = w.reshape(stacked(w.shape, view.weight_layout))
    y_shape = stacked(view.output_shape, view.layout)
    residual = None if residual is None else residual.reshape(y_shape)
    offset = v.alignment % VECTOR_BYTES
    x_at = _put(memory, x, offset, gap, far.get("x"))
    w_at = _put(memory, w, offset, gap, far.get("w"))
    z = _put(memory, residual, far=far.get("residual"))
    size = ITEMSIZES[v.y_dtype]
    unset = residual if in_place else np.full(y_shape, -1, f"i{size}")
    before = len(memory.buffers)
    out = _put(memory, unset, far=far.get("y"))
    parts = memory.buffers[before:]
    z = out if in_place else z
    bias_at = 0 if bias is None else memory.put(bias.copy())
    call = arguments(choice, x_at, w_at, out, bias_at, z)
    maps = encoded_maps(view, v, call, memory)
    # As in CUTLASS, no proxy fence follows ldmatrix before the next copy to its stage.
    strict = v.producer != "tma" or v.descriptors
    launch = ptx.Launch(
        kernel,
        parameters=pack(*maps, call, choice.geometry, choice.limits),
        memory=memory,
        grid=(blocks or choice.blocks, 1, 1),
        block=(v.threads, 1, 1),
        shared_bytes=choice.layout.total,
        names=region_names(choice.layout, buffers(v, choice.geometry)),
        **{"strict": strict, **options},
    ).run()
    never = np.zeros(parts[0].data.size, np.uint8)
    times = np.concatenate([launch.written.get(part.address, never) for part in parts])
    if (times != 1).any():
        raise WriteError(f"bytes of y were written {np.unique(times).tolist()} times")
    return _read(parts, size, y_shape, far.get("y")).reshape(view.output_shape)


def _read(parts: list[Any], size: int, shape: tuple[int, ...], far: int | None) -> Array:
    """The elements of `size` bytes that are in the buffers of an array; see `interpret`."""
    kind = np.float32 if size == 4 else np.uint16
    rest = shape if far is None else (*shape[:far], *shape[far + 1 :])
    found: list[Array] = [part.data.view(kind).reshape(rest) for part in parts]
    return found[0] if far is None else np.stack(found, far)


def _put(
    memory: ptx.Memory,
    array: Array | None,
    offset: int = 0,
    gap: int = 0,
    far: int | None = None,
) -> DeviceArray:
    """A copy of an array in memory; see `interpret` for the gaps in it."""
    if array is None:
        return NOWHERE
    nan = np.nan if array.dtype == np.float32 else 0x7FFF  # of bfloat16 and of float16
    copy = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, gap)], constant_values=nan)
    if far is None:
        return DeviceArray(memory.put(copy, offset), contiguous_strides(copy.shape, copy.itemsize))
    start, slices = memory.next, np.moveaxis(copy, far, 0)
    for number, part in enumerate(slices):
        memory.next = start + number * FAR
        memory.put(np.ascontiguousarray(part), offset)
    strides = [*contiguous_strides(slices.shape[1:], copy.itemsize)]
    strides.insert(far, FAR)
    if copy.shape[1:-1] == (1, 1):  # so that pixels have one stride
        strides[1:-1] = FAR, FAR
    return DeviceArray(start + offset, tuple(strides))


def encoded_maps(
    view: Problem, v: AnyVariant, call: Call, memory: ptx.Memory
) -> tuple[bytes | None, bytes | None]:
    """The maps of a call, encoded for the interpreter."""
    made = maps_of(view, v, call)
    first, second = [encoded(memory, each.arguments) for each in made] or (None, None)
    return first, second
