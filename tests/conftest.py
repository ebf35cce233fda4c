"""How tests are collected and run; fixtures that poison scratch memory and choose a method.

With ``-m gpu`` only tests/gpu is collected: a GPU machine need not have what others import. With
``-m slow`` tests draw more examples, and with ``-m exhaustive`` many. Where xdist is installed, and
no files are named, tests run on all cores.
"""

import ctypes
import gc
from dataclasses import replace
from pathlib import Path

import pytest
import sampling

GPU = Path(__file__).parent / "gpu"
WORKERS = 8  # processes at most: each one needs up to 2 GB


def pytest_configure(config):
    """Draw more examples where the slow or the exhaustive tests are asked for, and no others."""
    words = config.getoption("markexpr").split()
    sampling.SLOW = words[:1] == ["slow"] and "or" not in words
    sampling.EXHAUSTIVE = words == ["exhaustive"]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Use all cores for the whole suite, unless ``-n`` says otherwise or tests share a GPU."""
    worker = hasattr(config, "workerinput")  # it would start workers of its own
    whole = config.args_source is config.ArgsSource.TESTPATHS
    if worker or not whole or not config.pluginmanager.hasplugin("xdist"):
        return
    option = config.option
    if option.markexpr != "gpu" and option.numprocesses is None:
        option.numprocesses, option.dist = "logical", "worksteal"
        option.maxprocesses = option.maxprocesses or WORKERS


def pytest_ignore_collect(collection_path, config):
    """Leave out all that cannot hold a test marked gpu."""
    if config.getoption("markexpr") != "gpu" or collection_path in GPU.parents:
        return None
    return True if GPU not in (collection_path, *collection_path.parents) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Thousands of tests and all modules are not searched for garbage, which takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def poisoned_scratch():
    """Scratch memory is full of NaN when it is taken, so that reading it unwritten shows."""
    from implicit_conv.kernels.cpu.runtime.pool import POOL, Pool

    take = Pool.take

    def poisoned(pool, size):
        block = take(pool, size)
        if pool is POOL:
            ctypes.memset(block.address, 0xFF, size)
        return block

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "take", poisoned)
        yield


@pytest.fixture
def force_method(monkeypatch):
    """A function that makes the planner prefer a method wherever it can run."""
    from implicit_conv.cpu.candidates.candidate import Candidate

    def force(method):
        given = method.candidates.__func__

        def candidates(cls, problem, arch, request):
            for found in given(cls, problem, arch, request):
                yield replace(found, cycles=0.0) if isinstance(found, Candidate) else found

        monkeypatch.setattr(method, "candidates", classmethod(candidates))

    return force
