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
    from implicit_conv.tma.check.kernel_check import KernelReport, MapArgument, check_kernel
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

_HOME = {
    "BankReport": "run.banks",
    "Finding": "maps.limits",
    "Im2colMap": "maps.maps",
    "Im2colWideMap": "maps.maps",
    "KernelReport": "check.kernel_check",
    "Lowering": "run.lowering",
    "MapArgument": "check.kernel_check",
    "MatrixDescriptor": "maps.descriptors",
    "SmemImage": "show.image",
    "TensorMapError": "maps.limits",
    "TiledMap": "maps.tiled",
    "Walk": "run.simulate",
    "check_kernel": "check.kernel_check",
    "check_triton": "check.triton_check",
    "draw": "show.drawing",
    "lint": "check.linter",
    "load": "run.simulate",
    "log_maps": "check.logged",
    "maps_for": "run.lowering_choice",
    "phases_for": "run.lowering_choice",
    "smem_image": "show.image",
    "store": "run.simulate",
    "walk": "run.simulate",
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
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
