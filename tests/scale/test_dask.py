"""Convolutions of dask arrays: the bits of the whole, chunks as declared, few tasks, errors."""

import inspect
import itertools
import pickle

import numpy as np
import pytest

import implicit_conv
from implicit_conv.errors import PlanError, ShapeError

dask = pytest.importorskip("dask", reason="dask is not installed: pip install -e '.[dask]'")
da = pytest.importorskip("dask.array", reason="dask.array is not installed")

import implicit_conv.dask  # noqa: E402
from implicit_conv.scale.operation import Operation  # noqa: E402

CASES = [
    ("conv2d", (6, 4, 5, 3), {"padding": 2}),
    ("conv2d", (6, 4, 4, 6), {"padding": "same"}),
    ("conv2d", (6, 4, 5, 3), {"padding": "causal", "bias": True, "activation": "relu"}),
    ("conv2d", (6, 4, 5, 3), {}),
    ("conv2d", (6, 4, 3, 3), {"padding": 1, "stride": (2, 3)}),
    ("conv2d", (6, 2, 4, 4), {"padding": "full", "dilation": 2, "groups": 2}),
    ("conv2d", (6, 4, 3, 3), {"padding": ((-2, 3), (4, -1))}),
    ("conv2d", (6, 4, 1, 1), {"stride": 2}),
    ("conv2d", (6, 4, 5, 4), {"padding": ((4, 1), (0, 3)), "padding_mode": "reflect"}),
    ("conv2d", (6, 4, 5, 4), {"padding": ((4, 1), (0, 3)), "padding_mode": "symmetric"}),
    ("conv2d", (6, 4, 5, 4), {"padding": ((4, 1), (0, 3)), "padding_mode": "replicate"}),
    ("conv2d", (6, 4, 5, 4), {"padding": ((4, 1), (0, 3)), "padding_mode": "circular"}),
    ("conv_transpose2d", (4, 6, 5, 3), {"padding": 1, "stride": (3, 1)}),
    ("conv_transpose2d", (4, 6, 2, 2), {"stride": 3, "output_padding": 2}),
]
CHUNKS = ((1, 1), (4,), (8, 8, 7, 6), (9, 10, 8))


def arrays(name, weight_shape, options, shape=(2, 4, 29, 27)):
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    w = random.standard_normal(weight_shape).astype(np.float32)
    options = {**options, "precision": "strict"}
    if options.get("bias"):
        options["bias"] = random.standard_normal(weight_shape[0]).astype(np.float32)
    return x, w, options, getattr(implicit_conv, name)(x, w, **options)


def convolved(name, *args, **options):
    return getattr(implicit_conv.dask, name)(*args, **options)


def check(y, whole):
    """Lazy `y` is `whole`, and its chunks have the shapes that they are declared to have."""
    assert isinstance(y, da.Array)
    assert y.dtype == whole.dtype
    assert y.shape == whole.shape
    parts = y.to_delayed()
    found = dask.compute(*parts.ravel(), scheduler="synchronous")
    declared = itertools.product(*y.chunks)
    assert [part.shape for part in found] == list(declared)
    np.testing.assert_array_equal(y.compute(scheduler="synchronous"), whole)


def memmap(folder, x):
    x.tofile(folder / "x")
    return np.memmap(folder / "x", x.dtype, "r", shape=x.shape)


@pytest.mark.parametrize(("name", "weight_shape", "options"), CASES, ids=str)
@pytest.mark.parametrize("source", ["memory", "file"])
def test_chunks_have_the_bits_of_the_whole(tmp_path, source, name, weight_shape, options):
    x, w, options, whole = arrays(name, weight_shape, options)
    given = x if source == "memory" else memmap(tmp_path, x)
    check(convolved(name, da.from_array(given, chunks=CHUNKS), w, **options), whole)


