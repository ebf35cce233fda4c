"""The CPU engine's host side: a plan and arrays in, launches out."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from implicit_conv import gemm_im2col
from implicit_conv.algorithms import whole_window
from implicit_conv.arrays import Array, numpy_dtype
from implicit_conv.kernels import schedule
from implicit_conv.plan import Plan
from implicit_conv.plan import plan as make_plan
from implicit_conv.problem import LAYOUTS, WEIGHT_LAYOUTS
from implicit_conv.schedule import Load, swap

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Operator
    from implicit_conv.kernels.cpu.prepared import Prepared
    from implicit_conv.kernels.cpu.storage import Format

OWN_ORDER = {"depthwise": 1, "gemm_im2col": 2}  # of packed filters
PREPARED_LAUNCHES = 64  # of a plan: one for each combination of strides it has met


@dataclass(frozen=True, eq=False)
class PackedFilter:
    """A filter in the engine's own order, for plans that cut filters alike.

    Images of another size may get a plan with another algorithm, which takes another order: pack
    with each plan.

    Attributes
    ----------
    panels : uint8 array, 64-byte aligned
    key : tuple
        What must agree between the plan that packed it and the one that runs it.
    address : int
        Where the panels lie.
    """

    panels: Array
    key: tuple[object, ...]
    address: int

    def __reduce__(self) -> tuple[object, ...]:
        """A copy, pickled or deep, is aligned anew: kernels rely on it."""
        return _copy_packed, (self.panels.tobytes(), self.key)


def _copy_packed(content: bytes, key: tuple[object, ...]) -> PackedFilter:
    from implicit_conv.kernels.cpu.pool import aligned_bytes

    panels = aligned_bytes(len(content))
    panels[:] = np.frombuffer(content, np.uint8)
    return PackedFilter(panels, key, panels.ctypes.data)


def filter_key(plan: Plan) -> tuple[object, ...]:
    """What the order of a packed filter depends on."""
    g, problem = plan.geometry, plan.problem
    phases = g.phases_w if g.step_w > 1 else 1  # where rows lie as they are, taps keep their order
    return (
        plan.winograd and schedule.box_products(g, plan.winograd), OWN_ORDER.get(plan.algorithm, 0),
        plan.swapped, plan.pixel_lanes, plan.channel_lanes and problem.weight_layout,
        problem.K, problem.C, problem.kernel, problem.dtype,  # a geometry may count others
        plan.pairs, plan.arch.vector_bits, g.K, g.groups, g.tile_c, g.tile_k, phases,
    )  # fmt: skip


def number_format(plan: Plan) -> Format:
    """What numbers are stored as, from x to y."""
    from implicit_conv.kernels.cpu.storage import SOFT_FLOAT16, Format

    soft = {} if plan.arch.f16c else {"float16": SOFT_FLOAT16}
    x, y = (soft.get(dtype, dtype) for dtype in (plan.problem.dtype, plan.y_dtype))
    sums = plan.problem.sum_dtype
    return Format(x, x if plan.pairs else sums, sums, y)


def bits(array: Array) -> Array:
    """`array` as compiled code takes it: 16-bit floats as integers; a view."""
    return array.view(np.uint16) if array.itemsize == 2 else array


@functools.lru_cache(maxsize=512)
def operator(plan: Plan, recording: bool = False) -> Operator:
    """The compiled operator of `plan`; the first of its kind in a process compiles or loads it."""
    from implicit_conv.kernels.cpu.operators import (
        ChannelLanes,
        Depthwise,
        Fprop,
        PixelLanes,
        Planes,
        Winograd,
    )

    g = plan.geometry
    machine = g, number_format(plan), plan.lanes, plan.arch.fma
    options: dict[str, Any] = {
        "channels": plan.problem.C, "chunk": plan.chunk, "recording": recording,
        "flushes": plan.subnormals == "flush", "amx": plan.amx,
    }  # fmt: skip
    if plan.winograd:
        return Winograd(plan.winograd, *machine, end=plan.problem.output, **options)
    if plan.swapped:
        options["swapped"] = True
    options |= {"end": (g.P, g.Q), "in_place": plan.in_place}
    if plan.pixel_lanes:
        return PixelLanes(*machine, channels_last=plan.problem.layout == "NHWC", **options)
    if plan.channel_lanes:
        return ChannelLanes(*machine, **options)
    if plan.planes:
        return Planes(*machine, **options)
    if plan.algorithm == "depthwise":
        return Depthwise(*machine, **options)
    return Fprop(*machine, **options)


def pack(plan: Plan, w: Array, record: int = 0) -> PackedFilter:
    """`w`, in the problem's weight layout, as panels."""
    if plan.algorithm == "gemm_im2col":
        return _copy_packed(gemm_im2col.pack(plan.problem, w).tobytes(), filter_key(plan))
    if plan.channel_lanes:
        return _copy_packed(w.tobytes(), filter_key(plan))
    axes = WEIGHT_LAYOUTS[plan.problem.weight_layout]
    if plan.swapped or plan.pixel_lanes:
        return _copy_packed(w.transpose(axes).tobytes(), filter_key(plan))
    panels = operator(plan, record != 0).pack(bits(w), axes, plan.threads, record)
    return PackedFilter(panels, filter_key(plan), panels.ctypes.data)


