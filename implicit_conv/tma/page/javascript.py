"""Functions of Python as JavaScript, so that the page computes by the very rules of Python.

`script` prints functions with all that they stand on: other functions, dataclasses, and constants,
which are printed by value. It knows the part of Python in which rules are written: integers, texts,
tuples, lists, dicts, and generators; anything else is a TypeError. page/python.js has what
JavaScript lacks of that part: `py` operators and built-in functions, `method` those of types.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any

# Methods of texts, lists and dicts.
METHODS = "append get index insert items join lower partition removeprefix rstrip".split()
BUILT_IN = ("math", "builtins", "dataclasses")  # modules whose functions `py` has
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Lt: "{} < {}", ast.LtE: "{} <= {}", ast.Gt: "{} > {}", ast.GtE: "{} >= {}"},
    **{ast.Eq: "py.same({}, {})", ast.NotEq: "!py.same({}, {})"},
    **{ast.In: "py.has({}, {})", ast.NotIn: "!py.has({}, {})"},
    **{ast.Is: "({} ?? null) === {}", ast.IsNot: "({} ?? null) !== {}"},
    **{ast.Add: "py.add({}, {})", ast.Sub: "({} - {})", ast.Mult: "py.times({}, {})"},
    **{
        ast.Mod: "py.mod({}, {})",
        ast.FloorDiv: "Math.floor({} / {})",
        ast.LShift: "({} * 2 ** {})",
    },
}


def script(*entries: Callable[..., Any]) -> str:
    """JavaScript with these functions and dataclasses, by their own names.

    Raises
    ------
    TypeError
        They use what cannot be printed; the message names it.
    """
    written = Script()
    aliases = [f"const {entry.__name__} = {written.named(entry)};" for entry in entries]
    return "\n".join([*written.parts.values(), *aliases])


class Script:
    """What is printed, by its name in JavaScript: that of the module, "$", and its own."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}

    def named(self, value: Any) -> str:
        """The name of a function or dataclass, which is printed as well."""
        if value.__module__ in BUILT_IN:
            return f"py.{value.__name__}"
        name = f"{value.__module__.rpartition('.')[2]}${value.__name__}"
        if name not in self.parts:
            self.parts[name] = ""  # a function may call itself
            if isinstance(value, FunctionType):
                self.parts[name] = f"function{Function(self, value).text(name)}"
            elif dataclasses.is_dataclass(value):
                self.parts[name] = self._class(name, value)
            else:
                raise TypeError(f"{name} has no form in JavaScript")
        return name

    def constant(self, name: str, value: Any) -> str:
        """The name of a constant, which is printed as well; numbers and texts need none."""
        if callable(value) or isinstance(value, (int, str)):
            return self.value(value)
        self.parts[name] = f"const {name} = {self.value(value)};"
        return name

    def value(self, value: Any) -> str:
        """A value as an expression."""
        if hasattr(value, "_asdict"):
            value = value._asdict()
        if isinstance(value, dict):
            entries = (f"{json.dumps(str(key))}: {self.value(x)}" for key, x in value.items())
            return f"{{{', '.join(entries)}}}"
        if isinstance(value, (tuple, list)):
            return f"[{', '.join(map(self.value, value))}]"
        plain = value is None or isinstance(value, (str, int))
        return json.dumps(value) if plain else self.named(value)

    def _class(self, name: str, kind: Any) -> str:
        """A class that is constructed from an object with its fields."""
        fields = dataclasses.fields(kind)
        known = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
        lines = [f"constructor(given) {{ Object.assign(this, {self.value(known)}, given); }}"]
        for own, value in vars(kind).items():
            if isinstance(value, property) and isinstance(value.fget, FunctionType):
                lines.append(f"get {Function(self, value.fget).text(own)}")
            elif isinstance(value, FunctionType) and not own.startswith("__"):
                lines.append(Function(self, value).text(own))
        return "\n".join([f"class {name} {{", *lines, "}"])


