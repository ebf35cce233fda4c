"""Prepare first calls, which import, plan and compile, so that forks and interrupts cannot break
them.

Three things could leave a process in which no first call works any more, or end it:

- A fork. Only the thread that forks exists in the child. A lock that another thread holds at that
  time, such as that of LLVM or of an import, stays locked in the child for ever. All preparation
  therefore holds one lock, and so does every fork.
- An exception in the middle of an import or of a compilation, which neither of them survives.
  Python runs signal handlers, such as that of Ctrl-C, in the main thread alone, and they may raise
  an exception between any two of its instructions. No instruction comes between acquiring a lock
  and entering a `with` block, or inside a C function.
- A small stack, which LLVM overflows.

A thread may therefore plan for itself, but another one, with a stack of its own size, imports LLVM
and Numba, compiles and loads; the first one waits for it. What is prepared is a step of its own, a
plan or the launches of one candidate, and depends on shapes, strides and dtypes: no array of the
caller's is part of it, and a step that another thread takes again has done little before.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import contextvars
import functools
import logging  # forks take its lock after ours, as planning does: it comes first here
import operator
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

LLVM = "llvmlite.binding"  # the module that loads LLVM
STACK_BYTES = 8 << 20  # of a thread that compiles, as the main thread has it on Linux

COMPILING: Any = threading.RLock()  # held by a thread that compiles or loads code
_preparing: Any = threading.RLock()  # held by a thread that prepares, and through each fork
# Held while waiting for `_preparing` and holding it, by all threads but the main one: so a fork and
# the main thread wait beside one other thread. (A signal handler may want a result of another
# thread while the main thread waits for `_preparing`, and so must not keep others from it.)
_next: Any = threading.RLock()
# What this thread prepares: a _Task, or SELF if it must not compile.
_here = threading.local()
SELF = object()


class CompilationError(Exception):
    """A thread would have to compile that was not started for it."""


class AbandonedError(Exception):
    """The thread that waited for the result was interrupted, so nobody needs it."""


class ThreadError(Exception):
    """No thread can be started, for example because the process ends."""


class _Task(threading.Thread):
    """A function that another thread runs, in the context of the thread that makes the task."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(name="implicit_conv preparation", daemon=False)
        # `_context` is an attribute of Thread itself, since Python 3.14.
        self._function, self._callers_context = function, contextvars.copy_context()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.abandoned = False

    def result(self) -> Any:
        """Start, wait, and return or raise what the function does."""
        try:
            # An exception in the middle of Thread.start would break it, so this thread does not
            # call it.
            try:
                _thread.start_new_thread(self.start, ())
            except RuntimeError as cause:
                raise ThreadError from cause
            result, error = self._answers.get()
        except BaseException:
            self.abandoned = True
            raise
        if error is not None:
            raise error
        return result

    def start(self) -> None:
        """Start the thread with a stack of STACK_BYTES: the size is one for all threads."""
        with _preparing:
            before = threading.stack_size()
            try:
                threading.stack_size(STACK_BYTES)
                if not self.abandoned:  # else the process may be about to end
                    super().start()
            except (RuntimeError, MemoryError):
                self._answers.put((None, ThreadError()))
            finally:
                threading.stack_size(before)

    def run(self) -> None:
        """Run the function, and send its result or the exception that it raises."""
        _here.task = self
        try:
            with _next, _preparing:
                checkpoint()  # it may have been abandoned while this thread waited
                answer = self._callers_context.run(self._function), None
        except BaseException as error:
            self._answers.put((None, error))
        else:
            self._answers.put(answer)


