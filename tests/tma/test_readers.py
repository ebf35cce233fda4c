"""check_kernel compares what wgmma and ldmatrix read with what the copies wrote."""

import re

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import tma

SHARED = ".extern .shared .align 1024 .b8 smem[];"
MAPS = ".param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .u64 y"
COLUMNS, DEPTH = 64, 64
TILE = 64 * 128  # bytes of the tile of A, and of B
LAYOUT = {"128B": 1, "64B": 2, "32B": 3, "none": 0}
CODE = 62


def product_text(layout_a="128B", stride_a=1024, step=32, at_b="{0, 0}", wait=True):
    """64 x 64 sums of A and B, both 64 x 64 of bfloat16 and K-major, of 4 K steps of wgmma."""
    d = ", ".join(f"%f{n}" for n in range(32))
    part = 1 << 16
    high_a = stride_a >> 4 << 32 | part | LAYOUT[layout_a] << CODE
    high_b = 1024 >> 4 << 32 | part | LAYOUT["128B"] << CODE
    signed = [high - (1 << 64) if high >> 63 else high for high in (high_a, high_b)]
    steps = "\n".join(
        f"""add.s64 %d11, %d10, {step * k >> 4}; add.s64 %d12, %d10, {TILE + 32 * k >> 4};
        add.s64 %d13, %d11, %d20; add.s64 %d14, %d12, %d21;
        wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{d}}}, %d13, %d14, %p2, 1, 1, 0, 0;
        """
        for k in range(4)
    )
    zeros = "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(32))
    stores = "".join(f"st.global.f32 [%d7+{4 * n}], %f{n};" for n in range(32))
    load = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
    body = f"""
        mov.b64 %d2, a; cvta.param.u64 %d2, %d2; mov.b64 %d3, b; cvta.param.u64 %d3, %d3;
        ld.param.u64 %d6, [y]; mov.u32 %r2, smem; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;
        @!%p1 bra READY;
        mbarrier.init.shared.b64 [%r2+{2 * TILE}], 1; fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2+{2 * TILE}], {2 * TILE};
        .loc 1 9 0
        {load} [%r2], [%d2, {{0, 0}}], [%r2+{2 * TILE}];
        {load} [%r2+{TILE}], [%d3, {at_b}], [%r2+{2 * TILE}];
        READY: bar.sync 0;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+{2 * TILE}], 0; @!%p2 bra WAIT;
        shr.u32 %r7, %r2, 4; cvt.u64.u32 %d10, %r7;
        mov.b64 %d20, {signed[0]}; mov.b64 %d21, {signed[1]};
        {zeros} setp.eq.u32 %p2, %r2, %r2;
        wgmma.fence.sync.aligned;
        .loc 1 10 0
        {steps}
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
        mul.wide.u32 %d4, %r1, 128; add.s64 %d7, %d6, %d4;
        {stores}"""
    return '.file 1 "gemm.py"\n'.join(["", kernel(body, MAPS, shared=SHARED)]).replace(
        '.file 1 "gemm.py"\n\n.version 8.6', '\n.version 8.6\n.file 1 "gemm.py"'
    )


def in_registers(sums):
    """What each thread holds of 64 x 64 sums (PTX ISA 9.7.15, the layout of D)."""
    thread, i = np.arange(128)[:, None], np.arange(32)[None, :]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
    return sums[row, 8 * (i // 4) + 2 * (thread % 4) + i % 2]


def check(swizzle_a="128B", columns=DEPTH, rows=64, **options):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (64, DEPTH)).astype(np.float32) for _ in range(2))
    bits = [(m.view(np.uint32) >> 16).astype(np.uint16) for m in (a, b)]
    maps = [
        tma.TiledMap(shape=(64, DEPTH), dtype="uint16", box=box, swizzle=swizzle)
        for box, swizzle in (((rows, columns), swizzle_a), ((64, DEPTH), "128B"))
    ]
    y = np.zeros((128, 32), np.float32)
    arguments = [*(tma.MapArgument(m, x) for m, x in zip(maps, bits, strict=True)), y]
    return tma.check_kernel(
        product_text(**options),
        1,
        128,
        arguments,
        shared_bytes=2 * TILE + 8,
        expected={2: in_registers(a @ b.T)},
    )


def test_a_right_product():
    report = check()
    assert report.problems == [] and str(report).endswith("nothing is wrong")


def test_a_swizzle_that_the_copy_did_not_write():
    report = check(swizzle_a="none")
    first, second = report.problems
    assert first.startswith("wgmma at line ") and "(gemm.py:10) and 3 others: reads" in first
    assert "reads swizzle 128B, but the copy wrote no swizzle; the copy is at line" in first
    assert first.endswith("(gemm.py:9)")
    assert second.startswith("argument 2: ") and "elements differ from those expected" in second


def test_a_swizzle_that_the_descriptor_lacks():
    (first, *_) = check(layout_a="none", stride_a=128).problems
    assert "reads no swizzle, but the copy wrote swizzle 128B" in first