def test_signals_volumes_and_images_without_a_batch_axis(tmp_path):
    for name, weight_shape, shape, chunks in [
        ("conv1d", (3, 4, 5), (4, 90), (4, 20)),
        ("conv_transpose1d", (4, 3, 5), (2, 4, 90), (1, 4, 20)),
        ("conv3d", (3, 4, 3, 3, 3), (1, 4, 12, 8, 11), (1, 4, 4, 4, 4)),
        ("conv_transpose3d", (4, 3, 2, 2, 2), (1, 4, 9, 8, 7), (1, 4, 4, 4, 4)),
    ]:
        x, w, options, whole = arrays(name, weight_shape, {"stride": 2}, shape)
        for given in (x, memmap(tmp_path, x)):
            check(convolved(name, da.from_array(given, chunks=chunks), w, **options), whole)


def tasks(y):
    return len(dict(dask.optimize(y)[0].dask))


def test_a_file_takes_one_task_a_chunk(tmp_path):
    x, w, options, whole = arrays("conv2d", (6, 4, 5, 3), {"padding": 2})
    lazy = da.from_array(memmap(tmp_path, x), chunks=(1, 4, 4, 4))
    y = implicit_conv.dask.conv2d(lazy, w, **options)
    assert y.npartitions == 2 * 8 * 7
    assert tasks(y) == y.npartitions + 1  # from_array has copied the file to memory
    check(y, whole)
    y = implicit_conv.dask.conv2d(memmap(tmp_path, x), w, **options)
    assert tasks(y) == tasks(y * 2) == y.npartitions  # the next step is part of the task
    check(y, whole)
    large = np.ones((300, 4, 5, 5), np.float32)  # a filter that is a task of its own
    y = implicit_conv.dask.conv2d(lazy, large, precision="strict")
    assert tasks(y) == y.npartitions + 2 <= 1.1 * y.npartitions
    check(y, implicit_conv.conv2d(x, large, precision="strict"))
    changed = implicit_conv.dask.conv2d((lazy + 0).rechunk(CHUNKS), w, **options)
    assert tasks(changed) > y.npartitions
    check(changed, whole)


@pytest.mark.parametrize("inline", [False, True])
def test_zarr_and_h5py_are_read_by_the_tasks(tmp_path, inline):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    x, w, options, whole = arrays("conv2d", (6, 4, 5, 3), {"padding": 2, "padding_mode": "reflect"})
    stored = zarr.open(
        str(tmp_path / "x"), mode="w", shape=x.shape, chunks=(1, 2, 8, 9), dtype="f4"
    )
    stored[...] = x
    with h5py.File(tmp_path / "file", "w") as file:
        dataset = file.create_dataset("x", data=x, chunks=(1, 2, 8, 9))
        for source in (stored, dataset):
            lazy = da.from_array(source, chunks=CHUNKS, inline_array=inline)
            y = implicit_conv.dask.conv2d(lazy, w, **options)
            assert tasks(y) == y.npartitions
            check(y, whole)
            check(implicit_conv.dask.conv2d(source, w, **options), whole)


def test_a_lock_is_kept(tmp_path):
    x, w, options, whole = arrays("conv2d", (6, 4, 3, 3), {"padding": 1})
    lazy = da.from_array(memmap(tmp_path, x), chunks=CHUNKS, lock=True)
    y = implicit_conv.dask.conv2d(lazy, w, **options)
    assert tasks(y) > 2 * y.npartitions  # dask reads, with the lock
    check(y, whole)


def test_files_are_pickled_by_name(tmp_path):
    from implicit_conv.scale.sources import file_array

    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    x = np.arange(1000000, dtype=np.float32).reshape(1000, 1000)
    with h5py.File(tmp_path / "file", "w") as file:
        file.create_dataset("x", data=x)
    mapped = memmap(tmp_path, x)
    views = [mapped, mapped[5:, 3:], mapped[::-1, ::2], mapped.T, mapped[7]]
    with h5py.File(tmp_path / "file", "r") as file:
        for view in [*views, file["x"]]:
            content = pickle.dumps(file_array(view))
            assert len(content) < 1000
            np.testing.assert_array_equal(pickle.loads(content)[...], view[...])
    assert file_array(x) is None
    assert file_array(np.memmap(tmp_path / "x", np.float32, "c", shape=x.shape)) is None


