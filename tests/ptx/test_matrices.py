"""mma.sync, ldmatrix, stmatrix and wgmma against numpy's products of small integers."""

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx

SHARED = ".extern .shared .align 1024 .b8 smem[];"
LANE = np.arange(32)
GROUP, PLACE = LANE // 4, LANE % 4


def halves(matrix, form):
    """The bits of a matrix of small integers as f16 or bf16."""
    if form == "f16":
        return matrix.astype(np.float16).view(np.uint16)
    return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def in_registers(matrix, form, rows):
    """Registers (count, 32) of A (16 rows) or B (8 rows: B transposed), by the ISA's figures."""
    size = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1}[form]
    if form in ("f16", "bf16"):
        bits = halves(matrix, form)
    else:
        bits = matrix.astype(np.float32 if form == "tf32" else np.int8).view(f"u{size}")
    words = np.ascontiguousarray(bits).view(np.uint32)  # rows x words along gemm_k
    columns = range(0, words.shape[1], 4)
    if rows == 8:
        return np.stack([words[GROUP, PLACE + c] for c in columns])
    return np.stack([words[GROUP + down, PLACE + c] for c in columns for down in (0, 8)])


MMA = [
    ("f16", 16, "f32"),
    ("bf16", 16, "f32"),
    ("bf16", 8, "f32"),
    ("tf32", 8, "f32"),
    ("tf32", 4, "f32"),
    ("s8", 32, "s32"),
    ("s8", 16, "s32"),
    ("f16", 16, "f16"),
]


