"""Compiled code that several processes cached in one folder works together in another process, and
neither the disk nor the files of the cache decide whether a function can be compiled and called.
"""

import hashlib
import importlib
import inspect
import logging
import os
import pickle
import platform
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType

import pytest
from damage import damage
from numba import types
from numba.core import config
from sampling import count, sampled

from implicit_conv.cpu.arch import cpu_features
from implicit_conv.kernels import sources
from implicit_conv.kernels.cpu.runtime import cache, native
from implicit_conv.kernels.cpu.runtime.cache import Names
from implicit_conv.kernels.cpu.runtime.callable import python_function
from implicit_conv.kernels.cpu.runtime.machine import description
from implicit_conv.kernels.cpu.runtime.native import entry
from implicit_conv.kernels.cpu.translate.values import TranslationError
from implicit_conv.kernels.disk import FORMAT, Store
from implicit_conv.kernels.disk_files import KERNEL

COMPUTE = """
import sys
import numpy as np
from implicit_conv import conv2d
from implicit_conv.kernels.cpu.runtime import launch  # first, so variants are numbered alike
from implicit_conv.testing import Case
for dtype in sys.argv[1:]:
    case = Case(C=20, K=9, size=(5, 9), padding=((1, 1), (1, 1)), dtype=dtype)
    x, w = case.inputs(0, integers=True)
    np.testing.assert_array_equal(conv2d(x, w, padding=1), case.reference(x, w), dtype)
"""
COUNT = """
import sys
from implicit_conv.kernels.cpu.runtime.native import Entry
parts, init = [], Entry.__init__
def counted(self, *arguments):
    init(self, *arguments)
    parts.append(self)
Entry.__init__ = counted
"""
REPORT = "print(len(parts), sum(part.cache_hits for part in parts))"
BOTH = ("float32", "float64")
NARROW = "+avx2,+fma" if "avx512f" in cpu_features() else "+sse2"
SIGNATURE = types.int64(types.int64)


