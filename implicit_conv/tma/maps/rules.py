"""The rules of tensor maps and loads: each rule is written once and gives its reason.

A rule takes a `Description` and yields `Finding`s with row-major names. The maps raise all findings
at once; the linter prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from implicit_conv.ptx.machine.reductions import REDUCED_TYPES
from implicit_conv.ptx.targets import lacking
from implicit_conv.tma.maps import limits
from implicit_conv.tma.maps.limits import Description, Finding, Start
from implicit_conv.tma.maps.ptx import CLUSTER_DIRECTIONS, INFIXES

UPPER = "upper = pad_hi - (taps - 1) * dilation, counted from the last pixel"
WIDE_UPPER = "upper = lower + (L - 1) * stride - (W - 1), for L slots of an image row"


def within(low: int, high: int) -> str:
    """The words for a range."""
    return f"must be in [{low}, {high}]"


def _entries(field: str, values: tuple[int, ...], letters: str, source: str) -> Iterator[Finding]:
    """That an array has not an entry for each letter."""
    if len(values) != len(letters):
        yield Finding(field, values, f"must have {len(letters)} entries ({letters})", source)


def _range(
    field: str,
    values: Iterable[int],
    letters: str,
    ends: tuple[int, int],
    source: str,
    of: str = "",
) -> Iterator[Finding]:
    """The entries of an array that are not between the ends, which both are right."""
    low, high = ends
    for letter, value in zip(letters, values, strict=True):
        if not low <= value <= high:
            yield Finding(f"{field}[{letter}]", value, f"{within(low, high)}{of}", source)


def _row(m: Description, field: str, count: int) -> Iterator[Finding]:
    """That a row of shared memory is no whole number of units, or too long for the swizzle."""
    row_bytes = count * m.itemsize
    if m.modelled and row_bytes % 16:
        allowed = f"its {row_bytes} bytes must be a multiple of 16"
        yield Finding(field, count, allowed, m.driver)
    elif m.span and row_bytes > m.span:
        allowed = f"its {row_bytes} bytes must fit in the swizzle span of {m.span} bytes"
        yield Finding(field, count, allowed, m.driver)


def _shape(m: Description) -> Iterator[Finding]:
    yield from _range("shape", m.shape, m.dims, (1, limits.SIZE_MAX), m.driver)
    if m.modelled and m.itemsize not in limits.ITEMSIZES:
        counts = ", ".join(map(str, limits.ITEMSIZES))
        allowed = f"elements must have one of {counts} bytes"
        yield Finding("dtype", f"{m.itemsize} bytes", allowed, m.driver)


def _corners(m: Description) -> Iterator[Finding]:
    bits, source, of = 16, m.driver, " at every rank"
    if not m.wide:
        bits, source = limits.CORNER_BITS[m.rank], limits.CORNERS
        of = f" for a {m.rank}-D tensor"
    ends, wrong = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1), []
    for name, corner in (("lower_corner", m.lower), ("upper_corner", m.upper)):
        lengths = list(_entries(name, corner, m.axes, source))
        wrong += lengths or list(_range(name, corner, m.axes, ends, source, of))
    yield from wrong
    if not len(m.lower) == len(m.upper) == len(m.axes):
        return
    fields = [finding.field for finding in wrong]
    for axis, lower, upper, size in zip(m.axes, m.lower, m.upper, m.sizes, strict=True):
        out_of_range = f"lower_corner[{axis}]" in fields or f"upper_corner[{axis}]" in fields
        if not out_of_range and lower > size - 1 + upper:
            which = "lower_corner" if lower > 0 and upper >= 0 else "upper_corner"
            box = f"box [{lower}, {size - 1 + upper}] is empty: lower must be <= size - 1 + upper"
            value = lower if which == "lower_corner" else upper
            source = limits.WIDE if m.wide else limits.CORNERS
            yield Finding(f"{which}[{axis}]", value, box, source)


def _steps(m: Description) -> Iterator[Finding]:
    wrong = list(_entries("traversal_stride", m.step, m.axes, m.driver))
    ends = (1, limits.STEP_MAX)
    yield from wrong or _range("traversal_stride", m.step, m.axes, ends, m.driver)


def _counts(m: Description) -> Iterator[Finding]:
    if m.mode != "w128" and not 1 <= m.pixels <= limits.PIXELS_MAX:
        allowed = within(1, limits.PIXELS_MAX)
        yield Finding("pixels_per_column", m.pixels, allowed, m.driver)
    if 1 <= m.channels <= limits.CHANNELS_MAX:
        yield from _row(m, "channels_per_pixel", m.channels)
    else:
        allowed = within(1, limits.CHANNELS_MAX)
        yield Finding("channels_per_pixel", m.channels, allowed, m.driver)


def _box(m: Description) -> Iterator[Finding]:
    for field, values, most in (("box", m.box, limits.BOX_MAX), ("step", m.step, limits.STEP_MAX)):
        if len(values) != m.rank:
            yield Finding(field, values, f"must have {m.rank} entries, one a dimension", m.driver)
            continue
        yield from _range(field, values, m.dims, (1, most), m.driver)
        if field == "box" and 1 <= m.box[-1] <= most and m.interleave == "none" and m.modelled:
            yield from _row(m, f"box[{m.dims[-1]}]", m.box[-1])


def _layout(m: Description) -> Iterator[Finding]:
    known = limits.ALLOWED_SWIZZLES[m.mode]
    if m.swizzle not in known:
        allowed = f"must be one of {', '.join(known)} for mode {INFIXES[m.mode]}"
        documented = m.wide and m.swizzle in ("none", "128B_ATOM_32B_FLIP_8B")
        yield Finding("swizzle", m.swizzle, allowed, limits.WIDE if documented else m.driver)
    if m.oob_fill not in limits.FILLS:
        yield Finding("oob_fill", m.oob_fill, f"must be one of {', '.join(limits.FILLS)}", m.driver)
    elif m.oob_fill == "nan" and not m.floating:
        yield Finding("oob_fill", m.oob_fill, "NaN exists only in floating-point types", m.driver)
    if m.interleave not in limits.INTERLEAVES:
        allowed = f"must be one of {', '.join(limits.INTERLEAVES)}"
        yield Finding("interleave", m.interleave, allowed, m.driver)
    elif m.wide and m.interleave != "none":
        yield Finding("interleave", m.interleave, "must be none", m.driver)
    elif m.interleave == "32B" and m.swizzle != "32B":
        yield Finding("swizzle", m.swizzle, "must be 32B if interleave is 32B", m.driver)


def _memory(m: Description) -> Iterator[Finding]:
    unit = m.unit_bytes
    if m.address is not None and (
        m.address % unit or not 0 <= m.address < 1 << limits.ADDRESS_BITS
    ):
        allowed = f"must be a multiple of {unit} bytes, below 2^{limits.ADDRESS_BITS}"
        yield Finding("address", hex(m.address), allowed, m.driver)
    elif m.address == 0 and min(m.shape) > 0:
        allowed, hint = "is null, but the tensor has elements", "was the allocation refused?"
        yield Finding("address", "0x0", allowed, m.driver, hint)
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
        elif not 0 <= stride < limits.STRIDE_END:
            yield Finding(field, stride, "bytes must be in [0, 2^40)", m.driver)


def _interleaved_rank(m: Description) -> Iterator[Finding]:
    if m.interleave != "none" and m.rank < min(limits.RANKS):
        allowed = (
            f"must be none for a tensor of {m.rank} dimensions; {min(limits.RANKS)} are needed"
        )
        yield Finding("interleave", m.interleave, allowed, m.driver)


def _packed(m: Description) -> Iterator[Finding]:
    """Elements of 4 and 6 bits: rules that count elements."""
    size, field = m.shape[-1], f"shape[{m.dims[-1]}]"
    if m.element == "16U4_ALIGN8B" and size % 2:
        yield Finding(field, size, "must be a multiple of 2 for 16U4_ALIGN8B", m.driver)
    if m.element not in limits.PACKED_SWIZZLES:
        return
    if size % limits.PACKED_UNIT:
        allowed = f"must be a multiple of {limits.PACKED_UNIT} for {m.element}"
        yield Finding(field, size, allowed, m.driver)
    if m.channels != limits.PACKED_UNIT:
        field = f"box[{m.dims[-1]}]" if m.tiled else "channels_per_pixel"
        yield Finding(field, m.channels, f"must be {limits.PACKED_UNIT} for {m.element}", m.driver)
    swizzles = limits.PACKED_SWIZZLES[m.element]
    if m.swizzle not in swizzles:
        allowed = f"must be one of {', '.join(swizzles)} for {m.element}"
        yield Finding("swizzle", m.swizzle, allowed, m.driver)
    if m.element == "16U6_ALIGN16B" and m.interleave != "none":
        yield Finding("interleave", m.interleave, f"must be none for {m.element}", m.driver)


Rule = Callable[[Description], Iterator[Finding]]
RULES: tuple[Rule, ...] = (_shape, _corners, _steps, _counts, _layout, _memory, _packed)
TILED_RULES: tuple[Rule, ...] = (_shape, _box, _layout, _interleaved_rank, _memory, _packed)


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
        return [Finding("coords", coords, allowed, limits.COORDS)]
    found = []
    half = 1 << (limits.COORDINATE_BITS - 1)
    for letter, x in zip(m.dims, coords, strict=True):
        if not -half <= x < half:
            allowed = "must be a signed 32-bit integer"
            found.append(Finding(f"coords[{letter}]", x, allowed, limits.COORDS))
    looks = _tiled_start if m.tiled else _wide_start if m.wide else _im2col_start
    found += looks(m, start)
    unit, bits = limits.SMEM_ALIGNMENT, limits.SMEM_ADDRESS_BITS
    if start.dst % unit or not 0 <= start.dst < 1 << bits:
        allowed = f"must be a multiple of {unit} bytes, below 2^{bits}"
        found.append(Finding("dst", start.dst, allowed, limits.SMEM))
    return found


def _tiled_start(m: Description, start: Start) -> Iterator[Finding]:
    for name in ("offsets", "w_halo", "w_offset"):
        if getattr(start, name):
            yield Finding(
                name, getattr(start, name), "must be left out: a box has none", limits.HALO
            )


def store_findings(m: Description, start: Start | None) -> list[Finding]:
    """Every rule that a store or reduction with this map breaks, besides those of a load."""
    found: list[Finding] = []
    if m.wide:
        allowed = "cannot store: only tiled and im2col maps do"
        return [Finding("mode", m.mode, allowed, limits.STORE)]
    for name, corner, wrong in (("lower", m.lower, min), ("upper", m.upper, max)):
        for axis, value in zip(m.axes, corner, strict=False):  # their number may be wrong
            if wrong(value, 0) != 0:
                sign = "at least" if name == "lower" else "at most"
                allowed = f"must be {sign} 0 for a store: its box lies inside the tensor"
                hint = "store by a second map, without padding: both corners are 0"
                found.append(Finding(f"{name}_corner[{axis}]", value, allowed, limits.STORE, hint))
    if start is None or len(start.coords) != m.rank:
        return found
    for letter, x in zip(m.dims, start.coords, strict=True):
        if x < 0:
            allowed = "must be at least 0 for a store"
            found.append(Finding(f"coords[{letter}]", x, allowed, limits.STORE))
    if start.offsets is not None and any(start.offsets):
        allowed = "must be left out: the store walk is im2col_no_offs"
        found.append(Finding("offsets", start.offsets, allowed, limits.STORE))
    return found


def reduction_findings(m: Description, reduction: str) -> list[Finding]:
    """That a reduction does not take elements of the map's type."""
    types = REDUCED_TYPES[reduction]
    if m.element in types:
        return []
    allowed = f"the reduction {reduction} takes {', '.join(types)}"
    return [Finding("dtype", m.element, allowed, limits.REDUCE)]


