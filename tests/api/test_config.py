"""Settings of the process, by `config(...)`, and of blocks, by `with config(...)`."""

import asyncio
import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv import settings
from implicit_conv.settings import Config, current


@pytest.fixture(autouse=True)
def restored():
    """Settings that a test leaves to the process are undone."""
    before = settings._open[:]
    yield
    assert settings._open[1:] == before[1:], "a block is still in force"
    settings._open.clear()


def of_a_new_thread():
    """The number of threads that a thread sees which begins now."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: current().num_threads).result()


def test_config_sets_threads_and_algorithm():
    shapes = (1, 64, 56, 56), (64, 64, 1, 1)
    assert ic.plan_conv2d(*shapes).algorithm == "pointwise"
    with ic.config(num_threads=1, algorithm="implicit_gemm"):
        plan = ic.plan_conv2d(*shapes)
    assert (plan.engine.best.threads, plan.algorithm) == (1, "implicit_gemm")


def test_config_sets_a_default_back_for_the_calls_inside():
    with ic.config(num_threads=1, algorithm="implicit_gemm", device="cpu") as outer:
        with ic.config(num_threads=None, algorithm=None, device=None) as inner:
            assert inner == Config()
        with ic.config(num_threads=np.int64(3)) as inner:
            assert inner == replace(outer, num_threads=3)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", 5000])
def test_config_refuses_thread_counts_that_are_none(value):
    with pytest.raises((ValueError, TypeError), match=f"num_threads={value!r} must be"):
        ic.config(num_threads=value)
    assert current() == Config()


@pytest.mark.parametrize("name", ["algorithm", "subnormals", "compiler", "device"])
@pytest.mark.parametrize("value", ["wingrad", "", 3, "cuda:x"])
def test_config_refuses_unknown_words_at_once(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} is (unknown; choose from|none of)"):
        ic.config(**{name: value})
    assert current() == Config()


def test_a_call_alone_holds_for_the_process():
    ic.config(num_threads=3)
    gc.collect()
    ic.config(algorithm="Implicit_GEMM")
    assert current() == Config(num_threads=3, algorithm="implicit_gemm")
    assert of_a_new_thread() == 3
    shapes = (1, 64, 56, 56), (64, 64, 1, 1)
    assert ic.plan_conv2d(*shapes).algorithm == "implicit_gemm"
    ic.config(num_threads=None, algorithm=None)
    assert current() == Config()


def test_many_calls_take_no_memory():
    for number in range(1, 200):
        ic.config(num_threads=number)
    assert current().num_threads == 199
    assert len(settings._open[0]._calls) == 1


def test_a_block_restores_what_was_before():
    ic.config(num_threads=3)
    with ic.config(num_threads=1):
        assert (current().num_threads, of_a_new_thread()) == (1, 1)
        with ic.config(algorithm="pointwise"):
            assert current() == Config(num_threads=1, algorithm="pointwise")
        assert current() == Config(num_threads=1)
    assert (current().num_threads, of_a_new_thread()) == (3, 3)


def test_a_call_inside_a_block_holds_until_its_end():
    with ic.config(num_threads=1):
        ic.config(num_threads=2, subnormals="flush")
        assert (current().num_threads, of_a_new_thread()) == (2, 2)
    assert current() == Config()


def test_one_setting_heads_several_blocks():
    setting = ic.config(num_threads=2)
    assert current().num_threads == 2
    for _ in range(2):
        with setting, setting:
            assert current().num_threads == 2
        assert current() == Config()


def test_an_error_inside_a_block_ends_it():
    with pytest.raises(KeyError), ic.config(num_threads=2):
        raise KeyError
    assert current() == Config()


def test_blocks_of_threads_are_their_own():
    """Each sees its own number, whatever blocks begin and end in others meanwhile; one without a
    block sees the last one that began.
    """
    begun, ending, seen = threading.Barrier(5), threading.Barrier(5), []

    def work(number):
        with ic.config(num_threads=number):
            begun.wait()
            seen.append(current().num_threads == number)
            ending.wait()
            for inner in range(1, 50):
                with ic.config(num_threads=inner):
                    seen.append(current().num_threads == inner)
            seen.append(current().num_threads == number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    begun.wait()
    seen.append(current().num_threads in range(1, 5))
    ending.wait()
    for thread in threads:
        thread.join()
    assert all(seen) and len(seen) == 4 * 51 + 1
    assert current() == Config()


def block_of(number):
    """A generator that is suspended inside a block."""
    with ic.config(num_threads=number):
        while True:
            yield current().num_threads


def test_blocks_of_generators_end_in_any_order():
    first, second = block_of(1), block_of(2)
    assert (next(first), next(second)) == (1, 2)
    first.close()
    assert next(second) == 2
    second.close()
    assert current() == Config()


def test_blocks_that_overlap_for_ever_take_no_memory():
    """Each begins in the one before, which ends first."""
    before = block_of(1)
    next(before)
    for number in range(2, 50):
        generator = block_of(number)
        next(generator)
        before.close()
        before = generator
    scope, count = settings._own.get(), 0
    while scope is not None:
        scope, count = scope.outer, count + 1
    assert count == 1
    before.close()


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside a block"])
def test_a_block_may_end_in_another_thread(inside):
    """As that of a generator which another thread closes, whatever block that is in itself."""
    generator, seen = block_of(1), []
    assert next(generator) == 1

    def close():
        if inside:
            with ic.config(num_threads=2):
                generator.close()
                seen.append(current().num_threads)
        else:
            generator.close()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(close).result()
    assert seen == [2] * inside
    assert current() == Config() and of_a_new_thread() is None


def test_a_block_may_end_in_another_task():
    """As those of asynchronous fixtures do."""
    setting = ic.config(num_threads=2)

    async def begin():
        setting.__enter__()

    async def end():
        setting.__exit__(None, None, None)

    async def both():
        await asyncio.create_task(begin())
        seen = current().num_threads
        await asyncio.create_task(end())
        return seen, current().num_threads

    assert asyncio.run(both()) == (2, None)


def test_a_task_that_outlives_its_block_has_the_settings_of_the_process():
    async def work(ended):
        before = current().num_threads
        await ended.wait()
        ic.config(algorithm="implicit_gemm")
        return before, current()

    async def outlive():
        ended = asyncio.Event()
        with ic.config(num_threads=2):
            task = asyncio.create_task(work(ended))
            await asyncio.sleep(0)
        ended.set()
        return await task

    assert asyncio.run(outlive()) == (2, Config(algorithm="implicit_gemm"))
    assert current() == Config(algorithm="implicit_gemm")


def test_a_call_of_a_thread_outside_of_blocks_changes_no_block_of_others():
    generator = block_of(1)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(next, generator).result() == 1
        ic.config(num_threads=4)
        assert threads.submit(next, generator).result() == 1
        threads.submit(generator.close).result()
    assert current().num_threads == 4


def function_interrupted(step):
    """Begin and end a block; a line of the module, the one with the number `step`, is interrupted.
    Returns the name of its function, or None if there are fewer lines.

    A line counts once: the end of a `with` block is traced as its first line, where no interrupt
    can keep it from leaving its lock.
    """
    lines, name = set(), None

    def trace(frame, event, _):
        nonlocal name
        if frame.f_code.co_filename != settings.__file__:
            return None
        if event == "line" and frame.f_lineno not in lines:
            lines.add(frame.f_lineno)
            if len(lines) == step:
                name = frame.f_code.co_name
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with ic.config(num_threads=2):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return name


def test_an_interrupt_anywhere_leaves_no_block_in_force():
    """Only one that comes between the call and the block's beginning leaves the call in force."""
    left, step = [], 1
    while name := function_interrupted(step):
        if current() != Config() or of_a_new_thread() is not None:
            left.append(name)
            ic.config(num_threads=None)
        with ic.config():
            pass
        assert len(settings._open) == 1
        step += 1
    assert step > 30
    assert {*left} <= {"__enter__"} and len(left) <= 2


def test_a_block_for_this_thread_alone_is_not_seen_by_others():
    with settings.local(num_threads=1):
        assert (current().num_threads, of_a_new_thread()) == (1, None)
    assert current() == Config()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_no_blocks_of_threads_that_it_lacks():
    begun, ending = threading.Event(), threading.Event()

    def work():
        with ic.config(num_threads=7):
            begun.set()
            ending.wait()

    thread = threading.Thread(target=work)
    with ic.config(num_threads=2):
        thread.start()
        begun.wait()
        child = os.fork()
        if child == 0:
            os._exit(of_a_new_thread() != 2)
        ending.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0


def test_a_plan_tells_its_compiler():
    shapes = (1, 2, 5, 6), (3, 2, 3, 3)
    assert "numba" not in ic.plan_conv2d(*shapes).explain()
    with ic.config(compiler="njit"):
        assert "compiled by numba.njit" in ic.plan_conv2d(*shapes).explain()
