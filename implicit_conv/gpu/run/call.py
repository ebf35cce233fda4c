"""Call: a choice bound to arrays of one kind, ready to launch.

Arrays that the chosen kernel cannot load go to a slower kernel, and a DEBUG line says so. Those
that cannot be viewed in the shapes of the choice go to its fallback.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from implicit_conv.errors import DriverError, PlanError, ShapeError
from implicit_conv.gpu.cuda.arch import GpuArch
from implicit_conv.gpu.cuda.arrays import Operand
from implicit_conv.gpu.plan.candidate import Choice, refusal
from implicit_conv.gpu.plan.direct import direct_elements, filter_bytes, with_epilogue_of
from implicit_conv.gpu.plan.phases import AnyChoice, Gradient
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.views import reshaped, stacked
from implicit_conv.gpu.run.launch import (
    Addresses,
    Arrays,
    Launcher,
    launcher_of,
    misfit,
    unaligned,
)
from implicit_conv.gpu.run.phases import GradientLauncher, sections
from implicit_conv.kernels.gpu.sizes import COPY_SIZES, PAIR_BYTES, VECTOR_BYTES
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem.options import ITEMSIZES, LAYOUTS
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import OPERATORS

READ = ("x", "w", "bias", "residual")
LOG = logging.getLogger("implicit_conv")


class Call:
    """A choice bound to the shapes, strides and alignment of arrays in the caller's layouts.

    `launcher` is None where the output has no elements. With `packs`, the filter that the caller
    gives has another order than the view's, so that a copy of it must be passed.
    """

    __slots__ = ("in_place", "launcher", "packs", "reach")

    def __init__(self, choice: AnyChoice, given: Arrays, device: int, packs: bool = False) -> None:
        shape = choice.y_shape
        check_places([*given.named()], device)
        bias, residual = given.bias, given.residual
        arrays = _in_view(choice, given)
        self.launcher = None if 0 in shape else bind(choice, arrays)
        self.reach = [
            array and array.reach for array in (given.x, given.w, bias, residual, given.y)
        ]
        # A gradient may write pixels twice: they must not be read between.
        again = residual is not None and _same_places(residual, given.y)
        self.in_place = again and choice.writes_once
        self.packs = packs

    def __call__(self, addresses: Addresses, stream: int) -> None:
        """Enqueue the kernel for arrays of the same kinds at these addresses on `stream`.

        Raises
        ------
        ShapeError
            y overlaps an array that some blocks read while others write y. A residual that is y
            itself is read where and before it is written.
        """
        launcher = self.launcher
        if launcher is None:
            return self._check_overlap(addresses)
        blob: Any = launcher.blobs.get(addresses)
        if blob is None:
            self._check_overlap(addresses)
            blob = launcher.moved(addresses)
        launcher.enqueue(blob, stream)

    def _check_overlap(self, addresses: Addresses) -> None:
        reach = self.reach
        if self.in_place and addresses[3] == addresses[4]:
            reach = [*reach[:3], None, reach[4]]
        check_overlap(READ, addresses, reach)


def check_places(given: Sequence[tuple[str, Operand]], device: int) -> None:
    """Check that arrays, of which the last is written, are on `device` and aligned.

    Raises
    ------
    PlanError, ShapeError
        One is not, or the last has several elements at one address.
    """
    for name, array in given:
        if array.device not in (None, device):
            raise PlanError(f"{name} is on cuda:{array.device}, but x is on cuda:{device}")
        if any(number % array.itemsize for number in (array.address, *array.strides)):
            raise ShapeError(f"{name} is not aligned to its elements of {array.itemsize} bytes")
    axes = [*zip(array.shape, array.strides, strict=True)]
    if all(n for n, _ in axes) and any(n > 1 and not step for n, step in axes):
        raise ShapeError("out has several elements at one address; pass another array")


def check_overlap(
    names: Sequence[str],
    addresses: Sequence[int | None],
    reaches: Sequence[tuple[int, int] | None],
) -> None:
    """ShapeError where the last array, which is written, overlaps one of those of `names`; a reach
    of None is that of none, or of one that may.
    """
    low, high = ((addresses[-1] or 0) + at for at in reaches[-1] or (0, 0))
    for name, address, reach in zip(names, addresses, reaches, strict=False):
        if address is None or reach is None or low == high or reach[0] == reach[1]:
            continue
        if address + reach[0] < high and low < address + reach[1]:
            raise ShapeError(f"out overlaps {name} in memory; pass another array")


def kernels_for(choice: AnyChoice, given: Arrays) -> list[Variant]:
    """The kernels of a call for such arrays, in the caller's layouts: one, or those of the phases
    of a gradient. The driver is not asked.
    """
    arrays = _in_view(choice, given)
    if not isinstance(choice, Gradient):
        return [adapted(*viewed(choice, arrays)).variant]
    parts = sections(choice, _of_gradient(choice, arrays))
    return [adapted(*viewed(part.choice, own)).variant for part, own, zeros in parts if not zeros]


def _in_view(choice: AnyChoice, given: Arrays) -> Arrays:
    """Arrays in the caller's layouts with their axes in the view's order, as the filter's are."""
    bias, residual = given.bias, given.residual
    return Arrays(
        x=_images(choice, given.x, choice.read, choice.x_shape),
        w=given.w,
        y=given.y.expect("out", choice.y_shape, choice.y_dtype).view(choice.axes),
        bias=bias and _vector(bias, choice, given.scaled),
        residual=residual and _images(choice, residual, "residual", choice.y_shape),
        scaled=given.scaled,
    )


