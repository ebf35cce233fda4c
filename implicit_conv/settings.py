"""Settings: environment variables, read once, and `config`, which overrides them."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import operator
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import EllipsisType, TracebackType
from typing import Literal, ParamSpec, TypeVar

from implicit_conv.kernels.sources import COMPILERS, TRANSLATOR
from implicit_conv.problem.options import ALGORITHMS, Algorithm
from implicit_conv.process.cache import cached_property
from implicit_conv.process.disk_folder import largest_folder
from implicit_conv.process.preparation import hold_through_forks

P = ParamSpec("P")
R = TypeVar("R")

PREFIX = "IMPLICIT_CONV_"
VARIABLES = (
    *("DEVICE", "ALGORITHM", "NUM_THREADS", "SUBNORMALS", "COMPILER"),
    *("CACHE_DIR", "CACHE_BYTES", "LOG"),
)
WORDS = {  # of settings, the default first
    "algorithm": ("auto", *ALGORITHMS),
    "subnormals": ("keep", "flush"),
    "compiler": COMPILERS,
}
DEVICE = re.compile(r"cpu|cuda(:\d{1,4})?")
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
    device = os.environ.get(f"{PREFIX}DEVICE")
    words = {name: os.environ.get(PREFIX + name.upper()) or WORDS[name][0] for name in WORDS}
    return Config(
        device=_device(device) if device else None,
        num_threads=_read_thread_count(threads) if threads else None,
        **{name: _word(name, value) for name, value in words.items()},
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


def _word(name: str, value: object) -> str:
    """A value of a setting that has WORDS, given in any case."""
    word = value.lower() if isinstance(value, str) else ""
    if word not in WORDS[name]:
        raise ValueError(f"{name}={value!r} is unknown; choose from {', '.join(WORDS[name])}")
    return word


def _device(value: object) -> str:
    if not (isinstance(value, str) and DEVICE.fullmatch(value)):
        raise ValueError(f"device={value!r} is none of None, 'cpu', 'cuda' and 'cuda:N'")
    return value


class _Scope:
    """The settings of the process, or of a block, and the calls of `config` that were made in it.

    A call changes the settings of its scope until the scope ends, or the call becomes a block. A
    block is over, too, once the setting that heads it is freed: nothing can leave it any more.
    """

    def __init__(
        self, config: Config, outer: _Scope | None = None, setting: Setting | None = None
    ) -> None:
        self.config, self.outer = config, outer
        self._setting = None if setting is None else weakref.ref(setting)
        self._has_ended = False
        self._first = config  # before the calls
        self._calls: list[tuple[weakref.ref[Setting], dict[str, object]]] = []

    def add(self, setting: Setting) -> None:
        """A call was made; earlier ones that can become no block any more are for good."""
        while self._calls and self._calls[0][0]() is None:
            self._first = _changed(self._first, self._calls[0][1])
            del self._calls[0]
        self._calls.append((weakref.ref(setting), setting.changes))
        self.config = _changed(self.config, setting.changes)

    def remove(self, setting: Setting) -> None:
        """A call becomes a block, or was interrupted."""
        self._calls = [call for call in self._calls if call[0]() is not setting]
        config = self._first
        for _, changes in self._calls:
            config = _changed(config, changes)
        self.config = config

    def end(self) -> None:
        self._has_ended = True

    @property
    def is_over(self) -> bool:
        return self._has_ended or (self._setting is not None and self._setting() is None)

    def is_headed_by(self, setting: Setting) -> bool:
        """Whether this is a block of `setting` that is in force."""
        return not self._has_ended and self._setting is not None and self._setting() is setting


def _changed(config: Config, changes: dict[str, object]) -> Config:
    return replace(config, **changes)  # type: ignore[arg-type]


# The innermost block of this thread or task. It may be over: a task that was started in the block
# keeps it, and it may end in another task than it began, as that of a generator can.
_own: ContextVar[_Scope | None] = ContextVar("implicit_conv.settings", default=None)
_open: list[_Scope] = []  # that of the process, and blocks in the order of their beginning
_lock = threading.RLock()  # of what changes or follows from several scopes


def _block() -> _Scope | None:
    """The innermost block of this thread or task that is in force."""
    scope = _own.get()
    while scope is not None and scope.is_over:
        scope = scope.outer
    return scope


def _process() -> _Scope:
    if not _open:
        with _lock:
            if not _open:
                _open.append(_Scope(_from_environment()))
    return _open[0]


def _shared() -> _Scope:
    """The scope of threads without a block of their own: the block that began last, in whichever
    thread, so that threads which are started in a block are in it.
    """
    process = _process()
    for scope in reversed(_open):
        if not scope.is_over:
            return scope
    return process  # another thread has changed the list meanwhile


def current() -> Config:
    """The settings in force in this thread or task.

    Raises
    ------
    ValueError
        An environment variable has an invalid value.
    """
    if len(_open) == 1 and _own.get() is None:  # most calls
        return _open[0].config
    return (_block() or _shared()).config


def process_settings() -> tuple[list[_Scope], ContextVar[_Scope | None]]:
    """What `current` reads in most calls, for compiled code: while the list has one scope, and the
    variable is None, `config` of that scope is in force in this thread or task.

    It takes no lock: who prepares asks for it, and a fork that has the lock waits for who prepares.
    """
    return _open, _own


@contextmanager
def local(*, num_threads: int) -> Iterator[None]:
    """A block whose number of threads other threads of the process do not see."""
    scope = _Scope(replace(current(), num_threads=num_threads), _block())
    _own.set(scope)
    try:
        yield
    finally:
        _own.set(scope.outer)


class Setting:
    """A call of `config`: in force until the block ends in which it was made, or, as the head of a
    ``with`` block of its own, until that ends.

    An interrupt, such as Ctrl-C, may come between any two steps: each undoes what it had begun.
    """

    def __init__(self, changes: dict[str, object]) -> None:
        self.changes = changes
        self._made_in = _block() or _process()

    def call(self) -> Setting:
        """Change the settings of the block in which this was made, or of the process."""
        try:
            with _lock:
                self._made_in.add(self)
            return self
        except BaseException:
            with _lock:
                self._made_in.remove(self)
            raise

    def __enter__(self) -> Config:
        scope = None
        try:
            with _lock:
                self._made_in.remove(self)
                scope = _Scope(_changed(current(), self.changes), _block(), self)
                _open.append(scope)
            _own.set(scope)
            return scope.config
        except BaseException:
            with _lock:
                self._made_in.remove(self)
            if scope is not None:
                scope.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scope = _own.get()
        while scope is not None and not scope.is_headed_by(self):
            scope = scope.outer
        with _lock:
            if scope is None:  # the block of a generator, say, which another thread closes
                scope = [each for each in _open if each.is_headed_by(self)][-1]
            scope.end()
            for each in _open:
                if each.outer is scope:
                    each.outer = scope.outer
            _open[1:] = [each for each in _open[1:] if not each.is_over]
        _own.set(_block())


def _forget_other_threads() -> None:
    """In a forked child: blocks of threads that it does not have would never end."""
    scope, kept = _own.get(), set(_open[:1])
    while scope is not None:
        kept.add(scope)
        scope = scope.outer
    _open[:] = [scope for scope in _open if scope in kept]
    _lock.release()


if hasattr(os, "register_at_fork"):
    hold_through_forks(_lock)
    os.register_at_fork(after_in_child=_forget_other_threads)


THREADS = ("n_jobs", "n_threads", "nthreads", "num_threads", "threads", "workers")  # elsewhere


def named(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose error of an unknown keyword says what to write instead."""
    known = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        for word, value in options.items():
            if word not in known:
                way = _instead(word, value, known)
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {word!r}; {way}"
                )
        return function(*args, **options)

    return checked