def target_findings(m: Description, direction: str, arch: str) -> list[Finding]:
    """That a target has no instruction for the map."""
    why = lacking(INFIXES[m.mode], direction in CLUSTER_DIRECTIONS, arch)
    return [Finding("mode", m.mode, why, limits.TARGET)] if why else []


def _im2col_start(m: Description, start: Start) -> Iterator[Finding]:
    for axis, x, lower, upper, size in zip(
        m.axes, start.coords[1:-1], m.lower, m.upper, m.sizes, strict=True
    ):
        last = size - 1 + upper
        if not lower <= x <= last:
            allowed = f"must start inside the box [{lower}, {last}]"
            yield Finding(f"coords[{axis}]", x, allowed, limits.CORNERS)
    if start.offsets is not None:
        wrong, ends = (
            list(_entries("offsets", start.offsets, m.axes, limits.OFFSETS)),
            (0, (1 << limits.OFFSET_BITS[m.rank]) - 1),
        )
        of = f" for a {m.rank}-D tensor"
        yield from wrong or _range("offsets", start.offsets, m.axes, ends, limits.OFFSETS, of)
    for name, value in (("w_halo", start.w_halo), ("w_offset", start.w_offset)):
        if value:
            yield Finding(name, value, "must be 0: only im2col::w has it", limits.HALO)