def _same_places(first: Operand, second: Operand) -> bool:
    """Whether two arrays at one address have each element at the same place."""
    axes = zip(first.shape, first.strides, second.strides, strict=True)
    same = all(size == 1 or one == other for size, one, other in axes)
    return same and first.dtype == second.dtype


def bind(choice: AnyChoice, arrays: Arrays) -> Launcher | GradientLauncher:
    """The launcher of `choice` for arrays whose axes have the view's order, in any shapes."""
    if isinstance(choice, Gradient):
        return GradientLauncher(choice, _of_gradient(choice, arrays), _bind)
    return _bind(choice, arrays)


def _of_gradient(gradient: Gradient, arrays: Arrays) -> Arrays:
    """The same memory in the shapes of the view, which only adds axes of one element."""
    view = gradient.view
    residual = arrays.residual and _with_units(arrays.residual, view.input_shape)
    x, y = _with_units(arrays.x, view.output_shape), _with_units(arrays.y, view.input_shape)
    return replace(arrays, x=x, y=y, residual=residual)


def _with_units(array: Operand, shape: tuple[int, ...]) -> Operand:
    found = in_shape(array, shape)
    assert found is not None
    return found


def _bind(choice: Choice, arrays: Arrays) -> Launcher:
    choice, arrays = viewed(choice, arrays)
    made = adapted(choice, arrays)
    try:
        return launcher_of(made, arrays)
    except DriverError as error:  # of a map: not every driver need take permuted axes
        if not made.variant.permuted:
            raise
        LOG.debug("%s: plain im2col instead of permuted axes", error)
    plain = replace(made.variant, mode="im2col", permuted=False)
    return launcher_of(_instead(made, plain), arrays)


def viewed(choice: Choice, arrays: Arrays) -> tuple[Choice, Arrays]:
    """The choice, or its fallback, and the arrays in the shapes that it reads."""
    found, fallback = _shaped(arrays, choice.view), choice.fallback
    if fallback is None:
        if found is None:  # of images none needs a copy
            raise ShapeError(
                "x, w, out or residual has planes that do not follow each other in memory, as all "
                "rows of a volume must on a GPU; pass a contiguous array"
            )
        return choice, found
    reason = "a copy would be needed" if found is None else misfit(choice.variant, found)
    if found is not None and (not reason or _shaped(arrays, fallback.view) is None):
        return choice, found
    LOG.debug("%s: %s instead of %s", reason, fallback.variant.name, choice.variant.name)
    return viewed(fallback, arrays)


def _shaped(arrays: Arrays, view: Problem) -> Arrays | None:
    """The same memory in the shapes of `view`, with stacked planes; None where that would need a
    copy of an array.
    """
    x = in_shape(arrays.x, stacked(view.input_shape, view.layout))
    w = in_shape(arrays.w, stacked(view.weight_shape, view.weight_layout))
    y_shape = stacked(view.output_shape, view.layout)
    y, residual = in_shape(arrays.y, y_shape), arrays.residual
    residual = residual and in_shape(residual, y_shape)
    if x is None or w is None or y is None or (arrays.residual and residual is None):
        return None
    return replace(arrays, x=x, w=w, y=y, residual=residual)


def in_shape(array: Operand, shape: tuple[int, ...]) -> Operand | None:
    """The same memory in another shape; None where that would need a copy."""
    strides = reshaped(array.shape, array.strides, ITEMSIZES[array.dtype], shape)
    return None if strides is None else array._replace(shape=shape, strides=strides)


