"""Kinds of calls whose sizes change with every call, and a process that calls them.

``python -m perf.kinds NAME THREADS`` is such a process, of ours or of torch. A kind keeps its
filter; each size has an x of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import ceil, sqrt
from typing import Any, NamedTuple

import numpy as np

import implicit_conv
from implicit_conv.kernels.cpu.runtime.code import count
from implicit_conv.testing import Array, Case
from implicit_conv.timing import no_collection
from implicit_conv.tools.rivals import Function
from perf.operators import call_of, inputs_of, torch_operator
from perf.rival import settle
from perf.shapes import Layer, layer, rise
from perf.side import serve

OURS, TORCH = "ours", "torch"  # names of processes
SIGNAL_STEP, IMAGE_STEP = 7, 3  # pixels between two lengths, and between two heights or widths
KEPT_CALLS = 3  # calls of a size that was seen, whose median counts

Sizes = tuple[int, ...]


class Kind(NamedTuple):
    """Calls that differ in sizes alone."""

    name: str
    operator: str
    layer: Callable[[Sizes], Layer]  # of the sizes of x; of dy where the convolution is transposed
    least: Sizes  # the smallest
    door: str = ""  # "torch": torch's function while ours is enabled; "dask": blocks of an array

    def case(self, sizes: Sizes) -> Case:
        """The convolution of x of these sizes."""
        return self.layer(sizes)[1]


def of(*arguments: Any, **options: Any) -> Callable[[Sizes], Layer]:
    """`layer` as a function of its size."""
    channels, filters, *others = arguments
    return lambda sizes: layer(channels, filters, sizes, *others, **options)


# No two kinds have a plan in common, so that one cannot know the sizes of another.
IMAGES = of(64, 64, 3)
KINDS = (
    Kind("3x3 64-64", "fprop", IMAGES, (20, 21)),
    Kind("5 80-256", "fprop", of(80, 256, 5), (100,)),
    Kind("7x7 dw 128", "fprop", of(128, 128, 7, groups=128), (14, 15)),
    Kind("1x1 256-512", "fprop", of(256, 512), (7, 8)),
    Kind("transposed 16/8 512-256", "transposed", lambda n: rise(512, 256, n, 16, 8, 4), (20,)),
    Kind("7x7/2 3-64", "fprop", of(3, 64, 7, 2), (64, 65)),
    Kind("dgrad 3x3/2 64-64", "dgrad", of(64, 64, 3, 2), (32, 34)),
    Kind("wgrad 3x3 64-64", "wgrad", IMAGES, (16, 17)),
    Kind("3x3 96-96 by torch.enable()", "fprop", of(96, 96, 3), (20, 21), "torch"),
    Kind("3x3 48-48 by dask, 4 blocks", "fprop", of(48, 48, 3), (40, 42), "dask"),
)


def drawn(least: Sizes, number: int) -> list[Sizes]:
    """`number` different sizes in random order, equal in every process."""
    order = np.random.default_rng(0).permutation(number)
    if len(least) == 1:
        return [(least[0] + SIGNAL_STEP * int(at),) for at in order]
    side = ceil(sqrt(number))
    steps = (divmod(int(at), side) for at in order)
    return [(least[0] + IMAGE_STEP * down, least[1] + IMAGE_STEP * right) for down, right in steps]


class Caller:
    """The calls of one process; each public method is a request."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        self.sizes: list[Sizes] = []
        self.door, self.settings = ExitStack(), ExitStack()  # settings hold while the process lives
        self.settings.enter_context(implicit_conv.config(num_threads=threads))

    def hello(self) -> dict[str, Any]:
        """The version of this package or of torch, and the number of threads."""
        version = implicit_conv.__version__
        if self.name == TORCH:
            import torch

            torch.set_num_threads(self.threads)
            version = torch.__version__
        return {"version": version, "threads": self.threads}

    def prepare(self, kind: int, sizes: int) -> dict[str, Any]:
        """Make ready for so many sizes of a kind."""
        self.door.close()
        self.kind = KINDS[kind]
        self.sizes = drawn(self.kind.least, sizes)
        _, self.w = inputs_of("fprop", self.kind.case(self.sizes[0]))
        if self.name == OURS and self.kind.door == "torch":
            import implicit_conv.torch

            self.door.enter_context(implicit_conv.torch.enable())
        return {}

    def call(self, which: int) -> dict[str, Any]:
        """Call a new size: seconds of its first call and of later ones, how many kernels this
        process has, and sums by which results are compared.
        """
        function = self._function(self.kind.case(self.sizes[which]), which)
        with no_collection():
            first, y = _seconds(function)
            kept = [_seconds(function)[0] for _ in range(KEPT_CALLS)]
        if self.threads > 1:
            settle()  # else threads that spin after a call would slow down the other process
        y = np.asarray(y, np.float64)
        sums = {"sum": float(y.sum()), "size": float(np.abs(y).sum())}
        return {"first": first, "kept": float(np.median(kept)), "kernels": count(), **sums}

    def _function(self, case: Case, which: int) -> Function:
        operator, door = self.kind.operator, self.kind.door
        first, second = inputs_of(operator, case)
        second = second if operator == "wgrad" else self.w
        if door == "dask":
            return (dask_ours if self.name == OURS else dask_torch)(case, first, second, which)
        if self.name == TORCH or door == "torch":
            return torch_operator(operator, case, first, second, self.threads)
        return call_of(operator, case, first, second)


def _seconds(function: Function) -> tuple[float, Any]:
    start = time.perf_counter()
    y = function()
    return time.perf_counter() - start, y


def ragged(x: Array, which: int) -> Any:
    """An image as a dask array of four blocks of different sizes."""
    import dask.array as da

    height, width = x.shape[2:]
    down, right = height // 2 - which % 5, width // 2 + 1 + which % 7
    return da.from_array(x, chunks=(1, x.shape[1], (down, height - down), (right, width - right)))


def dask_ours(case: Case, x: Array, w: Array, which: int) -> Function:
    """Blocks by this package."""
    import implicit_conv.dask

    blocks, padding = ragged(x, which), case.padding
    convolve = implicit_conv.dask.conv2d
    return lambda: convolve(blocks, w, padding=padding).compute(scheduler="synchronous")


def dask_torch(case: Case, x: Array, w: Array, which: int) -> Function:
    """Blocks with their halos by torch; the result has as many channels as x."""
    import dask.array as da
    import torch

    blocks, filters = ragged(x, which), torch.from_numpy(w)
    halos = {2: case.padding[0][0], 3: case.padding[1][0]}

    def block(part: Array) -> Array:
        with torch.inference_mode():
            y = torch.nn.functional.conv2d(torch.from_numpy(np.ascontiguousarray(part)), filters)
        return np.asarray(y)

    overlap = partial(da.map_overlap, block, blocks, depth=halos, boundary=0, trim=False)
    return lambda: overlap(chunks=blocks.chunks, dtype=x.dtype).compute(scheduler="synchronous")


if __name__ == "__main__":
    serve(Caller(sys.argv[1], int(sys.argv[2])))
