"""The rings' protocol for any number of loads: all states of producers and consumers are visited.

The functions of ring.py run as they stand, on barriers that are a count and a phase. An actor's
stage and parity repeat after 2 * stages loads, and what else there is of a state (the phases of
barriers, whose data a stage holds, who has read them, which copies are under way) is finite, so a
search that comes to its end has seen every state of every number of loads. That a stage holds the
load with the right remainder is enough: a stage is only written when all consumers have read what
it held, so nobody can be a whole round ahead.
"""

import importlib
import importlib.util
import itertools
import types
from typing import NamedTuple

import pytest

from implicit_conv.kernels.gpu.sizes import STAGE_BARRIERS_BYTES

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("needs pip install '.[cu13]' in a checkout", allow_module_level=True)
ring = importlib.import_module("implicit_conv.kernels.gpu.ring")


LANES = range(4)  # of a warp, of which one arrives


class WaitsError(Exception):
    """The actor cannot go on in this state."""


class ProtocolError(AssertionError):
    """The protocol is broken."""


class State(NamedTuple):
    """Of the barriers of all rings, then of what stages hold, then of the actors."""

    barriers: tuple  # of each: (arrivals that lack, parity of its phase, copies under way)
    stages: tuple  # of each: (load or None, consumers that have read it)
    flying: tuple  # copies under way: (stage, load)
    actors: tuple  # of each: (step of its program, (stage, parity) of each ring)


