"""Variant: the compile-time choices of a GPU kernel, and the counts derived from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from implicit_conv.kernels.geometry import CLAMP, ZEROS
from implicit_conv.kernels.gpu.sizes import (
    CHUNK_COLUMNS,
    CHUNK_ROWS,
    COPY_SIZES,
    ITEMSIZES,
    PAIR_BYTES,
    STAGING_BYTES,
    VECTOR_BYTES,
)
from implicit_conv.kernels.gpu.tile import Tile

PRODUCERS = ("tma", "cp_async", "elements", "vectors", "planes")
CONSUMERS = ("mma", "fma", "wgmma", "direct", "rows")


@dataclass(frozen=True)
class Strip:
    """What a thread of a kernel without matrix instructions computes, and the sizes of a group.

    It has some neighbouring filters of `pixels` output pixels along W. The pixels of x that one
    filter row needs for them are loaded once, for `columns` filter columns. With one column each
    column loads pixels of its own, at the stride and dilation of the launch; more are all columns
    of a filter row, whose stride and dilation are compiled in.
    """

    pixels: int
    columns: int
    stride: int
    dilation: int
    group_c: int
    group_k: int

    @property
    def positions(self) -> tuple[int, ...]:
        """Columns of x that the strip reads, counted from its first one."""
        found = {self.position(q, s) for q in range(self.pixels) for s in range(self.columns)}
        return tuple(sorted(found))

    def position(self, pixel: int, column: int) -> int:
        """The column of x that a filter column reads for an output pixel of the strip."""
        return pixel * self.stride + column * self.dilation

    def channels(self, filters: int) -> int:
        """Number of channels that `filters` neighbouring filters read: those of whole groups."""
        return max(1, filters // self.group_k) * self.group_c


STAGED_CHANNELS = 4  # of a staged pixel: those of x, and zeros
STAGED_BYTES = 2 * STAGED_CHANNELS
STAGED_TOGETHER = 4  # pixels that a thread stages
STEP_PIXELS = 16 // STAGED_CHANNELS  # of a step of 16 elements of gemm_k


@dataclass(frozen=True)
class Rows:
    """What a kernel that stages rows of x has compiled in: the filter, and a tile's output rows.

    Windows of neighbouring output pixels overlap in a staged row. Each must begin at a multiple of
    16 bytes, so with an odd stride there is a copy of each row that begins a pixel later.
    """

    rows: int  # output rows of a tile
    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]

    @property
    def copies(self) -> int:
        """Number of copies of a staged row."""
        return 1 + self.stride[1] % 2

    @property
    def steps(self) -> int:
        """Number of steps of 16 elements of gemm_k that a filter row takes."""
        return -(-self.kernel[1] // STEP_PIXELS)

    @property
    def staged(self) -> int:
        """Number of rows of x that a tile reads."""
        return (self.rows - 1) * self.stride[0] + self.kernel[0]

    @property
    def fresh(self) -> int:
        """Number of these that the tile above does not read."""
        return min(self.staged, self.rows * self.stride[0])

    @property
    def held(self) -> int:
        """Number of rows that fit shared memory: those of a tile, and of any that follows it."""
        return 2 * self.staged

    def groups(self, columns: int) -> int:
        """Number of groups of pixels of a row that `columns` output pixels read."""
        pixels = (columns - 1) * self.stride[1] + self.steps * STEP_PIXELS
        return -(-(pixels + STAGED_TOGETHER - 1) // STAGED_TOGETHER)

    def pitch(self, columns: int) -> int:
        """Bytes of a staged row; a group begins up to three pixels before the first window."""
        return (self.groups(columns) + 1) * STAGED_TOGETHER * STAGED_BYTES


@dataclass(frozen=True)
class Variant(Tile):
    """One kernel: how it loads and multiplies, and on which tile.

    `mode` "im2col" loads each filter tap separately, "w" all taps of a filter row together.
    `warps_m` x `warps_n` consumer warps share the tile; with wgmma, warps_m is the number of all
    consumer warps, which have 16 rows each. The consumer "direct" multiplies on the CUDA cores,
    without a GEMM: its threads load what they need, 16 bytes ("vectors") or an element at a time,
    and its tile has `tile_m` output pixels and `tile_n` filters of neighbouring groups. The
    consumer "rows" stages rows of an x of few channels, four pixels of a thread at a time, from
    pixels ("vectors"), channel "planes" or "elements", and multiplies windows of them.
    """

    mode: str
    producer: str
    consumer: str
    dtype: str
    tile_m: int
    tile_n: int
    row_bytes: int = 128  # bytes of one pixel's channel block, which is the swizzle span
    warps_m: int = 2
    warps_n: int = 2
    permuted: bool = False  # the w walk is made of im2col copies over permuted axes (sm_90)
    descriptors: bool = False  # wgmma reads A by descriptor, not from registers
    activation: int = CLAMP
    plain: bool = False  # there is no activation
    biased: bool = False  # a bias is added
    scaled: bool = False  # and values are multiplied before: biases are pairs (scale, bias)
    residual: bool = False  # a residual is added
    folded: bool = False  # a load has all columns of a filter row, as contiguous elements
    linear: bool = False  # in y and residual all pixels have one stride
    packed: bool = False  # y and residual are channels-last, with rows aligned to 16 bytes
    strip: Strip | None = None  # what a thread of "direct" computes
    band: Rows | None = None  # what "rows" has compiled in
    volume: bool = False  # x has planes, and so have its filters
    resident: int = 1  # blocks of a multiprocessor: one stores while another multiplies
    copy_bytes: int = VECTOR_BYTES  # of a cp.async
    padding_mode: int = ZEROS  # as of geometry.py; others are loaded by computed addresses
    rounded: bool = True  # y has elements of `dtype`, else float32, which all sums are

    def __post_init__(self) -> None:
        for rule, holds in _rules(self):
            if not holds:
                raise ValueError(f"{self}: {rule}")

    @property
    def wide(self) -> int:
        """1 if loads are im2col::w walks, else 0."""
        return int(self.mode == "w")

    @property
    def y_dtype(self) -> str:
        """The dtype of y."""
        return self.dtype if self.rounded else "float32"

    @property
    def bias_bytes(self) -> int:
        """Bytes of a filter's bias, and of its scale if there is one."""
        return PAIR_BYTES if self.scaled else self.itemsize

    @property
    def alignment(self) -> int:
        """Bytes of which addresses and strides of x and w need be multiples at most."""
        return self.itemsize if self.producer == "elements" else self.copy_bytes

    @property
    def tile_c(self) -> int:
        """Number of channels of a k-block."""
        return self.row_bytes // self.itemsize

    @property
    def producer_warps(self) -> int:
        """Number of warps that load; with wgmma and one block, there are always four, because
        setmaxnreg applies to a whole warpgroup. With "direct" and "rows" there are none.
        """
        if self.strip or self.band:
            return 0
        if self.consumer == "wgmma" and self.resident == 1:
            return 4
        return super().producer_warps

    @property
    def bound(self) -> int:
        """Number of blocks for which registers are limited; by rows, a residual needs those of two.

        Then fewer blocks than `resident` may run together.
        """
        return 1 if self.band and self.residual else self.resident

    @property
    def row_columns(self) -> int:
        """Number of output pixels of a row of a tile of "rows"."""
        return 16 * self.warps_m

    @property
    def chunk_columns(self) -> int:
        """Columns that a warp stores together: those of a line of memory, where it has them."""
        line = 2 * CHUNK_COLUMNS
        return line if self.staged and self.tile_n % (line * self.warps_n) == 0 else CHUNK_COLUMNS

    @property
    def staged(self) -> bool:
        """Whether elements of y are staged as they are: channels-last ones of 16 bits."""
        return self.packed and ITEMSIZES[self.y_dtype] == 2

    @property
    def staging_bytes(self) -> int:
        """Bytes of a warp's staging tile: a chunk of elements of y, or padded rows of float32."""
        if self.staged:
            return CHUNK_ROWS * self.chunk_columns * self.itemsize
        return STAGING_BYTES

    @property
    def filters(self) -> int:
        """Number of neighbouring filters of a thread of "direct"."""
        return VECTOR_BYTES // self.itemsize if self.producer == "vectors" else 1

    @property
    def quad(self) -> int:
        """Number of filters whose taps such a thread loads together."""
        return min(self.filters, 4)

    @property
    def load_elements(self) -> int:
        """Number of elements of x that such a thread loads together."""
        assert self.strip
        channels = self.strip.channels(self.filters)
        return min(channels, self.filters) if self.producer == "vectors" else 1

    @property
    def load_words(self) -> int:
        """Number of words that hold these elements."""
        return max(1, self.load_elements * self.itemsize // 4)

    @property
    def target(self) -> str:
        """The least target, as ptx.TARGETS names it."""
        if self.consumer == "wgmma":
            return "sm_90a"
        if self.producer != "tma":
            return "sm_80"
        return "sm_100" if self.wide and not self.permuted else "sm_90"

    @property
    def name(self) -> str:
        """A short name for tables."""
        if self.strip:
            return self._direct_name()
        if self.band:
            return self._rows_name(self.band)
        loads = {"im2col": "im2col", "w": "im2col-w (permuted)" if self.permuted else "im2col::w"}
        source = " by descriptor" if self.descriptors else ""
        loader = f"folded {self.loader}" if self.folded else self.loader
        loader = f"volume {loader}" if self.volume else loader
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_c}"
        y = "" if self.rounded else ", float32 y"
        return f"{loader} {loads[self.mode]} + {self.consumer}{source} {self.dtype} {tile}{y}"

    def _direct_name(self) -> str:
        strip, tile = self.strip, f"{self.tile_m}x{self.tile_n}"
        assert strip
        shared = f"rows of {strip.columns}" if strip.columns > 1 else "single"
        steps = f" at stride {strip.stride}" if strip.stride > 1 else ""
        steps += f" at dilation {strip.dilation}" if strip.dilation > 1 else ""
        return (
            f"direct {self.producer} {self.dtype} {tile}, {strip.pixels} pixels, "
            f"{shared} taps{steps}, groups {strip.group_c}-{strip.group_k}"
        )

    def _rows_name(self, band: Rows) -> str:
        kernel, stride = ("x".join(map(str, pair)) for pair in (band.kernel, band.stride))
        tile = f"{band.rows}x{self.row_columns}x{self.tile_n}"
        y = "" if self.rounded else ", float32 y"
        return f"rows {self.producer} {self.dtype} {tile}, {kernel}/{stride} on {band.channels}{y}"