@pytest.mark.parametrize("stride", [512, 2048])
def test_a_stride_unlike_the_rows_of_the_copy(stride):
    (first, *_) = check(stride_a=stride).problems
    words = r"row 8 of its matrix from unit 0 of row (\d+) .* row 0 from unit 0 of row (\d+):"
    eighth, zeroth = map(int, re.search(words, first).groups())
    assert eighth - zeroth == stride // 128
    assert "rows of the copy are 128 bytes apart" in first


def test_a_step_of_k_that_leaves_its_row():
    (first, *_) = check(step=112).problems
    assert "reads unit 1 of row 0 of its matrix from unit 0 of row" in first


def test_exchanged_coordinates_differ_from_what_is_expected():
    problems = check(at_b="{0, 8}").problems
    line, left_out = (problem for problem in problems if "copy" not in problem)
    assert line.startswith("argument 2: ") and "differ from those expected" in line
    assert left_out == "map 1: none of its copies loads [:8, :]"


def test_expected_arrays_have_the_shape_of_their_argument():
    text = product_text()
    map = tma.TiledMap(shape=(64, 64), dtype="uint16", box=(64, 64), swizzle="128B")
    x = tma.MapArgument(map, np.zeros((64, 64), np.uint16))
    y = np.zeros((128, 32), np.float32)
    with pytest.raises(ValueError, match=r"expected\[2\] has shape \(32,\), but"):
        tma.check_kernel(
            text, 1, 128, [x, x, y], shared_bytes=2 * TILE + 8, expected={2: np.zeros(32)}
        )


LDMATRIX = """
    mov.b64 %d2, a; cvta.param.u64 %d2, %d2; mov.u32 %r2, smem; mov.u32 %r1, %tid.x;
    setp.eq.u32 %p1, %r1, 0; @!%p1 bra READY;
    mbarrier.init.shared.b64 [%r2+1024], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2+1024], 1024;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%d2, {0, 0}], [%r2+1024];
    READY: bar.sync 0;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+1024], 0; @!%p2 bra WAIT;
    and.b32 %r3, %r1, 7; shl.b32 %r4, %r3, 7; shr.u32 %r5, %r1, 3; XOR
    shl.b32 %r5, %r5, 4; add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r2;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r4];"""


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize("undone", [False, True])
def test_ldmatrix_undoes_the_swizzle(swizzle, undone):
    """4 matrices of 8 rows of 128 bytes, with and without the exclusive or."""
    map = tma.TiledMap(shape=(8, 64), dtype="uint16", box=(8, 64), swizzle=swizzle)
    body = LDMATRIX.replace("XOR", "xor.b32 %r5, %r5, %r3;" if undone else "")
    x = np.zeros((8, 64), np.uint16)
    text = kernel(body, ".param .align 64 .b8 a[128]", shared=SHARED)
    problems = tma.check_kernel(text, 1, 32, [tma.MapArgument(map, x)], shared_bytes=1032).problems
    if undone == (swizzle == "128B"):
        assert problems == []
    else:
        (line,) = problems
        written, meant = ("swizzle 128B", "no swizzle")[:: 1 if swizzle == "128B" else -1]
        assert f"ldmatrix at line 22: reads {meant}, but the copy wrote {written}" in line


WARP_LOAD = """
    ld.param.u64 %d6, [y]; shl.b32 %r4, %r1, 4; shr.u32 %r5, %r1, 3; and.b32 %r5, %r5, 7;
    shl.b32 %r5, %r5, 4; XOR add.u32 %r6, %r4, %r2;
    ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r6];
    mul.wide.u32 %d4, %r1, 16; add.s64 %d7, %d6, %d4;
    st.global.v4.u32 [%d7], {%r10, %r11, %r12, %r13};"""


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize("undone", [False, True])
def test_loads_of_a_warp_explain_wrong_results(swizzle, undone):
    """Without expected arrays the same loads are no fault: the kernel may want that order."""
    body = LDMATRIX[: LDMATRIX.index("and.b32")]
    body += WARP_LOAD.replace("XOR", "xor.b32 %r4, %r4, %r5;" if undone else "")
    map = tma.TiledMap(shape=(8, 64), dtype="uint16", box=(8, 64), swizzle=swizzle)
    parameters = ".param .align 64 .b8 a[128], .param .u64 y"
    text = kernel(body, parameters, shared=SHARED)
    x = np.random.default_rng(0).integers(1, 999, (8, 64)).astype(np.uint16)
    reports = [
        tma.check_kernel(
            text,
            1,
            64,
            [tma.MapArgument(map, x), np.zeros_like(x)],
            shared_bytes=1032,
            expected=expected,
        )
        for expected in (None, {1: x})
    ]
    assert reports[0].problems == []
    if undone == (swizzle == "128B"):
        assert reports[1].problems == []
    else:
        reader, differs = reports[1].problems
        written, meant = ("swizzle 128B", "no swizzle")[:: 1 if swizzle == "128B" else -1]
        assert reader.startswith("ld.shared at line ")
        assert f": reads {meant}, but the copy wrote {written}; the copy is at line" in reader
        assert "differ from those expected" in differs
