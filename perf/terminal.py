"""Tables and progress in a terminal, as plain text: a machine with a GPU may have few packages."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from implicit_conv.timing import show

Rows = list[dict[str, str]]  # a table: heading -> cell, the same headings in all rows
Show = Callable[[str, int, int], None]  # (layer, rows done, rows in all)


def table_of(rows: Rows) -> str:
    """A table; all columns after the second are right-aligned."""
    lines = [list(row) for row in rows[:1]] + [list(row.values()) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        cells = (
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


@contextmanager
def progress() -> Iterator[Show]:
    """Yield a function that shows the progress; it raises KeyboardInterrupt after Ctrl-C."""
    start = time.monotonic()
    with interrupts() as check:

        def step(layer: str, done: int, total: int) -> None:
            check()
            seconds = (time.monotonic() - start) / max(1, done) * (total - done)
            show(f"{done}/{total} {layer}{f'; about {seconds:.0f} s left' if done else ''}")

        try:
            yield step
        finally:
            show("")


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if Ctrl-C was pressed since the block began.

    Ctrl-C also raises KeyboardInterrupt at once, but Python drops what a destructor raises. Nothing
    changes in a process that ignores Ctrl-C or has its own handler, nor in threads other than the
    main one, which signals do not reach.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
