"""A program: the steps of one call over the places of its arrays. Python runs it, and so does
compiled code, which reads it as words.

The places are x, w, y, a residual, and each part of the room for what steps pass to each other.
Steps are made of `placed` arrays, which have the shapes and strides of the call's own, and
addresses that say where in which place they begin, but no memory. A run exchanges places for
addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from implicit_conv.kernels.cpu.runtime.layout import round_up
from implicit_conv.kernels.cpu.runtime.pool import POOL
from implicit_conv.process.cache import cached_property

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch

Array: TypeAlias = "np.ndarray[Any, Any]"

# Places: nothing, the arrays, and from ROOM on the parts of the room; words have one place for all
# of these. An address in place p is near p << PLACE_BITS, where no process has memory; one in
# `NOTHING` is that of a constant, or 0.
NOTHING, X, W, Y, RESIDUAL, ROOM = range(6)
PLACE_BITS = 52
HALF = 1 << (PLACE_BITS - 1)
MOST_PARTS = (1 << 63 - PLACE_BITS) - ROOM - 1
BLOCK_BYTES, MOST_THREADS, STEPS = range(3)  # the words before the steps
HEADER = 3
# The words of a step. One without an entry copies x to y, as the table at BLOB says. With a bias,
# SUMS are its initial sums: NO_SUMS, the BIAS_ITSELF, or the address of a table of runs.
BLOB, ENTRY, THREADS, SCRATCH_BYTES, SUMS, OPERANDS = range(6)
# x, w, y, panels, the residual and scratch memory have two words each: place and offset.
STEP = OPERANDS + 2 * 6
NO_SUMS, BIAS_ITSELF = range(2)
# A table: where in the room the sums are, their bytes, the number of runs, then for each run where
# it begins in the sums and in the bias, and its bytes. What is in no run is 0.
SUMS_OFFSET, SUMS_BYTES, RUNS, TABLE_HEADER = range(4)
RUN = 3
# A table of a copy: bytes that are contiguous in both arrays, the number of axes, and of each axis
# the number of such runs, and the bytes from one to the next in x and in y.
RUN_BYTES, AXES, COPY_HEADER = range(3)
AXIS = 3
MOST_COPY_AXES = 16  # more than any array has, with two that are cut into blocks
BLOCK, LEAST_BLOCK = 16, 4  # elements of a block along an axis that is cut
LARGEST_KEPT = 25  # the exponent of the largest block of a run that is kept, 32 MiB
MOST_RUNS = 64  # others would take longer than the same sums by numpy
MOST_BIAS = 1 << 24  # float32 has no larger odd numbers


def begin_of(place: int) -> int:
    """The address of a place."""
    return place << PLACE_BITS


def located(address: int) -> tuple[int, int]:
    """The place of an address, and the offset in bytes, which may be negative."""
    place = (address + HALF) >> PLACE_BITS
    return place, address - (place << PLACE_BITS)


ELEMENT = np.zeros(1, np.int64)
NOWHERE = ELEMENT.ctypes.data  # where arrays without elements begin: numpy 2.3 takes no 0


def array_at(address: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> Array:
    """An array at an address, of which it owns nothing; `strides` are in bytes."""
    kind = f"<u{dtype.itemsize}" if dtype.kind == "V" else dtype.str  # bfloat16
    data = address or NOWHERE, False
    interface = {
        "version": 3,
        "typestr": kind,
        "shape": shape,
        "strides": strides,
        "data": data,
    }
    array = np.asarray(SimpleNamespace(__array_interface__=interface))
    return array if array.dtype == dtype else array.view(dtype)


def placed(place: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> Array:
    """An array that begins where a place does. Its elements must be neither read nor written."""
    return array_at(place << PLACE_BITS, shape, dtype, strides)


def address_of(array: Array) -> int:
    """The address of the first element; 0 if there is none."""
    first: int = array.__array_interface__["data"][0] if array.size else 0
    return first


class Room:
    """The memory of a run that holds what steps pass to each other.

    Attributes
    ----------
    end : int
        Bytes in use; who sets it back gives memory free for the steps that follow.
    size : int
        The most bytes that were in use.
    parts : dict of (int, int) to int
        The number of each part, by where in the room it begins, and its bytes.
    """

    def __init__(self) -> None:
        self.end = self.size = 0
        self.parts: dict[tuple[int, int], int] = {}

    def take(self, size: int) -> int:
        """The address of a part of `size` further bytes, which begins on a cache line.

        Raises
        ------
        ValueError
            There are too many.
        """
        number = self.parts.setdefault((self.end, size), len(self.parts))
        if number == MOST_PARTS:
            raise ValueError(f"the steps of a program have more than {MOST_PARTS} parts of memory")
        self.size = max(self.size, self.end + size)
        self.end += round_up(size)
        return (ROOM + number) << PLACE_BITS

    def array(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A contiguous array there."""
        strides = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return array_at(self.take(dtype.itemsize * math.prod(shape)), shape, dtype, strides)


