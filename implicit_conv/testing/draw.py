"""Draw trials at random: the same seed always gives the same trials.

Most time of a short run would go into the compilation of kernels, so TRIALS trials in a row share a
kind: operator, method, filter, dtypes, layouts, options and a few images. Everything else differs
from trial to trial. The kinds of a round have all operators, in an order that depends on the seed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TypeVar, get_args

import numpy as np

from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.errors import PlanError, UsageError
from implicit_conv.problem.options import (
    ACTIVATIONS,
    COMPLEX_PARTS,
    FLOAT_DTYPES,
    INTEGER_RANGES,
    LAYOUTS_OF,
    PADDING_MODES,
    SPACE,
    WEIGHT_LAYOUTS_OF,
    Activation,
    PaddingName,
    activation_kind,
    parse_activation,
)
from implicit_conv.problem.parse import Padding, parse_padding
from implicit_conv.problem.transposed_problem import SWAPPED
from implicit_conv.testing import Case
from implicit_conv.testing.check import EXACT, SMOOTH
from implicit_conv.testing.coverage import Coverage
from implicit_conv.testing.families import COLUMNS, FAMILIES, Dice
from implicit_conv.testing.methods import NAMES, offered
from implicit_conv.testing.operators import OPERATORS, output_padding
from implicit_conv.testing.storage import STORAGES, WRITABLE
from implicit_conv.testing.trial import CHANGES, VALUES, Trial
from implicit_conv.testing.ways import TIMES, Kinds

T = TypeVar("T")
TRIALS = 18  # trials of a kind
DRAWN = 3  # kinds of which one is dealt
MOST_DRAWN = 10_000  # kinds, until one is drawn that a method computes
IMAGES = 18  # images of a kind, each with filters of its own size
FAMILY_NAMES = (
    *FAMILIES,
    *["dense", "3x3", "3x3", "wide"] * 2,
)  # Winograd alone has four algorithms
TRIES = 12  # kinds of an operator, after which one without a hit is mostly left out
FLOATS = ("float32", "float64")
# The operators of a round, with their numbers of spatial axes; columns have any number. Images have
# most methods.
ROUND = (
    *[("conv", 2)] * 2,
    *((name, rank) for name, operator in OPERATORS.items() if operator.planned for rank in SPACE),
    *((name, 0) for name, operator in OPERATORS.items() if not operator.planned),
)


@dataclass(frozen=True)
class Kind:
    """What TRIALS trials share."""

    name: str
    family: str
    images: tuple[Trial, ...]  # those that `way` cannot compute too
    way: tuple[str, str]  # (algorithm, method) of all trials; any method if it has no name
    activations: tuple[Activation, ...]
    storages: tuple[str, ...]

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """One of each image that the way computes."""
        return tuple(self.computed())

    def computed(self) -> Iterator[Trial]:
        """The trials one by one, since each one is planned, and most kinds are not dealt."""
        algorithm, method = self.way
        for image in self.images:
            if not method:
                yield image
            elif self.way in _ways(image, algorithm):
                yield replace(image, algorithm=algorithm, method=method)

    @property
    def out_storages(self) -> tuple[str, ...]:
        """Those of `storages` that `out` may have."""
        return tuple(storage for storage in self.storages if storage in WRITABLE)


class Hits:
    """Which problems the methods of a fuzz computed: families, by operator and number of axes."""

    def __init__(self) -> None:
        self._families: dict[tuple[str, int], list[str]] = {}
        self._tries: Counter[tuple[str, int]] = Counter()

    def add(self, operator: str, rank: int, kind: Kind | None) -> None:
        """Note a kind that was drawn; None is one that no method computes."""
        self._tries[operator, rank] += 1
        if kind is not None:
            self._families.setdefault((operator, rank), []).append(kind.family)

    def families(self, operator: str, rank: int, dice: Dice) -> tuple[str, ...]:
        """The families to draw from, mostly those of hits; none where these are elsewhere."""
        own = self._families.get((operator, rank), ())
        if not self._families or dice.happens(4):
            return FAMILY_NAMES
        return FAMILY_NAMES if not own and self._tries[operator, rank] < TRIES else tuple(own)


class Deck:
    """Kinds of a seed, one after another, each with its trials.

    Of a few kinds that are drawn, that one is dealt whose trials have most pairs of values which
    none had before.

    Parameters
    ----------
    seed : int
    threads : int
        Threads of a trial, at most.
    guards : tuple of str
        The values of `Trial.guard`, which trials have in turns.
    methods : tuple of str
        The methods that compute all trials, of `methods.NAMES`; any if there are none.

    Raises
    ------
    UsageError
        This CPU lacks what one of the methods needs.
    """

    def __init__(
        self,
        seed: int,
        threads: int,
        guards: tuple[str, ...] = ("",),
        methods: tuple[str, ...] = (),
    ) -> None:
        for name in methods:
            if lack := NAMES[name].lack(cpu_arch()):
                raise UsageError(f"{name} computes nothing here: {lack}; ask for other methods")
        self._seed, self._threads, self._guards, self._methods = seed, threads, guards, methods
        self._number = 0  # of the next kind
        self._hits = Hits()
        self.coverage, self.ways = Coverage(), Kinds()

    def __str__(self) -> str:
        guards = ", guard pages" * any(self._guards)
        methods = f", methods {', '.join(self._methods)}" * bool(self._methods)
        return f"seed {self._seed}, at most {count(self._threads, 'thread')}{guards}{methods}"

    def deal(self) -> tuple[Kind, list[Trial]]:
        """The next kind and its trials."""
        turns = range(1 if self._methods else DRAWN)
        kinds = [draw_kind(self._seed, self._number, i, self._methods, self._hits) for i in turns]
        kind = max(kinds, key=lambda kind: self.coverage.gain(itertools.islice(kind.computed(), 6)))
        dice = Dice(self._seed, 1, self._number)
        self._number += 1
        images = itertools.islice(itertools.cycle(kind.trials), TRIALS)
        trials = [trial_of(kind, image, dice, self._threads) for image in images]
        guards = itertools.cycle(self._guards)
        return kind, [replace(trial, guard=next(guards)) for trial in trials]


def trial_of(kind: Kind, trial: Trial, dice: Dice, threads: int) -> Trial:
    """A trial like one of a kind's, on at most `threads` threads."""
    case = trial.case if trial.case.N == 0 else replace(trial.case, N=dice.pick(1, 1, 2, 3))
    storages = tuple(dice.pick(*kind.storages) for _ in range(3))
    special = _special(trial) if dice.happens(6) else ()
    values = dice.pick(*special) if special else dice.pick("integers", "normal")
    # No bound is promised for sums of equal terms, nor for columns.
    exact = trial.is_integer or "repeated" in storages[:2] or not trial.made.planned
    if values == "normal" and exact:
        values = "integers"
    common = replace(
        trial,
        case=case,
        values=values,
        seed=dice.number(0, 1 << 31),
        storages=(storages[0], storages[1], storages[2]),
        unbatched=case.N == 1 and dice.happens(3),
    )
    if not trial.made.planned:
        return common
    common = replace(
        common,
        out=dice.pick(*kind.out_storages) if dice.happens(3) else "",
        packed=dice.happens(2),
        threads=dice.number(1, threads),
        times=dice.pick(*TIMES) if dice.happens(4) else 1,
        change=dice.pick(*CHANGES),
    )
    if common.times > 1 and dice.happens(2):  # other storages are converted at each call
        common = replace(common, storages=("contiguous",) * 3, out=common.out and "contiguous")
    if dice.happens(5):
        common = replace(common, prepared=True, unbatched=False, out=common.out or "contiguous")
    if not trial.made.epilogue:
        return common
    return replace(
        common,
        numbers=dice.happens(4),
        activation=None if special else dice.pick(*kind.activations),
        scaled=dice.happens(4) and _scales(trial) and not special,
        biased=dice.happens(2),
        added=dice.happens(3),
        sized=dice.happens(3) and not isinstance(trial.padding, str),
    )


