"""The CPU engine's host side: a plan and arrays in, launches out."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from implicit_conv import gemm_im2col
from implicit_conv.arrays import Array, numpy_dtype
from implicit_conv.packed import PackedFilter, copy_packed, filter_key
from implicit_conv.plan import Plan
from implicit_conv.problem import LAYOUTS, WEIGHT_LAYOUTS
from implicit_conv.schedule import Load, swap
from implicit_conv.strides import as_row, bits, launched, suited, swapped

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Operator
    from implicit_conv.kernels.cpu.runtime.prepared import Prepared
    from implicit_conv.kernels.cpu.tile.storage import Format

PREPARED_LAUNCHES = 64  # of a plan: one for each combination of strides it has met


def number_format(plan: Plan) -> Format:
    """What numbers are stored as, from x to y."""
    from implicit_conv.kernels.cpu.tile.storage import HARD_BFLOAT16, SOFT_FLOAT16, Format

    ways = {} if plan.arch.f16c else {"float16": SOFT_FLOAT16}
    if plan.arch.rounds_bfloat16:
        ways["bfloat16"] = HARD_BFLOAT16
    x, y = (ways.get(dtype, dtype) for dtype in (plan.problem.dtype, plan.y_dtype))
    sums = plan.problem.sum_dtype
    return Format(x, x if plan.pairs else sums, sums, y)


@functools.lru_cache(maxsize=512)
def operator(plan: Plan, recording: bool = False) -> Operator:
    """The compiled operator of `plan`; the first of its kind in a process compiles or loads it."""
    from implicit_conv.kernels.cpu.operators import (
        ChannelLanes,
        Depthwise,
        Fprop,
        LongRows,
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
        options["channels_last"] = plan.problem.layout == "NHWC"
        return LongRows(*machine, **options) if plan.long_rows else PixelLanes(*machine, **options)
    if plan.channel_lanes:
        return ChannelLanes(*machine, **options)
    if plan.planes:
        apart = plan.problem.C if plan.problem.layout == "NHWC" else 1
        return Planes(*machine, apart=apart, **options)
    if plan.joins_groups:
        return Depthwise(*machine, group=(plan.group_channels, plan.group_filters), **options)
    return Fprop(*machine, **options)


def pack(plan: Plan, w: Array, record: int = 0) -> PackedFilter:
    """`w`, in the problem's weight layout, as panels."""
    if plan.algorithm == "gemm_im2col":
        return copy_packed(gemm_im2col.pack(plan.problem, w).tobytes(), filter_key(plan))
    if plan.channel_lanes:
        return copy_packed(w.tobytes(), filter_key(plan))
    axes = WEIGHT_LAYOUTS[plan.problem.weight_layout]
    if plan.swapped or plan.pixel_lanes:
        return copy_packed(w.transpose(axes).tobytes(), filter_key(plan))
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
    x, y, w = bits(x), bits(y), launched(plan, x, w, y, residual)
    prepared = prepare(plan, x, w, y, bias is not None, residual, record)
    if prepared.swapped and not isinstance(w, PackedFilter):
        for n in range(x.shape[0]):
            a, b, to, added = swapped(plan, x, w, y, residual, n)
            prepared.run(a, b, to, bias, added)
    elif isinstance(w, PackedFilter):
        prepared.run_packed(x, w.address, y, bias, residual)
    else:
        prepared.run(x, w, y, bias, residual)


def ready(plan: Plan, x: Array, w: PackedFilter | Array, y: Array, biased: bool) -> Prepared | None:
    """The launches of plain 4-d arrays of these strides; None where `run` does more than start
    them.
    """
    x, y = bits(x), bits(y)
    w = w if isinstance(w, PackedFilter) else bits(w)
    converted = launched(plan, x, w, y, None) is not w
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
    from implicit_conv.kernels.cpu.runtime.prepared import Prepared

    plan = suited(plan, x, w, y, residual)
    if plan.swapped and not isinstance(w, PackedFilter):
        return _prepare_swapped(plan, swapped(plan, x, w, y, residual, 0), biased, record)
    if plan.collapsed:
        x, y = as_row(plan, x), as_row(plan, y)
        residual = None if residual is None else as_row(plan, residual)
    engine = operator(plan, record != 0)
    order = LAYOUTS["NHWC" if plan.channel_lanes else plan.problem.layout]
    axes = WEIGHT_LAYOUTS[plan.problem.weight_layout]
    plain = None if isinstance(w, PackedFilter) else w
    in_loop = plain if engine.packs_in_loop else None
    main = engine.prepare(
        x, y, order, plan.threads, residual=residual, biased=biased, activation=plan.activation,
        w=in_loop, weight_axes=axes, record=record,
    )  # fmt: skip
    packing = None
    if plain is not None and not engine.packs_in_loop:
        packing = engine.prepare_packing(plain, axes, plan.threads, record)
    return Prepared(engine, main, packing)


def _prepare_swapped(
    plan: Plan, arrays: tuple[Array, Array, Array, Array | None], biased: bool, record: int
) -> Prepared:
    """The launches for one image whose filters and pixels have traded places."""
    from implicit_conv.kernels.cpu.runtime.prepared import Prepared

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


def executed_loads(plan: Plan, x: Array, w: Array) -> list[Load]:
    """The loads that a debug build executes for (x, w), sorted; compare with `trace`."""
    from implicit_conv.kernels.cpu.runtime.record import Recording

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