# What a step does in a run: a function of the addresses of all places, a bias and a scale.
Action: TypeAlias = "Callable[[Sequence[int], Any, Any], None]"


class Launched(NamedTuple):
    """A step that launches kernels, at addresses; 0 is nowhere.

    `scratch` is that of the scratch memory of the launch, which is a part of the room. `sums` makes
    the initial sums of a bias; without it, none is added. `scaled` says that the sums are scaled,
    and a bias added to what they then are.
    """

    launch: Launch
    scratch: int
    x: int
    w: int
    y: int
    panels: int = 0
    residual: int = 0
    sums: Callable[[Any], Any] | None = None
    scaled: bool = False

    def action(self) -> Action:
        """What the step does in a run."""
        given = self.scratch, self.x, self.w, self.y, self.panels, self.residual
        launch, vectors = self.launch, self._vectors
        # Those of `located`, which a new size would else call six times.
        places = [(at := (a + HALF) >> PLACE_BITS, a - (at << PLACE_BITS)) for a in given]

        def run(begins: Sequence[int], bias: Any, scale: Any) -> None:
            scratch, x, w, y, panels, residual = [begins[at] + offset for at, offset in places]
            launch.run(scratch, x, w, y, panels, residual, *vectors(bias, scale))

        return run

    def fixed(self, bias: Any, scale: Any) -> Launched:
        """The same step with this bias and this scale in all runs."""
        launch = self.launch.filled(*self._vectors(bias, scale))
        return self._replace(launch=launch, sums=None, scaled=False)

    def _vectors(self, bias: Any, scale: Any) -> tuple[Any, tuple[Any, Any] | None]:
        """The initial sums, and (scale, shift)."""
        if self.scaled:
            return None, (scale, np.zeros_like(scale) if bias is None else bias)
        return None if self.sums is None else self.sums(bias), None

    def moved(self, by: Mapping[int, int]) -> Launched:
        """The same step on what is so many bytes further on in each place of `by`."""
        given = self.x, self.w, self.y, self.panels, self.residual
        x, w, y, panels, residual = (_moved(each, by) for each in given)
        return self._replace(x=x, w=w, y=y, panels=panels, residual=residual)


class Copied(NamedTuple):
    """A step that copies an array to another one, of the same shape, and converts its elements."""

    source: Array
    target: Array

    def action(self) -> Action:
        """What the step does in a run."""
        source, target = map(_found, (self.source, self.target))

        def run(begins: Sequence[int], bias: Any, scale: Any) -> None:
            np.copyto(target(begins), source(begins), casting="unsafe")

        return run

    def fixed(self, bias: Any, scale: Any) -> Copied:
        """See `Launched`."""
        return self

    def moved(self, by: Mapping[int, int]) -> Copied:
        """See `Launched`."""
        return Copied(_moved_array(self.source, by), _moved_array(self.target, by))


class Called(NamedTuple):
    """A step that calls a function of Python of arrays, of which each may be None, and of the bias
    and the scale.
    """

    function: Callable[..., Any]
    arrays: tuple[Array | None, ...]

    def action(self) -> Action:
        """What the step does in a run."""
        arrays = [None if each is None else _found(each) for each in self.arrays]

        def run(begins: Sequence[int], bias: Any, scale: Any) -> None:
            given = (None if found is None else found(begins) for found in arrays)
            self.function(*given, bias, scale)

        return run

    def fixed(self, bias: Any, scale: Any) -> Called:
        """See `Launched`."""
        return Called(lambda *arrays: self.function(*arrays[:-2], bias, scale), self.arrays)

    def moved(self, by: Mapping[int, int]) -> Called:
        """See `Launched`."""
        arrays = (None if each is None else _moved_array(each, by) for each in self.arrays)
        return Called(self.function, tuple(arrays))


Step: TypeAlias = "Launched | Copied | Called"


def _found(array: Array) -> Callable[[Sequence[int]], Array]:
    """A function of the addresses of all places: what a placed array is in a run."""
    place, offset = located(address_of(array))
    form = array.shape, array.dtype, array.strides
    return lambda begins: array_at(begins[place] + offset, *form)


def _moved(address: int, by: Mapping[int, int]) -> int:
    return address and address + by.get(located(address)[0], 0)


