"""What fits the numbers of a table of costs to measured times.

The times of a layer's candidates say which one should have been chosen, and how far each estimate
is off. Both count: the regret of the choice, with a soft minimum in place of the choice so that it
has a derivative, and the differences between the logarithms of times and estimates. A number that
few layers tell stays near what it was. Estimates are differentiated by changing one number after
another, and the loss is minimised where they are about linear, several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.candidates.kernel_method import KernelMethod
from implicit_conv.cpu.machine.costs import GROUPS, Costs

SHARPNESS = 60.0  # of the soft minimum: candidates that differ by 1 % count almost alike
RESIDUAL = 0.3  # what the square of a logarithm of a ratio costs, in logarithms of regret
PRIOR = 0.1  # the same of a number and what it was
STEP = 0.05  # by which a number is changed, as a logarithm, to differentiate
MOST = 0.4  # by which a number may change in one round
ROUNDS = 8
FIXED = {"threads"}  # groups that one thread does not tell


class Layer(NamedTuple):
    """The measured candidates of a layer: of a plain filter, or of a packed one."""

    name: str
    packed: bool
    candidates: tuple[Candidate, ...]
    seconds: tuple[float, ...]


class Number(NamedTuple):
    """A number of a table."""

    group: str
    field: str


def numbers(costs: Costs) -> list[Number]:
    """The numbers of a table that are fitted: those that are not 0."""
    return [
        Number(group, field)
        for group in GROUPS
        if group not in FIXED
        for field, value in getattr(costs, group)._asdict().items()
        if value
    ]


def changed(costs: Costs, by: dict[Number, float]) -> Costs:
    """The table with some numbers multiplied."""
    groups: dict[str, dict[str, float]] = {}
    for number, factor in by.items():
        old = getattr(getattr(costs, number.group), number.field)
        groups.setdefault(number.group, {})[number.field] = old * factor
    found = {group: getattr(costs, group)._replace(**values) for group, values in groups.items()}
    return replace(costs, **found)


def estimates(layer: Layer, costs: Costs) -> Array:
    """The logarithms of the estimates of a layer's candidates, in cycles."""
    found = []
    for c in layer.candidates:
        assert isinstance(c.method, KernelMethod)
        cycles, _, packing = c.method.repriced(c, replace(c.arch, costs=costs))
        found.append(cycles - packing if layer.packed else cycles)
    return np.log(found)


class Fit:
    """Layers, and a table that is fitted to them.

    Attributes
    ----------
    costs : Costs
        The table, which `improve` replaces.
    offset : float
        The logarithm of the cycles of a second.
    """

    def __init__(self, layers: Sequence[Layer], costs: Costs) -> None:
        self.layers, self.first, self.costs = layers, costs, costs
        self.numbers = numbers(costs)
        self.moved = np.zeros(len(self.numbers))  # logarithms of changes since `first`
        self.times = [np.log(layer.seconds) for layer in layers]
        self.values = [estimates(layer, costs) for layer in layers]
        self.used: list[Array | None] = [None] * len(layers)  # the numbers that a layer depends on
        self.offset = self._offset(self.values)

    def _offset(self, values: Sequence[Array]) -> float:
        pairs = zip(values, self.times, strict=True)
        return float(np.median(np.concatenate([value - time for value, time in pairs])))

    def regrets(self, values: Sequence[Array] | None = None) -> Array:
        """The time of each layer's choice over that of its fastest candidate."""
        pairs = zip(self.values if values is None else values, self.times, strict=True)
        return np.exp([time[np.argmin(value)] - time.min() for value, time in pairs])

    def residuals(self) -> Array:
        """The logarithms of times over estimates, of all candidates."""
        pairs = zip(self.values, self.times, strict=True)
        return np.concatenate([time - value + self.offset for value, time in pairs])

    def _slopes(self, at: int) -> Array:
        """The derivatives of a layer's estimates by the numbers."""
        layer, value = self.layers[at], self.values[at]
        slopes = np.zeros((len(value), len(self.numbers)))
        used = self.used[at]
        for k in range(len(self.numbers)) if used is None else used:
            costs = changed(self.costs, {self.numbers[k]: float(np.exp(STEP))})
            slopes[:, k] = (estimates(layer, costs) - value) / STEP
        if used is None:
            self.used[at] = np.flatnonzero(slopes.any(0))
        return slopes

    def improve(self) -> None:
        """One round: the loss is minimised where estimates are about linear."""
        from scipy.optimize import minimize

        slopes = [self._slopes(at) for at in range(len(self.layers))]

        def loss(z: Array) -> tuple[float, Array]:
            delta, offset = z[:-1], z[-1]
            total = PRIOR * float(((self.moved + delta) ** 2).sum())
            gradient = np.append(2 * PRIOR * (self.moved + delta), 0.0)
            for value, slope, time in zip(self.values, slopes, self.times, strict=True):
                now = value + slope @ delta
                weights = np.exp(-SHARPNESS * (now - now.min()))
                weights /= weights.sum()
                lost = time - time.min()
                mean = float(weights @ lost)
                pull = -SHARPNESS * weights * (lost - mean)
                off = now - time - offset
                scale = RESIDUAL / len(time)
                total += mean + scale * float(off @ off)
                gradient[:-1] += slope.T @ (pull + 2 * scale * off)
                gradient[-1] -= 2 * scale * float(off.sum())
            return total, gradient

        start = np.append(np.zeros(len(self.numbers)), self.offset)
        bounds = [(-MOST, MOST)] * len(self.numbers) + [(None, None)]
        found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B").x
        for share in (1.0, 0.5, 0.25):
            by = dict(zip(self.numbers, np.exp(share * found[:-1]).tolist(), strict=True))
            costs = changed(self.costs, by)
            values = [estimates(layer, costs) for layer in self.layers]
            if self.loss(values, share * found[:-1]) < self.loss(self.values, 0 * found[:-1]):
                self.costs, self.values = costs, values
                self.moved = self.moved + share * found[:-1]
                self.offset = self._offset(values)
                return

    def loss(self, values: Sequence[Array], delta: Array) -> float:
        """The loss of estimates, with the regret of the choices themselves."""
        offset = self._offset(values)
        pairs = list(zip(values, self.times, strict=True))
        squares = sum(float(np.mean((v - t - offset) ** 2)) for v, t in pairs)
        regret = float(np.log(self.regrets(values)).sum())
        return regret + RESIDUAL * squares + PRIOR * float(((self.moved + delta) ** 2).sum())


def fitted(layers: Sequence[Layer], costs: Costs, rounds: int = ROUNDS) -> Fit:
    """The fit of a table to layers, from the numbers of another one on."""
    fit = Fit(layers, costs)
    for _ in range(rounds):
        fit.improve()
    return fit
