"""The compile-time choices of the kernels of a weight gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from implicit_conv.kernels.gpu.sizes import (
    COPY_SIZES,
    ITEMSIZES,
    SWIZZLE_ATOM_BYTES,
    VECTOR_BYTES,
)
from implicit_conv.kernels.gpu.tile import Tile

PANEL_BYTES = 128  # of a pixel in a stage: the swizzle span
COPY_THREADS = 256  # of a block that adds splits, or copies images


@dataclass(frozen=True)
class WgradVariant(Tile):
    """The kernel that sums over the pixels of a split.

    Its tile has `tile_m` filters and `tile_n` columns, which are channels of filter taps. A stage
    has them of `tile_k` output pixels, in panels of 128 bytes a pixel. `warps_m` x `warps_n` warps
    share the tile.
    """

    # "tma": tensor copies; "cp_async": `copy_bytes` at a time; "elements": one by one, any layout
    producer: str
    dtype: str
    tile_m: int
    tile_n: int
    warps_m: int
    warps_n: int
    tile_k: int = 64
    resident: int = 1  # blocks of a multiprocessor
    copy_bytes: int = VECTOR_BYTES  # of a cp.async
    biased: bool = False  # blocks of the first columns also add up dy, for the gradient of a bias

    def __post_init__(self) -> None:
        for rule, holds in _rules(self):
            if not holds:
                raise ValueError(f"{self}: {rule}")

    @property
    def consumer(self) -> str:
        """What multiplies: "wgmma" what tensor copies load, else "mma", or "fma" for float32."""
        return "wgmma" if self.producer == "tma" else "fma" if self.itemsize == 4 else "mma"

    @property
    def unit(self) -> int:
        """Elements of a chunk of 16 bytes, or of a tensor copy's panel.

        The columns of a tap are padded to a multiple of it.
        """
        return self.panel if self.producer == "tma" else VECTOR_BYTES // self.itemsize

    @property
    def panel(self) -> int:
        """Elements of a pixel in a panel."""
        return PANEL_BYTES // self.itemsize

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel of a stage."""
        return self.tile_k * PANEL_BYTES

    @property
    def a_bytes(self) -> int:
        """Bytes of a stage of dy."""
        return self.tile_m // self.panel * self.panel_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: first those of dy, then those of x."""
        return self.a_bytes + self.tile_n // self.panel * self.panel_bytes

    @property
    def bound(self) -> int:
        """Number of blocks for which registers are limited."""
        return self.resident

    @property
    def target(self) -> str:
        """The least target, as ptx.TARGETS names it."""
        return "sm_90a" if self.producer == "tma" else "sm_80"

    @property
    def name(self) -> str:
        """A short name for tables."""
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        also = " and db" if self.biased else ""
        return f"{self.loader} wgrad{also} + {self.consumer} {self.dtype} {tile}"


def _rules(v: WgradVariant) -> Iterator[tuple[str, bool]]:
    yield f"producer {v.producer!r}", v.producer in ("tma", "cp_async", "elements")
    yield f"dtype is one of {tuple(ITEMSIZES)}, not {v.dtype!r}", v.dtype in ITEMSIZES
    sizes = COPY_SIZES if v.producer == "cp_async" else (VECTOR_BYTES,)
    yield f"a copy has {COPY_SIZES} bytes, not {v.copy_bytes}", v.copy_bytes in sizes
    yield "tiles are whole panels", v.tile_m % v.panel == v.tile_n % v.panel == 0
    yield "panels are whole swizzle atoms", v.panel_bytes % SWIZZLE_ATOM_BYTES == 0
    yield "a stage has whole steps of 16 pixels", v.tile_k % 16 == 0
    rows, columns = 16 * v.tiles_m, 8 * v.tiles_n
    shared = v.tile_m == rows * v.warps_m and v.tile_n == columns * v.warps_n
    yield "warps share the tile", shared and rows > 0 and columns >= 16
    yield "a warp adds up 16 rows of dy", v.tile_m <= 16 * v.consumer_warps or not v.biased
    if v.consumer == "wgmma":
        yield "wgmma multiplies 16-bit elements", v.itemsize == 2
        yield "warpgroups have 64 rows", (v.tiles_m, v.warps_n, v.warps_m % 4) == (1, 1, 0)
    else:
        yield "a warp's part is in one panel", v.panel % rows == v.panel % columns == 0


@dataclass(frozen=True)
class SplitSum:
    """The kernel that adds the sums of all splits, and rounds them to `dtype`.

    If they are `biased`, those of dy follow those of dw.
    """

    dtype: str
    biased: bool = False

    threads = COPY_THREADS
    bound = 1


@dataclass(frozen=True)
class ImageCopy:
    """The kernel that copies images as channels-last ones, 16 bytes of `pixels` at a time."""

    itemsize: int
    pixels: int

    threads = COPY_THREADS
    bound = 1

    @property
    def unit(self) -> int:
        """Elements of a chunk."""
        return VECTOR_BYTES // self.itemsize
