"""A kernel's blocks as Python functions over arrays of 32 lanes, made when they are first run.

A function takes the warp `w`, its registers `r` and the mask `m` of the lanes that run. A block has
two: one for all lanes, whose results replace registers, and one for some, whose results are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine.control import Control, control_of
from implicit_conv.ptx.machine.lanes import NEVER, merge
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.memory.spaces import Spaces, lay_out
from implicit_conv.ptx.syntax import (
    Address,
    Block,
    Immediate,
    Instruction,
    Kernel,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)
from implicit_conv.ptx.text.blocks import is_control
from implicit_conv.ptx.text.emit import Emitter
from implicit_conv.ptx.text.handlers import statements

Function = Callable[["State", list[Any], Lanes], None]


class Code:
    """The functions of a kernel, its controls, and where its variables lie."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.spaces: Spaces = lay_out(kernel)
        self.local_bytes = self.spaces.local_bytes
        self.emitter = Emitter(self.spaces, kernel.target)
        self.start = registers_at_start(kernel)
        self.functions: dict[tuple[int, bool], Function] = {}
        self.lines: dict[str, dict[int, Instruction]] = {}  # of each function's file name
        self.controls: list[Control | None] = [
            self._control(block.instructions[-1]) if block.instructions else None
            for block in kernel.blocks
        ]

    def _control(self, last: Instruction) -> Control | None:
        if not is_control(last.opcode):
            return None
        try:
            return control_of(last)
        except PtxError as error:
            raise type(error)(f"{last.place}: {error}") from None

    def function(self, block: Block, full: bool) -> Function:
        """The function of a block, for all lanes or for some."""
        made = self.functions.get((block.index, full))
        if made is None:
            made = self.functions[block.index, full] = self._compile(block, full)
        return made

    def _compile(self, block: Block, full: bool) -> Function:
        name = f"<ptx block {block.index} {'full' if full else 'part'}>"
        lines, where = ["def f(w, r, m):"], dict[int, Instruction]()
        ends = self.controls[block.index] is not None
        for instruction in block.instructions[: len(block.instructions) - ends]:
            for line in statements(self.emitter, instruction, full):
                lines.append(f"    {line}")
                where[len(lines)] = instruction
        lines.append("    pass")
        scope: dict[str, Any] = {}
        try:
            exec(compile("\n".join(lines), name, "exec"), self.emitter.names, scope)
        except SyntaxError as error:  # of a call whose arguments are missing
            raise PtxError(f"{where[error.lineno or 0].place}: its operands do not fit") from error
        self.lines[name] = where
        function: Function = scope["f"]
        return function

    def check(self) -> None:
        """Translate everything, so that what is not covered is refused before a run."""
        for block in self.kernel.blocks:
            self.function(block, True)

    def shared_addresses(self, w: State, operand: Operand) -> Lanes:
        """The values of an address operand, for control instructions."""
        if not isinstance(operand, Address):
            raise PtxError(f"{operand} is no address")
        base = operand.base
        if isinstance(base, Register):
            values: Lanes = w.r[base.number].astype(np.int64)
        elif isinstance(base, Symbol):
            values = w.launch.variable(base.name).astype(np.int64)
        elif isinstance(base, Immediate):
            values = np.full(LANES, base.value)
        else:
            raise PtxError(f"{base} is no address")
        return values + operand.offset

    def set_register(self, w: State, register: Register, values: Lanes, mask: Lanes) -> None:
        """Write the lanes of `mask`."""
        old = w.r[register.number]
        w.r[register.number] = values if mask.all() else merge(mask, values, old)


def registers_at_start(kernel: Kernel) -> list[Any]:
    """NEVER; but noise where no instruction ever writes a register.

    Compilers declare such registers, and read them to pack halves of which one does not matter.
    """
    written: set[int] = set()
    for instruction in kernel.instructions:
        for operand in instruction.operands[:1]:
            written |= {register.number for register in _registers(operand)}
    noise = np.random.default_rng(0)
    start: list[Any] = []
    for register in kernel.registers:
        if register.number in written:
            start.append(NEVER)
            continue
        size = max(1, np.dtype(register.kind).itemsize)
        bits = noise.integers(0, 256, (LANES, size), np.uint8)
        start.append(
            bits[:, 0] > 127 if register.kind == "?" else bits.view(register.kind).reshape(-1)
        )
    return start


def _registers(operand: Operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    parts: tuple[Operand, ...] = ()
    if isinstance(operand, Vector):
        parts = operand.parts
    elif isinstance(operand, Pair):
        parts = operand.first, operand.second
    return [register for part in parts for register in _registers(part)]
