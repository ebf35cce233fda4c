"""A PTX module's text -> its target, variables and functions (PTX ISA 4 and 5, and 11)."""

from __future__ import annotations

import bisect
import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from implicit_conv.ptx import limits
from implicit_conv.ptx.errors import PtxError, UnsupportedError, shortened
from implicit_conv.ptx.kinds import STORAGE, size_of
from implicit_conv.ptx.syntax import Variable
from implicit_conv.ptx.text.operands import BITS, DECIMAL, integer

FORMAL = re.compile(r"\.(param|reg)\s+((?:\.\w+(?:\s+\d+)?\s+)*)([\w$%]+)(?:\[(\d*)\])?")
FUNCTION = re.compile(r"\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?")
VARIABLE = re.compile(
    r"\.(shared|global|const|local|param)\s+((?:\.\w+(?:\s+\d+)?\s+)*)([\w$%]+)((?:\[\d*\])*)"
    r"\s*(?:=\s*(.*))?",
    re.S,
)
LINKAGE = re.compile(r"\.(?:visible|extern|weak|common)\s+")
DIRECTIVE = re.compile(r"\.(version|target|address_size|file|loc)\b([^\n]*)")
FILE = re.compile(r'\s*(\d+)\s+"([^"]*)"')
BRACE = re.compile(r"[{}]")
BRACE_OR_END = re.compile(r"[{;]")
COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.S)  # or a string, which may hold //


class Formal(NamedTuple):
    """A parameter or return value as a function declares it."""

    space: str  # "param" or "reg"
    type: str
    name: str
    align: int
    size: int


class Function(NamedTuple):
    """A function or entry; its body is text[start:end], without the first brace."""

    name: str
    entry: bool
    results: tuple[Formal, ...]
    formals: tuple[Formal, ...]
    header: str
    start: int
    end: int
    line: int


@dataclass
class Module:
    """The parts of a module. `text` has no comments, and as many lines as were given."""

    text: str
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # of .file: number -> path

    def __post_init__(self) -> None:
        self.breaks = [match.start() for match in re.finditer("\n", self.text)]

    def line(self, at: int) -> int:
        """The number of the line of a character, from 1."""
        return bisect.bisect_left(self.breaks, at) + 1

    def entry(self, name: str | None = None) -> Function:
        """The entry of this name, or the only one."""
        entries = [f for f in self.functions.values() if f.entry and name in (None, f.name)]
        if len(entries) != 1:
            names = ", ".join(f.name for f in self.functions.values() if f.entry)
            raise PtxError(
                f"entry={name!r} selects {len(entries)} entries; the text has {shortened(names)}"
            )
        return entries[0]


def read_module(text: str) -> Module:
    """The module of a text.

    Raises
    ------
    PtxError
        The text is not PTX.
    """
    if len(text) > limits.TEXT:
        raise PtxError(f"the text has {len(text)} characters; {limits.TEXT} is the most")
    module, at = Module(without_comments(text)), 0
    text = module.text
    while (at := _next(text, at)) < len(text):
        at = _item(module, at)
    if not module.target:
        raise PtxError("this is no PTX: it has no .target")
    return module