@pytest.mark.parametrize(("form", "depth", "sums"), MMA)
def test_mma(form, depth, sums):
    rng = np.random.default_rng(depth)
    a, b = rng.integers(-4, 5, (16, depth)), rng.integers(-4, 5, (8, depth))
    c = rng.integers(-9, 9, (16, 8))
    registers = [*in_registers(a, form, 16), *in_registers(b, form, 8)]
    fragment = np.stack([c[GROUP + 8 * (i // 2), 2 * PLACE + i % 2] for i in range(4)])
    if sums == "f16":
        pairs = fragment.astype(np.float16).reshape(2, 2, 32).transpose(0, 2, 1)
        fragment = np.ascontiguousarray(pairs).view(np.uint32).reshape(2, 32)
    kind = {"f32": np.float32, "s32": np.int32, "f16": np.uint32}[sums]
    registers += list(np.ascontiguousarray(fragment.astype(kind)).view(np.uint32))
    x = np.stack(registers)
    letter, count_d = ("%f" if sums == "f32" else "%r"), len(fragment)
    in_a, in_b = len(in_registers(a, form, 16)), len(in_registers(b, form, 8))
    names = [f"%r{20 + n}" for n in range(in_a + in_b)]
    names += [f"{letter}{n + 2}" for n in range(count_d)]
    loads = "\n".join(
        f"ld.global.{'f32' if name[1] == 'f' else 'b32'} {name}, [%d2+{128 * n}];"
        for n, name in enumerate(names)
    )
    d = names[in_a + in_b :]
    stores = "\n".join(
        f"st.global.{'f32' if name[1] == 'f' else 'b32'} [%d2+{128 * n}], {name};"
        for n, name in enumerate(d)
    )
    group = ["{" + ", ".join(part) + "}" for part in (d, names[:in_a], names[in_a : in_a + in_b])]
    body = f"""mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2; {loads}
        mma.sync.aligned.m16n8k{depth}.row.col.{sums}.{form}.{form}.{sums}
            {group[0]}, {group[1]}, {group[2]}, {group[0]}; {stores}"""
    ptx.run(kernel(body), 1, 32, [x])
    expected = a @ b.T + c
    if sums == "f16":
        got = np.ascontiguousarray(x[:2]).view(np.float16).reshape(2, 32, 2)
        for i in range(4):
            assert np.array_equal(
                got[i // 2, :, i % 2], expected[GROUP + 8 * (i // 2), 2 * PLACE + i % 2]
            )
        return
    for i in range(4):
        got = x[i].view(kind)
        assert np.array_equal(got, expected[GROUP + 8 * (i // 2), 2 * PLACE + i % 2])


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_and_stmatrix(transposed):
    """Four matrices of 8 x 8 halves, loaded, and stored to another place."""
    trans = ".trans" if transposed else ""
    body = f"""
        mov.u32 %r1, %tid.x; mov.u32 %r2, smem; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3;
        mul.wide.u32 %d2, %r1, 16; add.s64 %d2, %d1, %d2;
        ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d2];
        st.shared.v4.b32 [%r4], {{%r10, %r11, %r12, %r13}}; bar.warp.sync 0xffffffff;
        ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r4];
        st.global.v4.b32 [%d2+512], {{%r20, %r21, %r22, %r23}};
        stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r4+512], {{%r20, %r21, %r22, %r23}};
        bar.warp.sync 0xffffffff; ld.shared.v4.b32 {{%r30, %r31, %r32, %r33}}, [%r4+512];
        st.global.v4.b32 [%d2+1024], {{%r30, %r31, %r32, %r33}};"""
    x = np.zeros((3, 4, 8, 8), np.uint16)
    x[0] = np.arange(256).reshape(4, 8, 8)
    ptx.run(kernel(body, shared=SHARED), 1, 32, [x], shared_bytes=1024)
    fragments = np.ascontiguousarray(x[1]).view(np.uint32).reshape(32, 4)
    source = x[0].transpose(0, 2, 1) if transposed else x[0]
    words = np.ascontiguousarray(source).view(np.uint32)  # matrix, row, word
    for matrix in range(4):
        assert np.array_equal(fragments[:, matrix], words[matrix, GROUP, PLACE])
    assert np.array_equal(x[2], x[0])


def k_major(matrix, span):
    """(bytes, descriptor without its address) of rows of `span` bytes in the swizzle's layout."""
    if span == 16:  # no swizzle: cores of 8 rows x 16 bytes; LBO to the next along gemm_k
        rows = matrix.shape[0]
        cores = matrix.reshape(rows // 8, 8, 2, -1).transpose(2, 0, 1, 3)
        return cores.tobytes(), (rows * 16 >> 4) << 16 | (128 >> 4) << 32
    unit = np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), span // 16, 16)
    at = np.arange(len(matrix))[:, None] * span + np.arange(span // 16) * 16
    to = (at // 128 * 128 + (at // 16 % 8 ^ at // 128 % (span // 16)) * 16) // 16
    out = np.zeros((to.max() + 1, 16), np.uint8)
    out[to] = unit
    mode = {128: 1, 64: 2, 32: 3}[span]
    return out.tobytes(), (8 * span >> 4) << 32 | 1 << 16 | mode << 62


def mn_major(matrix, span):
    """The same for a matrix (gemm_k, rows) whose rows are contiguous, in pieces of `span` bytes."""
    depth = len(matrix)
    pieces = matrix.view(np.uint8).reshape(depth, -1, span // 16, 16)  # k, piece, unit
    out = np.zeros((pieces.shape[1], depth * span // 16, 16), np.uint8)
    for piece in range(pieces.shape[1]):
        at = np.arange(depth)[:, None] * span + np.arange(span // 16) * 16
        to = (at // 128 * 128 + (at // 16 % 8 ^ at // 128 % (span // 16)) * 16) // 16
        out[piece][to] = pieces[:, piece]
    lead, stride = depth * span, 8 * span
    mode = {128: 1, 64: 2, 32: 3}[span]
    return out.tobytes(), (lead >> 4) << 16 | (stride >> 4) << 32 | mode << 62


COLUMNS = 16


def wgmma_text(form, descriptors, literals, a_bytes, held=0, extra=""):
    """64 x 16 sums of one wgmma: A from shared memory, or `held` registers of each thread."""
    d = ", ".join(f"%f{n}" for n in range(COLUMNS // 2))
    a = "%d5" if not held else "{" + ", ".join(f"%r{40 + n}" for n in range(held)) + "}"
    loads = "".join(f"ld.global.b32 %r{40 + n}, [%d8+{4 * n}];" for n in range(held))
    depth = 8 if form == "tf32" else 16
    stores = "".join(f"st.global.f32 [%d7+{4 * n}], %f{n};" for n in range(COLUMNS // 2))
    zeros = "".join(f"mov.f32 %f{n}, 0f3F800000;" for n in range(COLUMNS // 2))
    return f"""
        ld.param.u64 %d6, [y]; ld.param.u64 %d9, [r]; ld.param.u32 %r9, [words];
        mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mul.wide.u32 %d3, %r1, {2 * COLUMNS};
        add.s64 %d7, %d6, %d3; mul.wide.u32 %d3, %r1, {4 * max(held, 1)}; add.s64 %d8, %d9, %d3;
        mov.u32 %r3, %r1;
        COPY: setp.ge.u32 %p1, %r3, %r9; @%p1 bra COPIED;
        mul.wide.u32 %d4, %r3, 4; add.s64 %d4, %d1, %d4; ld.global.b32 %r5, [%d4];
        shl.b32 %r6, %r3, 2; add.u32 %r6, %r2, %r6; st.shared.b32 [%r6], %r5;
        add.u32 %r3, %r3, 128; bra COPY;
        COPIED: fence.proxy.async; bar.sync 0;
        shr.u32 %r7, %r2, 4; cvt.u64.u32 %d10, %r7;
        add.s64 %d5, %d10, {descriptors[0]}; add.s64 %d11, %d10, {descriptors[1] + (a_bytes >> 4)};
        {loads} {zeros} setp.eq.u32 %p2, %r2, %r2; {extra}
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n{COLUMNS}k{depth}.f32.{form}.{form}
            {{{d}}}, {a}, %d11, %p2, {literals};
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
        {stores}"""


PARAMETERS = ".param .u64 x, .param .u64 y, .param .u64 r, .param .u32 words"


def run_wgmma(form, a, b, literals, a_part, b_part, held=None, edit=lambda body: body):
    """The 64 x 16 sums: parts are (bytes, descriptor) of A and B."""
    a_bytes = -(-len(a_part[0]) // 1024) * 1024
    memory = np.frombuffer(a_part[0].ljust(a_bytes, b"\0") + b_part[0], np.uint32).copy()
    y = np.zeros((128, COLUMNS // 2), np.float32)
    registers = np.zeros(1, np.uint32) if held is None else held
    count = 0 if held is None else held.shape[1]
    body = edit(wgmma_text(form, (a_part[1], b_part[1]), literals, a_bytes, count))
    text = kernel(body, PARAMETERS, shared=SHARED)
    ptx.run(text, 1, 128, [memory, y, registers, memory.size], shared_bytes=memory.nbytes)
    out = np.zeros((64, COLUMNS))
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(COLUMNS // 2):
            row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
            out[row, 8 * (i // 4) + 2 * (lane % 4) + i % 2] = y[thread, i]
    return out - 1


@pytest.mark.parametrize("span", [16, 32, 64, 128])
@pytest.mark.parametrize("form", ["f16", "bf16", "tf32"])
def test_wgmma(form, span):
    rng = np.random.default_rng(span)
    width = span // 2 if form != "tf32" else span // 4
    depth = 8 if form == "tf32" else 16
    width = max(width, depth)
    a, b = rng.integers(-4, 5, (64, width)), rng.integers(-4, 5, (COLUMNS, width))
    bits = [m.astype("f4") if form == "tf32" else halves(m, form) for m in (a, b)]
    parts = [k_major(m, span) for m in bits]
    literals = "1, -1" if form == "tf32" else "1, -1, 0, 0"
    sums = run_wgmma(form, a, b, literals, *parts)
    assert np.array_equal(sums, -(a[:, :depth] @ b[:, :depth].T))


@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize(("of_a", "of_b"), [(1, 0), (0, 1), (1, 1)])
def test_wgmma_transposed(span, of_a, of_b):
    rng = np.random.default_rng(span)
    a, b = rng.integers(-4, 5, (64, 16)), rng.integers(-4, 5, (64, 16))
    wide = [(halves(m, "bf16"), transposed) for m, transposed in ((a, of_a), (b, of_b))]
    parts = [
        mn_major(np.ascontiguousarray(m.T), span) if transposed else k_major(m, 32)
        for m, transposed in wide
    ]
    sums = run_wgmma("bf16", a, b, f"1, 1, {of_a}, {of_b}", *parts)
    assert np.array_equal(sums, a @ b[:COLUMNS].T)


def test_wgmma_with_float16_sums():
    """Each register holds the sums of two columns; stored pairs are those of float32 sums."""
    rng = np.random.default_rng(2)
    a, b = rng.integers(-3, 4, (64, 16)), rng.integers(-3, 4, (COLUMNS, 16))
    parts = [k_major(halves(m, "f16"), 32) for m in (a, b)]

    def edited(body):
        for n in range(COLUMNS // 2):
            body = body.replace(f"mov.f32 %f{n}, 0f3F800000;", "")
            half, high = divmod(n, 2)
            pick = f"mov.b32 {{%h0, %h1}}, %r{60 + half}; cvt.f32.f16 %f{n}, %h{high};"
            store = f"st.global.f32 [%d7+{4 * n}], %f{n};"
            body = body.replace(store, pick + store)
        count = COLUMNS // 4
        ones = "".join(f"mov.b32 %r{60 + n}, 0x3C003C00;" for n in range(count))
        body = body.replace("wgmma.fence", ones + "wgmma.fence")
        floats = "{" + ", ".join(f"%f{n}" for n in range(COLUMNS // 2)) + "}"
        packs = "{" + ", ".join(f"%r{60 + n}" for n in range(count)) + "}"
        return body.replace("k16.f32.f16.f16", "k16.f16.f16.f16").replace(floats, packs)

    sums = run_wgmma("f16", a, b, "1, 1, 0, 0", *parts, edit=edited)
    assert np.array_equal(sums, a @ b.T)


def registers_of(a, form):
    return np.concatenate([in_registers(a[16 * w :][:16], form, 16).T for w in range(4)])


@pytest.mark.parametrize("form", ["f16", "tf32"])
def test_wgmma_with_a_in_registers(form):
    depth = 8 if form == "tf32" else 16
    rng = np.random.default_rng(3)
    a, b = rng.integers(-4, 5, (64, depth)), rng.integers(-4, 5, (COLUMNS, depth))
    part = k_major(b.astype("f4") if form == "tf32" else halves(b, form), 32)
    literals = "1, 1" if form == "tf32" else "1, 1, 0"
    held = np.ascontiguousarray(registers_of(a, form))
    assert np.array_equal(run_wgmma(form, a, b, literals, (b"", 0), part, held), a @ b.T)


WRONG = {
    "no fence": ("wgmma.fence.sync.aligned;", "", "no wgmma.fence"),
    "register touched after the fence": (
        "wgmma.fence.sync.aligned;",
        "wgmma.fence.sync.aligned; mov.f32 %f3, 0f00000000;",
        "no wgmma.fence",
    ),
    "sums read too early": ("wgmma.wait_group.sync.aligned 0;", "", "wgmma under way"),
    "memory written too early": (
        "wgmma.commit_group.sync.aligned;",
        "setp.eq.u32 %p3, %r1, 0; @%p3 st.shared.b32 [%r2], %r2; wgmma.commit_group.sync.aligned;",
        "an asynchronous operation is reading",
    ),
    "no proxy fence": ("fence.proxy.async;", "", "no fence.proxy.async"),
    "warps disagree": (
        "wgmma.fence.sync.aligned;",
        "shr.u32 %r8, %r1, 6; cvt.u64.u32 %d12, %r8; "
        "add.s64 %d5, %d5, %d12; wgmma.fence.sync.aligned;",
        "different descriptors",
    ),
    "lanes disagree": (
        "wgmma.fence.sync.aligned;",
        "and.b32 %r8, %r1, 1; cvt.u64.u32 %d12, %r8; "
        "add.s64 %d5, %d5, %d12; wgmma.fence.sync.aligned;",
        "the lanes give different",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    old, new, said = WRONG[name]
    a = b = np.ones((64, 16))
    part = k_major(halves(a, "f16"), 32)
    with pytest.raises(ptx.PtxError, match=said):
        run_wgmma("f16", a, b, "1, 1, 0, 0", part, part, edit=lambda body: body.replace(old, new))
