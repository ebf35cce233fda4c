"""Compiled code that several processes cached in one folder works together in another process, and
neither the disk nor the files of the cache decide whether a function can be compiled and called.
"""

import ast
import copy
import ctypes
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
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from compiled import forget_code
from damage import damage
from sampling import count, sampled

from implicit_conv.cpu.machine.arch import cpu_features
from implicit_conv.kernels import sources
from implicit_conv.kernels.cpu.emit import types
from implicit_conv.kernels.cpu.runtime import code
from implicit_conv.kernels.cpu.runtime.compiled import source
from implicit_conv.kernels.cpu.runtime.machine import machine, settings
from implicit_conv.process.disk import FORMAT, Store
from implicit_conv.process.disk_folder import KERNEL

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
from implicit_conv.kernels.cpu.runtime import code
parts, compiled, find, compile = [], [], code._find, code._compile
def found(*arguments):
    parts.append(arguments)
    return find(*arguments)
def anew(*arguments):
    compiled.append(arguments)
    return compile(*arguments)
code._FINDERS["translator"], code._compile = found, anew
"""
REPORT = "print(len(parts), len(parts) - len(compiled))"
BOTH = ("float32", "float64")
NARROW = "+avx2,+fma" if "avx512f" in cpu_features() else "+sse2"
CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def make_add(number, kind="int64"):
    """value -> value + number"""

    def add(value):
        return value + number

    return source.of_function(types.int64(getattr(types, kind)), add)


def make_python_add(number):
    """The same for Python."""

    def add(value):
        return value + number

    return source.for_python(types.int64(types.int64), add)


ADD, PYTHON_ADD = f"{__name__}:make_add", f"{__name__}:make_python_add"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store of all that a test compiles, empty at first."""
    store = Store(tmp_path / "cache")
    monkeypatch.setattr(code, "store", lambda: store)
    forget_code()
    yield store
    forget_code()


@pytest.fixture
def add(store, monkeypatch):
    """add(number): value -> value + number, and whether it was compiled and not found."""
    compiled, compile_anew = [], code._compile

    def counted(*arguments):
        compiled.append(arguments)
        return compile_anew(*arguments)

    def add(number, value=41):
        forget_code()
        compiled.clear()
        return CALL(code.code(ADD, number).address())(value), bool(compiled)

    monkeypatch.setattr(code, "_compile", counted)
    return add


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
    first = compute(folder, "", BOTH, COUNT + COMPUTE + REPORT)
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
    second = compute(folder, "", BOTH, COUNT + COMPUTE + REPORT)
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
    repair = compute(folder, "", BOTH, COUNT + COMPUTE + REPORT)
    assert repair.stdout.split() == [str(parts), "0"]
    assert repair.stderr.count("\n") == 1  # one warning
    assert str(folder) in repair.stderr
    again = compute(folder, "", BOTH, COUNT + COMPUTE + REPORT)
    assert again.stdout.split() == [str(parts), str(parts)]
    assert again.stderr == ""
    assert sorted(folder.iterdir()) == paths
    assert len(paths) >= 12


@pytest.mark.slow
def test_a_call_works_where_files_may_not_grow(filled, tmp_path):
    sound, _ = filled
    folder = tmp_path / "cache"
    shutil.copytree(sound, folder)
    for path in folder.glob("start*"):
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
def test_a_damaged_entry_is_compiled_again(store, add, caplog, number):
    add(2)
    (other,) = names(store)
    add(1)
    (name,) = {*names(store)} - {other}
    path = store.folder / name
    damage(path, store.folder / other, number)
    assert add(1) == (42, True)
    assert add(1) == (42, False)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(path) in warning
    assert len(list(store.folder.iterdir())) == 2


