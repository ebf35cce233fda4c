"""Forks and first calls under chosen schedules: the source of `preparation` runs one step at a
time, while a signal handler raises an exception, forks, or makes a first call.
"""

import random

import pytest
from fork_world import SIGNAL, SIGNALS, STEPS, Interrupt, World
from sampling import count, resampled
from schedules import runs_with

# Of a generator that an exception of a signal handler leaves behind.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def fork(world):
    world.fork()


def call(world, compiles=True, callback=None):
    prepare = world.module.prepare
    assert prepare(world.prepared, compiles, callback) == 1 or world.over


def plan(world):
    call(world, compiles=False)


def compile_elsewhere(world):
    """A thread compiles that does not prepare."""
    with world.module.COMPILING:
        world.step()


def interrupt(world):
    raise Interrupt


def call_back(action, compiles=True):
    """A first call, in which a callback does something."""
    return lambda world: call(world, compiles, action)


FORKS = [[fork], [fork], [call]]
SCENES = {
    "two forks and a first call": FORKS,
    "two forks and a first call of the main thread": [[call], [fork], [fork]],
    "forks in callbacks": [[call_back(fork)], [call_back(fork, False)], [fork]],
    "calls in callbacks": [[call_back(call)], [call_back(plan)], [fork]],
    "a fork in a callback of a callback": [[call_back(call_back(fork))], [call], [fork]],
    "code is compiled elsewhere": [[fork], [call], [compile_elsewhere], [fork]],
}
HANDLERS = {"raises": interrupt, "forks": fork, "calls": call}
MANY = pytest.mark.exhaustive


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("delays", [1, pytest.param(4, marks=MANY)])
def test_few_delays(scene, delays):
    assert runs_with(delays, {}, lambda: World(SCENES[scene])) > 10


@MANY
def test_all_schedules_of_two_forks_and_a_first_call():
    actions = [[fork], [fork], [plan]]
    assert runs_with(STEPS, {}, lambda: World(actions)) > 1000


def with_signals(scene, handler, signals=SIGNALS):
    """The scene, after which the main thread forks and calls again."""
    main, *others = SCENES[scene]
    return World([[*main, fork, call], *others], HANDLERS[handler], signals)


@MANY
@pytest.mark.parametrize("handler", HANDLERS)
def test_signals(handler, scene="two forks and a first call"):  # minutes each
    assert runs_with(2, {}, lambda: with_signals(scene, handler)) > 100


@resampled
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("scene", SCENES)
def test_random_schedules(scene, handler):
    for seed in range(count(8, 2000, 25)):
        dice = random.Random(seed)
        stay = dice.random()  # the probability that a thread goes on

        def choose(ready, current, dice=dice, stay=stay):
            return current if current in ready and dice.random() < stay else dice.choice(ready)

        with_signals(scene, handler, dice.randint(0, 2 * SIGNALS)).go(choose)


@pytest.mark.parametrize("often", [0.5, 0.9])
def test_the_child_of_a_fork_that_could_not_wait_finds_all_locks_free(often):
    """Exceptions come in a row, too many for a fork to wait."""
    for seed in range(count(100, 2000)):
        dice = random.Random(seed)

        def choose(ready, current, dice=dice):
            return SIGNAL if SIGNAL in ready and dice.random() < often else dice.choice(ready)

        World([[fork, fork], [call], [compile_elsewhere]], interrupt, 20).go(choose)
