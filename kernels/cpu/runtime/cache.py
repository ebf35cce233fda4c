"""The disk cache of compiled CPU code, and the decorators that compile into it.

Numba's own cache compares the date or text of the file that defines a function, so an edit of an
emitter would leave stale code behind; it fails where the disk does; and it unpickles what it finds.
This cache has the interface of Numba's, and `disk.Store` underneath. An entry's name contains a
hash of all that its code depends on, so versions and CPUs of any mixture share a folder.
"""

import pickle
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config, sigutils
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.extending import is_jitted

from implicit_conv.kernels import sources
from implicit_conv.kernels.cpu.runtime.pipeline import EntryCompiler, PartCompiler
from implicit_conv.kernels.cpu.runtime.preparation import checkpoint
from implicit_conv.kernels.disk import SUFFIX, store
from implicit_conv.kernels.sources import digest

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


class Cache(NullCache):  # type: ignore[misc, unused-ignore]
    """The entries of one function, one for each signature, as Numba asks for them.

    Parameters
    ----------
    function : FunctionType
    options : dict
        What it is compiled with.

    Raises
    ------
    OSError
        A source cannot be read, so that it is unknown which code belongs to it.
    """

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        file = Path(function.__code__.co_filename)
        self._title = re.sub(r"[^A-Za-z0-9_.]", "", function.__qualname__)[:80]
        self._code = (
            (sources.kernels_hash(), sources.file_hash(file)),
            (function.__module__, _variant(function)),
            sorted(options.items()),
        )

    def name(self, signature: Any, context: Any) -> str:
        """The name of the entry for a signature and a target context of Numba's."""
        settings = [getattr(config, setting, None) for setting in SETTINGS]
        target = context.codegen().magic_tuple()
        arguments, result = sigutils.normalize_signature(signature)
        types = [str(kind) for kind in (*arguments, result)]
        key = digest((VERSIONS, settings, target, self._code, types))
        return f"{self._title}-{key[:32]}{SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for a signature, or None."""
        target_context.refresh()
        name = self.name(sig, target_context)
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
            store().warn("code", f"compiled code of {self._title} cannot be cached: {error!r}")
            return
        store().save(self.name(sig, cres.target_context), payload)


def _variant(value: Any) -> str:
    """A text that differs between variants: a function's name and all values that it closes over.

    Other values are their own text.
    """
    function = getattr(value, "py_func", getattr(value, "_defn", value))  # of njit, of an intrinsic
    if not isinstance(function, FunctionType):
        return str(value)
    cells = [_variant(cell.cell_contents) for cell in function.__closure__ or ()]
    return f"{function.__qualname__}({', '.join(cells)})"


def _with_cache(compiled: Any, function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Let a dispatcher or C callback of Numba's, which has compiled nothing yet, use our cache."""
    try:
        compiled._cache = Cache(function, options)
    except OSError as error:
        store().warn("source", f"kernels are not cached, as their source cannot be read: {error}")
    return compiled


def kernel(signatures: Sequence[Any] = (), **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` for the engine: without the GIL, with numpy's error model and our cache.

    Without signatures only compiled code calls the function: it has no wrappers for Python and C,
    and no cache entry, since it becomes part of its callers. Its copies in two callers share one
    symbol, of which the linker keeps the first. Variants of one function that a factory makes, for
    several vectors or formats, therefore need names of their own. (Numba adds a number, but another
    process may give the same number to another variant.)
    """
    inner = {} if signatures else {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    options = {"nogil": True, "error_model": "numpy", **inner, **options}

    def decorate(function: Callable[..., Any]) -> Any:
        checkpoint()
        if isinstance(function, FunctionType) and function.__closure__:
            function.__qualname__ += f"_{digest(_variant(function))[:8]}"
        compiler = EntryCompiler if signatures else PartCompiler
        compiled = numba.njit(**options, pipeline_class=compiler)(function)
        if signatures and is_jitted(compiled):  # it is not with NUMBA_DISABLE_JIT=1
            _with_cache(compiled, function, options)
            for signature in signatures:
                compiled.compile(signature)
            compiled.disable_compile()
        return compiled

    return decorate


def dispatcher(function: Callable[..., Any]) -> Any:
    """`numba.njit` with our cache, for calls from Python with arguments of any types.

    The first call with each combination of types compiles.
    """
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    compiled = numba.njit(**options, pipeline_class=EntryCompiler)(function)
    return _with_cache(compiled, function, options) if is_jitted(compiled) else compiled


def entry(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.cfunc` with our cache, for functions that are called by address."""
    options = {"error_model": "numpy"}

    def decorate(function: Callable[..., Any]) -> Any:
        checkpoint()
        arguments = sigutils.normalize_signature(signature)
        callback = CFunc(function, arguments, {}, options, EntryCompiler)
        _with_cache(callback, function, options).compile()
        return callback

    return decorate