def _moved_array(array: Array, by: Mapping[int, int]) -> Array:
    place, _ = located(address_of(array))
    if not by.get(place):
        return array  # of constants, the step owns the memory
    return array_at(address_of(array) + by[place], array.shape, array.dtype, array.strides)


def launched(
    launch: Launch,
    room: Room,
    x: int,
    w: int,
    y: int,
    panels: int = 0,
    residual: int = 0,
    sums: Callable[[Any], Any] | None = None,
    *,
    scaled: bool = False,
) -> Launched:
    """A step whose scratch memory is behind what is in use of the room, and free after it."""
    end = room.end
    scratch = room.take(launch.bytes)
    room.end = end
    return Launched(launch, scratch, x, w, y, panels, residual, sums, scaled)


def copied(source: Array, room: Room, steps: list[Step]) -> Array:
    """A contiguous copy of an array in the room, made by one more step."""
    target = room.array(source.shape, source.dtype)
    steps.append(Copied(source, target))
    return target


class Access(NamedTuple):
    """What a program reads or writes of one argument: elements of this `dtype`, aligned to their
    size, with this shape and these `strides` in bytes from an address on, and nothing else.

    This is the only place that says so. Who hands the address of an array or a tensor to a program
    asks `takes` first, unless it has asked for an argument that is stored alike.
    """

    dtype: str
    size: int  # of an element, in bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def to(cls, array: Array) -> Access:
        """The access to an array like this one."""
        return cls(array.dtype.name, array.itemsize, array.shape, array.strides)

    def takes(
        self, dtype: str, shape: Sequence[int], strides: Sequence[int], address: int = 0
    ) -> bool:
        """Whether it is an access to an argument that is stored so; `strides` are in bytes."""
        steps = zip(self.shape, self.strides, strides, strict=False)
        return (
            dtype == self.dtype
            and tuple(shape) == self.shape
            and all(own == step for extent, own, step in steps if extent > 1)
            and address % self.size == 0
        )


class Program:
    """The steps of one call, in their order.

    Parameters
    ----------
    steps : sequence of Step
        They own the memory of their constants.
    room : Room
        That of the steps.
    bias : array or None
        One like that of runs, in the dtype of the sums; None if they have none.
    """

    def __init__(self, steps: Sequence[Step], room: Room, bias: Array | None = None) -> None:
        self.steps, self.room, self._bias = tuple(steps), room, bias
        self._actions: list[Action] = []  # those of the steps, from the first run on

    def run(
        self, x: int, w: int, y: int, residual: int = 0, bias: Any = None, scale: Any = None
    ) -> None:
        """Run the steps on arrays at these addresses.

        Parameters
        ----------
        x, w, y, residual : int
            Addresses of the first elements, and of packed filters in place of w; 0 is nowhere.
        bias, scale : array or None
            Contiguous arrays, in the dtype of the sums, or of results that are scaled.
        """
        arrays = 0, x, w, y, residual
        if not self.room.parts:
            self.run_in(arrays, bias, scale)
            return
        block = POOL.take(self.room.size)
        try:
            begin = block.address
            self.run_in((*arrays, *[begin + at for at, _ in self.room.parts]), bias, scale)
        finally:
            POOL.give(block)

    def run_in(self, begins: Sequence[int], bias: Any, scale: Any) -> None:
        """Run the steps on arrays and parts of the room at the addresses of all places."""
        if not self._actions:
            self._actions = [step.action() for step in self.steps]
        for action in self._actions:
            action(begins, bias, scale)

    def fixed(self, bias: Any, scale: Any) -> Program:
        """The program with this bias and this scale in all runs."""
        return Program([step.fixed(bias, scale) for step in self.steps], self.room)

    @property
    def has_run(self) -> bool:
        """Whether Python has run it."""
        return bool(self._actions)

    @cached_property
    def words(self) -> Words | None:
        """The program as compiled code reads it; None if Python alone can run it."""
        try:
            return Words(self.steps, self.room, self._bias)
        except ValueError:
            return None