def adapted(choice: Choice, arrays: Arrays) -> Choice:
    """The choice, changed where these arrays need it: epilogue, stores, and last the loads."""
    v = choice.variant
    v = replace(
        v,
        biased=arrays.bias is not None,
        scaled=arrays.scaled,
        residual=arrays.residual is not None,
        linear=not (v.wide or v.strip or v.band) and _one_stride(choice, arrays),
        packed=v.packed and (v.strip is not None or _vectors(arrays)),
    )
    reason = misfit(v, arrays)
    if not reason:
        if v.staging_bytes != choice.variant.staging_bytes:  # shared memory is laid out anew
            return _instead(choice, v)
        return choice if v == choice.variant else replace(choice, variant=v)
    other = next(other for other in _slower(choice, v, arrays) if not misfit(other, arrays))
    LOG.debug("%s: %s instead of %s", reason, other.name, v.name)
    return _instead(choice, other)


def _instead(choice: Choice, v: Variant) -> Choice:
    """The choice of `v` for the same problem."""
    found = _choose(choice.view, choice.arch, v, choice.limits)
    return replace(found, problem=choice.problem)


def _one_stride(choice: Choice, arrays: Arrays) -> bool:
    """Whether all pixels of y and residual, in the order (n, p, q), have one stride."""
    g = choice.geometry
    rows = g.Z * g.P
    n_axis, p_axis, q_axis, _ = LAYOUTS[choice.view.layout.replace("D", "")]
    for array in (arrays.y, arrays.residual):
        if array is None:
            continue
        row = g.Q * array.strides[q_axis]
        if rows > 1 and array.strides[p_axis] != row:
            return False
        if g.N > 1 and array.strides[n_axis] != rows * row:
            return False
    return True


def _vectors(arrays: Arrays) -> bool:
    """Whether y can be moved 16 bytes at a time, residuals of as many elements, and two biases."""
    elements = VECTOR_BYTES // arrays.y.itemsize
    images = (array for array in (arrays.y, arrays.residual) if array is not None)
    if any(unaligned(array, array.itemsize, elements * array.itemsize) for array in images):
        return False
    size = PAIR_BYTES if arrays.scaled else arrays.x.itemsize
    return arrays.bias is None or arrays.bias.address % (2 * size) == 0


def _slower(choice: Choice, v: Variant, arrays: Arrays) -> Iterator[Variant]:
    """Kernels with the epilogue of `v` that load more arrays than `v` does; the last loads any."""
    if v.band:
        yield from (replace(v, producer=producer) for producer in ("vectors", "planes", "elements"))
        return
    if v.strip:
        channels_last = arrays.x.strides[-1] == v.itemsize
        other = with_epilogue_of(direct_elements(choice.view, channels_last), v)
        if filter_bytes(choice.geometry, other) <= choice.arch.smem_bytes:
            yield other
        yield _slower_gemm(v, "elements", packed=_vectors(arrays))
        return
    if v.folded and v.producer == "cp_async":
        yield replace(v, producer="elements", copy_bytes=VECTOR_BYTES)
    for size in COPY_SIZES:
        other = replace(_slower_gemm(v, "cp_async", v.packed), copy_bytes=size)
        if not refusal(choice.view, choice.arch, other):
            yield other
    yield _slower_gemm(v, "elements", v.packed)


def _slower_gemm(v: Variant, producer: str, packed: bool) -> Variant:
    """A kernel with 64 x 64 tiles that loads by `producer`, and the epilogue of `v`."""
    return Variant(
        mode="im2col",
        producer=producer,
        consumer="fma" if v.dtype == "float32" else "mma",
        dtype=v.dtype,
        tile_m=64,
        tile_n=64,
        row_bytes=v.row_bytes,
        plain=v.plain,
        biased=v.biased,
        scaled=v.scaled,
        residual=v.residual,
        linear=v.linear,
        activation=v.activation,
        packed=packed,
        padding_mode=v.padding_mode,
        volume=v.volume,
        rounded=v.rounded,
    )


@OPERATORS
def _choose(view: Problem, arch: GpuArch, v: Variant, limits: tuple[float, float]) -> Choice:
    return choose(view, arch, variant=v, activation=(float(v.activation), *limits))


def _images(choice: AnyChoice, array: Operand, name: str, shape: tuple[int, ...]) -> Operand:
    """An array like x or y, its axes in the view's order."""
    return array.expect(name, shape, choice.problem.dtype).view(choice.axes)


def _vector(array: Operand, choice: AnyChoice, scaled: bool) -> Operand:
    """The bias of each filter, or the pair (scale, bias)."""
    if not array.expect("bias", *vector_form(choice, scaled)).packed:
        raise ShapeError(f"bias must be contiguous on a GPU; its stride is {array.strides[0]}")
    return array


def vector_form(choice: AnyChoice, scaled: bool) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the biases, or of the pairs (scale, bias)."""
    size = choice.y_channels
    return ((size, 2), "float32") if scaled else ((size,), choice.problem.dtype)
