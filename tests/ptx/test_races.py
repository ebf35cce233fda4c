"""What happens before what: each kernel is right, and wrong once one thing of it is left out.

The outcome does not depend on the schedule: every seed gives the same.
"""

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx

SEEDS = range(4)
THREADS = 64
# Warp 0 writes a word for each lane, warp 1 reads it.
EXCHANGE = """
    .shared .align 8 .b8 words[128]; .shared .align 8 .b8 flag[8];
    mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; shr.u32 %r3, %r1, 5; setp.eq.u32 %p1, %r3, 0;
    mov.u32 %r4, words; shl.b32 %r5, %r2, 2; add.u32 %r5, %r4, %r5; mov.u32 %r6, flag;
    mul.wide.u32 %d2, %r2, 4; add.s64 %d2, %d1, %d2;
"""
MBARRIER = (
    EXCHANGE
    + """
    setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared.b64 [%r6], 32;
    bar.sync 0;
    @!%p1 bra READ;
    st.shared.u32 [%r5], %r2;
    mbarrier.arrive.shared.b64 %d5, [%r6];
    ret;
    READ: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra READ;
    ld.shared.u32 %r7, [%r5]; st.global.u32 [%d2], %r7;
"""
)
NAMED = (
    EXCHANGE
    + """
    @!%p1 bra READ;
    st.shared.u32 [%r5], %r2; bar.arrive 1, 64; ret;
    READ: bar.sync 1, 64; ld.shared.u32 %r7, [%r5]; st.global.u32 [%d2], %r7;
"""
)
FLAG = (
    EXCHANGE
    + """
    setp.eq.u32 %p2, %r1, 0; @%p2 st.shared.u32 [%r6], 0;
    bar.sync 0;
    @!%p1 bra READ;
    st.shared.u32 [%r5], %r2; bar.warp.sync 0xffffffff;
    @%p2 st.release.cta.shared.u32 [%r6], 1;
    ret;
    READ: ld.acquire.cta.shared.u32 %r8, [%r6]; setp.ne.u32 %p3, %r8, 1; @%p3 bra READ;
    ld.shared.u32 %r7, [%r5]; st.global.u32 [%d2], %r7;
"""
)
FENCES = (
    FLAG.replace("@%p2 st.release.cta", "fence.acq_rel.cta; @%p2 st.relaxed.cta")
    .replace("ld.acquire.cta.shared.u32 %r8, [%r6];", "ld.relaxed.cta.shared.u32 %r8, [%r6];")
    .replace("@%p3 bra READ;", "@%p3 bra READ; fence.acq_rel.cta;")
)
ATOMICS = (
    EXCHANGE
    + """
    setp.eq.u32 %p2, %r1, 0; @%p2 st.shared.u32 [%r6], 0;
    bar.sync 0;
    atom.shared.add.u32 %r8, [%r6], 1; red.shared.add.u32 [%r6], 2;
    bar.sync 0;
    ld.shared.u32 %r7, [%r6]; add.u32 %r7, %r7, %r2; sub.u32 %r7, %r7, 192;
    @%p1 st.global.u32 [%d2], %r7;
"""
)
LANES = (
    EXCHANGE
    + """
    @!%p1 ret;
    st.shared.u32 [%r5], %r2; bar.warp.sync 0xffffffff;
    xor.b32 %r8, %r5, 4; ld.shared.u32 %r7, [%r8]; xor.b32 %r7, %r7, 1;
    st.global.u32 [%d2], %r7;
"""
)
# The lanes of one warp, by an mbarrier alone.
WITHIN = (
    EXCHANGE
    + """
    setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared.b64 [%r6], 32; bar.sync 0;
    @!%p1 ret;
    st.shared.u32 [%r5], %r2; mbarrier.arrive.shared.b64 %d5, [%r6];
    WAIT: mbarrier.test_wait.shared.b64 %p3, [%r6], %d5; @!%p3 bra WAIT;
    xor.b32 %r8, %r5, 4; ld.shared.u32 %r7, [%r8]; xor.b32 %r7, %r7, 1;
    st.global.u32 [%d2], %r7;
"""
)
COPIES = (
    EXCHANGE
    + """
    @!%p1 bra WAIT;
    mul.wide.u32 %d3, %r2, 4; add.s64 %d4, %d1, %d3;
    cp.async.ca.shared.global [%r5], [%d4], 4; cp.async.commit_group; cp.async.wait_group 0;
    WAIT: bar.sync 0;
    ld.shared.u32 %r7, [%r5]; add.u32 %r7, %r7, 1; bar.sync 0; @%p1 st.global.u32 [%d2], %r7;
"""
)