def add_one(value):
    return value + 1


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store of all that a test compiles, empty at first."""
    store = Store(tmp_path / "cache")
    for module in (cache, native):
        monkeypatch.setattr(module, "store", lambda: store)
    return store


def names(store):
    return sorted(file.name for file in store.files(KERNEL))


def compute(folder, features, dtypes, program=COMPUTE):
    environment = {**os.environ, "IMPLICIT_CONV_CACHE_DIR": str(folder)}
    if features:
        environment |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *dtypes],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, f"{features} {dtypes} {result.stderr[-2000:]}"
    return result


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder that a process filled, and the number of parts that it compiled."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    first = compute(folder, "", ["float32"], COUNT + COMPUTE + REPORT)
    parts, loaded = map(int, first.stdout.split())
    assert parts > 4
    assert loaded == 0
    assert first.stderr == ""
    return folder, parts


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86 features")
def test_processes_of_other_dtypes_and_vectors_share_a_cache(tmp_path):
    """Variants of a function that two processes number alike must not replace each other."""
    for features in ("", NARROW):
        for dtypes in ((), *zip(BOTH), BOTH):
            compute(tmp_path, features, dtypes)
    compute(tmp_path, "", BOTH)
    compute(tmp_path, NARROW, reversed(BOTH))


def test_a_second_process_loads_every_part(filled):
    """Microkernels too, whose templates are generated from their lists of arguments."""
    folder, parts = filled
    second = compute(folder, "", ["float32"], COUNT + COMPUTE + REPORT)
    assert second.stdout.split() == [str(parts), str(parts)]
    assert second.stderr == ""


@pytest.mark.slow
@sampled
@pytest.mark.parametrize("number", range(count(1, 13)))
def test_a_call_replaces_all_files_of_a_damaged_folder(filled, tmp_path, number):
    """Each file is damaged in its own way, another one each time; the folder has at least 12."""
    sound, parts = filled
    folder = tmp_path / "cache"
    shutil.copytree(sound, folder)
    paths = sorted(folder.iterdir())
    for index, path in enumerate(paths):
        damage(path, sound / paths[index - 1].name, 1000 * number + index)
    repair = compute(folder, "", ["float32"], COUNT + COMPUTE + REPORT)
    assert repair.stdout.split() == [str(parts), "0"]
    assert repair.stderr.count("\n") == 1  # one warning
    assert str(folder) in repair.stderr
    again = compute(folder, "", ["float32"], COUNT + COMPUTE + REPORT)
    assert again.stdout.split() == [str(parts), str(parts)]
    assert again.stderr == ""
    assert sorted(folder.iterdir()) == paths
    assert len(paths) >= 12


@pytest.mark.slow
def test_a_call_works_where_files_may_not_grow(filled, tmp_path):
    sound, _ = filled
    folder = tmp_path / "cache"
    shutil.copytree(sound, folder)
    for path in folder.glob("address_of*"):
        path.unlink()
    left = sorted(folder.iterdir())
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    for _ in range(2):
        found = compute(folder, "", ["float32"], limit + COMPUTE)
        assert found.stderr.count("\n") == 1  # one warning
        assert f"cannot be saved in {folder}" in found.stderr
        assert sorted(folder.iterdir()) == left


@sampled
@pytest.mark.parametrize("number", range(count(40, 400)))
def test_a_damaged_entry_is_compiled_again(store, caplog, number):
    entry("float64(float64)")(add_one)
    (other,) = names(store)
    entry(SIGNATURE)(add_one)
    (name,) = {*names(store)} - {other}
    path = store.folder / name
    damage(path, store.folder / other, number)
    for hits in (0, 1):
        function = entry(SIGNATURE)(add_one)
        assert function.ctypes(41) == 42
        assert function.cache_hits == hits
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(path) in warning
    assert len(list(store.folder.iterdir())) == 2


@pytest.mark.parametrize(
    "payload", [b"", b"junk", pickle.dumps(None), pickle.dumps((1, 2)), pickle.dumps(range(9))]
)
def test_an_entry_that_does_not_fit_is_compiled_again(store, caplog, payload):
    """Its digest is right, as of an entry that a defect saved."""
    entry(SIGNATURE)(add_one)
    (name,) = names(store)
    digest = hashlib.sha256(name.encode() + b"\n" + payload).digest()
    (store.folder / name).write_bytes(FORMAT + digest + payload)
    assert store.load(name) == payload
    for hits in (0, 1):
        function = entry(SIGNATURE)(add_one)
        assert function.ctypes(41) == 42
        assert function.cache_hits == hits
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_every_decorator_caches(store):
    for compiled_before in (0, 1):
        called = python_function(SIGNATURE)(add_one)
        callback = entry(SIGNATURE)(add_one)
        assert called(41) == callback.ctypes(41) == 42
        assert [called.compiled.cache_hits, callback.cache_hits] == [compiled_before] * 2
        assert len(names(store)) == 2


def name_of(function, options, signature):
    return Names("", function, options).name(signature, description())


@pytest.mark.parametrize("setting", [*cache.SETTINGS, "CPU_NAME"])
def test_a_setting_of_numba_has_entries_of_its_own(monkeypatch, setting):
    def name():
        return name_of(add_one, {}, SIGNATURE)

    before = name()
    assert name() == before
    with monkeypatch.context() as patch:
        assert hasattr(config, setting)
        patch.setattr(config, setting, "other")
        assert name() != before
    assert name() == before


@pytest.mark.parametrize("version", range(4))
def test_a_version_has_entries_of_its_own(monkeypatch, version):
    """Of Python, Numba, llvmlite and numpy."""
    before = name_of(add_one, {}, SIGNATURE)
    versions = [*cache.VERSIONS]
    versions[version] += ".1"
    monkeypatch.setattr(cache, "VERSIONS", tuple(versions))
    assert name_of(add_one, {}, SIGNATURE) != before


@pytest.mark.parametrize("changed", ["disk.py", "vector.py", "test_cache.py"])
def test_a_source_has_entries_of_its_own(monkeypatch, changed):
    """Every source of a kernel, and the file of the function."""
    found = set()
    for text in ("before", "after"):
        changes = {changed: text}
        monkeypatch.setattr(sources, "file_hash", lambda path, c=changes: c.get(path.name, "same"))
        sources.kernels_hash.cache_clear()
        found.add(name_of(add_one, {}, SIGNATURE))
    sources.kernels_hash.cache_clear()
    assert len(found) == 2


def test_a_variant_has_entries_of_its_own():
    def add(number):
        return lambda value: value + number

    def add_default(number):
        return lambda value, other=number: value + other

    functions = [add_one, add(1), add(2), add_default(1), add_default(2)]
    found = [name_of(function, {}, SIGNATURE) for function in functions]
    found.append(name_of(add_one, {"fastmath": True}, SIGNATURE))
    found.append(name_of(add_one, {}, types.float64(types.int64)))
    assert len(set(found)) == 7


def test_a_function_without_a_source_is_not_cached(store, caplog):
    code = add_one.__code__.replace(co_filename="<string>")
    function = FunctionType(code, {"__name__": __name__})
    for _ in range(2):
        with pytest.raises(TranslationError, match="install the package with its"):
            entry(SIGNATURE)(function)
    assert names(store) == []
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "<string>" in warning


def test_a_function_in_a_zip_file_is_compiled(store, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("zipped.py", inspect.getsource(add_one))
    monkeypatch.syspath_prepend(tmp_path / "zipped.zip")
    function = importlib.import_module("zipped").add_one
    monkeypatch.delitem(sys.modules, "zipped")
    assert entry(SIGNATURE)(function).ctypes(41) == 42
    assert names(store) == []


def test_code_without_a_cache_is_that_of_its_function(monkeypatch):
    """Though another function has its name."""

    def fail(path):
        raise OSError("no such file")

    def named(number):
        def add(value):
            return value + number

        return add

    monkeypatch.setattr(sources, "file_hash", fail)
    sources.kernels_hash.cache_clear()
    compiled = [entry(SIGNATURE)(named(number)).ctypes for number in range(3)]
    sources.kernels_hash.cache_clear()
    assert [call(5) for call in compiled] == [5, 6, 7]


def test_a_folder_that_vanishes_is_made_again(store, caplog):
    for _ in range(2):
        assert entry(SIGNATURE)(add_one).ctypes(41) == 42
        shutil.rmtree(store.folder)
    assert entry("float64(float64)")(add_one).ctypes(41) == 42
    assert len(names(store)) == 1
    assert caplog.records == []


def test_threads_that_compile_at_once_keep_code_in_one_folder(store, tmp_path, monkeypatch):
    def compile_one(number):
        def add(value):
            return value + number

        return python_function(SIGNATURE)(add)(1)

    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(compile_one, range(12))) == list(range(1, 13))
    assert len(names(store)) == 12
    assert list(tmp_path.iterdir()) == [store.folder]
