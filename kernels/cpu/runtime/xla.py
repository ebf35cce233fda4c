"""The programs that XLA's custom calls find by their keys, in this process.

An executable of XLA has the key, and neither an address nor code of ours: it may be kept on disk,
and run in another process, which must have made the same program.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.kernels.cpu.runtime.code import code
from implicit_conv.kernels.cpu.runtime.launch import team
from implicit_conv.kernels.cpu.runtime.program import Words

STATE_OF = -0x1C0DE  # as the first word of a frame, where XLA has a size
# Words of the state. Those from BLOCKS on hold unused blocks of memory, one for each size.
MINOR, STARTER, TABLE, UNKNOWN_MESSAGE, MISMATCH_MESSAGE, MEMORY_MESSAGE, BLOCKS = range(7)
# Words of a record: the address of its program, then what each buffer of a call must be.
PROGRAM = 0
DTYPE, RANK, SHAPE = range(3)
MOST_AXES = 5
BUFFER_WORDS = SHAPE + MOST_AXES
DTYPES = {"float16": 10, "float32": 11, "float64": 12, "bfloat16": 16}  # XLA's numbers
UNKNOWN = (
    b"implicit_conv has no plan for this convolution in this process: the executable was made in "
    b"another one; lower and compile the function here, as jax.jit does"
)
MISMATCH = b"buffers of a convolution differ from those that implicit_conv has planned it for"
MEMORY = b"implicit_conv found no memory for a convolution"


class Buffer(NamedTuple):
    """What a buffer of a call must be."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def words(self) -> list[int]:
        """Those of a record."""
        rest = [0] * (MOST_AXES - len(self.shape))
        return [DTYPES[self.dtype], len(self.shape), *self.shape, *rest]


class Target:
    """The function that XLA calls, and the programs that it finds.

    Attributes
    ----------
    address : int
        That of the function.
    """

    def __init__(self, minor: int) -> None:
        """`minor` is the version of XLA's interface, 0.`minor`.

        Raises
        ------
        OSError
            The system is not Linux, whose threads programs run on.
        """
        threads: Any = team()
        if not hasattr(threads, "starter"):
            raise OSError("XLA's calls run on threads of Linux, and this is another system")
        self._kept: list[Any] = [threads]
        self._records: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._state = np.zeros(BLOCKS + 64, np.int64)
        self._state[[MINOR, STARTER]] = minor, threads.starter
        for word, text in (
            (UNKNOWN_MESSAGE, UNKNOWN),
            (MISMATCH_MESSAGE, MISMATCH),
            (MEMORY_MESSAGE, MEMORY),
        ):
            message = ctypes.create_string_buffer(text)
            self._kept.append(message)
            self._state[word] = ctypes.addressof(message)
        self._resize(64)
        self.address = code(".runtime.compiled.xla:HANDLER").address()
        frame = np.array((STATE_OF, self._state.ctypes.data), np.int64)
        ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(self.address)(frame.ctypes.data)

    def has(self, key: int) -> bool:
        """Whether there is a program with this key."""
        return key in self._records

    def add(self, key: int, program: Words, buffers: tuple[Buffer, Buffer, Buffer]) -> None:
        """Have calls with this key, which is not 0, run a program on such buffers, for as long as
        the process lives.
        """
        words = [program.words.ctypes.data, *(word for each in buffers for word in each.words)]
        record = np.array(words, np.int64)
        with self._lock:
            if key in self._records:
                return
            self._records[key] = record, program
            if 2 * len(self._records) < len(self._table):
                self._write(self._table, key)
            else:
                self._resize(2 * (len(self._table) - 1))

    def _resize(self, capacity: int) -> None:
        """Make a table of this many places, a power of two, whose first row has their number. The
        earlier one stays, since calls may be reading it.
        """
        table = np.zeros((1 + capacity, 2), np.int64)
        table[0, 0] = capacity
        for key in self._records:
            self._write(table, key)
        self._kept.append(table)
        self._table = table
        self._state[TABLE] = table.ctypes.data

    def _write(self, table: Any, key: int) -> None:
        """Write a key into a table."""
        places = table[1:]
        place = key & (len(places) - 1)
        while places[place, 0]:
            place = (place + 1) & (len(places) - 1)
        places[place, 1] = self._records[key][0].ctypes.data
        places[place, 0] = key  # last: a call that finds the key finds the record
