"""Formats of elements in memory: dtypes, and how the CPU converts those of 16 bits."""

from typing import NamedTuple


class Conversion(NamedTuple):
    """A 16-bit dtype that is converted in another way than the usual one.

    Usually an instruction converts float16, and integer arithmetic converts bfloat16.
    """

    dtype: str
    way: str

    def __str__(self) -> str:
        return f"{self.way}_{self.dtype}"


Stored = str | Conversion  # what elements are stored as: a dtype's name, or a conversion

SOFT_FLOAT16 = Conversion("float16", "soft")  # by integer arithmetic: the CPU has no instruction
HARD_BFLOAT16 = Conversion("bfloat16", "hard")  # rounded by an instruction, which the CPU has

SIZES: dict[Stored, int] = {  # bytes of an element
    "float16": 2,
    SOFT_FLOAT16: 2,
    "bfloat16": 2,
    HARD_BFLOAT16: 2,
    "float32": 4,
    "float64": 8,
}


class Format(NamedTuple):
    """What the elements of one operator are stored as, by the keys of SIZES."""

    x: Stored  # x, w and the residual
    buffer: Stored  # buffers and panels
    sums: str  # "float64" if x is float64, else "float32"
    y: Stored

    @property
    def channels(self) -> int:
        """Channels of an element of buffers and panels, which is as wide as a sum: 1 or 2."""
        return SIZES[self.sums] // SIZES[self.buffer]


def dtype_of(stored: Stored) -> str:
    """The name of the dtype that elements are stored as."""
    return stored.dtype if isinstance(stored, Conversion) else stored
