"""Clusters: blocks that run together, multicast, and what goes wrong between blocks."""

import re

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx
from implicit_conv.ptx.check import check_text

SEEDS = range(6)
TILE, K_BLOCK, STAGES = 16, 8, 2
HALF = 4 * K_BLOCK * TILE // 2  # bytes of half a tile, which one block loads for two
STAGE = 4 * HALF
FULL = STAGE  # bytes that arrive in each block and stage
MULTICAST = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    ".multicast::cluster"
)
SHARED = (
    ".extern .shared .align 128 .b8 tiles[];\n"
    ".shared .align 8 .b8 full[16]; .shared .align 8 .b8 empty[16];"
)
PARAMETERS = (
    ".param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .u64 y, .param .u32 count"
)


def product_body():
    """y = a @ b.T by clusters of 2x2 blocks: each loads half of a tile of `a` for the blocks of its
    row, and half of one of `b` for those of its column.

    Warp 0 loads, warps 1 and 2 multiply 16x16 tiles, and release a stage to all who write it.
    """
    quads = [(f"%f{4 * n}", *(f"%f{4 * n + i}" for i in (1, 2, 3))) for n in range(10)]
    loads = [f"ld.shared.v4.f32 {{{', '.join(quads[n])}}}, [%r30+{16 * n}];" for n in range(2)]
    sums = []
    for column in range(4):
        for n in range(2):
            quad = quads[2 + n]
            at = 4 * K_BLOCK * column + 16 * n
            loads.append(f"ld.shared.v4.f32 {{{', '.join(quad)}}}, [%r31+{at}];")
            loads += [
                f"fma.rn.f32 %f{100 + column}, %f{4 * n + i}, {quad[i]}, %f{100 + column};"
                for i in range(4)
            ]
        sums.append(f"st.global.f32 [%d5+{4 * column}], %f{100 + column};")
    releases = "\n".join(
        f"xor.b32 %r33, %r4, {peer}; mapa.shared::cluster.u32 %r34, %r32, %r33; "
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r34];"
        for peer in (0, 1, 2)
    )
    zeros = "".join(f"mov.f32 %f{100 + column}, 0f00000000;" for column in range(4))
    return f"""
    mov.b64 %d2, a; cvta.param.u64 %d2, %d2; mov.b64 %d3, b; cvta.param.u64 %d3, %d3;
    ld.param.u64 %d4, [y]; ld.param.u32 %r9, [count];
    mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; and.b32 %r3, %r1, 31;
    mov.u32 %r4, %cluster_ctarank; and.b32 %r5, %r4, 1; shr.u32 %r6, %r4, 1;
    mov.u32 %r7, tiles; mov.u32 %r8, full; mov.u32 %r10, empty;
    mov.u32 %r11, %ctaid.x; mov.u32 %r12, %ctaid.y;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r8], 1; mbarrier.init.shared.b64 [%r8+8], 1;
    mbarrier.init.shared.b64 [%r10], 6; mbarrier.init.shared.b64 [%r10+8], 6;
    fence.mbarrier_init.release.cluster;
    READY:
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    mov.u32 %r20, 0;
    setp.ne.u32 %p2, %r2, 0; @%p2 bra CONSUME;
    setp.ne.u32 %p1, %r3, 0; @%p1 bra DONE;
    shl.b32 %r13, %r6, 1; mov.u32 %r14, 3; shl.b32 %r14, %r14, %r13; cvt.u16.u32 %h1, %r14;
    mov.u32 %r15, 5; shl.b32 %r15, %r15, %r5; cvt.u16.u32 %h2, %r15;
    shl.b32 %r16, %r12, 4; shl.b32 %r17, %r5, 3; add.u32 %r16, %r16, %r17;
    shl.b32 %r18, %r11, 4; shl.b32 %r19, %r6, 3; add.u32 %r18, %r18, %r19;
    LOAD:
    and.b32 %r21, %r20, 1; shr.u32 %r22, %r20, 1; and.b32 %r22, %r22, 1; xor.b32 %r22, %r22, 1;
    shl.b32 %r23, %r21, 3; add.u32 %r24, %r8, %r23; add.u32 %r25, %r10, %r23;
    FREE: mbarrier.try_wait.parity.shared.b64 %p3, [%r25], %r22; @!%p3 bra FREE;
    setp.ge.u32 %p4, %r20, %r9; @%p4 bra LOADED;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r24], {FULL};
    mad.lo.u32 %r26, %r21, {STAGE}, %r7; mad.lo.u32 %r27, %r5, {HALF}, %r26;
    mad.lo.u32 %r28, %r6, {HALF}, %r26; add.u32 %r28, %r28, {2 * HALF};
    shl.b32 %r29, %r20, 3;
    {MULTICAST} [%r27], [%d2, {{%r29, %r16}}], [%r24], %h1;
    {MULTICAST} [%r28], [%d3, {{%r29, %r18}}], [%r24], %h2;
    LOADED:
    add.u32 %r20, %r20, 1; add.u32 %r35, %r9, {STAGES};
    setp.lt.u32 %p4, %r20, %r35; @%p4 bra LOAD;
    bra DONE;
    CONSUME:
    {zeros}
    sub.u32 %r1, %r1, 32; shr.u32 %r13, %r1, 2; and.b32 %r14, %r1, 3;
    MULTIPLY:
    and.b32 %r21, %r20, 1; shr.u32 %r22, %r20, 1; and.b32 %r22, %r22, 1;
    shl.b32 %r23, %r21, 3; add.u32 %r24, %r8, %r23; add.u32 %r32, %r10, %r23;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r24], %r22; @!%p3 bra WAIT;
    mad.lo.u32 %r26, %r21, {STAGE}, %r7; mad.lo.u32 %r30, %r13, {4 * K_BLOCK}, %r26;
    mad.lo.u32 %r31, %r14, {16 * K_BLOCK}, %r26; add.u32 %r31, %r31, {2 * HALF};
    {" ".join(loads)}
    bar.warp.sync 0xffffffff;
    setp.ne.u32 %p1, %r3, 0; @%p1 bra NEXT;
    {releases}
    NEXT:
    add.u32 %r20, %r20, 1; setp.lt.u32 %p4, %r20, %r9; @%p4 bra MULTIPLY;
    shl.b32 %r16, %r12, 4; add.u32 %r16, %r16, %r13; mov.u32 %r17, %nctaid.x; shl.b32 %r17, %r17, 4;
    shl.b32 %r18, %r11, 4; shl.b32 %r14, %r14, 2; add.u32 %r18, %r18, %r14;
    mad.lo.u32 %r16, %r16, %r17, %r18; mul.wide.u32 %d5, %r16, 4; add.s64 %d5, %d4, %d5;
    {" ".join(sums)}
    DONE:
    """


