"""Entries of a cache on disk: named bytes, one file an entry, in a folder of the user's own.

A cache never decides whether a call works: `Store.load` and `Store.save` raise nothing that a disk
can do. Whatever fails is a miss, and each kind of failure is logged once per process.

Entries become code that runs. Therefore no folder and no file is used that another user can write
or exchange (`disk_folder`), and a digest of name and payload is compared before a payload is
returned. The digest also detects files that a full disk or a power failure cut short, so no file
needs an fsync.

An entry's modification time says when it was last used, to the day: access times do not exist on
every disk. `disk_folder` removes the entries that nobody used for the longest time.
"""

import functools
import hashlib
import logging
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from implicit_conv.process import disk_folder
from implicit_conv.process.disk_folder import CHOICE, ENTRY_BYTES, KERNEL, TEMPORARY, TIMES, File

VARIABLE = "IMPLICIT_CONV_CACHE_DIR"
FORMAT = b"implicit_conv 1\n"
HEADER_BYTES = len(FORMAT) + hashlib.sha256().digest_size
WAY_OUT = f"set {VARIABLE} to a folder of your own"
DAY = 86400  # seconds
CACHES = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}


def user_folder() -> Path:
    """The folder that IMPLICIT_CONV_CACHE_DIR names, or one in the user's folder of caches.

    It is not absolute where the home folder is unknown, XDG_CACHE_HOME is not absolute, or the
    working directory was removed.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen and not chosen.startswith("~"):
        with suppress(FileNotFoundError):  # the working directory was removed
            return Path(chosen).absolute()  # a later change of directory changes nothing
        return Path(chosen)
    caches = CACHES.get(sys.platform) or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(chosen or os.path.join(caches, "implicit_conv")))


@functools.cache
def store() -> "Store":
    """The store of all compiled kernels, of CPUs and GPUs."""
    return Store(user_folder(), disk_folder.largest_folder())


class FolderError(OSError):
    """Why a folder is not used, and what its user can do."""


class EntryError(Exception):
    """Why an entry is not used."""


class Store:
    """The entries in one folder, which is made when the first one is saved.

    Parameters
    ----------
    folder : Path
    limit : int
        The bytes that all kernels may take; a single one at most a quarter of them.
    """

    def __init__(self, folder: Path, limit: int = disk_folder.DEFAULT_LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self._saves = limit > 0
        self._room = 0  # bytes to save before the next look at the folder
        self._warned: set[str] = set()
        self._had: dict[str, bool] = {}  # kinds of entries, and whether there is one

    def load(self, name: str) -> memoryview | None:
        """The payload that was saved as `name`, or None if there is none that can be trusted."""
        try:
            self._check_folder()
            payload, used = self._read(name)
            if abs(time.time() - used) > DAY:  # a clock that was wrong may have set it
                with suppress(OSError):  # a disk that is read-only, or a file of root
                    os.utime(self.folder / name)
            return payload
        except FileNotFoundError:  # no folder, no file, or one that was removed a moment ago
            pass
        except FolderError as error:
            self._warn_of_folder(error)
        except (OSError, EntryError) as error:
            self.warn_of_entry(name, error)
        return None

    def save(self, name: str, payload: bytes) -> None:
        """Save `payload` as `name`, in place of what has that name; do nothing after a failure."""
        self._had[name[name.rindex(".") :]] = True
        if not self._saves:
            return
        size, most = HEADER_BYTES + len(payload), min(ENTRY_BYTES, self.limit // 4)
        if size > most:
            text = f"a compiled kernel of {size} bytes is not cached: at most {most} are allowed"
            self.warn("size", f"{text}, a quarter of {disk_folder.VARIABLE}={self.limit}")
            return
        try:
            self._make_folder()
            self._make_room(size)
            self._write(name, payload)
        except FolderError as error:
            self._warn_of_folder(error)
        except IsADirectoryError:
            self.warn_of_entry(name, EntryError("a folder that holds files has its name"))
        except OSError as error:
            self._saves = False
            text = f"compiled kernels cannot be saved in {self.folder}: {error.strerror or error}"
            self.warn("save", f"{text}; free space there and let it be written, or {WAY_OUT}")

    def has(self, kind: str) -> bool:
        """Whether there was an entry of this kind when this was asked first, or since."""
        if kind not in self._had:
            self._had[kind] = bool(self.files(kind))
        return self._had[kind]

    def files(self, *kinds: str) -> list[File]:
        """The files of these kinds, such as KERNEL; none if the folder cannot be read."""
        with suppress(OSError):
            return disk_folder.files_in(self.folder, *kinds)
        return []

    def remove(self, *kinds: str) -> list[File]:
        """Remove all files of these kinds; returns those that are gone.

        Raises
        ------
        OSError
            The folder is not used.
        """
        with suppress(FileNotFoundError):
            self._check_folder()
        return disk_folder.remove(self.folder, disk_folder.files_in(self.folder, *kinds))

    def damaged(self) -> dict[str, str]:
        """The entries that cannot be loaded, each with the reason.

        Raises
        ------
        OSError
            The folder is not used.
        """
        found = {}
        with suppress(FileNotFoundError):
            self._check_folder()
        for file in disk_folder.files_in(self.folder, KERNEL, CHOICE, TIMES):
            try:
                self._read(file.name)
            except FileNotFoundError:  # another process removed it a moment ago
                pass
            except (OSError, EntryError) as error:
                found[file.name] = str(error)
        return found

    def trouble(self) -> str:
        """Why entries cannot be saved, or an empty text."""
        if not self.limit:
            return f"{disk_folder.VARIABLE}=0 lets nothing be saved"
        try:
            self._make_folder()
        except OSError as error:
            return str(error)
        return "" if os.access(self.folder, os.W_OK) else f"{self.folder} cannot be written"

    def warn_of_entry(self, name: str, error: Exception) -> None:
        """Log why the entry `name` is not used; the caller compiles again and saves the code."""
        text = f"the cached kernel {self.folder / name} is compiled again: {error}"
        self.warn("entry", f"{text}; if this recurs, delete {self.folder}, or {WAY_OUT}")

    def warn(self, kind: str, text: str) -> None:
        """Log a warning, but only the first of its kind in this process."""
        level = logging.DEBUG if kind in self._warned else logging.WARNING
        self._warned.add(kind)
        logging.getLogger("implicit_conv").log(level, "%s", text)

    def _warn_of_folder(self, error: FolderError) -> None:
        text = "compiled kernels are not cached, so every process compiles them again"
        self.warn("folder", f"{text}: {error}")

    def _check_folder(self) -> None:
        if not self.folder.is_absolute():
            raise FolderError(f"{self.folder} is not an absolute path; set {VARIABLE} to one")
        try:
            unsafe = disk_folder.risk_of_way(self.folder)
            if unsafe:
                raise FolderError(f"{unsafe}{WAY_OUT}")
            status = os.stat(self.folder)
        except (FileNotFoundError, FolderError):
            raise
        except OSError as error:
            raise FolderError(
                f"{self.folder} cannot be read: {error.strerror}; {WAY_OUT}"
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise FolderError(f"{self.folder} is not a folder; {WAY_OUT}")
        risk = disk_folder.risk(status)
        if risk:
            mend = disk_folder.command_that_mends(self.folder, status)
            raise FolderError(f"{self.folder} {risk}; {mend}{WAY_OUT}")

    def _make_folder(self) -> None:
        try:
            self._check_folder()
        except FileNotFoundError:
            missing = [level for level in (self.folder, *self.folder.parents) if not level.exists()]
            for level in reversed(missing):
                with suppress(FileExistsError):  # another process made it
                    level.mkdir(0o700)
            self._check_folder()

    def _make_room(self, size: int) -> None:
        """Remove old entries, unless this process knows that `size` more bytes are in the limit."""
        self._room -= size
        if self._room < 0:
            with suppress(OSError):  # what cannot be listed is not removed
                disk_folder.prune(self.folder, self.limit)
            self._room = max(self.limit // disk_folder.SHARE - size, 0)

    def _read(self, name: str) -> tuple[memoryview, float]:
        """The payload of an entry, and when it was last used."""
        with open(self.folder / name, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            risk = disk_folder.risk(status)
            if not stat.S_ISREG(status.st_mode):
                raise EntryError("it is not a regular file")
            if status.st_size > ENTRY_BYTES:
                raise EntryError(f"it has {status.st_size} bytes, of at most {ENTRY_BYTES}")
            if risk:
                raise EntryError(f"it {risk}")
            content = file.read(status.st_size)
        payload = memoryview(content)[HEADER_BYTES:]
        if content[:HEADER_BYTES] != _header(name, payload):
            raise EntryError("its digest does not match")
        return payload, status.st_mtime

    def _write(self, name: str, payload: bytes) -> None:
        path = self.folder / name
        temporary = self.folder / f"{name}.{os.urandom(8).hex()}{TEMPORARY}"
        try:
            with open(temporary, "xb", opener=_open_private) as file:
                file.write(_header(name, payload))
                file.write(payload)
            with suppress(OSError):  # there is none, or it is not an empty folder
                os.rmdir(path)
            os.replace(temporary, path)
        except FileNotFoundError:  # another process cleared the cache
            pass
        finally:
            with suppress(OSError):  # it has its name now, or was never made
                os.unlink(temporary)


def _header(name: str, payload: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(f"{name}\n".encode())
    digest.update(payload)
    return FORMAT + digest.digest()


def _open_at_once(path: str, flags: int) -> int:
    """Open a file for reading without waiting, should it be a FIFO or a terminal."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
