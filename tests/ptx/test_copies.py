"""Tensor copies and bulk copies in both directions, cp.async, mbarriers, and their proxies."""

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx

SEEDS = range(3)
ROWS, COLUMNS = 16, 32  # of the box, elements of 4 bytes
BYTES = 4 * ROWS * COLUMNS
SHARED = ".extern .shared .align 1024 .b8 smem[];"
# Warp 0 loads a box of x; all add 1 and write it to a second tile; warp 0 stores that to y.
MAPS = ".param .align 64 .b8 a[128], .param .align 64 .b8 b[128]"
ROUND_TRIP = f"""
    mov.b64 %d2, a; cvta.param.u64 %d2, %d2; mov.b64 %d3, b; cvta.param.u64 %d3, %d3;
    mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;
    mov.u32 %r2, smem; add.u32 %r3, %r2, {BYTES}; add.u32 %r4, %r2, {2 * BYTES};
    @!%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r4], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {BYTES};
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%d2, {{8, 1}}], [%r4];
    READY: bar.sync 0;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0; @!%p2 bra WAIT;
    mov.u32 %r5, 0;
    NEXT: shl.b32 %r6, %r1, 2; mad.lo.u32 %r6, %r5, 256, %r6; add.u32 %r7, %r2, %r6;
    ld.shared.f32 %f1, [%r7]; add.f32 %f1, %f1, 0f3F800000; add.u32 %r8, %r3, %r6;
    st.shared.f32 [%r8], %f1;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 8; @%p3 bra NEXT;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @!%p1 bra END;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d3, {{8, 1}}], [%r3];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
    END:
"""


def tile_map(span=0):
    """A matrix of 20 x 36 float32, boxes of 16 x 32."""
    return ptx.TensorMap(
        "tile", 4, 0, (36, 20), (144,), (1, 1), span=span, box=(COLUMNS if not span else 8, ROWS)
    )


def round_trip(body, seed, **options):
    x = np.arange(720, dtype=np.float32).reshape(20, 36)
    y = np.full((20, 36), -1, np.float32)
    text = kernel(body, MAPS, shared=SHARED)
    arguments = [ptx.Tensor(tile_map(), x), ptx.Tensor(tile_map(), y)]
    options = {"shared_bytes": 2 * BYTES + 8, "seed": seed, "limit": 20_000, **options}
    ptx.run(text, 1, 64, arguments, **options)
    return x, y


def test_tile_there_and_back():
    """The box reaches 4 columns past the matrix: these are zeros inside, and are not stored."""
    for seed in SEEDS:
        x, y = round_trip(ROUND_TRIP, seed)
        expected = np.full((20, 36), -1, np.float32)
        expected[1:17, 8:36] = x[1:17, 8:36] + 1
        assert np.array_equal(y, expected)