def prepare(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``function(*args, **kwargs)``, which neither a fork nor a signal handler cuts in two.

    If it gets to a `checkpoint`, it is called again in another thread. If a signal handler raises
    an exception meanwhile, this thread stops to wait at once, and the other thread ends at its next
    checkpoint.

    A callback or a signal handler of a thread that prepares, or is about to fork, runs the function
    in that thread: others wait for it.
    """
    call = functools.partial(function, *args, **kwargs)
    before = getattr(_here, "task", None)
    if isinstance(before, _Later):
        return call()
    if _preparing._is_owned():
        with _marked(None if before is SELF else before):
            return call()
    if imported(LLVM):  # else the first thing to do is to import it
        is_main = threading.get_ident() == threading.main_thread().ident
        with _preparing if is_main else _next, _preparing:
            _here.task = SELF
            try:
                return call()
            except CompilationError:
                pass
            finally:
                _here.task = before
    try:
        return _Task(call).result()  # type: ignore[no-any-return]
    except ThreadError:
        with _preparing, _marked(None):
            return call()


# What other threads shall prepare, each a function whose result they go through, and these threads.
_waiting: collections.deque[Callable[[], Iterable[object]]] = collections.deque()
_later: set[object] = set()


def prepare_later(function: Callable[[], Iterable[object]]) -> None:
    """Have another thread go through ``function()``, which compiles a little for each of its items.

    No call needs it, so errors are only logged, and the thread ends with the main thread. It holds
    a lock while it compiles, but none between two items: other threads and forks wait for one.
    """
    _waiting.append(function)
    _start_later()


def prepares_later() -> bool:
    """Whether another thread than this one goes through what waits."""
    return bool(_later) and not isinstance(_task(), _Later)


def _start_later() -> None:
    """Start a thread that prepares what waits, unless one runs; if none can be started, the next
    `prepare_later` tries again.
    """
    if _later:
        return
    later = _Later(lambda: None)
    _later.add(later)
    try:
        _thread.start_new_thread(later.start, ())
    except RuntimeError:
        _later.discard(later)


class _Later(_Task):
    """The thread of `prepare_later`."""

    def start(self) -> None:
        """Start the thread with the stack of a task."""
        super().start()
        if self.ident is None:
            _later.discard(self)

    def run(self) -> None:
        """Go through what waits, until nothing does; this thread then compiles for itself."""
        _here.task = self
        while _waiting and threading.main_thread().is_alive():
            try:
                for _ in _waiting.popleft()():
                    give_way()
                    if not threading.main_thread().is_alive():
                        break
            except Exception:
                logging.getLogger("implicit_conv").debug("not prepared", exc_info=True)
        _later.discard(self)
        if _waiting and threading.main_thread().is_alive():  # since this thread looked last
            _start_later()


def checkpoint() -> None:
    """Stand before each step that must not be interrupted: whatever imports, or asks LLVM.

    Raises
    ------
    CompilationError
        This thread prepares for itself, so `prepare` must find another one.
    AbandonedError
        The thread that waited for this one was interrupted.
    """
    task = _task()
    if task is SELF and _preparing._is_owned():  # SELF may be left from an interrupt
        raise CompilationError
    if isinstance(task, _Task) and task.abandoned:
        raise AbandonedError


def give_way() -> None:
    """Let other threads of Python run, in the thread of `prepare_later`, which else would keep the
    GIL for milliseconds at a time.
    """
    if isinstance(_task(), _Later):
        time.sleep(0)


def may_load() -> bool:
    """Whether this thread may import and ask LLVM; else a checkpoint stops it."""
    return _task() is not SELF


@functools.cache
def first(step: str) -> None:
    """A checkpoint before the first time that this process does `step`, which imports something."""
    checkpoint()


def imports(function: Callable[[], R]) -> Callable[[], R]:
    """Decorate a function that imports in the middle of a call, and returns what it needs of that:
    it runs once, prepared. A fork waits for it, also where the thread of `prepare_later` imports,
    which holds no other lock.
    """

    def imported() -> R:
        checkpoint()
        with COMPILING:
            return function()

    return functools.cache(functools.wraps(function)(functools.partial(prepare, imported)))


def imported(name: str) -> Any:
    """The module of this name if it has been imported to its end; None if not, or not yet: while
    one thread imports it, `sys.modules` has a module that lacks names.
    """
    module = sys.modules.get(name)
    if getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module


def _task() -> object:
    """What this thread prepares, or None."""
    return getattr(_here, "task", None)


@contextlib.contextmanager
def _marked(task: object) -> Any:
    before = _task()
    _here.task = task
    try:
        yield
    finally:
        _here.task = before


# Forks. CPython calls the functions `before` in the reverse order of their registration. It reports
# an exception that one of them raises, calls the next one, and forks. One C function therefore
# acquires or releases a lock, and the lock itself is the only record of who holds it: whatever a
# signal handler raises, and whoever forks at the same time, a fork releases what it acquired.


class _Lock:
    """The RLock of another package; until that is imported, one that nobody else has."""

    def __init__(self) -> None:
        self.become(threading.RLock())

    def become(self, lock: Any) -> None:
        """Take the methods of `lock`, in one step."""
        names = ("acquire", "release", "_is_owned", "_at_fork_reinit")
        vars(self).update({name: getattr(lock, name) for name in names})


_llvm: Any = _Lock()


def _find_lock() -> None:
    """Look for the lock of LLVM, in a fork, which holds `_preparing`."""
    found = getattr(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None), "_lock", None)
    if found is not None:
        _llvm.become(found._lock)


def _insist(lock: Any) -> None:
    """Acquire a lock after all, if a signal handler's exception ended the wait for it."""
    while not lock._is_owned():
        with contextlib.suppress(BaseException):
            lock.acquire()


def _free_locks() -> None:
    """In the child, release what this thread holds for the fork; nobody else is there."""
    _find_lock()
    for lock in (_llvm, COMPILING, _preparing):
        if lock._is_owned():
            lock.release()
        else:
            lock._at_fork_reinit()
    if not _next._is_owned():
        _next._at_fork_reinit()
    _waiting.clear()
    _later.clear()


def _before_forks(function: Callable[[], None]) -> None:
    """Register a function that may be called again: an exception at its first instruction would
    skip it, so two such exceptions in a row do not.
    """
    for _ in range(3):
        os.register_at_fork(before=function)


def hold_through_forks(lock: Any) -> None:
    """Have each fork acquire an RLock, insist, and release it in the parent; in the child, which
    holds it, release it in a function of your own.
    """
    _before_forks(functools.partial(_insist, lock))
    acquire, release = map(operator.methodcaller, ("acquire", "release"))
    os.register_at_fork(
        before=functools.partial(acquire, lock), after_in_parent=functools.partial(release, lock)
    )


if hasattr(os, "register_at_fork"):
    hold_through_forks(_llvm)
    hold_through_forks(COMPILING)
    _before_forks(_find_lock)
    hold_through_forks(_preparing)
    os.register_at_fork(after_in_child=_free_locks)
