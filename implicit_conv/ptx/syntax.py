"""What a line of PTX consists of: operands and instructions (PTX ISA 4.3 to 4.6, 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class Register(NamedTuple):
    """A declared register; `kind` is the numpy kind in which its 32 values are kept."""

    number: int
    kind: str
    name: str


class Immediate(NamedTuple):
    """A literal: an integer's value, or the bits of a float32 or float64."""

    value: int
    form: str  # "int", "f32" or "f64"


class Special(NamedTuple):
    """A special register, such as ``%tid.x``."""

    name: str


class Symbol(NamedTuple):
    """The name of a variable, whose value is its address."""

    name: str


class Sink(NamedTuple):
    """The operand ``_``: a result that is dropped."""


class Pair(NamedTuple):
    """Two destinations: ``d|p``."""

    first: Operand
    second: Operand


class Vector(NamedTuple):
    """Operands in braces."""

    parts: tuple[Operand, ...]


class Address(NamedTuple):
    """``[base + offset]``, or ``[base, {coordinates}]`` of a tensor copy."""

    base: Operand
    offset: int
    coordinates: tuple[Operand, ...] = ()


class Negated(NamedTuple):
    """A predicate operand with ``!``."""

    register: Operand


class Target(NamedTuple):
    """The number of the block that a branch leads to."""

    block: int


Operand: TypeAlias = (
    "Register | Immediate | Special | Symbol | Sink | Pair | Vector | Address | Negated | Target"
)


@dataclass
class Instruction:
    """One statement; `opcode` is split at dots: ["mbarrier", "try_wait", "parity", ...]."""

    opcode: list[str]
    operands: list[Operand]
    guard: tuple[Register, bool] | None  # (predicate, whether it is negated)
    line: int  # of the PTX text, from 1
    text: str
    source: str = ""  # file and line, "axpy.cu:12", by the last .loc, or empty

    @property
    def name(self) -> str:
        """The opcode with its modifiers."""
        return ".".join(self.opcode)

    @property
    def place(self) -> str:
        """Where it stands and what it says, for messages."""
        source = f" ({self.source})" if self.source else ""
        return f"line {self.line}{source}: {self.text[:150]}"


@dataclass
class Block:
    """A basic block: one entry, and only its last instruction may branch, wait or end."""

    index: int
    instructions: list[Instruction] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)  # blocks that may follow
    join: int | None = None  # the block where lanes that part here meet again
    runs: int = 0


class Variable(NamedTuple):
    """A variable in a state space; `data` are its initial bytes, for .global and .const."""

    space: str
    name: str
    align: int
    size: int
    data: bytes = b""


@dataclass
class Kernel:
    """One entry of a module, with all functions that it calls inlined."""

    name: str
    target: str  # as in .target
    parameters: dict[str, tuple[int, int]]  # name: (offset, bytes)
    parameter_bytes: int
    variables: list[Variable]
    max_threads: int | None  # of .maxntid or .reqntid
    cluster: tuple[int, int, int] | None  # of .reqnctapercluster; zeros: of .explicitcluster alone
    registers: list[Register]
    blocks: list[Block]

    @property
    def instructions(self) -> list[Instruction]:
        """All instructions, in the order of the text."""
        return [instruction for block in self.blocks for instruction in block.instructions]
