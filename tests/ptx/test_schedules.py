"""Faults that only some schedules show: each is found within 20 seeds, and its correction never."""

import numpy as np
import pytest
from ptx_texts import ELEMENT, kernel

from implicit_conv import ptx

SEEDS = range(20)
# Four warps count in global memory: the update must be one atomic operation.
COUNTER = """
    mov.u32 %r1, %laneid; setp.ne.u32 %p1, %r1, 0; @%p1 ret;
    mov.u32 %r2, 0;
    NEXT: atom.global.add.u32 %r3, [%d1], 1;
    add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 8; @%p2 bra NEXT;
"""
LOST_UPDATE = (
    "ld.relaxed.gpu.global.u32 %r3, [%d1]; bra W; W: add.u32 %r3, %r3, 1; "
    "st.relaxed.gpu.global.u32 [%d1], %r3;"
)
# The warp that takes the last ticket adds what all have written.
LAST = f"""
    {ELEMENT} and.b32 %r2, %r1, 31; setp.ne.u32 %p1, %r2, 0; @%p1 ret; mov.u32 %r6, 0;
    st.relaxed.gpu.global.u32 [%d2+64], 5;
    WORK: add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 30; @%p3 bra WORK;
    atom.acq_rel.gpu.global.add.u32 %r3, [%d1], 1;
    setp.ne.u32 %p2, %r3, 3; @%p2 ret;
    ld.global.u32 %r4, [%d1+64]; ld.global.u32 %r5, [%d1+192]; add.u32 %r4, %r4, %r5;
    ld.global.u32 %r5, [%d1+320]; add.u32 %r4, %r4, %r5;
    ld.global.u32 %r5, [%d1+448]; add.u32 %r4, %r4, %r5; st.global.u32 [%d1+4], %r4;
"""
WRITE, TICKET = (
    "st.relaxed.gpu.global.u32 [%d2+64], 5;",
    "atom.acq_rel.gpu.global.add.u32 %r3, [%d1], 1;",
)
# Two warps meet four times. An arrival that does not wait may come twice before the other warp's.
MEETINGS = """
    mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; mov.u32 %r5, 0; @%p1 bra OTHER;
    ONE: bar.sync 1, 64; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 4; @%p2 bra ONE; bra END;
    OTHER: bar.sync 1, 64; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 4; @%p2 bra OTHER;
    END: mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2; st.global.u32 [%d2], %r5;
"""
# Two warps each take two locks.
LOCKS = """
    mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; setp.ne.u32 %p1, %r2, 0; @%p1 ret;
    mov.u32 %r3, 0; setp.ge.u32 %p2, %r1, 32; selp.u32 %r3, SECOND, 0, %p2;
    xor.b32 %r4, %r3, 4; cvt.u64.u32 %d2, %r3; add.s64 %d2, %d1, %d2;
    cvt.u64.u32 %d3, %r4; add.s64 %d3, %d1, %d3;
    ONE: atom.global.cas.b32 %r5, [%d2], 0, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra ONE;
    TWO: atom.global.cas.b32 %r5, [%d3], 0, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra TWO;
    atom.global.exch.b32 %r5, [%d3], 0; atom.global.exch.b32 %r5, [%d2], 0;
"""
# A bulk copy is started, and looked for later.
PREFETCH = """
    .shared .align 128 .b8 s[640]; mov.u32 %r1, %tid.x; mov.u32 %r2, s; setp.eq.u32 %p1, %r1, 0;
    mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2; @!%p1 bra READY;
    mbarrier.init.shared.b64 [%r2+512], 1; fence.proxy.async;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2+512], 512;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%d1], 512, [%r2+512];
    READY: bar.sync 0; mov.u32 %r5, 0;
    WORK: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 30; @%p2 bra WORK; bar.sync 0;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r2+512], 0; @!%p3 bra WAIT;
    shl.b32 %r6, %r1, 2; add.u32 %r6, %r2, %r6; ld.shared.u32 %r7, [%r6]; st.global.u32 [%d2], %r7;
"""
CASES = {  # name: (right, fault, threads, expected first words)
    "lost update": (
        COUNTER,
        lambda t: t.replace("atom.global.add.u32 %r3, [%d1], 1;", LOST_UPDATE),
        128,
        [32],
    ),
    "ticket before the write": (
        LAST,
        lambda t: t.replace(WRITE, "EARLY").replace(TICKET, WRITE).replace("EARLY", TICKET),
        128,
        [4, 20],
    ),
    "arrivals that do not wait": (
        MEETINGS,
        lambda t: t.replace("ONE: bar.sync", "ONE: bar.arrive"),
        64,
        [4] * 64,
    ),
    "locks in another order": (
        LOCKS.replace("SECOND", "0"),
        lambda _: LOCKS.replace("SECOND", "4"),
        64,
        [0, 0],
    ),
    "a poll whose result is dropped": (
        PREFETCH,
        lambda t: t.replace("@!%p3 bra WAIT;", ""),
        128,
        list(range(128)),
    ),
}


def wrong(text, threads, expected, seed):
    """Whether a run is wrong: an error, or another result."""
    x = np.zeros(128, np.uint32)
    if expected == list(range(128)):
        x[:] = expected
    try:
        ptx.run(kernel(text), 1, threads, [x], seed=seed, limit=20_000)
    except ptx.PtxError:
        return True
    return x[: len(expected)].tolist() != expected


@pytest.mark.parametrize("name", CASES)
def test_found_within_20_seeds(name):
    right, fault, threads, expected = CASES[name]
    assert not any(wrong(right, threads, expected, seed) for seed in SEEDS)
    planted = fault(right)
    assert planted != right
    found = [wrong(planted, threads, expected, seed) for seed in SEEDS]
    assert any(found) and not all(found)  # it depends on the schedule
