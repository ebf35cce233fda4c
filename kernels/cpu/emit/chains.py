"""Long sums as chains: the terms of a chain are added one by one, the chains level by level.

A term takes part in all later additions to its sum, and each may lose up to half a unit in the last
place, in the same direction: n terms in one chain may lose n eps. In chains of `schedule.CHAIN`
terms a term takes part in few additions; docs/trust/reliability.md, "Sums", derives the bound. The
level and the place at which a chain is added depend on its number alone, so the order of a sum is
fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, Emitter, Values, i64

RADIX_BITS = 6  # a level adds up to 2^6 sums of the level below
LEVELS = 4  # levels in memory; they hold 2^24 chains before the last one grows longer
NO, YES = (ir.Constant(ir.IntType(1), bit) for bit in (0, 1))
State = Values  # whether level 0 holds sums, and whether the levels above do
START: State = (NO, NO)  # the state before the first chain


class Chains:
    """The chains of `count` vectors of sums, which a register tile adds up at the same time."""

    def __init__(self, e: Emitter, count: int) -> None:
        self._e, self._count, self._bytes = e, count, e.lanes * e.itemsize
        with e.builder.goto_entry_block():
            room = e.builder.alloca(ir.ArrayType(e.vector, LEVELS * count))
            room.align = self._bytes
            self._room = e.builder.bitcast(room, BYTES)

    def end(
        self, state: State, sums: Values, number: ir.Value, following: ir.Value
    ) -> tuple[State, Values]:
        """End the chain `number`: the state after it, and the sums that chain `following` begins
        with.
        """
        e, builder = self._e, self._e.builder
        held, above = state
        with builder.if_else(held) as (later, first):
            with later:
                for i, value in enumerate(sums):
                    e.store(builder.fadd(e.load(self._at(0, i)), value), self._at(0, i))
            with first:
                for i, value in enumerate(sums):
                    e.store(value, self._at(0, i))
        full = self._differ(0, number, following)
        above = e.either(full, lambda: self._carry(above, number, following), lambda: [above])[0]
        return (YES, above), [e.constant(0.0)] * self._count

    def total(self, state: State, sums: Values) -> list[ir.Value]:
        """The sums of all chains, of which `sums` are the last."""
        e, builder = self._e, self._e.builder
        held, above = state
        with builder.if_then(above):
            for level in range(1, LEVELS):
                self._add(level, 0)

        def added() -> Values:
            return [builder.fadd(value, e.load(self._at(0, i))) for i, value in enumerate(sums)]

        return e.either(held, added, lambda: sums)

    def _carry(self, above: ir.Value, number: ir.Value, following: ir.Value) -> Values:
        """Add each level that ends with chain `number` to the next one, and empty it."""
        builder = self._e.builder
        with builder.if_then(builder.not_(above)):
            for level in range(1, LEVELS):
                self._empty(level)
        for level in range(LEVELS - 1):
            with builder.if_then(self._differ(level, number, following)):
                self._add(level, level + 1)
                self._empty(level)
        return [YES]

    def _differ(self, level: int, number: ir.Value, following: ir.Value) -> ir.Value:
        """Whether two chains are added to different sums of the level above `level`."""
        builder, bits = self._e.builder, i64(RADIX_BITS * (level + 1))
        return builder.icmp_signed("!=", builder.lshr(number, bits), builder.lshr(following, bits))

    def _add(self, level: int, to: int) -> None:
        """Add the sums of one level to those of another."""
        e = self._e

        def add(offset: ir.Value, _: object) -> Values:
            source, target = (e.at(self._at(place, 0), offset) for place in (level, to))
            e.store(e.builder.fadd(e.load(target), e.load(source)), target)
            return []

        e.loop(self._level_bytes(), self._bytes, [], add)

    def _empty(self, level: int) -> None:
        """Set the sums of a level to zero."""
        e = self._e

        def empty(offset: ir.Value, _: object) -> Values:
            e.store(e.constant(0.0), e.at(self._at(level, 0), offset))
            return []

        e.loop(self._level_bytes(), self._bytes, [], empty)

    def _level_bytes(self) -> ir.Value:
        """Bytes of a level, hidden from LLVM, which would unroll loops that seldom run."""
        return self._e.opaque(i64(self._count * self._bytes))

    def _at(self, level: int, i: int) -> ir.Value:
        """The address of sum i of a level."""
        return self._e.at(self._room, (level * self._count + i) * self._bytes)


def sum_in_chains(
    e: Emitter,
    terms: ir.Value,
    length: int,
    others: Values,
    sums: Values,
    add: Callable[[ir.Value, ir.Value, list[ir.Value]], Iterable[ir.Value]],
) -> list[ir.Value]:
    """`sums` plus `terms` terms, in chains of `length` terms.

    ``add(first, count, [*others, *sums])`` emits the addition of `count` terms from `first` on, and
    returns the new values; `others` are carried along.
    """
    builder, chains = e.builder, Chains(e, len(sums))

    def chain(first: ir.Value, carried: list[ir.Value]) -> Values:
        held, above, *carried = carried
        carried, sums = carried[: len(others)], carried[len(others) :]

        def end() -> Values:
            number = builder.sdiv(first, i64(length))
            before = builder.sub(number, i64(1))
            state, fresh = chains.end((held, above), sums, before, number)
            return [*state, *fresh]

        begun = builder.icmp_signed("!=", first, i64(0))
        held, above, *sums = e.either(begun, end, lambda: [held, above, *sums])
        left = builder.sub(terms, first)
        ends = builder.icmp_signed("<", left, i64(length))
        count = builder.select(ends, left, i64(length))
        return [held, above, *add(first, count, [*carried, *sums])]

    held, above, *carried = e.loop(terms, length, [*START, *others, *sums], chain)
    total = chains.total((held, above), carried[len(others) :])
    return [*carried[: len(others)], *total]