@pytest.mark.parametrize(
    ("weight_shape", "options", "chunks"),
    [
        ((6, 4, 19, 3), {"padding": 9}, (2, 4, 8, 27)),  # smaller than the reach
        ((6, 4, 7, 3), {"padding": (3, 1)}, (2, 4, 9, 27)),  # the last one is
        ((6, 4, 19, 3), {"padding": 9, "stride": (1, 5)}, (1, 2, 3, 2)),
        ((6, 4, 3, 3), {"stride": 10}, (2, 4, (9, 1, 10, 9), 27)),  # one without a result
        ((6, 4, 3, 3), {"padding": 1}, (2, 2, 29, 27)),  # several of channels
        ((6, 2, 3, 3), {"padding": 1, "groups": 2}, (1, (1, 3), (14, 0, 15), 27)),
        ((6, 4, 9, 9), {"padding": 8, "padding_mode": "circular"}, (2, 4, 29, 5)),
        ((6, 4, 3, 3), {"padding": ((-1, 2), (0, 0)), "padding_mode": "circular"}, (2, 4, 10, 9)),
        ((6, 4, 19, 3), {"padding": (20, 3), "padding_mode": "reflect"}, (2, 4, 5, 2)),
    ],
)
@pytest.mark.parametrize("source", ["steps", "file"])
def test_any_chunks_do(tmp_path, source, weight_shape, options, chunks):
    x, w, options, whole = arrays("conv2d", weight_shape, options)
    given = memmap(tmp_path, x) if source == "file" else x
    lazy = da.from_array(given, chunks=chunks)
    lazy = lazy + 0 if source == "steps" else lazy
    check(implicit_conv.dask.conv2d(lazy, w, **options), whole)


def test_a_chain_takes_one_task_a_chunk_and_filter(tmp_path):
    """Nothing is computed twice, and no task only cuts or joins."""
    x = np.random.default_rng(0).standard_normal((1, 1, 80, 90)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((1, 1, 5, 3)).astype(np.float32)
    options = {"padding": "same", "precision": "strict"}
    once = implicit_conv.conv2d(x, w, **options)
    calls, compute = [], Operation.compute

    def counted(self, *args):
        calls.append(self.name)
        return compute(self, *args)

    for wide in (w, np.ones((1, 1, 65, 65), np.float32)):  # the latter is a task of its own
        whole = implicit_conv.conv2d(once * 2, wide, **options)
        with dask.config.set({"array.chunk-size": 400}):
            first = implicit_conv.dask.conv2d(memmap(tmp_path, x), w, **options)
        y = implicit_conv.dask.conv2d(first * 2, wide, **options)
        assert y.npartitions == 72
        assert tasks(y) == 2 * y.npartitions + (wide is not w)
        check(y, whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operation, "compute", counted)
        dask.compute(first, y, scheduler="synchronous")
    assert len(calls) == 2 * y.npartitions


def test_errors_of_the_operator_come_at_once():
    x, w = da.ones((1, 4, 20, 20), dtype=np.float32), np.ones((6, 4, 3, 3), np.float32)
    with pytest.raises(ShapeError, match="x has C=4 but w"):
        implicit_conv.dask.conv2d(x, w[:, :3])
    with pytest.raises(PlanError, match="precision"):
        implicit_conv.dask.conv2d(x, w, precision="precise")
    with pytest.raises(PlanError, match="add it to the result"):
        implicit_conv.dask.conv2d(x, w, residual=x)
    with pytest.raises(PlanError, match="computed on the CPU"):
        implicit_conv.dask.conv2d(x, w, device="cuda")
    assert implicit_conv.dask.conv2d(x, w, device="cpu").shape == (1, 6, 18, 18)
    with pytest.raises(ShapeError, match="compute_chunk_sizes"):
        implicit_conv.dask.conv2d(x[:, :, x[0, 0, :, 0] > 0], w)


@pytest.mark.parametrize("padding", [(9, 8), (0, 9), (-1, 8)])
@pytest.mark.parametrize("mode", ["circular", "reflect", "symmetric", "replicate"])
def test_a_single_chunk_may_be_smaller_than_the_reach(padding, mode):
    x = np.random.default_rng(0).standard_normal((1, 1, 9)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((1, 1, 9)).astype(np.float32)
    if mode == "reflect":
        padding = (min(padding[0], 7), min(padding[1], 6))
    options = {"padding": (padding,), "padding_mode": mode, "precision": "strict"}
    whole = implicit_conv.conv1d(x, w, **options)
    check(implicit_conv.dask.conv1d(da.from_array(x), w, **options), whole)
    check(implicit_conv.dask.conv1d(da.from_array(x) + 0, w, **options), whole)


@pytest.mark.parametrize("options", [{}, {"stride": (3, 1)}, {"dilation": (2, 1), "stride": 3}])
def test_chunks_of_a_single_column_have_the_bits_of_the_whole(options, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 40, 23, 6)).astype(np.float32)
    w = rng.standard_normal((5, 40, 4, 1)).astype(np.float32)
    whole = implicit_conv.conv2d(x, w, precision="strict", **options)
    lazy = da.from_array(memmap(tmp_path, x), chunks=(2, 40, 9, (1, 3, 1, 1)))
    check(convolved("conv2d", lazy, w, precision="strict", **options), whole)


@pytest.mark.parametrize("stride", [1, 2, (3, 1)])
def test_chunks_of_a_column_have_the_bits_of_the_whole_transposed(stride, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 40, 23, 6)).astype(np.float32)
    w = rng.standard_normal((40, 5, 7, 1)).astype(np.float32)
    whole = implicit_conv.conv_transpose2d(x, w, stride=stride, precision="strict")
    lazy = da.from_array(memmap(tmp_path, x), chunks=(2, 40, 9, (1, 3, 1, 1)))
    check(convolved("conv_transpose2d", lazy, w, stride=stride, precision="strict"), whole)


