"""The describer of XLA's custom calls, which find the programs of this process by their keys.

An executable of XLA has the key, and neither an address nor code of ours: it may be kept on disk,
and run in another process, which must have made the same program.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, TypeAlias

import numpy as np

from implicit_conv.kernels.cpu.runtime.code import code
from implicit_conv.kernels.cpu.runtime.known_calls import OWN, KnownCalls, Made
from implicit_conv.kernels.cpu.runtime.launch import make_once
from implicit_conv.kernels.cpu.runtime.program import Words

STATE_OF = -0x1C0DE  # as the first word of a frame, where XLA has a size
MINOR, UNKNOWN_MESSAGE, MEMORY_MESSAGE = range(OWN, OWN + 3)  # words of the state
MOST_AXES = 5
# Of its words: the key of the program, and of x, w and y the dtype, the number of axes and the
# shape.
MOST_KEY_BYTES = 8 * (1 + 3 * (2 + MOST_AXES))
DTYPES = {"float16": 10, "float32": 11, "float64": 12, "bfloat16": 16}  # XLA's numbers
UNKNOWN = (
    b"implicit_conv has no plan for this convolution in this process, or its buffers differ from "
    b"those that the plan is for: the executable was made in another process, or changed; lower "
    b"and compile the function here, as jax.jit does"
)
MEMORY = b"implicit_conv found no memory for a convolution, or no threads in a forked process"


class Buffer(NamedTuple):
    """What a buffer of a call must be."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def words(self) -> tuple[int, ...]:
        """Those of a key."""
        return DTYPES[self.dtype], len(self.shape), *self.shape


Buffers: TypeAlias = "tuple[Buffer, Buffer, Buffer]"


class Target(KnownCalls):
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
        if not hasattr(make_once(), "starter"):
            raise OSError("XLA's calls run on threads of Linux, and this is another system")
        self._messages = [ctypes.create_string_buffer(text) for text in (UNKNOWN, MEMORY)]
        super().__init__([minor, *map(ctypes.addressof, self._messages)])
        self.address = code(".runtime.compiled.xla:HANDLER").address()
        frame = np.array((STATE_OF, self.state.ctypes.data), np.int64)
        ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(self.address)(frame.ctypes.data)

    def has(self, key: int, buffers: Buffers) -> bool:
        """Whether there is a program with this key, for these buffers."""
        return _words(key, buffers) in self.entries

    def keep(self, key: int, program: Words, buffers: Buffers) -> None:
        """Have calls with this key run a program on such buffers."""
        self.add(_words(key, buffers), Made(program))


def _words(key: int, buffers: Buffers) -> tuple[int, ...]:
    return key, *(word for buffer in buffers for word in buffer.words)
