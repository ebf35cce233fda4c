"""Kernels of GPUs are kept on disk by the rules of the CPU's: found without a compiler, compiled
again where anything that they depend on differs, and never a reason for a call to fail.
"""

import logging
import sys
from types import SimpleNamespace

import pytest

from implicit_conv.gpu.cuda import cubin as cubins
from implicit_conv.kernels import sources
from implicit_conv.process.disk import Store

CC = (9, 0, "a")


class Compiler:
    """A compiler whose images are numbered, and the store in which they are kept."""

    def __init__(self, folder):
        self.store, self.count = Store(folder), 0

    def compile_kernel(self, function, signature, cc, threads, resident):
        self.count += 1
        image = b"\n".join([function.encode(), b"%d" % self.count])
        return SimpleNamespace(cubin=image, entry="_entry")

    def get(self, title="kernel", cc=CC, threads=384):
        return cubins.cached(title, lambda: title, cc, threads)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    compiler = Compiler(tmp_path / "cache")
    monkeypatch.setattr(cubins, "store", lambda: compiler.store)
    monkeypatch.setitem(sys.modules, "implicit_conv.kernels.gpu.compile", compiler)
    blob = SimpleNamespace(signature=lambda: None)
    monkeypatch.setitem(sys.modules, "implicit_conv.kernels.gpu.blob", blob)
    return compiler


def test_a_kernel_is_compiled_once(compiler, monkeypatch):
    assert compiler.get() == compiler.get() == (b"kernel\n1", "_entry")
    monkeypatch.setitem(sys.modules, "implicit_conv.kernels.gpu.compile", None)
    assert compiler.get() == (b"kernel\n1", "_entry")


def test_each_kernel_has_an_entry_of_its_own(compiler, monkeypatch):
    found = [compiler.get(), compiler.get("other"), compiler.get(cc=(10, 0, "a"))]
    found.append(compiler.get(threads=128))
    monkeypatch.setenv("NUMBA_OPT", "1")
    found.append(compiler.get())
    monkeypatch.setattr(cubins, "compiler_versions", lambda: ("numba-cuda 99",))
    found.append(compiler.get())
    monkeypatch.setattr(sources, "kernels_hash", lambda: "edited")
    found.append(compiler.get())
    assert len({image for image, _ in found}) == compiler.count == len(found) == 7


def test_what_is_provided_is_for_one_title_target_and_source(compiler, monkeypatch):
    given = b"image", "entry"
    found = {("kernel", "sm_90a", sources.kernels_hash()): given}
    monkeypatch.setattr(cubins, "PROVIDED", found)
    assert compiler.get() == compiler.get(threads=128) == given
    assert given not in (compiler.get("other"), compiler.get(cc=(10, 0, "a")))
    assert compiler.count == 2 and len([*compiler.store.folder.iterdir()]) == 2
    monkeypatch.setattr(sources, "kernels_hash", lambda: "edited")
    assert compiler.get() == (b"kernel\n3", "_entry")


def test_a_damaged_entry_is_compiled_again(compiler):
    compiler.get()
    (path,) = compiler.store.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"9")
    assert compiler.get() == compiler.get() == (b"kernel\n2", "_entry")


def test_a_folder_that_cannot_be_made_breaks_nothing(compiler, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    compiler.store = Store(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING, logger="implicit_conv"):
        assert compiler.get() == (b"kernel\n1", "_entry")
        assert compiler.get() == (b"kernel\n2", "_entry")
    assert len(caplog.records) == 1


def test_sources_that_cannot_be_read_are_not_cached(compiler, monkeypatch):
    def unreadable():
        raise OSError("no")

    monkeypatch.setattr(sources, "kernels_hash", unreadable)
    assert compiler.get() != compiler.get()


def test_versions_are_those_of_all_compilers():
    versions = cubins.compiler_versions()
    assert [version.split()[0] for version in versions] == list(cubins.COMPILERS)
    assert versions[0].split()[1] != "unknown"