class Words:
    """A program as compiled code reads it.

    Attributes
    ----------
    words : array of int64
        See `compiled.program`.
    address : int
        That of the words.
    bias : Access or None
        None if runs have no bias.
    """

    def __init__(self, steps: Sequence[Step], room: Room, bias: Array | None) -> None:
        """`bias` is one like that of runs.

        Raises
        ------
        ValueError
            A step calls Python, or a run needs more of a bias or a scale than its address.
        """
        self._steps, self._parts, self._room = steps, [*room.parts], round_up(room.size)
        self._tables = list[Array]()
        self._counts = np.zeros(0)
        if bias is not None:
            if bias.dtype.kind != "f" or len(bias) >= MOST_BIAS:
                raise ValueError("the values of a bias of integers are checked at each call")
            self._counts = np.arange(1, len(bias) + 1).astype(bias.dtype)
        words = [word for step in steps for word in self._step(step)]
        most = max(1, *words[THREADS::STEP])
        header = [self._room, most, len(steps)]
        self.words = np.array(header + words, np.int64)
        self.address = int(self.words.ctypes.data)
        self.bias = None if bias is None else Access.to(bias)

    def reads_bias(self, *stored: Any) -> bool:
        """Whether runs read a bias as it is `stored`; see `Access.takes`."""
        return self.bias is not None and self.bias.takes(*stored)

    def _step(self, step: Step) -> list[int]:
        """The words of a step."""
        if isinstance(step, Launched):
            if step.scaled:
                raise ValueError("sums are scaled")
            given = step.x, step.w, step.y, step.panels, step.residual, step.scratch
            head = [*step.launch.words, self._sums(step.sums)]
        elif isinstance(step, Copied) and step.source.dtype == step.target.dtype:
            given = address_of(step.source), 0, address_of(step.target), 0, 0, 0
            head = [self._kept(copy_table(step.source, step.target)), 0, 0, 0, NO_SUMS]
        else:
            raise ValueError("a step is one of Python")
        return [*head, *(word for address in given for word in self._located(address))]

    def _located(self, address: int) -> tuple[int, int]:
        """The place of an address, which is that of the whole room for one of its parts."""
        place, offset = located(address)
        if place < ROOM:
            return place, offset
        begin, _ = self._parts[place - ROOM]
        return ROOM, begin + offset

    def _sums(self, made: Callable[[Any], Any] | None) -> int:
        """The word of initial sums.

        Raises
        ------
        ValueError
            They have too many runs.
        """
        if made is None:
            return NO_SUMS
        sums = made(self._counts)
        if np.array_equal(sums, self._counts):
            return BIAS_ITSELF
        numbers = np.concatenate([[0], sums, [0]]).astype(np.int64)
        follows = (np.diff(numbers) == 1) & (numbers[:-1] > 0)  # the one before, in the bias too
        first = np.flatnonzero((numbers[1:-1] > 0) & ~follows[:-1])
        last = np.flatnonzero((numbers[1:-1] > 0) & ~follows[1:])
        if len(first) > MOST_RUNS:
            raise ValueError("initial sums are spread over a panel")
        size, offset = sums.itemsize, self._room  # behind what steps have there
        self._room += round_up(sums.nbytes)
        table = [offset, sums.nbytes, len(first)]
        for begin, end in zip(first, last, strict=True):
            table += [begin * size, int(sums[begin] - 1) * size, (end + 1 - begin) * size]
        return self._kept(table)

    def _kept(self, table: Sequence[int]) -> int:
        """The address of a table that lives as long as the words."""
        self._tables.append(np.array(table, np.int64))
        return int(self._tables[-1].ctypes.data)


def copy_table(source: Array, target: Array) -> list[int]:
    """The words of a table of a copy: axes that follow each other in both arrays are one. Where
    elements of the source follow each other along another axis than those of the target, both axes
    are cut into blocks, whose lines stay in L1.
    """
    given = zip(source.shape, source.strides, target.strides, strict=True)
    axes = sorted((axis for axis in given if axis[0] != 1), key=lambda axis: -abs(axis[2]))
    run, merged = source.itemsize, list[tuple[int, int, int]]()
    for count, step, to_step in reversed(axes):  # from the innermost one on
        if not merged and step == to_step == run:
            run *= count
        elif merged and (step, to_step) == tuple(merged[0][0] * each for each in merged[0][1:]):
            merged[0] = count * merged[0][0], *merged[0][1:]
        else:
            merged.insert(0, (count, step, to_step))
    merged = _in_blocks(merged)
    return [run, len(merged), *(word for axis in merged for word in axis)]


def _in_blocks(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The axes of a copy, of which the innermost one and that along which the source has its
    elements are cut into blocks, if they are two, and whole blocks.
    """
    if len(axes) < 2:
        return axes
    near = min(axes, key=lambda axis: abs(axis[1]))
    inner, outer = axes[-1], [axis for axis in axes[:-1] if axis is not near]
    sizes = [math.gcd(axis[0], BLOCK) for axis in (inner, near)]
    if near is inner or min(sizes) < LEAST_BLOCK:
        return axes
    blocks = zip((inner, near), sizes, strict=True)
    whole = [(n // size, step * size, to * size) for (n, step, to), size in blocks]
    return [*outer, *whole, (sizes[1], *near[1:]), (sizes[0], *inner[1:])]
