"""All that is taken from Numba, and the releases that have it: its settings, and types for `njit`.

Numba promises no names of numba.core, so a release is used only after it was tried: `.ci/numba`
installs one and runs a sample. (`preparation` also holds llvmlite's lock through forks.)
"""

from __future__ import annotations

import os
from typing import Any

import numba
from numba import from_dtype
from numba import types as numbas
from numba.core import config
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

from implicit_conv.kernels.cpu.emit import types

OLDEST, BEYOND = (0, 62), (0, 69)  # releases that were tried: from the first one, below the second
VARIABLE = "TRY_NUMBA"  # a release that shall be tried, such as "0.69.0"

__all__ = ["check_version", "config", "get_host_cpu_features"]


def check_version(version: str, tried: str | None) -> None:
    """Refuse a release of Numba that was not tried, unless it is `tried` now.

    Raises
    ------
    ImportError
        The message says which releases were tried.
    """
    release = tuple(int(part) for part in version.split(".")[:2])
    if not OLDEST <= release < BEYOND and version != tried:
        oldest, beyond = (".".join(map(str, release)) for release in (OLDEST, BEYOND))
        raise ImportError(
            f"numba {version} was not tried with this version of implicit_conv, which compiles "
            f"kernels by Numba's internals; install 'numba>={oldest},<{beyond}'"
        )


check_version(numba.__version__, os.environ.get(VARIABLE))

# Our types, and Numba's for them; records are added when they are met.
_PAIRS: list[tuple[types.Type, Any]] = [
    (types.boolean, numbas.boolean),
    (types.int32, numbas.int32),
    (types.int64, numbas.int64),
    (types.float64, numbas.float64),
    (types.void, numbas.void),
    (types.voidptr, numbas.voidptr),
    (types.uintp, numbas.uintp),
]
_THEIRS: dict[Any, Any] = dict(_PAIRS)
_OURS = {theirs: our for our, theirs in _PAIRS}


def type_of(our: Any) -> Any:
    """Numba's type for one of ours."""
    if isinstance(our, types.Literal):
        return numbas.literal(our.value)
    if our not in _THEIRS:
        if isinstance(our, types.CPointer):
            found = numbas.CPointer(type_of(our.to))
        else:
            found = from_dtype(our.dtype)
        _THEIRS[our], _OURS[found] = found, our
    return _THEIRS[our]


def signature_of(our: types.Signature) -> Any:
    """Numba's signature for one of ours."""
    return type_of(our.return_type)(*map(type_of, our.args))


def external(function: types.ExternalFunction) -> Any:
    """A C function for Numba."""
    return numbas.ExternalFunction(function.symbol, signature_of(function.sig))


class _Context:
    """What the code of intrinsics asks of its compiler: Numba's target context answers."""

    def __init__(self, context: Any) -> None:
        self.get_dummy_value = context.get_dummy_value
        self._value_type = context.get_value_type

    def get_value_type(self, kind: types.Type) -> Any:
        """LLVM's type for values of a type."""
        return self._value_type(type_of(kind))


def of_intrinsic(function: types.Intrinsic) -> Any:
    """An intrinsic for Numba."""
    definition = function.definition

    def define(*kinds: Any) -> Any:
        try:
            signature, emit = definition(*map(_our, kinds))
        except types.LiteralError as error:
            raise RequireLiteralValue(str(error)) from None

        def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
            return emit(_Context(context), builder, signature, values)

        return signature_of(signature), codegen

    code = definition.__code__
    listed = ", ".join(code.co_varnames[: code.co_argcount])
    scope = {"define": define}
    exec(f"def made(typingctx, {listed}): return define({listed})", scope)
    made: Any = scope["made"]
    made.__name__ = made.__qualname__ = definition.__name__
    made.__defaults__ = definition.__defaults__
    return intrinsic(made)


def _our(kind: Any) -> Any:
    """Our type for one of Numba's, or that itself where no intrinsic asks which it is."""
    if isinstance(kind, numbas.IntegerLiteral):
        return types.literal(kind.literal_value)
    return _OURS.get(kind, kind)