BODY = product_body()


def product(body, seed=0, grid=(2, 2), count=5, cluster=(2, 2), **options):
    """(y, the right y) of the product; small integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    k = K_BLOCK * count
    a, b = (rng.integers(-8, 8, (TILE * n, k)).astype(np.float32) for n in (grid[1], grid[0]))
    y = np.full((len(a), len(b)), np.nan, np.float32)
    maps = [
        ptx.TensorMap("tile", 4, 0, (k, len(x)), (4 * k,), (1, 1), box=(K_BLOCK, TILE // 2))
        for x in (a, b)
    ]
    given = [ptx.Tensor(maps[0], a), ptx.Tensor(maps[1], b), y, count]
    options = {"shared_bytes": STAGES * STAGE, "limit": 200_000, "seed": seed, **options}
    ptx.run(kernel(body, PARAMETERS, shared=SHARED), grid, 96, given, cluster=cluster, **options)
    return y, a.astype(np.float64) @ b.T.astype(np.float64)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_product_by_multicast(count):
    for seed in range(12):
        y, right = product(BODY, seed, count=count, flaky=0.2 * (seed % 2))
        assert np.array_equal(y, right)


def test_several_clusters():
    y, right = product(BODY, 1, grid=(4, 2), count=3)
    assert np.array_equal(y, right)


def test_the_text_may_ask_for_the_cluster():
    text = kernel(BODY, PARAMETERS, shared=SHARED)
    assert ptx.parse(text).cluster is None
    for header, cluster in (
        (".explicitcluster\n", (0, 0, 0)),
        (".reqnctapercluster 2, 2\n", (2, 2, 1)),
    ):
        assert ptx.parse(text.replace("\n{\n", f"\n{header}{{\n", 1)).cluster == cluster


CLUSTER_BARRIER = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
FENCE = "fence.mbarrier_init.release.cluster;"
RELAXED = CLUSTER_BARRIER.replace("arrive.release", "arrive.relaxed")
EXPECT = f"expect_tx.shared.b64 _, [%r24], {FULL};"
SECOND = "xor.b32 %r33, %r4, 1;"
EMPTY = "mbarrier.init.shared.b64 [%r10], 6;"


def changed(*pairs):
    text = BODY
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def test_a_relaxed_arrival_publishes_fenced_inits():
    """As CUTLASS has it: fence.mbarrier_init, then a relaxed arrival."""
    for seed in SEEDS:
        y, right = product(changed((CLUSTER_BARRIER, RELAXED)), seed)
        assert np.array_equal(y, right)


# A stage of a block, by a copy of another one whose warps its readers have not told.
OVERWRITTEN = (
    r"block .*\n.*tensor copy (?:to|at) shared .* of block .*"
    r"(warp [12] of block .* has not released it|no barrier orders it after its last write"
    r"|about to write)"
)
FAULTS = {  # name: (replacements, what the message says, which names a block)
    "no barrier of the cluster after the init": (
        [(CLUSTER_BARRIER, "bar.sync 0;")],
        r"block \(?\d.*\n.* of block .*a barrier.cluster in between is missing",
    ),
    "a relaxed arrival without a fence": (
        [(CLUSTER_BARRIER, RELAXED), (FENCE, "fence.proxy.async;")],
        r"no barrier orders that after its mbarrier.init by warp 0",
    ),
    "no fence after the init": ([(FENCE, "")], "no fence.mbarrier_init"),
    "the last releases are not waited for": (
        [(f"add.u32 %r35, %r9, {STAGES};", "mov.u32 %r35, %r9;")],
        r"block \(?\d.* ends, and nothing orders that after an access to its shared memory by warp "
        r"[12] of block|has ended, and its shared memory with it",
    ),
    "a mask beyond the cluster": (
        [("shl.b32 %r13, %r6, 1;", "shl.b32 %r13, %r6, 1; add.u32 %r13, %r13, 2;")],
        r"line \d+: cp.async.bulk.tensor.*\n.*mask 0x30 names ranks 4, 5, in a cluster of 4 blocks",
    ),
    "a mask of no block": (
        [("mov.u32 %r15, 5;", "mov.u32 %r15, 0;")],
        "mask 0x0 names no block",
    ),
    "a mask of the own block alone": (
        [("mov.u32 %r15, 5;", "mov.u32 %r15, 1;")],
        r"deadlock:(.|\n)*of block \(?\d.* lacks 0 of 1 arrivals and \d+ bytes",
    ),
    "too few bytes expected": (
        [(EXPECT, EXPECT.replace(str(FULL), str(FULL // 2)))],
        r"full \+ \d\) of block .* ends, but copies that complete on it still bring \d+ bytes"
        r"|deadlock:(.|\n)*full \+ \d\) of block .* bytes, more than were expected",
    ),
    "too many bytes expected": (
        [(EXPECT, EXPECT.replace(str(FULL), str(FULL + 16)))],
        r"deadlock:(.|\n)*full \+ 0\) of block .* and 16 bytes",
    ),
    "an arrival too many is expected": (
        [(EMPTY, EMPTY.replace("6;", "7;"))],
        r"deadlock:(.|\n)*empty \+ 0\) of block .* lacks 1 of 7 arrivals",
    ),
    "an arrival too few is expected": (
        [(EMPTY, EMPTY.replace("6;", "5;"))],
        f"{OVERWRITTEN}|bytes that a copy is about to write",
    ),
    "stages are released to the own block alone": (
        [
            (SECOND, "mov.u32 %r33, %r4;"),
            ("xor.b32 %r33, %r4, 2;", "mov.u32 %r33, %r4;"),
        ],
        OVERWRITTEN,
    ),
    "one peer is not told": (
        [(SECOND, "mov.u32 %r33, %r4;")],
        OVERWRITTEN,
    ),
    "an mbarrier of another block without .shared::cluster": (
        [
            (
                "arrive.release.cluster.shared::cluster.b64 _,",
                "arrive.release.cluster.shared::cta.b64 _,",
            )
        ],
        r"by mapa, needs .shared::cluster",
    ),
    "a rank beyond the cluster": ([(SECOND, "xor.b32 %r33, %r4, 4;")], "mapa to rank"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named_in_any_schedule(name):
    pairs, words = FAULTS[name]
    body = changed(*pairs)
    for seed in SEEDS:
        with pytest.raises(ptx.PtxError, match=words):
            product(body, seed)


ORDERS = {  # operands after the mbarrier -> whether they are right
    "%h1": True,
    "%h1, %d9": True,
    "%d9, %h1": False,
    "%r14": False,
    "{%h1}, %h1": False,
    "": False,
}


@pytest.mark.parametrize("operands", ORDERS)
def test_operands_of_a_multicast(operands):
    hint = ".L2::cache_hint" if "%d9" in operands else ""
    old = f"{MULTICAST} [%r27], [%d2, {{%r29, %r16}}], [%r24], %h1;"
    new = f"{MULTICAST}{hint} [%r27], [%d2, {{%r29, %r16}}], [%r24]{operands and ', '}{operands};"
    text = kernel("mov.u64 %d9, 0;" + changed((old, new)), PARAMETERS, shared=SHARED)
    found = list(check_text(text))
    assert [] == found if ORDERS[operands] else "in this order" in found[0]


IM2COL = """
    mov.b64 %d2, a; cvta.param.u64 %d2, %d2; ld.param.u64 %d3, [y];
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, tile; mov.u32 %r3, full; mov.u32 %r5, %tid.x;
    setp.ne.u32 %p1, %r5, 0; mov.u16 %h1, 1; mov.u16 %h2, 3; mov.u32 %r4, 0; mov.u32 %r6, -1;
    @!%p1 mbarrier.init.shared.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 256;
    setp.ne.u32 %p2, %r1, 0; or.pred %p2, %p2, %p1; @%p2 bra WAIT;
    LOAD [%r2], [%d2, {%r4, %r6, %r4}], [%r3], {%h1}, %h2;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0; @!%p3 bra WAIT;
    mad.lo.u32 %r7, %r5, 8, %r2; ld.shared.v2.f32 {%f1, %f2}, [%r7];
    mad.lo.u32 %r8, %r1, 32, %r5; mul.wide.u32 %d4, %r8, 8; add.s64 %d4, %d3, %d4;
    st.global.v2.f32 [%d4], {%f1, %f2};
