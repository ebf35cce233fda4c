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
    from implicit_conv.tma.banks import BankReport
    from implicit_conv.tma.descriptors import MatrixDescriptor
    from implicit_conv.tma.drawing import draw
    from implicit_conv.tma.image import SmemImage, smem_image
    from implicit_conv.tma.kernel_check import KernelReport, MapArgument, check_kernel
    from implicit_conv.tma.limits import Finding, TensorMapError
    from implicit_conv.tma.linter import lint
    from implicit_conv.tma.logged import log_maps
    from implicit_conv.tma.lowering import Lowering
    from implicit_conv.tma.lowering_choice import maps_for, phases_for
    from implicit_conv.tma.maps import Im2colMap, Im2colWideMap
    from implicit_conv.tma.simulate import Walk, load, store, walk
    from implicit_conv.tma.tiled import TiledMap
    from implicit_conv.tma.triton_check import check_triton

_HOME = {
    "BankReport": "banks",
    "Finding": "limits",
    "Im2colMap": "maps",
    "Im2colWideMap": "maps",
    "KernelReport": "kernel_check",
    "Lowering": "lowering",
    "MapArgument": "kernel_check",
    "MatrixDescriptor": "descriptors",
    "SmemImage": "image",
    "TensorMapError": "limits",
    "TiledMap": "tiled",
    "Walk": "simulate",
    "check_kernel": "kernel_check",
    "check_triton": "triton_check",
    "draw": "drawing",
    "lint": "linter",
    "load": "simulate",
    "log_maps": "logged",
    "maps_for": "lowering_choice",
    "phases_for": "lowering_choice",
    "smem_image": "image",
    "store": "simulate",
    "walk": "simulate",
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


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that importing the package costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
