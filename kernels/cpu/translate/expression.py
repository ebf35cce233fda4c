"""Translate expressions, for the translation of a function."""

import ast
import builtins
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.vector import I64
from implicit_conv.kernels.cpu.translate import source, values
from implicit_conv.kernels.cpu.translate.module import Module, call_intrinsic
from implicit_conv.kernels.cpu.translate.values import (
    BOOL,
    DOUBLE,
    TranslationError,
    Typed,
    UnsupportedError,
    both,
    choose,
    compute,
    convert,
    flatten,
    is_known,
    kind_of,
    make_tuple,
    rebuild,
    shape_of,
    truth,
    widest,
)

MATH = {  # functions of float64: LLVM's intrinsics, or functions of libm
    math.exp: "llvm.exp.f64",
    math.sqrt: "llvm.sqrt.f64",
    math.erfc: "erfc",
    math.tanh: "tanh",
}


class Expressions(ABC):
    """Expressions of one function.

    `names` has its variables that never change; those `assigned` have a value on every path.
    """

    def __init__(self, module: Module, function: FunctionType, builder: ir.IRBuilder) -> None:
        self._module, self._python, self.builder = module, function, builder
        self.names: dict[str, Any] = {}
        self.assigned: set[str] = set()
        code = function.__code__
        self._locals = frozenset(code.co_varnames + code.co_cellvars)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        self._cells = {name: cell.cell_contents for name, cell in cells}

    @abstractmethod
    def variable(self, name: str) -> Any:
        """The value of a variable that is kept on the stack."""

    def error(self, node: ast.expr | ast.stmt, what: str) -> TranslationError:
        """The error that says what cannot be translated, and where it is."""
        code = self._python.__code__
        place = f"{code.co_filename}:{node.lineno}"
        return TranslationError(f"{code.co_name} ({place}) has {what}, which cannot be compiled")

    def value(self, node: ast.expr) -> Any:
        """The value of an expression."""
        translate = getattr(self, type(node).__name__.lower(), None)
        if translate is None:
            raise self.error(node, f"an expression {type(node).__name__}")
        return translate(node)

    def test(self, node: ast.expr) -> Any:
        """Whether an expression is true: a bool, or an LLVM value of one bit."""
        if isinstance(node, ast.BoolOp):
            return self._junction(node, self.test)
        return truth(self.builder, self.value(node))

    def constant(self, node: ast.Constant) -> Any:
        """A number."""
        return node.value

    def name(self, node: ast.Name) -> Any:
        """A variable, or what a name stands for when code is translated."""
        name = node.id
        if name in self._locals:
            if name not in self.assigned:
                raise self.error(node, f"a variable {name} that may have no value")
            return self.names[name] if name in self.names else self.variable(name)
        for scope in (self._cells, self._python.__globals__, vars(builtins)):
            if name in scope:
                return scope[name]
        raise self.error(node, f"a variable {name} without a value")

    def attribute(self, node: ast.Attribute) -> Any:
        """A field of a record, or an attribute of what is known."""
        value = self.value(node.value)
        if is_known(value) or node.attr in getattr(value, "_fields", ()):
            return getattr(value, node.attr)
        if not isinstance(value, Typed):
            raise self.error(node, f"an attribute {node.attr}")
        record = value.type
        kind = record.typeof(node.attr)
        offset = ir.Constant(I64, record.offset(node.attr))
        pointer = self.builder.gep(value.pointer, [offset], inbounds=True)
        if isinstance(kind, types.Record):
            return Typed(pointer, kind)
        pointer = self.builder.bitcast(pointer, values.LLVM[kind].as_pointer())
        return self.builder.load(pointer)

    def tuple(self, node: ast.Tuple) -> Any:
        """A tuple."""
        return tuple(self._arguments(node.elts))

    def subscript(self, node: ast.Subscript) -> Any:
        """An element of a tuple, at a known place."""
        value, place = self.value(node.value), self.value(node.slice)
        if isinstance(value, ir.Value | Typed) or isinstance(place, ir.Value):
            raise self.error(node, "an index that is not known")
        return value[place]

    def binop(self, node: ast.BinOp) -> Any:
        """An arithmetic operation."""
        operation = type(node.op).__name__
        first, second = self.value(node.left), self.value(node.right)
        return compute(self.builder, operation, first, second)

    def unaryop(self, node: ast.UnaryOp) -> Any:
        """An operation on one number."""
        if isinstance(node.op, ast.Not):
            test = self.test(node.operand)
            return self.builder.not_(test) if isinstance(test, ir.Value) else not test
        value = self.value(node.operand)
        if isinstance(node.op, ast.Invert):
            return compute(self.builder, "BitXor", value, -1)
        if not isinstance(node.op, ast.USub):
            raise self.error(node, f"an operation {type(node.op).__name__}")
        if is_known(value):
            return -value
        if kind_of(value) == DOUBLE:
            return self.builder.fneg(value)
        return compute(self.builder, "Sub", 0, value)

    def compare(self, node: ast.Compare) -> Any:
        """A chain of comparisons."""
        result: Any = True
        first = self.value(node.left)
        for operator, following in zip(node.ops, node.comparators, strict=True):
            if following is not node.comparators[0] and source.calls(following):
                raise self.error(node, "a call in a chain of comparisons")
            second = self.value(following)
            holds = self._comparison(type(operator).__name__, first, second)
            result = both(self.builder, result, holds)
            first = second
        return result

    def _comparison(self, name: str, first: Any, second: Any) -> Any:
        if name == "NotIn":
            return compute(self.builder, "Eq", self._comparison("In", first, second), False)
        if name == "In":
            result: Any = False
            for each in second:
                same = compute(self.builder, "Eq", first, each)
                result = (
                    choose(self.builder, same, True, result) if _emitted(same) else same or result
                )
            return result
        return compute(self.builder, name, first, second)

    def boolop(self, node: ast.BoolOp) -> Any:
        """`and` and `or`, with Python's value of them: one of the operands."""
        return self._junction(node, self.value)

    def _junction(self, node: ast.BoolOp, value_of: Callable[[ast.expr], Any]) -> Any:
        """`and` and `or` of operands with `value_of`, as far as they need be computed."""
        is_and = isinstance(node.op, ast.And)
        result = value_of(node.values[0])
        for following in node.values[1:]:
            test = truth(self.builder, result)
            if not _emitted(test):
                if test != is_and:
                    return result
                result = value_of(following)
                continue
            before = result

            def further(following: ast.expr = following) -> Any:
                return value_of(following)

            def ready(before: Any = before) -> Any:
                return before

            first, second = (further, ready) if is_and else (ready, further)
            result = self._either(test, first, second, self._waits(following))
        return result

    def ifexp(self, node: ast.IfExp) -> Any:
        """A choice between two values."""
        test = self.test(node.test)
        if not _emitted(test):
            return self.value(node.body if test else node.orelse)
        lazy = self._waits(node.body) or self._waits(node.orelse)
        return self._either(
            test, lambda: self.value(node.body), lambda: self.value(node.orelse), lazy
        )

    def _waits(self, expression: ast.expr) -> bool:
        """Whether an expression must not be computed in vain: it calls a function, or reads what
        may be a record.
        """
        if source.calls(expression):
            return True
        owners = source.owners(expression) & self._locals
        return any(isinstance(self.names.get(name), Typed | None) for name in owners)

    def _either(
        self, test: ir.Value, first: Callable[[], Any], second: Callable[[], Any], lazy: bool
    ) -> Any:
        """One of two values; with `lazy`, only that one is computed."""
        builder = self.builder
        if not lazy:
            return choose(builder, test, first(), second())
        blocks = [builder.append_basic_block() for _ in range(3)]
        builder.cbranch(test, *blocks[:2])
        found, ends = [], []
        for block, compute_arm in zip(blocks, (first, second), strict=False):
            builder.position_at_end(block)
            found.append(compute_arm())
            ends.append(builder.block)
        shape = widest(*map(shape_of, found))
        arms = []
        for value, end in zip(found, ends, strict=True):
            builder.position_at_end(end)
            arms.append(flatten(builder, value, shape))
            builder.branch(blocks[2])
        builder.position_at_end(blocks[2])
        joined = []
        for pair in zip(*arms, strict=True):
            phi = builder.phi(pair[0].type)
            for value, end in zip(pair, ends, strict=True):
                phi.add_incoming(value, end)
            joined.append(phi)
        return rebuild(shape, iter(joined))

    # Calls.

    def _arguments(self, nodes: list[ast.expr]) -> list[Any]:
        arguments = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                arguments += self.value(node.value)
            else:
                arguments.append(self.value(node))
        return arguments

    def call(self, node: ast.Call) -> Any:
        """A call."""
        called = self.value(node.func)
        arguments = self._arguments(node.args)
        keywords = {each.arg: self.value(each.value) for each in node.keywords if each.arg}
        if len(keywords) < len(node.keywords):
            raise self.error(node, "arguments `**`")
        called = getattr(called, "py_func", called)  # of a function that Python calls too
        if isinstance(called, FunctionType):
            given = bound(called.__name__, *of_function(called), arguments, keywords)
            return self._module.call(self.builder, called, given)
        if isinstance(called, types.Intrinsic):
            if called.part is not None and len(arguments) > 1:
                raise self.error(node, f"arguments of the part {called.part.name} without names")
            defined = called.definition
            given = bound(defined.__name__, *of_function(defined), arguments, keywords)
            return call_intrinsic(self.builder, defined, given)
        if isinstance(called, type) and issubclass(called, tuple) and called is not tuple:
            form = vars(called)["_fields"], vars(called)["_field_defaults"]
            return make_tuple(called, bound(called.__name__, *form, arguments, keywords))
        if keywords:
            raise self.error(node, f"a keyword argument {min(keywords)} of {called}")
        if isinstance(called, types.ExternalFunction):
            return self._external(called.symbol, called.sig, arguments)
        return self._known(node, called, arguments)

    def _known(self, node: ast.Call, called: Any, arguments: list[Any]) -> Any:
        """A call of one of Python's functions."""
        builder = self.builder
        if called in (min, max):
            numbers = tuple(arguments if len(arguments) > 1 else arguments[0])
            return values.pick(builder, "Lt" if called is min else "Gt", numbers)
        if called in MATH:
            signature = types.float64(*[types.float64] * len(arguments))
            return self._external(MATH[called], signature, arguments)
        if called is len and isinstance(arguments[0], tuple):
            return len(arguments[0])
        if called is abs:
            return self._magnitude(*arguments)
        if called is divmod:
            return tuple(compute(builder, name, *arguments) for name in ("FloorDiv", "Mod"))
        kinds: dict[Any, ir.Type] = {int: I64, float: DOUBLE, bool: BOOL, **values.LLVM}
        if called in kinds:
            (value,) = arguments
            return convert(builder, value, kinds[called])
        raise self.error(node, f"a call of {called}")

    def _magnitude(self, value: Any) -> Any:
        if is_known(value):
            return abs(value)
        if kind_of(value) == DOUBLE:
            return self._external("llvm.fabs.f64", types.float64(types.float64), [value])
        negative = compute(self.builder, "Lt", value, 0)
        return choose(self.builder, negative, compute(self.builder, "Sub", 0, value), value)

    def _external(self, name: str, signature: Any, arguments: list[Any]) -> Any:
        """A call of a C function."""
        kinds = [values.LLVM[kind] for kind in signature.args]
        function_type = ir.FunctionType(values.LLVM[signature.return_type], kinds)
        function = internals.get_or_insert_function(self.builder.module, function_type, name)
        pairs = zip(arguments, kinds, strict=True)
        return self.builder.call(function, [values.as_kind(self.builder, *pair) for pair in pairs])


