"""What the memory accesses of a run cost: sectors of global memory, passes of the banks.

Both follow from the addresses of a warp's lanes. A request to global memory moves sectors of 32
bytes. Shared memory has 32 banks of 4 bytes, and a pass reads or writes one word of each: lanes
that need different words of one bank need several passes. The least cost is that of the same bytes
side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicit_conv.ptx.kinds import LANES, Lanes

SECTOR = 32  # bytes
BANKS, WORD = 32, 4  # banks of shared memory, and bytes of a bank's word


@dataclass
class Cost:
    """What the accesses of one kind cost.

    Attributes
    ----------
    instructions : int
        Warp instructions that accessed anything.
    cost, least : int
        Sectors or bank passes, and the least number of them for as many bytes.
    """

    instructions: int = 0
    cost: int = 0
    least: int = 0

    def add(self, cost: int, least: int) -> None:
        """One more warp instruction."""
        self.instructions += 1
        self.cost += cost
        self.least += least


class Traffic:
    """What runs have cost.

    Attributes
    ----------
    costs : dict of (instruction, bytes of a lane) -> Cost
        Such as ("st.global", 16).
    instructions : int
        Warp instructions of all kinds.

    Examples
    --------
    `run` fills it, by the addresses of each access. The lanes of a warp that read every 32nd float
    move 32 sectors, where as many bytes side by side are 4:

    >>> import numpy as np
    >>> from implicit_conv import ptx
    >>> traffic = ptx.Traffic()
    >>> traffic.note_global("ld.global", 128 * np.arange(32), 4)
    >>> traffic.total("ld.global")
    Cost(instructions=1, cost=32, least=4)
    """

    def __init__(self) -> None:
        self.costs: dict[tuple[str, int], Cost] = {}
        self.instructions = 0

    def note_global(self, what: str, at: Lanes, size: int) -> None:
        """A warp's access to `size` bytes at each of these addresses."""
        if at.size:
            sectors = np.unique(np.concatenate([at // SECTOR, (at + size - 1) // SECTOR])).size
            self._cost(what, size).add(sectors, -(-np.unique(at).size * size // SECTOR))

    def note_shared(self, what: str, units: Lanes, size: int) -> None:
        """A warp's access to these units of `size` bytes each.

        An access of 8 or 16 bytes a lane is served half a warp or a quarter at a time.
        """
        if not units.size:
            return
        words = max(size // WORD, 1)
        together = LANES // words
        passes = least = 0
        for first in range(0, units.size, together):
            part = units[first : first + together]
            start = part[:, None] * size // WORD
            touched = np.unique(start + np.arange(words))
            passes += int(np.bincount(touched % BANKS).max())
            least += -(-touched.size // BANKS)
        self._cost(what, size).add(passes, least)

    def total(self, prefix: str) -> Cost:
        """The sum of the costs of instructions whose names begin with `prefix`."""
        found = Cost()
        for (what, _), part in self.costs.items():
            if what.startswith(prefix):
                found.instructions += part.instructions
                found.cost += part.cost
                found.least += part.least
        return found

    def _cost(self, what: str, size: int) -> Cost:
        return self.costs.setdefault((what, size), Cost())
