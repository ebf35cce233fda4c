"""scipy's filters on top of functions of this package: a copy of its module, or its own module."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import scipy.ndimage
from scipy.ndimage import _filters as scipy_filters

from implicit_conv.ndimage.calls import CHAINS, chained
from implicit_conv.ndimage.entries import COMPILED, Entries, scipy_filters_with
from implicit_conv.ndimage.missing import PROPAGATE
from implicit_conv.problem.options import Precision

C = "_nd_image"  # the name of the module of C functions in that of filters
OWN = {C: COMPILED, **{name: getattr(scipy_filters, name) for name in CHAINS}}  # scipy's


@functools.cache
def scipy_filters_on(precision: Precision, nan: str = PROPAGATE) -> ModuleType:
    """A copy of scipy's module of filters that calls these `Entries`."""
    module = scipy_filters_with(Entries(precision, nan))
    if nan == PROPAGATE:
        for name in CHAINS:
            setattr(module, name, chained(getattr(module, name), name, precision))
    return module


class Patch:
    """scipy.ndimage with these entries, until `undo` or the end of a `with` block.

    Functions that were imported from scipy.ndimage before call the entries as well, step by step.
    """

    def __init__(self, precision: Precision) -> None:
        self._before = {name: getattr(scipy_filters, name) for name in OWN}
        entries = Entries(precision)
        _set({C: entries, **{name: chained(OWN[name], name, precision) for name in CHAINS}})

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        _set(self._before)

    def __repr__(self) -> str:
        return "<scipy.ndimage's filters, computed by implicit_conv>"


def _set(functions: dict[str, Any]) -> None:
    """Set names of scipy's module of filters, and those that scipy.ndimage has from it."""
    for name, value in functions.items():
        before = getattr(scipy_filters, name)
        setattr(scipy_filters, name, value)
        if name != C and getattr(scipy.ndimage, name) is before:
            setattr(scipy.ndimage, name, value)


def unpatch() -> None:
    """Let scipy.ndimage compute its filters by its own C code again.

    This undoes all calls of `patch`; where none is in force nothing changes.

    Examples
    --------
    >>> import implicit_conv.ndimage
    >>> patched = implicit_conv.ndimage.patch()
    >>> implicit_conv.ndimage.unpatch()
    """
    _set(OWN)
