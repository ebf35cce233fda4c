"""What names a cached kernel: hashes of the sources of all kernels, and the compilers."""

import functools
import hashlib
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).parent


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
    """A hash of all kernel sources.

    Raises
    ------
    OSError
        One of them cannot be read, so that it is unknown which code belongs to it.
    """
    paths = sorted(KERNELS.rglob("*.py"))
    return digest([(path.relative_to(KERNELS).as_posix(), file_hash(path)) for path in paths])


def digest(value: Any) -> str:
    """A hash of a value's text."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


TRANSLATOR, NJIT = COMPILERS = "translator", "njit"  # ours, and Numba's, which is the reference
