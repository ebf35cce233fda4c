"""The families of filters and images that random trials have, and the dice that draw them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from implicit_conv.testing import Case, Pair

T = TypeVar("T")


class Dice:
    """A source of random choices."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def pick(self, *values: T) -> T:
        """One of `values`."""
        return values[int(self._rng.integers(len(values)))]

    def number(self, low: int, high: int) -> int:
        """An integer from `low` to `high`."""
        return int(self._rng.integers(low, high + 1))

    def pair(self, low: int, high: int) -> Pair:
        """Two integers from `low` to `high`."""
        return self.number(low, high), self.number(low, high)

    def channels(self, most: int) -> int:
        """A number of channels of at most `most`: half are multiples of 4, as words have."""
        return self.pick(self.number(1, most), 4 * self.number(1, most // 4))

    def filters(self, most: int) -> int:
        """A number of filters, or of channels that are the filters of input gradients: at most
        `most`, or one that fills panels of 1, 2, 4, .. vectors.
        """
        return self.pick(self.number(1, most), self.number(1, most), 32 << self.number(0, 2))

    def happens(self, one_in: int) -> bool:
        """True once in `one_in` times."""
        return self.number(1, one_in) == 1


def _any_size(dice: Dice, filters: Case) -> tuple[int, ...]:
    return dice.number(1, 20), dice.number(1, 60)


@dataclass(frozen=True)
class Family:
    """How the filters and images of similar problems are drawn, in two dimensions."""

    filters: Callable[[Dice], Case]
    size: Callable[[Dice, Case], tuple[int, ...]] = _any_size
    products: int = 1_000_000  # of an image at most: numpy sums so many in about a millisecond


FAMILIES = {
    "dense": Family(
        lambda dice: Case(
            C=dice.channels(40),
            K=dice.filters(70),
            kernel=dice.pair(1, 5),
            stride=dice.pair(1, 3),
        )
    ),
    "3x3": Family(
        lambda dice: Case(
            C=dice.channels(40),
            K=dice.filters(70),
            stride=dice.pick((1, 1), (1, 1), (2, 2)),
        ),
    ),
    "pointwise": Family(
        lambda dice: Case(
            C=dice.pick(1, dice.channels(64), dice.channels(64)),
            K=dice.filters(70),
            kernel=(1, 1),
            stride=dice.pick((1, 1), (1, 1), (2, 1)),
        )
    ),
    "wide pointwise": Family(
        lambda dice: Case(C=dice.pick(64, 192, 256), K=dice.pick(192, 256), kernel=(1, 1)),
        lambda dice, _: (dice.pick(4, 7, 8), dice.pick(4, 8, 9, 16)),
        products=5_000_000,
    ),
    "wide": Family(  # whose stride phases have short sums and long ones
        lambda dice: Case(
            C=dice.filters(160),
            K=dice.filters(160),
            kernel=dice.pair(1, 4),
            stride=dice.pair(1, 3),
        ),
        lambda dice, _: (dice.number(1, 7), dice.number(1, 12)),
        products=5_000_000,
    ),
    "dilated": Family(
        lambda dice: Case(
            C=dice.channels(20),
            K=dice.filters(40),
            kernel=(dice.number(1, 3), dice.number(2, 5)),
            dilation=dice.pair(1, 12),
            stride=dice.pair(1, 2),
        )
    ),
    "depthwise": Family(
        lambda dice: Case(
            groups=dice.pick(dice.number(1, 80), 16 * dice.number(1, 6)),
            kernel=dice.pair(1, 5),
            stride=dice.pair(1, 4),
            dilation=dice.pick((1, 1), (1, 1), dice.pair(1, 3)),
        )
    ),
    "long depthwise": Family(  # filters of several passes, and rows of several blocks of taps
        lambda dice: Case(
            groups=dice.number(1, 9),
            kernel=dice.pick(
                (1, dice.number(100, 1200)),
                (dice.number(2, 4), dice.number(100, 300)),
                (dice.number(9, 150), dice.number(1, 3)),
            ),
            stride=dice.pair(1, 2),
            dilation=dice.pick((1, 1), (1, 1), dice.pair(1, 2)),
        ),
        lambda dice, filters: tuple(taps + dice.number(0, 80) for taps in filters.kernel),
    ),
    "multiplier": Family(
        lambda dice: Case(groups=dice.number(2, 24), K=dice.pick(2, 4, 8), kernel=dice.pair(1, 4))
    ),
    "grouped": Family(
        lambda dice: Case(
            groups=dice.number(2, 6),
            C=dice.channels(8),
            K=dice.filters(40),
            kernel=dice.pair(1, 4),
            stride=dice.pair(1, 2),
        )
    ),
    "wide groups": Family(  # with channels that pay for transforms
        lambda dice: Case(
            groups=dice.number(2, 3),
            C=dice.pick(16, 32, dice.number(14, 48)),
            K=dice.pick(16, 32, dice.number(14, 70)),
            kernel=dice.pick((3, 3), (3, 3), dice.pair(1, 3)),
            stride=dice.pick((1, 1), (1, 1), (2, 2)),
        )
    ),
    "line": Family(
        lambda dice: Case(
            C=dice.channels(40),
            K=dice.filters(40),
            kernel=dice.pick((dice.number(2, 7), 1), (1, dice.number(2, 7))),
            stride=dice.pick((1, 1), (1, 1), (2, 2)),
        )
    ),
    "few channels": Family(
        lambda dice: Case(
            C=dice.channels(4),
            K=dice.filters(8),
            kernel=dice.pair(1, 7),
            stride=dice.pair(1, 4),
        )
    ),
    "window": Family(
        lambda dice: Case(C=dice.channels(40), K=dice.filters(40), kernel=dice.pair(1, 6)),
        lambda dice, filters: filters.kernel,
    ),
    "row": Family(
        lambda dice: Case(C=dice.channels(8), K=dice.number(1, 8), kernel=(1, dice.number(1, 9))),
        lambda dice, _: (1, dice.number(50, 3000)),
    ),
    "column": Family(
        lambda dice: Case(C=dice.channels(8), K=dice.number(1, 8), kernel=(dice.number(1, 9), 1)),
        lambda dice, _: (dice.number(50, 3000), 1),
    ),
    "pixel": Family(
        lambda dice: Case(C=dice.channels(70), K=dice.filters(70), kernel=dice.pair(1, 3)),
        lambda dice, _: (1, 1),
    ),
    "empty": Family(
        lambda dice: replace(
            dice.pick(Case(N=0, C=3, K=5), Case(C=0, K=5), Case(C=3, K=0)), kernel=dice.pair(1, 3)
        )
    ),
}

# Filters of groups whose windows are columns of im2col.
COLUMNS = Family(
    lambda dice: Case(
        C=dice.number(1, 3),
        groups=dice.number(1, 3),
        kernel=dice.pair(1, 3),
        stride=dice.pair(1, 3),
        dilation=dice.pick((1, 1), dice.pair(1, 3)),
    ),
    lambda dice, _: (dice.number(1, 9), dice.number(1, 12)),
)