def _instead(word: str, value: object, known: Sequence[str]) -> str:
    """What to write instead of a keyword that is none of those `known`."""
    if word in THREADS:
        own = f"num_threads={value!r}"
        return f"write {own}" if "num_threads" in known else f"write implicit_conv.config({own})"
    close = difflib.get_close_matches(word, known, 1)
    return f"write {close[0]}={value!r}" if close else f"its parameters are {', '.join(known)}"


@named
def config(
    *,
    device: str | EllipsisType | None = ...,
    algorithm: Algorithm | EllipsisType | None = ...,
    num_threads: int | EllipsisType | None = ...,
    subnormals: Literal["keep", "flush"] | EllipsisType | None = ...,
    compiler: Literal["translator", "njit"] | EllipsisType | None = ...,
) -> Setting:
    """Change settings: ``config(num_threads=4)`` for the process, ``with config(num_threads=1):``
    for a block.

    A call alone holds for all threads from then on; in a thread or task that is inside a ``with``
    block it changes that block, and ends with it. A block holds for its thread or task, for tasks
    that are started in it and, as long as it lasts, for all threads that are in no block of their
    own, such as those that are started in it: of several blocks, for these the one that began last.
    Leaving it, in whichever thread or task, restores what was before.

    Parameters
    ----------
    device, algorithm, num_threads, subnormals, compiler
        As in `Config`; None restores the default, and omitted settings do not change.

    Returns
    -------
    setting
        What a ``with`` statement takes; ``with config(...) as settings`` names the `Config` in
        force.

    Raises
    ------
    TypeError
        num_threads is not an integer.
    ValueError
        num_threads is below 1 or above 4096, or another value is unknown.

    Examples
    --------
    >>> from implicit_conv import config
    >>> with config(num_threads=1) as settings:
    ...     print(settings.num_threads, settings.algorithm)
    1 auto
    """
    changes: dict[str, object] = {}
    if device is not ...:
        changes["device"] = None if device is None else _device(device)
    if num_threads is not ...:
        changes["num_threads"] = None if num_threads is None else _thread_count(num_threads)
    words = {"algorithm": algorithm, "subnormals": subnormals, "compiler": compiler}
    for name, value in words.items():
        if value is not ...:
            changes[name] = WORDS[name][0] if value is None else _word(name, value)
    return Setting(changes).call()


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
