"""What disks and accidents do to the files of a cache: nothing raises, and no content that was not
saved is loaded.
"""

import errno
import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from damage import damage
from entries import NAME, OTHER, PAYLOAD, files
from sampling import count, sampled

from implicit_conv.process import disk
from implicit_conv.process.disk import Store
from implicit_conv.process.disk_folder import KERNEL

resource = pytest.importorskip("resource")


@contextmanager
def limited_files(size):
    """Files of this process can grow to `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def limited_memory():
    """Reading a file of 4 GiB fails, and waiting for ever ends."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, _too_late)
    resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30), limits[1]))
    signal.setitimer(signal.ITIMER_REAL, 60, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, limits)


def _too_late(*_):
    raise AssertionError("a load waits for ever")  # an OSError would be a miss


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 200 KiB; a function remounts it with other options."""

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
        with suppress(OSError):
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        return False

    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount("size=200k,mode=700"):
        pytest.skip("this user cannot mount a small disk")
    yield folder, mount
    subprocess.run(["umount", folder], check=True)


# Content


def test_an_entry_is_loaded_by_its_name_alone(store, warnings):
    assert store.load(OTHER) is None
    store.save(OTHER, b"other")
    assert store.load(NAME) == PAYLOAD
    assert store.load(OTHER) == b"other"
    store.save(NAME, b"new")
    assert store.load(NAME) == b"new"
    assert sorted(file.name for file in store.files(KERNEL)) == files(store.folder) == [NAME, OTHER]
    assert warnings() == []


@sampled
@pytest.mark.parametrize("first", range(0, count(39, 9750), 39))
def test_damaged_entries_are_misses_and_replaced(tmp_path, warnings, limited_memory, first):
    """39 at a time, of each kind three."""
    for number in range(first, first + 39):
        store = Store(tmp_path / "cache")
        store.save(NAME, PAYLOAD)
        store.save(OTHER, b"other")
        path = store.folder / NAME
        damage(path, store.folder / OTHER, number)
        for _ in range(2):
            assert store.load(NAME) is None
        assert [*store.damaged()] == [NAME]
        (warning,) = warnings()
        assert str(path) in warning
        assert store.damaged()[NAME] in warning
        store.save(NAME, PAYLOAD)
        assert store.load(NAME) == PAYLOAD
        assert warnings() == []
        assert files(store.folder) == [NAME, OTHER]


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="such files are Linux's")
def test_no_more_is_read_than_the_size_of_a_file(store, warnings, limited_memory):
    """A file of the system: regular, of no size, and without an end."""
    (store.folder / NAME).unlink()
    (store.folder / NAME).symlink_to("/proc/self/pagemap")
    assert store.load(NAME) is None
    (warning,) = warnings()
    assert "digest" in warning


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.EACCES, errno.ELOOP])
def test_an_entry_that_cannot_be_read_is_a_miss(store, warnings, monkeypatch, error):
    def fail(*_, **__):
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "open", fail, raising=False)
        assert store.load(NAME) is None
        assert store.load(NAME) is None
    (warning,) = warnings()
    assert os.strerror(error) in warning
    assert store.load(NAME) == PAYLOAD


def test_a_folder_with_files_in_place_of_an_entry_stays(store, warnings):
    """The files may be somebody's; other entries are saved as ever."""
    (store.folder / NAME).unlink()
    (store.folder / NAME / "file").mkdir(parents=True)
    assert store.load(NAME) is None
    store.save(NAME, PAYLOAD)
    (warning,) = warnings()
    assert f"delete {store.folder}" in warning
    store.save(OTHER, PAYLOAD)
    assert store.load(OTHER) == PAYLOAD
    assert files(store.folder) == [NAME, OTHER]
    assert files(store.folder / NAME) == ["file"]


def test_a_link_to_an_entry_is_followed_and_one_to_nothing_replaced(store, warnings):
    moved = store.folder.parent / "moved"
    (store.folder / NAME).rename(moved)
    (store.folder / NAME).symlink_to(moved)
    assert store.load(NAME) == PAYLOAD
    moved.unlink()
    assert store.load(NAME) is None
    store.save(NAME, PAYLOAD)
    assert store.load(NAME) == PAYLOAD
    assert not (store.folder / NAME).is_symlink()
    assert not moved.exists()
    assert warnings() == []


# Other processes


def test_an_entry_that_another_process_saves_first_is_replaced(store, warnings):
    late = Store(store.folder)
    assert late.load(OTHER) is None
    store.save(OTHER, PAYLOAD)
    late.save(OTHER, PAYLOAD)
    assert store.load(OTHER) == late.load(OTHER) == PAYLOAD
    assert warnings() == []


@pytest.mark.parametrize("removed", [NAME, ""])
def test_an_entry_or_folder_that_vanishes_before_it_is_opened(
    store, warnings, monkeypatch, removed
):
    def stat(path):
        found = before(path)
        (store.folder / NAME).unlink(missing_ok=True)
        if not removed:
            store.folder.rmdir()
        return found

    before = os.stat
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        assert store.load(NAME) is None
    store.save(NAME, PAYLOAD)  # a folder that vanished is made again
    assert store.load(NAME) == PAYLOAD
    assert warnings() == []


def test_folders_that_another_process_makes_first(tmp_path, warnings, monkeypatch):
    store = Store(tmp_path / "a" / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda _: False)
        store.save(NAME, PAYLOAD)
    assert store.load(NAME) == PAYLOAD
    assert warnings() == []


def test_no_temporary_file_is_left_by_an_interrupt(store, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.save(OTHER, PAYLOAD)
    assert files(store.folder) == [NAME]


# Disks that cannot be written


@pytest.mark.parametrize(
    "error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO]
)
@pytest.mark.parametrize("operation", ["open", "replace"])
def test_a_save_that_fails_is_told_once_and_not_repeated(
    store, warnings, monkeypatch, operation, error
):
    attempts = []

    def fail(*arguments):
        attempts.append(arguments)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, operation, fail)
    store.save(OTHER, PAYLOAD)
    store.save(OTHER, PAYLOAD)
    monkeypatch.undo()
    assert len(attempts) == 1
    (warning,) = warnings()
    assert str(store.folder) in warning
    assert os.strerror(error) in warning
    assert files(store.folder) == [NAME]
    assert store.load(NAME) == PAYLOAD


def test_files_may_not_grow(store, warnings):
    with limited_files(1000):
        store.save(OTHER, PAYLOAD)
    (warning,) = warnings()
    assert os.strerror(errno.EFBIG) in warning
    assert files(store.folder) == [NAME]


def test_a_full_disk(small_disk, warnings):
    folder, _ = small_disk
    store = Store(folder / "cache")
    store.save(NAME, PAYLOAD)
    store.save(OTHER, bytes(300 << 10))
    (warning,) = warnings()
    assert os.strerror(errno.ENOSPC) in warning
    assert files(store.folder) == [NAME]
    assert store.load(NAME) == PAYLOAD


@pytest.mark.parametrize("name", ["cache", "new"])
def test_a_disk_that_is_read_only(small_disk, warnings, name):
    folder, mount = small_disk
    Store(folder / "cache").save(NAME, PAYLOAD)
    assert mount("remount,ro")
    store = Store(folder / name)
    assert store.load(NAME) == (PAYLOAD if name == "cache" else None)
    store.save(OTHER, PAYLOAD)
    (warning,) = warnings()
    assert os.strerror(errno.EROFS) in warning
    assert store.trouble()
