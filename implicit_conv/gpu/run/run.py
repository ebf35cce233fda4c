"""Run a choice on arrays: device arrays in place, numpy arrays through copies.

Which kernel fits depends on the order of elements in memory, not on the names of the axes: a
channels_last tensor of torch has the shape N, C, H, W and is read as the channels-last array that
it is. A filter is packed as K, R, S, C, the order that tensor maps and 16-byte copies need, unless
it has that order already. A numpy array is reordered on its way to the GPU; a device array x in
another order goes to a slower kernel instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from implicit_conv.arrays.arrays import as_array, check_out
from implicit_conv.arrays.libraries import library
from implicit_conv.errors import PlanError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arrays import (
    Operand,
    Seen,
    check_form,
    is_device_array,
    located,
    result_maker,
    see,
    see_tensor,
)
from implicit_conv.gpu.cuda.streams import among, stream_of
from implicit_conv.gpu.cuda.transfer import STREAM, Buffer, fetched, host_array, sent
from implicit_conv.gpu.plan.phases import AnyChoice, Gradient
from implicit_conv.gpu.plan.wgrad import WgradChoice
from implicit_conv.gpu.run.call import Call, bind, vector_form
from implicit_conv.gpu.run.launch import Arrays
from implicit_conv.gpu.run.phases import filter_copy
from implicit_conv.kernels.gpu.sizes import ITEMSIZES, VECTOR_BYTES
from implicit_conv.process.cache import cached_property, keep_call

Given: TypeAlias = "tuple[Seen, Seen, Seen | None, Seen | None, Seen]"


@dataclass(frozen=True)
class GpuFilter:
    """A packed filter in the memory of `device`, for plans of its shape and dtype."""

    operand: Operand
    device: int
    stream: str | int | None = None  # as of `Seen`
    order: tuple[object, ...] = ()  # as of the choice

    @cached_property
    def seen(self) -> Seen:
        """The filter as calls see it."""
        address, shape, strides, dtype, owner, _, lent = self.operand
        kind = shape, strides, dtype, self.device, address % VECTOR_BYTES, self.order
        return Seen(address, kind, self.stream, owner, lent)


def pack(choice: AnyChoice, w: Any, device: int | None) -> GpuFilter:
    """`w` as a packed filter: a numpy array on `device`, a device array on its own device."""
    if not is_device_array(w):
        with driver.on(device) as number:
            filters = host_filter(choice, w)
            driver.call("cuStreamSynchronize", STREAM)  # a copy may return before it has ended
            return GpuFilter(filters, number, order=choice.order)
    seen = see(w, "w")
    given = seen.operand
    number = given.device if given.device is not None else driver.device_of(given.address)
    with driver.on(number):
        filters = device_filter(choice, given)
        if isinstance(choice, Gradient):
            filters = copied_filters(choice, filters, stream_of(seen) or 0)
        copied = filters.address != given.address  # by the stream of now, whatever calls are on
        stream = stream_of(seen) if copied else seen.stream
        return GpuFilter(filters, number, stream, choice.order)


def host_filter(choice: AnyChoice, w: Any) -> Operand:
    """A packed copy of a numpy filter on the current device."""
    problem = choice.problem
    return sent(choice.ordered(host_array("w", w, problem.weight_shape, problem.dtype)))


def device_filter(choice: AnyChoice, w: Operand) -> Operand:
    """A device filter in the view's order: packed by torch or CuPy, otherwise with its strides.

    A kernel by rows and a gradient take any strides.
    """
    problem = choice.problem
    given = w.expect("w", problem.weight_shape, problem.dtype)
    axes = choice.filter_axes
    if not given.view(axes).packed and not choice.takes_any_filter:
        package = library(given.owner)
        if package == "torch":
            return see_tensor(given.owner.permute(axes).contiguous()).operand
        if package == "cupy":
            return see(given.owner.transpose(axes).copy()).operand
    return given.view(axes)


def copied_filters(choice: Gradient, w: Operand, stream: int) -> Operand:
    """A filter as the phases read it, copied by a launch on `stream`."""
    filters = Buffer(choice.workspace_bytes).operand(choice.packed_shape, w.dtype, w.itemsize)
    copy = filter_copy(choice, w)
    if copy:
        copy((None, w.address, None, None, filters.address), stream)
    return filters


def packed_filter(choice: AnyChoice, w: GpuFilter, device: int) -> Operand:
    """The operand of a packed filter, checked against the choice and the device of x."""
    if w.device != device:
        raise PlanError(f"the packed filter is on cuda:{w.device}, but x is on cuda:{device}")
    found = w.operand.expect("the packed filter", choice.packed_shape, choice.problem.dtype)
    if w.order != choice.order:
        raise PlanError("the packed filter is of a plan with other groups, strides or taps")
    return found


def pairs(choice: AnyChoice, scale: Any, bias: Any) -> Any:
    """The pairs (scale, bias) of all filters, in float32 and of the library of `scale`.

    Raises
    ------
    ShapeError, DTypeError
        A vector has no element for each filter, or its dtype is neither the problem's nor float32.
    PlanError
        Arrays of this library cannot be converted here.
    """
    dtype, shape = choice.problem.dtype, (choice.y_channels,)
    given, on_gpu = [scale] if bias is None else [scale, bias], is_device_array(scale)
    vectors = list[Any]()
    for name, vector in zip(("scale", "bias"), given, strict=False):
        array: Any = see(vector, name) if on_gpu else as_array(name, vector)
        vectors.append(vector if on_gpu else array)
        check_form(name, array, shape, dtype, "float32")
    package, *others = {library(each) if on_gpu else "numpy" for each in vectors}
    if others or package not in ("numpy", "torch", "cupy"):
        kinds = " and ".join(type(each).__name__ for each in vectors)
        raise PlanError(
            f"a scale and a bias of {kinds} cannot be converted here; pass both of torch or CuPy "
            "or, with numpy arrays, of numpy, or multiply the filters by the scale"
        )
    module = sys.modules[package]
    wide = [each.float() if package == "torch" else each.astype(np.float32) for each in vectors]
    return module.stack(wide if len(wide) > 1 else [*wide, module.zeros_like(wide[0])], 1)


def run_in_place(
    choice: AnyChoice,
    calls: dict[object, Any],
    x: Any,
    w: Any,
    bias: Any,
    residual: Any,
    out: Any,
    scaled: bool,
) -> Any:
    """y = activation(conv(x, w) + bias + residual) of device arrays, on the GPU that holds x.

    If the convolution is to be `scaled`, `bias` has pairs (scale, bias) of float32. It runs on the
    stream of x, among the work of the streams of the others. `calls` keeps the plan's calls, and
    how it makes results, by the kinds of their arrays.
    """
    source, packed = see(x, choice.read), isinstance(w, GpuFilter)
    if source.kind[3] is None:
        source = located(source)
    filters = w.seen if packed else see(w, "w")
    added = None if bias is None else see(bias, "bias")
    more = None if residual is None else see(residual, "residual")
    with driver.on(source.kind[3]) as device:
        if out is None:
            out = made_like(source, calls, "y", lambda: _output_maker(choice, source))
        y = see(out, "out")
        given = source, filters, added, more, y
        kinds = source.kind, filters.kind, added and added.kind, more and more.kind, y.kind
        key = device, packed, scaled, kinds
        call = calls.get(key)
        if call is None:
            call = _call(choice, given, w, device, scaled)
            keep_call(calls, key, call)
        copied = device_filter(choice, filters.operand) if call.packs else filters
        addresses = (
            source.address,
            copied.address,
            added and added.address,
            more and more.address,
            y.address,
        )
        stream, of_x = stream_of(source) or 0, source.stream
        if (
            filters.stream == of_x == y.stream
            and (added is None or added.stream == of_x)
            and (more is None or more.stream == of_x)
        ):
            call(addresses, stream)
        else:
            with among(given, stream):
                call(addresses, stream)
    return out


def _call(choice: AnyChoice, given: Given, w: Any, device: int, scaled: bool) -> Call:
    """A call for arrays like x, w, bias, residual and y, on GPU `device`."""
    check_arch(choice, device)
    first, second, added, more, last = (array and located(array) for array in given)
    assert first and second and last
    x, own, y = first.operand, second.operand, last.operand
    bias, residual = added and added.operand, more and more.operand
    packed = isinstance(w, GpuFilter)
    filters = packed_filter(choice, w, device) if packed else device_filter(choice, own)
    packs = filters.address != own.address
    return Call(choice, Arrays(x, filters, y, bias, residual, scaled), device, packs)


def check_arch(choice: AnyChoice | WgradChoice, device: int) -> None:
    """PlanError where GPU `device` is not what the choice was made for."""
    here = driver.device_arch(device)
    if here.cc != choice.arch.cc:
        raise PlanError(
            f"the plan is for {choice.arch.target}, but {here.device} is {here.target}; plan with "
            "device='cuda'"
        )


def made_like(x: Seen, calls: dict[object, Any], what: str, make: Callable[[], Any]) -> Any:
    """A new array of x's library by the function that `make` returns, kept in `calls`."""
    key = what, type(x.owner), x.kind
    maker = calls.get(key)
    if maker is None:
        maker = make()
        keep_call(calls, key, maker)
    return maker(x.owner)


