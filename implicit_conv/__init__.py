"""Implicit-GEMM convolution for numpy users: TMA im2col copies on GPUs, the same schedule on any
CPU.

Names are loaded on first use: importing the package compiles nothing and touches no device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from implicit_conv import tma as tma
    from implicit_conv.api import clear_plan_cache as clear_plan_cache
    from implicit_conv.api import conv2d as conv2d
    from implicit_conv.api import plan_cache_size as plan_cache_size
    from implicit_conv.api import plan_conv2d as plan_conv2d
    from implicit_conv.columns import col2im as col2im
    from implicit_conv.columns import im2col as im2col
    from implicit_conv.errors import DriverError as DriverError
    from implicit_conv.errors import DTypeError as DTypeError
    from implicit_conv.errors import PlanError as PlanError
    from implicit_conv.errors import ShapeError as ShapeError
    from implicit_conv.plan import Plan as Plan
    from implicit_conv.settings import config as config

__version__ = "0.1.0"

_MODULES = {
    "clear_plan_cache": "api",
    "col2im": "columns",
    "conv2d": "api",
    "im2col": "columns",
    "plan_cache_size": "api",
    "plan_conv2d": "api",
    "config": "settings",
    "Plan": "plan",
    "ShapeError": "errors",
    "DTypeError": "errors",
    "PlanError": "errors",
    "DriverError": "errors",
}
__all__ = [
    "DTypeError",
    "DriverError",
    "Plan",
    "PlanError",
    "ShapeError",
    "clear_plan_cache",
    "col2im",
    "config",
    "conv2d",
    "im2col",
    "plan_cache_size",
    "plan_conv2d",
    "tma",
]


def __getattr__(name: str) -> object:
    if name == "tma":
        return importlib.import_module("implicit_conv.tma")
    if name not in _MODULES:
        raise AttributeError(f"module 'implicit_conv' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"implicit_conv.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
