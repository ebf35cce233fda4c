"""Global memory and asynchronous copies: what the ISA orders is right, and wrong without its order.

The situations are those of DeepEP issue 621, CUTLASS issues 2002 and 2162, fast.cu issue 8 and
DeepGEMM issue 343.
"""

import re

import numpy as np
import pytest

from implicit_conv import ptx, tma

HEAD = """
.version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 a, .param .u64 y)
{
    .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<3>;
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b8 full[8];
    mov.b64 %d1, map; cvta.param.u64 %d1, %d1; ld.param.u64 %d2, [a]; ld.param.u64 %d3, [y];
    mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, full;
    mul.wide.u32 %d4, %r1, 4; add.s64 %d5, %d2, %d4; add.s64 %d6, %d3, %d4;
    mad.lo.u32 %r4, %r1, 4, %r2; cvt.rn.f32.u32 %f1, %r1;
    xor.b32 %r5, %r1, 32; mul.wide.u32 %d4, %r5, 4; add.s64 %d7, %d2, %d4;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
"""  # d5 is the thread's own element of a, d7 that of another warp
LOAD = """
    @%p1 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
    COPY
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
    ld.shared.f32 %f2, [%r4]; st.global.f32 [%d6], %f2; ret; }
"""
TENSOR = """cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [%r2], [%d1, {0, 0}], [%r3];"""
BULK = """cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
    [%r2], [%d2], 256, [%r3];"""
STORE = """
    st.shared.f32 [%r4], %f1; fence.proxy.async.shared::cta; bar.sync 0;
    @%p1 bra DONE;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {0, 0}], [%r2];
    cp.async.bulk.commit_group;
    WAITED
DONE:
"""
READ = "bar.sync 0; ld.global.f32 %f2, [%d5]; st.global.f32 [%d6], %f2; ret; }"
WRITE = "st.global.f32 [%d5], %f1;"
OTHER = """cp.async.ca.shared.global [%r4], [%d7], 4; cp.async.wait_all;
    ld.shared.f32 %f2, [%r4]; st.global.f32 [%d6], %f2; ret; }"""