WRONG = {
    "no proxy fence": ("fence.proxy.async.shared::cta;", "", "no fence.proxy.async"),
    "fence by another warp, after the barrier": (
        "fence.proxy.async.shared::cta;\n    bar.sync 0;",
        "bar.sync 0; setp.ge.u32 %p4, %r1, 32; @%p4 fence.proxy.async.shared::cta;",
        "no fence.proxy.async",
    ),
    "no bar.sync before the store": (
        "fence.proxy.async.shared::cta;\n    bar.sync 0;",
        "fence.proxy.async.shared::cta;",
        "no barrier orders it|never written",
    ),
    "no wait for the store": (
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;",
        "",
        "may still read its shared memory",
    ),
    "no commit of the store": ("cp.async.bulk.commit_group;", "", "may still read"),
    "tile written while it is stored": (
        "cp.async.bulk.commit_group;",
        "st.shared.f32 [%r3], 0f00000000; cp.async.bulk.commit_group;",
        "an asynchronous operation is reading it",
    ),
    "no wait for the load": ("@!%p2 bra WAIT;", "", "no barrier orders it|about to write"),
    "no fence of the barrier": ("fence.mbarrier_init.release.cluster;", "", "fence.mbarrier_init"),
    "bytes of one row too many": (f"[%r4], {BYTES};", f"[%r4], {BYTES + 128};", "lacks 0 of 1"),
    "misaligned tile": ("[%r2], [%d2, {8, 1}]", "[%r2+64], [%d2, {8, 1}]", "not aligned to 128"),
    "three coordinates": ("[%d2, {8, 1}]", "[%d2, {8, 1, 0}]", "3 coordinates for 2d"),
    "a map that is none": (
        "mov.b64 %d2, a;",
        "mov.b64 %d2, a; add.s64 %d2, %d2, 64;",
        "no tensor map",
    ),
    "another mode": ("global.tile.mbar", "global.im2col.mbar", "says im2col"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_in_every_schedule(name):
    old, new, said = WRONG[name]
    assert old in ROUND_TRIP
    for seed in SEEDS:
        with pytest.raises(ptx.PtxError) as caught:
            round_trip(ROUND_TRIP.replace(old, new), seed)
        assert any(words in str(caught.value) for words in said.split("|")), caught.value


def test_fence_by_the_thread_that_stores():
    """A fence anywhere between the barrier and the store will do."""
    body = ROUND_TRIP.replace(
        "fence.proxy.async.shared::cta;\n    bar.sync 0;\n    @!%p1 bra END;",
        "bar.sync 0; @!%p1 bra END; fence.proxy.async.shared::cta;",
    )
    assert body != ROUND_TRIP
    round_trip(body, 0)


def test_swizzled_tile_lies_as_the_documentation_says():
    """Rows of 32 bytes: in a line of 128 bytes, the 16-byte units of odd lines trade places."""
    x = np.arange(720, dtype=np.float32).reshape(20, 36)
    out = np.zeros(128, np.float32)
    body = """
        ld.param.u64 %d1, [y]; mov.b64 %d2, a; cvta.param.u64 %d2, %d2; mov.u32 %r2, smem;
        mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @!%p1 bra READY;
        mbarrier.init.shared.b64 [%r2+512], 1; fence.proxy.async;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2+512], 512;
        cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
            [%r2], [%d2, {4, 0}], [%r2+512];
        READY: bar.sync 0;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+512], 0; @!%p2 bra WAIT;
        mov.u32 %r5, 0;
        NEXT: shl.b32 %r6, %r1, 2; mad.lo.u32 %r6, %r5, 128, %r6; add.u32 %r7, %r2, %r6;
        ld.shared.f32 %f1, [%r7]; cvt.u64.u32 %d4, %r6; add.s64 %d4, %d1, %d4;
        st.global.f32 [%d4], %f1; add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 4; @%p3 bra NEXT;"""
    text = kernel(body, ".param .align 64 .b8 a[128], .param .u64 y", shared=SHARED)
    ptx.run(text, 1, 32, [ptx.Tensor(tile_map(32), x), out], shared_bytes=520)
    lines = x[:16, 4:12].reshape(4, 4, 2, 4)  # line, row of it, unit, element
    expected = lines.copy()
    expected[1::2] = lines[1::2, :, ::-1]
    assert np.array_equal(out.reshape(4, 4, 2, 4), expected)


def test_those_who_watch_are_told_of_a_copy_twice():
    """When it is issued, and with shared memory when it is complete, for loads and stores."""
    told = []
    x, y = round_trip(ROUND_TRIP, 0, watch=lambda copy: told.append((copy, copy.contents)))
    (load, before), (same, tile), (store, at_issue), (stored, out) = told
    assert load is same and store is stored and before is None and at_issue is None
    assert (load.direction, load.mode, load.coordinates) == ("load", "tile", (8, 1))
    assert load.line < store.line and store.address == load.address + BYTES
    assert (store.direction, store.block, store.warp) == ("store", (0, 0, 0), 0)
    assert load.places.tolist() == np.arange(0, BYTES, 16).reshape(ROWS, -1).tolist()
    assert np.array_equal(tile.reshape(ROWS, -1).view(np.float32)[:, :28], x[1:17, 8:])
    assert np.array_equal(out.reshape(ROWS, -1).view(np.float32)[:, :28], y[1:17, 8:])


def test_rows_narrower_than_the_span_lie_a_span_apart():
    """CUDA C++ programming guide: shared memory must hold the full width of the swizzle."""
    told = []
    map = ptx.TensorMap("tile", 4, 0, (36, 20), (144,), (1, 1), span=64, box=(8, 8))
    body = """
        mov.b64 %d2, a; cvta.param.u64 %d2, %d2; mov.u32 %r2, smem;
        mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @!%p1 bra END;
        mbarrier.init.shared.b64 [%r2+512], 1; fence.proxy.async;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2+512], 256;
        cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
            [%r2], [%d2, {4, 0}], [%r2+512];
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+512], 0; @!%p2 bra WAIT;
        END:"""
    x = np.arange(720, dtype=np.float32).reshape(20, 36)
    text = kernel(body, ".param .align 64 .b8 a[128]", shared=SHARED)
    ptx.run(text, 1, 32, [ptx.Tensor(map, x)], shared_bytes=520, watch=told.append)
    plain = 64 * np.arange(8)[:, None] + 16 * np.arange(2)
    assert np.array_equal(told[1].places, plain ^ (plain >> 7 & 3) << 4)
    assert np.array_equal(told[1].contents.reshape(8, -1).view(np.float32), x[:8, 4:12])


BULK = """
    mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, smem; @!%p1 bra READY;
    mbarrier.init.shared.b64 [%r2+256], 1; fence.mbarrier_init.release.cluster;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2+256], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 256, [%r2+256];
    mbarrier.arrive.shared.b64 %d5, [%r2+256];
    READY: bar.sync 0;
    WAIT: mbarrier.test_wait.parity.shared.b64 %p2, [%r2+256], 0; @!%p2 bra WAIT;
    @!%p1 bra END;
    cp.async.bulk.global.shared::cta.bulk_group [%d1+256], [%r2], 256;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END: bar.sync 0; mbarrier.inval.shared.b64 [%r2+256];
"""


def test_bulk_copies():
    for seed in SEEDS:
        x = np.arange(128, dtype=np.float32)
        text = kernel(BULK.replace("mbarrier.inval", "@%p1 mbarrier.inval"), shared=SHARED)
        ptx.run(text, 1, 64, [x], shared_bytes=264, seed=seed)
        assert np.array_equal(x, np.tile(np.arange(64), 2))


def test_cp_async_fills_with_zeros_and_arrives_at_a_barrier():
    body = """
        mov.u32 %r1, %tid.x; mov.u32 %r2, smem; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3;
        setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r2+512], 32; bar.sync 0;
        mul.wide.u32 %d2, %r1, 16; add.s64 %d3, %d1, %d2; and.b32 %r5, %r1, 3; shl.b32 %r5, %r5, 2;
        cp.async.cg.shared.global [%r4], [%d3], 16, %r5;
        cp.async.mbarrier.arrive.noinc.shared.b64 [%r2+512];
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+512], 0; @!%p2 bra WAIT;
        xor.b32 %r6, %r4, 16; ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r6];
        st.global.v4.f32 [%d3], {%f1, %f2, %f3, %f4};"""
    for seed in SEEDS:
        x = np.arange(1, 129, dtype=np.float32)
        ptx.run(kernel(body, shared=SHARED), 1, 32, [x], shared_bytes=520, seed=seed, flaky=0.3)
        lanes = np.arange(32) ^ 1
        whole = np.arange(1, 129, dtype=np.float32).reshape(32, 4)[lanes]
        kept = np.arange(4) < (lanes & 3)[:, None]
        assert np.array_equal(x.reshape(32, 4), np.where(kept, whole, 0))


LOADS = {  # a load without its wait
    "cp.async.bulk.tensor": """
        cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
            [%r2], [%d2, {4, 0}], [%r2+512];""",
    "cp.async.bulk": """
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
            [%r2], [%d1], 512, [%r2+512];""",
    "cp.async": "cp.async.cg.shared.global [%r2], [%d1], 16; cp.async.commit_group;",
}
WAITS = {
    "cp.async": "cp.async.wait_group 0;",
    "": "WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+512], 0; @!%p2 bra WAIT;",
}


@pytest.mark.parametrize("name", LOADS)
def test_a_kernel_must_wait_for_its_loads(name):
    """Whether they happen to arrive before the kernel ends makes no difference."""
    map = ptx.TensorMap("tile", 4, 0, (36, 20), (144,), (1, 1), box=(8, 16))
    body = f"""
        mov.b64 %d2, a; cvta.param.u64 %d2, %d2; ld.param.u64 %d1, [x]; mov.u32 %r2, smem;
        mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @!%p1 bra END;
        mbarrier.init.shared.b64 [%r2+512], 1; fence.proxy.async;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2+512], {0 if name == "cp.async" else 512};
        {LOADS[name]}"""
    wait = WAITS.get(name, WAITS[""])
    for seed in SEEDS:
        for more, words in (
            (wait, ""),
            ("", "nobody has waited for"),
            ("nanosleep.u32 9;", "wait"),
        ):
            x = np.arange(720, dtype=np.float32).reshape(20, 36)
            parameters = ".param .align 64 .b8 a[128], .param .u64 x"
            text = kernel(f"{body} {more} END:", parameters, shared=SHARED)
            arguments = [ptx.Tensor(map, x), x]
            if not words:
                ptx.run(text, 1, 64, arguments, shared_bytes=520, seed=seed)
                continue
            with pytest.raises(ptx.PtxError, match=f"block 0: the kernel ends.*{words}"):
                ptx.run(text, 1, 64, arguments, shared_bytes=520, seed=seed)


def test_im2col_copy():
    """A tap of a 3 x 3 convolution with padding 1 over 2 images of 4 x 5 pixels of 8 channels."""
    x = np.arange(2 * 4 * 5 * 8, dtype=np.float32).reshape(2, 4, 5, 8)
    out = np.zeros(24 * 8, np.float32)
    map = ptx.TensorMap(
        "im2col",
        4,
        0,
        (8, 5, 4, 2),
        (32, 160, 640),
        (1, 1, 1, 1),
        lower=(-1, -1),
        upper=(-1, -1),
        channels=8,
        pixels=24,
    )
    body = """
        ld.param.u64 %d1, [y]; ld.param.u64 %d2, [a]; mov.u32 %r2, smem;
        mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @!%p1 bra READY;
        fence.proxy.tensormap::generic.acquire.sys [%d2], 128;
        mbarrier.init.shared.b64 [%r2+768], 1; fence.proxy.async;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2+768], 768;
        mov.u32 %r8, -1; mov.u16 %h1, 2; mov.u16 %h2, 1;
        cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes
            [%r2], [%d2, {0, %r8, %r8, 0}], [%r2+768], {%h1, %h2};
        READY: bar.sync 0;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+768], 0; @!%p2 bra WAIT;
        shl.b32 %r6, %r1, 3; add.u32 %r7, %r2, %r6; ld.shared.v2.f32 {%f1, %f2}, [%r7];
        cvt.u64.u32 %d4, %r6; add.s64 %d4, %d1, %d4; st.global.v2.f32 [%d4], {%f1, %f2};"""
    text = kernel(body, ".param .u64 a, .param .u64 y", shared=SHARED)
    for seed in SEEDS:
        ptx.run(text, 1, 96, [ptx.Tensor(map, x), out], shared_bytes=776, seed=seed)
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        pixels = padded[:, 1:5, 2:7].reshape(-1, 8)  # offsets: 2 along W, 1 along H
        assert np.array_equal(out.reshape(24, 8), pixels[:24])