""".replace("LOAD", MULTICAST.replace("2d", "3d").replace("tile", "im2col"))


def im2col(body, seed=0):
    """What two blocks get of a signal of 10 pixels of 8 channels, padded by 1, at tap 1."""
    signal = np.arange(80, dtype=np.float32).reshape(1, 10, 8) + 1
    map = ptx.TensorMap(
        "im2col",
        4,
        0,
        (8, 10, 1),
        (32, 320),
        (1, 1, 1),
        lower=(-1,),
        upper=(-1,),
        channels=8,
        pixels=8,
    )
    y = np.zeros((2, 8, 8), np.float32)
    text = kernel(
        body,
        ".param .align 64 .b8 a[128], .param .u64 y",
        shared=".shared .align 128 .b8 tile[256]; .shared .align 8 .b8 full[8];",
    )
    ptx.run(text, 2, 32, [ptx.Tensor(map, signal), y], cluster=2, seed=seed, limit=20_000)
    return y, signal[0, :8]


def test_multicast_of_im2col():
    for seed in SEEDS:
        y, right = im2col(IM2COL, seed)
        assert np.array_equal(y, [right, right])


def test_offsets_and_mask_exchanged():
    """The registers of both have 16 bits, so that an assembler takes them (triton issue 11136)."""
    wrong = IM2COL.replace("mov.u16 %h1, 1;", "mov.u16 %h1, 0;").replace("{%h1}, %h2", "{%h2}, %h1")
    with pytest.raises(ptx.PtxError, match=r"mask 0x0 .*offsets \(3,\) look like a mask"):
        im2col(wrong)


def test_loads_to_one_block_each():
    """A load goes to the block of both addresses, the own one too."""
    form = MULTICAST.replace("2d", "3d").replace("tile", "im2col")
    load = f"{form} [%r2], [%d2, {{%r4, %r6, %r4}}], [%r3], {{%h1}}, %h2;"
    assert load in IM2COL
    one = load.replace(".multicast::cluster", "").replace(", %h2", "")
    mapped = one.replace("%r2", "%r10").replace("%r3", "%r11")
    at = "mapa.shared::cluster.u32 %r10, %r2, {0}; mapa.shared::cluster.u32 %r11, %r3, {0}; "
    both = "".join(at.format(rank) + mapped for rank in (0, 1))
    y, right = im2col(IM2COL.replace(load, both))
    assert np.array_equal(y, [right, right])
    with pytest.raises(ptx.PtxError, match="goes to block 1, but its mbarrier is of block 0"):
        im2col(IM2COL.replace(load, both + one.replace("%r2", "%r10")))
    with pytest.raises(ptx.PtxError, match=r"by mapa, needs \.shared::cluster"):
        im2col(IM2COL.replace(load, both.replace("::cluster.global", "::cta.global")))


BULK = """
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x; mov.u32 %r3, words; mov.u32 %r4, full;
    setp.ne.u32 %p1, %r2, 0; mov.u16 %h1, 10;
    @!%p1 mbarrier.init.shared.b64 [%r4], 1; fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 128;
    setp.ne.u32 %p2, %r1, 0; or.pred %p2, %p2, %p1;
    @!%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r3], [%d1], 128, [%r4], %h1;
    and.b32 %r5, %r1, 1; setp.eq.u32 %p3, %r5, 0; @%p3 bra END;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p4, [%r4], 0; @!%p4 bra WAIT;
    mad.lo.u32 %r6, %r2, 4, %r3; ld.shared.u32 %r7, [%r6]; add.u32 %r7, %r7, %r1;
    mad.lo.u32 %r8, %r1, 32, %r2; mul.wide.u32 %d2, %r8, 4; add.s64 %d2, %d1, %d2;
    st.global.u32 [%d2], %r7;
    END:
