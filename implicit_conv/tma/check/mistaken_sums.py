"""Which mistake of a convolution's walk gives what a kernel wrote.

A mistake is believed only if the convolution without it is what was expected, and with it what was
written. The memory order of the filter is found in the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.run.lowering import Lowering
from implicit_conv.tma.run.simulate import Array

Sums = npt.NDArray[np.float64]
Same = Callable[[Array, Array], bool]
FILTER_ORDERS = ("KTC", "TCK", "KCT")  # of w in memory; T are all taps
MOST_PERMUTED = 4  # blocks of channels, of which all orders are tried; of more the reverse alone


class Mistake(NamedTuple):
    """What sums with a mistake are made of.

    `filter` is taps x channels x filters as the kernel reads it, with what else is wrong undone;
    `of_filter` says that the copies of w are to be looked at, else those of the walked tensor.
    """

    text: str
    filter: Sums
    of_filter: bool = True
    exchanged: bool = False  # the offsets of a tap are in the reverse order


def find_mistake(
    lowerings: Sequence[Lowering],
    map: TensorMap,
    x: Array,
    others: Mapping[int | str, Array],
    wanted: Array,
    written: Array,
    same: Same,
    in_order: bool,
) -> tuple[int | str, str, bool] | None:
    """(the filter's argument, the mistake, whether w's copies have it), or None.

    Parameters
    ----------
    lowerings : sequence of Lowering
        Of the problem, mode "im2col", fprop or dgrad, without groups.
    map, x : TensorMap, array of its shape
        The walked tensor, and the map that loads it.
    others : dict of argument -> array
        One of them may be the filter.
    wanted, written : array of the output's elements, channels last
    same : function
        Whether two arrays of the output's shape agree.
    in_order : bool
        Whether the copies of x take the taps in the filter's order. Exchanged offsets and a filter
        that is read in another order may give equal sums: this says which is more likely.
    """
    first = lowerings[0]
    problem, taps = first.problem, int(np.prod(first.problem.kernel))
    size = {"K": problem.K, "T": taps, "C": problem.C}
    axes = "TKC" if first.operator == "dgrad" else "TCK"
    for argument, w in others.items():
        if w.size != problem.K * taps * problem.C:
            continue
        for order in FILTER_ORDERS:
            stored = _numbers(w).reshape([size[letter] for letter in order])
            filter = stored.transpose([order.index(letter) for letter in axes])
            right = _sums(lowerings, x, Mistake("", filter))
            if right.size != wanted.size or not same(right.reshape(wanted.shape), wanted):
                continue
            guesses = sorted(_mistakes(first, filter, map), key=lambda m: m.of_filter != in_order)
            for guess in guesses:
                sums = _sums(lowerings, x, guess).reshape(wanted.shape)
                if same(sums, written) and not same(sums, wanted):
                    return argument, guess.text, guess.of_filter
    return None


def _mistakes(lowering: Lowering, filter: Sums, map: TensorMap) -> Iterator[Mistake]:
    kernel, block = lowering.problem.kernel, map.description.channels
    count, channels, _ = filter.shape
    letters = "TRS"[-len(kernel) :].lower()
    axes = ", ".join("DHW"[-len(kernel) :][::-1])
    text = f"exchanged offsets give: their order in PTX is ({axes}), the first is along W"
    if map.mode == "im2col":
        yield Mistake(text, filter, False, True)
    turned = np.arange(count).reshape(kernel[::-1]).T.reshape(-1)
    orders = f"({', '.join(letters[::-1])}), but it is ({', '.join(letters)}) in memory"
    yield Mistake(f"a filter gives whose taps are read as {orders}", filter[turned])
    flipped = "is not flipped" if lowering.operator == "dgrad" else "is flipped"
    yield Mistake(f"a filter gives that {flipped}", filter[::-1])
    if channels % block or block == channels:
        return
    blocks = filter.reshape(count, channels // block, block, -1)
    outer = filter.reshape(channels // block, count, block, -1).swapaxes(0, 1)
    text = f"a filter gives whose blocks of {block} channels are read outside of its taps"
    yield Mistake(text, outer.reshape(filter.shape))
    numbers = range(channels // block)
    permuted = itertools.permutations(numbers)
    for order in permuted if len(numbers) <= MOST_PERMUTED else [tuple(numbers)[::-1]]:
        text = f"blocks of {block} channels of x in the order {order} give, with w's in order"
        yield Mistake(text, blocks[:, np.argsort(order)].reshape(filter.shape), False)


def _sums(lowerings: Sequence[Lowering], x: Array, mistake: Mistake) -> Sums:
    """The output with a mistake: (N, [d,] [h,] w, filters)."""
    first = lowerings[0]
    problem = first.problem
    pixels = problem.size if first.operator == "dgrad" else first.out
    numbers = np.arange(len(mistake.filter)).reshape(problem.kernel)
    y = np.zeros((first.N, *pixels, mistake.filter.shape[-1]))
    for lowering in lowerings:
        part: Any = 0.0
        for tap in lowering.taps():
            offsets = lowering.tap_operands(tap).offsets or ()
            taken = _input(lowering, x, offsets[::-1] if mistake.exchanged else offsets)
            at = tuple(a.filter_tap(r) for a, r in zip(lowering.axes, tap, strict=True))
            part = part + taken @ mistake.filter[numbers[at]]
        y[(slice(None), *(axis.pixels for axis in lowering.axes))] = part
    return y


def _numbers(array: Array) -> Sums:
    """The elements; words of 16 bits are taken for bfloat16, as torch's tensors are passed."""
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _input(lowering: Lowering, x: Array, offsets: Sequence[int]) -> Sums:
    """The pixels that outputs read at offsets, zeros outside of the tensor."""
    taken = _numbers(x)
    for number, (axis, offset) in enumerate(zip(lowering.axes, offsets, strict=True), 1):
        at = np.arange(axis.out) * axis.stride + axis.lower + offset
        inside = ((at >= 0) & (at < axis.size)).reshape(-1, *[1] * (x.ndim - 1 - number))
        taken = taken.take(at.clip(0, axis.size - 1), number) * inside
    return taken
