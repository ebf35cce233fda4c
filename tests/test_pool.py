"""The pool of scratch memory: what it lends is large enough, whatever interrupts it."""

import contextlib
import sys

import pytest

from implicit_conv.kernels.cpu.pool import Block, Pool


class InterruptError(Exception):
    """As a signal's handler may raise it between any two lines."""


def interrupted(call, *arguments, at):
    """`call`, with an exception raised before line `at` of its body; the result, or None."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code is not call.__func__.__code__:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                raise InterruptError
        return trace

    sys.settrace(trace)
    try:
        return call(*arguments)
    except InterruptError:
        return None
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("at", range(1, 12))
def test_an_interrupt_leaves_blocks_of_their_sizes(at):
    pool = Pool()
    pool._lock = contextlib.nullcontext()  # which a trace function could leave held
    sizes = (64, 4096, 1 << 20)
    for block in [pool.take(size) for size in sizes]:
        interrupted(pool.give, block, at=at)
    for size in sizes:
        interrupted(pool.take, size, at=at)
    for size in sizes:
        lent = pool.take(size)
        assert lent.memory.nbytes >= lent.size >= size


def test_the_smallest_that_will_do_and_no_more_than_may_be_kept():
    pool = Pool(kept_bytes=1000)
    small, large = pool.take(100), pool.take(800)
    pool.give(large)
    pool.give(small)
    assert pool.take(90) is small
    assert pool.take(90) is large
    pool.give(large)
    pool.give(Block(900, large.address + 1, None))
    assert pool.take(801).size == 900
    assert pool.take(10) is not large
