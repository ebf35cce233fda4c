"""The native team under chosen schedules: its source runs in Python, one atomic step at a time.

All runs with few delays are tried, and random runs.
"""

import ast
import inspect
import random
import sys
from collections import Counter

import pytest
from schedules import runs_with

if sys.platform != "linux":
    pytest.skip("the team is for Linux", allow_module_level=True)

from implicit_conv.kernels.cpu.runtime.call import THREAD_COUNTS, WORD
from implicit_conv.kernels.cpu.runtime.compiled import linux, team
from implicit_conv.kernels.cpu.runtime.compiled.entry import CPUS, RUNNING

CROWD_WORDS, BED, BELLS, BLOBS = 10**6, 2 * 10**6, 3 * 10**6, 4 * 10**6  # addresses
TICK, ITEM = 15_000, 1_000_000  # ns that a look at the clock takes, and an item
STEPS = 5000  # of a run that ends


class Steps(ast.NodeTransformer):
    """Kernels become generators, which yield (operation, arguments) for each step."""

    def __init__(self, kernels):
        self.kernels = kernels

    def visit_FunctionDef(self, node):
        node.decorator_list = []
        return self.generic_visit(node)

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.kernels:
            return ast.YieldFrom(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr != "lowest_bit":
            name = ast.Constant(node.func.attr)
            return ast.Yield(ast.Tuple([name, *node.args], ast.Load()))
        return node


class LowestBit:
    """Stands in for the module `atomic`, of which steps leave only this."""

    @staticmethod
    def lowest_bit(mask):
        return (mask & -mask).bit_length() - 1


def _kernels():
    """The functions of the team by name, as generators."""
    tree = ast.parse(inspect.getsource(team))
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    defined = [node for node in defined if not node.name.startswith("make")]
    names = {node.name for node in defined} | {"run_counted"}
    module = ast.fix_missing_locations(Steps(names).visit(ast.Module(defined, [])))
    spaces = {
        **vars(team),
        "atomic": LowestBit,
        "control_word": lambda: 0,
        "set_control_word": lambda word: None,
        "run_counted": run_counted,
    }
    exec(compile(module, team.__file__, "exec"), spaces)
    return spaces


def run_counted(entry, blob, thread):
    """Stands in for what entries do: count as running, and take items until none is left."""
    yield "add", CROWD_WORDS + RUNNING, 1
    yield "meet", blob, (yield "arrive", blob, thread)
    while (yield "item", blob, thread):
        pass
    yield "add", CROWD_WORDS + RUNNING, -1


KERNELS = _kernels()


class Run:
    """Callers and helpers of one team, of which one makes a step at a time.

    Parameters
    ----------
    launches : list of list of (int, int)
        For each caller, (items, threads at most) of each of its launches.
    helpers, cpus : int
    meet : bool
        Whether all threads of a launch wait for each other, so that none may be missed.
    turn : int
        ns for which others run when a thread gives way.
    """

    def __init__(self, launches, helpers, cpus, meet=False, turn=TICK):
        self.words = Counter({CROWD_WORDS + CPUS: cpus, team.BED: BED, team.PACKS: 1})
        for place in range(team.JOB_COUNT):
            job = team.JOBS + place * team.LINE
            self.words[job + team.BELL] = BELLS + place
            self.words[job + team.STATE] = team.CLOSED
        self.semaphores = Counter()
        self.time, self.closed = 0, {}  # ns; for each job, when it was closed
        self.turn, self.ways = turn, 0  # how often a thread gave way
        self.looked = {}  # for each thread, its last look at the clock
        self.left = {}  # that before it gave way
        self.items, self.bounds = {}, {}  # of each live blob: items left, threads at most
        self.arrived, self.all_meet = Counter(), meet
        callers = [self.caller(i, launches) for i, launches in enumerate(launches)]
        self.threads = [*callers, *(KERNELS["helper"](0) for _ in range(helpers))]
        self.callers = len(callers)
        self.steps = [next(thread) for thread in self.threads]  # what each does next; None: ended

    def caller(self, number, launches):
        for place, (items, threads) in enumerate(launches):
            blob = BLOBS + 1000 * (100 * number + place)
            self.items[blob], self.bounds[blob] = items, threads
            yield from KERNELS["launch"](0, 1, blob, threads)
            assert self.items.pop(blob) == 0, "items are left"

    def ready(self, thread):
        match self.steps[thread]:
            case "wait", semaphore:
                return self.semaphores[semaphore] > 0
            case "meet", blob, threads:
                return self.arrived[blob] >= threads
        return self.steps[thread] is not None

    def step(self, thread):
        name, *arguments = self.steps[thread]
        self.current = thread
        try:
            self.steps[thread] = self.threads[thread].send(getattr(self, name)(*arguments))
        except StopIteration:
            self.steps[thread] = None

    def load(self, address):
        return self.words[address]

    def read(self, address):
        self.alive(address - WORD * THREAD_COUNTS)
        return CROWD_WORDS

    def alive(self, blob):
        assert blob in self.items, "a blob is used after its launch has returned"
        return blob

    def store(self, address, value):
        if address == team.REST_UNTIL:
            since = self.left.pop(self.current, None) or min(self.closed.values())
            waited = self.time - since
            assert value <= self.time + team.REST * waited, "a rest for what nobody waited for"
        self.words[address] = value

    def _change(self, address, value):
        before, self.words[address] = self.words[address], value
        return before

    def add(self, address, value):
        return self._change(address, self.words[address] + value)

    def set_bits(self, address, value):
        if value == team.CLOSED:
            self.closed[address] = self.time
        return self._change(address, self.words[address] | value)

    def keep_bits(self, address, value):
        return self._change(address, self.words[address] & value)

    def swap(self, address, expected, value):
        return self.words[address] == expected and self._change(address, value) is not None

    def arrive(self, blob, thread):
        """Begin to work as `thread`; returns how many threads to wait for."""
        assert thread < self.bounds[self.alive(blob)], "this thread has no scratch memory"
        self.arrived[blob] += 1
        return self.bounds[blob] if self.all_meet else 0

    def meet(self, blob, threads):
        pass

    def item(self, blob, thread):
        """Take an item; whether there was one for this thread."""
        crowded = self.words[CROWD_WORDS + RUNNING] > self.words[CROWD_WORDS + CPUS]
        if self.items[self.alive(blob)] == 0 or (thread and crowded):
            return False
        self.items[blob] -= 1
        self.time += ITEM
        return True

    def clock(self, which):
        """The time; no helper ever gets its CPU."""
        self.time += TICK * (which == linux.MONOTONIC)
        self.looked[self.current] = self.time
        return self.time * (which == linux.MONOTONIC)

    def post(self, semaphore):
        self.semaphores[semaphore] += 1

    def wait(self, semaphore):
        self.semaphores[semaphore] -= 1

    def pause(self):
        pass

    def give_way(self):
        self.left[self.current] = self.looked[self.current]
        self.time += self.turn
        self.ways += 1

    def this_cpu(self):
        return 0

    def leave_cpu(self, cpu):
        pass

    def go(self, choose):
        """Let threads make steps until nobody can: ``choose(ready, current)`` picks the next."""
        current = 0
        for _ in range(STEPS):
            ready = [i for i in range(len(self.threads)) if self.ready(i)]
            if not ready:
                break
            current = choose(ready, current)
            self.step(current)
        self.check()

    def check(self):
        """Nobody can make a step: all callers have returned, all helpers sleep, nothing is left."""
        helpers = len(self.threads) - self.callers
        assert self.steps[: self.callers] == [None] * self.callers, "a caller waits in vain"
        assert self.steps[self.callers :] == [("wait", BED)] * helpers
        assert not any(self.semaphores.values()), "a post that nobody waited for"
        assert self.words[team.SLEEPERS] == helpers
        assert (self.words[team.OPEN], self.words[team.TAKEN]) == (0, 0)
        assert self.words[CROWD_WORDS + RUNNING] == 0


ONE, TWO, LONG = [[(1, 3), (1, 2)]], [[(2, 2)], [(2, 3)]], [[(2, 3), (2, 2)]]
MANY = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("launches", "helpers", "delays"),
    [(ONE, 1, 2), (TWO, 2, 1), (LONG, 2, 1)]
    + [pytest.param(*case, marks=MANY) for case in [(ONE, 1, 3), (TWO, 2, 2), (LONG, 2, 2)]],
)
def test_few_delays(launches, helpers, delays):
    assert runs_with(delays, {}, lambda: Run(launches, helpers, 4)) > 100


