"""Draw trials at random: the same seed and number always give the same trial.

Most time of a short run would go into the compilation of kernels, so TRIALS trials in a row share a
kind: filter, dtype, layouts, options and a few images. Everything else differs from trial to trial.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TypeVar

import numpy as np

from implicit_conv.activation import Activation
from implicit_conv.options import (
    FLOAT_DTYPES,
    LAYOUTS,
    PADDING_MODES,
    PADDING_NAMES,
    WEIGHT_LAYOUTS,
)
from implicit_conv.parse import Padding, parse_padding
from implicit_conv.testing import Case, Pair
from implicit_conv.testing.storage import STORAGES, WRITABLE
from implicit_conv.testing.trial import EXACT, SMOOTH, VALUES, Trial

T = TypeVar("T")
TRIALS = 100  # trials of a kind
IMAGES = 3  # images of a kind: each may need register tiles of its own, which are compiled
FLOATS = ("float32", "float64")


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

    def happens(self, one_in: int) -> bool:
        """True once in `one_in` times."""
        return self.number(1, one_in) == 1


@dataclass(frozen=True)
class Kind:
    """What TRIALS trials share."""

    name: str
    trials: tuple[Trial, ...]  # one of each image
    activations: tuple[Activation, ...]
    storages: tuple[str, ...]

    @property
    def out_storages(self) -> tuple[str, ...]:
        """Those of `storages` that `out` may have."""
        return tuple(storage for storage in self.storages if storage in WRITABLE)


def draw_trial(seed: int, number: int, threads: int) -> Trial:
    """Trial `number` of a seed, on at most `threads` threads."""
    kind = draw_kind(seed, number // TRIALS)
    dice = Dice(seed, 1, number)
    trial = dice.pick(*kind.trials)
    case = trial.case if trial.case.N == 0 else replace(trial.case, N=dice.pick(1, 1, 2, 3))
    x_storage, w_storage, residual_storage = (dice.pick(*kind.storages) for _ in range(3))
    finite = not dice.happens(6)
    values = dice.pick("integers", "normal") if finite else dice.pick(*_special(trial))
    if values == "normal" and "repeated" in (x_storage, w_storage):
        values = "integers"  # no bound is promised for sums of equal terms
    return replace(
        trial,
        case=case,
        values=values,
        seed=dice.number(0, 1 << 31),
        activation=dice.pick(*kind.activations) if finite else None,
        biased=dice.happens(2),
        added=dice.happens(3),
        storages=(x_storage, w_storage, residual_storage),
        out=dice.pick(*kind.out_storages) if dice.happens(3) else "",
        packed=dice.happens(2),
        unbatched=case.N == 1 and dice.happens(3),
        threads=dice.number(1, threads),
    )


def _special(trial: Trial) -> tuple[str, ...]:
    """The values besides integers and normal ones for which results are specified."""
    exact = trial.case.dtype in FLOATS and not trial.may_box
    return VALUES[2:] if exact else VALUES[3:]


@functools.lru_cache(2)
def draw_kind(seed: int, number: int) -> Kind:
    """Kind `number` of a seed."""
    dice = Dice(seed, 0, number)
    name = dice.pick(*FAMILIES)
    dtype = dice.pick("float32", *FLOAT_DTYPES)
    if dtype == "bfloat16" and find_spec("ml_dtypes") is None:
        dtype = "float16"
    filters = replace(
        FAMILIES[name].filters(dice),
        dtype=dtype,
        layout=dice.pick(*LAYOUTS),
        weight_layout=dice.pick(*WEIGHT_LAYOUTS),
        padding_mode=dice.pick(*PADDING_MODES) if dice.happens(3) else "zeros",
    )
    precision = dice.pick("standard", "standard", "strict", "fast")
    algorithm = dice.pick(*_algorithms(filters, precision)) if dice.happens(2) else "auto"
    shared = Trial(
        filters,
        precision=precision,
        algorithm=algorithm,
        out_dtype=dice.pick(*FLOATS) if dice.happens(4) else None,
        subnormals="flush" if dice.happens(4) and algorithm != "gemm_im2col" else "keep",
    )
    activations: tuple[Activation, ...] = (*EXACT, *SMOOTH)
    storages = [storage for storage in STORAGES if (dtype, storage) != ("bfloat16", "byte-swapped")]
    return Kind(
        name,
        tuple(_with_image(shared, FAMILIES[name], dice) for _ in range(IMAGES)),
        (None, dice.pick(*activations), dice.pick(*activations)),
        ("contiguous", dice.pick(*storages), dice.pick(*storages)),
    )


def _algorithms(filters: Case, precision: str) -> list[str]:
    """The algorithms that half of the kinds with these filters ask for, to reach each method."""
    if filters.C == filters.K == 1 and filters.groups > 1:
        return ["depthwise"]
    plain = filters.kernel == (3, 3) and filters.dilation == (1, 1) and filters.groups == 1
    if plain and min(filters.C, filters.K) > 0 and precision != "strict":
        if filters.stride == (1, 1):
            return ["winograd_f4"] if precision == "fast" else ["winograd_f2"]
        if filters.stride == (2, 2):
            return ["winograd_f2_stride2"]
    baseline = filters.dtype in FLOATS and precision != "strict"
    return ["auto", "auto", "implicit_gemm", "gemm_im2col" if baseline else "auto"]


def _with_image(trial: Trial, family: Family, dice: Dice) -> Trial:
    """`trial` with an image and padding of its family, such that the case is valid."""
    while True:
        size = family.size(dice, trial.case)
        padding = _padding(dice)
        filters = trial.case
        h, w = parse_padding(padding, "HW", size, filters.kernel, filters.stride, filters.dilation)
        case = replace(filters, size=size, padding=(h, w))
        if case.is_valid and _products(case) <= family.products:
            return replace(trial, case=case, padding=padding)


def _products(case: Case) -> int:
    return math.prod((case.K, case.C, case.groups, *case.output, *case.kernel))


def _padding(dice: Dice) -> Padding:
    forms: list[Padding] = [
        0,
        dice.number(-1, 4),
        dice.pair(-1, 4),
        (dice.pair(-2, 5), dice.pair(-2, 5)),
        dice.pick(*PADDING_NAMES),
    ]
    return dice.pick(*forms)


def _any_size(dice: Dice, filters: Case) -> Pair:
    return dice.number(1, 20), dice.number(1, 60)


@dataclass(frozen=True)
class Family:
    """How the filters and images of similar problems are drawn."""

    filters: Callable[[Dice], Case]
    size: Callable[[Dice, Case], tuple[int, ...]] = _any_size
    products: int = 1_000_000  # of an image at most: numpy sums so many in about a millisecond


FAMILIES = {
    "dense": Family(
        lambda dice: Case(
            C=dice.number(1, 40),
            K=dice.number(1, 70),
            kernel=dice.pair(1, 5),
            stride=dice.pair(1, 3),
        )
    ),
    "3x3": Family(
        lambda dice: Case(
            C=dice.number(1, 40),
            K=dice.number(1, 70),
            stride=dice.pick((1, 1), (1, 1), (2, 2)),
        ),
    ),
    "pointwise": Family(
        lambda dice: Case(
            C=dice.number(1, 64),
            K=dice.number(1, 70),
            kernel=(1, 1),
            stride=dice.pick((1, 1), (1, 1), (2, 1)),
        )
    ),
    "wide pointwise": Family(
        lambda dice: Case(C=dice.pick(64, 192, 256), K=dice.pick(192, 256), kernel=(1, 1)),
        lambda dice, _: (dice.pick(4, 7, 8), dice.pick(4, 8, 9, 16)),
        products=5_000_000,
    ),
    "dilated": Family(
        lambda dice: Case(
            C=dice.number(1, 20),
            K=dice.number(1, 40),
            kernel=(dice.number(1, 3), dice.number(2, 5)),
            dilation=dice.pair(1, 12),
            stride=dice.pair(1, 2),
        )
    ),
    "depthwise": Family(
        lambda dice: Case(
            groups=dice.number(1, 80),
            kernel=dice.pair(1, 5),
            stride=dice.pair(1, 2),
            dilation=dice.pick((1, 1), (1, 1), dice.pair(1, 3)),
        )
    ),
    "multiplier": Family(
        lambda dice: Case(groups=dice.number(2, 24), K=dice.pick(2, 4, 8), kernel=dice.pair(1, 4))
    ),
    "grouped": Family(
        lambda dice: Case(
            groups=dice.number(2, 6),
            C=dice.number(1, 8),
            K=dice.number(1, 40),
            kernel=dice.pair(1, 4),
            stride=dice.pair(1, 2),
        )
    ),
    "few channels": Family(
        lambda dice: Case(
            C=dice.number(1, 4),
            K=dice.number(1, 8),
            kernel=dice.pair(1, 7),
            stride=dice.pair(1, 4),
        )
    ),
    "window": Family(
        lambda dice: Case(C=dice.number(1, 40), K=dice.number(1, 40), kernel=dice.pair(1, 6)),
        lambda dice, filters: filters.kernel,
    ),
    "row": Family(
        lambda dice: Case(C=dice.number(1, 8), K=dice.number(1, 8), kernel=(1, dice.number(1, 9))),
        lambda dice, _: (1, dice.number(50, 3000)),
    ),
    "column": Family(
        lambda dice: Case(C=dice.number(1, 8), K=dice.number(1, 8), kernel=(dice.number(1, 9), 1)),
        lambda dice, _: (dice.number(50, 3000), 1),
    ),
    "pixel": Family(
        lambda dice: Case(C=dice.number(1, 70), K=dice.number(1, 70), kernel=dice.pair(1, 3)),
        lambda dice, _: (1, 1),
    ),
    "empty": Family(
        lambda dice: replace(
            dice.pick(Case(N=0, C=3, K=5), Case(C=0, K=5), Case(C=3, K=0)), kernel=dice.pair(1, 3)
        )
    ),
}
