"""scipy's own modules of filters, and copies of them that call other functions."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from implicit_conv.errors import install

try:
    from scipy.ndimage import _filters as scipy_filters
    from scipy.ndimage import _morphology as scipys_morphology
except ImportError as error:
    raise ImportError(
        f"implicit_conv.ndimage needs scipy 1.11 or newer: {install('scipy>=1.11')}"
    ) from error

__all__ = ["COMPILED", "copy_of", "scipy_filters", "scipy_filters_with", "scipys_morphology"]
COMPILED = scipy_filters._nd_image  # its functions in C


def scipy_filters_with(compiled: object) -> ModuleType:
    """A copy of scipy's module of filters that calls `compiled` in place of its C functions."""
    module = copy_of(scipy_filters)
    module.__dict__["_nd_image"] = compiled
    return module


def copy_of(original: ModuleType) -> ModuleType:
    """A module that is executed once more."""
    spec = importlib.util.find_spec(original.__name__)
    if spec is None or spec.loader is None:
        raise ImportError(f"the source of {original.__name__} cannot be found")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
