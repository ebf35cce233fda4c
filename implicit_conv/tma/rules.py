"""The rules of tensor maps and loads: each rule is written once and gives its reason.

A rule takes a `Description` and yields `Finding`s with row-major names. The maps raise all findings
at once; the linter prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from implicit_conv.tma.limits import (
    ADDRESS_BITS,
    CHANNELS_MAX,
    COORDINATE_BITS,
    CORNER_BITS,
    CORNERS,
    DRIVER,
    DRIVER_WIDE,
    FILLS,
    HALO,
    HALO_END,
    INTERLEAVES,
    ITEMSIZES,
    OFFSET_BITS,
    OFFSETS,
    PIXELS_MAX,
    SIZE_MAX,
    SMEM,
    SMEM_ADDRESS_BITS,
    STEP_MAX,
    STRIDE_END,
    SWIZZLES,
    W_OFFSET_END,
    WIDE,
    Description,
    Finding,
    Start,
    spatial_letters,
    swizzle_span,
)


def within(low: int, high: int) -> str:
    """The words for a range."""
    return f"must be in [{low}, {high}]"


def _shape(m: Description) -> Iterator[Finding]:
    letters = f"n{spatial_letters(m.rank)}c"
    for letter, size in zip(letters, m.shape, strict=True):
        if not 1 <= size <= SIZE_MAX:
            yield Finding(f"shape[{letter}]", size, within(1, SIZE_MAX), DRIVER)
    if m.itemsize not in ITEMSIZES:
        yield Finding("dtype", f"{m.itemsize} bytes", f"must have {ITEMSIZES} bytes", DRIVER)


def _corners(m: Description) -> Iterator[Finding]:
    bits, source = (16, WIDE) if m.wide else (CORNER_BITS[m.rank], CORNERS)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    names = ("lower_corner", "upper_corner")
    wrong_length = False
    for name, corner in zip(names, (m.lower, m.upper), strict=True):
        if len(corner) != len(m.sizes):
            wrong_length = True
            yield Finding(name, corner, f"must have {len(m.sizes)} entries ({m.axes})", source)
            continue
        for axis, value in zip(m.axes, corner, strict=True):
            if not low <= value <= high:
                allowed = f"{within(low, high)} for a {m.rank}-D tensor"
                yield Finding(f"{name}[{axis}]", value, allowed, source)
    if wrong_length:
        return
    for axis, lower, upper, size in zip(m.axes, m.lower, m.upper, m.sizes, strict=True):
        if lower > size - 1 + upper:
            which = "lower_corner" if lower > 0 and upper >= 0 else "upper_corner"
            box = f"box [{lower}, {size - 1 + upper}] is empty: lower must be <= size - 1 + upper"
            yield Finding(f"{which}[{axis}]", lower if which[0] == "l" else upper, box, source)


def _steps(m: Description) -> Iterator[Finding]:
    if len(m.step) != len(m.sizes):
        allowed = f"must have {len(m.sizes)} entries ({m.axes})"
        yield Finding("traversal_stride", m.step, allowed, DRIVER)
        return
    for axis, step in zip(m.axes, m.step, strict=True):
        if not 1 <= step <= STEP_MAX:
            yield Finding(f"traversal_stride[{axis}]", step, within(1, STEP_MAX), DRIVER)


def _counts(m: Description) -> Iterator[Finding]:
    if m.mode != "w128" and not 1 <= m.pixels <= PIXELS_MAX:
        yield Finding("pixels_per_column", m.pixels, within(1, PIXELS_MAX), DRIVER)
    row_bytes, span = m.channels * m.itemsize, swizzle_span(m.swizzle)
    if not 1 <= m.channels <= CHANNELS_MAX:
        yield Finding("channels_per_pixel", m.channels, within(1, CHANNELS_MAX), DRIVER)
    elif row_bytes % 16:
        allowed = f"its {row_bytes} bytes must be a multiple of 16"
        yield Finding("channels_per_pixel", m.channels, allowed, DRIVER)
    elif span and row_bytes > span:
        allowed = f"its {row_bytes} bytes must fit in the swizzle span of {span} bytes"
        yield Finding("channels_per_pixel", m.channels, allowed, DRIVER)


def _layout(m: Description) -> Iterator[Finding]:
    if m.swizzle not in SWIZZLES[m.mode]:
        allowed = f"must be one of {', '.join(SWIZZLES[m.mode])} for mode {m.mode}"
        yield Finding("swizzle", m.swizzle, allowed, WIDE if m.wide else DRIVER)
    if m.oob_fill not in FILLS:
        yield Finding("oob_fill", m.oob_fill, f"must be one of {', '.join(FILLS)}", DRIVER)
    elif m.oob_fill == "nan" and not m.floating:
        yield Finding("oob_fill", m.oob_fill, "NaN exists only in floating-point types", DRIVER)
    if m.interleave not in INTERLEAVES:
        allowed = f"must be one of {', '.join(INTERLEAVES)}"
        yield Finding("interleave", m.interleave, allowed, DRIVER)
    elif m.wide and m.interleave != "none":
        yield Finding("interleave", m.interleave, "must be none", "PTX ISA 5.5.6; " + DRIVER_WIDE)
    elif m.interleave == "32B" and m.swizzle != "32B":
        yield Finding("swizzle", m.swizzle, "must be 32B if interleave is 32B", DRIVER)


def _memory(m: Description) -> Iterator[Finding]:
    unit = INTERLEAVES.get(m.interleave, 16)
    if m.address is not None and (m.address % unit or not 0 <= m.address < 1 << ADDRESS_BITS):
        allowed = f"must be a multiple of {unit} bytes, below 2^{ADDRESS_BITS}"
        yield Finding("address", hex(m.address), allowed, DRIVER)
    strides, letters = m.byte_strides, f"n{spatial_letters(m.rank)}"
    if len(strides) != m.rank - 1:
        allowed = f"must have {m.rank - 1} entries ({letters}); channels are contiguous"
        yield Finding("strides", strides, allowed, DRIVER)
        return
    pixel = m.shape[-1] * m.itemsize
    if m.strides is None and pixel % unit:
        allowed = f"a packed pixel of {pixel} bytes must be a multiple of {unit}"
        yield Finding("shape[c]", m.shape[-1], allowed, DRIVER)
    for letter, stride in zip(letters, strides, strict=True):
        field = f"strides[{letter}]"
        if m.strides is not None and stride % unit:
            allowed = f"bytes from one {letter} to the next must be a multiple of {unit}"
            yield Finding(field, stride, allowed, DRIVER)
        elif not 0 <= stride < STRIDE_END:
            yield Finding(field, stride, "bytes must be in [0, 2^40)", DRIVER)


RULES: tuple[Callable[[Description], Iterator[Finding]], ...] = (
    _shape,
    _corners,
    _steps,
    _counts,
    _layout,
    _memory,
)


def map_findings(m: Description) -> list[Finding]:
    """Every rule that the map breaks."""
    if m.rank not in CORNER_BITS:
        allowed = "must have 3, 4 or 5 dimensions: (n, [d,] h, w, c) from NWC to NDHWC"
        return [Finding("shape", m.shape, allowed, "PTX ISA 5.5.4")]
    return [finding for rule in RULES for finding in rule(m)]


def start_findings(m: Description, start: Start) -> list[Finding]:
    """Every rule that a load with this map breaks, provided that the map breaks none."""
    coords = start.coords
    if len(coords) != m.rank:
        letters = ", ".join(f"n{spatial_letters(m.rank)}c")
        allowed = f"must have {m.rank} entries ({letters})"
        return [Finding("coords", coords, allowed, "PTX ISA 9.7.9.25.5 (tensorCoords)")]
    found = []
    half = 1 << (COORDINATE_BITS - 1)
    for letter, x in zip(f"n{spatial_letters(m.rank)}c", coords, strict=True):
        if not -half <= x < half:
            allowed = "must be a signed 32-bit integer"
            found.append(Finding(f"coords[{letter}]", x, allowed, "PTX ISA 9.7.9.25.5"))
    found += _wide_start(m, start) if m.wide else _im2col_start(m, start)
    if start.dst % 128 or not 0 <= start.dst < 1 << SMEM_ADDRESS_BITS:
        allowed = f"must be a multiple of 128 bytes, below 2^{SMEM_ADDRESS_BITS}"
        found.append(Finding("dst", start.dst, allowed, SMEM))
    return found


def _im2col_start(m: Description, start: Start) -> Iterator[Finding]:
    for axis, x, lower, upper, size in zip(
        m.axes, start.coords[1:-1], m.lower, m.upper, m.sizes, strict=True
    ):
        last = size - 1 + upper
        if not lower <= x <= last:
            allowed = f"must start inside the box [{lower}, {last}]"
            yield Finding(f"coords[{axis}]", x, allowed, CORNERS)
    offsets, top = start.offsets, (1 << OFFSET_BITS[m.rank]) - 1
    if offsets is not None and len(offsets) != len(m.sizes):
        yield Finding("offsets", offsets, f"must have {len(m.sizes)} entries ({m.axes})", OFFSETS)
    elif offsets is not None:
        for axis, offset in zip(m.axes, offsets, strict=True):
            if not 0 <= offset <= top:
                allowed = f"{within(0, top)} for a {m.rank}-D tensor"
                yield Finding(f"offsets[{axis}]", offset, allowed, OFFSETS)
    for name, value in (("w_halo", start.w_halo), ("w_offset", start.w_offset)):
        if value:
            yield Finding(name, value, "must be 0: only im2col::w has it", HALO)


def _wide_start(m: Description, start: Start) -> Iterator[Finding]:
    w, last = start.coords[-2], m.sizes[0] - 1 + m.upper[0]
    if w > last:
        allowed = f"must not be right of the box [{m.lower[0]}, {last}]"
        yield Finding("coords[w]", w, allowed, WIDE)
    if start.offsets is not None and any(start.offsets):
        yield Finding(
            "offsets",
            start.offsets,
            "must be zero: im2col::w takes w_halo and w_offset instead",
            HALO,
        )
    end = HALO_END[m.mode]
    if not 0 <= start.w_halo < end:
        yield Finding("w_halo", start.w_halo, within(0, end - 1), HALO)
    if not 0 <= start.w_offset < W_OFFSET_END:
        yield Finding("w_offset", start.w_offset, within(0, W_OFFSET_END - 1), HALO)
