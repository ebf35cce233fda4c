"""Serves: what a method declares to compute, as data; the planner gives it no other problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from implicit_conv.options import ACTIVATIONS, DTYPES, FLOAT_DTYPES, PRECISIONS

if TYPE_CHECKING:
    from implicit_conv.kernels.activation import Epilogue

OPERANDS = ("bias", "residual", "scale")  # arrays of an epilogue
# Why a method does not serve a precision, by the strictest one that it serves.
TOO_STRICT = {
    "standard": "its order of sums is not that of precision {!r}; ask for 'standard'",
    "fast": "its error exceeds that of precision {!r}; ask for 'fast'",
}


class Serves(NamedTuple):
    """The problems that a method computes; it is given no other.

    Attributes
    ----------
    dtypes : tuple of str
        Of x.
    precision : str
        The strictest one; the method serves those that allow more, too.
    activations : tuple of str
        Kinds of activations, of ACTIVATIONS. Every method can do without one.
    operands : tuple of str
        Arrays of the epilogue, of OPERANDS. A method that scales adds a bias after that.
    """

    dtypes: tuple[str, ...] = DTYPES
    precision: str = "strict"
    activations: tuple[str, ...] = ACTIVATIONS
    operands: tuple[str, ...] = OPERANDS

    @property
    def precisions(self) -> tuple[str, ...]:
        """All precisions that it serves."""
        return PRECISIONS[PRECISIONS.index(self.precision) :]

    def refusal(self, dtype: str, precision: str, activation: str) -> str:
        """Why the planner does not give it a problem with these options, or an empty string."""
        if dtype not in self.dtypes:
            return f"it supports {_listed(self.dtypes)}, not {dtype}"
        if precision not in self.precisions:
            return TOO_STRICT[self.precision].format(precision)
        if activation not in ("", *self.activations):
            served = _listed(self.activations) if self.activations else "none"
            return f"of the activations it supports {served}, not {activation}"
        return ""

    def takes(self, epilogue: Epilogue, added: bool) -> bool:
        """Whether it computes an epilogue with these operands, and a residual if `added`."""
        given = {"bias": epilogue.biased, "residual": added, "scale": epilogue.scaled}
        return all(name in self.operands for name, is_given in given.items() if is_given)


def _listed(words: Sequence[str]) -> str:
    """Words in a sentence."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


FLOATS = Serves(FLOAT_DTYPES)
