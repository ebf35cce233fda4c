"""A function's body -> instructions and labels, with the functions that it calls in their place.

A call (PTX ISA 9.7.12) becomes the callee's own body: fresh registers, the call's arguments for its
parameters, and a branch to the end of the call for each of its returns. So recursion and calls
through registers are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from implicit_conv.ptx import limits
from implicit_conv.ptx.errors import PtxError, UnsupportedError, shortened
from implicit_conv.ptx.kinds import STORAGE
from implicit_conv.ptx.syntax import Instruction, Operand, Register, Symbol
from implicit_conv.ptx.text.module import Formal, Function, Module, number, variable
from implicit_conv.ptx.text.operands import parse_operand, split

STATEMENT = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
LABEL = re.compile(r"([\w$%]+)\s*:(?!:)")
CALLERS = 4  # of an inlined place that are kept
PLACE = r"(\d+\s+\d+(?:\s+\d+)?)"  # file, line, column
LOCATION = re.compile(rf"\.loc\s+{PLACE}(?:[^\n]*\binlined_at\s+{PLACE})?[^\n]*")
RANGE = re.compile(r"([\w$%]+)<(\d+)>")
REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.S)
CALL = re.compile(r"(?:\(([^)]*)\)\s*,\s*)?([\w$%]+)\s*(?:,\s*\(([^)]*)\))?\s*(,.*)?", re.S)


ENDS = ("ret", "exit", "trap", "brkpt", "bra")  # opcodes after which nothing follows


class Label:
    """A place between instructions; branches hold the same object."""


Item: TypeAlias = "Label | Instruction"


@dataclass
class Scope:
    """Names between braces, and the braces around them."""

    parent: Scope | None = None
    names: dict[str, Operand] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)

    def find(self, name: str) -> Operand | None:
        """What a name stands for here."""
        found = self.names.get(name)
        return self.parent.find(name) if found is None and self.parent else found

    def label(self, name: str) -> Label | None:
        """The label of this name that is visible here."""
        found = self.labels.get(name)
        return self.parent.label(name) if found is None and self.parent else found


@dataclass
class Branch:
    """A statement that is read once all labels are known."""

    scope: Scope
    instruction: Instruction
    name: str


class Body:
    """The items of an entry, its registers and its variables."""

    def __init__(self, module: Module, entry: Function) -> None:
        self.module, self.registers = module, list[Register]()
        self.variables = list(module.variables)
        self.items: list[Item] = []
        self.branches: dict[int, Label] = {}  # by id of the instruction
        self._callers: dict[str, tuple[str, ...]] = {}  # outermost ones of each place
        self._waiting: list[Branch] = []
        self._calls: list[str] = []
        self._statements = self._characters = 0  # read so far, those of inlined functions too
        names: dict[str, Operand] = {formal.name: Symbol(formal.name) for formal in entry.formals}
        self._function(entry, names, None)
        self._end(entry)
        for branch in self._waiting:
            label = branch.scope.label(branch.name)
            if label is None:
                raise PtxError(
                    f"{branch.instruction.place}: there is no label {shortened(branch.name)}"
                )
            self.branches[id(branch.instruction)] = label

    def _function(self, function: Function, names: dict[str, Operand], end: Label | None) -> None:
        """Append the items of a body; where `end` is given, a return leads there."""
        if function.name in self._calls:
            raise UnsupportedError(
                f"recursion is not covered: {shortened(function.name)} calls itself"
            )
        self._calls.append(function.name)
        scope, at, depth, text = Scope(names=names), function.start, 1, self.module.text
        source = ""
        self._count(function)
        while True:
            while at < function.end and (text[at].isspace() or text[at] == ";"):
                at += 1
            if at >= function.end:
                raise PtxError(f"line {function.line}: braces do not match in the body")
            if text[at] == "{":
                scope, depth, at = Scope(scope), depth + 1, at + 1
                if depth > limits.DEPTH:
                    place = f"line {self.module.line(at)}"
                    raise PtxError(f"{place}: more than {limits.DEPTH} braces inside each other")
            elif text[at] == "}":
                depth, at = depth - 1, at + 1
                if not depth:
                    break
                scope = scope.parent or scope
            elif match := LABEL.match(text, at):
                scope.labels[match[1]] = label = Label()
                self.items.append(label)
                at = match.end()
            elif match := LOCATION.match(text, at):
                source = self._source(match)
                at = match.end()
            else:
                stop, line = text.find(";", at, function.end), self.module.line(at)
                if stop < 0:
                    raise PtxError(f"line {line}: no semicolon ends {shortened(text[at:])}")
                self._statement(scope, " ".join(text[at:stop].split()), line, source, end)
                at = stop + 1
        self._calls.pop()

    def _source(self, match: re.Match[str]) -> str:
        """The place of a ``.loc``, and the outermost calls by which it may have been inlined.

        Compilers write a chain of calls once, and then its innermost place alone, which several
        chains may share.
        """
        here, caller = (" ".join((place or "").split()) for place in match.groups())
        callers = self._callers.get(here, ())
        if caller:
            callers += tuple(self._callers.get(caller) or (caller,))
        self._callers[here] = callers = tuple(dict.fromkeys(callers))[:CALLERS]
        source, *calls = (
            f"{self.module.files.get(n, n)}:{line}"
            for n, line, *_ in (place.split() for place in (here, *callers))
        )
        return f"{source}, inlined at {' or '.join(dict.fromkeys(calls))}" if calls else source

    def _end(self, entry: Function) -> None:
        """A return where an entry ends without one."""
        last = self.items[-1] if self.items else None
        ends = isinstance(last, Instruction) and last.guard is None and last.opcode[0] in ENDS
        if not ends:
            line = self.module.line(entry.end)
            self.items.append(Instruction(["ret"], [], None, line, "the end of the kernel"))

    def _count(self, function: Function) -> None:
        """Raise PtxError if a function makes the kernel too large: calls of calls multiply."""
        text = self.module.text
        self._statements += 1 + text.count(";", function.start, function.end)
        self._statements += text.count(":", function.start, function.end)
        self._characters += function.end - function.start
        for what, count, most in (
            ("statements", self._statements, limits.STATEMENTS),
            ("characters", self._characters, limits.TEXT),
            ("calls inside each other", len(self._calls) - 1, limits.DEPTH),
        ):
            if count > most:
                raise PtxError(
                    f"line {function.line}: with {shortened(function.name)} inlined the kernel "
                    f"{shortened(self._calls[0])} has {count} {what}; {most} is the most"
                )

    def _statement(
        self, scope: Scope, text: str, line: int, source: str, end: Label | None
    ) -> None:
        if text.startswith("."):
            self._directive(scope, text, line)
            return
        match = STATEMENT.fullmatch(text)
        if match is None:
            raise PtxError(f"line {line}: not understood: {shortened(text)}")
        guard = self._guard(scope, match[2], bool(match[1]), line) if match[2] else None
        opcode, rest = match[3].split("."), match[4]
        made = Instruction(opcode, [], guard, line, text, source)
        if opcode[0] == "call":
            self._call(scope, made, rest)
        elif opcode[0] == "ret" and end is not None:
            made.opcode = ["bra"]
            self.items.append(made)
            self.branches[id(made)] = end
        else:
            if opcode[0] == "bra":
                self._waiting.append(Branch(scope, made, rest.strip()))
            else:
                made.operands = [parse_operand(part, scope.find, line) for part in split(rest)]
            self.items.append(made)

    def _guard(self, scope: Scope, name: str, negated: bool, line: int) -> tuple[Register, bool]:
        register = scope.find(name)
        if not isinstance(register, Register) or register.kind != "?":
            raise PtxError(f"line {line}: {shortened(name)} is no predicate")
        return register, negated

    def _directive(self, scope: Scope, text: str, line: int) -> None:
        if match := REGISTERS.match(text):
            for part in match[2].split(","):
                name = part.strip()
                ranged = RANGE.fullmatch(name)
                count = number(ranged[2], f"line {line}") if ranged else 1
                if len(self.registers) + count > limits.REGISTERS:
                    most = f"{limits.REGISTERS} is the most of a kernel"
                    raise PtxError(f"line {line}: {count} more registers, but {most}")
                for n in range(count):
                    self._register(scope, f"{ranged[1]}{n}" if ranged else name, match[1], line)
        elif text.startswith((".shared", ".local", ".param", ".global", ".const")):
            made = variable(text, f"line {line}")
            unique = f"{made.name} of line {line}, call {len(self.variables)}"
            space = "local" if made.space == "param" else made.space
            self.variables.append(made._replace(space=space, name=unique))
            scope.names[made.name] = Symbol(unique)
        elif not text.startswith(".pragma"):
            raise UnsupportedError(
                f"line {line}: the directive {shortened(text.split(maxsplit=1)[0])} is not covered"
            )

    def _register(self, scope: Scope, name: str, type_: str, line: int) -> Register:
        if type_ not in STORAGE:
            raise UnsupportedError(f"line {line}: registers of type .{type_[:20]} are not covered")
        register = Register(len(self.registers), STORAGE[type_], name)
        self.registers.append(register)
        scope.names[name] = register
        return register

    def _call(self, scope: Scope, call: Instruction, text: str) -> None:
        """Append the callee's body."""
        match = CALL.fullmatch(text.strip())
        callee = self.module.functions.get(match[2]) if match and not match[4] else None
        if match is None or callee is None or callee.entry:
            raise UnsupportedError(
                f"{call.place}: only calls of functions in the text are covered, by their names"
            )
        results, arguments = (
            [parse_operand(part, scope.find, call.line) for part in split(match[group] or "")]
            for group in (1, 3)
        )
        if (len(results), len(arguments)) != (len(callee.results), len(callee.formals)):
            raise PtxError(
                f"{call.place}: {shortened(callee.name)} takes other numbers of arguments"
            )
        inner, end = Scope(), Label()
        for formal, operand in zip(callee.results, results, strict=True):
            inner.names[formal.name] = operand
        if call.guard is not None:
            register, negated = call.guard
            skip = Instruction(["bra"], [], (register, not negated), call.line, call.text)
            self.items.append(skip)
            self.branches[id(skip)] = end
        for formal, operand in zip(callee.formals, arguments, strict=True):
            inner.names[formal.name] = self._argument(inner, formal, operand, call)
        self._function(callee, inner.names, end)
        self.items.append(end)

    def _argument(self, inner: Scope, formal: Formal, given: Operand, call: Instruction) -> Operand:
        """What a formal stands for: the variable that was given, or a copy of a register."""
        if formal.space == "param":
            if isinstance(given, Symbol):
                return given
            raise UnsupportedError(f"{call.place}: a register for a .param is not covered")
        copy = self._register(inner, formal.name, formal.type, call.line)
        opcode = ["mov", formal.type]
        self.items.append(Instruction(opcode, [copy, given], None, call.line, call.text))
        return copy