@pytest.mark.parametrize("rows", [(3, 2), (3, 1)])
def test_chunks_of_depthwise_convolutions_have_the_bits_of_the_whole(rows):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 40, 23, 40)).astype(np.float32)
    w = rng.standard_normal((40, 1, *rows)).astype(np.float32)
    whole = implicit_conv.conv2d(x, w, groups=40, precision="strict")
    lazy = da.from_array(x, chunks=(1, 40, 9, (20, 3, 17)))
    check(implicit_conv.dask.conv2d(lazy, w, groups=40, precision="strict"), whole)


@pytest.mark.parametrize("channels", [1, 3, 40])
@pytest.mark.parametrize(("taps", "stride", "dilation"), [(4, 3, 2), (5, 2, 3), (3, 2, 7)])
def test_chunks_of_few_outputs_have_the_bits_of_the_whole(
    tmp_path, channels, taps, stride, dilation
):
    """The order of a sum depends neither on the number of outputs nor on that of rows."""
    rng = np.random.default_rng(0)
    for shape, size in (((40,), (taps,)), ((33, 40), (taps, 3)), ((33, 40), (2, taps))):
        x = rng.standard_normal((1, channels, *shape)).astype(np.float32)
        w = rng.standard_normal((5, channels, *size)).astype(np.float32)
        options = {"stride": stride, "dilation": dilation, "precision": "strict"}
        name = f"conv{len(shape)}d"
        whole = getattr(implicit_conv, name)(x, w, **options)
        given = memmap(tmp_path, x)  # whose chunks may be smaller than the reach of the filter
        lazy = da.from_array(given, chunks=(1, channels, *[7] * len(shape)))
        check(convolved(name, lazy, w, **options), whole)


