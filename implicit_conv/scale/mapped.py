"""Arrays of memory-mapped files: which bytes of which file they are, and room for them on its disk.

A store to a page that the disk has no room for, and any access beyond the end of a file, ends the
process with SIGBUS, which nothing can catch. Both are looked for before anything is computed.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import sys
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array

# MADV_POPULATE_WRITE of Linux 5.14 makes pages writable, and fails where a store would end all.
POPULATE_WRITE = 23
# What posix_fallocate fails with where the file system cannot reserve; all else is a fault.
CANNOT = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)


class Mapped(NamedTuple):
    """The bytes of a memory-mapped file that an array is a view of.

    Attributes
    ----------
    mapping : mmap.mmap
    start, stop : int
        The bytes of the mapping, from the first of the array to the end of the last.
    root : numpy.memmap or None
        What maps the file, with its name; None for a mapping that numpy did not make.
    """

    mapping: mmap.mmap
    start: int
    stop: int
    root: Any

    @property
    def file(self) -> str | None:
        """The name of the file, if one leads to a file of the size of the mapped one."""
        name = None if self.root is None else self.root.filename
        if name is None:
            return None
        try:
            same = os.stat(name).st_size == self.mapping.size()
        except OSError:
            return None
        return str(name) if same else None

    @property
    def offset(self) -> int:
        """The byte of the file that the mapping begins with."""
        first: int = 0 if self.root is None else self.root.offset
        return first - first % mmap.ALLOCATIONGRANULARITY


def mapped(x: Any) -> Mapped | None:
    """The bytes of a file that `x` shares with others; None for other arrays and private copies."""
    root, base = None, x
    while isinstance(base, np.ndarray):
        root = base if isinstance(base, np.memmap) else root
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    if not isinstance(base, mmap.mmap) or (root is not None and root.mode == "c") or not x.size:
        return None
    origin = np.frombuffer(base, np.uint8).__array_interface__["data"][0]
    low = high = x.__array_interface__["data"][0] - origin
    for size, stride in zip(x.shape, x.strides, strict=True):
        low += min(0, (size - 1) * stride)
        high += max(0, (size - 1) * stride)
    return Mapped(base, low, high + x.itemsize, root)


def check_length(x: Any, name: str) -> None:
    """Look whether the file of `x` has all its bytes.

    Raises
    ------
    OSError
        It has fewer: it was truncated after it was mapped.
    """
    place = mapped(x)
    if place is None or place.root is None:
        return
    size, needed = place.mapping.size(), place.offset + place.stop
    if size < needed:
        raise OSError(
            errno.EIO,
            f"the file {place.root.filename} of {name} has {size} bytes, but {name} ends at byte "
            f"{needed}: it was truncated after it was mapped; map a whole file again",
        )


def reserve(out: Any) -> None:
    """Let the disk have room for all bytes of `out`, whose content stays as it is.

    Raises
    ------
    OSError
        The disk is full, a limit or a quota is reached, or the file is shorter than `out`.
    """
    place = mapped(out)
    if place is None or not out.flags.writeable:
        return
    check_length(out, "out")
    try:
        if not (_allocated(place) or _populated(place)):
            logging.getLogger("implicit_conv").warning(
                "no room can be reserved for the %d bytes of out here; a full disk would end the "
                "process with SIGBUS",
                place.stop - place.start,
            )
    except OSError as error:
        reason = "no space left on the device" if error.errno == errno.EFAULT else error.strerror
        raise OSError(
            error.errno, f"{reason}: out needs {place.stop - place.start} bytes of {place.file}"
        ) from error


def _allocated(place: Mapped) -> bool:
    """Reserve by name, if the file has one and the file system can."""
    if place.file is None or not hasattr(os, "posix_fallocate"):  # macOS and Windows have none
        return False
    try:
        file = os.open(place.file, os.O_RDWR)
    except OSError:  # it was mapped with other rights
        return False
    try:
        os.posix_fallocate(file, place.offset + place.start, place.stop - place.start)
    except OSError as error:
        if error.errno in CANNOT:
            return False
        raise
    finally:
        os.close(file)
    return True


def _populated(place: Mapped) -> bool:
    """Reserve by touching every page, where the system can do so without ending the process."""
    if sys.platform != "linux":
        return False
    start = place.start - place.start % mmap.PAGESIZE
    try:
        place.mapping.madvise(POPULATE_WRITE, start, place.stop - start)
    except OSError as error:
        if error.errno == errno.EINVAL:  # of an older kernel
            return False
        raise
    return True


def placed(x: Array) -> tuple[str, int, bool] | None:
    """The name of the file that `x` is a view of, the byte of its first element, and whether it is
    all of what numpy has mapped.
    """
    place = mapped(x)
    if place is None or place.root is None or place.root.filename is None:
        return None
    root = place.root
    first = x.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return str(root.filename), int(root.offset + first), x.size == root.size
