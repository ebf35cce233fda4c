"""Prepare first calls, which import, plan and compile, so that forks and interrupts cannot break
them.

Two things could leave a process in which no first call works any more:

- A fork. Only the thread that forks exists in the child. A lock that another thread holds at that
  time, such as that of Numba's compiler or of an import, stays locked in the child for ever. All
  preparation therefore holds a lock, and a fork waits for it.
- An exception in the middle of Numba's import or compiler, which neither of them survives. Python
  runs signal handlers, such as that of Ctrl-C, in the main thread alone, and they may raise an
  exception anywhere. The main thread therefore lets another thread compile, and waits for it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_preparing = threading.RLock()  # of threads that prepare for themselves
_working = threading.RLock()  # of threads that prepare for the main thread
# What this thread prepares, if anything: `task` is a _Task of the main thread, or SELF.
_here = threading.local()
SELF = object()


class CompilationError(Exception):
    """The main thread would have to compile, which a signal handler could interrupt."""


class AbandonedError(Exception):
    """The main thread was interrupted while it waited, so nobody needs the result."""


class _Task(threading.Thread):
    """A function that another thread runs, in the context of the thread that makes the task."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(name="implicit_conv preparation")
        self._function, self._context = function, contextvars.copy_context()
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.abandoned = False

    def run(self) -> None:
        """Run the function; keep its result, or the exception that it raises."""
        _here.task = self
        try:
            with _working:
                checkpoint()  # it may have been abandoned while this thread waited
                self.result = self._context.run(self._function)
        except BaseException as error:
            self.error = error
        self.ended.set()


def prepare(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``function(*args, **kwargs)``, which neither a fork nor a signal handler cuts in two.

    In the main thread, `function` is called again in another thread if it gets to a `checkpoint`.
    If a signal handler raises an exception meanwhile, the main thread stops to wait at once, and
    the other thread ends at its next checkpoint.
    """
    call = functools.partial(function, *args, **kwargs)
    if not _is_interruptible():
        with _preparing, _working:
            return call()
    if "numba" in sys.modules:  # else the first thing to do is to import it
        with contextlib.suppress(CompilationError), _preparing, _preparing_itself():
            with _working:
                pass  # abandoned tasks have ended, so none leaves a module half imported
            return call()
    task = _Task(call)
    try:
        task.start()
    except RuntimeError:  # no thread can be started, for example because the process ends
        with _preparing, _working:
            return call()
    try:
        task.ended.wait()
    except BaseException:
        task.abandoned = True
        raise
    if task.error is not None:
        raise task.error
    return task.result  # type: ignore[no-any-return]


def checkpoint() -> None:
    """Stand before each step that must not be interrupted: the creation of compiled functions.

    Raises
    ------
    CompilationError
        The main thread prepares for itself, so `prepare` must find another thread.
    AbandonedError
        The main thread was interrupted while it waited for this thread.
    """
    task = getattr(_here, "task", None)
    if task is SELF:
        raise CompilationError
    if isinstance(task, _Task) and task.abandoned:
        raise AbandonedError


def _is_interruptible() -> bool:
    """Whether signal handlers may raise an exception in what this thread prepares."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(getattr(_here, "task", None), _Task)


@contextlib.contextmanager
def _preparing_itself() -> Any:
    before = getattr(_here, "task", None)
    _here.task = SELF
    try:
        yield
    finally:
        _here.task = before


_forking = contextlib.ExitStack()  # the locks that a fork in progress holds


def _before_fork() -> None:
    """Wait until no other thread prepares, compiles or is inside LLVM."""
    compiler = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    llvm = getattr(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None), "_lock", None)
    for lock in (_preparing, _working, compiler, llvm):
        if lock is not None:
            _forking.enter_context(lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_forking.close, after_in_child=_forking.close
    )
