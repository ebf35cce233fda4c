"""The disk cache of compiled CPU code, and the decorators that compile into it.

Numba's own cache compares the date of the file that defines a function, so an edit of an emitter
would leave stale code behind. Here the folder's name contains a hash of every kernel source, so
stale code is never found. Numba adds the CPU's features to the key and writes each entry
atomically, so two processes may fill the cache at once.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

KERNELS = Path(__file__).resolve().parents[2]


@functools.cache
def cache_root() -> Path:
    """The folder of all versions: IMPLICIT_CONV_CACHE_DIR, or the user's cache folder."""
    folder = os.environ.get("IMPLICIT_CONV_CACHE_DIR")
    if folder:
        return Path(folder).expanduser().absolute()
    from numba.misc.appdirs import user_cache_dir

    return Path(user_cache_dir("implicit_conv", appauthor=False))


@functools.cache
def cache_folder() -> Path:
    """The folder of this version, named by a hash of all kernel sources and the compiler's
    version.
    """
    import llvmlite
    import numba

    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for source in sorted(KERNELS.rglob("*.py")):
        digest.update(source.relative_to(KERNELS).as_posix().encode())
        digest.update(source.read_bytes())
    return cache_root() / digest.hexdigest()[:16]


@functools.cache
def writable() -> bool:
    """Whether compiled code can be cached; if not, every process compiles it again."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(cache_folder(), os.W_OK)


@contextmanager
def _numba_cache() -> Iterator[None]:
    """Numba's cache folder is ours in this context."""
    from numba.core import config
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:  # else a thread could read the folder that another one resets
        before, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder())
        try:
            yield
        finally:
            config.CACHE_DIR = before


def _variant(value: Any) -> str:
    """A text that differs between variants: a function's name and all values that it closes over.

    Other values are their own text.
    """
    function = getattr(value, "py_func", getattr(value, "_defn", value))  # of njit, of an intrinsic
    if not isinstance(function, FunctionType):
        return str(value)
    cells = [_variant(cell.cell_contents) for cell in function.__closure__ or ()]
    return f"{function.__qualname__}({', '.join(cells)})"


def kernel(*signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` for the engine: without the GIL, with numpy's error model and our cache.

    Without a signature only compiled code calls the function: it has no wrappers for Python and C,
    and no cache entry, since it becomes part of its callers. Its copies in two callers share one
    symbol, of which the linker keeps the first. Variants of one function that a factory makes, for
    several vectors or formats, therefore need names of their own. (Numba adds a number, but another
    process may give the same number to another variant.)
    """
    from numba import njit

    inner = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    outer = {"cache": writable()}
    options = {"nogil": True, "error_model": "numpy", **(outer if signature else inner), **options}

    def decorate(function: Callable[..., Any]) -> Any:
        if isinstance(function, FunctionType) and function.__closure__:
            digest = hashlib.sha256(_variant(function).encode()).hexdigest()
            function.__qualname__ += f"_{digest[:8]}"
        with _numba_cache():
            return njit(*signature, **options)(function)

    return decorate


def entry(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.cfunc` with our cache, for functions that are called by address."""
    from numba import cfunc

    def decorate(function: Callable[..., Any]) -> Any:
        with _numba_cache():
            return cfunc(signature, error_model="numpy", cache=writable())(function)

    return decorate
