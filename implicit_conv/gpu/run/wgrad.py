"""The GPU engine of weight gradients: a choice for x and dy, whose result is dw, or dw and db.

A call launches two kernels on the stream of x (kernels/gpu/wgrad.py), perhaps after copies of x or
dy. The sums between them and the copies are in memory of the library of x, taken for each call, so
that calls of several threads and streams share none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np

from implicit_conv.arrays.arrays import check_out, numpy_dtype
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arch import GpuArch
from implicit_conv.gpu.cuda.arrays import (
    Operand,
    Seen,
    is_device_array,
    located,
    result_maker,
    see,
)
from implicit_conv.gpu.cuda.kernel import Kernel
from implicit_conv.gpu.cuda.streams import among, stream_of
from implicit_conv.gpu.cuda.transfer import STREAM, Buffer, fetched
from implicit_conv.gpu.plan.candidate import UNBOUNDED
from implicit_conv.gpu.plan.explain import explain_wgrad
from implicit_conv.gpu.plan.image_copies import Copy, copies
from implicit_conv.gpu.plan.views import images
from implicit_conv.gpu.plan.wgrad import (
    WgradCandidate,
    WgradChoice,
    choose_wgrad,
    columns,
    consider_all,
    wgrad_geometry,
)
from implicit_conv.gpu.run.call import check_overlap, check_places, in_shape
from implicit_conv.gpu.run.engine import GpuPlan, dtype_name_of, located_arch
from implicit_conv.gpu.run.launch import Addresses, DeviceArray, Launcher, content, unaligned
from implicit_conv.gpu.run.run import check_arch, inverse, made_like, sent_images
from implicit_conv.kernels.geometry import NO_GEOMETRY, Geometry
from implicit_conv.kernels.gpu.call import NO_CALL, reciprocal
from implicit_conv.kernels.gpu.call import Call as KernelCall
from implicit_conv.kernels.gpu.sizes import VECTOR_BYTES
from implicit_conv.kernels.gpu.wgrad_variant import WgradVariant
from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem.options import GPU_DTYPES, ITEMSIZES, PRECISIONS
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import PLANS, keep_call

LOG = logging.getLogger("implicit_conv")
MAPPED = (0, 4)  # places of x and dy among the addresses of a launch


def arguments(
    choice: WgradChoice,
    x: DeviceArray,
    dy: DeviceArray,
    dw: DeviceArray,
    sums: int = 0,
    db: int = 0,
) -> list[tuple[KernelCall, Geometry]]:
    """(Call, Geometry) of each launch, in the order of `WgradChoice.launches`.

    Arrays have the view's axes; `sums` and `db` are the addresses of the workspace and of db.
    """
    g, best = choice.geometry, choice.best
    made, read = [], [x, dy]
    for place, copy, at in best.copies_in_order:
        made.append(_copy_arguments(copy, read[place], sums + at))
        read[place] = DeviceArray(sums + at, copy.strides)
    _, tiles_m, tiles_n = choice.tiles
    window = best.copies.x.shape[3] if best.copies.x and best.copies.x.window else 0
    tap = 4 * columns(best.view, best.variant) // (g.R * g.S)
    fields = {"x": read[0].address, "w": dw.address, "bias": db, "residual": sums}
    fields |= {"y": read[1].address}
    for letters, array in (
        ("x_n x_h x_w x_c", read[0]),
        ("y_n y_p y_q y_k", read[1]),
        ("w_k w_r w_s w_c", dw),
    ):
        fields |= dict(zip(letters.split(), array.strides, strict=True))
    fields |= {
        "residual_n": 4 * best.sums,
        "residual_p": tap * g.S,
        "residual_q": 4 * window or tap,
        "residual_k": tap * g.S * g.R,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tiles": math.prod(choice.tiles),
        "rows": g.N * g.P * g.Q,
        "k_blocks": best.k_blocks,
        "splits": best.splits,
        "by_group": reciprocal(tiles_m * tiles_n),
        "by_panel": reciprocal(tiles_n),
        "by_image": reciprocal(g.P * g.Q),
        "by_row": reciprocal(g.Q),
        "a_stages": best.stages,
        "barriers_at": best.stages * choice.variant.stage_bytes,
    }
    call = NO_CALL._replace(**fields)
    made += [(call, g)] if choice.blocks else []
    return [*made, (call, wgrad_geometry(choice.view, choice.variant))]


def _copy_arguments(copy: Copy, array: DeviceArray, to: int) -> tuple[KernelCall, Geometry]:
    """Those of the launch that copies an array (kernels/gpu/image_copy.py)."""
    n, h, width, channels = copy.shape
    v, itemsize = copy.kernel, copy.itemsize
    chunks, q = int(ceil_div(channels, v.unit)), width // v.pixels
    together = chunks if array.strides[3] == itemsize else min(2, chunks)
    groups = int(ceil_div(chunks, together))
    steps = dict(zip("x_n x_h x_w x_c".split(), array.strides, strict=True))
    call = NO_CALL._replace(
        x=array.address,
        y=to,
        **steps,
        tiles_m=chunks,
        tiles_n=together,
        row_tiles=groups,
        rows=together * q * groups * h * n,
        by_group=reciprocal(together),
        by_row=reciprocal(q),
        by_panel=reciprocal(groups),
        by_image=reciprocal(h),
    )
    sizes = {"H": h, "W": copy.columns, "C": copy.channels, "Q": q, "pad_w": copy.pad}
    return call, NO_GEOMETRY._replace(**sizes)


class WgradCall:
    """A choice bound to the shapes, strides and alignment of arrays in the caller's layouts."""

    def __init__(
        self, choice: WgradChoice, x: Operand, dy: Operand, dw: Operand, db: Operand | None = None
    ) -> None:
        problem, device = choice.problem, driver.current_device()
        shapes = problem.input_shape, problem.output_shape, problem.weight_shape
        dtypes = problem.dtype, problem.dtype, choice.out_dtype
        orders = choice.axes, choice.axes, choice.filter_axes
        view = choice.view
        own = view.input_shape, view.output_shape, view.weight_shape
        viewed, given = list[Operand](), (("x", x), ("dy", dy), ("out", dw))
        check_places(given, device)
        each = zip(given, shapes, dtypes, orders, own, strict=True)
        for (name, array), shape, dtype, axes, other in each:
            own_view = in_shape(array.expect(name, shape, dtype).view(axes), other)
            assert own_view is not None  # other axes have one element
            viewed.append(own_view)
        if db is not None:
            assert db.expect("db", (problem.K,), choice.out_dtype).packed
        self.reach = [array.reach for array in (x, dy, dw)]
        choice = adapted(choice, viewed[0], viewed[1])
        self.workspace_bytes = choice.workspace_bytes
        self.copies = [(place, at) for place, _, at in choice.best.copies_in_order]
        self.launchers = list[Launcher]()
        if not choice.launches:
            return
        places = [DeviceArray(array.address, array.strides) for array in viewed]
        # A tensor map describes a copy, which has no address yet.
        sums = x.address // VECTOR_BYTES * VECTOR_BYTES
        made = arguments(choice, places[0], places[1], places[2], sums)
        cc = choice.arch.cc
        for (v, blocks, shared), (call, geometry) in zip(choice.launches, made, strict=True):
            mapped = isinstance(v, WgradVariant) and v.producer == "tma"
            blob = content(choice.best.view, v, call, geometry, UNBOUNDED, cc)
            kernel = Kernel(load.loaded(v, cc, device), blocks, v.threads, shared)
            self.launchers.append(Launcher(kernel, blob, MAPPED if mapped else ()))

    def __call__(
        self, x: int, dy: int, dw: int, sums: int, stream: int, db: int | None = None
    ) -> None:
        """Enqueue the kernels for arrays at these addresses on `stream` of the current device.

        Raises
        ------
        ShapeError
            dw overlaps x or dy.
        """
        if not self.launchers:
            return
        *others, last = self.launchers
        addresses: Addresses = x, dw, db, sums, dy
        if addresses not in last.blobs:
            check_overlap(("x", "dy"), (x, dy, dw), self.reach)
        read = [x, dy]
        for launcher, (place, at) in zip(others, self.copies, strict=False):
            launcher((read[place], None, None, None, sums + at), stream)
            read[place] = sums + at
        for launcher in others[len(self.copies) :]:
            launcher((read[0], dw, None, sums, read[1]), stream)
        last(addresses, stream)


