"""What names a cached kernel: hashes of the sources of all kernels, and the compilers."""

import functools
import hashlib
from pathlib import Path
from typing import Any

from implicit_conv.process import disk_folder

KERNELS = Path(__file__).parent
PROCESS = Path(disk_folder.__file__).parent


@functools.cache
def file_hash(path: Path) -> str:
    """The SHA-256 digest of a file.

    Raises
    ------
    OSError
        It cannot be read.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def kernels_hash() -> str:
    """A hash of all sources of kernels, and of the room that keeps them on disk.

    Raises
    ------
    OSError
        One of them cannot be read, so that it is unknown which code belongs to it.
    """
    return digest(
        [
            (folder.name, path.relative_to(folder).as_posix(), file_hash(path))
            for folder in (KERNELS, PROCESS)
            for path in sorted(folder.rglob("*.py"))
        ]
    )


def digest(value: Any) -> str:
    """A hash of a value's text."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


def kernel_name(title: str, key: Any) -> str:
    """The name of the entry for a kernel: `key` is all that its code depends on."""
    return f"{title}-{_version()}-{digest(key)[:32]}{disk_folder.KERNEL}"


def is_present(file: disk_folder.File) -> bool:
    """Whether a file of the cache is a kernel of the present sources."""
    return file.kind == disk_folder.KERNEL and f"-{_version()}-" in file.name


def _version() -> str:
    return kernels_hash()[:8]


TRANSLATOR, NJIT = COMPILERS = "translator", "njit"  # ours, and Numba's, which is the reference
