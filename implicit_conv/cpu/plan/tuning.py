"""Tuning: measure the best few candidates of a plan on this machine, and keep the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import default_rng

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Candidate, Choice, Given
from implicit_conv.cpu.candidates.query import Formats, Query
from implicit_conv.cpu.plan import planner, tuning_cache
from implicit_conv.cpu.plan.composite import Composite
from implicit_conv.cpu.plan.planner import steps_of
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.pool import new_array
from implicit_conv.kernels.cpu.runtime.program import Program, Room, W, X, Y, begin_of, placed
from implicit_conv.kernels.geometry import Epilogue
from implicit_conv.problem.options import INTEGER_RANGES
from implicit_conv.problem.parse import choice
from implicit_conv.timing import Local, Seconds, interleave, paired_ratio, show, summarise

FILTERS = ("packed", "plain")  # what calls are measured with
FEW = 8  # candidates that are measured, at most
WITHIN = 2.5  # times the lowest estimate: slower candidates are not measured
ROUNDS = 7  # samples of each candidate
SAMPLE_SECONDS = 0.01  # least length of a sample
GAIN = 0.98  # share of the first candidate's time below which another one replaces it

Run = Callable[[Candidate], Callable[[], object]]  # a call of one candidate, ready to be timed


def tuned(query: Query, arrays: Arrays, formats: Formats, packs: bool) -> Choice:
    """The choice for `query` with the fastest candidate first, after that of each part of the
    candidates; they are also kept for later plans.

    `arrays` are like those that are measured. The planner's own choice, for packed filters if
    `packs`, stays unless another candidate takes at most GAIN of its time.
    """
    done = set()
    for c in few(query, packs):
        if not isinstance(c.method, Composite):
            continue
        of_parts = c.method.part_arrays(c.problem, c.arch)
        for part, own in zip(c.parts, of_parts, strict=True):
            asked = part.query._replace(arrays=own)
            if planner.entry(asked) not in done and len(few(asked, packs)) > 1:
                tuned(asked, own, c.method.part_formats(c, formats), packs)
            done.add(planner.entry(asked))
    candidates = few(query, packs)
    samples = measure(candidates, run_of(query, arrays, formats, packs))
    best = fastest(samples)
    chosen = tuning_cache.Kept(tuning_cache.name_of(candidates[best]), _words(samples, best))
    tuning_cache.save(planner.entry(query), chosen)
    return planner.plan(query)


def run_of(query: Query, arrays: Arrays, formats: Formats, packs: bool) -> Run:
    """A function that makes a call of a candidate for arrays like these; its filter is packed
    before the call if `packs`.
    """
    problem = query.problem
    assert arrays.w is not None
    x = filled(arrays.x, problem.dtype, 0)
    w = filled(arrays.w, problem.filter_dtype, 1)
    y = filled(arrays.y, formats.y_dtype, 2)

    def run(c: Candidate) -> Callable[[], object]:
        choice, room = Choice(query._replace(arrays=None), (c,)), Room()
        packed = choice.pack(w, formats) if packs else None
        of_w = None if packs else placed(W, w.shape, w.dtype, w.strides)
        of_x, of_y = (
            placed(place, array.shape, array.dtype, array.strides)
            for place, array in ((X, x), (Y, y))
        )
        arrays = Arrays(of_x, of_w, of_y, None, begin_of(W))
        program = Program(steps_of(choice, Given(arrays, Epilogue(), formats, room)), room)

        def call() -> Array:
            read = w.ctypes.data if packed is None else packed.operand
            program.run(x.ctypes.data, read, y.ctypes.data)
            return y

        return call

    return run


def filled(like: Array, dtype: str, seed: int) -> Array:
    """An array with the shape and strides of `like`, of random numbers; see `example`."""
    steps = [abs(step) for step in like.strides]
    last = sum(step * (extent - 1) for step, extent in zip(steps, like.shape, strict=True))
    kind = numpy_dtype(dtype)
    memory = new_array((max(0, last) + kind.itemsize,), np.dtype(np.uint8), 0)
    array: Array = np.ndarray(like.shape, kind, memory, strides=steps)
    array = array[tuple(slice(None, None, -1 if step < 0 else 1) for step in like.strides)]
    array[...] = example(like.shape, dtype, seed)
    return array


def few(query: Query, packs: bool) -> list[Candidate]:
    """The candidates worth measuring: the planner's own choice, then those with low estimates, for
    packed filters if `packs`.
    """

    def cycles(c: Candidate) -> float:
        return c.packed_cycles if packs else c.cycles

    choice = planner.estimated(query)
    first = choice.best_packed if packs else choice.best
    others = sorted(planner.measurable(query, choice), key=cycles)
    near = [c for c in others if c != first and cycles(c) <= WITHIN * cycles(first)]
    return [first, *near][:FEW]


def measure(candidates: Sequence[Candidate], run: Run) -> list[Seconds]:
    """Samples of seconds per call of each candidate, which take turns."""
    functions = {}
    try:
        for number, c in enumerate(candidates):
            show(f"{number} of {len(candidates)} candidates; compiling {c.name}")
            functions[str(number)] = Local(run(c))
            functions[str(number)].result()
        show(f"measuring {len(candidates)} candidates")
        return list(interleave(functions, ROUNDS, SAMPLE_SECONDS).values())
    finally:
        show("")


def fastest(samples: Sequence[Seconds]) -> int:
    """The number of the fastest candidate; the first one unless another is clearly faster, in the
    median over the rounds and at best.
    """
    first = samples[0]
    ratios = [max(paired_ratio(own, first), own.min() / first.min()) for own in samples]
    best = int(np.argmin(ratios))
    return best if ratios[best] < GAIN else 0


def _words(samples: Sequence[Seconds], best: int) -> str:
    own, first = (
        f"{1e3 * summarise(times).median:.3f} ms" for times in (samples[best], samples[0])
    )
    others = f", where the one with the lowest estimate took {first}" if best else ""
    day = time.strftime("%Y-%m-%d")
    return f"the fastest of {len(samples)} candidates, measured on {day}: {own}{others}"


def parse_filters(filters: str) -> bool:
    """Whether calls are measured with a packed filter.

    Raises
    ------
    PlanError
        `filters` is not in FILTERS.
    """
    return choice("filters", filters, FILTERS, error=PlanError) == "packed"


def example(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Random numbers to measure with: normal ones, or integers of the whole range of `dtype`."""
    random = default_rng(seed)
    if dtype in INTEGER_RANGES:
        low, high = INTEGER_RANGES[dtype]
        return random.integers(low, high, shape, numpy_dtype(dtype), endpoint=True)
    return random.standard_normal(shape, np.float32).astype(numpy_dtype(dtype))
