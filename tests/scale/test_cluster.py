"""Faults on a local cluster of two worker processes."""

import os
import signal
import time

import numpy as np
import pytest

import implicit_conv

distributed = pytest.importorskip(
    "distributed", reason="distributed is not installed: pip install -e '.[dask]'"
)
da = pytest.importorskip("dask.array", reason="dask.array is not installed")

import implicit_conv.dask  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # A killed worker leaves warnings of its sockets to whoever collects them.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client of two workers of one thread, which are spawned with an empty cache of kernels."""
    import dask

    monkeypatch.setenv("IMPLICIT_CONV_CACHE_DIR", str(tmp_path / "cache"))
    with dask.config.set({"temporary-directory": str(tmp_path / "spill")}):
        cluster = distributed.LocalCluster(
            n_workers=2,
            processes=True,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
        )
        with cluster, distributed.Client(cluster) as client:
            yield client


def memmap(folder, x):
    x.tofile(folder / "x")
    return np.memmap(folder / "x", x.dtype, "r", shape=x.shape)


def problem(shape=(1, 4, 256, 256)):
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    w = random.standard_normal((6, 4, 5, 5)).astype(np.float32)
    options = {"padding": 2, "padding_mode": "reflect", "precision": "strict"}
    return x, w, options, implicit_conv.conv2d(x, w, **options)


def test_spawned_workers_compile_side_by_side(client, tmp_path):
    """The cache is empty at first, and both workers write to it; one thread computes a task."""
    x, w, options, whole = problem()
    mapped = memmap(tmp_path, x)
    for given in (mapped, da.from_array(x, chunks=(1, 4, 64, 64))):
        y = implicit_conv.dask.conv2d(given, w, **options).rechunk((1, 6, 64, 64))
        np.testing.assert_array_equal(y.compute(), whole)
    lazy = implicit_conv.dask.conv2d(da.from_array(mapped, chunks=(1, 4, 32, 32)), w, **options)
    np.testing.assert_array_equal(lazy.compute(), whole)
    assert list((tmp_path / "cache").rglob("*"))  # the workers' kernels


def test_a_filter_is_packed_once_in_a_worker(client, tmp_path):
    x, _, options, _ = problem()
    w = np.random.default_rng(1).standard_normal((96, 4, 5, 5)).astype(np.float32)
    lazy = implicit_conv.dask.conv2d(da.from_array(x, chunks=(1, 4, 32, 32)), w, **options)
    np.testing.assert_array_equal(lazy.compute(), implicit_conv.conv2d(x, w, **options))

    def packed():
        from implicit_conv.scale import operation

        return len(operation._PACKED)

    assert lazy.npartitions == 64
    assert all(1 <= count <= 4 for count in client.run(packed).values())


def slow(block, folder):
    """A task that tells its worker's process, and gives time to kill it."""
    (folder / str(os.getpid())).touch()
    time.sleep(0.05)
    return block


def test_a_killed_worker_costs_no_bit(client, tmp_path):
    x, w, options, whole = problem()
    seen = tmp_path / "seen"
    seen.mkdir()
    lazy = implicit_conv.dask.conv2d(da.from_array(x, chunks=(1, 4, 32, 32)), w, **options)
    workers = client.run(os.getpid).values()
    running = client.compute(lazy.map_blocks(slow, folder=seen, meta=lazy._meta))
    deadline = time.monotonic() + 60
    while not list(seen.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    victim = int(next(seen.iterdir()).name)
    assert victim in workers
    os.kill(victim, signal.SIGKILL)
    np.testing.assert_array_equal(running.result(timeout=120), whole)
    client.wait_for_workers(2, timeout=60)
    assert victim not in client.run(os.getpid).values()


def test_read_only_chunks_and_nans(client, tmp_path):
    x, w, options, _ = problem()
    x[0, 2, 100, 90] = np.nan
    whole = implicit_conv.conv2d(x, w, **options)
    assert np.isnan(whole).sum() == 6 * 25
    scattered = client.scatter(x)  # workers' copies of it are read-only
    lazy = da.from_delayed(scattered, x.shape, x.dtype)
    np.testing.assert_array_equal(implicit_conv.dask.conv2d(lazy, w, **options).compute(), whole)
