"""The TMA laboratory: simulate, check and draw im2col, im2col::w and im2col::w::128 copies.

>>> from implicit_conv import tma
>>> m = tma.Im2colMap(shape=(2, 4, 4, 64), dtype="float32", lower_corner=(-1, -1),
...                   upper_corner=(-1, -1), pixels_per_column=16, channels_per_pixel=32)
>>> tma.walk(m, (0, -1, -1, 0), offsets=(1, 1)).coordinates[:5].tolist()
[[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 1, 0]]
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from implicit_conv.tma.check.kernel_check import MapArgument, check_kernel
    from implicit_conv.tma.check.kernel_report import KernelReport
    from implicit_conv.tma.check.linter import lint
    from implicit_conv.tma.check.logged import log_maps
    from implicit_conv.tma.check.triton_check import check_triton
    from implicit_conv.tma.maps.descriptors import MatrixDescriptor
    from implicit_conv.tma.maps.limits import Finding, TensorMapError
    from implicit_conv.tma.maps.maps import Im2colMap, Im2colWideMap
    from implicit_conv.tma.maps.tiled import TiledMap
    from implicit_conv.tma.run.banks import BankReport
    from implicit_conv.tma.run.lowering import Lowering
    from implicit_conv.tma.run.lowering_choice import maps_for, phases_for
    from implicit_conv.tma.run.simulate import Walk, load, store, walk
    from implicit_conv.tma.show.drawing import draw
    from implicit_conv.tma.show.image import SmemImage, smem_image

_HOMES = {
    "check.kernel_check": ("MapArgument", "check_kernel"),
    "check.kernel_report": ("KernelReport",),
    "check.linter": ("lint",),
    "check.logged": ("log_maps",),
    "check.triton_check": ("check_triton",),
    "maps.descriptors": ("MatrixDescriptor",),
    "maps.limits": ("Finding", "TensorMapError"),
    "maps.maps": ("Im2colMap", "Im2colWideMap"),
    "maps.tiled": ("TiledMap",),
    "run.banks": ("BankReport",),
    "run.lowering": ("Lowering",),
    "run.lowering_choice": ("maps_for", "phases_for"),
    "run.simulate": ("Walk", "load", "store", "walk"),
    "show.drawing": ("draw",),
    "show.image": ("SmemImage", "smem_image"),
}
__all__ = [
    "BankReport",
    "Finding",
    "Im2colMap",
    "Im2colWideMap",
    "KernelReport",
    "Lowering",
    "MapArgument",
    "MatrixDescriptor",
    "SmemImage",
    "TensorMapError",
    "TiledMap",
    "Walk",
    "check_kernel",
    "check_triton",
    "draw",
    "lint",
    "load",
    "log_maps",
    "maps_for",
    "phases_for",
    "smem_image",
    "store",
    "walk",
]


if not TYPE_CHECKING:  # type checkers would believe that it has any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, so that importing the package costs nothing."""
        for home, names in _HOMES.items():
            if name in names:
                value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
