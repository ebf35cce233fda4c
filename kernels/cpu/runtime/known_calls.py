"""Known calls: a table leads from the words of a call to the program that was made for it.

Each door has a describer, a compiled function that turns the objects of its calls into words. It
finds their entry and runs the program; see `compiled.known_calls`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.kernels.cpu.runtime import active_threads
from implicit_conv.kernels.cpu.runtime.program import Words

# Words of the state of a describer: the table, those of this process, and then its own.
TABLE, PROCESS, OWN = range(3)
# Words of an entry: an object that owns all that it points to, the program, the tuple of arguments
# for a new result and bytes of its elements, if the door makes one, the number of words of the key,
# and the key itself.
OWNER, PROGRAM, ARGUMENTS, ITEM_BYTES, KEY_WORDS, KEY = range(6)
FEWEST_PLACES = 64  # of the table: after a word that selects bits of a hash, addresses of entries
PRIME, SHIFT = 0x100000001B3, 40  # of the hash, FNV-1a by words; its upper bits are the place
MASK = (1 << 64) - 1


class Made(NamedTuple):
    """What computes known calls: a program, and if the describer makes results, the arguments for a
    new one, and the bytes of its elements.
    """

    program: Words
    new: tuple[Any, ...] = ()
    item_bytes: int = 0


class KnownCalls:
    """A table of known calls.

    Attributes
    ----------
    state : array of int64
        What the describer reads.
    """

    def __init__(self, own: Sequence[int], most: int | None = None) -> None:
        """`own` are the words of the describer, and `most` is the number of entries; where another
        one would come, all are dropped. Without it, they live as long as the process.
        """
        self.state = np.array([0, active_threads.ADDRESS, *own], np.int64)
        self.most, self._tables = most, list[Any]()
        self.entries = dict[tuple[int, ...], Any]()
        self._renew_lock()
        self._resize(FEWEST_PLACES)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        """Forget a lock that another thread may hold, which a forked child does not have."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, key: tuple[int, ...], made: Made, owned: Any = None) -> None:
        """Have calls with these words run a program. The objects `owned` live as long as the
        entry.
        """
        owner = [made.program, made.new, owned]
        head = [id(owner), made.program.address, id(made.new), made.item_bytes, len(key)]
        owner.append(np.array([*head, *key], np.int64))
        with self._lock:
            if key in self.entries:  # Python saw a call that it must see, or threads at once
                return
            if self.most is not None and len(self) >= self.most:
                self._drop()
            self.entries[key] = owner
            if 2 * len(self) < len(self._tables[-1]):
                self._write(self._tables[-1], key)
            else:
                self._resize(2 * len(self._tables[-1]))

    def clear(self) -> None:
        """Drop all entries. A run under way holds the owner of its own."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._tables[-1][1:] = 0
        self.entries.clear()

    def _resize(self, places: int) -> None:
        """Make a table of at least so many places. The earlier one stays, since calls may be
        reading it.
        """
        bits = (places - 1).bit_length()
        table = np.zeros(1 + (1 << bits), np.int64)
        table[0] = (1 << bits) - 1
        for key in self.entries:
            self._write(table, key)
        self._tables.append(table)
        self.state[TABLE] = table.ctypes.data

    def _write(self, table: Any, key: tuple[int, ...]) -> None:
        """Write the address of an entry into a table; a call that finds it finds all of it."""
        found = 0
        for word in key:
            found = ((found ^ (word & MASK)) * PRIME) & MASK
        last = int(table[0])
        place = (found >> SHIFT) & last
        while table[1 + place]:
            place = (place + 1) & last
        table[1 + place] = self.entries[key][-1].ctypes.data
