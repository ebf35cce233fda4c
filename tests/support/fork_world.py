"""A world in which the source of `preparation` runs under chosen schedules, with signals.

Its threads make one step at a time, with locks, queues and forks of this file. A step is what a
lock or a queue does. Between steps a signal handler may run in the main thread, wherever CPython
looks for signals: before the first instruction of a function, after a function in C, and while a
lock or a queue waits.
"""

import ast
import collections
import contextlib
import contextvars
import functools
import inspect
import logging
import operator
import sys
import threading
from collections import deque
from types import SimpleNamespace

from implicit_conv.process import preparation

MAIN, SIGNAL = 0, -1  # the main thread, and the choice that its signal handler runs
STEPS = 3000  # of a run that ends
SIGNALS = 2  # of a fork that holds its locks nevertheless
LOCAL = threading.local()


class Interrupt(BaseException):
    """What a signal handler raises."""


class RLock:
    """An RLock as `_thread` has it; `world.step` comes before each change."""

    def __init__(self, world):
        self.world, self.owner, self.count = world, None, 0
        world.locks.append(self)

    def acquire(self):
        me = self.world.me()
        self.world.step(lambda: self.owner in (None, me))
        self.owner, self.count = me, self.count + 1
        return True

    def release(self):
        if self.world.over:
            return
        if self.owner != self.world.me():
            raise RuntimeError("cannot release un-acquired lock")
        self.world.step()
        self.count -= 1
        self.owner = self.owner if self.count else None

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *error):
        self.release()

    def _is_owned(self):
        return self.world.over or self.owner == self.world.me()

    def _at_fork_reinit(self):
        self.owner, self.count = None, 0


class SimpleQueue:
    def __init__(self, world):
        self.world, self.items = world, deque()

    def put(self, item):
        self.world.step()
        self.items.append(item)

    def get(self):
        self.world.step(lambda: self.items)
        return self.items.popleft() if self.items else (None, Interrupt())  # the run is over


class Thread:
    """The base class of tasks."""

    world: "World"

    def __init__(self, name, daemon):
        assert not daemon  # the process waits for it

    def start(self):
        self.world.spawn(self.run)


