"""How helpers of a `queue_team` enter and leave a job, and callers close it."""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import atomic
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.runtime.compiled.entry import run_counted
from implicit_conv.kernels.cpu.runtime.compiled.source import for_python
from implicit_conv.kernels.cpu.runtime.queue_team import ENTERED

# The state of a job is threads that entered << 32 | CLOSED | helpers inside.
INSIDE, CLOSED = 1, 1 << 31


def take_part(state: int, entry: int, blob: int, limit: int) -> None:
    """Work in the job whose state is at address `state`, unless it is closed or full."""
    before = atomic.add(state, ENTERED + INSIDE)
    thread = before // ENTERED
    if before & CLOSED == 0 and thread < limit:
        run_counted(entry, blob, thread)
    atomic.add(state, -INSIDE)


def close(state: int) -> None:
    """Let nobody else work in a job, and wait for the helpers inside: each holds an item."""
    atomic.set_bits(state, CLOSED)
    while atomic.load(state) & (CLOSED - 1):
        atomic.pause()


# take_part(state, entry, blob, limit)
TAKE_PART = for_python(types.void(*[types.int64] * 4), take_part)
CLOSE = for_python(types.void(types.int64), close)  # close(state)