"""


BULK_SHARED = ".shared .align 16 .b8 words[128]; .shared .align 8 .b8 full[8];"


def test_bulk_multicast_to_some_blocks():
    """Four blocks in a row, of which ranks 1 and 3 are in the mask."""
    for seed in SEEDS:
        x = np.arange(128, dtype=np.uint32)
        text = kernel(BULK, shared=BULK_SHARED)
        ptx.run(text, 4, 32, [x], cluster=4, seed=seed)
        first = np.arange(32)
        assert np.array_equal(x.reshape(4, 32), [first, first + 1, first + 64, first + 3])


def test_a_block_that_does_not_wait_for_what_it_gets():
    text = kernel(BULK.replace("%h1, 10;", "%h1, 14;"), shared=BULK_SHARED)
    words = "nobody has waited for a copy that completes on .* of block 2, which writes|2 has ended"
    for seed in SEEDS:
        with pytest.raises(ptx.PtxError, match=words):
            ptx.run(text, 4, 32, [np.zeros(128, np.uint32)], cluster=4, seed=seed)


def test_one_block_expects_the_bytes_of_another():
    """Rank 0 arms the mbarriers of ranks 1 and 3, which then need no more than to wait."""
    old = "@!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 128;"
    new = "".join(
        f"mapa.shared::cluster.u32 %r9, %r4, {rank}; "
        "setp.eq.u32 %p5, %r1, 0; setp.eq.u32 %p6, %r2, 0; and.pred %p5, %p5, %p6; "
        "@%p5 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r9], 128;"
        for rank in (1, 3)
    )
    assert old in BULK
    for seed in SEEDS:
        x = np.arange(128, dtype=np.uint32)
        text = kernel(BULK.replace(old, new), shared=BULK_SHARED)
        ptx.run(text, 4, 32, [x], cluster=4, seed=seed)
        assert np.array_equal(x.reshape(4, 32)[3], np.arange(32) + 3)


# Each block writes a word of its own, and reads and adds to that of the next one.
NEXT = """
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank; mov.u32 %r3, %tid.x;
    mov.u32 %r4, words; mad.lo.u32 %r5, %r3, 4, %r4; mad.lo.u32 %r6, %r1, 100, %r3;
    st.shared.u32 [%r5], %r6;
    FIRST
    add.u32 %r7, %r1, 1; rem.u32 %r7, %r7, %r2; mapa.shared::cluster.u32 %r8, %r5, %r7;
    ld.shared::cluster.u32 %r9, [%r8];
    getctarank.shared::cluster.u32 %r10, %r8; mad.lo.u32 %r9, %r10, 10000, %r9;
    mov.u32 %r11, %ctaid.x; mad.lo.u32 %r11, %r11, 32, %r3; mul.wide.u32 %d2, %r11, 4;
    add.s64 %d2, %d1, %d2; st.global.u32 [%d2], %r9;
    LAST
