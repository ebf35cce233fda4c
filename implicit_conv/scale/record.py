"""Which tiles of an output on disk are written: a small file beside it, from which a later call
goes on.

Its first line is the computation, in JSON; each line after it is the checksum of a tile, in their
order. A tile that the file has is in the output, or was lost with pages that a power failure kept
from the disk, or with an output that was made anew: then its checksum differs. A file that is
damaged itself counts up to the damage, with a warning.
"""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.errors import PlanError
from implicit_conv.scale.mapped import CANNOT, placed

NAME = ".tiles"  # of the file: y.npy.tiles beside y.npy, and .tiles in the folder of a zarr array
UNKNOWN = "-" * 8  # the checksum of a tile that another call has written, as the caller says
LINE = re.compile(rb"[0-9a-f]{8}|-{8}")  # of a tile
SUMS = 509  # of 64-bit words, of which a checksum is made


class Record(NamedTuple):
    """The file beside an output.

    Attributes
    ----------
    file : str
    computation : dict of str to str
        What the tiles are made of; those of another computation are not gone on from.
    """

    file: str
    computation: dict[str, str]

    def begin(self, tiles: Sequence[str]) -> bool:
        """Say that tiles with these checksums are written; whether the file could be made."""
        lines = json.dumps(self.computation), *tiles, ""
        return self._kept(lambda: _replace(self.file, "\n".join(lines)))

    def add(self, y: Array) -> bool:
        """Say that one more tile is written; whether the file could be written."""
        return self._kept(lambda: _append(self.file, checksum(y) + "\n"))

    def end(self) -> None:
        """Remove the file: all tiles are written."""
        self._kept(lambda: Path(self.file).unlink(missing_ok=True))

    def _kept(self, change: Any) -> bool:
        try:
            change()
        except OSError as error:
            logging.getLogger("implicit_conv").warning(
                "%s cannot be kept (%r): a later call does not know which tiles are written, but "
                "by start=",
                self.file,
                error,
            )
            return False
        return True

    def tiles(self) -> list[str]:
        """The checksums of the tiles that are written, up to the first line that is damaged; none
        if there is no file, or none that can be read.

        Raises
        ------
        PlanError
            The file is of another computation.
        """
        try:
            head, *lines = Path(self.file).read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            return self._damaged(f"it cannot be read ({error!r})", [])
        found = _computation(head)
        if found is None:
            return self._damaged("its first line is no JSON of a computation", [])
        own = self.computation
        other = [key for key in {**own, **found} if own.get(key) != found.get(key)]
        whole = list[str]()
        for line in lines[:-1]:  # a line without its end was cut off
            if not LINE.fullmatch(line):
                break
            whole.append(line.decode())
        if other:
            raise PlanError(
                f"{self.file} is of another computation: {', '.join(other)} differ; pass start=0 "
                f"to compute all tiles, or the same arguments as then to go on after tile "
                f"{len(whole)}"
            )
        if len(whole) < len(lines) - 1:
            return self._damaged(f"its line {len(whole) + 2} is no checksum of a tile", whole)
        return whole

    def _damaged(self, fault: str, whole: list[str]) -> list[str]:
        """Warn of a fault of the file, of which these lines are left."""
        logging.getLogger("implicit_conv").warning(
            "%s is damaged: %s; tiles are computed again from tile %d on",
            *(self.file, fault, len(whole)),
        )
        return whole

    def intact(self, tiles: Iterable[Array]) -> list[str]:
        """The checksums of the tiles that are written, up to the first that is not as it was.

        Parameters
        ----------
        tiles : iterable of arrays
            The tiles that the output has.
        """
        kept: list[str] = []
        for line, tile in zip(self.tiles(), tiles, strict=False):
            if line not in (UNKNOWN, checksum(tile)):
                logging.getLogger("implicit_conv").warning(
                    "tile %d is not in the output as it was written; it is computed again, and "
                    "all after it",
                    len(kept),
                )
                break
            kept.append(line)
        return kept


def record_file(out: Any) -> str | None:
    """The name of the file beside an output, if the output is on a disk here."""
    if isinstance(out, np.ndarray):
        place = placed(out)
        if place is None:
            return None
        file, first, whole = place
        return f"{file}{NAME}" if whole else f"{file}.{first}{NAME}"
    store: Any = getattr(out, "store", None)
    if type(store).__module__.startswith("zarr.") and type(store).__name__ == "LocalStore":
        return os.path.join(store.root, out.path, NAME)
    return None


def checksum(y: Array) -> str:
    """Eight hexadecimal digits of the bytes of a tile.

    Sums of words run at the speed of memory, ten times that of zlib alone. Their number is
    odd, so that lost pages, which are zeros, count differently in different sums.
    """
    content = np.ascontiguousarray(y).reshape(-1).view(np.uint8)
    rest = content.size % (8 * SUMS)
    words = content[: content.size - rest].view(np.uint64).reshape(-1, SUMS)
    sums = np.add.reduce(words, axis=0)
    return f"{zlib.adler32(content[content.size - rest :], zlib.adler32(sums)):08x}"  # type: ignore[arg-type]


def _computation(head: bytes) -> dict[str, str] | None:
    """What the first line of a file says; None if it is damaged."""
    try:
        found = json.loads(head)
    except (ValueError, RecursionError):  # also of bytes that are no text
        return None
    texts = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return found if texts else None


def _replace(file: str, text: str) -> None:
    """Write a file so that others find all of it, or what it was before, also after a power
    failure.
    """
    made = f"{file}.{os.getpid()}"
    try:
        with open(made, "w", encoding="ascii") as opened:
            opened.write(text)
            opened.flush()
            _sync(opened.fileno())
        os.replace(made, file)
        _sync_folder(os.path.dirname(os.path.abspath(file)))
    except OSError:
        if os.path.exists(made):
            os.remove(made)
        raise


def _sync_folder(folder: str) -> None:
    """Let the disk have the names of the files in a folder, where the system opens folders."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows has none
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(opened)
    finally:
        os.close(opened)


def _sync(opened: int) -> None:
    """Let the disk have what was written to a file, where the file system can wait for that."""
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in CANNOT:
            raise


def _append(file: str, text: str) -> None:
    with open(file, "a", encoding="ascii") as opened:  # one write, of a whole line
        opened.write(text)