class World:
    """Threads that fork and make first calls, of which one makes a step at a time.

    Parameters
    ----------
    actions : list of list of function
        For each thread, what it does: functions of a world. The first thread is the main one.
    handler : function
        What the signal handler does.
    signals : int
        How often it runs at most.
    """

    def __init__(self, actions, handler=None, signals=0):
        self.locks, self.threads, self.inside, self.hooks = [], [], [], {}
        self.actions, self.handler, self.signals = actions, handler, signals
        self.error, self.over, self.steps, self.signalled = None, False, 0, 0
        self.module = self._load()

    def _load(self):
        """The module, with the functions of this world in place of those that it imports."""
        tree = ast.parse(inspect.getsource(preparation))
        imports = ast.Import, ast.ImportFrom
        tree.body = [
            node
            for node in tree.body
            if not isinstance(node, imports) or getattr(node, "module", "") == "__future__"
        ]
        hooks = self.hooks = {"before": [], "after_in_parent": [], "after_in_child": []}

        def register(**given):
            for when, hook in given.items():
                hooks[when].append(hook)

        lock = functools.partial(RLock, self)
        self.llvm = lock()
        library = SimpleNamespace(lib=SimpleNamespace(_lock=SimpleNamespace(_lock=self.llvm)))
        modules = {"llvmlite.binding": None, "llvmlite.binding.ffi": library}
        names = {
            "__name__": "preparation under test",
            "contextlib": contextlib,
            "collections": collections,
            "contextvars": contextvars,
            "functools": functools,
            "operator": operator,
            "Callable": object,
            "Iterable": object,
            "logging": logging,
            "Any": object,
            "ParamSpec": str,
            "TypeVar": str,
            "os": SimpleNamespace(register_at_fork=register),
            "sys": SimpleNamespace(modules=modules),
            "queue": SimpleNamespace(SimpleQueue=functools.partial(SimpleQueue, self)),
            "_thread": SimpleNamespace(start_new_thread=lambda f, args: self.spawn(f)),
            "threading": SimpleNamespace(
                RLock=lock,
                local=threading.local,
                get_ident=self.me,
                main_thread=lambda: SimpleNamespace(ident=MAIN),
                stack_size=lambda *size: 0,
                Thread=type("Thread", (Thread,), {"world": self}),
            ),
        }
        exec(compile(tree, preparation.__file__, "exec"), names)
        return SimpleNamespace(**names)

    # Threads

    def me(self):
        return LOCAL.number if getattr(LOCAL, "world", None) is self else MAIN

    def spawn(self, function):
        thread = SimpleNamespace(ready=lambda: True, baton=threading.Semaphore(0), ended=False)
        number = len(self.threads)
        self.threads.append(thread)

        def run():
            LOCAL.world, LOCAL.number = self, number
            thread.baton.acquire()
            try:
                if not self.over:
                    self._watch()
                    function()
            except Interrupt:
                pass
            except BaseException as error:
                self.fail(error)
            sys.setprofile(None)
            thread.ended = True
            self._pass_on()

        thread.thread = threading.Thread(target=run, daemon=True)
        thread.thread.start()
        if self.over:
            thread.baton.release()

    def go(self, choose):
        """Run until nobody can make a step: ``choose(ready, current)`` picks who does the next."""
        self.choose, self.done = choose, threading.Semaphore(0)
        for actions in self.actions:
            self.spawn(lambda actions=actions: [self.act(action) for action in actions])
        self.threads[MAIN].baton.release()
        assert self.done.acquire(timeout=60), "the test itself hangs"
        for thread in self.threads:
            thread.thread.join()
        if self.error:
            raise self.error
        self.check()

    def act(self, action):
        """Do something; where a signal handler raises, the thread goes on with its next action."""
        with contextlib.suppress(Interrupt):
            action(self)

    def fail(self, error):
        self.error = self.error or error
        self._end()

    def _end(self):
        self.over = True
        for thread in self.threads:
            thread.baton.release()

    def _pass_on(self):
        """This thread has ended: let another one go on."""
        if all(thread.ended for thread in self.threads):
            self.done.release()
        elif not self.over:
            self._choose(may_signal=self.threads[MAIN].ended is False)

    def _choose(self, may_signal=False):
        """Pick who goes on, and give it the baton; returns the number."""
        ready = [i for i, t in enumerate(self.threads) if not t.ended and t.ready()]
        self.steps += 1
        waits = not self.threads[MAIN].ended and MAIN not in ready
        if self.signals and waits and may_signal:
            choices = [*ready, SIGNAL]
        else:
            choices = ready
        if not ready:
            self.fail(AssertionError(f"deadlock: {[(k.owner, k.count) for k in self.locks]}"))
            return None
        if self.steps > STEPS:
            self.fail(AssertionError("the run does not end"))
            return None
        chosen = self.choose(choices, self.me())
        if chosen == SIGNAL:
            self.threads[MAIN].signal, chosen = True, MAIN
        if chosen != self.me() or self.threads[chosen].ended:
            self.threads[chosen].baton.release()
        return chosen

    def step(self, ready=lambda: True):
        """Let others go first, as chosen; return when this thread may make its step."""
        if self.over or LOCAL.__dict__.get("child"):
            return
        me = self.threads[self.me()]
        while True:
            me.ready = ready
            if self._choose(may_signal=True) != self.me() and not self.over:
                me.baton.acquire()
            if self.over:
                return
            me.ready = lambda: True
            if not getattr(me, "signal", False):
                self._watch()
                return
            me.signal = False
            self._handle()

    # Signals

    def _watch(self):
        """Have the main thread look for signals where CPython does."""
        if self.me() == MAIN and self.signals:
            sys.setprofile(self._look)

    def _look(self, frame, event, argument):
        ours = frame.f_code.co_filename in (preparation.__file__, contextlib.__file__)
        if not ours or event not in ("call", "c_return") or self.over or not self.signals:
            return
        if LOCAL.__dict__.get("child") or LOCAL.__dict__.get("handling"):
            return
        self.maybe_signal()

    def maybe_signal(self):
        """A moment at which the main thread runs the signal handler, if that is chosen."""
        if self.signals and self.me() == MAIN and not self.over:
            if self.choose([MAIN, SIGNAL], MAIN) == SIGNAL:
                self._handle()

    def _handle(self):
        self.signals, self.signalled = self.signals - 1, self.signalled + 1
        sys.setprofile(None)
        self.handler(self)
        self._watch()

    # What threads do

    def fork(self):
        """As os.fork: an exception of a hook is reported, and the next hook is called."""
        held = [(lock, lock.count) for lock in self.locks if lock.owner == self.me()]
        for hook in reversed(self.hooks["before"]):
            self._call(hook)
        self.check_fork(dict(held))
        for hook in self.hooks["after_in_parent"]:
            self._call(hook)

    def _call(self, hook):
        try:
            self._watch()  # Python's functions may be interrupted at once
            hook()
        except Interrupt:
            pass
        except RuntimeError:  # CPython reports it too: nothing was released
            assert self.signalled > SIGNALS, "released what was not acquired"

    def check_fork(self, held):
        """No other thread prepares, and the child finds all locks free but those of this thread."""
        if self.over:
            return
        me, before = self.me(), [(lock, lock.owner, lock.count) for lock in self.locks]
        compiling = self.module.COMPILING
        locks = self.module._preparing, self.module._next, compiling, self.llvm
        if self.signalled <= SIGNALS:
            assert set(self.inside) <= {me}, "forked while another thread prepares"
            assert self.module._preparing.owner == compiling.owner == me, "forked without locks"
        found = dict(vars(self.module._llvm))
        LOCAL.child = True
        sys.setprofile(None)
        for hook in self.hooks["after_in_child"]:
            hook()
        for lock in locks:
            free = (lock.owner, lock.count) in ((None, 0), (me, held.get(lock, 0)))
            assert free, "a lock that the child finds held"
        LOCAL.child = False
        self._watch()
        for lock, *state in before:
            lock.owner, lock.count = state
        vars(self.module._llvm).update(found)

    def prepared(self, compiles, callback=None):
        """What a first call does; returns 1."""
        me = self.me()
        assert set(self.inside) <= {me} or self.over, "two threads prepare at once"
        self.inside.append(me)
        try:
            if callback is not None:
                callback(self)
            self.module._next.world.step()
            if compiles:
                self.module.checkpoint()
                with self.module.COMPILING:
                    self.module._next.world.step()
        finally:
            self.inside.remove(me)
        return 1

    def check(self):
        """All threads have ended, and nothing is held."""
        assert [(lock.owner, lock.count) for lock in self.locks] == [(None, 0)] * len(self.locks)
