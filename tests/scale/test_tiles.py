"""Tiles have the bits of the whole, read each pixel once, and can be restarted."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import implicit_conv
from implicit_conv import plan_tiles, tiles
from implicit_conv.errors import PlanError, ShapeError, TileError

CASES = [
    ("conv2d", (6, 4, 5, 3), {"padding": 2}),
    ("conv2d", (6, 4, 5, 3), {"padding": "same", "stride": (2, 3), "bias": True}),
    ("conv2d", (6, 2, 4, 4), {"padding": "full", "dilation": 2, "groups": 2}),
    ("conv2d", (6, 4, 5, 3), {"padding": 3, "padding_mode": "reflect"}),
    ("conv2d", (6, 4, 5, 3), {"padding": 3, "padding_mode": "circular"}),
    ("conv2d", (6, 4, 1, 1), {}),
    ("conv_transpose2d", (4, 6, 5, 3), {"padding": 1, "stride": (3, 1)}),
    ("conv_transpose2d", (4, 6, 2, 2), {"stride": 3, "output_padding": 2}),
]


class Source:
    """An array with indexing alone, which counts how often each element is read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.reads = np.zeros(array.shape, int)

    def __getitem__(self, index):
        self.reads[index] += 1
        return self.array[index]


def arrays(name, weight_shape, options, shape=(2, 4, 61, 37)):
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    w = random.standard_normal(weight_shape).astype(np.float32)
    options = {**options, "precision": "strict"}
    if options.get("bias"):
        options["bias"] = random.standard_normal(weight_shape[0]).astype(np.float32)
    return x, w, options, getattr(implicit_conv, name)(x, w, **options)


@pytest.mark.parametrize("memory", ["20 kB", "60 kB", "1 MB"])
@pytest.mark.parametrize(("name", "weight_shape", "options"), CASES, ids=str)
def test_tiles_have_the_bits_of_the_whole(name, weight_shape, options, memory):
    x, w, options, whole = arrays(name, weight_shape, options)
    out = np.full_like(whole, np.nan)
    assert tiles(x, w, out=out, memory=memory, operator=name, **options) is out
    np.testing.assert_array_equal(out, whole)


@pytest.mark.parametrize(
    ("name", "weight_shape", "shape"),
    [("conv1d", (3, 4, 5), (2, 4, 900)), ("conv3d", (3, 4, 3, 3, 3), (1, 4, 20, 12, 11))],
)
def test_signals_and_volumes(name, weight_shape, shape):
    x, w, options, whole = arrays(name, weight_shape, {"padding": 1}, shape)
    plan = plan_tiles(x, w, memory="60 kB", **options)
    assert len(plan) > 2
    np.testing.assert_array_equal(tiles(x, w, memory="60 kB", progress=False, **options), whole)


def test_each_pixel_is_read_once():
    x, w, options, whole = arrays("conv2d", (6, 4, 5, 3), {"padding": 2})
    source = Source(x)
    plan = plan_tiles(source, w, memory="60 kB", **options)
    assert len(plan) > 4
    assert plan.bytes_read == x.nbytes
    np.testing.assert_array_equal(tiles(source, w, memory="60 kB", **options), whole)
    assert (source.reads == 1).all()


@pytest.mark.parametrize("shape", [(6, 4, 9, 9), (2, 4, 5, 400)])
def test_small_images_and_flat_ones_are_read_once(shape):
    x, w, options, whole = arrays("conv2d", (6, 4, 5, 3), {"padding": 2}, shape)
    source = Source(x)
    assert len(plan_tiles(source, w, memory="20 kB", **options)) > 2
    np.testing.assert_array_equal(tiles(source, w, memory="20 kB", **options), whole)
    assert (source.reads == 1).all()


