"""Instructions that end a block: they branch, wait or end (PTX ISA 9.7.12, 9.7.13, 9.7.19).

Each function is given the warp, the part of it that runs, and the instruction. It returns the part
to go on with, or None if that part waits or has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from implicit_conv.ptx.errors import PtxError, UnsupportedError, shortened
from implicit_conv.ptx.kinds import LANE, LANES, Lanes
from implicit_conv.ptx.machine import mbarrier
from implicit_conv.ptx.machine.barriers import Barrier, Meeting
from implicit_conv.ptx.machine.warp import Part, Wait, Warp
from implicit_conv.ptx.memory.clocks import GENERIC, join, stamp
from implicit_conv.ptx.memory.spaces import WINDOW_BYTES
from implicit_conv.ptx.syntax import Immediate, Instruction, Operand, Register

Control: TypeAlias = "Callable[[Warp, Part, Instruction], Part | None]"
NAMED_BARRIERS = 16
LEAST_REGISTERS, MOST_REGISTERS = 24, 256  # of setmaxnreg
GIVES_UP = 0.5  # chance of a lane's try_wait that gives up early to say so


def control_of(instruction: Instruction) -> Control:
    """The function of a control instruction.

    Raises
    ------
    UnsupportedError
        The instruction or a modifier is not covered.
    PtxError
        It has too few or too many operands.
    """
    opcode, given = instruction.opcode, len(instruction.operands)
    for prefix, allowed, least, most, function in TABLE:
        words = prefix.split(".")
        if opcode[: len(words)] == words:
            extra = set(opcode[len(words) :]) - set(allowed.split())
            if not extra and not least <= given <= most:
                raise PtxError(f"it has {given} operands, and takes {least} to {most}")
            if not extra:
                return function
    raise UnsupportedError(f"{shortened('.'.join(opcode))} is not covered")


def _values(w: Warp, operand: Operand) -> Lanes:
    """The 32 values of an operand."""
    if isinstance(operand, Immediate):
        return np.full(LANES, operand.value, np.int64)
    if isinstance(operand, Register):
        if operand.kind[0] == "f":
            raise PtxError(f"{shortened(operand.name)} holds floats")
        values: Lanes = w.r[operand.number]
        return values
    addresses: Lanes = w.launch.code.shared_addresses(w, operand)
    return addresses


def _uniform(w: Warp, part: Part, operand: Operand, what: str) -> int:
    values = np.asarray(_values(w, operand))[part.mask]
    if (values != values[0]).any():
        raise PtxError(f"the lanes give different {what}: {sorted(set(values.tolist()))}")
    return int(values[0])


def trap(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``trap`` and ``brkpt``: the kernel reports an error (9.7.19)."""
    raise PtxError(f"{i.opcode[0]}, in lanes {np.flatnonzero(part.mask).tolist()}")


