"""The names of compiled CPU code in the cache on disk.

An entry's name contains a hash of all that its code depends on, so versions and CPUs of any mixture
share a folder.
"""

import re
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config, sigutils

from implicit_conv.kernels import sources
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


def _variant(value: Any) -> str:
    """A text that differs between variants: a function's name and all values that it closes over,
    its defaults included.

    Other values are their own text.
    """
    # Of a function that Python calls too, of an intrinsic.
    function = getattr(value, "py_func", getattr(value, "_defn", value))
    if not isinstance(function, FunctionType):
        return str(value)
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    bound = map(_variant, [*closed, *(function.__defaults__ or ())])
    return f"{function.__qualname__}({', '.join(bound)})"


def warn_of_source(error: OSError) -> None:
    """Log that a source cannot be read, so that code has no name."""
    store().warn("source", f"kernels are not cached, as their source cannot be read: {error}")
