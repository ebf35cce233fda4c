"""Bank conflicts: how many passes over the banks of shared memory an access takes.

Shared memory has 32 banks of 4 bytes. A warp's access is served in phases of up to 128 bytes: 8
lanes of 16 bytes, 16 of 8, or 32 of 4. A phase takes as many passes as the most wanted bank has
different words. CUDA C++ Programming Guide, compute capability 5.x and later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.tma.maps.limits import integer
from implicit_conv.tma.maps.swizzles import RowLayout

BANKS, BANK_BYTES = 32, 4
PHASE_BYTES = BANKS * BANK_BYTES
LANES = 32
ACCESSES = {
    "ldmatrix": "ldmatrix.x4: 16 rows of 32 bytes, 8 rows of 16 bytes a phase",
    "wgmma": "wgmma, tcgen05: core matrices of 8 rows of 16 bytes, over 64 rows and 32 bytes",
    "ld.shared.b32": "32 lanes read 4 bytes, each of another row",
    "ld.shared.b64": "32 lanes read 8 bytes, each of another row",
    "ld.shared.b128": "32 lanes read 16 bytes, each of another row",
    "row": "32 lanes read 4 bytes each, one after the other in a row",
}


@dataclass(frozen=True)
class Phase:
    """One phase: the shared addresses that its lanes read, and its passes over the banks."""

    addresses: tuple[int, ...]
    size: int  # bytes that a lane reads
    passes: int


@dataclass(frozen=True)
class BankReport:
    """The phases of an access.

    Attributes
    ----------
    access : str
        One of `ACCESSES`.
    phases : tuple of Phase
    """

    access: str
    phases: tuple[Phase, ...]

    @property
    def passes(self) -> int:
        """Passes over the banks, of all phases together."""
        return sum(phase.passes for phase in self.phases)

    @property
    def worst(self) -> int:
        """Passes of the slowest phase; 1 if there is no conflict."""
        return max(phase.passes for phase in self.phases)

    def __str__(self) -> str:
        ideal = len(self.phases)
        verdict = "no conflicts" if self.worst == 1 else f"{self.worst}-way conflicts"
        head = (
            f"{self.access} ({ACCESSES[self.access]}): {verdict}, {self.passes} passes of {ideal}"
        )
        slow = [i for i, phase in enumerate(self.phases) if phase.passes > 1][:4]
        lines = [
            f"  phase {i}: {self.phases[i].passes} passes; banks "
            + " ".join(str(a // BANK_BYTES % BANKS) for a in self.phases[i].addresses)
            for i in slow
        ]
        return "\n".join([head, *lines])


def passes(addresses: npt.NDArray[np.int64], size: int) -> int:
    """Passes over the banks of one phase whose lanes read `size` bytes from each address."""
    words = np.unique((addresses[:, None] + np.arange(0, size, BANK_BYTES)) // BANK_BYTES)
    return int(np.bincount(words % BANKS).max())


def report(layout: RowLayout, access: str, first: int, byte: int) -> BankReport:
    """The report of `SmemImage.bank_conflicts`."""
    if access not in ACCESSES:
        known = "; ".join(f"{name!r}: {what}" for name, what in ACCESSES.items())
        raise ValueError(f"access {access!r} is unknown; choose from {known}")
    first, byte = integer("first", first), integer("byte", byte)
    found = []
    for rows, offsets, size in _phases(access, first, byte):
        row_bytes = layout.row_bytes
        if not 0 <= rows.min() <= rows.max() < layout.rows:
            raise ValueError(
                f"{access} reads rows {rows.min()} to {rows.max()} of an image of {layout.rows} "
                "rows"
            )
        if offsets.max() + size > row_bytes or offsets.min() < 0 or byte % size:
            raise ValueError(
                f"{access} reads bytes {offsets.min()} to {offsets.max() + size - 1} of rows of "
                f"{row_bytes} bytes; byte must be a multiple of {size}"
            )
        at = layout.addresses(rows, offsets)
        found.append(Phase(tuple(at.tolist()), size, passes(at, size)))
    return BankReport(access, tuple(found))


def _phases(access: str, first: int, byte: int) -> Iterator[tuple[Any, Any, int]]:
    """(row, byte in the row) of each lane of each phase, and the bytes that a lane reads."""
    eight = np.arange(8)
    if access in ("ldmatrix", "wgmma"):
        for column in (byte, byte + 16):
            for block in range(2 if access == "ldmatrix" else 8):
                yield first + 8 * block + eight, np.full(8, column), 16
    elif access == "row":
        yield np.full(LANES, first), byte + BANK_BYTES * np.arange(LANES), BANK_BYTES
    else:
        size = int(access.removeprefix("ld.shared.b")) // 8
        for lanes in np.arange(LANES).reshape(-1, min(LANES, PHASE_BYTES // size)):
            yield first + lanes, np.full(len(lanes), byte), size