def _output_maker(choice: AnyChoice, x: Seen) -> Callable[[Any], Any]:
    """A function that makes results of x's library, channels last in memory if x is."""
    problem, axes, shape = choice.problem, choice.axes, choice.y_shape
    strides = x.operand.expect(choice.read, choice.x_shape, problem.dtype).strides
    channels_last = choice.x_shape[axes[-1]] > 1 and strides[axes[-1]] == problem.itemsize
    if not channels_last or problem.channels_last:
        axes = tuple(range(len(shape)))
    stored = tuple(shape[axis] for axis in axes)
    return result_maker(x.owner, stored, inverse(axes), choice.y_dtype)


def run_on_copies(
    choice: AnyChoice,
    device: int | None,
    x: Any,
    w: Any,
    bias: Any,
    residual: Any,
    out: Any,
    scaled: bool,
) -> npt.NDArray[Any]:
    """y of numpy arrays, copied to `device` in channels-last order and back; see `run_in_place`."""
    shape = choice.y_shape
    stored = tuple(shape[axis] for axis in choice.axes)
    if out is not None:
        check_out(out, shape, choice.y_dtype)
    x = as_array(choice.read, x)
    with driver.on(device) as number:
        check_arch(choice, number)
        packed = isinstance(w, GpuFilter)
        filters = packed_filter(choice, w, number) if packed else host_filter(choice, w)
        itemsize = ITEMSIZES[choice.y_dtype]
        y = Buffer(int(np.prod(shape)) * itemsize)
        arrays = Arrays(
            x=sent_images(choice, choice.read, x, choice.x_shape),
            w=filters,
            y=y.operand(stored, choice.y_dtype, itemsize),
            scaled=scaled,
        )
        if bias is not None:
            arrays.bias = sent(host_array("bias", bias, *vector_form(choice, scaled)))
        if residual is not None:
            arrays.residual = sent_images(choice, "residual", residual, choice.y_shape)
        if 0 not in shape:
            bind(choice, arrays)(arrays.addresses, STREAM)
        found = fetched(y, stored, x.dtype if itemsize == x.itemsize else np.dtype(choice.y_dtype))
    result = np.ascontiguousarray(found.transpose(inverse(choice.axes)))
    if out is None:
        return result
    np.copyto(out, result, casting="equiv")
    return out  # type: ignore[no-any-return]


def sent_images(
    choice: AnyChoice | WgradChoice, name: str, array: Any, shape: tuple[int, ...]
) -> Operand:
    """A copy on the current device of an array like x or y, its axes in the view's order."""
    return sent(host_array(name, array, shape, choice.problem.dtype).transpose(choice.axes))


def inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that undo a permutation."""
    return tuple(axes.index(axis) for axis in range(len(axes)))
