"""Who else could change what a path leads to: entries of the cache become code that runs.

Every folder and link on the way is looked at, since whoever can write one of them can put another
folder at its end. sshd does the same with a user's keys (StrictModes in sshd_config(5)).
"""

import errno
import functools
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
