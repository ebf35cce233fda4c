"""Warnings on what is legal but rarely intended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from implicit_conv.tma.check.slips import stride_slips
from implicit_conv.tma.maps import limits
from implicit_conv.tma.maps.limits import Description, Finding, Start
from implicit_conv.tma.maps.packing import overlaps, tells
from implicit_conv.tma.maps.rules import UPPER
from implicit_conv.tma.maps.swizzles import SWIZZLES

CONVENTION = "addressing of a convolution"
BOX_START = "PTX ISA 5.5.3.1 (the box starts at a multiple of 16 bytes)"
SWIZZLE_PATTERN = "PTX ISA 5.5.7 (the pattern repeats at multiples of its size)"
LAYOUT = "layout of a tensor in memory"
CHUNKS = "an H100, reported to Triton (issue 11583)"
CHUNK_BYTES = 16  # that a store writes at least
SMEM_BYTES = 227 * 1024  # shared memory of one block on compute capability 9.0 and 10.0
SMALL_BYTES = 128 << 10
SMALL_TENSORS = "reports on Triton (issues 10442 and 11011), CUTLASS and FlashInfer (issue 4319)"
END_MIN = 4  # an upper corner of im2col::w below it is a usual one, also in a narrow image


def map_suspicions(m: Description) -> Iterator[Finding]:
    """Warnings on a map."""
    yield from corner_suspicions(m)
    yield from _strides(m)
    for letter, size in zip(m.dims, m.shape, strict=True):
        if size > limits.SIZE_MAX_NEW:
            allowed = "exceeds 2^31, the limit of cuda.h 13.5; earlier headers say 2^32"
            yield _warning(f"shape[{letter}]", size, allowed, m.driver)
    row_bytes = m.channels * m.itemsize
    if m.mode != "w128" and m.pixels * row_bytes > SMEM_BYTES:
        allowed = f"{m.pixels} rows of {row_bytes} bytes exceed the {SMEM_BYTES} of shared memory"
        field, value = ("box", m.box) if m.tiled else ("pixels_per_column", m.pixels)
        yield _warning(field, value, allowed, CONVENTION)
    if m.tiled:
        return
    needed = -(-m.shape[-1] // m.unit) * m.unit
    if m.modelled and m.channels > needed:
        allowed = f"exceeds C = {m.shape[-1]}: the rest of every row is filled"
        yield _warning("channels_per_pixel", m.channels, allowed, CONVENTION)


def _warning(field: str, value: object, allowed: str, source: str, hint: str = "") -> Finding:
    return Finding(field, value, allowed, source, hint, "warning")


def corner_suspicions(m: Description) -> Iterator[Finding]:
    """Corners that hardly any convolution has."""
    if not len(m.lower) == len(m.upper) == len(m.sizes):
        return
    for axis, lower, upper, size in zip(m.axes, m.lower, m.upper, m.sizes, strict=True):
        if m.wide:
            past = upper >= max(END_MIN, size // 2)
            hint = "it counts from the last pixel: lower + (L - 1) * stride - (W - 1)"
        else:
            past = lower + upper > 0 or (lower < 0 and lower + upper == 0)
            hint = f"{UPPER}: below {-lower if lower < 0 else 1} unless high padding is larger"
        if past:
            allowed = "upper corner reaches past the last output: rows would overrun"
            yield _warning(f"upper_corner[{axis}]", upper, allowed, CONVENTION, hint)
        if lower > 0:
            allowed = "the box begins inside the image"
            yield _warning(f"lower_corner[{axis}]", lower, allowed, CONVENTION, "lower = -pad_lo")


def _strides(m: Description) -> Iterator[Finding]:
    """Byte strides that do not suit a tensor in this order of dimensions."""
    strides, sizes = m.strides, m.shape[1:]
    if strides is None or len(strides) != m.rank - 1 or not m.modelled or m.interleave != "none":
        return
    if m.tiled:
        yield from _tiled_strides(m)
        return
    ends = (*strides[1:], m.itemsize)
    hint = "are dimensions permuted, as for the im2col::w walk on sm_90? It may not encode"
    for letter, stride, end, size in zip(m.dims, strides, ends, sizes, strict=False):
        if stride < end * size:
            allowed = f"is smaller than the dimension it steps over, {end * size} bytes"
            yield _warning(f"strides[{letter}]", stride, allowed, m.driver, hint)


def _tiled_strides(m: Description) -> Iterator[Finding]:
    """Strides that one mistake explains. A tiled map may view a tensor in any order of dimensions,
    with gaps, and with rows that overlap, so that no strides are wrong by themselves.
    """
    for slip in stride_slips(m):
        if tells(slip.map, m):
            allowed = "leave gaps that other strides or extents would not leave"
            if overlaps(m):
                allowed = "let elements share bytes, which is right in windows alone"
            yield _warning("strides", m.strides, allowed, LAYOUT, slip.text)
            return


def store_suspicions(m: Description, start: Start | None) -> Iterator[Finding]:
    """Warnings on a store or reduction by a map that breaks no rule."""
    size, field = m.shape[-1], f"shape[{m.dims[-1]}]"
    rest = -size * m.itemsize % CHUNK_BYTES
    reaches = start is None or start.coords[-1] + m.channels > size > start.coords[-1]
    if rest and m.modelled and m.interleave == "none" and reaches:
        allowed = (
            f"its {size * m.itemsize} bytes must be a multiple of {CHUNK_BYTES}: a store writes "
            f"whole chunks of these, so also the next {rest} bytes of each row that it reaches"
        )
        hint = "pad the rows in memory, and keep nothing in the padding"
        yield _warning(field, size, allowed, CHUNKS, hint)


def start_suspicions(m: Description, start: Start, direction: str) -> Iterator[Finding]:
    """Warnings on a copy by a map that breaks no rule; the start breaks none."""
    coords, load = start.coords, direction not in ("store", "reduce")
    nothing = "the load fills every row" if load else f"the {direction} writes nothing"
    yield from _grid(m, start)
    c, C = coords[-1], m.shape[-1]
    field = f"coords[{m.dims[-1]}]"
    if m.modelled and c * m.itemsize % 16:
        allowed = f"its {c * m.itemsize} bytes must be a multiple of 16"
        yield _warning(field, c, allowed, BOX_START)
    elif c >= C or c + m.channels <= 0:
        allowed = f"no {'element' if m.tiled else 'channel'} is in [0, {C - 1}]: {nothing}"
        yield _warning(field, c, allowed, limits.CORNERS)
    elif not m.tiled and (c < 0 or (c % m.channels and c + m.channels > C)):
        allowed = f"channels {c} to {c + m.channels - 1} are not all in [0, {C - 1}]: some fill"
        yield _warning(field, c, allowed, limits.CORNERS, "load channel blocks from 0 on")
    if m.tiled:
        for dim, x, count, size in zip(m.dims[:-1], coords, m.box, m.shape, strict=False):
            if x >= size or x + count <= 0:
                allowed = f"nothing of the box is in [0, {size - 1}]: {nothing}"
                yield _warning(f"coords[{dim}]", x, allowed, limits.COORDS)
    elif not 0 <= coords[0] < m.shape[0]:
        allowed = f"image {coords[0]} is not in [0, {m.shape[0] - 1}]: its rows are filled"
        yield _warning(f"coords[{m.dims[0]}]", coords[0], allowed, limits.COORDS)
    pattern = SWIZZLES[m.swizzle].pattern
    if start.dst % pattern:
        into = f"begins {start.dst % pattern} bytes into the pattern of swizzle {m.swizzle}, "
        allowed = f"{into}{pattern} bytes: readers must swizzle absolute addresses"
        yield _warning("dst", start.dst, allowed, SWIZZLE_PATTERN)
    if m.wide:
        for letter, x, size in zip(m.dims[1:-2], coords[1:-2], m.shape[1:-2], strict=True):
            if not 0 <= x < size:
                allowed = f"is not in [0, {size - 1}]: the load fills every row"
                hint = "skip the load; its filter row adds nothing"
                yield _warning(f"coords[{letter}]", x, allowed, limits.WIDE, hint)


def _grid(m: Description, start: Start) -> Iterator[Finding]:
    """A start that is not among the pixels that the walk visits after it wraps."""
    if m.tiled:
        return
    coords = start.coords[-2:-1] if m.wide else start.coords[1:-1]
    for axis, x, lower, step in zip(m.axes, coords, m.lower, m.step, strict=True):
        if (x - lower) % step:
            allowed = f"is not a multiple of the step {step} from the lower corner {lower}"
            hint = "start = lower + p * stride: otherwise rows after the first wrap are shifted"
            yield _warning(f"coords[{axis}]", x, allowed, CONVENTION, hint)


def driver_suspicions(m: Description, arch: str) -> Iterator[Finding]:
    """A warning on a defect of drivers on Blackwell: small tensors that are not packed."""
    if not arch.startswith(("sm_10", "sm_11", "sm_12")) or m.strides is None or not m.modelled:
        return
    packed = replace(m, strides=None).byte_strides
    extents = zip(m.shape, (*m.strides, m.itemsize), strict=True)
    size = m.itemsize + sum((count - 1) * stride for count, stride in extents)
    if m.strides != packed and size < SMALL_BYTES:
        allowed = (
            f"a tensor of {size} bytes that is not packed: where its allocation is smaller than "
            f"{SMALL_BYTES} bytes, drivers on {arch} encode maps that fault"
        )
        hint = "allocate 128 KiB or more, or clear bit 85 of the encoded map"
        yield _warning("strides", m.strides, allowed, SMALL_TENSORS, hint)
