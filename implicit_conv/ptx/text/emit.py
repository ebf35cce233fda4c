"""How generated code reads and writes operands (PTX ISA 6, and 6.4 on types).

An instruction's type says how the bits of a register are read, whatever its declaration says. A
register may be wider than the type where the ISA allows that: its low bits are read, and a result
is extended by the type's sign.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np

from implicit_conv.ptx.errors import PtxError, UnsupportedError, shortened
from implicit_conv.ptx.kinds import LANES, TYPES, size_of
from implicit_conv.ptx.machine.lanes import merge
from implicit_conv.ptx.machine.special import SPECIALS, special_values
from implicit_conv.ptx.memory.spaces import WINDOWS, Spaces
from implicit_conv.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)


class Emitter:
    """Expressions and statements of generated code for a target; `names` are what it refers to.

    While an instruction is translated, `mask` names the mask of its lanes and `full` says that all
    lanes run.
    """

    def __init__(self, spaces: Spaces, target: str) -> None:
        self.spaces, self.target = spaces, target
        self.names: dict[str, Any] = {"np": np, "where": np.where, "merge": merge}
        self.names["int64"] = np.int64
        self.constants: dict[tuple[int, str], str] = {}
        self.full, self.mask = True, "m"

    @property
    def lanes(self) -> str:
        """The mask, or None where all lanes run."""
        return "None" if self.full else self.mask

    def use(self, function: Any) -> str:
        """The name by which generated code calls a function."""
        name = f"{function.__module__.rpartition('.')[2]}_{function.__name__}"
        self.names[name] = function
        return name

    def call(self, function: Any, *arguments: object) -> str:
        """A call, with expressions as arguments.

        Raises
        ------
        TypeError
            It takes another number of arguments: an instruction has other operands than it needs.
        """
        signature = _signature(function)
        if signature is not None:
            signature.bind(*arguments)
        return f"{self.use(function)}({', '.join(map(str, arguments))})"

    def constant(self, value: int, kind: str) -> str:
        """The name of an array of 32 times the low bits of a value."""
        key = value, kind
        if key not in self.constants:
            if kind == "?":
                array = np.full(LANES, bool(value))
            else:
                size = size_of(kind)
                array = np.full(LANES, value % (1 << 8 * size), f"u{size}").view(kind)
            self.constants[key] = name = f"k{len(self.constants)}"
            self.names[name] = array
        return self.constants[key]

    def read(self, operand: Operand, kind: str) -> str:
        """An expression of `kind` for an operand."""
        if isinstance(operand, Immediate):
            return self._literal(operand, kind)
        if isinstance(operand, Register):
            return self._register(operand, kind)
        if isinstance(operand, Negated):
            return f"~{self.read(operand.register, kind)}"
        if isinstance(operand, Special):
            if operand.name not in SPECIALS:
                raise UnsupportedError(f"the special register {operand.name} is not covered")
            return f"{self.call(special_values, 'w', repr(operand.name))}.astype('{kind}')"
        if isinstance(operand, (Symbol, Address)):
            return self._variable_address(operand, kind)
        raise PtxError(f"the operand {operand} cannot be read")

    def _literal(self, literal: Immediate, kind: str) -> str:
        if literal.form == "f64" and kind == "f4":
            number = np.array([literal.value], np.uint64).view(np.float64).astype(np.float32)
            return self.constant(int(number.view(np.uint32)[0]), kind)
        return self.constant(literal.value, kind)

    def _variable_address(self, operand: Symbol | Address, kind: str) -> str:
        if isinstance(operand, Symbol):
            return f"{self.variable(operand.name)}.astype('{kind}')"
        return f"({self.read(operand.base, kind)} + {self.constant(operand.offset, kind)})"

    def _register(self, register: Register, kind: str) -> str:
        have, text = register.kind, f"r[{register.number}]"
        if have == kind:
            return text
        if size_of(have) == size_of(kind):
            return f"{text}.view('{kind}')"
        if size_of(have) > size_of(kind) > 0:
            low = f"{text}.view('u{size_of(have)}').astype('u{size_of(kind)}')"
            return f"{low}.view('{kind}')"
        raise PtxError(f"the register {register.name} is too narrow for {kind}")

    def write(self, operand: Operand, expression: str, kind: str) -> str:
        """The statement that gives a register a value of `kind`."""
        if isinstance(operand, Sink):
            return expression
        if not isinstance(operand, Register):
            raise PtxError(f"{operand} cannot be written")
        have = operand.kind
        if have != kind:
            expression = self._extended(operand, expression, kind)
        if self.full:
            return f"r[{operand.number}] = {expression}"
        return f"r[{operand.number}] = merge({self.mask}, {expression}, r[{operand.number}])"

    def _extended(self, register: Register, expression: str, kind: str) -> str:
        have = register.kind
        if size_of(have) == size_of(kind):
            return f"({expression}).view('{have}')"
        if size_of(have) > size_of(kind) > 0:
            sign = "i" if kind[0] == "i" else "u"
            narrow = f"({expression}).view('{sign}{size_of(kind)}')"
            return f"{narrow}.astype('{sign}{size_of(have)}').view('{have}')"
        raise PtxError(f"the register {register.name} is too narrow for {kind}")

    def write_parts(self, operand: Operand, values: str, kind: str) -> list[str]:
        """Statements that give the parts of a vector, or a register, the elements of `values`."""
        parts = operand.parts if isinstance(operand, Vector) else (operand,)
        return [self.write(part, f"{values}[{n}]", kind) for n, part in enumerate(parts)]

    def read_parts(self, operand: Operand, kind: str) -> str:
        """A tuple of the parts of a vector, or of one operand."""
        parts = operand.parts if isinstance(operand, Vector) else (operand,)
        return f"({', '.join(self.read(part, kind) for part in parts)},)"

    def variable(self, name: str) -> str:
        """An expression for the address of a variable in its own space."""
        if name in self.spaces.addresses:
            return self.constant(self.spaces.addresses[name], "u8")
        return f"w.launch.variable({name!r})"

    def address(self, operand: Operand) -> str:
        """An expression for the 32 addresses of an operand, as int64."""
        if not isinstance(operand, Address):
            raise PtxError(f"{operand} is no address")
        if isinstance(operand.base, Register):
            base = f"r[{operand.base.number}]"
        elif isinstance(operand.base, Symbol):
            base = self.variable(operand.base.name)
        else:
            base = self.read(operand.base, "u8")
        offset = f" + {operand.offset}" if operand.offset else ""
        return f"{base}.astype(int64){offset}"

    def space_of(self, operand: Operand) -> str:
        """The space of a named variable, or an empty string."""
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            return self.spaces.names.get(operand.base.name, "global")
        return ""

    def window(self, space: str) -> str:
        """The start of a space among generic addresses."""
        return self.constant(WINDOWS[space], "u8")


@functools.cache
def _signature(function: Any) -> inspect.Signature | None:
    """The arguments that a function takes, or None for one of numpy, which takes any."""
    return inspect.signature(function) if inspect.isfunction(function) else None


def unsupported(i: Instruction, why: str = "") -> UnsupportedError:
    """The error of an instruction that is not covered."""
    return UnsupportedError(f"{shortened(i.name)} is not covered{why and f': {shortened(why)}'}")


def modifiers(i: Instruction, allowed: str, typed: bool = True) -> list[str]:
    """The words after the opcode's first (but its type); each must be among the allowed ones."""
    words = i.opcode[1 : len(i.opcode) - typed]
    for word in words:
        if word not in allowed.split():
            raise unsupported(i, f"the modifier .{word}")
    return words


def type_of(i: Instruction, allowed: str = "") -> str:
    """The instruction's type; it must be among the allowed ones."""
    if i.opcode[-1] not in (allowed.split() or TYPES):
        raise unsupported(i, f"the type .{i.opcode[-1]}")
    return i.opcode[-1]