def test_bytes_read_are_those_that_explain_says():
    x, w, options, _ = arrays("conv2d", (6, 4, 5, 3), {"padding": 2, "padding_mode": "reflect"})
    source = Source(x)
    plan = plan_tiles(source, w, memory="12 kB", **options)  # rows are divided too
    tiles(source, w, memory="12 kB", **options)
    assert plan.bytes_read == source.reads.sum() * x.itemsize > x.nbytes
    text = plan.explain()
    for part in (f"{len(plan)} of y {plan.tile}", "12 kB", "times x", "s of arithmetic"):
        assert part in text


def test_the_arrays_in_memory_are_as_large_as_said():
    x = Source(np.ones((1, 1, 4000, 1000), np.float32))
    largest = 0
    read = type(x).__getitem__

    class Watched(Source):
        def __getitem__(self, index):
            nonlocal largest
            part = read(self, index)
            largest = max(largest, part.nbytes)
            return part

    plan = plan_tiles(x, np.ones((1, 1, 5, 5), np.float32), padding=2, memory="4 MB")
    assert plan.tile_bytes <= 4e6
    watched = Watched(x.array)
    tiles(watched, np.ones((1, 1, 5, 5), np.float32), padding=2, memory="4 MB")
    assert 4 * largest + 2 * np.prod(plan.tile) * 4 <= 4e6
    assert 6 * largest > 3e6  # and memory is used


def test_memmap_and_byte_order(tmp_path):
    x, w, options, whole = arrays("conv2d", (6, 4, 5, 3), {"padding": 2})
    x.astype(">f4").tofile(tmp_path / "x")
    source = np.memmap(tmp_path / "x", ">f4", "r", shape=x.shape)
    out = np.memmap(tmp_path / "y", np.float32, "w+", shape=whole.shape)
    tiles(source, w, out=out, memory="60 kB", **options)
    out.flush()
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "y", np.float32).reshape(whole.shape), whole
    )


def test_h5py(tmp_path):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    x, w, options, whole = arrays("conv2d", (6, 4, 5, 3), {"padding": 2, "padding_mode": "reflect"})
    with h5py.File(tmp_path / "file", "w") as file:
        source = file.create_dataset("x", data=x, chunks=(1, 4, 7, 10))
        out = file.create_dataset("y", whole.shape, np.float32, chunks=(1, 6, 5, 10))
        tiles(source, w, out=out, memory="120 kB", **options)
        np.testing.assert_array_equal(out[...], whole)


def test_chunks_of_zarr_are_read_and_written_once(tmp_path):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    x, w, options, whole = arrays("conv2d", (6, 4, 5, 3), {"padding": 2})
    made = {"dtype": "f4", "mode": "w"}
    source = zarr.open(str(tmp_path / "x"), shape=x.shape, chunks=(1, 4, 8, 37), **made)
    out = zarr.open(str(tmp_path / "y"), shape=whole.shape, chunks=(1, 6, 8, 37), **made)
    source[...] = x
    plan = plan_tiles(source, w, out=out, memory="120 kB", **options)
    assert len(plan) > 2
    assert plan.tile[2] % 8 == 0
    for place in plan.places():
        extent = plan.read_of(place).extent
        assert extent.stop % 8 == 0 or extent.stop == x.shape[2]
    tiles(source, w, out=out, memory="120 kB", **options)
    np.testing.assert_array_equal(out[...], whole)


class Failing(Source):
    """A source whose last rows cannot be read until it is mended."""

    broken = True

    def __getitem__(self, index):
        if self.broken and index[2].stop > 40:
            raise OSError("bad sector")
        return super().__getitem__(index)