def _wide_start(m: Description, start: Start) -> Iterator[Finding]:
    w, last = start.coords[-2], m.sizes[0] - 1 + m.upper[0]
    if w > last:
        allowed = f"must not be right of the box [{m.lower[0]}, {last}]"
        yield Finding("coords[w]", w, allowed, limits.WIDE)
    if start.offsets is not None and any(start.offsets):
        allowed = "must be zero: im2col::w takes w_halo and w_offset instead"
        yield Finding("offsets", start.offsets, allowed, limits.HALO)
    for name, value, end in (
        ("w_halo", start.w_halo, limits.HALO_END[m.mode]),
        ("w_offset", start.w_offset, limits.W_OFFSET_END),
    ):
        if not 0 <= value < end:
            yield Finding(name, value, within(0, end - 1), limits.HALO)


def hint(m: Description, finding: Finding) -> str:
    """What the field should be, if a formula or a rule of thumb says it."""
    name, _, letter = finding.field.rstrip("]").partition("[")
    size, elements = m.shape[-1] if m.shape else 0, "elements" if m.tiled else "channels"
    unit = f"take a multiple of {m.unit} {elements}"
    padded = -(-size // m.unit) * m.unit
    packed = f"take {m.unit}" if m.element in limits.PACKED_SWIZZLES else ""
    left = "the walk may begin left of its box but not right of it: start = lower + slot * stride"
    start = left if m.wide else "start = lower + p * stride; the filter tap belongs in the offsets"
    start = "" if m.tiled else start
    narrow = "" if m.wide else "use offsets, or an Im2colWideMap"
    hints = {
        "lower_corner": letter and "lower = -pad_lo",
        "upper_corner": letter and (WIDE_UPPER if m.wide else UPPER),
        "coords": {"": "", "n": "", "".join(m.dims[-1:]): unit}.get(letter, start),
        "offsets": "give w_offset for W, and the row of the image in coords"
        if m.wide
        else "the offset of tap r is r * dilation, counted from the start and never negative",
        "channels_per_pixel": packed or unit,
        "pixels_per_column": "split the column into several loads"
        if m.pixels > 1
        else "it is the rows of one load",
        "traversal_stride": "it is the convolution's stride",
        "strides": "pad the rows in memory",
        "shape": f"pad {'it' if m.tiled else 'C'} to {padded}"
        if letter == m.dims[-1:] and 0 < size != padded
        else "",
        "w_halo": narrow
        or "w_halo counts pixels of the walk: the shift of the buffer's last tap, t div stride",
        "w_offset": narrow or "keep w_offset = phase and extend the halo to the tap",
        "swizzle": "im2col::w writes only swizzled rows" if m.wide else "",
        "box": packed or "divide the box into several copies",
        "address": "allocate with the alignment, and slice along n, h or w",
    }
    return hints.get(name, "")
