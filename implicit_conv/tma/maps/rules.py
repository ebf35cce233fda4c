"""The rules of tensor maps and loads: each rule is written once and gives its reason.

A rule takes a `Description` and yields `Finding`s with row-major names. The maps raise all findings
at once; the linter prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from implicit_conv.ptx.machine.reductions import REDUCED_TYPES
from implicit_conv.ptx.targets import lacking
from implicit_conv.tma.maps.limits import (
    ADDRESS_BITS,
    ALLOWED_SWIZZLES,
    BOX_MAX,
    CHANNELS_MAX,
    COORDINATE_BITS,
    COORDS,
    CORNER_BITS,
    CORNERS,
    FILLS,
    HALO,
    HALO_END,
    INTERLEAVES,
    ITEMSIZES,
    OFFSET_BITS,
    OFFSETS,
    PACKED_SWIZZLES,
    PACKED_UNIT,
    PIXELS_MAX,
    RANKS,
    REDUCE,
    SIZE_MAX,
    SMEM,
    SMEM_ADDRESS_BITS,
    SMEM_ALIGNMENT,
    STEP_MAX,
    STORE,
    STRIDE_END,
    TARGET,
    W_OFFSET_END,
    WIDE,
    Description,
    Finding,
    Start,
)
from implicit_conv.tma.maps.ptx import CLUSTER_DIRECTIONS, INFIXES


def within(low: int, high: int) -> str:
    """The words for a range."""
    return f"must be in [{low}, {high}]"


def _shape(m: Description) -> Iterator[Finding]:
    for letter, size in zip(m.dims, m.shape, strict=True):
        if not 1 <= size <= SIZE_MAX:
            yield Finding(f"shape[{letter}]", size, within(1, SIZE_MAX), m.driver)
    if m.modelled and m.itemsize not in ITEMSIZES:
        counts = ", ".join(map(str, ITEMSIZES))
        allowed = f"elements must have one of {counts} bytes"
        yield Finding("dtype", f"{m.itemsize} bytes", allowed, m.driver)


def _corners(m: Description) -> Iterator[Finding]:
    bits, source = (16, m.driver) if m.wide else (CORNER_BITS[m.rank], CORNERS)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    names = ("lower_corner", "upper_corner")
    wrong, wrong_length = set(), False
    for name, corner in zip(names, (m.lower, m.upper), strict=True):
        if len(corner) != len(m.sizes):
            wrong_length = True
            yield Finding(name, corner, f"must have {len(m.sizes)} entries ({m.axes})", source)
            continue
        for axis, value in zip(m.axes, corner, strict=True):
            if not low <= value <= high:
                wrong.add(axis)
                rank = "at every rank" if m.wide else f"for a {m.rank}-D tensor"
                yield Finding(f"{name}[{axis}]", value, f"{within(low, high)} {rank}", source)
    if wrong_length:
        return
    for axis, lower, upper, size in zip(m.axes, m.lower, m.upper, m.sizes, strict=True):
        if axis not in wrong and lower > size - 1 + upper:
            which = "lower_corner" if lower > 0 and upper >= 0 else "upper_corner"
            box = f"box [{lower}, {size - 1 + upper}] is empty: lower must be <= size - 1 + upper"
            value = lower if which == "lower_corner" else upper
            yield Finding(f"{which}[{axis}]", value, box, WIDE if m.wide else CORNERS)


def _steps(m: Description) -> Iterator[Finding]:
    if len(m.step) != len(m.sizes):
        allowed = f"must have {len(m.sizes)} entries ({m.axes})"
        yield Finding("traversal_stride", m.step, allowed, m.driver)
        return
    for axis, step in zip(m.axes, m.step, strict=True):
        if not 1 <= step <= STEP_MAX:
            yield Finding(f"traversal_stride[{axis}]", step, within(1, STEP_MAX), m.driver)


def _counts(m: Description) -> Iterator[Finding]:
    if m.mode != "w128" and not 1 <= m.pixels <= PIXELS_MAX:
        yield Finding("pixels_per_column", m.pixels, within(1, PIXELS_MAX), m.driver)
    row_bytes, span = m.channels * m.itemsize, m.span
    if not 1 <= m.channels <= CHANNELS_MAX:
        yield Finding("channels_per_pixel", m.channels, within(1, CHANNELS_MAX), m.driver)
    elif m.modelled and row_bytes % 16:
        allowed = f"its {row_bytes} bytes must be a multiple of 16"
        yield Finding("channels_per_pixel", m.channels, allowed, m.driver)
    elif span and row_bytes > span:
        allowed = f"its {row_bytes} bytes must fit in the swizzle span of {span} bytes"
        yield Finding("channels_per_pixel", m.channels, allowed, m.driver)


def _layout(m: Description) -> Iterator[Finding]:
    if m.swizzle not in ALLOWED_SWIZZLES[m.mode]:
        allowed = f"must be one of {', '.join(ALLOWED_SWIZZLES[m.mode])} for mode {m.mode}"
        documented = m.wide and m.swizzle in ("none", "128B_ATOM_32B_FLIP_8B")
        yield Finding("swizzle", m.swizzle, allowed, WIDE if documented else m.driver)
    if m.oob_fill not in FILLS:
        yield Finding("oob_fill", m.oob_fill, f"must be one of {', '.join(FILLS)}", m.driver)
    elif m.oob_fill == "nan" and not m.floating:
        yield Finding("oob_fill", m.oob_fill, "NaN exists only in floating-point types", m.driver)
    if m.interleave not in INTERLEAVES:
        allowed = f"must be one of {', '.join(INTERLEAVES)}"
        yield Finding("interleave", m.interleave, allowed, m.driver)
    elif m.wide and m.interleave != "none":
        yield Finding("interleave", m.interleave, "must be none", m.driver)
    elif m.interleave == "32B" and m.swizzle != "32B":
        yield Finding("swizzle", m.swizzle, "must be 32B if interleave is 32B", m.driver)


def _memory(m: Description) -> Iterator[Finding]:
    unit = m.unit_bytes
    if m.address is not None and (m.address % unit or not 0 <= m.address < 1 << ADDRESS_BITS):
        allowed = f"must be a multiple of {unit} bytes, below 2^{ADDRESS_BITS}"
        yield Finding("address", hex(m.address), allowed, m.driver)
    strides, letters = m.byte_strides, m.dims[:-1]
    if len(strides) != m.rank - 1:
        allowed = f"must have {m.rank - 1} entries ({letters}); channels are contiguous"
        yield Finding("strides", strides, allowed, m.driver)
        return
    pixel = m.shape[-1] * m.itemsize
    if m.strides is None and m.rank > 1 and pixel % unit:
        allowed = f"a packed pixel of {pixel} bytes must be a multiple of {unit}"
        yield Finding(f"shape[{m.dims[-1]}]", m.shape[-1], allowed, m.driver)
    for letter, stride in zip(letters, strides, strict=True):
        field = f"strides[{letter}]"
        if m.strides is not None and stride % unit:
            allowed = f"bytes from one {letter} to the next must be a multiple of {unit}"
            yield Finding(field, stride, allowed, m.driver)
        elif not 0 <= stride < STRIDE_END:
            yield Finding(field, stride, "bytes must be in [0, 2^40)", m.driver)


def _box(m: Description) -> Iterator[Finding]:
    if len(m.box) != m.rank:
        yield Finding("box", m.box, f"must have {m.rank} entries, one a dimension", m.driver)
        return
    for dim, count in zip(m.dims, m.box, strict=True):
        if not 1 <= count <= BOX_MAX:
            yield Finding(f"box[{dim}]", count, within(1, BOX_MAX), m.driver)
    inner, field = m.box[-1] * m.itemsize, f"box[{m.dims[-1]}]"
    if not 1 <= m.box[-1] <= BOX_MAX or m.interleave != "none" or not m.modelled:
        return
    if inner % 16:
        allowed = f"its {inner} bytes must be a multiple of 16"
        yield Finding(field, m.box[-1], allowed, m.driver)
    elif m.span and inner > m.span:
        allowed = f"its {inner} bytes must fit in the swizzle span of {m.span} bytes"
        yield Finding(field, m.box[-1], allowed, m.driver)


def _tiled_steps(m: Description) -> Iterator[Finding]:
    if len(m.step) != m.rank:
        yield Finding("step", m.step, f"must have {m.rank} entries, one a dimension", m.driver)
        return
    for dim, step in zip(m.dims, m.step, strict=True):
        if not 1 <= step <= STEP_MAX:
            yield Finding(f"step[{dim}]", step, within(1, STEP_MAX), m.driver)


def _interleaved_rank(m: Description) -> Iterator[Finding]:
    if m.interleave != "none" and m.rank < min(RANKS):
        allowed = f"must be none for a tensor of {m.rank} dimensions; {min(RANKS)} are needed"
        yield Finding("interleave", m.interleave, allowed, m.driver)


def _packed(m: Description) -> Iterator[Finding]:
    """Elements of 4 and 6 bits: rules that count elements."""
    size, field = m.shape[-1], f"shape[{m.dims[-1]}]"
    if m.element == "16U4_ALIGN8B" and size % 2:
        yield Finding(field, size, "must be a multiple of 2 for 16U4_ALIGN8B", m.driver)
    if m.element not in PACKED_SWIZZLES:
        return
    if size % PACKED_UNIT:
        allowed = f"must be a multiple of {PACKED_UNIT} for {m.element}"
        yield Finding(field, size, allowed, m.driver)
    if m.channels != PACKED_UNIT:
        field = f"box[{m.dims[-1]}]" if m.tiled else "channels_per_pixel"
        yield Finding(field, m.channels, f"must be {PACKED_UNIT} for {m.element}", m.driver)
    swizzles = PACKED_SWIZZLES[m.element]
    if m.swizzle not in swizzles:
        allowed = f"must be one of {', '.join(swizzles)} for {m.element}"
        yield Finding("swizzle", m.swizzle, allowed, m.driver)
    if m.element == "16U6_ALIGN16B" and m.interleave != "none":
        yield Finding("interleave", m.interleave, f"must be none for {m.element}", m.driver)


Rule = Callable[[Description], Iterator[Finding]]
RULES: tuple[Rule, ...] = (_shape, _corners, _steps, _counts, _layout, _memory, _packed)
TILED_RULES: tuple[Rule, ...] = (
    _shape,
    _box,
    _tiled_steps,
    _layout,
    _interleaved_rank,
    _memory,
    _packed,
)


def map_findings(m: Description) -> list[Finding]:
    """Every rule that the map breaks."""
    if m.rank not in m.ranks:
        allowed = "must have 3, 4 or 5 dimensions: (n, [d,] h, w, c) from NWC to NDHWC"
        if m.tiled:
            allowed = "must have 1 to 5 dimensions"
        return [Finding("shape", m.shape, allowed, m.driver if m.tiled else "PTX ISA 5.5.4")]
    return [finding for rule in (TILED_RULES if m.tiled else RULES) for finding in rule(m)]


def start_findings(m: Description, start: Start) -> list[Finding]:
    """Every rule that a load with this map breaks, provided that the map breaks none."""
    coords = start.coords
    if len(coords) != m.rank:
        allowed = f"must have {m.rank} entries ({', '.join(m.dims)})"
        return [Finding("coords", coords, allowed, COORDS)]
    found = []
    half = 1 << (COORDINATE_BITS - 1)
    for letter, x in zip(m.dims, coords, strict=True):
        if not -half <= x < half:
            allowed = "must be a signed 32-bit integer"
            found.append(Finding(f"coords[{letter}]", x, allowed, COORDS))
    looks = _tiled_start if m.tiled else _wide_start if m.wide else _im2col_start
    found += looks(m, start)
    if start.dst % SMEM_ALIGNMENT or not 0 <= start.dst < 1 << SMEM_ADDRESS_BITS:
        allowed = f"must be a multiple of {SMEM_ALIGNMENT} bytes, below 2^{SMEM_ADDRESS_BITS}"
        found.append(Finding("dst", start.dst, allowed, SMEM))
    return found


def _tiled_start(m: Description, start: Start) -> Iterator[Finding]:
    for name in ("offsets", "w_halo", "w_offset"):
        if getattr(start, name):
            yield Finding(name, getattr(start, name), "must be left out: a box has none", HALO)


def store_findings(m: Description, start: Start | None) -> list[Finding]:
    """Every rule that a store or reduction with this map breaks, besides those of a load."""
    found: list[Finding] = []
    if m.wide:
        allowed = "cannot store: only tiled and im2col maps do"
        return [Finding("mode", m.mode, allowed, STORE)]
    for name, corner, wrong in (("lower", m.lower, min), ("upper", m.upper, max)):
        for axis, value in zip(m.axes, corner, strict=False):  # their number may be wrong
            if wrong(value, 0) != 0:
                sign = "at least" if name == "lower" else "at most"
                allowed = f"must be {sign} 0 for a store: its box lies inside the tensor"
                hint = "store by a second map, without padding: both corners are 0"
                found.append(Finding(f"{name}_corner[{axis}]", value, allowed, STORE, hint))
    if start is None or len(start.coords) != m.rank:
        return found
    for letter, x in zip(m.dims, start.coords, strict=True):
        if x < 0:
            allowed = "must be at least 0 for a store"
            found.append(Finding(f"coords[{letter}]", x, allowed, STORE))
    if start.offsets is not None and any(start.offsets):
        allowed = "must be left out: the store walk is im2col_no_offs"
        found.append(Finding("offsets", start.offsets, allowed, STORE))
    return found


def reduction_findings(m: Description, reduction: str) -> list[Finding]:
    """That a reduction does not take elements of the map's type."""
    types = REDUCED_TYPES[reduction]
    if m.element in types:
        return []
    allowed = f"the reduction {reduction} takes {', '.join(types)}"
    return [Finding("dtype", m.element, allowed, REDUCE)]


def target_findings(m: Description, direction: str, arch: str) -> list[Finding]:
    """That a target has no instruction for the map."""
    why = lacking(INFIXES[m.mode], direction in CLUSTER_DIRECTIONS, arch)
    return [Finding("mode", m.mode, why, TARGET)] if why else []


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
