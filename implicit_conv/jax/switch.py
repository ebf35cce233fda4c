"""Which calls of `enable` are in force: the rule that JAX lowers by asks for it.

A change is made by another thread, which holds the lock of `preparation`: neither a fork nor an
exception of a signal handler, such as that of Ctrl-C, cuts it in two.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

import jax
from jax.interpreters import mlir

from implicit_conv.jax.internals import CONV
from implicit_conv.jax.lowering import lowered, target
from implicit_conv.process.preparation import checkpoint, prepare

Claims: TypeAlias = "tuple[Enabled, ...]"


class Switch:
    """The calls of `enable` that are in force.

    Attributes
    ----------
    precision : str or None
        That of the last one; None if JAX's own convolutions run.
    """

    def __init__(self) -> None:
        self.precision: str | None = None
        self._claims: tuple[Enabled, ...] = ()
        self._registered = False

    @property
    def claims(self) -> tuple[Enabled, ...]:
        """The calls of `enable`, in their order."""
        return self._claims

    def add(self, claim: Enabled) -> None:
        """Have a call in force; one that is in force keeps its place."""
        self._change(lambda claims: claims if claim in claims else (*claims, claim))

    def discard(self, claim: Enabled) -> None:
        """End a call, unless `clear` has."""
        self._change(lambda claims: tuple(other for other in claims if other is not claim))

    def clear(self) -> None:
        """End all calls."""
        self._change(lambda claims: ())

    def _change(self, change: Callable[[Claims], Claims]) -> None:
        prepare(self._changed, change)

    def _changed(self, change: Callable[[Claims], Claims]) -> None:
        checkpoint()  # which has another thread do this, since signal handlers run in the main one
        claims = change(self._claims)
        precision = claims[-1].precision if claims else None
        if precision is not None and not self._registered:
            target()
            mlir.register_lowering(CONV, _lower, platform="cpu")
            self._registered = True
        before, self.precision = self.precision, precision
        self._claims = claims
        if before != precision:  # functions that are compiled are compiled again
            jax.clear_caches()


class Enabled:
    """`enable` in force: leaving a ``with`` block of it undoes that call."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        SWITCH.add(self)

    def __enter__(self) -> Enabled:
        """In force again, if it was undone: a second block of one object is like the first."""
        SWITCH.add(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        SWITCH.discard(self)

    def __repr__(self) -> str:
        ends = "until its with block ends or disable() is called"
        state = f"in force {ends}" if self in SWITCH.claims else "undone"
        return f"<enable(precision={self.precision!r}), {state}>"


def disable() -> None:
    """Lower JAX's convolutions as JAX does, however often `enable` was called."""
    SWITCH.clear()


def _lower(ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    return lowered(ctx, lhs, rhs, by=SWITCH.precision, **params)


SWITCH = Switch()
