"""Readers matched with copies: whether instructions read shared memory as tensor copies wrote it.

A kernel may load and store through any permutation of the bytes, so that ``ld.shared`` with another
swizzle is no fault by itself; it is told where results are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv import ptx
from implicit_conv.ptx.limits import CLUSTER
from implicit_conv.ptx.memory.tensor_map import swizzled
from implicit_conv.tma.check.interpreted import SPANS, UNIT
from implicit_conv.tma.maps.descriptors import ADDRESS_END

NAMES = {span: f"swizzle {name}" if span else "no swizzle" for name, span in SPANS.items()}
CORE_ROWS = 8  # rows that one stride of a descriptor does not part
Cells = npt.NDArray[Any]


class _Held:
    """What the shared memory of a block holds: of each 16 bytes the copy, its row and its unit."""

    def __init__(self) -> None:
        self.copies: list[ptx.TensorCopy] = []
        self.owner = np.full(ADDRESS_END // UNIT, -1)
        self.row, self.unit = np.zeros_like(self.owner), np.zeros_like(self.owner)

    def add(self, copy: ptx.TensorCopy) -> None:
        """A load is complete."""
        assert copy.places is not None
        at = (copy.address + copy.places) // UNIT
        self.owner[at] = len(self.copies)
        self.row[at], self.unit[at] = np.indices(at.shape)
        self.copies.append(copy)


class Readers:
    """Which row of which copy each 16 bytes of shared memory hold, and reads that do not fit.

    Attributes
    ----------
    found : dict of line of a copy -> dict of line of a reader -> text
        In the order of their first occurrence.
    guesses : the same, of ``ld.shared``
    """

    def __init__(self) -> None:
        self.found: dict[int, dict[int, str]] = {}
        self.guesses: dict[int, dict[int, str]] = {}
        self._held: dict[tuple[int, int, int], _Held] = {}  # by the latest blocks

    def wrote(self, copy: ptx.TensorCopy) -> None:
        """A load is complete."""
        if copy.destination not in self._held:
            if len(self._held) == CLUSTER:  # blocks of one cluster alone run together
                del self._held[next(iter(self._held))]
            self._held[copy.destination] = _Held()
        self._held[copy.destination].add(copy)

    def read(self, read: ptx.SharedRead) -> None:
        """A matrix is read, or a place by each lane."""
        held = self._held.get(read.block)
        if held is None:
            return
        at = read.addresses // UNIT
        found = self.guesses if read.instruction == "ld.shared" else self.found
        owner = np.where(read.copied, held.owner[at], -1)
        for number in np.unique(owner[owner >= 0]).tolist():
            copy = held.copies[number]
            text = _unlike(read, copy, held.row[at], held.unit[at], owner == number)
            if text:
                found.setdefault(copy.line, {}).setdefault(read.line, text)

    def lines(self, text: str, entry: str | None, wrong: bool) -> Iterator[str]:
        """A line for each copy that readers do not fit, with the places in the source.

        `wrong`: results are, so that what ``ld.shared`` reads may be the reason.
        """
        if not self.found and not (wrong and self.guesses):
            return
        instructions = {i.line: i for i in ptx.parse(text, entry).instructions}

        def place(line: int) -> str:
            return source_place(instructions[line])

        guesses = self.guesses.items() if wrong else ()
        for copy, found in (*self.found.items(), *guesses):
            line, words = min(found.items())
            others = f" and {len(found) - 1} others" if found.keys() - {line} else ""
            opcode = instructions[line].opcode
            name = "ld.shared" if opcode[0] == "ld" else opcode[0]
            yield f"{name} at {place(line)}{others}: {words}; the copy is at {place(copy)}"


def _unlike(
    read: ptx.SharedRead, copy: ptx.TensorCopy, row: Cells, unit: Cells, mask: Cells
) -> str:
    """How a read differs from the copy that wrote the units of `mask`; empty if it does not."""
    written = copy.map.span
    if read.span is not None and read.span != written:
        return f"reads {NAMES[read.span]}, but the copy wrote {NAMES[written]}"
    if read.instruction != "wgmma":
        if not mask.all():
            return ""
        regular = _straight if read.instruction == "ldmatrix" else _steady
        pitch = max(copy.map.row_bytes, written)
        meant = [
            span
            for span in NAMES
            for place in [swizzled(read.addresses, span) - copy.address]
            if regular(place // pitch, place % pitch, mask)
        ]
        if not meant or written in meant:
            return ""
        return f"reads {NAMES[meant[0]]}, but the copy wrote {NAMES[written]}"
    if copy.mode != "tile" or any(size > 1 for size in copy.map.box[2:]):
        # Rows of several dimensions: a descriptor may leave some out, as that of a tap does.
        mask = mask.copy()
        mask[CORE_ROWS:] = mask[:, max(written // UNIT, 1) :] = False
    if not mask.any() or _straight(row, unit, mask):
        return ""
    i, j = np.indices(mask.shape)
    at_first = tuple(np.argwhere(mask)[0])
    rows, units = row - i, unit - j
    wrong = mask & ((rows != rows[at_first]) | (units != units[at_first]))
    at_wrong = tuple(np.argwhere(wrong)[0])
    return (
        f"reads unit {at_wrong[1]} of row {at_wrong[0]} of its matrix from unit "
        f"{unit[at_wrong]} of row {row[at_wrong]} of the copy, but unit {at_first[1]} of row "
        f"{at_first[0]} from unit {unit[at_first]} of row {row[at_first]}: rows of the copy "
        f"are {max(copy.map.row_bytes, written)} bytes apart, units {UNIT}"
    )


def source_place(instruction: Any) -> str:
    """The line of an instruction, and that of its source."""
    source = instruction.source
    return f"line {instruction.line}" + (f" ({source})" if source else "")


def _straight(row: Cells, unit: Cells, mask: Cells) -> bool:
    """Whether row and unit grow as in the matrix, wherever it begins."""
    i, j = np.indices(mask.shape)
    rows, units = (row - i)[mask], (unit - j)[mask]
    return bool((rows == rows[0]).all() and (units == units[0]).all())


def _steady(row: Cells, byte: Cells, mask: Cells) -> bool:
    """Whether each bit of a lane's number adds steps of its own to row and byte, none below 0."""
    bits = np.arange(mask.size)[:, None] >> np.arange(5) & 1
    for values in (row[:, 0], byte[:, 0]):
        steps = values[1 << np.arange(5)] - values[0]
        if (steps < 0).any() or (values != values[0] + bits @ steps).any():
            return False
    return True
