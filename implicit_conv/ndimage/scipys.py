"""scipy's filters on top of functions of this package: a copy of its module, or its own module."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import scipy.ndimage

from implicit_conv.ndimage.calls import CHAINS, chained
from implicit_conv.ndimage.entries import STRICT, Entries
from implicit_conv.ndimage.missing import PROPAGATE
from implicit_conv.ndimage.originals import (
    COMPILED,
    copy_of,
    scipy_filters,
    scipy_filters_with,
    scipys_morphology,
)
from implicit_conv.ndimage.rank_entries import joined
from implicit_conv.problem.options import Precision

# Names in scipy's module of filters: of C functions, and of what extrema of several axes call.
C, EXTREMES = "_nd_image", "_min_or_max_filter"
OWN = {C: COMPILED, **{name: getattr(scipy_filters, name) for name in (*CHAINS, EXTREMES)}}


@functools.cache
def scipy_filters_on(precision: Precision, nan: str = PROPAGATE) -> ModuleType:
    """A copy of scipy's module of filters that calls these `Entries`."""
    module = scipy_filters_with(Entries(precision, nan))
    if nan == PROPAGATE:
        for name in CHAINS:
            setattr(module, name, chained(getattr(module, name), name, precision))
    setattr(module, EXTREMES, joined(getattr(module, EXTREMES)))
    return module


@functools.cache
def scipy_morphology() -> ModuleType:
    """A copy of scipy's module of morphology that calls these `Entries`."""
    module = copy_of(scipys_morphology)
    module.__dict__["_filters"] = scipy_filters_on(STRICT)
    return module


class Patch:
    """scipy.ndimage with these entries, until `undo` or the end of a `with` block.

    Functions that were imported from scipy.ndimage before call the entries as well, step by step.
    """

    def __init__(self, precision: Precision) -> None:
        self._before = {name: getattr(scipy_filters, name) for name in OWN}
        entries = Entries(precision)
        functions = {name: chained(OWN[name], name, precision) for name in CHAINS}
        _set({C: entries, EXTREMES: joined(OWN[EXTREMES]), **functions})

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
        if getattr(scipy.ndimage, name, None) is before:
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
