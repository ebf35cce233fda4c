"""No attribute of ours has the name of one that a base class of a library has for itself."""

import ast
import builtins
import importlib
import inspect
import itertools
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"implicit_conv", "kernels"}
NO_STATE = {"Generic", "ABC", "Protocol", "NamedTuple", "TypedDict", "Enum"}
BASES = re.compile(r"\bclass +\w+ *\(([^)]*)")
MEANT = {  # what a library asks its subclasses to have
    "BFloat": {"_to_string"},  # llvmlite's ir.Type has no other way to print one
    "ForwardTracer": {"proxy_buffer_attributes"},  # torch.fx documents it as an option
}


def library_classes(path):
    """The classes of a module that have a base of a library, but those that a function makes."""
    text = path.read_text(encoding="utf-8")
    if {base.strip() for bases in BASES.findall(text) for base in bases.split(",")} <= NO_STATE:
        return  # before the text is parsed, which takes far longer
    tree = ast.parse(text)
    origins = dict.fromkeys(dir(builtins), "builtins")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origins |= {(a.asname or a.name).partition(".")[0]: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            origins |= {a.asname or a.name: node.module for a in node.names}
    conditional = [part for part in tree.body if isinstance(part, ast.If)]
    for node in itertools.chain(tree.body, *(part.body + part.orelse for part in conditional)):
        for base in getattr(node, "bases", ()):
            name = ast.unparse(base).partition("[")[0]
            library = origins.get(name.partition(".")[0], "kernels").partition(".")[0]
            if library not in OURS and name.rpartition(".")[2] not in NO_STATE:
                yield node.name


CLASSES = [
    (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."), name)
    for folder in ("implicit_conv", "kernels")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if folder == "kernels" or "kernels" not in path.parts
    for name in dict.fromkeys(library_classes(path))
]


def assigned(kind):
    """The attributes that methods of a class assign to `self`, as far as it is written in Python,
    and those that it declares as slots.
    """
    names = set(vars(kind).get("__slots__", ()))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):  # it is written in C
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                names.add(node.attr)
    return names


def shadowed(kind, package="implicit_conv"):
    """The names in a class of a package that a base of another one has too. A method may override a
    public method, and names between underscores are what Python or a library asks for.
    """
    ours = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == package]
    theirs = [base for base in kind.__mro__ if base not in ours and base is not object]
    instance = set().union(*map(assigned, ours))
    body = {
        name
        for base in ours
        for name, value in vars(base).items()
        if name.startswith("_") or not inspect.isfunction(value)
    }
    taken = set().union(*map(assigned, theirs), *map(dir, theirs))
    return {name for name in taken & (instance | body) if not name.endswith("_")}


def test_classes_are_found():
    assert ("implicit_conv.process.preparation", "_Task") in CLASSES
    assert len(CLASSES) >= 12


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_no_attribute_of_a_base_is_shadowed(module, name):
    module = f"implicit_conv.{module}" if module.startswith("kernels") else module
    try:
        kind = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] not in OURS
        pytest.skip(f"{module} needs {error.name}, which is not installed")
    assert shadowed(kind) == MEANT.get(name, set())


def test_a_shadowed_attribute_is_found():
    import threading

    class Planted(threading.Thread):
        _target = None

        def __init__(self):
            super().__init__()
            self._args = ()
            self.name = "a property of threads"

        def run(self):
            """A method that is there to be overridden."""

    assert shadowed(Planted, __name__.partition(".")[0]) == {"_target", "_args", "name"}
