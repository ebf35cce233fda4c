"""What a translated expression is worth, and arithmetic on it.

A value is an LLVM value (int64, float64, bool, or an int32 of a C function), a `Typed` pointer, a
tuple of values, or any Python object that is known when code is translated, such as a number, a
function or a module. Operations on known numbers are Python's own.
"""

import math
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.vector import BYTES, I32, I64

BOOL, DOUBLE = ir.IntType(1), ir.DoubleType()
WIDTHS = (BOOL, I32, I64, DOUBLE)  # two kinds of numbers become the later one
WIDTH = WIDTHS.index  # the place of a kind among them
TYPES = {BOOL: types.boolean, I32: types.int32, I64: types.int64, DOUBLE: types.float64}
LLVM = {
    types.boolean: BOOL,
    types.int32: I32,
    types.int64: I64,
    types.float64: DOUBLE,
}


class TranslationError(Exception):
    """A function does something that cannot be translated; the message says what, and where."""


class UnsupportedError(Exception):
    """What cannot be translated, for a message that says where it is."""


@dataclass(frozen=True)
class Typed:
    """A pointer with its type: to a record, or a record itself."""

    pointer: ir.Value
    type: Any


class Known(NamedTuple):
    """The shape of an object that is known when code is translated."""

    value: Any


def kind_of(value: Any) -> ir.Type | None:
    """The LLVM type of a number, None for other values."""
    if isinstance(value, ir.Value):
        return value.type
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return I64
    return DOUBLE if isinstance(value, float) else None


def is_known(value: Any) -> bool:
    """Whether a value has no part that compiled code computes."""
    if isinstance(value, tuple):
        return all(map(is_known, value))
    return not isinstance(value, ir.Value | Typed)


def as_kind(builder: ir.IRBuilder, value: Any, kind: ir.Type) -> ir.Value:
    """A number as an LLVM value of the type `kind`, which is not a narrower one: a known integer
    may become an int32.

    Raises
    ------
    UnsupportedError
        It is no number, or would not be the same number.
    """
    given = kind_of(value)
    exact = kind == max(kind, given or DOUBLE, key=WIDTH)
    known = not isinstance(value, ir.Value)
    if given is None or not (exact or (known and kind == I32 and given == I64)):
        raise UnsupportedError(f"{_word(value)} in place of a number of type {TYPES[kind]}")
    if known:
        if kind not in (BOOL, DOUBLE) and value >> kind.width - 1 not in (0, -1):
            raise UnsupportedError(f"the integer {value}, which has more than {kind.width} bits")
        return ir.Constant(kind, float(value) if kind == DOUBLE else int(value))
    if value.type == kind:
        return value
    if kind == DOUBLE:
        change = builder.uitofp if value.type == BOOL else builder.sitofp
    else:
        change = builder.zext if value.type == BOOL else builder.sext
    return change(value, kind)


def convert(builder: ir.IRBuilder, value: Any, kind: ir.Type) -> ir.Value:
    """A number as Python's bool, int or float converts it, or the low bits of an int32."""
    if kind == BOOL:
        value = truth(builder, value)
    elif kind == I32 and isinstance(value, ir.Value) and value.type == I64:
        value = builder.trunc(value, I32)
    elif kind != DOUBLE and kind_of(value) == DOUBLE:
        value = builder.fptosi(value, kind) if isinstance(value, ir.Value) else int(value)
    return as_kind(builder, value, kind)


def _word(value: Any) -> str:
    """What an error calls a value."""
    kind = kind_of(value)
    return str(value) if is_known(value) else "a tuple" if kind is None else f"a {TYPES[kind]}"


def truth(builder: ir.IRBuilder, value: Any) -> Any:
    """Whether a number is not zero: a bool, or an LLVM value of one bit."""
    if not isinstance(value, ir.Value):
        return bool(value)
    if value.type == BOOL:
        return value
    if value.type == DOUBLE:
        return builder.fcmp_unordered("!=", value, ir.Constant(DOUBLE, 0.0))
    return builder.icmp_signed("!=", value, ir.Constant(value.type, 0))


