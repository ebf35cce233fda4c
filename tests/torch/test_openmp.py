"""Work items on torch's OpenMP threads: all of them are done, whoever comes; and when not."""

import ctypes
import os
import re
import threading

import numpy as np
import pytest
from processes import output_of

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv as ic  # noqa: E402
import implicit_conv.torch as door  # noqa: E402
from implicit_conv.kernels.cpu.runtime.active_threads import borrowed_name  # noqa: E402
from implicit_conv.kernels.cpu.runtime.compiled.region import LIMIT  # noqa: E402
from implicit_conv.torch import openmp, override, switch  # noqa: E402

pytestmark = pytest.mark.skipif(openmp.torch_team() is None, reason="torch has no OpenMP we know")
F = torch.nn.functional
X, W = torch.randn(4, 32, 30, 30), torch.randn(64, 32, 3, 3)
EXACT = F.conv2d(X.double(), W.double())


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    override.SWITCH._borrowers.clear()  # graphs of other tests, until they are collected
    yield
    torch.set_num_threads(before)


@pytest.fixture
def regions(monkeypatch):
    """How many threads may take part in each region of ours, in the order in which they began."""
    found, name = [], openmp.torch_team().name
    parallel, thread_num = openmp._symbols()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    own = kind(parallel)

    @kind
    def counted(function, job, threads, flags):
        found.append(ctypes.c_int64.from_address(job + 8 * LIMIT).value)
        own(function, job, threads, flags)

    address = ctypes.cast(counted, ctypes.c_void_p).value
    team = openmp.OpenMpTeam(address, thread_num, torch.get_num_threads, name)
    monkeypatch.setattr(switch, "torch_team", lambda: team)
    yield found
    del counted


def close(y):
    return bool((y.double() - EXACT).abs().max() < 1e-3)


def test_which_threads_run_items(regions):
    plan = ic.plan_conv2d(X.shape, W.shape)
    x, w = X.numpy(), W.numpy()
    with ic.config(num_threads=2):
        ic.conv2d(x, w)
        assert regions == [] and borrowed_name() is None
        with door.enable(choose="always"):
            assert close(F.conv2d(X, W)) and close(torch.from_numpy(ic.conv2d(x, w)))
            assert regions and borrowed_name().startswith("torch's OpenMP threads, by lib")
            assert borrowed_name() in re.sub(r"\s+", " ", plan.explain())
        assert borrowed_name() is None and borrowed_name() != plan.explain()
        before = len(regions)
        ic.conv2d(x, w)
        assert len(regions) == before


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_any_number_of_threads_does_all_items(count, regions):
    """Fewer and more threads than the launch may have, which was planned for two."""
    with door.enable(choose="always"), ic.config(num_threads=2):
        ic.conv2d(X, W)
        torch.set_num_threads(count)
        for _ in range(20):
            y = np.full((4, 64, 28, 28), np.nan, np.float32)
            ic.conv2d(X.numpy(), W.numpy(), out=y)
            assert close(torch.from_numpy(y))
    assert set(regions) == {2}


def test_known_calls_are_regions_too(regions, monkeypatch):
    with door.enable(choose="always"):
        for _ in range(4):
            F.conv2d(X, W)
        before = len(regions)
        monkeypatch.setattr(openmp.OpenMpTeam, "run", None)  # which Python would call
        assert len(override.FRONT) and close(F.conv2d(X, W))
        assert regions[before:] and set(regions) == {2}


def test_a_new_thread_has_as_many_threads_as_torch(regions):
    """OpenMP keeps the number for each thread; torch tells its own where it is asked."""
    torch.set_num_threads(1)
    most = ctypes.CDLL(None).omp_get_max_threads
    found = []

    def convolve():
        before = most()
        ic.conv2d(X.numpy(), W.numpy())
        found.append((before, most()))

    with door.enable(choose="always"), ic.config(num_threads=2):
        ic.conv2d(X.numpy(), W.numpy())
        thread = threading.Thread(target=convolve)
        thread.start()
        thread.join()
    assert found[0][1] == 1 and regions


def test_a_region_inside_a_region(regions):
    """libgomp gives an inner region one thread, which does all the work."""
    results = []
    with door.enable(choose="always"):
        F.conv2d(X, W)

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def inside(_):
            results.append(close(F.conv2d(X, W)))

        parallel = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_long, ctypes.c_uint, ctypes.c_uint
        )
        parallel(openmp._symbols()[0])(ctypes.cast(inside, ctypes.c_void_p), 0, 2, 0)
    assert results == [True, True]


def test_callers_in_several_threads(regions):
    wrong = []

    def convolve():
        for _ in range(20):
            if not close(F.conv2d(X, W)):
                wrong.append(1)

    with door.enable(choose="always"):
        threads = [threading.Thread(target=convolve) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong and regions


def test_floating_point_modes_of_the_caller_reach_all_threads():
    tiny = torch.full((8, 32, 64, 64), 1e-39)
    kernel = torch.ones(32, 1, 1, 1)
    with door.enable(choose="always"):
        for flushes in (True, False, True, False):
            torch.set_flush_denormal(flushes)
            try:
                y = F.conv2d(tiny, kernel, groups=32)
            finally:
                torch.set_flush_denormal(False)
            assert bool((y == 0).all()) is flushes


def test_a_forked_child_uses_our_own_team(regions):
    """libgomp would hang there, as other operators of torch do on several threads."""
    code = """
import os, warnings, torch
import implicit_conv.torch as door
from implicit_conv.kernels.cpu.runtime.active_threads import borrowed_name
warnings.simplefilter("ignore")
torch.set_num_threads(2)
x, w = torch.ones(4, 32, 30, 30), torch.ones(64, 32, 3, 3)
with door.enable(choose="always"):
    assert borrowed_name()
    for _ in range(4):
        torch.nn.functional.conv2d(x, w)  # a known call at last
    child = os.fork()
    if child == 0:
        right = borrowed_name() is None
        for _ in range(4):
            right = right and (torch.nn.functional.conv2d(x, w).numpy() == 288).all()
        door.disable()
        door.enable()
        right = right and borrowed_name() is None
        right = right and (torch.nn.functional.conv2d(x, w).numpy() == 288).all()
        os._exit(0 if right else 1)
    print(os.waitpid(child, 0)[1])
"""
    assert output_of(code, timeout=120).split() == ["0"]


def test_a_forked_child_does_not_wait_for_torchs_kernel_to_be_measured(monkeypatch):
    window = override.Window.of(([1, 1], [0, 0], [1, 1], False, [0, 0], 1))
    state = "measured", False
    assert override.by_time(window, state)
    monkeypatch.setattr(override, "is_forked", lambda: True)
    assert not override.by_time(window, state)


def test_another_openmp_in_its_place_is_not_used(monkeypatch):
    """Two libraries have the functions, so it is not sure which one torch calls."""
    own = openmp._addresses
    monkeypatch.setattr(
        openmp, "_addresses", lambda library: own(library) if library._name else (1, 2)
    )
    assert openmp.torch_team() is None
    monkeypatch.setattr(openmp, "_addresses", lambda library: None)
    assert openmp.torch_team() is None
    with door.enable(choose="always"):
        assert borrowed_name() is None and close(F.conv2d(X, W))


def test_the_library_is_the_one_that_torch_mapped():
    symbols = openmp._symbols()
    path = openmp._mapped(symbols[0])
    assert os.path.exists(path) and re.match(r"lib(gomp|iomp5|omp)", os.path.basename(path))