def with_bias(choice: WgradChoice) -> WgradChoice:
    """The choice for the gradients of a filter and of a bias.

    Raises
    ------
    PlanError
        No kernel can compute both.
    """
    c = choice
    return choose_wgrad(c.problem, c.arch, c.view, c.out_dtype, c.limit, biased=True)


def adapted(choice: WgradChoice, x: Operand, dy: Operand) -> WgradChoice:
    """The choice, with the fastest kernel that can load these arrays or copies of them."""
    candidates, misfits = choice.candidates, _misfits(choice.best, x, dy)
    if misfits:
        candidates += consider_all(
            copies(choice.view, misfits), choice.arch, choice.limit, choice.variant.biased
        )
    able = [c for c in candidates if c.estimate]
    for best in sorted(able, key=attrgetter("cycles")):
        misfits = _misfits(best, x, dy)
        if not misfits:
            return replace(choice, best=best)
        for name, reason in misfits.items():
            LOG.debug("%s %s: not %s", name, reason, best.name)
    name, reason = misfits.popitem()
    raise PlanError(f"{name} {reason}; no GPU kernel can load it within max_workspace")


def _misfits(candidate: WgradCandidate, x: Operand, dy: Operand) -> dict[str, str]:
    """The reasons why a kernel cannot load these arrays, by their names; it loads any copy."""
    v, copied, found = candidate.variant, candidate.copies, dict[str, str]()
    for name, array, copy in (("x", x, copied.x), ("dy", dy, copied.dy)):
        if copy or v.producer == "elements":
            continue
        reason = unaligned(array, v.itemsize, v.copy_bytes)
        if v.producer == "tma" and not array.packed:
            reason = reason or "is not contiguous, as its tensor map would need it to be"
        if reason:
            found[name] = reason
    return found