def _special(trial: Trial) -> tuple[str, ...]:
    """The values besides integers and normal ones for which results are specified."""
    if trial.case.dtype not in FLOAT_DTYPES or not trial.made.planned:
        return ()
    if trial.may_transform and (trial.operator, trial.case.rank) != ("conv", 2):
        return ()
    exact = trial.case.dtype in FLOATS and not trial.spreads
    return VALUES[2:] if exact else VALUES[3:]


def _scales(trial: Trial) -> bool:
    """Whether sums can be scaled: not if they stay integers, or if the method does not."""
    floats = trial.out_dtype in FLOATS or not trial.is_integer
    return floats and (not trial.method or "scale" in NAMES[trial.method].serves.operands)


def draw_kind(
    seed: int,
    number: int,
    turn: int = 0,
    methods: tuple[str, ...] = (),
    hits: Hits | None = None,
) -> Kind:
    """Kind `number` of a seed, one for each `turn`, that one of `methods` computes if given: mostly
    like one of `hits`, to which it is added.

    Raises
    ------
    UsageError
        Of MOST_DRAWN kinds that were drawn, none of `methods` computes any.
    """
    order = np.random.default_rng((seed, 2, number // len(ROUND))).permutation(len(ROUND))
    dice = Dice(seed, 0, number, turn)
    for place in range(number, number + MOST_DRAWN):
        operator, rank = ROUND[order[place % len(ROUND)]]
        rank, families = rank or dice.number(1, 3), FAMILY_NAMES
        if methods and hits is not None:
            families = hits.families(operator, rank, dice)
        kind = kind_of(operator, rank, dice, methods, families) if families else None
        if hits is not None and families:
            hits.add(operator, rank, kind)
        if kind is not None:
            return kind
    raise UsageError(
        f"{' and '.join(methods)} computed none of {MOST_DRAWN} problems that were drawn; add a "
        "family of problems that it computes to FAMILIES, in implicit_conv/testing/families.py"
    )


def kind_of(
    operator: str,
    rank: int,
    dice: Dice,
    methods: tuple[str, ...] = (),
    families: tuple[str, ...] = FAMILY_NAMES,
) -> Kind | None:
    """A kind of an operator with so many spatial axes; None if none of `methods` computes it."""
    made = OPERATORS[operator]
    serves = [NAMES[method].serves for method in methods]
    dtype = _dtype(dice, operator, [name for served in serves for name in served.dtypes])
    precisions = [name for served in serves for name in served.precisions]
    precisions = precisions or ["standard", "standard", "strict", "fast"]
    shared = Trial(
        Case(
            dtype=dtype,
            w_dtype=_filter_dtype(dice, dtype) if made.planned else None,
            layout=dice.pick(*LAYOUTS_OF[rank], LAYOUTS_OF[rank][dtype in INTEGER_RANGES]),
            weight_layout=_weight_layout(dice, operator, rank),
            padding_mode=dice.pick(*PADDING_MODES)
            if "padding_mode" in made.own and dice.happens(3)
            else "zeros",
        ),
        operator,
        precision=dice.pick(*precisions) if made.planned else "strict",
        out_dtype=dice.pick(*_out_dtypes(dtype)) if made.planned and dice.happens(4) else None,
        subnormals="flush" if made.planned and dice.happens(4) else "keep",
    )
    family = dice.pick(*families)
    images = [draw_image(shared, rank, dice, family)]
    way = ("auto", "")
    if methods or (made.planned and dice.happens(2)):  # else as most calls
        algorithms = [name for method in methods or NAMES for name in NAMES[method].algorithms]
        found = {*_ways(images[0], "auto"), *_ways(images[0], dice.pick(*algorithms))}
        ways = sorted(way for way in found if not methods or way[1] in methods)
        if not ways:
            return None
        way = dice.pick(*ways)
    images += [draw_image(shared, rank, dice, dice.pick(*families)) for _ in range(IMAGES - 1)]
    activations = _activations(replace(images[0], algorithm=way[0], method=way[1]))
    storages = [storage for storage in STORAGES if (dtype, storage) != ("bfloat16", "byte-swapped")]
    return Kind(
        f"{made.function.format(rank)} of {dtype}",
        family,
        tuple(images),
        way,
        (None, dice.pick(*activations), dice.pick(*activations)),
        ("contiguous", dice.pick(*storages), dice.pick(*storages)),
    )


def _weight_layout(dice: Dice, operator: str, rank: int) -> str:
    """A layout of filters; a transposed convolution takes those of both letters."""
    layout = dice.pick(*WEIGHT_LAYOUTS_OF[rank])
    swapped = operator == "conv_transpose" and dice.happens(3)
    return layout.translate(SWAPPED) if swapped else layout


def _dtype(dice: Dice, operator: str, declared: Sequence[str]) -> str:
    """A dtype that the operator takes, often float32; of those that are exact often bytes, which
    are multiplied in most ways. Mostly one of those that methods have `declared`, if there are any:
    complex numbers are computed as real ones, which no method declares.
    """
    exact = OPERATORS[operator].exact
    own = [dtype for dtype in declared if exact or dtype in FLOAT_DTYPES]
    dtype = dice.pick("float32", "float32", *FLOAT_DTYPES)
    if own and not dice.happens(6):
        dtype = dice.pick(*own)
    elif exact and not dice.happens(3):
        dtype = dice.pick("int8", "uint8", *INTEGER_RANGES, *COMPLEX_PARTS)
    if operator == "col2im" and dtype.endswith("int8"):
        dtype = "int16"  # whose sums fit
    return "float16" if dtype == "bfloat16" and find_spec("ml_dtypes") is None else dtype


def _filter_dtype(dice: Dice, dtype: str) -> str | None:
    """The dtype of the filters of integers, mostly that of x; None for floats."""
    return dice.pick(*[dtype] * 5, *INTEGER_RANGES) if dtype in INTEGER_RANGES else None


def _out_dtypes(dtype: str) -> tuple[str, ...]:
    """The dtypes of results that some kinds ask for."""
    if dtype in COMPLEX_PARTS:
        return tuple(COMPLEX_PARTS)
    return ("int64", *FLOATS) if dtype in INTEGER_RANGES else FLOATS


def _activations(trial: Trial) -> tuple[Activation, ...]:
    """The activations that a trial may have: those that its method declares, if it has one."""
    if trial.case.dtype in COMPLEX_PARTS or not trial.made.epilogue:
        return (None,)
    kinds = NAMES[trial.method].serves.activations if trial.method else ACTIVATIONS
    if trial.is_integer and trial.out_dtype not in FLOATS:
        kinds = tuple(kind for kind in kinds if kind == "clamp")
    served = ("", *kinds)
    return tuple(a for a in (*EXACT, *SMOOTH) if activation_kind(parse_activation(a)) in served)


def _ways(trial: Trial, algorithm: str) -> list[tuple[str, str]]:
    """The (algorithm, method) that can compute a trial if it asks for an algorithm."""
    if not trial.made.planned or (algorithm != "auto" and "algorithm" not in trial.made.chosen):
        return []
    try:
        plan = replace(trial, algorithm=algorithm).plan()
    except PlanError:
        return []
    return [(algorithm, method) for method in offered(plan)]


def _in_axes(dice: Dice, filters: Case, rank: int) -> Case:
    """The filters of images as those of signals, images or volumes."""
    taps, steps, gaps = filters.kernel, filters.stride, filters.dilation
    if rank == 1:
        return replace(filters, kernel=taps[1:], stride=steps[1:], dilation=gaps[1:])
    if rank == 2:
        return filters
    return replace(
        filters,
        kernel=(dice.pick(1, 2, 3), *taps),
        stride=(dice.pick(1, 1, 2), *steps),
        dilation=(dice.pick(1, 1, 2), *gaps),
    )


def draw_image(shared: Trial, rank: int, dice: Dice, name: str) -> Trial:
    """`shared` with filters, an image and padding of a family, such that the case is valid."""
    family = FAMILIES[name] if shared.made.planned else COLUMNS
    while True:
        drawn = _in_axes(dice, family.filters(dice), rank)
        names = ("N", "C", "K", "groups", "kernel", "stride", "dilation")
        case = replace(shared.case, **{name: getattr(drawn, name) for name in names})
        if not shared.made.planned:
            case = replace(case, K=case.C * math.prod(case.kernel))
        size = family.size(dice, case)
        if len(size) < rank:
            size = (dice.number(1, 5), *size)
        # An image without pixels, whose outputs read padding alone. It is no result of an operator
        # but of the input gradient.
        if dice.happens(8) and shared.operator not in ("conv_transpose", "col2im"):
            axis = dice.number(1, rank)
            size = (*size[:-axis], 0, *size[len(size) - axis + 1 :])
        padding, case = _padded(dice, shared.operator, replace(case, size=size[-rank:]))
        if case.is_valid and _products(case) <= family.products:
            if shared.operator == "conv_transpose" and dice.happens(3):
                padding = _removed(dice, case)
            return replace(shared, case=case, padding=padding)


def _products(case: Case) -> int:
    return math.prod((case.K, case.C, case.groups, *case.output, *case.kernel))


def _padded(dice: Dice, operator: str, case: Case) -> tuple[Padding, Case]:
    """Padding as the operator gets it, and the case with pairs of it."""
    names: tuple[Padding, ...] = get_args(PaddingName)
    if operator == "conv_transpose":
        names = ("valid",)
        if dice.happens(4):
            return _same_transposed(dice, case)
    forms: list[Padding] = [
        0,
        dice.number(-1, 4),
        tuple(dice.pick(0, dice.number(-1, 4)) for _ in case.size),
        tuple(dice.pick((0, 0), dice.pair(-2, 5)) for _ in case.size),
        dice.pick(*names),
    ]
    padding = dice.pick(*forms)
    windows = case.size, case.kernel, case.stride, case.dilation
    return padding, replace(case, padding=parse_padding(padding, SPACE[case.rank], *windows))


def _same_transposed(dice: Dice, case: Case) -> tuple[Padding, Case]:
    """Padding "same" or "same_lower" of a transposed convolution, whose result is as many times
    larger than its operand as the stride says (ONNX: auto_pad).
    """
    names: tuple[PaddingName, ...] = "same", "same_lower"
    name, size, pads = dice.pick(*names), [], []
    for n, taps, step, gap in zip(case.size, case.kernel, case.stride, case.dilation, strict=True):
        total = max(0, (taps - 1) * gap + 1 - step + dice.number(0, step - 1))
        low = total - total // 2 if name == "same_lower" else total // 2
        size.append(-(-n // step) * step)
        pads.append((low, total - low))
    return name, replace(case, size=tuple(size), padding=tuple(pads))


def _removed(dice: Dice, case: Case) -> Padding:
    """Padding of a transposed convolution that removes more than that of the case on the high side,
    as much as output_padding can add again.
    """
    more = output_padding(case, case.padding)
    axes = zip(case.padding, case.stride, case.dilation, more, strict=True)
    return tuple(
        (low, high + dice.number(0, max(step, gap) - 1 - added))
        for (low, high), step, gap, added in axes
    )