def without_comments(text: str) -> str:
    """The text with blanks for comments, so that places and lines stay."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found[0] == '"' else "\n".join(" " * len(p) for p in found.split("\n"))

    return COMMENT.sub(blank, text).strip("\0")


def _next(text: str, at: int) -> int:
    while at < len(text) and (text[at].isspace() or text[at] == ";"):
        at += 1
    return at


def _item(module: Module, at: int) -> int:
    """Read the item that begins at `at`; where the next one may begin."""
    text = module.text
    if match := DIRECTIVE.match(text, at):
        if match[1] == "target":
            module.target = match[2].split(",")[0].strip()
        elif match[1] == "file" and (file := FILE.match(match[2])):
            module.files[file[1]] = file[2]
        return match.end()
    place = f"line {module.line(at)}"
    stop = BRACE_OR_END.search(text, at)
    if stop is None:
        raise PtxError(f"{place}: not understood: {shortened(text[at:])}")
    if text.startswith(".section", at):
        return _closing(module, text.find("{", stop.start()))
    if stop[0] == "{" and "=" not in text[at : stop.start()]:
        end = _closing(module, stop.start())
        _function(module, text[at : stop.start()], stop.end(), end, place)
        return end
    end = text.find(";", stop.start())
    if end < 0:
        raise PtxError(f"{place}: no semicolon ends {shortened(text[at:])}")
    item = LINKAGE.sub("", text[at:end]).strip()
    if not item.startswith((".func", ".entry", ".pragma")):  # declarations without a body
        module.variables.append(variable(item, place))
    return end + 1


def _closing(module: Module, brace: int) -> int:
    """The end of a body whose brace opens at `brace`."""
    depth = 0
    for match in BRACE.finditer(module.text, brace) if brace >= 0 else ():
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.end()
    raise PtxError(f"line {module.line(max(brace, 0))}: a body has no closing brace")


def _function(module: Module, header: str, start: int, end: int, place: str) -> None:
    if len(header) > limits.HEADER:
        raise PtxError(f"{place}: a declaration has {len(header)} characters of {limits.HEADER}")
    match = FUNCTION.search(header)
    if match is None:
        raise PtxError(f"{place}: not understood: {shortened(header)}")
    results, formals = (tuple(_formals(match[group] or "", place)) for group in (2, 4))
    name, entry, line = match[3], match[1] == "entry", module.line(start)
    module.functions[name] = Function(name, entry, results, formals, header, start, end, line)


def _formals(text: str, place: str) -> list[Formal]:
    found = []
    for space, attributes, name, count in FORMAL.findall(text):
        type_, align = _type(attributes, place)
        unit = max(1, size_of(STORAGE[type_]))
        found.append(Formal(space, type_, name, align or unit, unit * number(count or "1", place)))
    return found


def number(digits: str, place: str) -> int:
    """A count or an alignment.

    Raises
    ------
    PtxError
        It is beyond all limits.
    """
    if len(digits) > limits.DIGITS:
        raise PtxError(
            f"{place}: the number {shortened(digits)!r} has more than {limits.DIGITS} digits"
        )
    return int(digits)


def _type(attributes: str, place: str) -> tuple[str, int]:
    """(type, alignment or 0) of a declaration's attributes; those after .ptr are the pointee's."""
    words = re.findall(r"\.(\w+)(?:\s+(\d+))?", attributes.split(".ptr", maxsplit=1)[0])
    types = [word for word, _ in words if word in STORAGE]
    if not types:
        raise UnsupportedError(f"{place}: the declaration {shortened(attributes)!r} is not covered")
    align = next((number(digits or "0", place) for word, digits in words if word == "align"), 0)
    if align & (align - 1) or align > limits.ALIGNMENT:
        raise PtxError(f"{place}: .align {align} is no power of two up to {limits.ALIGNMENT}")
    return types[0], align


def variable(text: str, place: str) -> Variable:
    """The variable that a declaration such as ``.shared .align 16 .b8 x[64]`` declares."""
    match = VARIABLE.fullmatch(text.strip())
    if match is None:
        raise UnsupportedError(f"{place}: not covered: {shortened(text)}")
    type_, align = _type(match[2], place)
    unit = max(1, size_of(STORAGE[type_]))
    data = _initial(match[5], type_, unit, place) if match[5] else b""
    size = unit
    for count in re.findall(r"\[(\d*)\]", match[4]):
        size = min(size * number(count or "0", place), 1 << 63)
    size, most = max(size, len(data)), limits.SPACE_BYTES[match[1]]
    if size > most:
        raise PtxError(f"{place}: {shortened(match[3])} has {size} bytes; .{match[1]} has {most}")
    return Variable(match[1], match[3], align or unit, size, data)


def _initial(text: str, type_: str, unit: int, place: str) -> bytes:
    """The bytes of an initialiser: numbers, also in braces."""
    data = bytearray()
    for word in text.replace("{", " ").replace("}", " ").replace(",", " ").split():
        value = integer(word)
        if match := BITS.fullmatch(word):
            value = int(match[1] or match[2], 16)
        elif type_ == "f64" and DECIMAL.fullmatch(word):
            value = struct.unpack("<Q", struct.pack("<d", float(word)))[0]
        if value is None:
            raise UnsupportedError(f"{place}: the initialiser {shortened(word)!r} is not covered")
        data += (value % (1 << 8 * unit)).to_bytes(unit, "little")
    return bytes(data)