@dataclass(frozen=True)
class GpuWgradEngine(GpuPlan[WgradChoice]):
    """A weight gradient that can be run; `problem` is the convolution."""

    @property
    def packed_bytes(self) -> int:
        """Nothing is packed."""
        return 0

    @property
    def peak_bytes(self) -> int:
        """Device memory of dw and the workspace."""
        size = math.prod(self.problem.weight_shape) * ITEMSIZES[self.choice.out_dtype]
        return size + self.workspace_bytes

    def explain(self) -> str:
        """The choice and its reasons, in words."""
        return explain_wgrad(self.choice)

    def trace(self) -> NoReturn:
        """Refuse to list loads.

        Raises
        ------
        PlanError
            Always.
        """
        raise PlanError("loads of weight gradients are listed on CPUs only; plan with device='cpu'")

    def pack(self, w: object) -> NoReturn:
        """A weight gradient reads no filter.

        Raises
        ------
        PlanError
            Always.
        """
        raise PlanError("a weight gradient reads no filter; call the plan with x and dy")

    def run(
        self,
        x: Any,
        dy: Any,
        bias: Any = None,
        residual: Any = None,
        out: Any = None,
        scale: Any = None,
        db: Any = None,
    ) -> Any:
        """The gradient of the filter; it has no bias, residual or scale.

        Device arrays are read and written in place, numpy arrays through copies. With device
        arrays, `db` is one of shape (K,) and the dtype of dw, contiguous: the sums of dy over all
        pixels are written to it, which are the gradient of a bias.

        Raises
        ------
        ShapeError, DTypeError
            An array's shape or dtype differs from the plan's.
        PlanError, DriverError
            No GPU or driver can run the plan, or there is a bias, residual or scale.
        """
        if bias is not None or residual is not None or scale is not None:
            raise PlanError("weight gradients have no bias, scale or residual; leave them out")
        if type(x) is Seen or is_device_array(x):
            return self._in_place(see(x), dy, out, db)
        return self._on_copies(x, dy, out)

    def _in_place(self, x: Seen, dy: Any, out: Any, db: Any) -> Any:
        """dw of device arrays, on the GPU that holds x, among the work of their streams."""
        x, grad = located(x), see(dy, "dy")
        with driver.on(x.kind[3]) as device:
            if out is None:
                shape, dtype = self.problem.weight_shape, self.choice.out_dtype
                out = made_like(x, self.calls, "dw", lambda: _maker(x.owner, shape, dtype))
            dw, bias = see(out, "out"), None if db is None else see(db, "db")
            key = device, x.kind, grad.kind, dw.kind, bias and bias.kind
            call = self.calls.get(key)
            if call is None:
                check_arch(self.choice, device)
                arrays = [located(each).operand for each in (x, grad, dw, bias) if each]
                call = WgradCall(with_bias(self.choice) if bias else self.choice, *arrays)
                keep_call(self.calls, key, call)
            size = call.workspace_bytes // 4
            stream = stream_of(x) or 0
            sums = made_like(x, self.calls, f"{size} sums", lambda: _sums_maker(x.owner, size))
            with among((x, grad, dw, bias), stream):
                to = bias and bias.address
                call(x.address, grad.address, dw.address, _address(sums), stream, to)
        return out

    def _on_copies(self, x: Any, dy: Any, out: Any) -> Any:
        """dw of numpy arrays, copied to the GPU in channels-last order and back."""
        problem, choice = self.problem, self.choice
        shape, dtype = problem.weight_shape, numpy_dtype(choice.out_dtype)
        if out is not None:
            check_out(out, shape, choice.out_dtype)
        with driver.on(self.device) as number:
            check_arch(choice, number)
            given = (("x", x, problem.input_shape), ("dy", dy, problem.output_shape))
            order = inverse(choice.axes)
            arrays = [sent_images(choice, *each).view(order) for each in given]
            result = Buffer(math.prod(shape) * dtype.itemsize)
            dw = result.operand(shape, choice.out_dtype, dtype.itemsize)
            call = WgradCall(choice, arrays[0], arrays[1], dw)
            sums = Buffer(call.workspace_bytes)
            first, second = (array.address for array in arrays)
            call(first, second, dw.address, int(sums.pointer), STREAM)
            found = fetched(result, shape, dtype)
        if out is None:
            return found
        np.copyto(out, found, casting="equiv")
        return out