"""
GENERIC = NEXT.replace(
    "mapa.shared::cluster.u32 %r8, %r5, %r7;\n    ld.shared::cluster.u32 %r9, [%r8];",
    "cvt.u64.u32 %d5, %r5; cvta.shared.u64 %d5, %d5; mapa.u64 %d6, %d5, %r7;\n"
    "    ld.u32 %r9, [%d6]; cvt.u32.u64 %r8, %d6;",
)
BOTH = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def words_of_next(body, size, seed, first=BOTH, last=BOTH):
    x = np.zeros(64 * size, np.uint32)
    text = body.replace("FIRST", first).replace("LAST", last)
    shared = ".shared .align 4 .b8 words[128];"
    ptx.run(kernel(text, shared=shared), 2 * size, 32, [x], cluster=size, seed=seed, limit=20_000)
    ranks = (np.arange(size) + 1) % size
    right = ranks[:, None] * 10100 + np.arange(32)
    return x.reshape(2, size, 32), right


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("body", [NEXT, GENERIC], ids=["shared::cluster", "generic"])
def test_shared_memory_of_another_block(body, size):
    for seed in SEEDS:
        x, right = words_of_next(body, size, seed)
        assert np.array_equal(x, [right, right])


ARRIVE_RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"
ORDER = {
    "none at all": ("", BOTH, "block .* may not exist yet: a barrier.cluster in between"),
    "only in the block": ("bar.sync 0;", BOTH, "block .* may not exist yet: a barrier.cluster in"),
    "between arrival and wait": (
        "barrier.cluster.arrive.aligned;",
        "barrier.cluster.wait.aligned;" + BOTH,
        "may not exist yet|no barrier orders it after its writer",
    ),
    "relaxed": (ARRIVE_RELAXED, BOTH, "no barrier orders it after its writer"),
    "relaxed, of inits alone": (
        f"fence.mbarrier_init.release.cluster; {ARRIVE_RELAXED}",
        BOTH,
        "no barrier orders it after its writer",
    ),
    "relaxed, after a fence": (f"fence.acq_rel.cluster; {ARRIVE_RELAXED}", BOTH, ""),
    "none before the end": (BOTH, "", "has ended, and its|nothing orders that after an access"),
    "relaxed before the end": (BOTH, ARRIVE_RELAXED, ""),
    "an arrival alone before the end": (
        BOTH,
        "barrier.cluster.arrive.aligned;",
        "has ended, and its|nothing orders that after an access to its shared memory by warp 0 of",
    ),
}


@pytest.mark.parametrize("name", ORDER)
def test_order_between_blocks(name):
    first, last, words = ORDER[name]
    for seed in SEEDS:
        if not words:
            x, right = words_of_next(NEXT, 2, seed, first, last)
            assert np.array_equal(x, [right, right])
            continue
        with pytest.raises(ptx.PtxError, match=words):
            words_of_next(NEXT, 2, seed, first, last)


STORE = """
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r3, %tid.x; mov.u32 %r4, words;
    mad.lo.u32 %r5, %r3, 4, %r4; st.shared.u32 [%r5], 0; mov.u32 %r12, sum;
    setp.eq.u32 %p1, %r3, 0; @%p1 st.shared.u32 [%r12], 0;
    BEFORE
    xor.b32 %r7, %r1, 1; mapa.shared::cluster.u32 %r8, %r5, %r7;
    add.u32 %r6, %r3, %r1; st.shared::cluster.u32 [%r8], %r6;
    mov.u32 %r13, 0; mapa.shared::cluster.u32 %r14, %r12, %r13;
    red.relaxed.cluster.shared::cluster.add.u32 [%r14], %r6;
    AFTER
    ld.shared.u32 %r9, [%r5]; mad.lo.u32 %r11, %r1, 32, %r3;
    setp.eq.u32 %p2, %r1, 0; @%p2 ld.shared.u32 %r15, [%r12]; @%p2 add.u32 %r9, %r9, %r15;
    mul.wide.u32 %d2, %r11, 4; add.s64 %d2, %d1, %d2; st.global.u32 [%d2], %r9;