ALL, SOURCES = "cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;"
TWICE = STORE.replace("WAITED", STORE.split("DONE;")[1].replace("DONE:", "WAITED"))
TO_GLOBAL = "cp.async.bulk.tensor.2d.global.shared::cta.tile"
ADD = ".async.bulk.tensor.2d.global.shared::cta.add.tile"
CASES = {  # name: (text, what the error says)
    "fence, barrier, tensor copy": (
        f"{WRITE} fence.proxy.async; bar.sync 0; {LOAD.replace('COPY', TENSOR)}",
        "",
    ),
    "fence, barrier, bulk copy": (
        f"{WRITE} fence.proxy.async; bar.sync 0; {LOAD.replace('COPY', BULK)}",
        "",
    ),
    "no fence, tensor copy": (
        f"{WRITE} bar.sync 0; {LOAD.replace('COPY', TENSOR)}",
        r"tensor copy at global .*was generic, and no fence.proxy.async comes in between",
    ),
    "no fence, bulk copy": (
        f"{WRITE} bar.sync 0; {LOAD.replace('COPY', BULK)}",
        r"bulk copy at global .*was generic, and no fence.proxy.async comes in between",
    ),
    "no barrier, tensor copy": (
        f"{WRITE} fence.proxy.async; {LOAD.replace('COPY', TENSOR)}",
        "tensor copy at global .*no barrier orders it after the write of warp 1",
    ),
    "cp.async of another's element": (f"{WRITE} bar.sync 0; {OTHER}", ""),
    "cp.async without a barrier": (f"{WRITE} {OTHER}", "cp.async at global .*no barrier orders it"),
    "store, wait, read": (STORE.replace("WAITED", ALL) + READ, ""),
    "store, wait for its reads alone": (
        STORE.replace("WAITED", SOURCES) + READ,
        "a bulk store of warp 0 that nobody has waited for writes it.*without .read is missing",
    ),
    "store, wait for its reads, then for all": (
        STORE.replace("WAITED", SOURCES + ALL) + READ,
        "",
    ),
    "store, all but the last group": (
        STORE.replace("WAITED", "cp.async.bulk.wait_group 1;") + f"{SOURCES} {READ}",
        "a bulk store of warp 0 that nobody has waited for",
    ),
    "store, wait, no barrier": (
        STORE.replace("WAITED", ALL) + READ.replace("bar.sync 0;", ""),
        "no barrier orders it after the write of warp 0",
    ),
    "store, st.global": (
        STORE.replace("WAITED", "") + f"st.global.f32 [%d7], %f1; {ALL} ret; }}",
        "a bulk store of warp 0 that nobody has waited for|no barrier orders it after the write",
    ),
    "st.global, store": (
        "st.global.f32 [%d5], %f1; bar.sync 0;" + STORE.replace("WAITED", ALL) + "ret; }",
        "",
    ),
    "two stores": (
        TWICE.replace("WAITED", ALL) + "ret; }",
        "tensor store at global .*a bulk store of warp 0 that nobody has waited for",
    ),
    "two stores, a wait": (
        TWICE.replace("WAITED", ALL).replace("commit_group;", f"commit_group; {ALL}", 1) + "ret; }",
        "",
    ),
    "two reductions": (
        TWICE.replace("WAITED", ALL).replace(TO_GLOBAL, f"cp.reduce{ADD}") + "ret; }",
        "",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_order(name):
    """A read that comes before the write that races with it is not looked for, so not all schedules
    show each fault.
    """
    (body, words), found = CASES[name], list[str]()
    for seed in range(10):
        a, y = np.zeros((8, 8), np.float32), np.zeros(64, np.float32)
        map = ptx.TensorMap("tile", 4, 0, (8, 8), (32,), (1, 1), box=(8, 8), element="FLOAT32")
        try:
            ptx.run(HEAD + body, 1, 64, [ptx.Tensor(map, a), a, y], seed=seed)
        except ptx.PtxError as error:
            found.append(str(error))
    assert bool(found) == bool(words)
    assert all(re.search(f"(?s){words}", each) for each in found)


IN_MEMORY = """
.version 8.3
.target sm_90a
.address_size 64
.visible .entry load(.param .u64 map, .param .u64 b)
{
    .reg .pred %p<3>; .reg .b32 %r<5>; .reg .b64 %d<3>;
    .shared .align 128 .b8 tile[512];
    .shared .align 8 .b8 full[16];
    ld.param.u64 %d1, [map]; ld.param.u64 %d2, [b];
    mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, full;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra END;
    mbarrier.init.shared::cta.b64 [%r3], 1; mbarrier.init.shared::cta.b64 [%r3+8], 1;
    fence.mbarrier_init.release.cluster;
    FENCE
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%d1, {0, 0}], [%r3];
    REST
END:
    ret;
}
"""
FENCE = "fence.proxy.tensormap::generic.acquire.sys [%d1], 128;"
WAIT = "W1: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra W1;"
REPLACED = """
    tensormap.replace.tile.global_address.global.b1024.b64 [%d1], %d2;
    fence.proxy.tensormap::generic.release.gpu;
    fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+8], 256;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2+256], [%d1, {0, 0}], [%r3+8];
    W2: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3+8], 0; @!%p2 bra W2;
"""


@pytest.mark.parametrize(
    ("fence", "rest", "words"),
    [
        (FENCE, WAIT, ""),
        ("", WAIT, "lies in global memory, with no fence.proxy.tensormap::generic.acquire"),
        (FENCE.replace("%d1", "%d2"), WAIT, "with no fence.proxy.tensormap::generic.acquire"),
        (FENCE, WAIT + REPLACED, ""),
        (
            FENCE,
            REPLACED + WAIT,
            r"replace .* the copy of line \d+ takes: warp 0 has not",
        ),
    ],
)
def test_maps_in_global_memory(fence, rest, words):
    text = IN_MEMORY.replace("FENCE", fence).replace("REST", rest)
    a, b = np.zeros((8, 8), np.float32), np.ones((8, 8), np.float32)
    map = tma.TiledMap(shape=(8, 8), dtype="float32", box=(8, 8))
    report = tma.check_kernel(text, 1, 32, [tma.MapArgument(map, a), b])
    if not words:
        assert report.problems == []
        return
    assert re.search(words, report.problems[0])
