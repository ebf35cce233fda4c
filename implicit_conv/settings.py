"""Settings: environment variables of one prefix, read once, and a context manager over them."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

PREFIX = "IMPLICIT_CONV_"
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
    """

    device: str | None = None
    algorithm: str = "auto"
    num_threads: int | None = None


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
    )


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
    *, device: str | None = None, algorithm: str | None = None, num_threads: int | None = None
) -> Iterator[Config]:
    """Change settings for the calls inside a ``with`` block; what is not named stays as it is.

    Raises
    ------
    ValueError
        num_threads below 1.
    """
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"num_threads={num_threads} must be at least 1")
    given = {"device": device, "algorithm": algorithm, "num_threads": num_threads}
    changes = {name: value for name, value in given.items() if value is not None}
    token = _config.set(replace(current(), **changes))  # type: ignore[arg-type]
    try:
        yield current()
    finally:
        _config.reset(token)
