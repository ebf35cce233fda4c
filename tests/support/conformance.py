"""What every method must conform to: results of all that it declares to serve, against the oracle.

Trials of a method have the values of DIMENSIONS that it declares, or that it accepts, in all
combinations of `strength` of them: each value once, each pair, or the full product. The rest of a
trial is drawn at random, always the same. PROBLEMS has few of each kind; VARIATIONS derives others
from each, wherever the method has a candidate.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from item_stores import items_alone

from implicit_conv.cpu.candidates.candidate import Candidate, Method
from implicit_conv.cpu.candidates.kernel_method import KernelMethod
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS
from implicit_conv.cpu.plan.weight_gradients import WEIGHT_GRADIENTS
from implicit_conv.errors import PlanError
from implicit_conv.kernels import schedule
from implicit_conv.problem.options import (
    INTEGER_RANGES,
    LAYOUTS_OF,
    PADDING_MODES,
    WEIGHT_LAYOUTS_OF,
)
from implicit_conv.testing import Array, Case
from implicit_conv.testing.check import verify
from implicit_conv.testing.fuzz import program
from implicit_conv.testing.methods import best, chosen, name_of
from implicit_conv.testing.operators import OPERATORS
from implicit_conv.testing.storage import STORAGES, WRITABLE
from implicit_conv.testing.trial import Trial, compute, inputs
from implicit_conv.testing.worker import Worker

SECONDS = 120  # of a trial, after which it hangs
TRIES = 40  # draws for a combination, of which most can be invalid: int8 has no gelu
# Problems that between them every method computes, with an odd number of everything.
PROBLEMS = {
    "dense": Case(N=2, C=5, K=7, size=(9, 11), padding=((1, 1), (1, 1))),
    "channels": Case(C=40, K=33, size=(7, 9), padding=((1, 0), (0, 1))),
    "stride": Case(C=3, K=9, size=(11, 12), stride=(2, 2), padding=((1, 1), (1, 1))),
    "dilation": Case(N=2, C=3, K=5, size=(9, 12), kernel=(2, 3), dilation=(3, 2)),
    "wide": Case(N=2, C=5, K=70, size=(36, 44), padding=((1, 1), (1, 1))),
    "few channels": Case(C=3, K=300, size=(12, 14), kernel=(5, 7), stride=(2, 2)),
    "pixels": Case(N=2, C=20, K=40, size=(8, 16), kernel=(1, 1)),
    "filters": Case(C=4, K=1100, size=(6, 8), kernel=(1, 1)),
    "one channel": Case(N=2, K=5, size=(80, 70), kernel=(1, 1)),
    "one channel, filters": Case(K=40, size=(6, 8), kernel=(1, 1)),
    "window": Case(N=3, C=5, K=6, size=(3, 4), kernel=(3, 4)),
    "depthwise": Case(N=2, groups=37, size=(7, 20), padding=((1, 1), (1, 1))),
    "strided depthwise": Case(N=2, groups=37, size=(13, 46), kernel=(3, 4), stride=(2, 2)),
    "strided planes": Case(groups=70, size=(30, 17), stride=(3, 1), padding=((1, 1), (2, 0))),
    "planes": Case(groups=3, size=(40, 132), kernel=(3, 5)),
    "multiplier": Case(groups=12, C=2, K=4, size=(16, 18), padding=((1, 1), (1, 1))),
    "groups": Case(groups=2, C=5, K=6, size=(7, 8), kernel=(3, 2)),
    "wide groups": Case(groups=2, C=18, K=33, size=(9, 8), padding=((1, 1), (1, 1))),
    "cropped": Case(C=4, K=5, size=(9, 9), padding=((-1, 2), (0, -1))),
    "repeated": Case(C=4, K=5, padding=((2, 1), (1, 1)), padding_mode="reflect"),
    "signal": Case(
        C=4, K=6, size=(40,), kernel=(5,), stride=(2,), dilation=(1,), padding=((2, 1),)
    ),
    "volume": Case(
        C=2,
        K=3,
        size=(4, 5, 6),
        kernel=(2, 3, 3),
        stride=(1, 1, 1),
        dilation=(1, 1, 1),
        padding=((1, 0), (1, 1), (0, 1)),
    ),
    "whole tiles": Case(N=2, C=64, K=9, size=(8, 16), kernel=(1, 1)),
}
ACTIVATIONS = {  # of each kind
    "clamp": ("relu", ("clamp", -3.0, 5.0)),
    "leaky_relu": (("leaky_relu", 0.5),),
}
# What a method declares or accepts; a combination has one value of each.
DIMENSIONS = ("dtype", "precision", "activation", "operands", "layout", "storage")
DECLARED = DIMENSIONS[:4]
DERIVED = ("variation", "problem")  # which trials have, if they are asked for


def _with_axes(case: Case, rank: int) -> Case:
    """The last axes of a case, or more axes before them."""
    more = max(0, rank - case.rank)
    return replace(
        case,
        size=(*(3,) * more, *case.size)[-rank:],
        kernel=(*(2,) * more, *case.kernel)[-rank:],
        stride=(*(1,) * more, *case.stride)[-rank:],
        dilation=(*(1,) * more, *case.dilation)[-rank:],
        padding=(*((1, 0),) * more, *case.padding)[-rank:],
    )


def _larger(steps: tuple[int, ...]) -> tuple[int, ...]:
    """Other strides or dilations, of the last axis and of the others."""
    return (*(step + 2 for step in steps[:-1]), steps[-1] + 1)


def _without_pixels(case: Case) -> Case:
    """Its outputs read padding alone."""
    taps = (case.kernel[-1] - 1) * case.dilation[-1] + 1
    padding = (*case.padding[:-1], (taps, 1))
    return replace(case, size=(*case.size[:-1], 0), padding=padding)


def _repeating(mode: str) -> Callable[[Case], Case]:
    def repeat(case: Case) -> Case:
        padding = tuple((max(1, low), max(2, high)) for low, high in case.padding)
        return replace(case, padding=padding, padding_mode=mode)

    return repeat


VARIATIONS: dict[str, Callable[[Case], Case]] = {
    "none": lambda case: case,
    "strides": lambda case: replace(case, stride=_larger(case.stride)),
    "dilations": lambda case: replace(case, dilation=_larger(case.dilation)),
    "crops": lambda case: replace(
        case, padding=tuple((low - 1, min(high, -1)) for low, high in case.padding)
    ),
    **{mode: _repeating(mode) for mode in PADDING_MODES if mode != "zeros"},
    "one axis": lambda case: _with_axes(case, 1),
    "three axes": lambda case: _with_axes(case, 3),
    "no images": lambda case: replace(case, N=0),
    "no channels": lambda case: replace(case, C=0),
    "no filters": lambda case: replace(case, K=0),
    "no pixels": _without_pixels,
}
# Of what a trial of each method with kernels must have more than one. Methods whose groups are
# channels of one launch have a single group.
PARTS = {
    "load tile an image": lambda c, g: (
        schedule.ceil_div(g.P, g.tile_p) * schedule.ceil_div(g.Q, g.tile_q)
    ),
    "chunk of filter panels": lambda c, g: schedule.ceil_div(schedule.panel_count(g), c.chunk),
    "group": lambda c, g: g.groups,
    "thread": lambda c, g: c.threads,
}


def examples(method: type[Method], arch: CpuArch | None = None) -> Iterator[Case]:
    """The problems of the suite that a method can compute in each layout, on `arch` or this CPU."""
    suite = Suite(method, arch)
    for name, layouts, _ in suite.kinds:
        yield replace(_arranged(PROBLEMS[name], *layouts), dtype=method.serves.dtypes[0])


class Suite:
    """The trials of one method."""

    def __init__(self, method: type[Method], arch: CpuArch | None = None) -> None:
        self.method, self._dice = method, random.Random(method.__name__)
        self._arch = arch or cpu_arch(1)
        self.kinds = [
            (name, layouts, algorithm)
            for name, case in PROBLEMS.items()
            for layouts in itertools.product(range(2), range(3))
            for algorithm in method.algorithms
            if self._offers(_arranged(case, *layouts), algorithm)
        ]

    @cached_property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """The values of each dimension."""
        serves = self.method.serves
        activations = [ACTIVATIONS.get(kind, (kind,)) for kind in serves.activations]
        operands = [(), *((name,) for name in serves.operands), serves.operands]
        return {
            "dtype": serves.dtypes,
            "precision": serves.precisions,
            "activation": (None, *itertools.chain(*activations)),
            "operands": tuple(dict.fromkeys(operands)),
            "layout": tuple(dict.fromkeys(layouts for _, layouts, _ in self.kinds)),
            "storage": STORAGES,
            "variation": tuple(name for name in VARIATIONS if any(self._varied(name))),
            "problem": tuple(dict.fromkeys(name for name, _, _ in self.kinds)),
        }

    def _varied(self, variation: str) -> Iterator[tuple[str, tuple[int, int], str]]:
        """The kinds of which the method has a candidate with a variation."""
        for name, layouts, algorithm in self.kinds:
            case = _arranged(VARIATIONS[variation](PROBLEMS[name]), *layouts)
            if self._allows(case) and self._offers(case, algorithm):
                yield name, layouts, algorithm

    @property
    def _operator(self) -> str:
        """The operator of trials."""
        if self.method in WEIGHT_GRADIENTS:
            return "weight_grad"
        return "conv_transpose" if self.method in INPUT_GRADIENTS else "conv"

    def _allows(self, case: Case) -> bool:
        """Whether the operator has such cases."""
        repeats, is_transposed = case.padding_mode != "zeros", self._operator == "conv_transpose"
        if repeats and "padding_mode" not in OPERATORS[self._operator].own:
            return False
        return case.is_valid and not (is_transposed and 0 in case.size)

    def _offers(self, case: Case, algorithm: str) -> bool:
        """Whether the method has a candidate of a case for one of its dtypes."""
        return any(True for _ in self._candidates(case, algorithm, self._arch))

    def _candidates(
        self, case: Case, algorithm: str, arch: CpuArch, dtypes: Sequence[str] = ()
    ) -> Iterator[Candidate]:
        """The candidates of a case for these dtypes, or for all that the method serves."""
        request = Request(self.method.serves.precisions[-1], algorithm)
        for dtype in dtypes or self.method.serves.dtypes:
            problem = spatial(replace(case, dtype=dtype).problem)
            for found in self.method.candidates(problem, arch, request):
                if isinstance(found, Candidate):
                    yield found

    def needs_another_cpu(self, dtypes: Sequence[str]) -> bool:
        """Whether the method computes these dtypes with instructions that this CPU has not."""
        arch = replace(cpu_arch(1), bfloat16="pairs")
        return cpu_arch().bfloat16 == "widen" and any(
            True
            for case in PROBLEMS.values()
            for layouts in itertools.product(range(2), range(3))
            for algorithm in self.method.algorithms
            for _ in self._candidates(_arranged(case, *layouts), algorithm, arch, dtypes)
        )

    def trials(self, strength: int, among: Sequence[str] = DIMENSIONS) -> Iterator[Trial]:
        """Trials that have all valid combinations of `strength` dimensions `among` these.

        Raises
        ------
        AssertionError
            The method computes no problem, or none with a value that it declares.
        """
        if lack := self.method.lack(cpu_arch()):
            pytest.skip(lack)
        assert self.kinds, f"no problem of the suite has a candidate of {self.method.__name__}"
        had: set[frozenset[tuple[str, object]]] = set()
        missing = self._possible_parts()
        fresh = {name: list(values) for name, values in self.values.items()}  # in no trial yet
        dimensions = tuple(dict.fromkeys((*DIMENSIONS, *among)))
        for names in itertools.combinations(among, strength):
            for values in itertools.product(*(self.values[name] for name in names)):
                wanted = dict(zip(names, values, strict=True))
                if frozenset(wanted.items()) in had:
                    continue
                for number in range(TRIES):
                    new = number < TRIES // 2  # values that no trial has had, where there are any
                    combination = {
                        name: wanted.get(
                            name, self._dice.choice((new and fresh[name]) or self.values[name])
                        )
                        for name in dimensions
                    }
                    trial = self._trial(**combination)
                    if trial is not None and self._computes(trial):
                        subsets = itertools.combinations(combination.items(), strength)
                        had.update(map(frozenset, subsets))
                        for name, value in combination.items():
                            fresh[name] = [other for other in fresh[name] if other != value]
                        missing -= self._parts(trial)
                        yield trial
                        break
                else:
                    excused = names[0] == "dtype" and self.needs_another_cpu(values[:1])
                    needed = names[0] in (*DECLARED, *DERIVED) and not excused
                    has = "declares" if names[0] in DECLARED else "has a candidate of"
                    assert strength > 1 or not needed, (
                        f"{self.method.__name__} {has} {names[0]} {values[0]!r}, but computes "
                        "no problem of the suite with it"
                    )
        yield from self._of_parts(missing)

    def _possible_parts(self) -> set[str]:
        """The parts of which some problem of the suite has more than one.

        Raises
        ------
        AssertionError
            A part is missing of which problems of each method with kernels can have several.
        """
        if not issubclass(self.method, KernelMethod):
            return set()
        found = {
            part
            for name, layouts, algorithm in self.kinds
            for c in self._candidates(_arranged(PROBLEMS[name], *layouts), algorithm, cpu_arch(2))
            for part, count in PARTS.items()
            if count(c, c.geometry) > 1
        }
        lacking = PARTS.keys() - found - {"group"}
        assert not lacking, (
            f"no problem of the suite has more than one {' or '.join(sorted(lacking))} with "
            f"{self.method.__name__}: add one to PROBLEMS"
        )
        return found

    def _parts(self, trial: Trial) -> set[str]:
        """The parts of which a trial has more than one."""
        ours = [c for c in best(trial.plan()) if type(c.method) is self.method]
        return {
            part
            for c in ours
            if isinstance(c.method, KernelMethod)
            for part, count in PARTS.items()
            if count(c, c.geometry) > 1
        }

    def _of_parts(self, missing: set[str]) -> Iterator[Trial]:
        """Trials with more than one of each of these parts."""
        for _ in range(TRIES * TRIES):
            if not missing:
                return
            trial = self._trial(
                **{name: self._dice.choice(self.values[name]) for name in DIMENSIONS}
            )
            if trial is not None and self._computes(trial) and missing & self._parts(trial):
                missing -= self._parts(trial)
                yield trial
        assert not missing, f"{TRIES * TRIES} trials had one {' and one '.join(sorted(missing))}"

    def _trial(
        self, dtype, precision, activation, operands, layout, storage, variation="none", problem=""
    ) -> Trial | None:
        """A trial with these values, or None if `conv2d` does not allow them together."""
        dice, integer = self._dice, dtype in INTEGER_RANGES
        kinds = [kind for kind in self.kinds if kind[1] == layout and problem in ("", kind[0])]
        if not kinds:
            return None
        name, _, algorithm = dice.choice(kinds)
        case = replace(_arranged(VARIATIONS[variation](PROBLEMS[name]), *layout), dtype=dtype)
        if not self._allows(case):
            return None
        exact, operator = integer or storage == "repeated", self._operator
        # Sums of integers are exact, so only others show their order.
        values = "normal" if precision == "strict" else dice.choice(["integers", "normal"])
        trial = Trial(
            case,
            operator,
            padding=case.padding,
            values="integers" if exact else values,
            seed=dice.randrange(1 << 31),
            activation=activation,
            precision=precision,
            algorithm=algorithm if operator != "weight_grad" else "auto",
            out_dtype=dice.choice([None, None, "float32", "float64"]),
            method=name_of(self.method),
            scaled="scale" in operands,
            biased="bias" in operands,
            added="residual" in operands,
            storages=(storage, storage, storage),
            out=storage if storage in WRITABLE and dice.random() < 0.5 else "",
            packed=dice.random() < 0.5,
            threads=dice.choice([1, 2]),
        )
        sums = integer and trial.out_dtype is None
        if (dtype, storage) == ("bfloat16", "byte-swapped") or (sums and trial.scaled):
            return None
        clamps = activation in (None, *ACTIVATIONS["clamp"])
        return None if sums and not clamps else trial

    def _computes(self, trial: Trial) -> bool:
        """Whether the method is what computes a trial, for contiguous arrays."""
        try:
            return chosen(trial.plan())[0] == trial.method
        except PlanError:
            return False


def conform(trials: Iterator[Trial]) -> None:
    """Check trials in a child process, which a method with a fault may end.

    Raises
    ------
    AssertionError
        A result is wrong, or the process crashed or hangs; the message has the trial.
    """
    worker: Worker[Trial] = Worker(check, math.inf, SECONDS)
    drawn = list(trials)
    try:
        worker.begin(drawn)
        number, error, _ = worker.result()
    finally:
        worker.end()
    assert not error, f"{error}\n{program(drawn[max(0, number - 1)])}"


def check(trial: Trial) -> None:
    """Compare the result of a trial with the oracle, and with what the work items write one by one;
    under precision "strict" compare its bits with those of the last image alone, contiguous, on one
    thread, by whatever the planner chooses.
    """
    given = inputs(trial)
    y = compute(trial, given)
    verify(trial, given, y)
    with items_alone():
        np.testing.assert_array_equal(compute(trial, given), y, "work items one by one")
    if trial.precision == "strict" and trial.case.N and OPERATORS[trial.operator].result == "y":
        case = replace(trial.case, N=1)
        other = replace(trial, case=case, out="", method="", packed=False, threads=1)
        residual = None if given.residual is None else _contiguous(given.residual[-1:])
        alone = given._replace(
            first=_contiguous(given.first[-1:]), second=_contiguous(given.second), residual=residual
        )
        np.testing.assert_array_equal(y[-1:], compute(other, alone), "bits of precision 'strict'")


def _contiguous(array: Array) -> Array:
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))


def _arranged(case: Case, layout: int, weight_layout: int) -> Case:
    """A case in the layouts of these numbers."""
    return replace(
        case,
        layout=LAYOUTS_OF[case.rank][layout],
        weight_layout=WEIGHT_LAYOUTS_OF[case.rank][weight_layout],
    )