class Function:
    """One function; `FORMS` says how a kind of node is printed."""

    def __init__(self, script: Script, function: FunctionType) -> None:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.script, self.tree, self.globals = script, tree, function.__globals__
        self.home = function.__module__.rpartition(".")[2]
        nodes = list(ast.walk(tree))
        arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
        names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.declared = names - arguments
        inner = {node.name for node in nodes[1:] if isinstance(node, ast.FunctionDef)}
        self.locals = names | arguments | inner
        self.star = "*" if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes) else ""

    def text(self, name: str) -> str:
        """The function after the word "function" or "get", or as a method."""
        let = f"let {', '.join(sorted(self.declared))};\n" if self.declared else ""
        head = f"{self.star} {name}({self.parameters(self.tree.args)})"
        return f"{head} {{\n{let}{self.block(self.tree.body)}}}"

    def node(self, node: Any) -> str:
        """The text of a statement or an expression."""
        if type(node) not in FORMS:
            where = f"{type(node).__name__} in {self.home}.{self.tree.name}"
            raise TypeError(f"{where} has no form in JavaScript")
        return FORMS[type(node)](self, node)

    def block(self, body: Iterable[ast.AST]) -> str:
        """The statements of a body, a line each."""
        return "".join(f"{self.node(statement)}\n" for statement in body)

    def nodes(self, nodes: Iterable[ast.AST]) -> str:
        """Expressions after each other."""
        return ", ".join(map(self.node, nodes))

    def parameters(self, given: ast.arguments) -> str:
        """The parameters of a function with their defaults; those by name alone come last."""
        needed = len(given.args) - len(given.defaults)
        defaults = [*[None] * needed, *given.defaults, *given.kw_defaults]
        pairs = zip([*given.args, *given.kwonlyargs], defaults, strict=True)
        parts = [f"{a.arg} = {self.node(x)}" if x else a.arg for a, x in pairs if a.arg != "self"]
        parts += [f"...{given.vararg.arg}"] if given.vararg else []
        return ", ".join([*parts, given.kwarg.arg] if given.kwarg else parts)

    def fields(self, named: Iterable[ast.keyword]) -> str:
        """Arguments by name, as an object."""
        texts = ((f"{k.arg}: " if k.arg else "...", self.node(k.value)) for k in named)
        return f"{{{', '.join(before + value for before, value in texts)}}}"

    def condition(self, node: ast.expr) -> str:
        """An expression of which only the truth counts."""
        if isinstance(node, ast.BoolOp):
            operator = " && " if isinstance(node.op, ast.And) else " || "
            return f"({operator.join(map(self.condition, node.values))})"
        return self.node(node) if isinstance(node, ast.Compare) else f"py.yes({self.node(node)})"

    def comprehension(self, generators: Sequence[ast.comprehension], element: str) -> str:
        """An array of an element for each turn of the loops."""
        first, *others = generators
        target, text = f"({self.node(first.target)})", f"py.each({self.node(first.iter)})"
        text += "".join(f".filter({target} => {self.condition(test)})" for test in first.ifs)
        inner = self.comprehension(others, element) if others else element
        return f"{text}.{'flatMap' if others else 'map'}({target} => {inner})"

    def known(self, node: ast.AST) -> Any:
        """What an expression names among the globals of the function; None if nothing."""
        if isinstance(node, ast.Attribute):
            module = self.known(node.value)
            return getattr(module, node.attr) if isinstance(module, ModuleType) else None
        if not isinstance(node, ast.Name) or node.id in self.locals:
            return None
        return self.globals.get(node.id)

    def call(self, node: ast.Call) -> str:
        """A call; arguments by name take their places, or are the fields of a dataclass."""
        called, named = self.known(node.func), [k for k in node.keywords if k.arg != "strict"]
        if called is None and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            return f"method.{node.func.attr}({self.nodes([node.func.value, *node.args])})"
        if dataclasses.is_dataclass(called):
            names = [field.name for field in dataclasses.fields(called)]
            given = [ast.keyword(n, value) for n, value in zip(names, node.args, strict=False)]
            return f"new {self.node(node.func)}({self.fields([*given, *named])})"
        arguments = [self.node(argument) for argument in node.args]
        if called is dataclasses.replace:
            arguments.append(self.fields(named))
        elif named:
            values = {k.arg: self.node(k.value) for k in named}
            for name, known in list(inspect.signature(called).parameters.items())[len(arguments) :]:
                others = [k for k in named if k.arg in values]
                gathers = known.kind is known.VAR_KEYWORD
                arguments.append(self.fields(others) if gathers else values.pop(name, "undefined"))
        return f"{self.node(node.func)}({', '.join(arguments)})"

    def name(self, node: ast.Name) -> str:
        """A local name, a global one of the module, or a built-in function."""
        if node.id == "_":
            return ""  # a place that is left out of an array
        if node.id in self.locals:
            return "this" if node.id == "self" else node.id
        if node.id in self.globals:
            return self.script.constant(f"{self.home}${node.id}", self.globals[node.id])
        return f"py.{node.id}"

    def attribute(self, node: ast.Attribute) -> str:
        """A field, or what a module has."""
        known = self.known(node)
        return f"{self.node(node.value)}.{node.attr}" if known is None else self.script.value(known)

    def compare(self, node: ast.Compare) -> str:
        """Comparisons in a row, each with the one before."""
        sides = list(map(self.node, [node.left, *node.comparators]))
        turns = zip(node.ops, sides, sides[1:], strict=False)
        return f"({' && '.join(OPERATORS[type(op)].format(a, b) for op, a, b in turns)})"

    def either(self, node: ast.BoolOp) -> str:
        """The first operand that decides."""
        *values, text = map(self.node, node.values)
        for value in reversed(values):
            text = f"py.{'and' if isinstance(node.op, ast.And) else 'or'}({value}, () => {text})"
        return text

    def dictionary(self, node: ast.Dict) -> str:
        """An object."""
        pairs = (
            (f"[{self.node(k)}]: " if k else "...", v)
            for k, v in zip(node.keys, node.values, strict=True)
        )
        return f"{{{', '.join(before + self.node(value) for before, value in pairs)}}}"

    def subscript(self, node: ast.Subscript) -> str:
        """An entry or a part of a list, or the value of a key."""
        if isinstance(node.ctx, ast.Store):
            return f"{self.node(node.value)}[{self.node(node.slice)}]"
        if not isinstance(node.slice, ast.Slice):
            return f"py.at({self.nodes([node.value, node.slice])})"
        ends = (node.slice.lower, node.slice.upper, node.slice.step)
        parts = ["null" if end is None else self.node(end) for end in ends]
        return f"py.slice({', '.join([self.node(node.value), *parts])})"

    def formatted(self, node: ast.JoinedStr) -> str:
        """A text with values in it."""
        parts = [
            f"py.str({self.node(part.value)})"
            if isinstance(part, ast.FormattedValue)
            else self.node(part)
            for part in node.values
        ]
        return f"({' + '.join(parts)})"


