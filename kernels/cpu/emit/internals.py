"""All that emits code for CPUs takes from Numba and llvmlite, and the versions that have it.

Numba promises no names of numba.core, so a release is used only after it was tried: `.ci/numba`
installs one and runs a sample. (`preparation` also holds llvmlite's lock through forks.)
"""

from __future__ import annotations

import os
from typing import Any

import numba
from llvmlite import ir
from numba import from_dtype, types
from numba.core import config
from numba.core.cgutils import (
    alloca_once,
    alloca_once_value,
    get_or_insert_function,
    global_constant,
    memset,
    raw_memcpy,
)
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import RequireLiteralValue
from numba.core.sigutils import normalize_signature
from numba.core.typing import signature
from numba.extending import intrinsic

OLDEST, BEYOND = (0, 62), (0, 69)  # releases that were tried: from the first one, below the second
VARIABLE = "TRY_NUMBA"  # a release that shall be tried, such as "0.69.0"

__all__ = [
    "BFloat",
    "RequireLiteralValue",
    "alloca_once",
    "alloca_once_value",
    "check_version",
    "config",
    "definition",
    "from_dtype",
    "get_host_cpu_features",
    "get_or_insert_function",
    "global_constant",
    "intrinsic",
    "ir",
    "is_intrinsic",
    "memset",
    "normalize_signature",
    "raw_memcpy",
    "signature",
    "types",
]


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


class BFloat(ir.Type):  # type: ignore[misc]  # llvmlite publishes no types
    """LLVM's bfloat, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def is_intrinsic(function: Any) -> bool:
    """Whether it is a function that `numba.extending.intrinsic` made."""
    return hasattr(function, "_defn")


def definition(function: Any) -> Any:
    """The function that an intrinsic was made of."""
    return function._defn
