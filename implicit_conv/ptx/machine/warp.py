"""A warp's control: its lanes run together, part at branches and meet again.

Lanes that part run by themselves until the branch's immediate post-dominator. Registers are lists
of arrays that nothing changes in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.ptx.errors import PtxError, shortened
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine.lanes import Missing
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.syntax import Instruction, Target

ALL = np.ones(LANES, bool)


class Wait(NamedTuple):
    """Why lanes do not run: when they may, what happens then, and the reason in words."""

    ready: Callable[[], bool]
    then: Callable[[], None]
    words: Callable[[], str]
    polls: bool = False  # a wait that may also give up


class Join:
    """Where lanes that parted meet."""

    def __init__(self, block: int, mask: Lanes) -> None:
        self.block, self.expected, self.arrived = block, mask.copy(), np.zeros(LANES, bool)


class Part:
    """Lanes that run together, the block they are at, and the joins that they are inside of."""

    def __init__(self, mask: Lanes, block: int, joins: tuple[Join, ...]) -> None:
        self.mask, self.block, self.joins = mask, block, joins
        self.wait: Wait | None = None

    def hold(self, wait: Wait) -> Part | None:
        """The part where a wait is over already; else None, and the part waits."""
        if wait.ready():
            wait.then()
            return self
        self.wait = wait
        return None


class Warp(State):
    """32 threads and the parts in which they run."""

    def __init__(self, launch: Any, cta: Any, index: int, live: Lanes) -> None:
        super().__init__(launch, cta, index, live)
        self.parts = [Part(live.copy(), 0, ())]

    @property
    def done(self) -> bool:
        """Whether all threads have ended."""
        return not self.parts

    def ready(self) -> bool:
        """Whether some lanes can run."""
        return any(part.wait is None or part.wait.ready() for part in self.parts)

    def polls(self) -> bool:
        """Whether some lanes are in a wait that may give up."""
        return any(part.wait is not None and part.wait.polls for part in self.parts)

    def turn(self, budget: int, impatient: bool) -> None:
        """Run up to `budget` blocks of some lanes; `impatient`: a wait may give up early."""
        able = [
            p
            for p in self.parts
            if p.wait is None or p.wait.ready() or (impatient and p.wait.polls)
        ]
        part = able[-1] if len(able) == 1 else self.launch.random.choice(able)
        if part.wait is not None:
            if part.wait.ready():
                part.wait.then()
            part.wait = None
        while budget > 0 and part is not None and part.wait is None:
            while part.joins and part.joins[-1].block == part.block:
                met = self._arrive(part)
                if met is None:
                    return
                part = met
            budget -= 1
            next_part = self._run_block(part)
            if next_part is None:
                return
            part = next_part

    def _run_block(self, part: Part) -> Part | None:
        """Run the block of a part; the part to go on with, if any."""
        launch = self.launch
        block = launch.kernel.blocks[part.block]
        full = bool(part.mask.all())
        function = launch.code.function(block, full)
        if block.instructions:
            self.instruction = block.instructions[-1]
        function(self, self.r, ALL if full else part.mask)
        block.runs += 1
        launch.executed += len(block.instructions)
        control = launch.code.controls[block.index]
        if control is None:
            part.block += 1
            return part
        following: Part | None = control(self, part, block.instructions[-1])
        return following

    def _arrive(self, part: Part) -> Part | None:
        join_ = part.joins[-1]
        join_.arrived |= part.mask
        self.parts.remove(part)
        return self._settle(join_, part.joins[:-1])

    def _settle(self, join_: Join, outer: tuple[Join, ...]) -> Part | None:
        """The lanes that have met at a join, if all have come."""
        if not join_.arrived.any() or (join_.arrived != join_.expected).any():
            return None
        part = Part(join_.arrived, join_.block, outer)
        self.parts.append(part)
        return part

    def branch(self, part: Part, instruction: Instruction) -> Part | None:
        """``bra``: lanes that disagree part (9.7.12, bra)."""
        target = instruction.operands[0]
        assert isinstance(target, Target)
        if instruction.guard is None:
            part.block = target.block
            return part
        register, negated = instruction.guard
        held = self.r[register.number]
        if isinstance(held, Missing):
            raise PtxError(f"it branches on {shortened(register.name)}, which {held.why}")
        taken = part.mask & (~held if negated else held)
        if not taken.any():
            part.block += 1
            return part
        if (taken == part.mask).all():
            part.block = target.block
            return part
        if "uni" in instruction.opcode:
            raise PtxError("bra.uni, but the lanes disagree")
        self.launch.divergences += 1
        block, joins = self.launch.kernel.blocks[part.block], part.joins
        if block.join is not None:
            joins = (*joins, Join(block.join, part.mask))
        self.parts.remove(part)
        left = Part(taken, target.block, joins)
        right = Part(part.mask & ~taken, part.block + 1, joins)
        self.parts += [left, right]
        chosen: Part = self.launch.random.choice((left, right))
        return chosen

    def leave(self, part: Part, instruction: Instruction) -> Part | None:
        """``ret`` and ``exit`` of the entry (9.7.12)."""
        self.alive = self.alive & ~part.mask
        self.parts.remove(part)
        self.cta.cluster.settle()
        for depth in range(len(part.joins) - 1, -1, -1):
            join_ = part.joins[depth]
            join_.expected = join_.expected & ~part.mask
            self._settle(join_, part.joins[:depth])
        if not self.parts:
            self._finish()
        return None

    def _finish(self) -> None:
        """Nothing asynchronous may still use the block's shared memory when its threads end."""
        if any(self.stores) or any(self.store_groups):
            raise PtxError(
                "the kernel ends while a bulk store may still read its shared memory: "
                "cp.async.bulk.wait_group.read 0 is missing"
            )
        if self.wgmma or self.wgmma_groups:
            raise PtxError("the kernel ends with wgmma under way: wgmma.wait_group 0 is missing")
        if all(warp.done for warp in self.cta.warps):
            self.cta.end()