class World:
    """Rings of A and, if there are two, of B, with the arrivals that each barrier expects."""

    def __init__(self, sizes, taps, consumers, tensor, changes):
        self.sizes, self.taps, self.consumers, self.tensor = sizes, taps, consumers, tensor
        self.first = [sum(sizes[:n]) for n in range(len(sizes))]
        self.rings = [
            ring.Ring(STAGE_BARRIERS_BYTES * first, 0, 0, size)
            for first, size in zip(self.first, sizes, strict=True)
        ]
        self.expected = {}
        self.now = None
        stubs = types.SimpleNamespace(wait=self.wait, arrive=self.arrive, init=self.init)
        names = {"mbarrier": stubs, "warp": types.SimpleNamespace(sync=lambda: None)}
        self.functions = types.SimpleNamespace(
            **{
                name: types.FunctionType(code, {**vars(ring), **names})
                for name in ("init", "full", "advance", "wait_empty", "wait_full", "release")
                for code in (changes.get(name, getattr(ring, name).py_func).__code__,)
            }
        )
        for each in self.rings:
            for lane in LANES:
                self.functions.init(each, 1, consumers, lane)

    # -- barriers ------------------------------------------------------------------------------

    def init(self, barrier, count, predicate):
        if predicate:
            self.expected[barrier // 8] = count

    def wait(self, barrier, parity):
        if self.now.barriers[barrier // 8][1] == parity:
            raise WaitsError

    def arrive(self, barrier, predicate=True):
        if predicate:
            self.change(barrier // 8, -1, 0)

    def change(self, number, arrivals, copies):
        """Arrivals that lack and copies under way change; where nothing lacks, the phase ends."""
        lack, parity, under_way = self.now.barriers[number]
        lack, under_way = lack + arrivals, under_way + copies
        if lack < 0:
            raise ProtocolError("a barrier has more arrivals than it expects")
        if lack == under_way == 0:
            lack, parity = self.expected[number], parity ^ 1
        self.put("barriers", number, (lack, parity, under_way))

    def put(self, field, number, value):
        values = getattr(self.now, field)
        self.now = self.now._replace(**{field: (*values[:number], value, *values[number + 1 :])})

    # -- data ----------------------------------------------------------------------------------

    def write(self, stage, load):
        held, readers = self.now.stages[stage]
        if held is not None and len(readers) < self.consumers:
            raise ProtocolError("a stage is overwritten before all consumers have read it")
        self.put("stages", stage, (load, frozenset()))

    def read(self, stage, load, consumer):
        held, readers = self.now.stages[stage]
        if held != load or consumer in readers:
            raise ProtocolError("a consumer reads what is not its load")
        self.put("stages", stage, (held, readers | {consumer}))

    # -- programs ------------------------------------------------------------------------------

    def places(self, which, at):
        """(the ring, its stage among all, the remainder of its load) of an actor's position."""
        stage, parity = at
        if stage >= self.sizes[which]:
            raise ProtocolError("a stage that the ring does not have")
        return self.rings[which], self.first[which] + stage, stage + parity * self.sizes[which]

    def program(self, consumer):
        """The steps of a load: what to do, and in which ring."""
        one_ring = len(self.sizes) == 1
        if not consumer:
            return [("fill", 0)] + ([] if one_ring else [("fill", 1)] * self.taps)
        if one_ring:
            return [("await", 0), ("read", 0), ("release", 0)]
        tap = [("await", 1), ("read", 1), ("look", 0), ("release", 1)]
        last = [("read", 0) if step == ("look", 0) else step for step in tap]
        return [("await", 0), *tap * (self.taps - 1), *last, ("release", 0)]

    def step(self, number):
        """An actor does its next step; 0 is the producer."""
        f, (at, positions) = self.functions, self.now.actors[number]
        program = self.program(number)
        what, which = program[at]
        own, stage, load = self.places(which, positions[which])
        if what == "fill":
            f.wait_empty(own, *positions[which])
            if self.tensor:
                self.change(f.full(own, positions[which][0]) // 8, -1, 1)
                self.now = self.now._replace(
                    flying=tuple(sorted((*self.now.flying, (stage, load))))
                )
            else:
                self.write(stage, load)
                self.arrive(f.full(own, positions[which][0]))
        elif what == "await":
            f.wait_full(own, *positions[which])
        elif what == "read":
            self.read(stage, load, number)
        elif what == "look":  # each tap but the last reads A, too
            if self.now.stages[stage][0] != load:
                raise ProtocolError("a consumer reads what is not its load")
        else:
            for lane in LANES:
                f.release(own, positions[which][0], lane)
        if what in ("fill", "release"):
            moved = f.advance(own, *positions[which])
            positions = (*positions[:which], moved, *positions[which + 1 :])
        self.put("actors", number, ((at + 1) % len(program), positions))

    def land(self, copy):
        """A copy under way arrives."""
        flying = [*self.now.flying]
        flying.remove(copy)
        self.now = self.now._replace(flying=tuple(flying))
        stage, load = copy
        self.write(stage, load)
        self.change(2 * stage, 0, -1)

    def visit(self):
        """The number of states; ProtocolError where one of them is."""
        barriers = tuple((self.expected[n], 0, 0) for n in range(2 * sum(self.sizes)))
        actor = (0, ((0, 0),) * len(self.sizes))
        first = State(
            barriers,
            ((None, frozenset()),) * sum(self.sizes),
            (),
            (actor,) * (1 + self.consumers),
        )
        seen, left = {first}, [first]
        while left:
            state, moved = left.pop(), False
            events = [(self.step, n) for n in range(len(state.actors))]
            events += [(self.land, copy) for copy in set(state.flying)]
            for act, which in events:
                self.now = state
                try:
                    act(which)
                except WaitsError:
                    continue
                moved = True
                if self.now not in seen:
                    seen.add(self.now)
                    left.append(self.now)
            if not moved:
                raise ProtocolError("deadlock")
        return len(seen)


ONE = [((size,), 1) for size in (1, 2, 3, 4)]
TWO = [((a, b), taps) for a in (1, 2) for b in (1, 2, 3) for taps in (1, 2, 3)]


@pytest.mark.parametrize("tensor", [False, True], ids=["threads", "tensor"])
@pytest.mark.parametrize("consumers", [1, 2])
def test_no_state_is_wrong(consumers, tensor):
    for sizes, taps in ONE + TWO:
        assert World(sizes, taps, consumers, tensor, {}).visit() > sum(sizes)


def same_parity(ring, stage, parity):
    return (0 if stage + 1 == ring.stages else stage + 1), parity


def never_waits(ring, stage, parity):
    pass


def waits_for_this_round(ring, stage, parity):
    mbarrier.wait(ring.barriers + STAGE_BARRIERS_BYTES * stage + 8, parity)  # noqa: F821


def waits_for_the_last_round(ring, stage, parity):
    mbarrier.wait(ring.barriers + STAGE_BARRIERS_BYTES * stage, parity ^ 1)  # noqa: F821


def releases_the_next(ring, stage, lane):
    barrier = ring.barriers + STAGE_BARRIERS_BYTES * ((stage + 1) % ring.stages) + 8
    mbarrier.arrive(barrier, lane == 0)  # noqa: F821


def expects_one_more(ring, producers, consumers, lane):
    for stage in range(ring.stages):
        barrier = ring.barriers + STAGE_BARRIERS_BYTES * stage
        mbarrier.init(barrier, producers, lane == 0)  # noqa: F821
        mbarrier.init(barrier + 8, consumers + 1, lane == 0)  # noqa: F821


FAULTS = [
    {"advance": same_parity},
    {"wait_empty": never_waits},
    {"wait_empty": waits_for_this_round},
    {"wait_full": never_waits},
    {"wait_full": waits_for_the_last_round},
    {"release": releases_the_next},
    {"init": expects_one_more},
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: "-".join(v.__name__ for v in f.values()))
@pytest.mark.parametrize("tensor", [False, True], ids=["threads", "tensor"])
def test_faults_are_seen(fault, tensor):
    for (sizes, taps), consumers in itertools.product([((2,), 1), ((2, 3), 2)], (1, 2)):
        with pytest.raises(ProtocolError):
            World(sizes, taps, consumers, tensor, fault).visit()