def _rules(v: Variant) -> Iterator[tuple[str, bool]]:
    yield f"consumer {v.consumer!r} and strip {v.strip}", (v.consumer == "direct") == bool(v.strip)
    yield f"consumer {v.consumer!r} and rows {v.band}", (v.consumer == "rows") == bool(v.band)
    yield "sums that are not rounded are of 16-bit elements", v.rounded or v.dtype != "float32"
    if v.strip:
        yield from _strip_rules(v.strip)
        yield from _direct_rules(v, v.strip)
    elif v.band:
        yield from _rows_rules(v, v.band)
    else:
        yield from _gemm_rules(v)


def _strip_rules(strip: Strip) -> Iterator[tuple[str, bool]]:
    yield (
        f"a strip has pixels, columns, channels and filters: {strip}",
        min(vars(strip).values()) > 0,
    )
    yield (
        f"a column of its own has no stride or dilation compiled in: {strip}",
        strip.columns > 1 or strip.stride == strip.dilation == 1,
    )


def _direct_rules(v: Variant, strip: Strip) -> Iterator[tuple[str, bool]]:
    yield "direct kernels load vectors or elements", v.producer in ("vectors", "elements")
    yield f"dtype is one of {tuple(ITEMSIZES)}, not {v.dtype!r}", v.dtype in ITEMSIZES
    yield "direct kernels have no walk and no folded loads", v.mode == "im2col" and not v.folded
    yield "direct kernels round y to the dtype of x", v.rounded
    yield "pixels are located one by one", not v.linear
    yield "vectors are stored 16 bytes at a time", v.packed or v.producer != "vectors"
    yield "a panel has whole vectors", v.tile_n % v.filters == 0
    yield "threads stage whole rows of taps", v.threads % v.tile_n == 0
    strips = v.threads // (v.tile_n // v.filters)
    yield "each thread has a strip of the tile", v.tile_m == strips * strip.pixels


