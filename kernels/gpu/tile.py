"""What the kernels of all operators derive from their tile, warps and loader."""

from __future__ import annotations

from implicit_conv.kernels.gpu.sizes import ITEMSIZES, VECTOR_BYTES, WARP


class Tile:
    """The fields by which `Variant` and `WgradVariant` are alike, and what follows from them."""

    producer: str
    dtype: str
    tile_m: int
    tile_n: int
    warps_m: int
    warps_n: int
    copy_bytes: int

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZES[self.dtype]

    @property
    def consumer_warps(self) -> int:
        """Number of warps that multiply."""
        return self.warps_m * self.warps_n

    @property
    def producer_warps(self) -> int:
        """Number of warps that load: one for tensor copies, else four."""
        return 1 if self.producer == "tma" else 4

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return WARP * (self.consumer_warps + self.producer_warps)

    @property
    def arrivals(self) -> int:
        """Arrivals that fill a stage: one announces tensor copies, otherwise all threads copy."""
        return 1 if self.producer == "tma" else WARP * self.producer_warps

    @property
    def tiles_m(self) -> int:
        """Number of tiles of 16 rows that a warp accumulates."""
        return self.tile_m // (16 * self.warps_m)

    @property
    def tiles_n(self) -> int:
        """Number of tiles of 8 columns that a warp accumulates."""
        return self.tile_n // (8 * self.warps_n)

    @property
    def accumulators(self) -> int:
        """Number of accumulator registers of a thread."""
        return 4 * self.tiles_m * self.tiles_n

    @property
    def loader(self) -> str:
        """How it loads, for names."""
        loader = {"tma": "TMA", "cp_async": "cp.async", "elements": "element"}[self.producer]
        return f"{self.copy_bytes}-byte {loader}" if self.copy_bytes < VECTOR_BYTES else loader
