"""Which folder the cache uses, and who could write there: none that another user can change."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from entries import NAME, OTHER, PAYLOAD, files

from implicit_conv.process import disk, disk_folder
from implicit_conv.process.disk import Store, user_folder

pwd, grp = pytest.importorskip("pwd"), pytest.importorskip("grp")

ROOT = os.geteuid() == 0
VARIABLE = "IMPLICIT_CONV_CACHE_DIR"


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o7777


def give_away(path, monkeypatch):
    """Make another user the owner of a file or folder, as far as the store can see."""
    if ROOT:
        os.chown(path, 1234, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 1234)


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


@pytest.mark.skipif(sys.platform == "win32", reason="it keeps the folder a process is in")
def test_a_relative_folder_needs_a_working_directory(tmp_path, monkeypatch, warnings):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv(VARIABLE, "mine")
    gone.rmdir()
    store = Store(user_folder())
    assert store.load(NAME) is None
    store.save(NAME, PAYLOAD)
    (warning,) = warnings()
    assert f"mine is not an absolute path; set {VARIABLE} to one" in warning


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


def refused(store, warnings):
    """The one warning of a store whose folder is not used."""
    for _ in range(2):
        assert store.load(NAME) is None
        store.save(OTHER, PAYLOAD)
    (warning,) = warnings()
    assert VARIABLE in warning
    return warning


@pytest.mark.parametrize("writable", [0o777, 0o770, 0o703])
@pytest.mark.parametrize("up", [1, 2])
def test_a_folder_that_others_could_exchange_is_refused_until_it_is_mended(
    tmp_path, warnings, writable, up
):
    folder = tmp_path / "a" / "b" / "cache"
    Store(folder).save(NAME, PAYLOAD)
    parent = folder.parents[up - 1]
    parent.chmod(writable)
    warning = refused(Store(folder), warnings)
    assert f"{parent}, on the way to {folder}, can be written by others (mode 0{writable:o})" in (
        warning
    )
    (command,) = re.findall("`(.*)`", warning)
    subprocess.run(command, shell=True, check=True)
    assert Store(folder).load(NAME) == PAYLOAD


def test_nothing_is_made_where_others_can_exchange_it(tmp_path, warnings):
    tmp_path.chmod(0o777)
    refused(Store(tmp_path / "cache"), warnings)
    assert files(tmp_path) == []


def test_entries_of_a_folder_with_the_sticky_bit_are_their_owners(tmp_path, warnings):
    """As those of /tmp are."""
    tmp_path.chmod(0o1777)
    store = Store(tmp_path / "cache")
    store.save(NAME, PAYLOAD)
    assert Store(tmp_path / "cache").load(NAME) == PAYLOAD
    assert warnings() == []


@pytest.mark.parametrize("place", ["of the link", "between links", "of the folder"])
def test_all_folders_on_the_way_of_links_are_looked_at(tmp_path, warnings, place):
    """The link that is planted is the victim's own way into a folder of the victim's own files."""
    names = "of the link", "between links", "of the folder"
    folders = dict(zip(names, (tmp_path / name for name in "abc"), strict=True))
    for folder in folders.values():
        folder.mkdir(mode=0o700)
    first, second, last = (folder / "x" for folder in folders.values())
    Store(last).save(NAME, PAYLOAD)
    second.symlink_to(last)
    first.symlink_to(os.path.join("..", "b", "x"))
    assert Store(first).load(NAME) == PAYLOAD
    folders[place].chmod(0o777)
    assert f"{folders[place]}, on the way to {first}" in refused(Store(first), warnings)


def test_each_place_on_the_way_is_seen_as_it_is(tmp_path):
    """Through a relative link, an absolute one and `..`."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to("b")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "link")
    seen = list(disk_folder._way(tmp_path / "link" / ".." / "b" / "c"))
    assert all(os.path.samestat(os.lstat(place), status) for place, status in seen)
    assert {tmp_path / "link", tmp_path / "a" / "link", tmp_path / "a" / "b"} <= {*dict(seen)}


def test_a_parent_of_another_user_is_refused(store, warnings, monkeypatch):
    give_away(store.folder.parent, monkeypatch)
    assert "belongs to user" in refused(store, warnings)


@pytest.mark.skipif(not ROOT, reason="only root can give a link away")
def test_a_link_of_another_user_is_refused(store, warnings):
    link = store.folder.parent / "link"
    link.symlink_to(store.folder)
    os.chown(link, 1234, -1, follow_symlinks=False)
    assert f"{link}, on the way to {link}, belongs to user 1234" in refused(Store(link), warnings)


@pytest.mark.parametrize(
    ("name", "members", "primary", "others", "trusted"),
    [
        ("me", [], True, [], True),
        ("me", ["me"], True, [], True),
        ("me", ["me", "you"], True, [], False),
        ("me", [], True, ["you"], False),  # whose own group it is
        ("us", [], True, [], False),
        ("me", [], False, [], False),
    ],
)
def test_a_parent_may_be_writable_for_the_users_private_group(
    tmp_path, warnings, monkeypatch, name, members, primary, others, trusted
):
    folder = tmp_path / "cache"
    Store(folder).save(NAME, PAYLOAD)
    tmp_path.chmod(0o770)
    group = tmp_path.stat().st_gid
    user = pwd.struct_passwd(("me", "", 1234, group if primary else group + 1, "", "", ""))
    users = [user, *(pwd.struct_passwd((each, "", 1235, group, "", "", "")) for each in others)]
    monkeypatch.setattr(pwd, "getpwuid", lambda number: user)
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    monkeypatch.setattr(
        grp, "getgrgid", lambda number: grp.struct_group((name, "", number, members))
    )
    if trusted:
        assert Store(folder).load(NAME) == PAYLOAD
        assert warnings() == []
    else:
        assert "mode 0770" in refused(Store(folder), warnings)


@pytest.mark.parametrize("module", ["grp", "pwd"])
def test_a_process_that_cannot_look_up_groups_trusts_none(tmp_path, warnings, monkeypatch, module):
    """It may have changed its user, and Python's folder be of the user it was."""
    Store(tmp_path / "cache").save(NAME, PAYLOAD)
    tmp_path.chmod(0o770)
    monkeypatch.setitem(sys.modules, module, None)
    assert "mode 0770" in refused(Store(tmp_path / "cache"), warnings)


@pytest.mark.skipif(not ROOT, reason="only root can give a folder away")
@pytest.mark.parametrize("beside", [False, True])
def test_the_way_to_this_package_is_trusted(tmp_path, warnings, monkeypatch, beside):
    """Whoever can exchange a folder there can exchange the package; no place beside it is."""
    package, folder = tmp_path / "a" / "package" / "disk_folder.py", tmp_path / "a" / "cache"
    package.parent.mkdir(parents=True)
    package.touch()
    if beside:
        folder = folder.parent / "beside" / "cache"
    Store(folder).save(NAME, PAYLOAD)
    os.chown(tmp_path / "a", 1234, -1)
    monkeypatch.setattr(disk_folder, "__file__", str(package))
    disk_folder._places_of_this_package.cache_clear()
    try:
        assert Store(folder).load(NAME) == PAYLOAD
        folder.parent.chmod(0o777)
        if beside:
            assert f"{folder.parent}, on the way to" in refused(Store(folder), warnings)
        else:
            assert Store(folder).load(NAME) == PAYLOAD
    finally:
        disk_folder._places_of_this_package.cache_clear()


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
