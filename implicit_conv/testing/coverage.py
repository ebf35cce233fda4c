"""What the trials of a fuzz have had, by dimensions, and in pairs of values of two dimensions."""

from __future__ import annotations

import contextlib
import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from implicit_conv.errors import PlanError
from implicit_conv.problem.options import (
    COMPLEX_PARTS,
    FLOAT_DTYPES,
    INTEGER_RANGES,
    PADDING_MODES,
    SPACE,
)
from implicit_conv.testing import Pair
from implicit_conv.testing.methods import NAMES, chosen
from implicit_conv.testing.operators import OPERATORS
from implicit_conv.testing.trial import Trial

Value = tuple[str, str]  # (dimension, value)
EPILOGUES = ("scale", "bias", "residual", "activation")
PADDINGS = ("none", "low", "high", "both", "cropped")  # sides of an axis that are padded
STEPS = ("1", "equal", "unequal")  # strides or dilations of all axes
# All values of each dimension, whether or not any trial can have them.
VALUES: dict[str, tuple[str, ...]] = {
    "operator": tuple(
        dict.fromkeys(made.function.format(rank) for made in OPERATORS.values() for rank in SPACE)
    ),
    "method": tuple(NAMES),
    "dtypes": (
        *FLOAT_DTYPES,
        *COMPLEX_PARTS,
        *(f"{x} x {w}" for x in INTEGER_RANGES for w in INTEGER_RANGES),
        *INTEGER_RANGES,  # of columns
    ),
    "layout": ("channels first", "channels last"),
    **{f"padding of {letter}": PADDINGS for letter in SPACE[3]},
    "padding mode": PADDING_MODES,
    "stride": STEPS,
    "dilation": STEPS,
    "epilogue": tuple(
        " + ".join(parts) or "none"
        for count in range(len(EPILOGUES) + 1)
        for parts in itertools.combinations(EPILOGUES, count)
    ),
}


def values_of(trial: Trial) -> Iterator[Value]:
    """The values of a trial; it has several methods if its stride phases have."""
    case, parts = trial.case, (trial.scaled, trial.biased, trial.added, trial.activation)
    yield "operator", trial.made.function.format(case.rank)
    with contextlib.suppress(PlanError):  # the algorithm that is asked for cannot compute it
        for name in chosen(trial.plan()) if trial.made.planned else ():
            yield "method", name
    yield "dtypes", f"{case.dtype} x {case.w_dtype}" if case.w_dtype else case.dtype
    yield "layout", "channels last" if case.layout.endswith("C") else "channels first"
    for letter, pads in zip(SPACE[case.rank], case.padding, strict=True):
        yield f"padding of {letter}", _padding(pads)
    yield "padding mode", case.padding_mode
    yield "stride", _steps(case.stride)
    yield "dilation", _steps(case.dilation)
    present = [name for name, given in zip(EPILOGUES, parts, strict=True) if given]
    yield "epilogue", " + ".join(present) or "none"


def _padding(pads: Pair) -> str:
    low, high = pads
    if min(pads) < 0:
        return "cropped"
    return PADDINGS[(low > 0) + 2 * (high > 0)]


def _steps(steps: tuple[int, ...]) -> str:
    if max(steps) == 1:
        return "1"
    return "equal" if len(set(steps)) == 1 else "unequal"


class Coverage:
    """Counts of values, and the pairs of values, of the trials that were computed."""

    def __init__(self) -> None:
        self._counts: Counter[Value] = Counter()
        self._covered: set[tuple[Value, Value]] = set()
        self._possible: set[tuple[Value, Value]] = set()

    def add(self, trials: Iterable[Trial]) -> None:
        """Count trials that were computed."""
        for trial in trials:
            values = set(values_of(trial))
            self._counts.update(values)
            self._covered |= set(_pairs(values))
        self._possible |= self._covered

    def gain(self, trials: Iterable[Trial]) -> int:
        """How many pairs trials have that none before had."""
        drawn = {pair for trial in trials for pair in _pairs(values_of(trial))}
        self._possible |= drawn
        return len(drawn - self._covered)

    @property
    def pairs(self) -> int:
        """How many pairs were drawn."""
        return len(self._possible)

    @property
    def missing(self) -> int:
        """How many of them were not computed."""
        return len(self._possible - self._covered)

    def table(self) -> str:
        """The trials that had each value, and how many pairs there were."""
        width = max(map(len, VALUES)) + 2
        rows = []
        for dimension, names in VALUES.items():
            counts = (f"{name} {self._counts[dimension, name]}" for name in names)
            text = f"{dimension:{width}}{', '.join(counts)}"
            rows.append(
                textwrap.fill(text, 100, subsequent_indent=" " * width, break_on_hyphens=False)
            )
        pairs = f"{len(self._covered)} of the {len(self._possible)} that were drawn"
        return "\n".join((*rows, f"{'pairs':{width}}{pairs}"))


def _pairs(values: Iterable[Value]) -> Iterator[tuple[Value, Value]]:
    """Pairs of values of different dimensions."""
    pairs = itertools.combinations(sorted(values), 2)
    return (pair for pair in pairs if pair[0][0] != pair[1][0])
