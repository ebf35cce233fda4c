"""The files in the folder of the cache: their names, how many bytes they may take, and which go.

Several processes save, load and remove at the same time without a lock. A file that one of them
removes costs another one a compilation, and nothing else. Only files with names of the cache's own
form are counted or removed.
"""

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from implicit_conv.kernels import sources

VARIABLE = "IMPLICIT_CONV_CACHE_BYTES"
DEFAULT_LIMIT = 128 << 20  # bytes: kernels for some 5,000 kinds of calls on a CPU, of 23 KiB each
ENTRY_BYTES = 16 << 20  # of the largest entry; those of CPUs have 1 to 20 KiB, of GPUs below 1 MiB
KERNEL = ".kernel"
CHOICE = ".choice"  # of `Plan.tune`: small, and slow to make, so none is removed to make room
TEMPORARY = ".tmp"
OWN = re.compile(r"[A-Za-z0-9_.-]*[0-9a-f]{32}(\.kernel|\.choice)(\.[0-9a-f]{16}\.tmp)?")
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
        """KERNEL, CHOICE or TEMPORARY."""
        return os.path.splitext(self.name)[1]

    @property
    def is_present(self) -> bool:
        """Whether it is a kernel of the present sources."""
        return self.kind == KERNEL and f"-{_version()}-" in self.name


def kernel_name(title: str, key: Any) -> str:
    """The name of the entry for a kernel: `key` is all that its code depends on."""
    return f"{title}-{_version()}-{sources.digest(key)[:32]}{KERNEL}"


def _version() -> str:
    return sources.kernels_hash()[:8]


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
    """Leave at most three quarters of `limit` bytes: kernels unused for the longest time go.

    Entries that are too large to be loaded go first; so do temporary files of processes that ended
    while they saved.
    """
    files = files_in(folder, KERNEL, TEMPORARY)
    stale = time.time() - STALE_SECONDS
    abandoned = [file for file in files if file.kind == TEMPORARY and file.used < stale]
    excess = sum(file.bytes for file in files) - limit * 3 // 4
    excess -= sum(file.bytes for file in remove(folder, abandoned))
    kernels = [file for file in files if file.kind == KERNEL]
    for file in sorted(kernels, key=lambda file: (file.bytes <= ENTRY_BYTES, file.used)):
        if excess <= 0:
            break
        excess -= sum(file.bytes for file in remove(folder, [file]))
