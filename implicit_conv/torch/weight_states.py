"""States of the weights of a region, each with the programs and packed filters made for it.

Blocks of one class may share a compiled graph, so that its weights are those of another block at
each call. A state is found by the addresses of its weights. It holds their memory, so that no other
tensor can be there, and is dropped once nothing else does.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, eq
from typing import Any

import torch

from implicit_conv.process.cache import CALLS_KEPT
from implicit_conv.torch.fused_steps import FUSED_STEPS

MOST_STATES = 64  # that are kept, and bytes of their packed filters
MOST_BYTES = 2 << 30
# After so many states in a row that served a single call each, the next one is made nothing for
# until it has come TRIAL times: filters that change with every call are not worth packing.
MOST_CHANGES, TRIAL = 4, 16
ADDRESS = torch.Tensor.data_ptr  # which copies a lazy clone: half the time of those that do not
VERSION = attrgetter("_version")


class WeightState:
    """One state of the weights.

    Attributes
    ----------
    place : tuple of int
        The address of each weight.
    versions : list of int
        Those of weights, and the steps of fused optimisers so far.
    programs : dict
        By kinds of images.
    packed : dict
        Packed filters by numbers of weights, layouts and orders, with what they depend on.
    calls : int
        How often it has come.
    changes : int
        How many states in a row before it, in place of which it came, served a single call each.
    used : int
        When it came last, as a number of calls.
    counters : list of int
        The ids of tensors that count the versions; 0 of one that is gone.
    """

    def __init__(
        self,
        place: tuple[int, ...],
        versions: list[int],
        weights: Sequence[Any],
        statistics: Sequence[int],
    ) -> None:
        """`statistics` are numbers of weights that torch writes to without telling.

        Raises
        ------
        RuntimeError
            One of these has gaps between its elements.
        """
        self.place, self.versions = place, versions
        self.programs: dict[object, Any] = {}
        self.packed: dict[tuple[Any, ...], tuple[object, Any]] = {}
        self.calls = self.changes = self.used = 0
        self._memory = [each.untyped_storage() for each in weights]
        owners = [*map(_counter, weights)]
        self.counters = counters = [*map(id, owners)]

        def forget(number: int) -> Any:
            return lambda _: counters.__setitem__(number, 0)

        self._owners = [weakref.ref(each, forget(n)) for n, each in enumerate(owners)]
        written = [weights[number] for number in statistics]
        if not all(each.is_contiguous() for each in written):
            raise RuntimeError("statistics of a batch norm have gaps")
        self._views = [
            (ctypes.c_char * each.nbytes).from_address(each.data_ptr()) for each in written
        ]
        self._bytes = [bytearray(view) for view in self._views]

    def holds(self, versions: list[int], weights: Sequence[Any]) -> bool:
        """Whether nothing was written to the weights, which now have these versions. Other tensors
        in their memory, such as parameters that were replaced, count for themselves.
        """
        return (
            self.versions == versions
            and (
                self.counters == [*map(id, weights)]
                or self.counters == [id(_counter(each)) for each in weights]
            )
            and all(map(eq, self._bytes, self._views))
        )

    def filters(self, number: int, order: object, pack: Callable[[], Any]) -> Any:
        """The packed filters of a weight."""
        of, packed = self.packed.get((number, order), (None, None))
        if of is None:
            packed = pack()
            self.packed[number, order] = self._of(number), packed
        return packed

    def follow(self, other: WeightState) -> None:
        """Come in place of another state, with its filters of weights that are the same."""
        self.changes = other.changes + 1 if other.calls < 2 else 0
        same = {
            key: own
            for key, own in other.packed.items()
            if own[0] == self._of(key[0]) == other._of(key[0])
        }
        self.packed |= same

    def _of(self, number: int) -> tuple[int, ...]:
        own = self.place[number], self.versions[number], self.counters[number]
        return *own, self.versions[-1]

    @property
    def is_settled(self) -> bool:
        """Whether programs are made for it."""
        return self.changes < MOST_CHANGES or self.calls > TRIAL

    @property
    def is_dead(self) -> bool:
        """Whether a weight is gone: nothing but states has its memory."""
        return any(torch._C._storage_Use_Count(each._cdata) == 1 for each in self._memory)

    @property
    def bytes(self) -> int:
        """Those of packed filters."""
        return sum(packed.bytes for _, packed in [*self.packed.values()])


def _counter(weight: Any) -> Any:
    """The tensor that counts the versions of a weight: itself, or what it is a part of."""
    return weight if weight._base is None else weight._base


class WeightStates:
    """The states of the weights of one region."""

    def __init__(self, statistics: Sequence[int]) -> None:
        """`statistics` are numbers of weights: means and variances of batch norms, to which torch
        writes in training without a new version.
        """
        self._statistics = statistics
        self._states: dict[tuple[int, ...], WeightState] = {}
        self._calls = 0

    def __iter__(self) -> Any:
        return iter([*self._states.values()])

    def of(self, weights: Sequence[Any]) -> WeightState | None:
        """The state of these weights; None if torch does not tell of writes to them."""
        try:
            place = tuple(map(ADDRESS, weights))
            versions = [*map(VERSION, weights), FUSED_STEPS[0]]
            state = self._states.get(place)
            if state is None or not state.holds(versions, weights):
                now = WeightState(place, versions, weights, self._statistics)
                state = self._begin(state, now)
        except RuntimeError:  # made by ``torch.inference_mode``, or without memory
            return None
        self._calls += 1
        state.used, state.calls = self._calls, state.calls + 1
        return state

    def _begin(self, before: WeightState | None, state: WeightState) -> WeightState:
        """Keep a new state, in place of the one before of these addresses, or of dropped ones."""
        if before is not None:
            state.programs = {k: found for k, found in before.programs.items() if found is None}
        for other in self._dropped() if before is None else [before]:
            self._states.pop(other.place, None)
            state.follow(other)
        self._states[state.place] = state
        return state

    def _dropped(self) -> list[WeightState]:
        """States with a weight that is gone; of others those that came last are left."""
        dropped, left, size = list[WeightState](), 0, 0
        for state in sorted(self, key=lambda state: -state.used):
            left, size = left + 1, size + state.bytes
            if left >= MOST_STATES or size > MOST_BYTES or state.is_dead:
                dropped.append(state)
                left, size = left - 1, size - state.bytes
        return dropped

    def keep(self, state: WeightState, key: object, program: Any) -> None:
        """Keep a program of a state; None where torch computes the region. If there are too many of
        all states, these are dropped first.
        """
        if sum(len(each.programs) for each in self) >= CALLS_KEPT:
            for each in self:
                each.programs.clear()
        state.programs[key] = program