def warp_sync(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``bar.warp.sync``: the named lanes wait for each other (9.7.13, bar.warp.sync)."""
    bits = _uniform(w, part, i.operands[0], "member masks")
    members = (bits >> LANE & 1).astype(bool)
    if (part.mask & ~members).any():
        raise PtxError("bar.warp.sync by lanes that its member mask does not name")
    part.block += 1
    if (part.mask | ~(members & w.alive)).all():
        w.synchronise()
        return part

    def waiting() -> list[Part]:
        return [p for p in w.parts if p.wait is not None and p.wait.words is _warp_sync_words]

    def ready() -> bool:
        here = np.logical_or.reduce([p.mask for p in waiting()])
        return bool((here | ~(members & w.alive)).all())

    def then() -> None:
        w.synchronise()
        for other in waiting():
            other.wait = None

    part.wait = Wait(ready, then, _warp_sync_words)
    return None


def _warp_sync_words() -> str:
    return "bar.warp.sync"


def block_sync(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``barrier.sync`` and ``.arrive``, and ``bar``, which is aligned (9.7.13, bar)."""
    aligned = i.opcode[0] == "bar" or "aligned" in i.opcode
    if aligned:
        w.need_all(part.mask)
    number = _uniform(w, part, i.operands[0], "barriers")
    if not 0 <= number < NAMED_BARRIERS:
        raise PtxError(f"barrier {number}: there are {NAMED_BARRIERS}")
    threads = 0
    if len(i.operands) > 1:
        threads = _uniform(w, part, i.operands[1], "counts of threads")
        if threads <= 0 or threads % LANES:
            raise PtxError(f"barrier {number} for {threads} threads: no multiple of {LANES}")
    meeting: Meeting = w.cta.meeting(number)
    turn = meeting.turn
    whole = aligned or bool((part.mask == w.alive).all())
    clock = w.release()
    w.synchronise()

    def needed() -> int:
        return threads or LANES * sum(not other.done for other in w.cta.warps)

    meeting.arrive(LANES if whole else int(part.mask.sum()), clock, needed(), w)
    part.block += 1
    if "arrive" in i.opcode:
        if not threads:
            raise PtxError("barrier.arrive needs a count of threads")
        return part

    def ready() -> bool:
        if meeting.turn == turn:
            meeting.settle(needed())
        return meeting.turn > turn

    def words() -> str:
        return f"barrier {number}: {meeting.arrivals(needed())}"

    return part.hold(Wait(ready, lambda: w.acquire(meeting.clock), words))


def cluster_arrive(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``barrier.cluster.arrive``; ``.relaxed`` orders only what a fence before it has released, and
    what fence.mbarrier_init publishes (9.7.13, barrier.cluster).
    """
    if "aligned" in i.opcode:
        w.need_all(part.mask)
    meeting = w.cta.cluster.meeting
    if (w.cluster_turns[part.mask] == meeting.turn).any():
        raise PtxError("barrier.cluster.arrive twice, without barrier.cluster.wait between them")
    clock = w.release()
    if "relaxed" in i.opcode:
        clock = w.cta.actors.new_clock() if w.fence_released is None else w.fence_released
    meeting.joined_inits |= w.inits
    needed = w.cta.cluster.needed  # before these arrive
    w.cluster_turns[part.mask] = meeting.turn
    meeting.arrive(int(part.mask.sum()), clock, needed, w)
    part.block += 1
    return part


def cluster_wait(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``barrier.cluster.wait``: all threads have arrived (9.7.13, barrier.cluster)."""
    if "aligned" in i.opcode:
        w.need_all(part.mask)
    meeting: Meeting = w.cta.cluster.meeting
    turn = int(w.cluster_turns[part.mask].max())
    if (w.cluster_turns[part.mask] != turn).any() or (w.cluster_waited[part.mask] == turn).any():
        raise PtxError("barrier.cluster.wait without barrier.cluster.arrive before it")
    part.block += 1
    mask = part.mask

    def ready() -> bool:
        return meeting.turn > turn

    def then() -> None:
        w.acquire(meeting.clock)
        w.inits |= meeting.inits
        w.cluster_waited[mask] = turn

    def words() -> str:
        return f"the cluster's barrier: {meeting.arrivals(w.cta.cluster.needed)}"

    return part.hold(Wait(ready, then, words))


def mbarrier_wait(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``mbarrier.try_wait`` and ``test_wait``, by parity or by token (9.7.13, mbarrier)."""
    destination, address, wanted = i.operands[:3]
    if not isinstance(destination, Register) or destination.kind != "?":
        raise PtxError("its result goes into a predicate")
    mask, parity = part.mask, "parity" in i.opcode
    at = _values(w, address).astype(np.int64) & (WINDOW_BYTES - 1)
    phases = np.asarray(_values(w, wanted))
    result, waiting = np.zeros(LANES, bool), list[tuple[Barrier, int]]()
    passed = list[tuple[Barrier, Lanes]]()
    for place, phase in dict.fromkeys(zip(at[mask].tolist(), phases[mask].tolist(), strict=True)):
        barrier = mbarrier.find(w, w.cta, place)
        if parity and phase > 1:
            raise PtxError(f"{barrier.name}: parity {phase} is neither 0 nor 1")
        if barrier.passed(phase) if parity else barrier.phase > phase:
            passed.append((barrier, (at == place) & (phases == phase)))
            result |= passed[-1][1]
        else:
            waiting.append((barrier, phase))
            barrier.refused = barrier.phase
    draw = w.launch.random
    if i.opcode[1] == "try_wait" and w.launch.flaky and draw.random() < w.launch.flaky:
        result &= np.array([draw.random() < GIVES_UP for _ in range(LANES)])
    for barrier, lanes in passed:
        if not (result & lanes & mask).any():
            continue
        barrier.note_wait(w.index, i.place)
        if "relaxed" in i.opcode:
            join(w.fence_acquired, barrier.clock)
        else:
            w.acquire(barrier.clock)
    w.launch.code.set_register(w, destination, result, mask)
    part.block += 1
    if not waiting or (result & mask).any():
        return part

    def words() -> str:
        kind = "parity" if parity else "phase"
        return ", ".join(f"{b} (waits for {kind} {p})" for b, p in waiting)

    def ready() -> bool:
        return any(b.passed(p) if parity else b.phase > p for b, p in waiting)

    part.wait = Wait(ready, lambda: None, words, polls=True)
    return None


def set_registers(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``setmaxnreg``: give registers back, or wait until there are enough (9.7.19, setmaxnreg)."""
    w.need_all(part.mask)
    count = _uniform(w, part, i.operands[0], "counts")
    if count % 8 or not LEAST_REGISTERS <= count <= MOST_REGISTERS:
        raise PtxError(f"setmaxnreg {count}: no multiple of 8 in [24, 256]")
    part.block += 1
    more = count - w.register_count
    if more > 0 if i.opcode[1] == "dec" else more < 0:
        raise PtxError(f"setmaxnreg.{i.opcode[1]} {count}, but the warp has {w.register_count}")

    def enough() -> bool:
        return bool(LANES * more <= w.cta.free_registers)

    def take() -> None:
        w.cta.free_registers -= LANES * more
        w.register_count = count

    def words() -> str:
        return f"{LANES * more} registers, of which {w.cta.free_registers} are free"

    return part.hold(Wait(enough, take, words))


def copies_wait(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``cp.async.wait_group`` and ``wait_all``: the thread sees what was copied (9.7.9)."""
    left = 0
    if "wait_all" in i.opcode:
        w.copy_groups.append((w.copies_issued, w.copies))
        w.copies = []
    else:
        left = _uniform(w, part, i.operands[0], "counts of groups")
    queue, seen = w.cta.copy_queue(w), -1
    while len(w.copy_groups) > left:
        number, group = w.copy_groups.popleft()
        for copy in group:
            copy.finish()
        seen = stamp(number)
    w.clock[GENERIC, queue] = max(int(w.clock[GENERIC, queue]), seen)
    part.block += 1
    return part


def stores_wait(w: Warp, part: Part, i: Instruction) -> Part | None:
    """``cp.async.bulk.wait_group``: bulk stores have read, or written too (9.7.9)."""
    left = _uniform(w, part, i.operands[0], "counts of groups")
    for lane in np.flatnonzero(part.mask).tolist():
        groups, read = w.store_groups[lane], w.read_groups[lane]
        while len(groups) > left:
            read.append(groups.popleft())
            for store in read[-1]:
                store.finish()
        while "read" not in i.opcode and len(read) + len(groups) > left:
            for store in read.popleft():
                store.wrote()
    part.block += 1
    return part


_WAIT = "parity acquire relaxed cta cluster shared shared::cta b64"
# Opcode, modifiers that it may have, least and most operands, function.
TABLE: tuple[tuple[str, str, int, int, Control], ...] = (
    ("bra", "uni", 0, 1, Warp.branch),
    ("ret", "uni", 0, 0, Warp.leave),
    ("exit", "", 0, 0, Warp.leave),
    *((name, "", 0, 0, trap) for name in ("trap", "brkpt")),
    ("bar.warp.sync", "", 1, 1, warp_sync),
    *(
        (f"{name}.{verb}", "aligned", 1, 2, block_sync)
        for name in ("bar", "bar.cta", "barrier", "barrier.cta")
        for verb in ("sync", "arrive")
    ),
    ("barrier.cluster.arrive", "release relaxed aligned", 0, 0, cluster_arrive),
    ("barrier.cluster.wait", "acquire aligned", 0, 0, cluster_wait),
    ("mbarrier.try_wait", _WAIT, 3, 4, mbarrier_wait),
    ("mbarrier.test_wait", _WAIT, 3, 4, mbarrier_wait),
    ("setmaxnreg.inc", "sync aligned u32", 1, 1, set_registers),
    ("setmaxnreg.dec", "sync aligned u32", 1, 1, set_registers),
    ("cp.async.wait_group", "", 1, 1, copies_wait),
    ("cp.async.wait_all", "", 0, 0, copies_wait),
    ("cp.async.bulk.wait_group", "read", 1, 1, stores_wait),
)