def run(
    plan: Plan,
    x: Array,
    w: PackedFilter | Array,
    y: Array,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    record: int = 0,
) -> None:
    """y = activation(conv(x, w) + bias + residual); all arrays 4-d in the problem's layout."""
    if plan.algorithm == "gemm_im2col":
        filters = w.panels if isinstance(w, PackedFilter) else gemm_im2col.pack(plan.problem, w)
        gemm_im2col.run(plan, x, filters, y, bias, residual)
        return
    x, y, w = bits(x), bits(y), _launched(plan, x, w, y, residual)
    prepared = prepare(plan, x, w, y, bias is not None, residual, record)
    if prepared.swapped and not isinstance(w, PackedFilter):
        for n in range(x.shape[0]):
            a, b, to, added = _swapped(plan, x, w, y, residual, n)
            prepared.run(a, b, to, bias, added)
    elif isinstance(w, PackedFilter):
        prepared.run_packed(x, w.address, y, bias, residual)
    else:
        prepared.run(x, w, y, bias, residual)


def ready(plan: Plan, x: Array, w: PackedFilter | Array, y: Array, biased: bool) -> Prepared | None:
    """The launches of plain 4-d arrays of these strides; None where `run` does more than start
    them.
    """
    converted = bits(x) is not x or bits(y) is not y or _launched(plan, x, w, y, None) is not w
    if plan.algorithm == "gemm_im2col" or plan.swapped or y.size == 0 or converted:
        return None
    return prepare(plan, x, w, y, biased, None, 0)


def prepare(
    plan: Plan,
    x: Array,
    w: PackedFilter | Array,
    y: Array,
    biased: bool,
    residual: Array | None,
    record: int,
) -> Prepared:
    """The launches for arrays of these strides, which `plan` keeps."""
    key = (
        x.strides, y.strides, residual is not None and residual.strides, biased,
        isinstance(w, PackedFilter) or w.strides, record,
    )  # fmt: skip
    prepared = plan.prepared.get(key)
    if prepared is None:
        prepared = _prepare(plan, x, w, y, biased, residual, record)
        if len(plan.prepared) >= PREPARED_LAUNCHES:
            plan.prepared.clear()
        plan.prepared[key] = prepared
    return prepared


