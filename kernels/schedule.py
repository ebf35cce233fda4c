"""The arithmetic of the load schedule, written once: plain integers in, plain integers out.

Python runs these functions to print a plan, njit compiles them into the CPU engine, and CUDA into
the GPU kernels. The formulas are those of addressing.md, section 5. An axis is described by (taps,
phases, dilation, stride), where W walks by ``step_w``; ``b`` is a phase buffer, ``t`` a linear tile
index, ``g`` a Geometry. Functions are defined in order of use.
"""

from implicit_conv.kernels.geometry import UNLIMITED, Geometry


def ceil_div(a: int, b: int) -> int:
    """Smallest integer >= a / b, b > 0."""
    return -(-a // b)


def base_shift(b: int, dilation: int, stride: int, offset_max: int) -> int:
    """Smallest shift that buffer b serves, or 0 if its offset does not fit into the instruction."""
    return b * dilation // stride if b * dilation <= offset_max else 0


def buffer_offset(b: int, dilation: int, stride: int, offset_max: int) -> int:
    """w_offset of buffer b: the position of its first row, counted from the tile's first pixel."""
    return b * dilation % stride + stride * base_shift(b, dilation, stride, offset_max)


def tap_shift(tap: int, phases: int, dilation: int, stride: int, offset_max: int) -> int:
    """Rows by which the view of `tap` is shifted in its buffer, which is ``tap % phases``."""
    return tap * dilation // stride - base_shift(tap % phases, dilation, stride, offset_max)


def buffer_halo(b: int, taps: int, phases: int, dilation: int, stride: int, offset_max: int) -> int:
    """w_halo of buffer b: the shift of its last tap."""
    last = b + (taps - 1 - b) // phases * phases
    return tap_shift(last, phases, dilation, stride, offset_max)


def halo_before(b: int, taps: int, phases: int, dilation: int, stride: int, offset_max: int) -> int:
    """Sum of the halos of buffers 0 .. b-1: the start of buffer b, less b whole tiles."""
    total = 0
    for earlier in range(b):
        total += buffer_halo(earlier, taps, phases, dilation, stride, offset_max)
    return total


def tile_count(g: Geometry) -> int:
    """Number of load tiles of a group: image blocks x row blocks x column blocks."""
    return ceil_div(g.N, g.tile_n) * ceil_div(g.P, g.tile_p) * ceil_div(g.Q, g.tile_q)


def tile_origin(g: Geometry, t: int) -> tuple[int, int, int]:
    """(n, p, q) of the first output pixel of tile t; columns vary fastest, images last."""
    across, down = ceil_div(g.Q, g.tile_q), ceil_div(g.P, g.tile_p)
    return (
        t // (across * down) * g.tile_n,
        t // across % down * g.tile_p,
        t % across * g.tile_q,
    )


def tile_extent(g: Geometry, n: int, p: int, q: int) -> tuple[int, int, int]:
    """(images, rows, columns) of the tile that begins at (n, p, q); the last may be smaller."""
    return min(g.tile_n, g.N - n), min(g.tile_p, g.P - p), min(g.tile_q, g.Q - q)


def block_count(g: Geometry) -> int:
    """Number of k-blocks of a tile, which are channel blocks; without channels it is one block with
    empty sums.
    """
    return max(1, ceil_div(g.C, g.tile_c))


def panel_count(g: Geometry) -> int:
    """Number of filter panels of a group."""
    return ceil_div(g.K, g.tile_k)


def column_step(g: Geometry) -> int:
    """Buffered pixels between output columns: 1, or stride_w if rows are buffered without gaps."""
    return g.stride_w // g.step_w


def column_pixels(g: Geometry, columns: int) -> int:
    """Pixels of a phase buffer that serve `columns` output columns, without the halo."""
    return (columns - 1) * column_step(g) + 1


def row_pitch(g: Geometry) -> int:
    """Pixels of one buffered image row: the tile's columns and the halo of every phase buffer."""
    halos = halo_before(g.phases_w, g.S, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max)
    return g.phases_w * column_pixels(g, g.tile_q) + halos


def image_rows(g: Geometry) -> int:
    """Buffered rows of one image: the tile's rows and the halo of every row phase."""
    halos = halo_before(g.phases_h, g.R, g.phases_h, g.dilation_h, g.stride_h, UNLIMITED)
    return g.phases_h * g.tile_p + halos


def buffer_row(g: Geometry, a: int, i: int) -> int:
    """First row slot of row i of row phase a."""
    before = halo_before(a, g.R, g.phases_h, g.dilation_h, g.stride_h, UNLIMITED)
    return a * g.tile_p + before + i


def buffer_column(g: Geometry, b: int) -> int:
    """First pixel of phase buffer b inside a buffered row."""
    before = halo_before(b, g.S, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max)
    return b * column_pixels(g, g.tile_q) + before


def first_row(g: Geometry, p: int, a: int) -> int:
    """Image row of row 0 of row phase a, for a tile whose first output row is p."""
    offset = buffer_offset(a, g.dilation_h, g.stride_h, UNLIMITED)
    return p * g.stride_h - g.pad_h + offset


def row_halo(g: Geometry, a: int) -> int:
    """Rows of row phase a in addition to the tile's rows."""
    return buffer_halo(a, g.R, g.phases_h, g.dilation_h, g.stride_h, UNLIMITED)


def row_needed(g: Geometry, i: int, rows: int, a: int) -> bool:
    """Whether row i of row phase a is read by any of the `rows` output rows of a tile."""
    if i < rows:  # the phase's first tap reads it, whose view is not shifted
        return True
    for r in range(a + g.phases_h, g.R, g.phases_h):
        if 0 <= i - tap_shift(r, g.phases_h, g.dilation_h, g.stride_h, UNLIMITED) < rows:
            return True
    return False


def column_halo(g: Geometry, b: int) -> int:
    """w_halo of phase buffer b."""
    return buffer_halo(b, g.S, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max)


def column_offset(g: Geometry, b: int) -> int:
    """w_offset of phase buffer b."""
    return buffer_offset(b, g.dilation_w, g.step_w, g.w_offset_max)


def tap_row(g: Geometry, r: int) -> int:
    """Row slot that output row 0 of a tile reads for filter row r."""
    shift = tap_shift(r, g.phases_h, g.dilation_h, g.stride_h, UNLIMITED)
    return buffer_row(g, r % g.phases_h, shift)


def tap_column(g: Geometry, s: int) -> int:
    """Pixel of a buffered row that output column 0 of a tile reads for filter column s."""
    shift = tap_shift(s, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max)
    return buffer_column(g, s % g.phases_w) + shift


def column_tap(g: Geometry, i: int) -> int:
    """The i-th filter column in the order of summation, which is buffer by buffer."""
    for b in range(g.phases_w):
        taps = ceil_div(g.S - b, g.phases_w)
        if i < taps:
            return b + i * g.phases_w
        i -= taps
    return -1


def valid_rows(g: Geometry, p: int, count: int) -> tuple[int, int]:
    """(first, end) of the filter rows that meet the image from `count` output rows p, p + 1, ..."""
    last = (p + count - 1) * g.stride_h - g.pad_h
    first = min(g.R, max(0, ceil_div(-last, g.dilation_h)))
    end = min(g.R, ceil_div(g.H - p * g.stride_h + g.pad_h, g.dilation_h))
    return first, max(first, end)


def valid_columns(g: Geometry, q: int) -> tuple[int, int]:
    """(first, end) of the filter columns that meet the image from output column q."""
    w = q * g.stride_w - g.pad_w
    first = min(g.S, max(0, ceil_div(-w, g.dilation_w)))
    return first, max(first, min(g.S, ceil_div(g.W - w, g.dilation_w)))


def skips_columns(g: Geometry) -> bool:
    """Whether each output column computes only the filter columns that meet the image: if the
    dilation is so large that register tiles stay wide.
    """
    return g.S <= 7 and g.Q > 1 and g.dilation_w >= 5 * g.stride_w


def column_segment(g: Geometry, q: int, end: int) -> tuple[int, int, int]:
    """(stop, first, last): the output columns q .. stop - 1, stop <= `end`, need exactly the filter
    columns first .. last - 1.
    """
    if not skips_columns(g):
        return end, 0, g.S
    first, last = valid_columns(g, q)
    stop = end
    if first > 0:  # up to the column whose previous tap is inside the image
        inside = g.pad_w - (first - 1) * g.dilation_w
        stop = min(stop, ceil_div(inside, g.stride_w))
    if last > first:  # up to the column whose last tap is outside
        outside = g.W + g.pad_w - (last - 1) * g.dilation_w
        stop = min(stop, ceil_div(outside, g.stride_w))
    return stop, first, last


def segment_count(g: Geometry) -> int:
    """Number of segments of a row's columns, at most."""
    return 2 * g.S + 1 if skips_columns(g) else 1


def valid_pixels(start: int, size: int, step: int, count: int) -> tuple[int, int]:
    """(first, end) of the pixels k < count whose position start + k * step is in [0, size)."""
    first = min(count, max(0, ceil_div(-start, step)))
    end = max(first, min(count, ceil_div(size - start, step)))
    return first, end


def by_role(g: Geometry, n: int, p: int, q: int) -> tuple[int, int, int]:
    """Values of the axes (image, row, column) as (outer, group, inner).

    Inner is the innermost axis along which the output has several pixels, group the next one: a
    register tile spans `inner` pixels of up to `group` rows.
    """
    if g.Q > 1:
        return (n, p, q) if g.P > 1 else (p, n, q)
    return (q, n, p) if g.P > 1 else (q, p, n)


def cuts(pixels: int, tile_m: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(height, count) of the register tiles of `pixels` pixels of a row: as few as there would be
    tiles of `tile_m` pixels. The higher tiles come first; their count may be 0.
    """
    parts = ceil_div(pixels, tile_m)
    height, higher = pixels // parts, pixels % parts
    return (height + 1, higher), (height, parts - higher)


def rows_together(height: int, tile_m: int) -> int:
    """Rows that a register tile spans, with `height` pixels of each."""
    return max(1, tile_m // height)


def panel_offset(g: Geometry, panel: int, block: int, lanes: int) -> int:
    """First element of channel block `block` of a packed panel, counted from the group's first."""
    k = panel * g.tile_k
    width = ceil_div(min(g.tile_k, g.K - k), lanes) * lanes
    return (k * g.C + block * g.tile_c * width) * g.R * g.S


# The GPU's order of gemm_m and gemm_k. `wide` is 1 where a load is an im2col::w walk, whose tiles
# have a single output row p and count slots, else 0.


def gemm_m_tiles(g: Geometry, wide: int) -> int:
    """Number of tiles along gemm_m: tiles of (n, p, q), or of (n, slot) for each p."""
    if wide:
        return g.P * ceil_div(g.N * g.slots, g.tile_m)
    return ceil_div(g.N * g.P * g.Q, g.tile_m)


def gemm_m_pixel(g: Geometry, wide: int, tile: int, row: int) -> tuple[int, int, int]:
    """(n, p, q) of a row of a tile; with `wide` q is the slot. `row` may be a vector."""
    if wide:
        per_row = ceil_div(g.N * g.slots, g.tile_m)
        m = tile % per_row * g.tile_m + row
        return m // g.slots, tile // per_row, m % g.slots
    m = tile * g.tile_m + row
    return m // (g.P * g.Q), m // g.Q % g.P, m % g.Q


def gemm_m_kept(g: Geometry, n: int, q: int) -> bool:
    """Whether (n, p, q) is an output pixel: rows past the last one and slots past Q are not."""
    return (n < g.N) & (q < g.Q)


def load_rows(g: Geometry, wide: int, p: int) -> tuple[int, int]:
    """(first, end) of the filter rows that a tile loads.

    A filter row that is outside the image for the tile's only output row p would load only zeros,
    and is skipped.
    """
    if wide:
        return valid_rows(g, p, 1)
    return 0, g.R


def load_taps(g: Geometry, wide: int) -> int:
    """Filter columns that one activation load serves."""
    return g.S if wide else 1


def load_count(g: Geometry, wide: int, p: int) -> int:
    """Number of activation loads of a tile: filter rows x [filter columns] x channel blocks."""
    first, end = load_rows(g, wide, p)
    return (end - first) * (g.S // load_taps(g, wide)) * block_count(g)


def tap_view(g: Geometry, wide: int, s: int) -> tuple[int, int]:
    """(phase buffer, row shift) of filter column s in its load."""
    if wide:
        shift = tap_shift(s, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max)
        return s % g.phases_w, shift
    return 0, 0


def halo_max(g: Geometry) -> int:
    """The largest w_halo of the phase buffers."""
    largest = 0
    for b in range(g.phases_w):
        largest = max(largest, column_halo(g, b))
    return largest


def box_products(g: Geometry, m: int) -> int:
    """Products that Winograd needs for m x m outputs: as many as their box has inputs."""
    return ((m - 1) * g.stride_h + g.R) ** 2


def pixel_rows(g: Geometry) -> int:
    """Output rows of a register tile whose lanes are pixels.

    A row needs a register for each filter's sum and one for its view; there are as many registers
    as the GEMM uses for `tile_m` pixels by two vectors.
    """
    return max(1, (2 * g.tile_m + 2) // (g.tile_k + 1))


def is_single_tap(g: Geometry) -> bool:
    """Whether filters are 1x1, so that no view of the input is shifted."""
    return g.R * g.S == 1


def plane_vectors(g: Geometry, lanes: int) -> int:
    """Whole vectors of one phase buffer of a row, enough to be read at the shift of any tap."""
    return ceil_div(column_pixels(g, g.tile_q), lanes) + ceil_div(halo_max(g), lanes)