def test_a_task_has_one_thread_unless_more_are_set(tmp_path, monkeypatch):
    from implicit_conv.settings import current

    x, w, options, _ = arrays("conv2d", (6, 4, 5, 3), {"padding": 2})
    seen, compute = [], Operation.compute

    def watched(self, *args):
        seen.append(current().num_threads)
        return compute(self, *args)

    monkeypatch.setattr(Operation, "compute", watched)
    for given in (x, memmap(tmp_path, x)):
        y = implicit_conv.dask.conv2d(da.from_array(given, chunks=CHUNKS), w, **options)
        y.compute(scheduler="threads", num_workers=2)
    assert set(seen) == {1}
    seen.clear()
    with implicit_conv.config(num_threads=2):
        y.compute(scheduler="synchronous")
    assert set(seen) == {2}


def test_a_filter_is_packed_once(tmp_path, monkeypatch):
    from implicit_conv.operators.plan import Plan
    from implicit_conv.scale import operation

    x, w, options, _ = arrays("conv2d", (6, 4, 3, 3), {"padding": 1}, (1, 4, 64, 64))
    w = w + np.float32(0.5)  # a filter that no other test has packed
    packs, pack = [], Plan.pack

    def watched(self, filters):
        packs.append(self)
        return pack(self, filters)

    monkeypatch.setattr(Plan, "pack", watched)
    y = implicit_conv.dask.conv2d(da.from_array(memmap(tmp_path, x), chunks=16), w, **options)
    assert y.npartitions == 16
    y.compute(scheduler="threads", num_workers=4)
    assert len(packs) == len({operation._order(plan) for plan in packs}) <= 4
    y.compute(scheduler="threads", num_workers=4)
    assert len(packs) <= 4


def test_read_only_chunks_and_nans(tmp_path):
    x, w, options, _ = arrays("conv2d", (6, 4, 5, 3), {"padding": 2})
    x[1, 2, 13, 11] = np.nan
    whole = implicit_conv.conv2d(x, w, **options)
    assert 0 < np.isnan(whole).sum() < whole.size / 10
    x.flags.writeable = False
    check(implicit_conv.dask.conv2d(da.from_array(x, chunks=CHUNKS), w, **options), whole)
    check(implicit_conv.dask.conv2d(memmap(tmp_path, x), w, **options), whole)


def test_names_are_those_of_the_computation(tmp_path):
    x, w, options, _ = arrays("conv2d", (6, 4, 5, 3), {"padding": 2})
    mapped = memmap(tmp_path, x)
    for given in (mapped, da.from_array(x, chunks=CHUNKS)):
        first = implicit_conv.dask.conv2d(given, w, **options)
        assert implicit_conv.dask.conv2d(given, w, **options).name == first.name
        others = [
            implicit_conv.dask.conv2d(given, w + 1, **options),
            implicit_conv.dask.conv2d(given, w, **{**options, "padding": 1}),
            implicit_conv.dask.conv2d(given, w, np.ones(6, np.float32), **options),
            implicit_conv.dask.conv2d(given, w, **{**options, "activation": "relu"}),
        ]
        assert len({first.name, *(other.name for other in others)}) == 5


@pytest.mark.slow
def test_a_hundred_thousand_chunks_are_as_many_tasks():
    class Source:
        shape, chunks = (1, 1, 31600, 31700), (1, 1, 100, 100)
        dtype, ndim = np.dtype(np.float32), 4

        def __getitem__(self, index):
            return np.ones([part.stop - part.start for part in index], np.float32)

    lazy = da.from_array(Source(), chunks=Source.chunks, name="source")
    y = implicit_conv.dask.conv2d(lazy, np.ones((1, 1, 5, 5), np.float32), padding=2)
    assert tasks(y) == y.npartitions == 316 * 317
    corner = y[0, 0, 99:102, :2].compute(scheduler="synchronous")
    np.testing.assert_array_equal(corner, [[15, 20]] * 3)


def test_each_name_of_the_door_is_the_function_of_that_name():
    functions = {name: value for name, value in vars(implicit_conv.dask).items() if name[0] != "_"}
    assert {name: value.__name__ for name, value in functions.items()} == {
        name: name for name in functions
    }
    assert len(functions) == 24
    assert pickle.loads(pickle.dumps(functions)) == functions  # by their public names
    assert "residual" not in inspect.signature(implicit_conv.dask.conv2d).parameters