def test_a_failed_tile_is_named_and_the_rest_is_done_from_it():
    x, w, options, whole = arrays("conv2d", (6, 4, 5, 3), {"padding": 2}, (1, 4, 61, 37))
    source, out, seen = Failing(x), np.full_like(whole, np.nan), []
    given = {"out": out, "memory": "60 kB", **options}
    with pytest.raises(TileError, match=r"bad sector.*start=(\d+) does the rest") as caught:
        tiles(source, w, progress=lambda done, count: seen.append((done, count)), **given)
    start = int(str(caught.value).split("start=")[1].split()[0])
    assert start == len(seen) > 0
    assert [done for done, _ in seen] == list(range(1, start + 1))
    assert np.isnan(out).any()
    before = out[~np.isnan(out)].size
    assert before >= start * whole.size / len(plan_tiles(x, w, memory="60 kB", **options)) * 0.9
    source.broken = False
    tiles(source, w, start=start, **given)
    np.testing.assert_array_equal(out, whole)


def test_errors_name_the_way_out():
    x, w = np.ones((1, 4, 20, 20), np.float32), np.ones((6, 4, 3, 3), np.float32)
    with pytest.raises(ShapeError, match=r"pass memory=(\d+) or more") as caught:
        tiles(x, w, memory=100)
    needed = int(str(caught.value).split("memory=")[1].split()[0])
    np.testing.assert_array_equal(tiles(x, w, memory=needed), implicit_conv.conv2d(x, w))
    with pytest.raises(ShapeError, match="give bytes, or a text such as"):
        tiles(x, w, memory="2 chairs")
    with pytest.raises(ShapeError, match=r"out has shape \(1, 2\) .* \(1, 6, 18, 18\)"):
        tiles(x, w, out=np.ones((1, 2), np.float32))
    with pytest.raises(ShapeError, match="shares memory with x"):
        tiles(x, np.ones((4, 4, 1, 1), np.float32), out=x)
    with pytest.raises(PlanError, match="residual cannot be given to conv2d in blocks"):
        tiles(x, w, residual=x)
    with pytest.raises(PlanError, match="operator 'conv4d' is none of conv1d"):
        tiles(x, w, operator="conv4d")
    with pytest.raises(ShapeError, match="there are 1 tiles"):
        tiles(x, w, start=2)


def test_no_bar_without_a_terminal(capfd):
    x, w = np.ones((1, 4, 20, 20), np.float32), np.ones((6, 4, 3, 3), np.float32)
    tiles(x, w)
    assert capfd.readouterr() == ("", "")


FULL_DISK = """
import resource, sys
import numpy as np
import implicit_conv
from implicit_conv.errors import TileError

x, w = np.ones((1, 1000, 1000), np.float32), np.ones((1, 1, 3, 3), np.float32)
whole = implicit_conv.conv2d(x, w, padding=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
class Out:
    shape, dtype = whole.shape, whole.dtype
    file = open(sys.argv[1], "wb+", buffering=0)
    def __setitem__(self, index, y):
        start = index[1].start * 1000
        assert index[2] == slice(0, 1000)
        self.file.seek(start * 4)
        content = y.tobytes()
        while content:  # a disk that is nearly full takes a part of them
            content = content[self.file.write(content):]
given = {"padding": 1, "memory": "1 MB", "out": Out()}
try:
    implicit_conv.tiles(x, w, **given)
except TileError as error:
    assert isinstance(error.__cause__, OSError), error
    start = int(str(error).split("start=")[1].split()[0])
assert 0 < start < len(implicit_conv.plan_tiles(x, w, padding=1, memory="1 MB"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
implicit_conv.tiles(x, w, start=start, **given)
found = np.fromfile(sys.argv[1], np.float32).reshape(whole.shape)
np.testing.assert_array_equal(found, whole)
"""


def test_a_full_disk_is_named_and_the_rest_is_done_when_there_is_room(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "y")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_a_filter_is_packed_packs_its_own():
    from implicit_conv.scale import operation

    x, w = np.ones((1, 1, 20, 20), np.float32), np.full((1, 1, 3, 3), 7, np.float32)
    tiles(x, w)  # compiled here
    with operation._PACKING:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if (tiles(x, w + 1) == 72).all() else 1)
        assert os.waitpid(child, 0)[1] == 0