def shape_of(value: Any) -> Any:
    """The shape of a value: LLVM types in place of numbers, and nested tuples of them."""
    kind = kind_of(value)
    if kind is not None:
        return kind
    if isinstance(value, Typed):
        return value.type
    if isinstance(value, tuple):
        return (type(value), *map(shape_of, value))
    return Known(value)


def widest(first: Any, second: Any) -> Any:
    """The shape that takes values of both shapes."""
    if first == second:
        return first
    if first in WIDTHS and second in WIDTHS:
        return max(first, second, key=WIDTH)
    pair = isinstance(first, tuple) and isinstance(second, tuple)
    if not pair or Known in map(type, (first, second)) or len(first) != len(second):
        raise UnsupportedError(f"a variable that is {first} in one place and {second} in another")
    kind = first[0] if first[0] is second[0] else tuple
    return (kind, *map(widest, first[1:], second[1:]))


def flatten(builder: ir.IRBuilder, value: Any, shape: Any) -> list[ir.Value]:
    """The LLVM values of a value of this shape."""
    if shape in WIDTHS:
        return [as_kind(builder, value, shape)]
    if isinstance(shape, Known):
        return []
    if isinstance(shape, tuple):
        parts = zip(value, shape[1:], strict=True)
        return [each for part in parts for each in flatten(builder, *part)]
    return [value.pointer]


def flat_types(shape: Any) -> list[ir.Type]:
    """The types of the LLVM values of a shape."""
    if shape in WIDTHS:
        return [shape]
    if isinstance(shape, Known):
        return []
    if isinstance(shape, tuple):
        return [kind for part in shape[1:] for kind in flat_types(part)]
    return [BYTES]


def rebuild(shape: Any, parts: Any) -> Any:
    """The value of this shape whose LLVM values the iterator `parts` gives."""
    if shape in WIDTHS:
        return next(parts)
    if isinstance(shape, Known):
        return shape.value
    if isinstance(shape, tuple):
        return make_tuple(shape[0], [rebuild(part, parts) for part in shape[1:]])
    return Typed(next(parts), shape)


def make_tuple(kind: type, values: list[Any]) -> Any:
    """A tuple of the class `kind`."""
    return tuple(values) if kind is tuple else kind(*values)


def choose(builder: ir.IRBuilder, test: ir.Value, first: Any, second: Any) -> Any:
    """`first` where `test` holds, else `second`."""
    shape = widest(shape_of(first), shape_of(second))
    pairs = zip(flatten(builder, first, shape), flatten(builder, second, shape), strict=True)
    return rebuild(shape, iter([builder.select(test, *pair) for pair in pairs]))


