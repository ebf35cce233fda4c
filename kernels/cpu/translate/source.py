"""Syntax trees of functions, and which of their variables need memory."""

import ast
import functools
import linecache
from collections import Counter
from types import FunctionType

from implicit_conv.kernels.cpu.translate.values import TranslationError


@functools.cache
def _definitions(path: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """The functions that a file defines, by name and first line, decorators included."""
    found = {}
    for node in ast.walk(ast.parse("".join(linecache.getlines(path)))):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name, first] = node
    return found


def definition_of(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a function.

    Raises
    ------
    TranslationError
        Its source cannot be read.
    """
    code = function.__code__
    linecache.lazycache(code.co_filename, function.__globals__)  # for sources in a zip file
    definition = _definitions(code.co_filename).get((code.co_name, code.co_firstlineno))
    if definition is None:
        raise TranslationError(
            f"{code.co_name} cannot be compiled, as its source in {code.co_filename} cannot be "
            "read: install the package with its .py files"
        )
    return definition


@functools.cache
def constants(definition: ast.FunctionDef) -> frozenset[str]:
    """The variables that have one value wherever they are read, so that they need no memory: they
    are bound once, and all that reads them is in the statements beside their binding.
    """
    bound, read = Counter(argument.arg for argument in definition.args.args), Counter[str]()
    for node in ast.walk(definition):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound)[node.id] += 1
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            bound[node.target.id] += 1  # changes count twice: they read too
    local = {argument.arg for argument in definition.args.args}

    def visit(block: list[ast.stmt], names: list[str]) -> Counter[str]:
        reads = Counter[str]()
        for statement in block:
            if isinstance(statement, ast.Assign):
                names = [*names, *(name for target in statement.targets for name in _names(target))]
            inner = _names(statement.target) if isinstance(statement, ast.For) else []
            blocks = [getattr(statement, part, []) for part in ("body", "orelse")]
            reads += visit(blocks[0], inner) + visit(blocks[1], [])
            for field, value in ast.iter_fields(statement):
                if field not in ("body", "orelse"):
                    reads += _reads(value)
        local.update(name for name in names if reads[name] == read[name])
        return reads

    visit(definition.body, [])
    return frozenset(name for name in local if bound[name] == 1)


def _names(target: ast.expr) -> list[str]:
    """The names that an assignment binds."""
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _reads(value: object) -> Counter[str]:
    """How often names are read in a field of a syntax tree."""
    trees = value if isinstance(value, list) else [value]
    return Counter(
        node.id
        for tree in trees
        if isinstance(tree, ast.AST)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


@functools.cache
def calls(expression: ast.expr) -> bool:
    """Whether an expression calls a function, and so must not be computed in vain."""
    return any(isinstance(node, ast.Call) for node in ast.walk(expression))
