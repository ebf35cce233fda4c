"""Find the entry of a known call by its words, and run its program."""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.runtime import known_calls as table
from implicit_conv.kernels.cpu.runtime.compiled.program import run_for_python
from implicit_conv.kernels.cpu.runtime.compiled.source import INT
from implicit_conv.kernels.cpu.runtime.objects import WORD

_release = types.ExternalFunction("PyEval_SaveThread", INT())
_acquire = types.ExternalFunction("PyEval_RestoreThread", INT(INT))


def state_word(state: int, number: int) -> int:
    """One of the words of a state, or of an entry."""
    return memory.read(state + WORD * number)


def entry_of(state: int, key: int, end: int) -> int:
    """The address of the entry whose key is the words from `key` to `end`; 0 if there is none."""
    found, at = 0, key
    while at < end:
        found = (found ^ memory.read(at)) * table.PRIME
        at += WORD
    places = state_word(state, table.TABLE)
    last = memory.read(places)
    place = (found >> table.SHIFT) & last
    while True:
        entry = state_word(places, 1 + place)
        if entry == 0 or is_key(entry, key, end):
            return entry
        place = (place + 1) & last


def is_key(entry: int, key: int, end: int) -> bool:
    """Whether an entry has just these words as its key."""
    if WORD * state_word(entry, table.KEY_WORDS) != end - key:
        return False
    own = entry + WORD * table.KEY
    while key < end:
        if memory.read(own) != memory.read(key):
            return False
        own += WORD
        key += WORD
    return True


def run(process: int, program: int, x: int, w: int, bias: int, residual: int, y: int) -> bool:
    """What `run_for_python` does, without the GIL, which this thread holds."""
    thread = _release()
    done = run_for_python(process, program, x, w, bias, residual, y)
    _acquire(thread)
    return done
