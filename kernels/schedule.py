"""The arithmetic of the load schedule, written once: plain integers in, plain integers out.

Python runs these functions to print a plan, njit compiles them into the CPU engine, and CUDA into
the GPU kernels; docs/explanation/shifted-view.md shows what they compute. An axis is described by
(taps, phases, dilation, stride), where W walks by ``step_w``; ``b`` is a phase buffer, ``t`` a
linear tile index, ``g`` a Geometry. Functions are defined in order of use.
"""

from implicit_conv.kernels.geometry import (
    CIRCULAR,
    REPLICATE,
    SYMMETRIC,
    UNLIMITED,
    ZEROS,
    Geometry,
)

# Terms of a sum of floats that are added one by one, at most. ResNet-50, NHWC, took 0.4 % longer
# with 128 than with 256, and 1.7 % longer with 64 (Intel Xeon, AVX-512, 2026-11).
CHAIN = 128
# Products to whose multiples a chain is shortened: an AMX tile adds those of 16 pairs at once. They
# are products, not elements, so that sums of pairs are divided where those of single channels are.
CHAIN_STEP = 32


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
    """Sum of the halos of buffers 0 .. b-1: the start of buffer b, less b whole tiles.

    Without a limit of offsets, each tap of a buffer after its first one adds the same shift to the
    halo: the first `longer` buffers have `rounds` such taps, the others one less.
    """
    if offset_max == UNLIMITED:
        rounds, longer = (taps - 1) // phases, (taps - 1) % phases + 1
        shorter = max(0, b - longer)
        return (b * rounds - shorter) * (phases * dilation // stride)
    total = 0
    for earlier in range(b):
        total += buffer_halo(earlier, taps, phases, dilation, stride, offset_max)
    return total


# Output planes are counted through all images: plane n is output depth n % Z of image n // Z. A
# load tile has planes of one image or, where an image has a single plane, of several images.


def taps(g: Geometry) -> int:
    """Number of taps of a filter."""
    return g.T * g.R * g.S


def filter_rows(g: Geometry) -> int:
    """Number of filter rows; row j is row j % R of filter plane j // R."""
    return g.T * g.R


def plane_blocks(g: Geometry) -> int:
    """Number of load tiles along the output planes."""
    if g.Z > 1:
        return g.N * ceil_div(g.Z, g.tile_n)
    return ceil_div(g.N, g.tile_n)


def first_plane(g: Geometry, block: int) -> int:
    """The first output plane of a block of planes."""
    if g.Z > 1:
        per_image = ceil_div(g.Z, g.tile_n)
        return block // per_image * g.Z + block % per_image * g.tile_n
    return block * g.tile_n


def tile_count(g: Geometry) -> int:
    """Number of load tiles of a group: plane blocks x row blocks x column blocks."""
    return plane_blocks(g) * ceil_div(g.P, g.tile_p) * ceil_div(g.Q, g.tile_q)


def tile_origin(g: Geometry, t: int) -> tuple[int, int, int]:
    """(n, p, q) of the first output pixel of tile t, where n counts planes; columns vary fastest,
    planes last.
    """
    across, down = ceil_div(g.Q, g.tile_q), ceil_div(g.P, g.tile_p)
    return (
        first_plane(g, t // (across * down)),
        t // across % down * g.tile_p,
        t % across * g.tile_q,
    )


def tile_extent(g: Geometry, n: int, p: int, q: int) -> tuple[int, int, int]:
    """(planes, rows, columns) of the tile that begins at (n, p, q); the last may be smaller."""
    planes = g.Z - n % g.Z if g.Z > 1 else g.N - n
    return min(g.tile_n, planes), min(g.tile_p, g.P - p), min(g.tile_q, g.Q - q)


def plane_offset(g: Geometry, n: int, image: int, plane: int) -> int:
    """Position of output plane n in an array with these strides of images and of planes."""
    return n // g.Z * image + n % g.Z * plane


def plane_step(g: Geometry, image: int, plane: int) -> int:
    """The stride between the planes of a load tile, of an array with these strides."""
    return plane if g.Z > 1 else image


def input_plane(g: Geometry, n: int, t: int) -> int:
    """Input plane that output plane n reads for filter plane t; it may be outside the image."""
    return n % g.Z * g.stride_d + t * g.dilation_d - g.pad_d


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


def plane_rows(g: Geometry) -> int:
    """Buffered rows of one input plane: the tile's rows and the halo of every row phase."""
    halos = halo_before(g.phases_h, g.R, g.phases_h, g.dilation_h, g.stride_h, UNLIMITED)
    return g.phases_h * g.tile_p + halos


def image_rows(g: Geometry) -> int:
    """Buffered rows that one output plane needs: those of an input plane for each filter plane."""
    return g.T * plane_rows(g)


def plane_pitch(g: Geometry) -> int:
    """Buffered input planes from one output plane of a tile to the next: those of neighbours
    overlap, as their windows do, but for planes of several images and for gaps in the windows.
    """
    return g.stride_d if g.Z > 1 and g.dilation_d == 1 and g.stride_d < g.T else g.T


def buffered_planes(g: Geometry, planes: int) -> int:
    """Input planes that are buffered for `planes` output planes of a tile."""
    return (planes - 1) * plane_pitch(g) + g.T


def buffered_plane(g: Geometry, i: int, planes: int) -> tuple[int, int]:
    """(output plane of a tile of `planes`, filter plane) that read its buffered input plane i."""
    pitch = plane_pitch(g)
    plane = min(i // pitch, planes - 1)
    return plane, i - plane * pitch


def output_plane_rows(g: Geometry) -> int:
    """Buffered rows from the first row of one output plane of a tile to that of the next."""
    return plane_pitch(g) * plane_rows(g)


def tile_rows(g: Geometry) -> int:
    """Buffered rows of a load tile."""
    return buffered_planes(g, g.tile_n) * plane_rows(g)


def buffer_row(g: Geometry, a: int, i: int) -> int:
    """Row slot of row i of row phase a, in its plane."""
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
    """Whether row i of row phase a is read by any of the `rows` output rows of a tile.

    Each tap of the phase after its first one shifts its view by the same number of rows; the last
    view that begins at or before row i has it, if any has.
    """
    rounds = (g.R - 1 - a) // g.phases_h
    shift = g.phases_h * g.dilation_h // g.stride_h
    return i - min(i // max(1, shift), rounds) * shift < rows


def column_halo(g: Geometry, b: int) -> int:
    """w_halo of phase buffer b."""
    return buffer_halo(b, g.S, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max)


def column_offset(g: Geometry, b: int) -> int:
    """w_offset of phase buffer b."""
    return buffer_offset(b, g.dilation_w, g.step_w, g.w_offset_max)


def tap_row(g: Geometry, j: int) -> int:
    """Row slot that output row 0 of a tile's first plane reads for filter row j."""
    r = j % g.R
    shift = tap_shift(r, g.phases_h, g.dilation_h, g.stride_h, UNLIMITED)
    return j // g.R * plane_rows(g) + buffer_row(g, r % g.phases_h, shift)


def tap_column(g: Geometry, s: int) -> int:
    """Pixel of a buffered row that output column 0 of a tile reads for filter column s."""
    shift = tap_shift(s, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max)
    return buffer_column(g, s % g.phases_w) + shift


def edge_columns(g: Geometry) -> int:
    """Columns of a load tile, at most, that are padding and repeat pixels."""
    if g.padding_mode == ZEROS:
        return 0
    last = (g.Q - 1) * g.stride_w + (g.S - 1) * g.dilation_w - g.pad_w
    return min(row_pitch(g), g.phases_w * (max(0, g.pad_w) + max(0, last - g.W + 1)))


def column_tap(g: Geometry, i: int) -> int:
    """The i-th filter column in the order of summation, which is remainder by remainder.

    The first `longer` remainders have `rounds` + 1 taps each, the others `rounds`.
    """
    rounds, longer = g.S // g.remainders_w, g.S % g.remainders_w
    if i < longer * (rounds + 1):
        return i // (rounds + 1) + i % (rounds + 1) * g.remainders_w
    i -= longer * (rounds + 1)
    return longer + i // rounds + i % rounds * g.remainders_w


def repeated_pixel(mode: int, position: int, size: int) -> int:
    """The pixel of an axis of `size` >= 1 pixels that the padding at `position` repeats; any mode
    except ZEROS.
    """
    if mode == REPLICATE:
        return min(max(position, 0), size - 1)
    if mode == CIRCULAR:
        return position % size
    if mode == SYMMETRIC:
        place = position % (2 * size)
        return min(place, 2 * size - 1 - place)
    period = max(1, 2 * (size - 1))
    place = position % period
    return min(place, period - place)


def source(mode: int, position: int, size: int, pad: int, last: int) -> int:
    """The pixel of an axis of `size` pixels that a load reads at `position`; -1 for a zero.

    `last` is the last position that an output needs: padding after it is zero in every mode. A
    negative `pad` crops: padding repeats no pixel that is cropped.
    """
    if 0 <= position < size:
        return position
    if mode == ZEROS or position > last:
        return -1
    first = max(0, -pad)
    return first + repeated_pixel(mode, position - first, size - first)


def source_plane(g: Geometry, d: int) -> int:
    """The input plane that a load reads at depth d; -1 for zeros."""
    last = (g.Z - 1) * g.stride_d + (g.T - 1) * g.dilation_d - g.pad_d
    return source(g.padding_mode, d, g.D, g.pad_d, last)


def source_row(g: Geometry, h: int, p_end: int) -> int:
    """The image row that a load reads at height h, where the output has `p_end` rows; -1 for
    zeros.
    """
    last = (p_end - 1) * g.stride_h + (g.R - 1) * g.dilation_h - g.pad_h
    return source(g.padding_mode, h, g.H, g.pad_h, last)


def source_column(g: Geometry, w: int, q_end: int) -> int:
    """The image column that a load reads at w, where the output has `q_end` columns; -1 for a
    zero.
    """
    last = (q_end - 1) * g.stride_w + (g.S - 1) * g.dilation_w - g.pad_w
    return source(g.padding_mode, w, g.W, g.pad_w, last)


def columns_in_turn(g: Geometry) -> int:
    """Columns of the image between the repetitions of a pixel in padding of the mode CIRCULAR."""
    return g.W - max(0, -g.pad_w)


# Filter taps that read zeros alone are skipped. In other modes than ZEROS no tap does.


def valid_planes(g: Geometry, n: int, count: int) -> tuple[int, int]:
    """(first, end) of the filter planes that read more than zeros from `count` output planes n,
    n + 1, ... of a tile.
    """
    if g.padding_mode != ZEROS:
        return 0, g.T
    first_position = n % g.Z * g.stride_d - g.pad_d
    last = first_position + (count - 1 if g.Z > 1 else 0) * g.stride_d
    first = min(g.T, max(0, ceil_div(-last, g.dilation_d)))
    end = min(g.T, ceil_div(g.D - first_position, g.dilation_d))
    return first, max(first, end)


def valid_rows(g: Geometry, p: int, count: int) -> tuple[int, int]:
    """(first, end) of the filter rows that read more than zeros from `count` output rows p, p + 1,
    ...
    """
    if g.padding_mode != ZEROS:
        return 0, g.R
    last = (p + count - 1) * g.stride_h - g.pad_h
    first = min(g.R, max(0, ceil_div(-last, g.dilation_h)))
    end = min(g.R, ceil_div(g.H - p * g.stride_h + g.pad_h, g.dilation_h))
    return first, max(first, end)


def valid_columns(g: Geometry, q: int) -> tuple[int, int]:
    """(first, end) of the filter columns that read more than zeros from output column q."""
    if g.padding_mode != ZEROS:
        return 0, g.S
    w = q * g.stride_w - g.pad_w
    first = min(g.S, max(0, ceil_div(-w, g.dilation_w)))
    return first, max(first, min(g.S, ceil_div(g.W - w, g.dilation_w)))


def used_planes(g: Geometry, n: int, count: int, t: int) -> tuple[int, int]:
    """(first, end) of the `count` output planes n, n + 1, ... of a tile for which filter plane t
    reads more than zeros, counted from n.
    """
    d = input_plane(g, n, t)
    if g.padding_mode != ZEROS:
        return 0, count
    if g.Z > 1:
        return valid_pixels(d, g.D, g.stride_d, count)
    return 0, count if 0 <= d < g.D else 0


def used_rows(g: Geometry, p: int, count: int, r: int) -> tuple[int, int]:
    """(first, end) of the `count` output rows p, p + 1, ... for which row r of a filter plane reads
    more than zeros, counted from p.
    """
    if g.padding_mode != ZEROS:
        return 0, count
    return valid_pixels(p * g.stride_h - g.pad_h + r * g.dilation_h, g.H, g.stride_h, count)


def used_columns(g: Geometry, q: int, count: int, s: int) -> tuple[int, int]:
    """(first, end) of the `count` output columns q, q + 1, ... for which filter column s reads more
    than zeros, counted from q.
    """
    if g.padding_mode != ZEROS:
        return 0, count
    return valid_pixels(q * g.stride_w - g.pad_w + s * g.dilation_w, g.W, g.stride_w, count)


def reads_padding(g: Geometry) -> bool:
    """Whether any tap reads padding above, below, or on a side of an image."""
    below = (g.P - 1) * g.stride_h + (g.R - 1) * g.dilation_h - g.pad_h
    right = (g.Q - 1) * g.stride_w + (g.S - 1) * g.dilation_w - g.pad_w
    return g.pad_h > 0 or g.pad_w > 0 or below >= g.H or right >= g.W


def skips_columns(g: Geometry, in_place: int) -> bool:
    """Whether each output column computes only the filter columns that read more than zeros; it
    must where x is read in place, which has no padding.
    """
    if g.padding_mode != ZEROS or not reads_padding(g):
        return False
    return in_place != 0 or g.skips_w != 0


def column_segment(g: Geometry, q: int, end: int, in_place: int) -> tuple[int, int, int]:
    """(stop, first, last): the output columns q .. stop - 1, stop <= `end`, need exactly the filter
    columns first .. last - 1.
    """
    if not skips_columns(g, in_place):
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


def segment_count(g: Geometry, in_place: int) -> int:
    """Number of segments of a row's columns, at most."""
    return 2 * g.S + 1 if skips_columns(g, in_place) else 1


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


def rows_together(g: Geometry, height: int, in_place: int) -> int:
    """Rows that a register tile spans, with `height` pixels of each.

    All of them multiply the same taps, of which none may read padding where x is read in place.
    """
    return 1 if in_place and reads_padding(g) else max(1, g.tile_m // height)


def rows_alike(g: Geometry, p: int, rows: int) -> int:
    """How many of the `rows` output rows p, p + 1, ... multiply the same filter rows as p does: the
    others leave out more or fewer that read zeros alone.
    """
    own = valid_rows(g, p, 1)
    if valid_rows(g, p + rows - 1, 1) == own:  # both ends only fall from row to row
        return rows
    count = 1
    while valid_rows(g, p + count, 1) == own:
        count += 1
    return count


def is_column(g: Geometry, inner: int, in_place: int) -> bool:
    """Whether `inner` pixels of each row are one, so that a register tile's pixels are the rows."""
    return inner == 1 and rows_together(g, 1, in_place) > 1


def chain_rows(elements: int, chain: int) -> int:
    """Filter rows of `elements` elements whose products one chain of `chain` terms adds up."""
    return max(1, chain // max(1, elements))


def chain_parts(elements: int, chain: int) -> int:
    """Chains of a filter row of `elements` elements: one, or parts of at most `chain` elements."""
    return max(1, ceil_div(elements, chain))


def chain_length(elements: int, chain: int) -> int:
    """Elements of each of these parts but the last; their products are a multiple of CHAIN_STEP."""
    step = chain // (CHAIN // CHAIN_STEP)  # elements that have CHAIN_STEP products
    return ceil_div(ceil_div(elements, chain_parts(elements, chain)), step) * step


def panel_offset(g: Geometry, panel: int, block: int, lanes: int) -> int:
    """First element of channel block `block` of a packed panel, counted from the group's first."""
    k = panel * g.tile_k
    width = ceil_div(min(g.tile_k, g.K - k), lanes) * lanes
    return (k * g.C + block * g.tile_c * width) * taps(g)


def head_offset(g: Geometry, panel: int, block: int, lanes: int) -> int:
    """Elements of the heads of a group's packed panels up to that of channel block `block` of a
    panel, included.
    """
    k = panel * g.tile_k
    width = ceil_div(min(g.tile_k, g.K - k), lanes) * lanes
    return k * block_count(g) + (block + 1) * width


# The GPU's order of gemm_m and gemm_k. `wide` is 1 where a load is an im2col::w walk, whose tiles
# have a single output row p and count slots, else 0. p counts the rows of all planes of an image.


def gemm_m_tiles(g: Geometry, wide: int) -> int:
    """Number of tiles along gemm_m: tiles of (n, p, q), or of (n, slot) for each p."""
    if wide:
        return g.P * ceil_div(g.N * g.slots, g.tile_m)
    return ceil_div(g.N * g.Z * g.P * g.Q, g.tile_m)


def gemm_m_pixel(g: Geometry, wide: int, tile: int, row: int) -> tuple[int, int, int]:
    """(n, p, q) of a row of a tile; with `wide` q is the slot. `row` may be a vector."""
    if wide:
        per_row = ceil_div(g.N * g.slots, g.tile_m)
        m = tile % per_row * g.tile_m + row
        return m // g.slots, tile // per_row, m % g.slots
    m = tile * g.tile_m + row
    rows = g.Z * g.P
    return m // (rows * g.Q), m // g.Q % rows, m % g.Q


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


def tap_view(g: Geometry, wide: int, s: int) -> tuple[int, int]:
    """(phase buffer, row shift) of filter column s in its load."""
    if wide:
        shift = tap_shift(s, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max)
        return s % g.phases_w, shift
    return 0, 0


def halo_max(g: Geometry) -> int:
    """The largest w_halo of the phase buffers."""
    if g.w_offset_max == UNLIMITED:  # the first buffer has most taps
        return column_halo(g, 0)
    largest = 0
    for b in range(g.phases_w):
        largest = max(largest, column_halo(g, b))
    return largest


def box_extent(filter_taps: int, m: int) -> int:
    """Outputs of a Winograd box along an axis: m, but one of filters with a single tap there."""
    return m if filter_taps > 1 else 1


def box_outputs(g: Geometry, m: int) -> int:
    """Outputs of a Winograd box, of m along an axis."""
    return box_extent(g.R, m) * box_extent(g.S, m)


def box_products(g: Geometry, m: int) -> int:
    """Products that Winograd needs for the outputs of a box: as many as the box has inputs."""
    rows = (box_extent(g.R, m) - 1) * g.stride_h + g.R
    columns = (box_extent(g.S, m) - 1) * g.stride_w + g.S
    return rows * columns


def planes_together(g: Geometry, planes: int) -> int:
    """Output planes, of the `planes` of a tile, whose boxes Winograd multiplies as rows of one
    matrix: all, or one at a time of filters with several planes, of which some may read padding.
    """
    return planes if g.T == 1 else 1


def pixel_rows(g: Geometry) -> int:
    """Output rows of a register tile whose lanes are pixels.

    A row needs a register for each filter's sum and one for its view; there are as many registers
    as the GEMM uses for `tile_m` pixels by two vectors.
    """
    return max(1, (2 * g.tile_m + 2) // (g.tile_k + 1))


def is_single_tap(g: Geometry) -> bool:
    """Whether filters are 1x1, so that no view of the input is shifted."""
    return taps(g) == 1


def plane_vectors(g: Geometry, lanes: int) -> int:
    """Whole vectors of one phase buffer of a row, enough to be read at the shift of any tap."""
    return ceil_div(column_pixels(g, g.tile_q), lanes) + ceil_div(halo_max(g), lanes)
