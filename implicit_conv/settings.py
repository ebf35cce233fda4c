"""Settings: environment variables, read once, and a context manager that overrides them."""

from __future__ import annotations

import functools
import logging
import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import EllipsisType

from implicit_conv.cache import cached_property
from implicit_conv.kernels.cpu.compilers import COMPILERS, TRANSLATOR
from implicit_conv.kernels.disk_files import largest_folder

PREFIX = "IMPLICIT_CONV_"
VARIABLES = (
    *("DEVICE", "ALGORITHM", "NUM_THREADS", "SUBNORMALS", "COMPILER"),
    *("CACHE_DIR", "CACHE_BYTES", "LOG"),
)
SUBNORMALS = ("keep", "flush")
MOST_THREADS = 4096  # of a call: each thread has scratch memory of its own
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True)
class Config:
    """The settings that apply to calls which do not give them as arguments.

    Attributes
    ----------
    device : str or None
        The device that convolves numpy arrays: None or "cpu", or a CUDA device such as "cuda:0".
    algorithm : str
        As in `conv2d`.
    num_threads : int or None
        The number of CPU threads, 1 to 4096; None means all that are available.
    subnormals : str
        "keep" (default) or "flush". "flush" treats values below 2^-126 (float32) or 2^-1022
        (float64) as zeros while the CPU convolves. Some CPUs, such as Intel's, take over a hundred
        times as long for a sum with such values, which occur in decayed filters and in signals
        that fade out.
    compiler : str
        What compiles kernels for the CPU: "translator" (default), this package's own, or "njit",
        Numba's. Both take the same functions, and results are equal bit by bit. "njit" takes about
        ten times as long, in every process anew, and is for those who trust Numba alone and for
        finding out which compiler is wrong. Functions that a process needs once for all calls, such
        as those of its threads, are compiled as IMPLICIT_CONV_COMPILER says.
    """

    device: str | None = None
    algorithm: str = "auto"
    num_threads: int | None = None
    subnormals: str = "keep"
    compiler: str = TRANSLATOR

    @cached_property
    def key(self) -> tuple[object, ...]:
        """All settings as a tuple, whose hash is quickly computed."""
        return self.device, self.algorithm, self.num_threads, self.subnormals, self.compiler


@functools.cache
def _from_environment() -> Config:
    threads = os.environ.get(f"{PREFIX}NUM_THREADS")
    level = os.environ.get(f"{PREFIX}LOG", "").upper()
    if level:
        if level not in LEVELS:
            raise ValueError(f"{PREFIX}LOG={level!r} is unknown; choose from {', '.join(LEVELS)}")
        logging.basicConfig()
        logging.getLogger("implicit_conv").setLevel(level)
    _warn_of_unknown_variables()
    largest_folder()  # the cache reads it where no error may be raised
    return Config(
        device=os.environ.get(f"{PREFIX}DEVICE") or None,
        algorithm=os.environ.get(f"{PREFIX}ALGORITHM") or "auto",
        num_threads=_read_thread_count(threads) if threads else None,
        subnormals=_subnormals(os.environ.get(f"{PREFIX}SUBNORMALS") or "keep"),
        compiler=_compiler(os.environ.get(f"{PREFIX}COMPILER") or TRANSLATOR),
    )


def _read_thread_count(text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= count <= MOST_THREADS:
        raise ValueError(
            f"{PREFIX}NUM_THREADS={text!r} must be an integer from 1 to {MOST_THREADS}"
        )
    return count


def _warn_of_unknown_variables() -> None:
    ours = [name for name in os.environ if name.startswith(PREFIX)]
    unknown = [name for name in ours if name.removeprefix(PREFIX) not in VARIABLES]
    if unknown:
        logging.getLogger("implicit_conv").warning(
            "ignored unknown settings %s; the known ones are %s",
            ", ".join(unknown),
            ", ".join(PREFIX + name for name in VARIABLES),
        )


def _subnormals(value: object) -> str:
    if value not in SUBNORMALS:
        raise ValueError(f"subnormals={value!r} is unknown; choose from {', '.join(SUBNORMALS)}")
    return str(value)


def _compiler(value: object) -> str:
    if value not in COMPILERS:
        raise ValueError(f"compiler={value!r} is unknown; choose from {', '.join(COMPILERS)}")
    return str(value)


_config: ContextVar[Config | None] = ContextVar("implicit_conv.settings", default=None)


def current() -> Config:
    """The settings in force in this thread or task.

    Raises
    ------
    ValueError
        An environment variable has an invalid value.
    """
    return _config.get() or _from_environment()


@contextmanager
def config(
    *,
    device: str | EllipsisType | None = ...,
    algorithm: str | EllipsisType | None = ...,
    num_threads: int | EllipsisType | None = ...,
    subnormals: str | EllipsisType | None = ...,
    compiler: str | EllipsisType | None = ...,
) -> Iterator[Config]:
    """Change settings for the calls inside a ``with`` block.

    Parameters
    ----------
    device, algorithm, num_threads, subnormals, compiler
        As in `Config`; None restores the default, and omitted settings do not change.

    Raises
    ------
    TypeError
        num_threads is not an integer.
    ValueError
        num_threads is below 1 or above 4096, or `subnormals` or `compiler` is unknown.
    """
    changes: dict[str, object] = {}
    if device is not ...:
        changes["device"] = device
    if algorithm is not ...:
        changes["algorithm"] = "auto" if algorithm is None else algorithm
    if num_threads is not ...:
        changes["num_threads"] = None if num_threads is None else _thread_count(num_threads)
    if subnormals is not ...:
        changes["subnormals"] = _subnormals("keep" if subnormals is None else subnormals)
    if compiler is not ...:
        changes["compiler"] = _compiler(TRANSLATOR if compiler is None else compiler)
    token = _config.set(replace(current(), **changes))  # type: ignore[arg-type]
    try:
        yield current()
    finally:
        _config.reset(token)


def _thread_count(value: object) -> int:
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(f"num_threads={value!r} must be an integer of at least 1, or None for all")
    if count < 1:
        raise ValueError(
            f"num_threads={count} must be at least 1; None means all that are available"
        )
    if count > MOST_THREADS:
        raise ValueError(f"num_threads={count} must be at most {MOST_THREADS}")
    return count
