"""Types of what compiled code computes with, and signatures of functions.

`numbas` has Numba's types for them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple


class Signature(NamedTuple):
    """The types of a function."""

    return_type: Type
    args: tuple[Type, ...]


@dataclass(frozen=True)
class Type:
    """A type; called with types of arguments, the signature of a function that returns it."""

    name: str

    def __call__(self, *arguments: Any) -> Signature:
        return Signature(self, arguments)

    def __str__(self) -> str:
        return self.name


boolean, int32, int64, float64 = map(Type, ("bool", "int32", "int64", "float64"))
void, voidptr, uintp = map(Type, ("void", "voidptr", "uintp"))


@dataclass(frozen=True)
class Literal(Type):
    """The type of an integer that is known when code is compiled."""

    value: int


def literal(value: int) -> Literal:
    """The type of a known integer."""
    return Literal(f"the integer {value}", value)


def unliteral(kind: Any) -> Any:
    """The type that an argument of this type is passed as."""
    return int64 if isinstance(kind, Literal) else kind


@dataclass(frozen=True, eq=False)
class Record(Type):
    """A record in memory, of a dtype of numpy; see `record`."""

    dtype: Any

    @functools.cached_property
    def _fields(self) -> dict[str, tuple[Type, int]]:
        fields = self.dtype.fields.items()
        return {name: (from_dtype(dtype), offset) for name, (dtype, offset, *_) in fields}

    def typeof(self, name: str) -> Type:
        """The type of a field."""
        return self._fields[name][0]

    def offset(self, name: str) -> int:
        """The place of a field, in bytes."""
        return self._fields[name][1]


@functools.cache
def from_dtype(dtype: Any) -> Type:
    """The type of values of a dtype of numpy: a record, one object for each dtype, or a number."""
    if dtype.fields:
        return Record(f"record {dtype}", dtype)
    return {"int32": int32, "int64": int64, "float64": float64, "bool": boolean}[dtype.name]


@dataclass(frozen=True)
class CPointer(Type):
    """A pointer to a record."""

    to: Record


def pointer(to: Any) -> CPointer:
    """The type of a pointer to a record."""
    return CPointer(f"pointer to a {to}", to)


def _refuse(function: Any, *arguments: Any, **keywords: Any) -> Any:
    raise TypeError(f"compiled code alone calls {function}")


@dataclass(frozen=True)
class ExternalFunction:
    """A C function, which compiled code calls by its name."""

    symbol: str
    sig: Signature

    __call__ = _refuse


@dataclass(frozen=True, eq=False)
class Intrinsic:
    """A function of compiled code whose body is emitted: ``definition(*types)`` returns its
    signature and ``codegen(context, builder, signature, values)``, which emits it.
    """

    definition: Any
    part: Any = None  # its declaration, if it calls a part
    __call__ = _refuse


class LiteralError(TypeError):
    """An argument of an intrinsic must be a known integer."""
