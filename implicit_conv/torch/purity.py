"""Which nodes of a graph surely write to none of their inputs."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

# Functions of these write to nothing but where their names or arguments say so.
PURE = ("torch", "torch.nn.functional", "torch._C._nn", "_operator", "builtins", "math")
OPERATORS = vars(operator)


def is_pure(node: Node) -> bool:
    """Whether a node surely writes to none of its inputs."""
    if node.op == "call_method":
        method = str(node.target)
        if method.startswith("__"):
            return not _writes(method.strip("_"))
        return not method.endswith("_")
    if node.op != "call_function":
        return bool(node.op != "call_module")
    function: Any = node.target
    name, home = function.__name__, function.__module__
    if home not in PURE and not str(home).startswith("torch._C"):
        return False
    if home == "_operator":
        return not (name == "getitem" or _writes(name))  # items of any object
    given = *node.args, *node.kwargs.values()
    named = dict(zip(_names(function), node.args, strict=False)) | node.kwargs
    return not (
        name.endswith("_")
        or "out" in named
        or named.get("inplace")  # which may be 1
        or any(each is True for each in given)
    )


def _names(function: Any) -> tuple[str, ...]:
    """The arguments of a function of Python, by their places."""
    code = getattr(function, "__code__", None)
    return code.co_varnames[: code.co_argcount] if code else ()


def _writes(name: str) -> bool:
    """Whether a function of `operator` writes to its first argument, such as iadd."""
    if name in ("setitem", "delitem"):
        return True
    return name.startswith("i") and (name[1:] in OPERATORS or f"{name[1:]}_" in OPERATORS)
