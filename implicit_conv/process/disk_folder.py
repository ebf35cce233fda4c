"""The folder of the cache: its files, how many bytes they may take, and who else could change it.

Several processes save, load and remove at the same time without a lock. A file that one of them
removes costs another one a compilation, and nothing else. Only files with names of the cache's own
form are counted or removed.

Entries of the cache become code that runs. So every folder and link on the way is looked at, since
whoever can write one of them can put another folder at its end. sshd does the same with a user's
keys (StrictModes in sshd_config(5)).
"""

import errno
import functools
import os
import re
import shlex
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

VARIABLE = "IMPLICIT_CONV_CACHE_BYTES"
DEFAULT_LIMIT = 128 << 20  # bytes: kernels for some 5,000 kinds of calls on a CPU, of 23 KiB each
ENTRY_BYTES = 16 << 20  # of the largest entry; those of CPUs have 1 to 20 KiB, of GPUs below 1 MiB
KERNEL = ".kernel"
CHOICE = ".choice"  # of `Plan.tune`: small, and slow to make, so none is removed to make room
TIMES = ".times"  # of a kind of call of ours, and of a neighbour's: they go as kernels do
TEMPORARY = ".tmp"
OWN = re.compile(r"[A-Za-z0-9_.-]*[0-9a-f]{32}(\.kernel|\.choice|\.times)(\.[0-9a-f]{16}\.tmp)?")
STALE_SECONDS = 3600  # after which nobody still writes a temporary file
# A process looks at the folder before it has saved more than a share of the limit since it looked
# last, and leaves three quarters: 16 processes that save at once stay within the limit, unless a
# kernel is larger than a share.
SHARE = 64


class File(NamedTuple):
    """A file of the cache: its name, its size, and when it was last used, in seconds since 1970."""

    name: str
    bytes: int
    used: float

    @property
    def kind(self) -> str:
        """KERNEL, CHOICE, TIMES or TEMPORARY."""
        return os.path.splitext(self.name)[1]


def largest_folder() -> int:
    """The bytes that kernels may take, as IMPLICIT_CONV_CACHE_BYTES says.

    Raises
    ------
    ValueError
        It is not an integer.
    """
    text = os.environ.get(VARIABLE) or str(DEFAULT_LIMIT)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(
            f"{VARIABLE}={text!r} must be an integer, such as {DEFAULT_LIMIT} (the default);"
            " 0 means that no compiled kernel is saved"
        )
    return int(text)


def files_in(folder: Path, *kinds: str) -> list[File]:
    """The files of these kinds; none if there is no folder."""
    found: list[File] = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(kinds) and OWN.fullmatch(entry.name):
                with suppress(FileNotFoundError):  # another process removed it a moment ago
                    status = entry.stat(follow_symlinks=False)
                    found.append(File(entry.name, status.st_size, status.st_mtime))
    return found


def remove(folder: Path, files: Iterable[File]) -> list[File]:
    """Remove files; returns those that are gone, whoever removed them."""
    gone = []
    for file in files:
        with suppress(OSError):  # the disk is read-only, or it is a folder that holds files
            _unlink(folder / file.name)
            gone.append(file)
    return gone


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):  # systems differ in what they say of a folder
        path.rmdir()


def prune(folder: Path, limit: int) -> None:
    """Leave at most three quarters of `limit` bytes: kernels and times unused for the longest time
    go.

    Entries that are too large to be loaded go first; so do temporary files of processes that ended
    while they saved.
    """
    files = files_in(folder, KERNEL, TIMES, TEMPORARY)
    stale = time.time() - STALE_SECONDS
    abandoned = [file for file in files if file.kind == TEMPORARY and file.used < stale]
    excess = sum(file.bytes for file in files) - limit * 3 // 4
    excess -= sum(file.bytes for file in remove(folder, abandoned))
    kept = [file for file in files if file.kind != TEMPORARY]
    for file in sorted(kept, key=lambda file: (file.bytes <= ENTRY_BYTES, file.used)):
        if excess <= 0:
            break
        excess -= sum(file.bytes for file in remove(folder, [file]))


MOST_LINKS = 40  # on a way, as on Linux


def risk(status: os.stat_result) -> str:
    """Who else could have written a file or folder with this status; empty if nobody could."""
    if os.name != "posix":
        return ""  # other systems keep lists of rights, which a status does not show
    if status.st_uid not in (0, os.geteuid()):  # root can write everything anyway
        return f"belongs to user {status.st_uid}, who could put code there"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def risk_of_way(path: Path) -> str:
    """The first folder or link on the way to `path`, which is absolute, that another user could
    exchange, and how to mend that; empty if there is none.

    In a folder with the sticky bit, such as /tmp, only the owner can exchange an entry. A folder
    that is writable for the private group of its user alone is as good as one that is not. Whoever
    can exchange a folder or link on the way to this package can exchange the package, too, and
    needs no cache for that: such places are trusted. One is /, which belongs to nobody in a user
    namespace without root.

    Raises
    ------
    OSError
        A part of the way is missing, is no folder, or cannot be looked at.
    """
    if os.name == "posix":
        for place, status in _way(path):
            if place in _places_of_this_package():
                continue
            is_link, foreign = stat.S_ISLNK(status.st_mode), status.st_uid not in (0, os.geteuid())
            if foreign or not (is_link or _keeps_entries(status)):
                mend = command_that_mends(place, status)
                return f"{place}, on the way to {path}, {risk(status)}; {mend}"
    return ""


def command_that_mends(path: Path, status: os.stat_result) -> str:
    """The command that makes a folder private, if it is meant to be: one like /tmp is not."""
    shared = status.st_mode & stat.S_ISVTX
    if shared or status.st_uid != os.geteuid():
        return ""
    return f"run `chmod go-w {shlex.quote(str(path))}`, or "


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The folders and links that lead to `path`, each with its status, from the root on; the folder
    at its end is not among them.
    """
    here, links = Path(path.anchor), 0
    left, folder = [*reversed(path.parts[1:])], os.stat(here)
    while left:
        yield here, folder
        name = left.pop()
        entry = here.parent if name == ".." else here / name
        status = os.lstat(entry)
        if not stat.S_ISLNK(status.st_mode):
            here, folder = entry, status
            continue
        yield entry, status
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(entry))
        if target.anchor:
            here = Path(target.anchor)
            folder = os.stat(here)
        left += reversed(target.parts[bool(target.anchor) :])


@functools.cache
def _places_of_this_package() -> frozenset[Path]:
    with suppress(OSError):  # it lies in an archive
        return frozenset(place for place, _ in _way(Path(__file__).absolute()))
    return frozenset()


def _keeps_entries(status: os.stat_result) -> bool:
    """Whether nobody but its owner can exchange an entry of a folder with this status."""
    if status.st_mode & stat.S_ISVTX:
        return True
    by_group = status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid)
    return not (by_group or status.st_mode & stat.S_IWOTH)


def _is_private(group: int) -> bool:
    """Whether a group is the private one of this user, which many systems make for each user: it
    has the user's name, and nobody else is in it, be it as a member or as a user whose own group it
    is. That of root has other users on some systems.
    """
    try:
        import grp
        import pwd

        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except (KeyError, ImportError):  # a process that changed its user may not read Python's folder
        return False
    if user.pw_uid == 0 or user.pw_gid != group or user.pw_name != entry.gr_name:
        return False
    users = {*entry.gr_mem, *(each.pw_name for each in pwd.getpwall() if each.pw_gid == group)}
    return users <= {user.pw_name}