@pytest.mark.parametrize(
    "payload", [b"", b"junk", pickle.dumps(None), pickle.dumps((1, 2)), pickle.dumps(range(9))]
)
def test_an_entry_that_does_not_fit_is_compiled_again(store, add, caplog, payload):
    """Its digest is right, as of an entry that a defect saved."""
    add(1)
    (name,) = names(store)
    digest = hashlib.sha256(name.encode() + b"\n" + payload).digest()
    (store.folder / name).write_bytes(FORMAT + digest + payload)
    assert store.load(name) == payload
    assert add(1) == (42, True)
    assert add(1) == (42, False)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_what_python_calls_is_cached(store):
    for _ in range(2):
        forget_code()
        assert code.python_code(PYTHON_ADD, 1)(41) == 42
        assert len(names(store)) == 1


def test_code_is_counted_once_whether_compiled_or_loaded(add):
    for compiled in True, False:
        assert add(5)[1] == compiled  # which forgets before
        assert code.count() == 1
    code.code(ADD, 5).address()
    assert code.count() == 1
    code.code(ADD, 6).address()
    assert code.count() == 2


def test_code_is_found_once_in_a_process(add, monkeypatch):
    add(1)
    monkeypatch.setattr(code, "_FINDERS", {})
    assert CALL(code.code(ADD, 1).address())(41) == 42


def name_of(*arguments, maker=ADD, target=None):
    return code.code(maker, *arguments).name(target or machine(*settings()))


@pytest.mark.parametrize("field", range(len(settings())))
def test_a_setting_has_entries_of_its_own(field):
    found = machine(*settings())
    changed = copy.copy(found)
    changed.settings = found.settings._replace(**{found.settings._fields[field]: "other"})
    assert name_of(1, target=changed) != name_of(1) == name_of(1)


@pytest.mark.parametrize("version", range(3))
def test_a_version_has_entries_of_its_own(monkeypatch, version):
    """Of Python, llvmlite and numpy."""
    before = name_of(1)
    versions = [*code.versions()]
    versions[version] += ".1"
    monkeypatch.setattr(code, "versions", lambda: tuple(versions))
    assert name_of(1) != before


@pytest.mark.parametrize("changed", ["disk.py", "vector.py", "test_cache.py"])
def test_a_source_has_entries_of_its_own(monkeypatch, changed):
    """Every source of a kernel, and the file of the maker."""
    found = set()
    for text in ("before", "after"):
        changes = {changed: text}
        monkeypatch.setattr(sources, "file_hash", lambda path, c=changes: c.get(path.name, "same"))
        forget_hashes()
        found.add(name_of(1))
    forget_hashes()
    assert len(found) == 2


def forget_hashes():
    for kept in (sources.kernels_hash, code._own_hash, code.versions):
        kept.cache_clear()


class Pair(NamedTuple):
    first: object
    second: object


class Other(NamedTuple):
    first: object
    second: object


@dataclass(frozen=True)
class Spec:
    first: object
    second: object = 0


class Kind(Enum):
    ONE = 1


VALUES = [
    *(None, True, 1, 1.0, "1", "", 0, False, 0.0, -0.0, Kind.ONE),
    *((1, 2), (1, 2.0), ((1,), 2), (1, (2,)), ("1, 2",), ("1", "2"), ()),
    *(
        Pair(1, 2),
        Other(1, 2),
        Spec(1, 2),
        Spec(1),
        Spec((1, 0)),
        Pair("1, 2", ""),
        Pair(1, Kind.ONE),
    ),
]


def test_arguments_that_differ_have_entries_of_their_own():
    found = [code.text(value) for value in VALUES]
    found += [f"{value}, {other}" for value in found for other in found]
    assert len(set(found)) == len(found)
    assert len({name_of(value) for value in VALUES} | {name_of(1, maker=PYTHON_ADD)}) == 26


@pytest.mark.parametrize("value", [[1], {1: 2}, np.int64(1), np.float32(1), object(), len, {1}])
def test_arguments_whose_texts_may_lie_are_refused(value):
    with pytest.raises(TypeError, match="in the name of compiled code"):
        name_of(value)
    with pytest.raises(TypeError, match="in the name of compiled code"):
        name_of(Pair(1, value))


