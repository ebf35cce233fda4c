"""Settings: environment variables of one prefix, read once, and a context manager over them."""

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

PREFIX = "IMPLICIT_CONV_"
SUBNORMALS = ("keep", "flush")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True)
class Config:
    """What a call takes from its surroundings where its arguments say nothing.

    Attributes
    ----------
    device : str or None
        Where numpy arrays are computed: None or "cpu", or a CUDA device.
    algorithm : str
        As in `conv2d`.
    num_threads : int or None
        CPU threads; None takes all that are available.
    subnormals : str
        "keep" (default), or "flush": numbers below 2^-126 (float32) or 2^-1022 (float64) count as
        zeros while the CPU convolves. Some CPUs, Intel's among them, take over a hundred times as
        long for a sum with such numbers, which decayed filters and fading signals consist of.
    """

    device: str | None = None
    algorithm: str = "auto"
    num_threads: int | None = None
    subnormals: str = "keep"


@functools.cache
def _from_environment() -> Config:
    threads = os.environ.get(f"{PREFIX}NUM_THREADS") or None
    if threads is not None and not (threads.isascii() and threads.isdigit() and int(threads) >= 1):
        raise ValueError(f"{PREFIX}NUM_THREADS={threads!r} must be an integer of at least 1")
    level = os.environ.get(f"{PREFIX}LOG", "").upper()
    if level:
        if level not in LEVELS:
            raise ValueError(f"{PREFIX}LOG={level!r} is none of {', '.join(LEVELS)}")
        logging.basicConfig()
        logging.getLogger("implicit_conv").setLevel(level)
    return Config(
        device=os.environ.get(f"{PREFIX}DEVICE") or None,
        algorithm=os.environ.get(f"{PREFIX}ALGORITHM") or "auto",
        num_threads=int(threads) if threads else None,
        subnormals=_subnormals(os.environ.get(f"{PREFIX}SUBNORMALS") or "keep"),
    )


def _subnormals(value: object) -> str:
    if value not in SUBNORMALS:
        raise ValueError(f"subnormals={value!r} is none of {', '.join(SUBNORMALS)}")
    return str(value)


_config: ContextVar[Config | None] = ContextVar("implicit_conv.settings", default=None)


def current() -> Config:
    """The settings in force in this thread or task.

    Raises
    ------
    ValueError
        An environment variable that makes no sense.
    """
    return _config.get() or _from_environment()


@contextmanager
def config(
    *,
    device: str | EllipsisType | None = ...,
    algorithm: str | EllipsisType | None = ...,
    num_threads: int | EllipsisType | None = ...,
    subnormals: str | EllipsisType | None = ...,
) -> Iterator[Config]:
    """Change settings for the calls inside a ``with`` block.

    Parameters
    ----------
    device, algorithm, num_threads, subnormals
        As in `Config`; None sets the default back, what is not named stays as it is.

    Raises
    ------
    TypeError
        num_threads that is no integer.
    ValueError
        num_threads below 1, or an unknown way with subnormal numbers.
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
    token = _config.set(replace(current(), **changes))  # type: ignore[arg-type]
    try:
        yield current()
    finally:
        _config.reset(token)


def _thread_count(value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"num_threads={value!r} must be an integer of at least 1, or None for all")
    count = operator.index(value)
    if count < 1:
        raise ValueError(f"num_threads={count} must be at least 1; None takes all there are")
    return count