def outcome(body, seed, count=32):
    """The result of a run, or the message of its error."""
    x = np.zeros(count, np.uint32)
    try:
        ptx.run(kernel(body), 1, THREADS, [x], seed=seed, limit=20_000)
    except ptx.PtxError as error:
        return str(error)
    return x


RIGHT = {
    "mbarrier": MBARRIER,
    "named barrier": NAMED,
    "release and acquire": FLAG,
    "fences": FENCES,
    "atomics": ATOMICS,
    "lanes": LANES,
    "lanes by an mbarrier": WITHIN,
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name):
    for seed in SEEDS:
        assert np.array_equal(outcome(RIGHT[name], seed), np.arange(32)), outcome(RIGHT[name], seed)


def test_cp_async_right():
    for seed in SEEDS:
        assert np.array_equal(outcome(COPIES, seed), np.ones(32))


NO_ORDER = "no barrier orders it after its writer"
WRONG = {
    "arrival is relaxed": (MBARRIER, "arrive.shared", "arrive.relaxed.cta.shared", NO_ORDER),
    "wait is relaxed": (MBARRIER, "parity.shared", "parity.relaxed.cta.shared", NO_ORDER),
    "arrival before the write": (
        MBARRIER,
        "st.shared.u32 [%r5], %r2;\n    mbarrier.arrive.shared.b64 %d5, [%r6];",
        "mbarrier.arrive.shared.b64 %d5, [%r6]; st.shared.u32 [%r5], %r2;",
        f"{NO_ORDER}|never written|has not released",
    ),
    "mbarrier used before bar.sync": (
        MBARRIER,
        "bar.sync 0;",
        "",
        "after its mbarrier.init|no mbarrier was initialised",
    ),
    "bar.arrive before the write": (
        NAMED,
        "st.shared.u32 [%r5], %r2; bar.arrive 1, 64;",
        "bar.arrive 1, 64; st.shared.u32 [%r5], %r2;",
        f"{NO_ORDER}|never written|not released",
    ),
    "store is relaxed": (FLAG, "st.release", "st.relaxed", NO_ORDER),
    "load is relaxed": (FLAG, "ld.acquire", "ld.relaxed", NO_ORDER),
    "no fence of the writer": (FENCES, "fence.acq_rel.cta; @%p2", "@%p2", NO_ORDER),
    "no fence of the reader": (
        FENCES,
        "bra READ; fence.acq_rel.cta;",
        "bra READ;",
        NO_ORDER,
    ),
    "one flag is plain": (FLAG, "@%p2 st.release.cta", "@%p2 st", NO_ORDER + "|has not released"),
    "atomics before bar.sync": (
        ATOMICS,
        "bar.sync 0;\n    atom",
        "atom",
        "no barrier orders it|never written",
    ),
    "read before bar.sync": (
        ATOMICS,
        "2;\n    bar.sync 0;",
        "2;",
        "no barrier orders it|has not released",
    ),
    "no bar.warp.sync": (LANES, "bar.warp.sync 0xffffffff;", "", "another lane of the warp wrote"),
    "no cp.async.wait_group": (COPIES, "cp.async.wait_group 0;", "", f"{NO_ORDER}|about to write"),
    "no commit": (COPIES, "cp.async.commit_group;", "", f"{NO_ORDER}|about to write"),
    "no bar.sync after copies": (
        COPIES,
        "WAIT: bar.sync 0;",
        "WAIT:",
        f"{NO_ORDER}|about to write|never written",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_in_every_schedule(name):
    text, old, new, said = WRONG[name]
    assert old in text
    for seed in SEEDS:
        found = outcome(text.replace(old, new, 1), seed)
        assert isinstance(found, str), f"seed {seed} does not show it"
        assert any(words in found for words in said.split("|")), found


def test_the_named_lanes_and_memory_are_in_the_message():
    found = outcome(LANES.replace("bar.warp.sync 0xffffffff;", ""), 0)
    assert "ld.shared.u32 %r7, [%r8]" in found and "last written by warp 0" in found


GLOBAL = (
    EXCHANGE
    + """
    @%p1 st.global.u32 [%d2], %r2; bar.sync 0; @%p1 ret;
    ld.global.u32 %r7, [%d2]; st.global.u32 [%d2], %r7;
"""
)


def test_order_in_global_memory():
    """Warp 1 reads and overwrites what warp 0 has written."""
    for seed in SEEDS:
        assert np.array_equal(outcome(GLOBAL, seed), np.arange(32))
    wrong = [outcome(GLOBAL.replace("bar.sync 0;", ""), seed) for seed in range(20)]
    said = [found for found in wrong if isinstance(found, str)]
    assert said and all("no barrier orders it after the write of warp" in found for found in said)
    together = "mov.u32 %r1, %tid.x; st.global.u32 [%d1], %r1;"
    assert "st.global at global" in outcome(together, 0)


def test_cp_async_wait_all():
    found = outcome(COPIES.replace("cp.async.wait_group 0;", "cp.async.wait_all ;"), 0)
    assert np.array_equal(found, np.ones(32))


def test_ld_global_nc_of_what_is_written():
    body = "ld.global.nc.u32 %r1, [%d1]; bar.sync 0; st.global.u32 [%d1], %r1;"
    assert "bytes that ld.global.nc reads" in outcome(body, 0)


# Block 0 leaves a late clock at x; in block 1 nothing orders the words of warp 0 and 1.
BLOCKS = (
    EXCHANGE
    + """
    mov.u32 %r9, %ctaid.x; setp.eq.u32 %p4, %r9, 0; @%p4 bra FIRST;
    @!%p1 bra READ;
    st.shared.u32 [%r5], %r2; ret;
    READ: atom.acquire.gpu.global.add.u32 %r8, [%d1], 1; mov.u32 %r9, 0;
    WAIT: add.u32 %r9, %r9, 1; setp.lt.u32 %p3, %r9, 200; @%p3 bra WAIT;
    ld.shared.u32 %r7, [%r5]; ret;
    FIRST: fence.acq_rel.gpu; fence.acq_rel.gpu; fence.acq_rel.gpu;
    red.release.gpu.global.add.u32 [%d1], 1;
"""
)


def test_a_release_of_another_block_orders_nothing_in_this_one():
    for seed in SEEDS:
        with pytest.raises(ptx.PtxError, match=f"block 1: .*\n.*({NO_ORDER}|never written)"):
            ptx.run(kernel(BLOCKS), 2, THREADS, [np.zeros(32, np.uint32)], seed=seed)


REPLICATED = """
    .shared .align 16 .b8 words[256];
    mov.u32 %r1, %tid.x; mov.u32 %r2, words; and.b32 %r3, %r1, 31;
    mad.lo.u32 %r4, %r3, WIDTH, %r2;
    VALUE
    st.shared.u32 [%r4], %r5;
    bar.sync 0;
    ld.shared.u32 %r6, [%r4]; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
    st.global.u32 [%d3], %r6;
"""
# A sum that half the lanes round otherwise, as Triton's sums over lanes do.
NEAR = "mov.u32 %r5, 0x3F800001; and.b32 %r6, %r1, 1; add.u32 %r5, %r5, %r6;"
CLOSE = NEAR.replace("0x3F800001", "1000000")
SAME = {  # name: (bytes between lanes, value, threads, default, strict)
    "a word for each lane": (4, "mov.u32 %r5, %r3;", 32, "", ""),
    "one value of all lanes": (0, "mov.u32 %r5, 7;", 32, "", ""),
    "different values of lanes": (0, "mov.u32 %r5, %r3;", 32, "at once", "at once"),
    "sums of lanes": (0, NEAR, 32, "", "at once"),
    "equal values of two warps": (4, "mov.u32 %r5, %r3;", 64, "", "no barrier orders it"),
    "sums of two warps": (4, NEAR, 64, "", "no barrier orders it"),
    "different values of two warps": (4, "mov.u32 %r5, %r1;", 64, "no barrier", "no barrier"),
    "close integers of lanes": (0, CLOSE, 32, "at once", "at once"),
    "close integers of two warps": (
        4,
        CLOSE.replace("and.b32 %r6, %r1, 1", "shr.u32 %r6, %r1, 5"),
        64,
        "no barrier",
        "no barrier",
    ),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", SAME)
def test_the_same_values_may_be_written_twice(name, strict):
    """By several warps, or lanes of one, unless the run is strict (triton issue 11614)."""
    width, value, threads, *words = SAME[name]
    text = kernel(REPLICATED.replace("WIDTH", str(width)).replace("VALUE", value))
    for seed in SEEDS:
        if words[strict]:
            with pytest.raises(ptx.PtxError, match=words[strict]):
                ptx.run(text, 1, threads, [np.zeros(64, np.uint32)], seed=seed, strict=strict)
        else:
            ptx.run(text, 1, threads, [np.zeros(64, np.uint32)], seed=seed, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
def test_the_same_values_of_two_warps_in_global_memory(strict):
    body = """
    mov.u32 %r1, %tid.x; and.b32 %r3, %r1, MASK; mul.wide.u32 %d2, %r3, 4; add.s64 %d3, %d1, %d2;
    add.u32 %r5, VALUE, 1; st.global.u32 [%d3], %r5;"""
    for mask, value, words in ((31, "%r3", "write of warp"), (0, "%r1", "at once|write of warp")):
        text = kernel(body.replace("MASK", str(mask)).replace("VALUE", value))
        y = np.zeros(64, np.uint32)
        if strict or not mask:
            with pytest.raises(ptx.PtxError, match=words):
                ptx.run(text, 1, 64, [y], strict=strict)
        else:
            ptx.run(text, 1, 64, [y], strict=strict)
            assert np.array_equal(y[:32], np.arange(1, 33))


# Warp 1 writes what warp 0 has written, and then warp 0 another value.
SHARED_AGAIN = (
    EXCHANGE
    + """
    mov.u32 %r6, 5; mov.u32 %r9, 0; @!%p1 bra OTHER;
    st.shared.u32 [%r5], %r6;
    WAIT: add.u32 %r9, %r9, 1; setp.lt.u32 %p3, %r9, 200; @%p3 bra WAIT;
    BARRIER
    mov.u32 %r6, 6; st.shared.u32 [%r5], %r6; ret;
    OTHER: add.u32 %r9, %r9, 1; setp.lt.u32 %p3, %r9, 20; @%p3 bra OTHER;
    st.shared.u32 [%r5], %r6;
    BARRIER
"""
)
GLOBAL_AGAIN = (
    EXCHANGE
    + """
    mov.u32 %r6, 5; @%p1 st.global.u32 [%d2], %r6; bar.sync 0; @!%p1 st.global.u32 [%d2], %r6;
    mov.u32 %r9, 0;
    WAIT: add.u32 %r9, %r9, 1; setp.lt.u32 %p3, %r9, 20; @%p3 bra WAIT;
    BARRIER
    mov.u32 %r6, 6; @%p1 st.global.u32 [%d2], %r6;
"""
)


@pytest.mark.parametrize("text", [SHARED_AGAIN, GLOBAL_AGAIN], ids=["shared", "global"])
def test_the_same_values_do_not_hide_a_write_that_no_barrier_orders(text):
    for seed in SEEDS:
        found = outcome(text.replace("BARRIER", ""), seed)
        assert isinstance(found, str) and "warp 0" in found, found
        assert not isinstance(outcome(text.replace("BARRIER", "bar.sync 0;"), seed), str)


def test_elements_of_16_bits_are_compared_as_they_are():
    """Pairs of them are no float32 values, which could differ by rounding."""
    body = """.shared .align 16 .b8 words[128]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31;
    mov.u32 %r4, words; shl.b32 %r5, %r2, 4; add.u32 %r4, %r4, %r5;
    shr.u32 %r6, %r1, 5; add.u32 %r6, %r6, 0x3F803F80;
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4], {%r6};"""
    with pytest.raises(ptx.PtxError, match="no barrier orders it"):
        ptx.run(kernel(body), 1, 64, [None])


def test_the_same_values_do_not_hide_a_read_that_no_barrier_orders():
    """Each warp reads what the other writes."""
    body = REPLICATED.replace("WIDTH", "4").replace("VALUE", "mov.u32 %r5, %r1;")
    body = body.replace("and.b32 %r3, %r1, 31", "mov.u32 %r3, %r1").replace("bar.sync 0;", "")
    other = "shl.b32 %r7, %r1, 2; xor.b32 %r7, %r7, 128; add.u32 %r7, %r7, %r2;"
    body = body.replace("ld.shared.u32 %r6, [%r4]", f"{other} ld.shared.u32 %r6, [%r7]")
    with pytest.raises(ptx.PtxError, match=r"never written|no barrier orders it after its writer"):
        ptx.run(kernel(body), 1, 64, [np.zeros(64, np.uint32)])


OVERWRITTEN = """
    .shared .align 128 .b8 tile[256]; .shared .align 8 .b8 full[8];
    mov.b64 %d2, map; cvta.param.u64 %d2, %d2; ld.param.u64 %d1, [y];
    mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, full; mov.u32 %r5, 0;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
    READY: bar.sync 0;
    LOOP: @%p1 bra WAIT;
    shl.b32 %r7, %r5, 3; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%d2, {0, %r7}], [%r3];
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], %r5; @!%p2 bra WAIT;
    mad.lo.u32 %r4, %r1, 4, %r2; ld.shared.u32 %r8, [%r4];
    mad.lo.u32 %r6, %r5, 64, %r1; mul.wide.u32 %d3, %r6, 4; add.s64 %d4, %d1, %d3;
    st.global.u32 [%d4], %r8;
    FENCE bar.sync 0;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 2; @%p2 bra LOOP;
"""


@pytest.mark.parametrize("fence", ["", "fence.proxy.async.shared::cta;"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_stage_that_was_read_is_overwritten(fence, strict):
    """Through the async proxy, which the ISA orders by a fence alone and CUTLASS by a barrier
    (triton issue 7262, DeepEP issue 642).
    """
    parameters = ".param .align 64 .b8 map[128], .param .u64 y"
    text = kernel(OVERWRITTEN.replace("FENCE", fence), parameters)
    map = ptx.TensorMap("tile", 4, 0, (8, 16), (32,), (1, 1), box=(8, 8))
    for seed in SEEDS:
        x, y = np.arange(128, dtype=np.uint32).reshape(16, 8), np.zeros(128, np.uint32)
        if strict and not fence:
            with pytest.raises(ptx.PtxError, match=r"has read it, with no fence.proxy.async"):
                ptx.run(text, 1, 64, [ptx.Tensor(map, x), y], seed=seed, strict=True)
        else:
            ptx.run(text, 1, 64, [ptx.Tensor(map, x), y], seed=seed, strict=strict)
            assert np.array_equal(y, np.arange(128))


def test_a_wait_that_passes_at_once_is_named_by_the_error_that_follows():
    """A ring's parity for a barrier of one slot (tilelang issue 3087)."""
    body = """
    .shared .align 8 .b8 full[8];
    mov.u32 %r3, full; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    ARRIVE FIRST: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra FIRST;
    MORE SECOND: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], PARITY; @!%p2 bra SECOND;
    mbarrier.arrive.shared::cta.b64 _, [%r3], 2;
    END:"""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [%r3];"
    for parity, more, again in (("0", "", True), ("1", arrive, False)):
        text = body.replace("ARRIVE", arrive).replace("MORE", more).replace("PARITY", parity)
        with pytest.raises(ptx.PtxError, match="2 arrivals, but only 1 of 1") as found:
            ptx.run(kernel(text), 1, 32, [np.zeros(1)])
        assert ("warp 0 passed a wait for phase 0 again, line" in str(found.value)) == again