COMPARISONS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">="}
KNOWN = {
    **{"Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le},
    **{"Gt": operator.gt, "GtE": operator.ge, "Add": operator.add, "Sub": operator.sub},
    **{"Mult": operator.mul, "FloorDiv": operator.floordiv, "Mod": operator.mod},
    **{"Div": operator.truediv, "Pow": operator.pow, "LShift": operator.lshift},
    **{"RShift": operator.rshift, "BitAnd": operator.and_, "BitOr": operator.or_},
    **{"BitXor": operator.xor, "Is": operator.is_, "IsNot": operator.is_not},
}
INTEGERS = {
    **{"Add": "add", "Sub": "sub", "Mult": "mul", "LShift": "shl", "RShift": "ashr"},
    **{"BitAnd": "and_", "BitOr": "or_", "BitXor": "xor"},
}
FLOATS = {"Add": "fadd", "Sub": "fsub", "Mult": "fmul", "Div": "fdiv"}


def compute(builder: ir.IRBuilder, name: str, first: Any, second: Any) -> Any:
    """The operation with this name in Python's syntax tree, of two numbers or tuples."""
    if is_known(first) and is_known(second):
        return KNOWN[name](first, second)
    if name in ("Eq", "NotEq") and isinstance(first, tuple) and isinstance(second, tuple):
        return _compare_tuples(builder, name, first, second)
    return _compute_numbers(builder, name, first, second)


def _compute_numbers(builder: ir.IRBuilder, name: str, first: Any, second: Any) -> Any:
    kinds = kind_of(first), kind_of(second)
    if None in kinds or name in ("Is", "IsNot"):
        raise UnsupportedError(f"the operation {name} of {_word(first)} and {_word(second)}")
    kind = max(*kinds, I64, key=WIDTH)
    if name == "Div":
        kind = DOUBLE
    if name == "Pow":
        return _power(builder, first, second)
    if name in ("LShift", "RShift") and is_known(second) and not 0 <= second < I64.width:
        raise UnsupportedError(f"a shift by {second} bits")
    a, b = as_kind(builder, first, kind), as_kind(builder, second, kind)
    if name in COMPARISONS:
        if kind == DOUBLE:
            compare = builder.fcmp_unordered if name == "NotEq" else builder.fcmp_ordered
        else:
            compare = builder.icmp_signed
        return compare(COMPARISONS[name], a, b)
    if kind == DOUBLE:
        if name not in FLOATS:
            raise UnsupportedError(f"the operation {name} of floats")
        return getattr(builder, FLOATS[name])(a, b)
    if name in ("FloorDiv", "Mod"):
        return _divide(builder, name, a, b, second)
    return getattr(builder, INTEGERS[name])(a, b)


def both(builder: ir.IRBuilder, first: Any, second: Any) -> Any:
    """Whether two tests hold: a bool, or an LLVM value of one bit."""
    if isinstance(first, ir.Value) and isinstance(second, ir.Value):
        return builder.and_(first, second)
    known, other = (second, first) if isinstance(first, ir.Value) else (first, second)
    return other if known else False


def _compare_tuples(
    builder: ir.IRBuilder, name: str, first: tuple[Any, ...], second: tuple[Any, ...]
) -> Any:
    result: Any = len(first) == len(second)
    for pair in zip(first, second, strict=False):
        result = both(builder, result, compute(builder, "Eq", *pair))
    return result if name == "Eq" else compute(builder, "Eq", result, False)


def _power(builder: ir.IRBuilder, base: Any, exponent: Any) -> Any:
    """`base` to a small known power."""
    if not isinstance(exponent, int) or exponent < 1:
        raise UnsupportedError(f"a power whose exponent is {exponent}")
    result = base
    for _ in range(exponent - 1):
        result = compute(builder, "Mult", result, base)
    return result


def _divide(builder: ir.IRBuilder, name: str, a: ir.Value, b: ir.Value, divisor: Any) -> ir.Value:
    """Quotient or remainder, rounded down as Python's; 0 if the divisor is 0, as Numba's."""
    floor = name == "FloorDiv"
    zero = ir.Constant(I64, 0)
    known = not isinstance(divisor, ir.Value)
    if known and divisor == 0:
        raise UnsupportedError("a division by zero")
    if known and divisor > 0 and divisor & (divisor - 1) == 0:
        if floor:
            return builder.ashr(a, ir.Constant(I64, int(math.log2(divisor))))
        return builder.and_(a, ir.Constant(I64, divisor - 1))
    is_zero = builder.icmp_signed("==", b, zero)
    if not known:
        b = builder.select(is_zero, ir.Constant(I64, 1), b)
    rest = builder.srem(a, b)
    differs = builder.icmp_signed("<", builder.xor(rest, b), zero)
    down = builder.and_(builder.icmp_signed("!=", rest, zero), differs)
    if floor:
        result = builder.sub(builder.sdiv(a, b), builder.zext(down, I64))
    else:
        result = builder.add(rest, builder.select(down, b, zero))
    return result if known else builder.select(is_zero, zero, result)


def pick(builder: ir.IRBuilder, name: str, values: tuple[Any, ...]) -> Any:
    """min or max of numbers, in Python's order of comparisons; it is a float if one of them is."""
    if not any(isinstance(value, ir.Value) for value in values):
        return (min if name == "Lt" else max)(values)
    kind = max(map(kind_of, values), key=WIDTH)
    best, *others = (as_kind(builder, value, kind) for value in values)
    for other in others:
        best = builder.select(compute(builder, name, other, best), other, best)
    return best