def _emitted(value: Any) -> bool:
    return isinstance(value, ir.Value)


def bound(
    name: str,
    parameters: Iterable[str],
    defaults: dict[str, Any],
    arguments: list[Any],
    keywords: dict[str, Any],
) -> list[Any]:
    """The arguments of a call of `name` in the order of its parameters.

    Raises
    ------
    UnsupportedError
        There are too many, one is missing or given twice, or no parameter has its name.
    """
    names = list(parameters)
    if len(arguments) > len(names):
        raise UnsupportedError(
            f"a call of {name} with {len(arguments)} arguments; it takes {len(names)}"
        )
    given = dict(zip(names, arguments, strict=False))
    for keyword, value in keywords.items():
        if keyword not in names:
            raise UnsupportedError(f"a call of {name}, which has no parameter {keyword}")
        if keyword in given:
            raise UnsupportedError(f"a call of {name} that gives {keyword} twice")
        given[keyword] = value
    missing = [each for each in names if each not in given and each not in defaults]
    if missing:
        raise UnsupportedError(f"a call of {name} without {', '.join(missing)}")
    return [given[each] if each in given else defaults[each] for each in names]


def of_function(function: Callable[..., Any]) -> tuple[list[str], dict[str, Any]]:
    """The parameters of a plain function, and their defaults."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = list(code.co_varnames[: code.co_argcount])
    return names, dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
