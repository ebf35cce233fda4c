"""Instructions that exchange values between the lanes of a warp (PTX ISA 9.7.9 and 9.7.13)."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANE, LANES, Lanes
from implicit_conv.ptx.machine.state import State

REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


class Missing:
    """What stands in a register's place where it has no value: any use of it is an error."""

    def __init__(self, why: str) -> None:
        self.why = why

    def _refuse(self, *_: object, **__: object) -> Any:
        raise PtxError(f"it reads a register that {self.why}")

    __array__ = __invert__ = __neg__ = __len__ = __iter__ = __getitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __abs__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse
    __lshift__ = __rshift__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __truediv__ = __floordiv__ = __mod__ = _refuse

    def __getattr__(self, name: str) -> Any:
        return self._refuse()


NEVER = Missing("was never written")
BUSY = Missing("a wgmma under way still writes")


def merge(mask: Lanes, new: Any, old: Any) -> Any:
    """A register of which some lanes are written."""
    if old is NEVER:
        return new
    return np.where(mask, new, old)


def members_of(w: State, values: Lanes, mask: Lanes, what: str) -> Lanes:
    """The live lanes that a member mask names; all of them must be here."""
    members: Lanes = (int(values[mask][0]) >> LANE & 1).astype(bool) & w.alive
    if not (mask & members == members).all():
        absent = np.flatnonzero(members & ~mask).tolist()
        raise PtxError(f"{what} names lanes {absent}, which are not here")
    return members


def shuffle(
    w: State, mode: str, source: Lanes, lane: Lanes, clamp: Lanes, members: Lanes, mask: Lanes
) -> tuple[Lanes, Lanes]:
    """``shfl.sync``: (values, whether the source lane was in range) (9.7.9, shfl.sync)."""
    members_of(w, members, mask, "shfl.sync")
    segment, bound = clamp >> 8 & 31, clamp & 31
    me = LANE.astype(np.int64)
    last = (me & segment) | (bound & ~segment & 31)
    lane = lane & 31
    if mode == "idx":
        chosen = (me & segment) | (lane & ~segment & 31)
    else:
        chosen = {"up": me - lane, "down": me + lane, "bfly": me ^ lane}[mode]
    inside = chosen >= last if mode == "up" else chosen <= last
    chosen = np.where(inside, chosen, me).astype(np.int64)
    if not mask[chosen[mask]].all():
        raise PtxError("shfl.sync reads a lane that is not here")
    return source[chosen], inside


def elect(w: State, members: Lanes, mask: Lanes) -> tuple[Lanes, Lanes]:
    """``elect.sync``: (the leader, whether a lane is it) (9.7.13, elect.sync).

    The ISA leaves open which lane it is, but it is always the same one; the seed draws it.
    """
    able = np.flatnonzero(members_of(w, members, mask, "elect.sync"))
    leader = able[w.launch.leader % len(able)]
    return np.full(LANES, leader, np.uint32), leader == LANE


def vote(w: State, how: str, predicate: Lanes, members: Lanes, mask: Lanes) -> Lanes:
    """``vote.sync`` (9.7.13, vote.sync)."""
    named = members_of(w, members, mask, "vote.sync")
    held = predicate & named
    if how == "ballot":
        return ballot(held)
    some, every = held.any(), (held == named).all()
    return np.full(LANES, {"any": some, "all": every, "uni": not some or every}[how])


def ballot(predicate: Lanes) -> Lanes:
    """A bit for each lane: ``vote.ballot`` and ``activemask`` (9.7.13)."""
    return np.full(LANES, sum(1 << int(lane) for lane in np.flatnonzero(predicate)), np.uint32)


def reduce(w: State, how: str, values: Lanes, members: Lanes, mask: Lanes) -> Lanes:
    """``redux.sync`` (9.7.13, redux.sync)."""
    named = members_of(w, members, mask, "redux.sync")
    return np.full(LANES, REDUCTIONS[how].reduce(values[named]), values.dtype)


def match_any(w: State, values: Lanes, members: Lanes, mask: Lanes) -> Lanes:
    """``match.any.sync``: the lanes that hold the same value (9.7.13, match.sync)."""
    named = members_of(w, members, mask, "match.sync")
    same = (values[:, None] == values[None, :]) & named
    bits: Lanes = (same.astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=1)
    return bits.astype(np.uint32)