def _prepare(
    plan: Plan,
    x: Array,
    w: PackedFilter | Array,
    y: Array,
    biased: bool,
    residual: Array | None,
    record: int,
) -> Prepared:
    """The launches for arrays of these strides."""
    from implicit_conv.kernels.cpu.prepared import Prepared

    plan = suited(plan, x, w, y, residual)
    if plan.swapped and not isinstance(w, PackedFilter):
        return _prepare_swapped(plan, _swapped(plan, x, w, y, residual, 0), biased, record)
    if plan.channel_lanes:
        return _prepare_channel_lanes(plan, x, w, y, biased, residual, record)
    if plan.collapsed:
        x, y = _as_row(plan, x), _as_row(plan, y)
        residual = None if residual is None else _as_row(plan, residual)
    engine = operator(plan, record != 0)
    axes = WEIGHT_LAYOUTS[plan.problem.weight_layout]
    plain = None if isinstance(w, PackedFilter) else w
    in_loop = plain if engine.packs_in_loop else None
    main = engine.prepare(
        x, y, LAYOUTS[plan.problem.layout], plan.threads, residual=residual,
        biased=biased, activation=plan.activation, w=in_loop, weight_axes=axes,
        record=record,
    )  # fmt: skip
    packing = None
    if plain is not None and not engine.packs_in_loop:
        packing = engine.prepare_packing(plain, axes, plan.threads, record)
    return Prepared(engine, main, packing)


def _prepare_channel_lanes(
    plan: Plan,
    x: Array,
    w: PackedFilter | Array,
    y: Array,
    biased: bool,
    residual: Array | None,
    record: int,
) -> Prepared:
    """The launch for arrays that are rows of pixels whose elements lie together."""
    from implicit_conv.kernels.cpu.prepared import Prepared

    engine = operator(plan, record != 0)
    row = 1, 1, plan.geometry.Q, -1
    x, y = x.reshape(row), y.reshape(row)
    residual = None if residual is None else residual.reshape(row)
    main = engine.prepare(
        x, y, LAYOUTS["NHWC"], plan.threads, residual=residual, biased=biased,
        activation=plan.activation, w=None if isinstance(w, PackedFilter) else w,
        weight_axes=WEIGHT_LAYOUTS[plan.problem.weight_layout], record=record,
    )  # fmt: skip
    return Prepared(engine, main, None)


def _prepare_swapped(
    plan: Plan, arrays: tuple[Array, Array, Array, Array | None], biased: bool, record: int
) -> Prepared:
    """The launches for one image whose filters and pixels have traded places."""
    from implicit_conv.kernels.cpu.prepared import Prepared

    engine, order = operator(plan, record != 0), (0, 1, 2, 3)
    a, b, y, residual = arrays
    main = engine.prepare(
        a, y, order, plan.threads, residual=residual, biased=biased,
        activation=plan.activation, w=b if engine.packs_in_loop else None, weight_axes=order,
        record=record,
    )  # fmt: skip
    packing = None
    if not engine.packs_in_loop:
        packing = engine.prepare_packing(b, order, plan.threads, record)
    return Prepared(engine, main, packing, swapped=True)


def _swapped(
    plan: Plan, x: Array, w: Array, y: Array, residual: Array | None, n: int
) -> tuple[Array, Array, Array, Array | None]:
    """Views for image n: w as channels-last pixels, x as filters of one tap, y and residual."""
    filters = w.transpose(WEIGHT_LAYOUTS[plan.problem.weight_layout])[None, None, :, :, 0, 0]
    pixels = x[n].reshape(x.shape[1], -1).T[:, :, None, None]
    out, added = (
        None if array is None else array[n].reshape(1, 1, array.shape[1], -1)
        for array in (y, residual)
    )
    assert out is not None
    return filters, pixels, out, added


def _launched(
    plan: Plan, x: Array, w: PackedFilter | Array, y: Array, residual: Array | None
) -> PackedFilter | Array:
    """The filter as a launch of `plan`, or of the like of it for these arrays, takes it."""
    if isinstance(w, PackedFilter):
        plain = plan.swapped
        if plan.pixel_lanes or plan.channel_lanes:
            plain = suited(plan, x, w, y, residual) is not plan
        return bits(_unpacked(plan, w)) if plain else w
    if plan.channel_lanes:
        return bits(w if w[:1].flags.c_contiguous else np.ascontiguousarray(w))
    axes = WEIGHT_LAYOUTS[plan.problem.weight_layout]
    if plan.pixel_lanes and not w.transpose(axes)[:1].flags.c_contiguous:
        return np.ascontiguousarray(w.transpose(axes)).transpose(np.argsort(axes))
    return bits(w)


