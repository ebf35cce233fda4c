"""Implicit-GEMM convolution for numpy users: TMA im2col copies on GPUs, and the same load schedule
on any CPU.

Names are loaded on first use: importing the package compiles nothing and touches no device.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "implicit_conv needs the global interpreter lock, which orders its threads: start this "
        "free-threaded Python as python -X gil=1, or with PYTHON_GIL=1 in the environment"
    )

if TYPE_CHECKING:
    from implicit_conv import ndimage as ndimage
    from implicit_conv import ptx, tma
    from implicit_conv import signal as signal
    from implicit_conv import torch as torch
    from implicit_conv.errors import DriverError, DTypeError, PlanError, ShapeError, TileError
    from implicit_conv.operators.causal import CausalConv1d
    from implicit_conv.operators.columns import col2im, im2col
    from implicit_conv.operators.conv import (
        clear_plan_cache,
        conv1d,
        conv2d,
        conv3d,
        plan_cache_size,
        plan_conv1d,
        plan_conv2d,
        plan_conv3d,
    )
    from implicit_conv.operators.input_grad import (
        conv1d_input_grad,
        conv2d_input_grad,
        conv3d_input_grad,
        plan_conv1d_input_grad,
        plan_conv2d_input_grad,
        plan_conv3d_input_grad,
    )
    from implicit_conv.operators.plan import Plan
    from implicit_conv.operators.transposed import (
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
        plan_conv_transpose1d,
        plan_conv_transpose2d,
        plan_conv_transpose3d,
    )
    from implicit_conv.operators.weight_grad import (
        conv1d_weight_grad,
        conv2d_weight_grad,
        conv3d_weight_grad,
        plan_conv1d_weight_grad,
        plan_conv2d_weight_grad,
        plan_conv3d_weight_grad,
    )
    from implicit_conv.scale.tiled import plan_tiles, tiles
    from implicit_conv.settings import config

__version__ = "0.1.0"
__all__ = [
    "CausalConv1d",
    "DTypeError",
    "DriverError",
    "Plan",
    "PlanError",
    "ShapeError",
    "TileError",
    "clear_plan_cache",
    "col2im",
    "config",
    "conv1d",
    "conv1d_input_grad",
    "conv1d_weight_grad",
    "conv2d",
    "conv2d_input_grad",
    "conv2d_weight_grad",
    "conv3d",
    "conv3d_input_grad",
    "conv3d_weight_grad",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "im2col",
    "plan_cache_size",
    "plan_conv1d",
    "plan_conv1d_input_grad",
    "plan_conv1d_weight_grad",
    "plan_conv2d",
    "plan_conv2d_input_grad",
    "plan_conv2d_weight_grad",
    "plan_conv3d",
    "plan_conv3d_input_grad",
    "plan_conv3d_weight_grad",
    "plan_conv_transpose1d",
    "plan_conv_transpose2d",
    "plan_conv_transpose3d",
    "plan_tiles",
    "ptx",
    "tiles",
    "tma",
]
_HOME = {  # the module of each name, which is imported on first use of the name
    name: module
    for module, names in {
        "errors": "DriverError DTypeError PlanError ShapeError TileError",
        "operators.causal": "CausalConv1d",
        "operators.columns": "col2im im2col",
        "operators.conv": "clear_plan_cache conv1d conv2d conv3d plan_cache_size plan_conv1d "
        "plan_conv2d plan_conv3d",
        "operators.input_grad": "conv1d_input_grad conv2d_input_grad conv3d_input_grad "
        "plan_conv1d_input_grad plan_conv2d_input_grad plan_conv3d_input_grad",
        "operators.plan": "Plan",
        "operators.transposed": "conv_transpose1d conv_transpose2d conv_transpose3d "
        "plan_conv_transpose1d plan_conv_transpose2d plan_conv_transpose3d",
        "operators.weight_grad": "conv1d_weight_grad conv2d_weight_grad conv3d_weight_grad "
        "plan_conv1d_weight_grad plan_conv2d_weight_grad plan_conv3d_weight_grad",
        "scale.tiled": "plan_tiles tiles",
        "settings": "config",
    }.items()
    for name in names.split()
}
# Modules for users of other libraries, which import these: they are loaded by name alone.
_DOORS = ("blocks", "cubed", "dask", "ndimage", "signal", "torch")


if not TYPE_CHECKING:  # type checkers would believe that it has any name

    def __getattr__(name: str) -> object:
        if name in (*_DOORS, "ptx", "tma"):
            try:
                return importlib.import_module(f"implicit_conv.{name}")
            except (ImportError, OSError) as error:  # its library is missing, or a part of that
                # hasattr, `help` and inspect take no other error of a name that `dir` lists.
                raise AttributeError(str(error)) from error
        if name not in _HOME:
            from implicit_conv.errors import nearest

            raise AttributeError(
                f"module 'implicit_conv' has no attribute {name!r}; filters of scipy are in "
                "implicit_conv.ndimage and implicit_conv.signal, enable() in implicit_conv.torch"
                f"{nearest(name, __dir__())}"
            )
        value = getattr(importlib.import_module(f"implicit_conv.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_DOORS, *(name for name in globals() if name.startswith("__"))})