def test_a_maker_without_a_source_is_not_cached(store, caplog, monkeypatch):
    module = ModuleType("typed")
    module.make = make_add
    module.__spec__ = ModuleSpec("typed", None)
    monkeypatch.setitem(sys.modules, "typed", module)
    for _ in range(2):
        forget_code()
        assert CALL(code.code("typed:make", 1).address())(41) == 42
    assert names(store) == []
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "typed" in warning


def test_a_function_in_a_zip_file_is_compiled(store, tmp_path, monkeypatch):
    text = f"from {types.__package__} import types\nfrom {source.__name__} import of_function\n"
    text += "from types import SimpleNamespace\nsource = SimpleNamespace(of_function=of_function)\n"
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("zipped.py", text + inspect.getsource(make_add))
    monkeypatch.syspath_prepend(tmp_path / "zipped.zip")
    assert CALL(code.code("zipped:make_add", 1).address())(41) == 42
    monkeypatch.delitem(sys.modules, "zipped")
    assert names(store) == []


def test_code_without_a_cache_is_that_of_its_maker(store, monkeypatch):
    """Though other code has its symbol."""

    def fail(path):
        raise OSError("no such file")

    monkeypatch.setattr(sources, "file_hash", fail)
    forget_hashes()
    compiled = [CALL(code.code(ADD, number).address()) for number in range(3)]
    forget_hashes()
    assert [call(5) for call in compiled] == [5, 6, 7]
    assert names(store) == []


def test_a_folder_that_vanishes_is_made_again(store, add, caplog):
    for _ in range(2):
        assert add(1) == (42, True)
        shutil.rmtree(store.folder)
    assert add(2) == (43, True)
    assert len(names(store)) == 1
    assert caplog.records == []


def test_threads_that_compile_at_once_keep_code_in_one_folder(store, tmp_path, monkeypatch):
    def compile_one(number):
        return code.python_code(PYTHON_ADD, number)(1)

    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(compile_one, range(12))) == list(range(1, 13))
    assert len(names(store)) == 12
    assert list(tmp_path.iterdir()) == [store.folder]


def test_a_warm_process_imports_little(filled):
    """At most 90 modules: neither numba, nor modules of ours that import it."""
    folder, _ = filled
    report = """
import llvmlite.binding
loaded = {name for name in sys.modules if name.startswith("implicit_conv.kernels.cpu")}
emits = {"emit", "translate"} & {name.split(".")[3] for name in loaded if name.count(".") > 2}
print("numba" in sys.modules, sorted(emits), any(name.endswith(".source") for name in loaded))
print(sum(name.startswith("implicit_conv") for name in sys.modules))
"""
    program = COMPUTE.replace("from implicit_conv.testing import Case\n", "").partition(
        "for dtype"
    )[0]
    program += """
x, w = np.ones((1, 20, 5, 9), "f"), np.ones((9, 20, 3, 3), "f")
assert conv2d(x, w, padding=1)[0, 0, 2, 4] == 180
"""
    compute(folder, "", [], program)
    found = compute(folder, "", [], program + report)
    emits, modules = found.stdout.splitlines()
    assert emits == "False [] False"
    assert int(modules) <= 90


def test_every_maker_that_is_named_exists():
    """With the number of arguments that it is called with; what has none is a source."""
    found = 0
    for path in sources.KERNELS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("code")):
                continue
            maker, *arguments = node.args
            if not isinstance(maker, ast.Constant):
                continue
            module, function = maker.value.split(":")
            made = getattr(importlib.import_module(module, code.PACKAGE), function)
            if not callable(made):
                assert hasattr(made, "signature") and not arguments
            elif not any(isinstance(argument, ast.Starred) for argument in arguments):
                inspect.signature(made).bind(*arguments)
            found += 1
    assert found > 35
