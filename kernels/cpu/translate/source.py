"""Syntax trees of functions, and which of their variables need memory."""

import ast
import functools
import linecache
from collections import Counter
from types import FunctionType

from implicit_conv.kernels.cpu.translate.values import TranslationError


@functools.cache
def _definitions(path: str) -> dict[tuple[str, int], ast.FunctionDef]:
    """The functions that a file defines, by name and first line, decorators included.

    Raises
    ------
    OSError
        The file cannot be read; the next call tries again.
    """
    lines = linecache.getlines(path)
    if not lines:
        raise OSError(f"{path} cannot be read")
    found = {}
    for node in ast.walk(ast.parse("".join(lines))):
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
    try:
        return _definitions(code.co_filename)[code.co_name, code.co_firstlineno]
    except (OSError, KeyError) as error:
        raise TranslationError(
            f"{code.co_name} cannot be compiled, as its source in {code.co_filename} cannot be "
            "read: install the package with its .py files, and free file descriptors"
        ) from error


@functools.cache
def constants(definition: ast.FunctionDef) -> frozenset[str]:
    """The variables that are bound once: they have one value wherever they may be read, which is
    after their binding on every path, so that they need no memory.
    """
    bound = Counter(argument.arg for argument in definition.args.args)
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] += 1
    return frozenset(name for name, count in bound.items() if count == 1)


@functools.cache
def calls(expression: ast.expr) -> bool:
    """Whether an expression calls a function, and so must not be computed in vain."""
    return any(isinstance(node, ast.Call) for node in ast.walk(expression))


@functools.cache
def owners(expression: ast.expr) -> frozenset[str]:
    """The variables whose attributes an expression reads."""
    return frozenset(
        node.value.id
        for node in ast.walk(expression)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    )
