"""Formats of elements in memory: dtypes, and how the CPU converts floats of 16 bits."""

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
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}


class Format(NamedTuple):
    """What the elements of one operator are stored as, by the keys of SIZES."""

    x: Stored
    w: Stored
    buffer: Stored  # buffers of x
    panel: Stored  # packed filters
    sums: str  # "float64" if x is float64, "float32" for other floats, "int32" or "int64"
    y: Stored

    @property
    def channels(self) -> int:
        """Channels of an element of buffers and panels, which is as wide as a sum: 1, 2 or 4."""
        return SIZES[self.sums] // SIZES[self.buffer]

    @property
    def integers(self) -> bool:
        """Whether x, w and sums are integers."""
        return is_integer(self.sums)

    @property
    def residual(self) -> Stored:
        """The residual: x for floats, y for integers."""
        return self.y if self.integers else self.x

    @property
    def finished(self) -> Stored:
        """The dtype in which a residual is added and the activation is computed."""
        return self.y if self.integers else self.sums

    @property
    def rounded(self) -> Stored:
        """What microkernels may store instead of sums: y if it is a sum that is rounded.

        The part `finish` converts integers to floats.
        """
        return self.sums if self.integers else self.y


def is_integer(stored: Stored) -> bool:
    """Whether elements that are stored so are integers."""
    return isinstance(stored, str) and stored.startswith(("int", "uint"))


def dtype_of(stored: Stored) -> str:
    """The name of the dtype that elements are stored as."""
    return stored.dtype if isinstance(stored, Conversion) else stored