"""


@pytest.mark.parametrize("left_out", ["", "BEFORE", "AFTER"])
def test_stores_and_atomics_to_another_block(left_out):
    for seed in SEEDS:
        x, body = np.zeros(64, np.uint32), STORE
        for word in ("BEFORE", "AFTER"):
            body = body.replace(word, "" if word == left_out else BOTH)
        shared = ".shared .align 4 .b8 words[128]; .shared .align 4 .b8 sum[4];"
        if left_out:
            with pytest.raises(ptx.PtxError, match=r"shared .*of block|has ended|nothing orders"):
                ptx.run(kernel(body, shared=shared), 2, 32, [x], cluster=2, seed=seed)
            continue
        ptx.run(kernel(body, shared=shared), 2, 32, [x], cluster=2, seed=seed)
        lanes = np.arange(32)
        total = 2 * lanes.sum() + 32
        assert np.array_equal(x.reshape(2, 32), [lanes + 1 + total, lanes])


REGISTERS = (
    *(f"%{base}.{axis}" for base in ("cluster_ctaid", "cluster_nctaid") for axis in "xyz"),
    *(f"%{base}.{axis}" for base in ("clusterid", "nclusterid") for axis in "xyz"),
    *("%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster"),
)


def registers(grid, cluster):
    """The special registers of each block, by its index in the grid: z, y, x."""
    lines = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;"
    lines += f"mad.lo.u32 %r2, %r3, {grid[1]}, %r2; mad.lo.u32 %r1, %r2, {grid[0]}, %r1;"
    lines += f"mul.wide.u32 %d2, %r1, {4 * len(REGISTERS)}; add.s64 %d2, %d1, %d2;"
    for number, name in enumerate(REGISTERS):
        kind = ".pred %p1" if name == "%is_explicit_cluster" else ".u32 %r4"
        lines += f"mov{kind}, {name};" + ("selp.u32 %r4, 1, 0, %p1;" if "pred" in kind else "")
        lines += f"st.global.u32 [%d2+{4 * number}], %r4;"
    x = np.zeros((*grid[::-1], len(REGISTERS)), np.uint32)
    ptx.run(kernel(lines), grid, 1, [x], cluster=cluster)
    return x


def test_special_registers():
    grid, cluster = (4, 6, 2), (2, 1, 2)
    found = registers(grid, cluster)
    for z, y, x in np.ndindex(2, 6, 4):
        at, size = np.array((x, y, z)), np.array(cluster)
        inside = at % size
        right = [*inside, *size, *(at // size), *(np.array(grid) // size)]
        right += [inside[0] + 2 * inside[2], 4, 1]
        assert found[z, y, x].tolist() == right
    alone = registers((3, 1, 1), None)
    assert alone[0, 0, 2].tolist() == [0, 0, 0, 1, 1, 1, 2, 0, 0, 3, 1, 1, 0, 1, 0]


SIZES = {  # header, cluster= -> what is wrong
    ("", (3,)): "not divisible",
    ("", (4, 4)): "at most 8 blocks",
    (".explicitcluster", None): "give cluster=",
    (".reqnctapercluster 2", (4,)): "but .reqnctapercluster is",
    (".reqnctapercluster 2", None): "",
    (".explicitcluster", 2): "",
    (".reqnctapercluster 4, 1, 1", (4, 1, 1)): "",
}


@pytest.mark.parametrize(("header", "cluster"), SIZES)
def test_sizes_of_clusters(header, cluster):
    words = SIZES[header, cluster]
    body = "mov.u32 %r1, %cluster_nctarank; st.global.u32 [%d1], %r1;"
    text, x = kernel(body).replace("\n{\n", f"\n{header}\n{{\n", 1), np.zeros(1, np.uint32)
    if words:
        with pytest.raises(ptx.LaunchError, match=words):
            ptx.run(text, 4, 1, [x], cluster=cluster)
        return
    ptx.run(text, 4, 1, [x], cluster=cluster)
    assert x[0] == (4 if "4" in header else 2)


def test_a_grid_of_clusters_is_refused():
    text = kernel("mov.u32 %r1, 1;").replace("\n{\n", "\n.blocksareclusters\n{\n", 1)
    with pytest.raises(ptx.UnsupportedError, match=r"directive \.blocksareclusters is not covered"):
        ptx.parse(text)


OWN_ALONE = {  # instructions that reach the own block alone, at an address that mapa has made
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r2];": "if the instruction has that",
    "mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;": "which waits lack",
}


@pytest.mark.parametrize("line", OWN_ALONE)
def test_hints_of_addresses_by_mapa(line):
    text = kernel(
        f"mov.u32 %r1, words; mapa.shared::cluster.u32 %r2, %r1, 1; {line}",
        shared=".shared .align 16 .b8 words[16];",
    )
    with pytest.raises(ptx.PtxError, match=f"needs .shared::cluster, {OWN_ALONE[line]}"):
        ptx.run(text, 2, 32, [np.zeros(1, np.uint32)], cluster=2)


UNSUPPORTED = (
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 "
    "[%r1], %r2, [%r3];",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1],[%r2],16,[%r3];",
    "mbarrier.try_wait.parity.shared::cluster.b64 %p1, [%r1], 0;",
    "mbarrier.init.shared::cluster.b64 [%r1], 1;",
    "mbarrier.arrive.shared::cluster.b64 %d2, [%r1];",
)


@pytest.mark.parametrize("line", UNSUPPORTED)
def test_what_is_refused_by_name(line):
    (found,) = check_text(kernel(line))
    assert line.split()[0] in found
    assert "not covered" in found or "no token" in found


def test_an_end_too_early_is_found_before_and_after_the_access():
    """In some schedules the access comes first, in others the end does: both are named."""
    found = set()
    for seed in range(12):
        with pytest.raises(ptx.PtxError, match=r"a barrier\.cluster before") as raised:
            words_of_next(NEXT, 2, seed, BOTH, "bar.warp.sync 0xffffffff;" * 20)
        found.add("has ended" in str(raised.value))
    assert found == {True, False}


# Relaxed arrivals bring blocks in step, and order no accesses.
READS = f"""
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r3, %tid.x; shr.u32 %r2, %r3, 5;
    mov.u32 %r4, words; mad.lo.u32 %r5, %r3, 4, %r4; st.shared.u32 [%r5], %r3; {BOTH}
    setp.eq.u32 %p1, %r1, 1; setp.eq.u32 %p2, %r2, 0; and.pred %p3, %p1, %p2;
    @%p3 ld.shared.u32 %r6, [%r5];
    {ARRIVE_RELAXED}
    mov.u32 %r7, 1; mapa.shared::cluster.u32 %r8, %r5, %r7; setp.ne.u32 %p4, %r2, 0;
    not.pred %p7, %p1; and.pred %p6, %p4, %p7; @%p6 ld.shared::cluster.u32 %r6, [%r8];
    {ARRIVE_RELAXED}
    setp.ne.u32 %p5, %r3, 32; @%p5 bra END; @!%p1 bra END; st.shared.u32 [%r4], 7;
    END: {BOTH}
