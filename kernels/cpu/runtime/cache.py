"""The disk cache of compiled CPU code: the names of its entries, and what Numba compiles into it.

Numba's own cache compares the date or text of the file that defines a function, so an edit of an
emitter would leave stale code behind; it fails where the disk does; and it unpickles what it finds.
This cache has the interface of Numba's, and `disk.Store` underneath. An entry's name contains a
hash of all that its code depends on, so versions and CPUs of any mixture share a folder.
"""

import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config, sigutils
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.extending import is_jitted

from implicit_conv.kernels import sources
from implicit_conv.kernels.cpu.runtime.preparation import checkpoint
from implicit_conv.kernels.disk import store
from implicit_conv.kernels.disk_files import kernel_name

VERSIONS = (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
# Numba's settings that change code; a codegen's magic tuple tells those of the CPU.
SETTINGS = (
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "DEBUG_NRT",
    "EXTEND_VARIABLE_LIFETIMES",
    "LLVM_REFPRUNE_FLAGS",
    "LLVM_REFPRUNE_PASS",
    "LOOP_VECTORIZE",
    "OPT",
    "SLP_VECTORIZE",
    "USING_SVML",
)


class Names:
    """The names of a function's entries.

    Parameters
    ----------
    title : str
        How they begin.
    function : FunctionType
    options : dict
        What it is compiled with.

    Raises
    ------
    OSError
        A source cannot be read, so that it is unknown which code belongs to it.
    """

    def __init__(self, title: str, function: Any, options: dict[str, Any]) -> None:
        file = Path(function.__code__.co_filename)
        self.title = re.sub(r"[^A-Za-z0-9_.]", "", title)[:80]
        self._code = (
            (sources.kernels_hash(), sources.file_hash(file)),
            (function.__module__, _variant(function)),
            sorted(options.items()),
        )

    def name(self, signature: Any, target: tuple[str, ...]) -> str:
        """The name of the entry for a signature, on a target in LLVM's words."""
        settings = [getattr(config, setting, None) for setting in SETTINGS]
        arguments, result = sigutils.normalize_signature(signature)
        types = [str(kind) for kind in (*arguments, result)]
        return kernel_name(self.title, (VERSIONS, settings, target, self._code, types))


class Cache(NullCache):  # type: ignore[misc, unused-ignore]
    """The entries of one function, one for each signature, as Numba asks for them.

    Parameters
    ----------
    names : Names
    """

    def __init__(self, names: Names) -> None:
        self._names = names

    def _name(self, signature: Any, context: Any) -> str:
        return self._names.name(signature, context.codegen().magic_tuple())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for a signature, or None."""
        target_context.refresh()
        name = self._name(sig, target_context)
        payload = store().load(name)
        if payload is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(payload))
        except Exception as error:
            store().warn_of_entry(name, error)
            return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Save compiled code for a signature, unless it contains addresses of this process."""
        if cres.library.has_dynamic_globals:
            return
        try:
            payload = dumps(cres._reduce())
        except Exception as error:
            store().warn(
                "code", f"compiled code of {self._names.title} cannot be cached: {error!r}"
            )
            return
        store().save(self._name(sig, cres.target_context), payload)


def _variant(value: Any) -> str:
    """A text that differs between variants: a function's name and all values that it closes over,
    its defaults included.

    Other values are their own text.
    """
    function = getattr(value, "py_func", getattr(value, "_defn", value))  # of njit, of an intrinsic
    if not isinstance(function, FunctionType):
        return str(value)
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    bound = map(_variant, [*closed, *(function.__defaults__ or ())])
    return f"{function.__qualname__}({', '.join(bound)})"


def warn_of_source(error: OSError) -> None:
    """Log that a source cannot be read, so that code has no name."""
    store().warn("source", f"kernels are not cached, as their source cannot be read: {error}")


def kernel() -> Callable[[Callable[..., Any]], Any]:
    """Mark a function as one that entries call: it becomes part of them.

    Numba compiles it too, for other code that Numba compiles: it stays as it is under `py_func`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        checkpoint()
        return numba.njit(function, nogil=True, error_model="numpy")

    return decorate


def dispatcher(function: Callable[..., Any]) -> Any:
    """`numba.njit` with our cache, for calls from Python with arguments of any types.

    The first call with each combination of types compiles.
    """
    checkpoint()
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    compiled = numba.njit(**options)(function)
    if is_jitted(compiled):  # it is not with NUMBA_DISABLE_JIT=1
        try:
            compiled._cache = Cache(Names(function.__qualname__, function, options))
        except OSError as error:
            warn_of_source(error)
    return compiled