def _unpacked(plan: Plan, w: PackedFilter) -> Array:
    """The plain filter, in the problem's layout, that was copied as it is."""
    filters: Array = w.panels.view(numpy_dtype(plan.problem.dtype))
    if plan.channel_lanes:
        return filters.reshape(plan.problem.weight_shape)
    axes = WEIGHT_LAYOUTS[plan.problem.weight_layout]
    filters = filters.reshape([plan.problem.weight_shape[axis] for axis in axes])
    return filters.transpose(np.argsort(axes))


def suited(plan: Plan, x: Array, w: PackedFilter | Array, y: Array, residual: Array | None) -> Plan:
    """`plan`, or the like of it for arrays whose strides it cannot take."""
    rows = all(_is_row(plan, array) for array in (x, y, residual) if array is not None)
    if plan.pixel_lanes or (plan.channel_lanes and whole_window(plan.problem)):
        together = not plan.in_place or (rows and bool(x[:1].flags.c_contiguous))
        return plan if together else _variant(plan, together, together)
    collapsed = plan.collapsed and rows
    a, c = x, LAYOUTS[plan.problem.layout][3]
    if plan.swapped and not isinstance(w, PackedFilter):
        a, c = w, WEIGHT_LAYOUTS[plan.problem.weight_layout][1]
    in_place = plan.in_place and a.strides[c] == a.itemsize
    if (collapsed, in_place) == (plan.collapsed, plan.in_place):
        return plan
    return _variant(plan, collapsed, in_place)


@functools.lru_cache(maxsize=256)
def _variant(plan: Plan, collapse: bool, in_place: bool) -> Plan:
    block = plan.geometry.tile_c if plan.algorithm == "depthwise" else 0
    other = make_plan(
        plan.problem, plan.arch, plan.precision, plan.algorithm, collapse, in_place, block
    )
    return replace(
        other, activation=plan.activation, subnormals=plan.subnormals, out_dtype=plan.out_dtype
    )


def _is_row(plan: Plan, array: Array) -> bool:
    """Whether the pixels that the plan takes as one row lie a single stride apart."""
    n, h, w, _ = LAYOUTS[plan.problem.layout]
    axes = (n, h, w) if plan.problem.layout == "NHWC" else (h, w)
    steps = [(array.shape[axis], array.strides[axis]) for axis in axes if array.shape[axis] > 1]
    return all(outer == inner * size for (_, outer), (size, inner) in pairwise(steps))


def _as_row(plan: Plan, array: Array) -> Array:
    """The pixels of an image (NCHW) or of all images (NHWC) as one row, or rows of a vector each: a
    view.
    """
    n, _, _, c = (array.shape[axis] for axis in LAYOUTS[plan.problem.layout])
    rows = plan.geometry.P, plan.geometry.Q
    return array.reshape((1, *rows, c) if plan.problem.layout == "NHWC" else (n, c, *rows))


def executed_loads(plan: Plan, x: Array, w: Array) -> list[Load]:
    """The loads that a debug build executes for (x, w), sorted; compare with `trace`."""
    from implicit_conv.kernels.cpu.record import Recording

    recording = Recording(capacity=2 * len(plan.trace()) + 64)
    y = np.empty(plan.problem.output_shape, numpy_dtype(plan.y_dtype))
    run(plan, x, w, y, record=recording.address)
    mode = "w" if plan.geometry.step_w == plan.geometry.stride_w else "tile"
    loads = (
        Load("w", "tile", tuple(where), None, 0, 0, buffer, rows, size)
        if is_filter
        else Load("x", mode, tuple(where), None, halo, offset, buffer, rows, size)
        for is_filter, *where, offset, halo, buffer, rows, size in recording.loads()
    )
    executed = [plan.in_channels(load) for load in loads]
    if plan.swapped:  # one image after another
        of_image = len(executed) // plan.problem.N
        executed = [swap(load, at // of_image) for at, load in enumerate(executed)]
    return sorted(executed)