def _rows_rules(v: Variant, band: Rows) -> Iterator[tuple[str, bool]]:
    yield "rows are staged from pixels, planes or elements", v.producer in PRODUCERS[2:]
    yield f"dtype is bfloat16 or float16, not {v.dtype!r}", v.itemsize == 2
    yield f"a staged pixel has 1 to {STAGED_CHANNELS} channels", 0 < band.channels <= 4
    yield "rows have no walk and no folded loads", v.mode == "im2col" and not v.folded
    yield "rows are located one by one", not v.linear
    yield "a filter row has at most four steps", 0 < band.steps <= 4
    yield "a filter row has one swizzle span", v.row_bytes == (64 if band.steps <= 2 else 128)
    yield "a tile is a rectangle", v.tile_m == band.rows * v.row_columns and v.warps_n == 1
    yield "two warps share 32 pixels of an odd stride", v.warps_m % band.copies == 0
    yield "a warp has whole chunks of 32 columns", v.tile_n % CHUNK_COLUMNS == 0


def _gemm_rules(v: Variant) -> Iterator[tuple[str, bool]]:
    wgmma = v.consumer == "wgmma"
    yield f"mode is one of im2col, w; not {v.mode!r}", v.mode in ("im2col", "w")
    yield f"producer is one of {PRODUCERS}, not {v.producer!r}", v.producer in PRODUCERS
    yield f"consumer is one of {CONSUMERS}, not {v.consumer!r}", v.consumer in CONSUMERS
    yield f"dtype is one of {tuple(ITEMSIZES)}, not {v.dtype!r}", v.dtype in ITEMSIZES
    yield (
        "float32 is multiplied by fma, and nothing else is",
        (v.consumer == "fma") == (v.itemsize == 4),
    )
    yield "the w walk is loaded by tensor copies", v.mode != "w" or v.producer == "tma"
    yield (
        f"a copy has {COPY_SIZES} bytes, less than 16 by cp.async alone; not {v.copy_bytes}",
        v.copy_bytes in (COPY_SIZES if v.producer == "cp_async" else (VECTOR_BYTES,)),
    )
    yield (
        "folded loads go by elements or copies of less than 16 bytes",
        v.producer == "elements" or v.copy_bytes < VECTOR_BYTES or not v.folded,
    )
    yield (
        "padding repeats pixels where threads compute the address of each",
        v.padding_mode == ZEROS or (v.producer != "tma" and not v.folded),
    )
    yield "only the w walk has permuted axes", v.mode == "w" or not v.permuted
    yield "the w walk reads a single plane", v.mode != "w" or not v.volume
    yield "slots of the w walk are no pixels of one stride", v.mode != "w" or not v.linear
    yield "a pixel's row is 64 or 128 bytes, a swizzle span", v.row_bytes in (64, 128)
    yield "a warp has whole tiles of 16 rows", v.tile_m % (16 * v.warps_m) == 0
    yield "a warp has whole chunks of 32 columns", v.tile_n % (CHUNK_COLUMNS * v.warps_n) == 0
    yield (
        "wgmma takes whole warpgroups, each with all columns",
        not wgmma or (v.warps_m % 4 == 0 and v.warps_n == 1 and v.tiles_m == 1 and v.tile_n <= 256),
    )
    yield "only wgmma reads descriptors", wgmma or not v.descriptors