@pytest.mark.parametrize("helpers", [1, pytest.param(2, marks=MANY)])
def test_no_helper_is_missed(helpers):
    launches = [[(0, helpers + 1)] * 2]
    assert runs_with(2, {}, lambda: Run(launches, helpers, helpers + 1, meet=True)) > 100


def test_random_schedules():
    for seed in range(500):
        dice = random.Random(seed)
        callers, helpers, cpus = dice.randint(1, 3), dice.randint(1, 3), dice.randint(1, 5)
        launches = [
            [(dice.randrange(6), dice.randint(2, 4)) for _ in "123"] for _ in range(callers)
        ]
        stay = dice.random()  # the probability that a thread goes on

        def choose(ready, current, dice=dice, stay=stay):
            return current if current in ready and dice.random() < stay else dice.choice(ready)

        Run(launches, helpers, cpus).go(choose)


@pytest.mark.parametrize("packs", [0, 1])
@pytest.mark.parametrize("turn", [TICK, 2 * team.STALL])
def test_who_wakes_a_helper_gives_way_where_linux_packs_threads(packs, turn):
    """Once for each launch that finds it asleep; launches rest after others took a long turn."""
    run = Run([[(4, 2)] * 3], 1, 4, turn=turn)
    run.words[team.PACKS] = packs

    def helper_first(ready, current):
        return max(ready)

    run.go(helper_first)
    rests = packs and turn > team.STALL
    assert run.ways == packs * (1 if rests else 3)
    assert bool(run.words[team.REST_UNTIL]) == bool(rests)