def _maker(owner: Any, shape: tuple[int, ...], dtype: str) -> Callable[[Any], Any]:
    return result_maker(owner, shape, tuple(range(len(shape))), dtype)


def _sums_maker(owner: Any, size: int) -> Callable[[Any], Any]:
    """A function that makes the workspace: an array of x's library, or memory of the driver.

    The latter is freed when the call has been made: the driver waits for the kernels.
    """
    try:
        return _maker(owner, (size,), "float32")
    except DTypeError:
        return lambda x: Buffer(4 * size)


def _address(sums: Any) -> int:
    return int(sums.pointer) if isinstance(sums, Buffer) else see(sums).address


def plan(
    rank: int,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: object,
    convolution: dict[str, Any],
    weight_shape: tuple[int, ...],
    *,
    out_dtype: object,
    precision: str,
    limit: int | None,
    device: str | GpuArch,
) -> GpuWgradEngine:
    """The plan of a weight gradient on a GPU of this machine or on any supported target.

    `shapes` are those of x and dy, `convolution` the options of `Problem.parse`, and `limit` the
    most bytes of workspace.

    Raises
    ------
    ShapeError, DTypeError, PlanError
        Sizes that do not go together; a dtype, device or option that is not supported.
    """
    if precision not in PRECISIONS:
        raise PlanError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    name = dtype_name_of(dtype)
    out = name if out_dtype is None else dtype_name_of(out_dtype)
    if out not in (name, "float32"):
        raise DTypeError(
            f"out_dtype {out}: on a GPU dw is float32, or has the dtype of x, {name}; convert dw"
        )
    key = shapes[0], weight_shape, name, rank, tuple(convolution.items())
    arch, number = located_arch(device)
    engine = _plan(*key, out, limit, arch, number)
    if shapes[1] != engine.problem.output_shape:
        raise ShapeError(
            f"dy has shape {shapes[1]}, but the convolution of x {shapes[0]} with w {weight_shape} "
            f"has an output of shape {engine.problem.output_shape}; check weight_shape, stride, "
            "padding, dilation and layout"
        )
    return engine


@PLANS
def _plan(
    x_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    dtype: str,
    rank: int,
    convolution: tuple[tuple[str, Any], ...],
    out_dtype: str,
    limit: int | None,
    arch: GpuArch,
    device: int | None,
) -> GpuWgradEngine:
    problem = Problem.parse(
        x_shape, weight_shape, dtype, rank=rank, dtypes=GPU_DTYPES, **dict(convolution)
    )
    choice = choose_wgrad(problem, arch, images(problem), out_dtype, limit)
    LOG.debug("%s: %s on %s", problem, choice.variant.name, arch.target)
    return GpuWgradEngine(choice, device)