"""


def test_reads_of_the_own_block_stay_known_when_another_one_reads():
    text = kernel(READS, shared=".shared .align 4 .b8 words[256];")
    words = r"block 1: warp 1.*\n.*of block 1: warp 0 of block 1 has not released it"
    for seed in SEEDS:
        with pytest.raises(ptx.PtxError, match=words):
            ptx.run(text, 2, 64, [np.zeros(1, np.uint32)], cluster=2, seed=seed)


# Block 0 writes to block 1 and adds to a flag of FLAG; block 1 adds to its own one, and reads.
RELEASE = f"""
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r3, %tid.x; mov.u32 %r4, words; mov.u32 %r12, flag;
    mad.lo.u32 %r5, %r3, 4, %r4; setp.eq.u32 %p1, %r3, 0; @%p1 st.shared.u32 [%r12], 0; {BOTH}
    mov.u32 %r7, 1; mapa.shared::cluster.u32 %r8, %r5, %r7;
    mov.u32 %r9, RANK; mapa.shared::cluster.u32 %r13, %r12, %r9;
    setp.eq.u32 %p2, %r1, 0; @!%p2 bra STEP;
    st.shared::cluster.u32 [%r8], %r3; bar.warp.sync 0xffffffff;
    @%p1 atom.release.cluster.shared::cluster.add.u32 %r10, [%r13], 1;
    STEP: {ARRIVE_RELAXED} @%p2 bra END;
    atom.acquire.cluster.shared.add.u32 %r10, [%r12], 1; ld.shared.u32 %r11, [%r5];
    mul.wide.u32 %d2, %r3, 4; add.s64 %d2, %d1, %d2; st.global.u32 [%d2], %r11;
    END: {BOTH}
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_release_at_an_address_of_one_block(rank):
    """The flag of block 0 has the same address there as that of block 1, and releases nothing."""
    shared = ".shared .align 4 .b8 words[128]; .shared .align 4 .b8 flag[4];"
    text, x = kernel(RELEASE.replace("RANK", str(rank)), shared=shared), np.zeros(32, np.uint32)
    for seed in SEEDS:
        if rank == 1:
            ptx.run(text, 2, 32, [x], cluster=2, seed=seed)
            assert np.array_equal(x, np.arange(32))
            continue
        with pytest.raises(ptx.PtxError, match="no barrier orders it after its writer"):
            ptx.run(text, 2, 32, [x], cluster=2, seed=seed)


def test_a_store_to_a_block_that_may_not_have_begun():
    """No access of that block conflicts with it."""
    body = f"""
        mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, words;
        mapa.shared::cluster.u32 %r3, %r2, 1; FIRST @%p1 st.shared::cluster.u32 [%r3], 5; {BOTH}
        @!%p1 ld.shared.u32 %r4, [%r2]; @!%p1 st.global.u32 [%d1], %r4;
    """
    shared, x = ".shared .align 4 .b8 words[4];", np.zeros(1, np.uint32)
    for seed in SEEDS:
        ptx.run(kernel(body.replace("FIRST", ARRIVE_RELAXED), shared=shared), 2, 1, [x], cluster=2)
        assert x[0] == 5
        with pytest.raises(ptx.PtxError, match="shared memory of block 1 may not exist yet"):
            ptx.run(
                kernel(body.replace("FIRST", ""), shared=shared), 2, 1, [x], cluster=2, seed=seed
            )


def test_a_block_that_has_said_that_it_runs():
    """A release in global memory tells it too."""
    body = f"""
        mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, words;
        mapa.shared::cluster.u32 %r3, %r2, 1; @%p1 bra SPIN;
        red.release.gpu.global.add.u32 [%d1+4], 1; bra READY;
        SPIN: ld.acquire.gpu.global.u32 %r4, [%d1+4]; setp.eq.u32 %p2, %r4, 0; @%p2 bra SPIN;
        st.shared::cluster.u32 [%r3], 5;
        READY: {BOTH} @!%p1 ld.shared.u32 %r4, [%r2]; @!%p1 st.global.u32 [%d1], %r4;
    """
    text = kernel(body, shared=".shared .align 4 .b8 words[4];")
    for seed in SEEDS:
        x = np.zeros(2, np.uint32)
        ptx.run(text, 2, 1, [x], cluster=2, seed=seed)
        assert x.tolist() == [5, 1]


