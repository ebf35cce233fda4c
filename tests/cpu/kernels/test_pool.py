"""The pool of scratch memory: blocks are large enough, whatever interrupts the pool."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from implicit_conv.kernels.cpu.runtime.pool import Pool


class InterruptError(Exception):
    """An exception as a signal's handler may raise it between any two lines."""


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
    sizes = (64, 4096, 1 << 20)
    for block in [pool.take(size) for size in sizes]:
        interrupted(pool.give, block, at=at)
    for size in sizes:
        interrupted(pool.take, size, at=at)
    for size in sizes:
        lent = pool.take(size)
        assert lent.memory.nbytes >= lent.size >= size


def test_blocks_are_lent_once_and_again():
    pool = Pool()
    first, second = pool.take(100), pool.take(100)
    assert abs(first.address - second.address) >= 100
    pool.give(first)
    assert pool.take(65) is first
    assert pool.take(65) is not first
    assert pool.take(2049).size == 4096


def test_no_more_is_kept_than_may_be():
    pool = Pool(kept_bytes=1 << 20)
    old, block, large = pool.take(400_000), pool.take(900_000), pool.take(2_000_000)
    pool.give(old)
    pool.give(large)
    assert pool.take(2_000_000) is not large
    pool.give(block)
    assert pool.take(900_000) is block, "what was asked for last"
    assert pool.take(400_000) is not old


def test_threads_lend_each_block_to_one():
    pool = Pool()
    lent, taken = set(), []

    def work():
        for size in 100, 5000, 300_000:
            for _ in range(200):
                block = pool.take(size)
                taken.append(block.address in lent)
                lent.add(block.address)
                lent.discard(block.address)
                pool.give(block)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work) for _ in range(4)]:
            done.result()
    assert not any(taken)
    assert len(taken) == 4 * 3 * 200
