"""Sectors and bank passes, counted by hand for each pattern of addresses."""

import numpy as np
import pytest

from implicit_conv import ptx

KERNEL = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry touch(.param .u64 x, .param .u32 step)
{{
    .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<4>;
    .shared .align 128 .b8 tile[16384];
    ld.param.u64 %d1, [x];
    ld.param.u32 %r1, [step];
    mov.u32 %r2, %tid.x;
    mul.lo.u32 %r3, %r2, %r1;
    mov.u32 %r4, tile;
    add.u32 %r4, %r4, %r3;
    cvt.u64.u32 %d2, %r3;
    add.u64 %d2, %d2, %d1;
    {body}
    ret;
}}
"""


def costs(body, step):
    traffic = ptx.Traffic()
    x = np.zeros(8192, np.uint32)
    ptx.run(KERNEL.format(body=body), 1, 32, [x, step], traffic=traffic)
    return {key: (c.instructions, c.cost, c.least) for key, c in traffic.costs.items()}


@pytest.mark.parametrize(
    ("step", "sectors", "least"),
    [
        (0, 1, 1),  # a broadcast
        (2, 2, 2),
        (4, 4, 2),  # every other element
        (32, 32, 2),  # a sector for each lane
    ],
)
def test_sectors_of_2_bytes(step, sectors, least):
    found = costs("st.global.u16 [%d2], 0;" if step else "ld.global.u16 %r5, [%d2];", step)
    assert found == {("st.global" if step else "ld.global", 2): (1, sectors, least)}


def test_a_wide_store_across_half_sectors():
    """16 bytes a lane, 32 bytes apart: each fills half of its sector."""
    body = "st.global.v4.u32 [%d2], {0, 0, 0, 0};"
    assert costs(body, 32) == {("st.global", 16): (1, 32, 16)}
    assert costs(body, 16) == {("st.global", 16): (1, 16, 16)}


@pytest.mark.parametrize(
    ("step", "passes"), [(4, 1), (8, 2), (128, 32), (132, 1), (64, 16), (0, 1)]
)
def test_passes_of_words(step, passes):
    body = "st.shared.u32 [%r4], 0;" if step else "ld.shared.u32 %r5, [tile];"
    if not step:  # one lane writes the word that all read
        body = "setp.eq.u32 %p, %r2, 0; @%p st.shared.u32 [tile], 0; bar.sync 0; " + body
        assert costs(body, 0)["ld.shared", 4] == (1, 1, 1)
    else:
        assert costs(body, step) == {("st.shared", 4): (1, passes, 1)}


def test_vectors_are_served_in_parts():
    """8 bytes a lane: two halves; 16 bytes: four quarters of 8 lanes."""
    two, four = "st.shared.v2.u32 [%r4], {0, 0};", "st.shared.v4.u32 [%r4], {0, 0, 0, 0};"
    assert costs(two, 8) == {("st.shared", 8): (1, 2, 2)}
    assert costs(two, 16) == {("st.shared", 8): (1, 4, 2)}
    assert costs(four, 16) == {("st.shared", 16): (1, 4, 4)}
    assert costs(four, 144) == {("st.shared", 16): (1, 4, 4)}
    assert costs(four, 128) == {("st.shared", 16): (1, 32, 4)}


def test_lanes_that_do_not_run_cost_nothing():
    body = "setp.lt.u32 %p, %r2, 8; @%p st.global.u32 [%d2], 0;"
    assert costs(body, 4) == {("st.global", 4): (1, 1, 1)}
    body = "setp.gt.u32 %p, %r2, 99; @%p st.global.u32 [%d2], 0;"
    assert costs(body, 4) == {}


def test_matrices_and_copies():
    """A row of 16 bytes for each of 8 lanes: one pass if the rows cover all banks."""
    fill = "st.shared.v4.u32 [%r4], {0, 0, 0, 0}; bar.sync 0; "
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r3}, [%r4];"
    assert costs(fill + load, 16)["ldmatrix", 16] == (1, 4, 4)
    assert costs(fill + load, 128)["ldmatrix", 16] == (1, 32, 4)
    copy = "cp.async.cg.shared.global [%r4], [%d2], 16; cp.async.wait_all;"
    found = costs(copy, 64)
    assert found == {("cp.async", 16): (1, 32, 16), ("cp.async to shared", 16): (1, 16, 4)}


def test_totals():
    traffic = ptx.Traffic()
    traffic.note_global("st.global", np.arange(32) * 2, 2)
    traffic.note_global("st.global", np.arange(32) * 32, 16)
    traffic.note_global("ld.global", np.arange(32) * 4, 4)
    total = traffic.total("st.global")
    assert (total.instructions, total.cost, total.least) == (2, 34, 18)
