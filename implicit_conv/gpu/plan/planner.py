"""The GPU planner: views -> variants -> candidates -> best -> choice. It needs no GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

from implicit_conv.errors import PlanError
from implicit_conv.gpu.cuda.arch import GpuArch
from implicit_conv.gpu.plan.candidate import UNBOUNDED, Candidate, Choice, consider, padding_mode
from implicit_conv.gpu.plan.direct import direct_variants
from implicit_conv.gpu.plan.rows import rows_variants
from implicit_conv.gpu.plan.views import other_views
from implicit_conv.kernels.geometry import CLAMP
from implicit_conv.kernels.gpu.sizes import COPY_SIZES, VECTOR_BYTES
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.problem import Problem

LOADS = (("w", "tma"), ("im2col", "tma"), ("im2col", "cp_async"), ("im2col", "elements"))
MMA_TILES = (  # tile_m, tile_n, warps along gemm_m, warps along gemm_n
    (128, 128, 2, 4),
    (128, 64, 4, 2),
    (64, 64, 2, 2),
    (64, 32, 4, 1),
)
WGMMA_COLUMNS = (256, 128, 64)  # tile_n of tiles with 128 rows
SMALL_TILES = ((128, 128, 2), (128, 64, 2), (64, 128, 2), (64, 128, 3))  # tile_m, tile_n, resident


def choose(
    problem: Problem,
    arch: GpuArch,
    *,
    view: Problem | None = None,
    activation: tuple[float, float, float] | None = None,
    strict: bool = False,
    rounded: bool = True,
    variant: Variant | None = None,
) -> Choice:
    """The best kernel for `problem` on `arch`; with `variant`, that kernel alone, on `view` itself.

    Parameters
    ----------
    view : Problem, optional
        The same problem of arrays in the order in which they are stored, with a batch axis and two
        or three spatial axes; by default `problem` itself.
    activation : (kind, low, high), optional
        As of `problem.options.parse_activation`. None also says that there is no residual.
    strict : bool
        Keep one order of sums for every batch size.
    rounded : bool
        Whether y has the dtype of x; otherwise it is float32.

    Raises
    ------
    PlanError
        No kernel can compute the problem; the message gives the reason of each.
    """
    view = view or problem
    kind = CLAMP if activation is None else int(activation[0])
    # Under "strict" there is no view whose sums have another order: rows of windows, not taps.
    others = [] if strict or variant is not None else other_views(view)

    def considered(view: Problem) -> Iterator[Candidate]:
        alone = None if variant is None else iter([replace(variant, activation=kind)])
        for v in alone or variants(view, kind, activation is None, rounded):
            yield consider(view, arch, v, strict)

    candidates = tuple(each for shapes in (view, *others) for each in considered(shapes))
    # Of equal estimates that of images counts, whose kernels have run on more GPUs.
    best = min(candidates, key=attrgetter("cycles", "variant.volume"))
    plain = min((c for c in candidates if c.view is view), key=attrgetter("cycles"))
    if plain.estimate is None:
        reasons = "\n".join(f"  {c.variant.name}: {c.reason}" for c in candidates)
        raise PlanError(f"no GPU kernel can compute {view} on {arch.target}:\n{reasons}")
    common: dict[str, Any] = {
        "problem": problem,
        "arch": arch,
        "candidates": candidates,
        "limits": UNBOUNDED if activation is None else activation[1:],
    }
    fallback = None
    for shapes in itertools.takewhile(lambda shapes: shapes is not best.view, (view, *others)):
        found = min((c for c in candidates if c.view is shapes), key=attrgetter("cycles"))
        if found.estimate:
            fallback = _choice(found, fallback=fallback, **common)
    return _choice(best, fallback=fallback, **common)


def _choice(best: Candidate, **common: Any) -> Choice:
    """The choice of a candidate that was not refused."""
    assert best.layout and best.estimate
    return Choice(
        view=best.view,
        variant=best.variant,
        geometry=best.geometry,
        layout=best.layout,
        estimate=best.estimate,
        **common,
    )


def variants(
    view: Problem, activation: int, plain: bool, rounded: bool = True
) -> Iterator[Variant]:
    """The kernels to consider: every family with every tile."""
    packed = _packed(view, rounded)
    rounded = rounded or view.dtype == "float32"
    repeats = padding_mode(view)
    for v in _families(view):
        if repeats and (v.producer == "tma" or v.folded):
            continue
        yield replace(
            v,
            activation=activation,
            plain=plain,
            linear=not v.wide and view.channels_last,
            packed=packed,
            padding_mode=repeats,
            volume=view.rank == 3 and not v.wide,
            rounded=rounded,
        )
    if repeats or view.rank == 3:
        return
    for v in direct_variants(view) if rounded else ():
        yield replace(v, activation=activation, plain=plain)
    for v in rows_variants(view):
        yield replace(v, activation=activation, plain=plain, packed=packed, rounded=rounded)


def _folded(view: Problem) -> Iterator[Variant]:
    """Folded loads, for channels that loads of 16 bytes cannot copy."""
    row = view.C * view.itemsize * view.kernel[-1]
    consumer = "fma" if view.dtype == "float32" else "mma"
    base = Variant("im2col", "elements", consumer, view.dtype, 64, 64, 64 if row <= 64 else 128)
    size = copy_size(view)
    base = replace(base, producer="cp_async", copy_bytes=size) if size else base
    base = replace(base, folded=True)
    yield base
    if consumer == "mma":
        for m, n, warps_m, warps_n in MMA_TILES[:2]:
            yield replace(base, tile_m=m, tile_n=n, warps_m=warps_m, warps_n=warps_n)


def _families(view: Problem) -> Iterator[Variant]:
    dtype, channel_bytes = view.dtype, view.C // view.groups * view.itemsize
    row_bytes = 64 if channel_bytes <= 64 else 128
    if channel_bytes % VECTOR_BYTES:
        yield from _folded(view)
    copies = {"cp_async": copy_size(view) or min(COPY_SIZES)}
    if dtype == "float32":
        for producer in ("cp_async", "elements"):
            v = Variant("im2col", producer, "fma", dtype, 64, 64, row_bytes, 2, 2)
            yield replace(v, copy_bytes=copies.get(producer, VECTOR_BYTES))
        return
    for mode, producer in LOADS:
        for m, n, warps_m, warps_n in MMA_TILES:
            v = Variant(mode, producer, "mma", dtype, m, n, row_bytes, warps_m, warps_n)
            yield replace(v, copy_bytes=copies.get(producer, VECTOR_BYTES))
    shared = view.kernel[-1] > 1  # pixels, by the taps of a filter row
    for n in WGMMA_COLUMNS:
        base = Variant("im2col", "tma", "wgmma", dtype, 128, n, row_bytes, 8, 1)
        # Of equal estimates the first counts: on an H100 each was faster than those after it.
        yield replace(base, descriptors=True)
        if shared:
            yield replace(base, mode="w", permuted=True, descriptors=True)
            yield replace(base, mode="w", permuted=True)
    base = replace(base, descriptors=True, resident=2)
    if shared:
        yield replace(base, mode="w", permuted=True)
    for m, n, resident in SMALL_TILES:
        yield replace(base, tile_m=m, tile_n=n, warps_m=m // 16, resident=resident)


def copy_size(view: Problem) -> int:
    """The most bytes at a time that cp.async can copy a pixel's channels by; 0: none can."""
    channels = view.C // view.groups * view.itemsize
    return next((size for size in COPY_SIZES if channels % size == 0), 0)


def _packed(view: Problem, rounded: bool) -> bool:
    """Whether every row of K in y begins at a multiple of 16 bytes, for 16-byte stores."""
    row = view.K // view.groups * (view.itemsize if rounded else ITEMSIZES["float32"])
    return view.channels_last and row % VECTOR_BYTES == 0
