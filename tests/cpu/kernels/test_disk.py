"""What disks do to the files of a cache, and what other users could do: nothing raises, and no
content that was not saved is loaded.
"""

import errno
import logging
import os
import re
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from damage import damage
from sampling import count, sampled

from implicit_conv.kernels import disk
from implicit_conv.kernels.disk import Store, user_folder
from implicit_conv.kernels.disk_files import KERNEL

pwd, resource = (pytest.importorskip(name) for name in ("pwd", "resource"))

NAME, OTHER = (f"function-{digit * 32}.kernel" for digit in "01")
PAYLOAD = bytes(range(256)) * 10
ROOT = os.geteuid() == 0
VARIABLE = "IMPLICIT_CONV_CACHE_DIR"


@pytest.fixture
def store(tmp_path):
    """A store that holds one entry."""
    store = Store(tmp_path / "cache")
    store.save(NAME, PAYLOAD)
    assert store.load(NAME) == PAYLOAD
    return store


@pytest.fixture
def warnings(caplog):
    """A function that returns the warnings logged since it was called last."""

    def taken():
        found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        caplog.clear()
        return found

    return taken


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


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


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def mode(path):
    return path.stat().st_mode & 0o7777


def give_away(path, monkeypatch):
    """Make another user the owner of a file or folder, as far as the store can see."""
    if ROOT:
        os.chown(path, 1234, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 1234)


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


# The choice of the folder


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/me/.cache/implicit_conv"),
        ({"XDG_CACHE_HOME": ""}, "/me/.cache/implicit_conv"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/implicit_conv"),
        ({"XDG_CACHE_HOME": "/caches", VARIABLE: "/mine"}, "/mine"),
        ({VARIABLE: "~/mine"}, "/me/mine"),
    ],
)
def test_the_folder_is_the_users(monkeypatch, variables, expected):
    monkeypatch.setattr(disk.sys, "platform", "linux")
    for name in (VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert user_folder() == Path(expected)


@pytest.mark.parametrize("variables", [{}, {"XDG_CACHE_HOME": "caches"}, {VARIABLE: "~none/mine"}])
def test_no_folder_is_made_in_the_working_directory(tmp_path, monkeypatch, warnings, variables):
    """Nor one of the name "~", where there is no home folder."""

    def unknown(user):
        raise KeyError(user)

    for function in ("getpwuid", "getpwnam"):
        monkeypatch.setattr(pwd, function, unknown)
    for name in ("HOME", VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    store = Store(user_folder())
    for _ in range(2):
        assert store.load(NAME) is None
        store.save(NAME, PAYLOAD)
    (warning,) = warnings()
    assert f"set {VARIABLE}" in warning
    assert "absolute" in store.trouble()
    assert files(tmp_path) == []


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "mine")
    folder = user_folder()
    monkeypatch.chdir("/")
    assert folder == tmp_path / "mine"


@pytest.mark.parametrize("target", ["cache", "loop", "nowhere", "file"])
def test_a_link_is_followed(store, warnings, target):
    link = store.folder.parent / "loop"
    (store.folder.parent / "file").touch()
    link.symlink_to(store.folder.parent / target)
    linked = Store(link)
    assert linked.load(NAME) == (PAYLOAD if target == "cache" else None)
    linked.save(OTHER, PAYLOAD)
    assert linked.load(OTHER) == (PAYLOAD if target == "cache" else None)
    assert len(warnings()) == (target != "cache")


# Other users


@pytest.mark.parametrize("mask", [0, 0o22, 0o77])
def test_what_is_made_is_private(tmp_path, mask):
    store = Store(tmp_path / "a" / "b" / "cache")
    with umask(mask):
        store.save(NAME, PAYLOAD)
    made = [store.folder, *store.folder.parents[:2]]
    assert [mode(path) for path in made] == [0o700] * 3
    assert mode(store.folder / NAME) == 0o600
    assert store.load(NAME) == PAYLOAD


@pytest.mark.parametrize("writable", [0o770, 0o707, 0o720, 0o777])
def test_a_folder_that_others_can_write_is_refused_until_it_is_mended(tmp_path, warnings, writable):
    folder = tmp_path / "my cache"
    Store(folder).save(NAME, PAYLOAD)
    folder.chmod(writable)
    store = Store(folder)
    assert store.load(NAME) is None
    store.save(OTHER, PAYLOAD)
    assert store.load(NAME) is None
    (warning,) = warnings()
    assert f"mode 0{writable:o}" in warning
    assert VARIABLE in warning
    assert files(folder) == [NAME]
    (command,) = re.findall("`(.*)`", warning)
    subprocess.run(command, shell=True, check=True)
    assert Store(folder).load(NAME) == PAYLOAD


def test_a_folder_that_all_users_share_is_refused(tmp_path, warnings):
    """Nobody should take the advice to change the mode of /tmp."""
    tmp_path.chmod(0o1777)
    Store(tmp_path).save(NAME, PAYLOAD)
    (warning,) = warnings()
    assert "mode 1777" in warning
    assert VARIABLE in warning
    assert "chmod" not in warning
    assert files(tmp_path) == []


def test_the_folder_of_another_user_is_refused(store, warnings, monkeypatch):
    give_away(store.folder, monkeypatch)
    assert store.load(NAME) is None
    store.save(OTHER, PAYLOAD)
    (warning,) = warnings()
    assert "belongs to user" in warning
    assert VARIABLE in warning
    assert files(store.folder) == [NAME]


@pytest.mark.skipif(not ROOT, reason="only root can give a file away")
def test_the_file_of_another_user_is_replaced(store, warnings):
    os.chown(store.folder / NAME, 1234, -1)
    assert store.load(NAME) is None
    (warning,) = warnings()
    assert "belongs to user 1234" in warning
    store.save(NAME, PAYLOAD)
    assert store.load(NAME) == PAYLOAD


def test_a_file_that_others_can_write_is_replaced(store, warnings):
    (store.folder / NAME).chmod(0o666)
    assert store.load(NAME) is None
    (warning,) = warnings()
    assert "mode 0666" in warning
    store.save(NAME, PAYLOAD)
    assert store.load(NAME) == PAYLOAD


@pytest.mark.skipif(not ROOT, reason="only root has files of root")
def test_what_root_owns_is_trusted(store, warnings, monkeypatch):
    """Root could read and change the memory of any process anyway."""
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert store.load(NAME) == PAYLOAD
    assert warnings() == []