FORMS: dict[type[ast.AST], Callable[[Function, Any], str]] = {
    ast.Assign: lambda f, n: f"{f.nodes(n.targets)} = {f.node(n.value)};",
    ast.AnnAssign: lambda f, n: f"{f.node(n.target)} = {f.node(n.value)};",
    ast.AugAssign: lambda f, n: (
        f"{f.node(n.target)} = {OPERATORS[type(n.op)].format(f.node(n.target), f.node(n.value))};"
    ),
    ast.Continue: lambda f, n: "continue;",
    ast.Expr: lambda f, n: "" if isinstance(n.value, ast.Constant) else f"{f.node(n.value)};",
    ast.For: lambda f, n: (
        f"for ({f.node(n.target)} of py.each({f.node(n.iter)})) {{\n{f.block(n.body)}}}"
    ),
    ast.FunctionDef: lambda f, n: (
        f"const {n.name} = ({f.parameters(n.args)}) => {{\n{f.block(n.body)}}};"
    ),
    ast.If: lambda f, n: (
        f"if ({f.condition(n.test)}) {{\n{f.block(n.body)}}}"
        + (f" else {{\n{f.block(n.orelse)}}}" if n.orelse else "")
    ),
    ast.Raise: lambda f, n: f"throw {f.node(n.exc)};",
    ast.Return: lambda f, n: f"return {f.node(n.value) if n.value else ''};",
    ast.While: lambda f, n: f"while ({f.condition(n.test)}) {{\n{f.block(n.body)}}}",
    ast.Attribute: Function.attribute,
    ast.BinOp: lambda f, n: OPERATORS[type(n.op)].format(f.node(n.left), f.node(n.right)),
    ast.BoolOp: Function.either,
    ast.Call: Function.call,
    ast.Compare: Function.compare,
    ast.Constant: lambda f, n: json.dumps(n.value),
    ast.Dict: Function.dictionary,
    ast.DictComp: lambda f, n: (
        f"Object.fromEntries({f.comprehension(n.generators, f'[{f.nodes([n.key, n.value])}]')})"
    ),
    ast.GeneratorExp: lambda f, n: f.comprehension(n.generators, f.node(n.elt)),
    ast.IfExp: lambda f, n: f"({f.condition(n.test)} ? {f.node(n.body)} : {f.node(n.orelse)})",
    ast.JoinedStr: Function.formatted,
    ast.List: lambda f, n: f"[{f.nodes(n.elts)}]",
    ast.ListComp: lambda f, n: f.comprehension(n.generators, f.node(n.elt)),
    ast.Name: Function.name,
    ast.Starred: lambda f, n: (
        f"...{n.value.id}" if isinstance(n.ctx, ast.Store) else f"...py.each({f.node(n.value)})"
    ),
    ast.Subscript: Function.subscript,
    ast.Tuple: lambda f, n: f"[{f.nodes(n.elts)}]",
    ast.UnaryOp: lambda f, n: (
        f"!{f.condition(n.operand)}" if isinstance(n.op, ast.Not) else f"(-{f.node(n.operand)})"
    ),
    ast.Yield: lambda f, n: f"yield {f.node(n.value)}",
    ast.YieldFrom: lambda f, n: f"yield* py.each({f.node(n.value)})",
}
