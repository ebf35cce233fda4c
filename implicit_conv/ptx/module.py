"""A PTX module's text -> its target, variables and functions (PTX ISA 4 and 5, and 11)."""

from __future__ import annotations

import bisect
import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from implicit_conv.ptx.errors import PtxError, UnsupportedError
from implicit_conv.ptx.kinds import STORAGE, size_of
from implicit_conv.ptx.syntax import Variable

FORMAL = re.compile(r"\.(param|reg)\s+((?:\.\w+(?:\s+\d+)?\s+)*)([\w$%]+)(?:\[(\d*)\])?")
FUNCTION = re.compile(r"\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?")
VARIABLE = re.compile(
    r"\.(shared|global|const|local|param)\s+((?:\.\w+(?:\s+\d+)?\s+)*)([\w$%]+)((?:\[\d*\])*)"
    r"\s*(?:=\s*(.*))?",
    re.S,
)
LINKAGE = re.compile(r"\.(?:visible|extern|weak|common)\s+")


class Formal(NamedTuple):
    """A parameter or return value as a function declares it."""

    space: str  # "param" or "reg"
    type: str
    name: str
    align: int
    size: int


class Function(NamedTuple):
    """A function or entry; `start` is where its body begins, after the brace."""

    name: str
    entry: bool
    results: tuple[Formal, ...]
    formals: tuple[Formal, ...]
    header: str
    start: int


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
            names = ", ".join(f.name for f in self.functions.values() if f.entry) or "none"
            raise PtxError(f"entry={name!r} selects {len(entries)} entries; the text has {names}")
        return entries[0]


def read_module(text: str) -> Module:
    """The module of a text.

    Raises
    ------
    PtxError
        The text is not PTX.
    """
    module, at = Module(without_comments(text)), 0
    text = module.text
    while (at := _next(text, at)) < len(text):
        at = _item(module, at)
    if not module.target:
        raise PtxError("this is no PTX: it has no .target")
    return module


def without_comments(text: str) -> str:
    """The text with blanks for comments, so that places and lines stay."""
    text = re.sub(r"//[^\n]*", lambda m: " " * len(m[0]), text)
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S).strip("\0")


def _next(text: str, at: int) -> int:
    while at < len(text) and (text[at].isspace() or text[at] == ";"):
        at += 1
    return at


def _item(module: Module, at: int) -> int:
    """Read the item that begins at `at`; where the next one may begin."""
    text = module.text
    if match := re.compile(r"\.(version|target|address_size|file|loc)\b([^\n]*)").match(text, at):
        if match[1] == "target":
            module.target = match[2].split(",")[0].strip()
        elif match[1] == "file" and (file := re.match(r'\s*(\d+)\s+"([^"]*)"', match[2])):
            module.files[file[1]] = file[2]
        return match.end()
    if text.startswith(".section", at):
        return _closing(text, text.index("{", at))
    brace, end = text.find("{", at), text.find(";", at)
    if min(brace, end) < 0 and max(brace, end) < 0:
        raise PtxError(f"line {module.line(at)}: not understood: {text[at : at + 60]!r}")
    if 0 <= brace and (brace < end or end < 0) and "=" not in text[at:brace]:
        _function(module, text[at:brace], brace + 1)
        return _closing(text, brace)
    item = LINKAGE.sub("", text[at:end]).strip()
    if item.startswith((".func", ".entry", ".pragma")):  # a declaration: the body comes elsewhere
        return end + 1
    module.variables.append(variable(item, f"line {module.line(at)}"))
    return end + 1


def _closing(text: str, brace: int) -> int:
    """The end of a body whose brace opens at `brace`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, brace):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.end()
    raise PtxError("a body has no closing brace")


def _function(module: Module, header: str, start: int) -> None:
    match = FUNCTION.search(header)
    if match is None:
        raise PtxError(f"line {module.line(start)}: not understood: {header.strip()[:80]!r}")
    results, formals = (tuple(_formals(match[group] or "")) for group in (2, 4))
    name = match[3]
    module.functions[name] = Function(name, match[1] == "entry", results, formals, header, start)


def _formals(text: str) -> list[Formal]:
    found = []
    for space, attributes, name, count in FORMAL.findall(text):
        type_, align = _type(attributes)
        size = max(1, size_of(STORAGE[type_])) * int(count or 1)
        found.append(Formal(space, type_, name, align or max(1, size_of(STORAGE[type_])), size))
    return found


def _type(attributes: str) -> tuple[str, int]:
    """(type, alignment or 0) of a declaration's attributes; those after .ptr are the pointee's."""
    words = re.findall(r"\.(\w+)(?:\s+(\d+))?", attributes.split(".ptr", maxsplit=1)[0])
    types = [word for word, _ in words if word in STORAGE]
    if not types:
        raise UnsupportedError(f"the declaration {attributes.strip()!r} is not covered")
    return types[0], next((int(number) for word, number in words if word == "align"), 0)


def variable(text: str, place: str) -> Variable:
    """The variable that a declaration such as ``.shared .align 16 .b8 x[64]`` declares."""
    match = VARIABLE.fullmatch(text.strip())
    if match is None:
        raise UnsupportedError(f"{place}: not covered: {' '.join(text.split())[:100]}")
    type_, align = _type(match[2])
    unit = size_of(STORAGE[type_])
    counts = [int(count or 0) for count in re.findall(r"\[(\d*)\]", match[4])]
    size = unit
    for count in counts:
        size *= count
    data = _initial(match[5], type_, unit, place) if match[5] else b""
    return Variable(match[1], match[3], align or unit, max(size, len(data)), data)


def _initial(text: str, type_: str, unit: int, place: str) -> bytes:
    """The bytes of an initialiser: numbers, also in braces."""
    data = b""
    for word in text.replace("{", " ").replace("}", " ").replace(",", " ").split():
        if re.fullmatch(r"0[fFdD][0-9a-fA-F]+", word):
            number = int(word[2:], 16)
        elif re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", word):
            number = int(word.rstrip("U"), 0)
        elif type_ == "f64":
            number = struct.unpack("<Q", struct.pack("<d", float(word)))[0]
        else:
            raise UnsupportedError(f"{place}: the initialiser {word!r} is not covered")
        data += (number % (1 << 8 * unit)).to_bytes(unit, "little")
    return data
