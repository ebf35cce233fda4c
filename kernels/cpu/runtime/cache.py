"""Where compiled CPU code is kept, and the decorators that keep it there.

Numba's own cache looks at the date of the file a function stands in, so an edit to an emitter would
leave stale code behind. Here the folder's name carries a hash of every kernel source, so nothing
stale is ever found; Numba adds the CPU's features and writes each entry atomically, so two
processes may fill the cache at once.
"""

import functools
import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType

KERNELS = Path(__file__).resolve().parents[2]


@functools.cache
def cache_root():
    """The folder of all versions: IMPLICIT_CONV_CACHE_DIR, or the user's cache folder."""
    chosen = os.environ.get("IMPLICIT_CONV_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from numba.misc.appdirs import user_cache_dir

    return Path(user_cache_dir("implicit_conv", appauthor=False))


@functools.cache
def cache_folder():
    """The folder of this version: its name is a hash of all kernel sources and of the compiler's
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
def writable():
    """Whether compiled code can be kept at all; if not, every process compiles anew."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(cache_folder(), os.W_OK)


@contextmanager
def _numba_cache():
    from numba.core import config
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:  # or a thread would read the folder that another one sets back
        before, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder())
        try:
            yield
        finally:
            config.CACHE_DIR = before


def _variant(value):
    """What tells `value` from its likes: a function's name and all that it closed over."""
    function = getattr(value, "py_func", getattr(value, "_defn", value))  # of njit, of an intrinsic
    if not isinstance(function, FunctionType):
        return str(value)
    cells = [_variant(cell.cell_contents) for cell in function.__closure__ or ()]
    return f"{function.__qualname__}({', '.join(cells)})"


def kernel(*signature, **options):
    """`numba.njit` for the engine: no GIL, numpy's error model, compiled code kept in our folder.

    Without a signature the function is only ever called by compiled code: it has no wrappers for
    Python and C, and no cache entry, since it becomes part of its callers. Its copies in two of
    them share one symbol, of which the linker keeps the first: so those that a factory makes of
    one function, for several vectors or elements, need names of their own. (Numba adds a number,
    but one that another process may have given to another variant.)
    """
    from numba import njit

    inner = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    outer = {"cache": writable()}
    options = {"nogil": True, "error_model": "numpy", **(outer if signature else inner), **options}

    def decorate(function):
        if function.__closure__:
            digest = hashlib.sha256(_variant(function).encode()).hexdigest()
            function.__qualname__ += f"_{digest[:8]}"
        with _numba_cache():
            return njit(*signature, **options)(function)

    return decorate


def entry(signature):
    """`numba.cfunc` for code that is called by address, kept in our folder."""
    from numba import cfunc

    def decorate(function):
        with _numba_cache():
            return cfunc(signature, error_model="numpy", cache=writable())(function)

    return decorate
