"""Launch compiled entries on CPU threads: ``entry(blob, thread)``, as a GPU launches a kernel on
blocks.

Threads take items one by one from the blob's counter, so an interrupted core delays only its own
item. Items write disjoint outputs, so their order does not affect a result.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

from implicit_conv.kernels.cpu.runtime import active_threads, objects, same_arrays
from implicit_conv.kernels.cpu.runtime.active_threads import Threads
from implicit_conv.kernels.cpu.runtime.call import (
    BIAS,
    BLOB,
    COUNTS_FIELD,
    RESIDUAL,
    SCALE,
    SCRATCH_FAMILY,
    SHIFT,
    Call,
    blob_of,
)
from implicit_conv.kernels.cpu.runtime.code import python_code
from implicit_conv.kernels.cpu.runtime.layout import ScratchLayout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.process.preparation import checkpoint, prepare

start = python_code(".runtime.compiled.start:START")
if "array" not in objects.differing():
    same_arrays.use(python_code(".runtime.compiled.start:DIFFERING"))


def make_team() -> Threads:
    """A new team, of native threads where they are known."""
    if sys.platform == "linux":
        from implicit_conv.kernels.cpu.runtime.native_team import Team

        return Team(active_threads.cpu_count())
    from implicit_conv.kernels.cpu.runtime.queue_team import QueueTeam

    return QueueTeam(active_threads.cpu_count())


_teams: list[Threads] = []  # of this process: one, once it is made


def team() -> Threads:
    """The team of this process, which its first use makes, or the one to use in its place."""
    for borrowed in active_threads.BORROWED:
        return borrowed
    return _teams[0] if _teams else prepare(make_once)


def starter_for(threads: int) -> int:
    """The `starter` of a launch on so many threads, for which a forked child makes a team."""
    if threads > 1:
        team()
    return active_threads.starter()


def make_once() -> Threads:
    """Make the team, unless another thread has made it while this one waited."""
    if not _teams:
        checkpoint()  # helpers live as long as the process, so none may be made in vain
        _teams.append(make_team())
        active_threads.own(getattr(_teams[0], "starter", 0))  # others have none
    return _teams[0]


def _after_fork() -> None:
    """The child has none of its parent's threads, but the one that forked."""
    _teams.clear()
    active_threads.use(None)
    active_threads.own(0)
    active_threads.reset(active_threads.cpu_count())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def launch(entry: int, blob: int, threads: int) -> None:
    """Run the entry at address `entry` on up to `threads` threads; return when its items are done.

    `blob` is the address of the params blob.
    """
    if threads == 1:
        prepare(_run_counted)(entry, blob, 0)
    else:
        team().run(entry, blob, threads)


@functools.cache
def _run_counted() -> Any:
    """`start.run_counted` for Python, which no convolution calls."""
    return python_code(".runtime.compiled.start:RUN_COUNTED")


class Launch:
    """One entry, ready to run on arrays of fixed dtypes and strides: a call fills in addresses.

    Parameters
    ----------
    entry : int
        Address of the compiled entry.
    g : Geometry
    layout : ScratchLayout
        Scratch memory of one thread.
    threads : int
    call : Call
        Strides and the division of the work.
    keep : object
        Whatever owns the memory that the constant addresses of `call` point to.

    Attributes
    ----------
    threads : int
    bytes : int
        Memory that a run takes: the scratch memory, and behind it the blob.
    steps : sequence of Step
        Those that the entry runs, if it runs lanes.
    """

    def __init__(
        self,
        entry: int,
        g: Geometry,
        layout: ScratchLayout,
        threads: int,
        call: Call,
        keep: object = None,
    ) -> None:
        if threads > 1:
            make_once()  # so that a call compiles nothing
        self._entry, self.threads = entry, threads
        self.steps: Sequence[Any] = ()
        self._layout = layout
        _, *starts, total = layout.starts()
        self._scratch = total * threads
        self.bytes = self._scratch + BLOB.itemsize
        families = list[Any](call)
        families[SCRATCH_FAMILY] = self._scratch, total, call.scratch.unloaded, *starts
        families[COUNTS_FIELD] = active_threads.ADDRESS
        self._blob = blob_of(families, g)
        self._address = int(self._blob.ctypes.data)
        self._keep = keep

    @property
    def words(self) -> list[int]:
        """What `program` has of a launch: where its blob is, its entry, threads and scratch."""
        return [self._address, self._entry, self.threads, self._scratch]

    def filled(self, sums: Any, scaling: tuple[Any, Any] | None) -> Launch:
        """A launch that always has these initial sums, or this (scale, shift), and owns them."""
        other = copy.copy(self)
        other._blob = self._filled(0, sums, scaling)
        other._address = int(other._blob.ctypes.data)
        other._keep = self._keep, sums, scaling
        return other

    def _filled(self, residual: int, sums: Any, scaling: tuple[Any, Any] | None) -> Any:
        """The blob with the addresses of what is added to sums, and of what scales them."""
        blob = self._blob.copy()
        if scaling is not None:
            blob[SCALE], blob[SHIFT] = (vector.ctypes.data for vector in scaling)
        if sums is not None:
            blob[BIAS] = sums.ctypes.data
        if residual:
            blob[RESIDUAL] = residual
        return blob

    def run(
        self,
        scratch: int,
        x: int,
        w: int,
        y: int,
        panels: int = 0,
        residual: int = 0,
        sums: Any = None,
        scaling: tuple[Any, Any] | None = None,
    ) -> None:
        """Run on arrays at these addresses: on x, y and the filter w, or on x, x, y and packed
        panels; 0 is nowhere. At `scratch` are `bytes` that begin on a cache line.

        A launch that packs a filter w writes to `panels`. `sums` are the initial sums, and
        `scaling` has (scale, shift), one for each filter: arrays.
        """
        blob = self._address
        if residual or sums is not None or scaling is not None:
            filled = self._filled(residual, sums, scaling)  # which lives until the end
            blob = filled.ctypes.data
        if self.threads == 1:
            start(blob, scratch, x, w, y, panels, self._entry)
        else:
            start(blob, scratch, x, w, y, panels, 0)
            launch(self._entry, scratch + self._scratch, self.threads)
