"""Arrays of random programs, and what calls of two libraries with the same arguments come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import is_masked_array
from implicit_conv.testing import Array
from implicit_conv.testing.storage import stored

LARGEST = 40  # integers, in magnitude, where the dtype has them
NOT_FINITE = (np.nan, np.inf, -np.inf)


@dataclass(frozen=True)
class Data:
    """An array of normally distributed numbers, or of integers.

    Attributes
    ----------
    shape : tuple of ints
    dtype : str
    seed : int
    special : int
        Elements that are not finite, in a dtype that has such ones.
    storage : one of `storage.STORAGES`
    scale : float
        A factor of floats.
    """

    shape: tuple[int, ...]
    dtype: str
    seed: int
    special: int = 0
    storage: str = "contiguous"
    scale: float = 1.0

    def array(self) -> Array:
        """The array, a new one each time."""
        rng, dtype = np.random.default_rng(self.seed), np.dtype(self.dtype)
        if dtype.kind in "biu":
            low = 0 if dtype.kind in "bu" else -LARGEST
            values: Array = rng.integers(low, 2 if dtype.kind == "b" else LARGEST + 1, self.shape)
        else:
            values = rng.standard_normal(self.shape) * self.scale
            if dtype.kind == "c":
                values = values + 1j * rng.standard_normal(self.shape) * self.scale
        values = np.asarray(values).astype(dtype)
        if self.special and values.size and dtype.kind in "fc":
            at = rng.integers(values.size, size=self.special)
            values.flat[at] = rng.choice(NOT_FINITE, self.special)
        return stored(values, self.storage, rng) if values.ndim else values


def made(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with arrays in the place of their `Data`."""
    return {
        name: value.array() if isinstance(value, Data) else value
        for name, value in arguments.items()
    }


class DifferenceError(AssertionError):
    """A door and its library come to different outcomes."""


@dataclass(frozen=True)
class Outcome:
    """What a call comes to: its results, or its error."""

    results: tuple[Array, ...] = ()
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return repr(self.error)
        return " and ".join(
            f"{result.dtype} {result.shape}" + " with a mask" * is_masked_array(result)
            for result in self.results
        )

    def pairs(self, found: Outcome) -> list[tuple[Array, Array]]:
        """The results of two calls, of which this one is as expected.

        Raises
        ------
        DifferenceError
            One of them failed, they failed in different ways, or their shapes or dtypes differ, or
            one of them has a mask.
        """
        kinds = [
            (type(one.error), [_form(result) for result in one.results]) for one in (self, found)
        ]
        if kinds[0] != kinds[1]:
            raise DifferenceError(f"expected {self}, found {found}") from found.error or self.error
        return list(zip(self.results, found.results, strict=True))


def outcome(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Outcome:
    """Call a function; its exceptions are outcomes like others."""
    try:
        with np.errstate(all="ignore"):
            found = function(**arguments)
    except Exception as error:
        return Outcome(error=error)
    results = found if isinstance(found, tuple) else (found,)
    return Outcome(tuple(one if is_masked_array(one) else np.asarray(one) for one in results))


def _form(result: Array) -> tuple[object, ...]:
    return result.shape, result.dtype, is_masked_array(result)


def check_bits(expected: Array, found: Array) -> None:
    """Raise a DifferenceError if elements differ; two NaNs are equal, and so are both zeros."""
    wrong = np.asarray(found != expected)
    if expected.dtype.kind in "fc":
        wrong &= ~(np.isnan(found) & np.isnan(expected))
    _report(wrong, expected, found)


def check_close(expected: Array, found: Array, bound: float | Array) -> None:
    """Raise a DifferenceError if elements differ by more than `bound`, or if one of them alone is
    finite.
    """
    finite = np.isfinite(expected)
    with np.errstate(all="ignore"):
        apart = np.abs(found - expected) > bound
    _report((finite != np.isfinite(found)) | (finite & apart), expected, found)


def _report(wrong: Array, expected: Array, found: Array) -> None:
    at = np.argwhere(wrong)
    if len(at):
        first = tuple(at[0].tolist())
        raise DifferenceError(
            f"{len(at)} of {wrong.size} elements are wrong; the first, {list(first)}, is "
            f"{found[first]!r} and should be {expected[first]!r}"
        )


def placed(tensor: Any) -> Any:
    """A contiguous tensor in memory of numpy, which may be guarded."""
    import torch

    memory = np.empty(tensor.numel() * tensor.element_size(), np.uint8)
    return torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape).copy_(tensor)