# Threads whose arrivals differ: each of two blocks of 48 reads a word of the other one.
UNLIKE = f"""
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x; mov.u32 %r3, words;
    mad.lo.u32 %r4, %r2, 4, %r3; st.shared.u32 [%r4], %r2; {BOTH}
    xor.b32 %r5, %r1, 1; mapa.shared::cluster.u32 %r6, %r4, %r5;
    PART
"""
READ = "ld.shared::cluster.u32 %r7, [%r6];"
WAYS = {
    "a warp ends without a wait": f"""
        setp.lt.u32 %p1, %r2, 32; @%p1 bra LATE; barrier.cluster.arrive.aligned; bra END;
        LATE: {"mov.u32 %r8, %r2;" * 30} {READ} {BOTH} END:
    """,
    "lanes that have arrived end": f"""
        {READ} barrier.cluster.arrive; and.b32 %r8, %r2, 1; setp.eq.u32 %p1, %r8, 0; @%p1 exit;
        barrier.cluster.wait;
    """,
    "lanes end before": f"""
        {READ} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        and.b32 %r8, %r2, 3; setp.eq.u32 %p1, %r8, 0; @%p1 exit; barrier.cluster.arrive;
        barrier.cluster.wait;
    """,
    "lanes of half a warp arrive in two parts": f"""
        {READ} and.b32 %r8, %r2, 3; setp.eq.u32 %p1, %r8, 0; @%p1 bra OTHERS;
        barrier.cluster.arrive; barrier.cluster.wait; bra END;
        OTHERS: barrier.cluster.arrive; {"".join(f"bra L{n}; L{n}: " for n in range(30))}
        barrier.cluster.wait; END:
    """,
}


@pytest.mark.parametrize("name", WAYS)
def test_threads_that_end_or_arrive_in_parts(name):
    """The barrier waits for each live thread, and for no other (9.7.13, barrier.cluster)."""
    text = kernel(UNLIKE.replace("PART", WAYS[name]), shared=".shared .align 4 .b8 words[192];")
    for seed in range(20):
        ptx.run(text, 2, 48, [np.zeros(1, np.uint32)], cluster=2, seed=seed, limit=20_000)


def test_a_barrier_is_not_over_before_a_warp_has_come():
    """Other warps have arrived and ended: each block has two, of which one waits."""
    body = f"""
        mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x; mov.u32 %r3, words; {BOTH}
        setp.lt.u32 %p1, %r2, 32; @%p1 bra STORE; barrier.cluster.arrive.aligned; bra END;
        STORE: {"mov.u32 %r8, %r2;" * 20}
        mad.lo.u32 %r4, %r2, 4, %r3; st.shared.u32 [%r4], %r1; {BOTH}
        xor.b32 %r5, %r1, 1; mapa.shared::cluster.u32 %r6, %r4, %r5;
        ld.shared::cluster.u32 %r7, [%r6]; mad.lo.u32 %r8, %r1, 32, %r2;
        mul.wide.u32 %d2, %r8, 4; add.s64 %d2, %d1, %d2; st.global.u32 [%d2], %r7; {BOTH}
        END:
    """
    text = kernel(body, shared=".shared .align 4 .b8 words[128];")
    for seed in range(20):
        x = np.full(64, 9, np.uint32)
        ptx.run(text, 2, 64, [x], cluster=2, seed=seed)
        assert np.array_equal(x.reshape(2, 32), np.repeat([[1], [0]], 32, 1))


def test_a_wait_needs_an_arrival():
    text = kernel(f"{BOTH} barrier.cluster.wait.aligned;")
    with pytest.raises(ptx.PtxError, match=r"wait without barrier\.cluster\.arrive before it"):
        ptx.run(text, 2, 32, [np.zeros(1, np.uint32)], cluster=2)


# Block 1 writes to block 0 and arrives at an mbarrier there, for which block 0 waits.
TOLD = f"""
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x; mov.u32 %r3, words; mov.u32 %r4, full;
    mad.lo.u32 %r5, %r2, 4, %r3; setp.eq.u32 %p1, %r2, 0; setp.eq.u32 %p2, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r4], 1; fence.mbarrier_init.release.cluster; {ARRIVE_RELAXED}
    @%p2 bra WAIT;
    mapa.shared::cluster.u32 %r6, %r5, 0; mapa.shared::cluster.u32 %r7, %r4, 0;
    st.shared::cluster.u32 [%r6], %r2; bar.warp.sync 0xffffffff; BEFORE
    @%p1 mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r7]; bra END;
    WAIT: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p3, [%r4], 0; @!%p3 bra WAIT;
    AFTER
    ld.shared.u32 %r8, [%r5]; mul.wide.u32 %d2, %r2, 4; add.s64 %d2, %d1, %d2;
    st.global.u32 [%d2], %r8;
    END:
"""


@pytest.mark.parametrize("left_out", ["", "BEFORE", "AFTER"])
def test_fences_around_relaxed_operations_of_an_mbarrier(left_out):
    shared = ".shared .align 4 .b8 words[128]; .shared .align 8 .b8 full[8];"
    body = TOLD.replace(left_out or "none", "")
    text = kernel(re.sub("BEFORE|AFTER", "fence.acq_rel.cluster;", body), shared=shared)
    for seed in SEEDS:
        x = np.zeros(32, np.uint32)
        if left_out:
            with pytest.raises(ptx.PtxError, match="no barrier orders it after its writer"):
                ptx.run(text, 2, 32, [x], cluster=2, seed=seed)
            continue
        ptx.run(text, 2, 32, [x], cluster=2, seed=seed)
        assert np.array_equal(x, np.arange(32))


def test_a_deadlock_of_many_warps_is_told_in_short():
    """A line for each warp, none of which names all others."""
    body = f"mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; @%p1 bra OTHER; {BOTH} bra END;"
    text = kernel(f"{body} OTHER: bar.sync 1, 64; END:")
    with pytest.raises(ptx.PtxError, match=r"deadlock(.|\n)*\.\.\. arrived") as raised:
        ptx.run(text, 8, 128, [np.zeros(1, np.uint32)], cluster=8)
    assert len(str(raised.value)) < 6_000
