"""Branches, calls, lanes that part and meet, special registers, and what is refused by name."""

import re

import numpy as np
import pytest
from ptx_texts import ELEMENT, kernel

from implicit_conv import ptx


def run(text, count=64, block=64, grid=1, **options):
    x = np.arange(count, dtype=np.uint32)
    report = ptx.run(text, grid, block, [x], **options)
    return x, report


def test_lanes_part_and_meet():
    """Each lane loops as often as its number says; the shuffle needs all lanes back."""
    text = kernel(f"""
        {ELEMENT}
        mov.u32 %r2, 0; mov.u32 %r3, 0;
        LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;
        add.u32 %r3, %r3, %r2; add.u32 %r2, %r2, 1; bra LOOP;
        DONE: shfl.sync.bfly.b32 %r4, %r3, 1, 31, 0xffffffff;
        st.global.u32 [%d2], %r4;""")
    x, report = run(text)
    lanes = np.arange(64) ^ 1
    assert np.array_equal(x, lanes * (lanes - 1) // 2)
    assert report.divergences > 32 and report.not_run == ()


def test_guarded_return_of_some_lanes():
    text = kernel(f"""
        {ELEMENT} and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1; @%p1 ret;
        activemask.b32 %r3; st.global.u32 [%d2], %r3;""")
    x, _ = run(text)
    assert np.array_equal(x[::2], np.full(32, 0x55555555)) and np.array_equal(x[1::2] % 2, [1] * 32)


FUNCTIONS = """
.func (.param .b32 r) square(.param .b32 a) {
 .reg .b32 %r<3>; ld.param.b32 %r1, [a]; mul.lo.s32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }
.func (.reg .b32 r) magnitude(.reg .b32 a) {
 .reg .pred %p<2>; setp.lt.s32 %p1, a, 0; @%p1 bra NEGATIVE; mov.b32 r, a; ret;
 NEGATIVE: neg.s32 r, a; ret; }
.func sum(.param .b64 at, .param .align 8 .b8 pair[8]) {
 .reg .b32 %r<4>; .reg .b64 %d<2>; ld.param.b64 %d1, [at]; ld.param.v2.b32 {%r1, %r2}, [pair];
 add.s32 %r3, %r1, %r2; st.global.b32 [%d1], %r3; ret; }
"""


def test_calls():
    body = f"""
        {ELEMENT} sub.s32 %r2, %r1, 20;
        call (%r3), magnitude, (%r2);
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r3;
           call.uni (b), square, (a); ld.param.b32 %r4, [b]; }}
        {{ .param .b64 at; .param .align 8 .b8 pair[8]; st.param.b64 [at], %d2;
           st.param.v2.b32 [pair], {{%r3, %r4}}; call.uni sum, (at, pair); }}"""
    x, _ = run(kernel(body, functions=FUNCTIONS))
    distance = np.abs(np.arange(64) - 20)
    assert np.array_equal(x, distance + distance**2)


def test_recursion_is_refused():
    functions = ".func again() { call.uni again; ret; }"
    with pytest.raises(ptx.UnsupportedError, match="recursion is not covered: again"):
        run(kernel("call.uni again;", functions=functions))


def test_local_memory_and_generic_addresses():
    text = kernel(
        f"""
        .local .align 8 .b8 mine[16]; .shared .align 8 .b8 ours[256];
        {ELEMENT} mov.u64 %d3, mine; cvta.local.u64 %d4, %d3;
        st.local.u32 [%d3+4], %r1; ld.u32 %r2, [%d4+4];
        mov.u32 %r5, ours; shl.b32 %r6, %r1, 2; add.u32 %r5, %r5, %r6;
        cvt.u64.u32 %d5, %r5; cvta.shared.u64 %d6, %d5; st.u32 [%d6], %r2;
        cvta.to.shared.u64 %d7, %d6; ld.shared.u32 %r3, [%d7];
        cvta.to.global.u64 %d8, %d2; add.u32 %r3, %r3, 7; st.u32 [%d8], %r3;""",
    )
    x, _ = run(text)
    assert np.array_equal(x, np.arange(64) + 7)


def test_grid_and_block_of_three_axes():
    text = kernel("""
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
        mov.u32 %r4, %ctaid.y; mov.u32 %r5, %ntid.y; mov.u32 %r6, %nctaid.y;
        mad.lo.u32 %r7, %r3, %r5, %r2; mad.lo.u32 %r7, %r7, 5, %r1;
        mad.lo.u32 %r8, %r4, 30, %r7; mul.wide.u32 %d2, %r8, 4; add.s64 %d2, %d1, %d2;
        mad.lo.u32 %r9, %r4, 100, %r7; mad.lo.u32 %r9, %r6, 1000, %r9; st.global.u32 [%d2], %r9;""")
    x, _ = run(text, 60, (5, 2, 3), (1, 2))
    assert np.array_equal(x, [2000 + 100 * b + t for b in range(2) for t in range(30)])


def test_variables_with_initial_values():
    shared = (
        ".const .align 4 .b32 table[4] = {7, 0x8, 9, 10}; .global .align 4 .f32 one = 0f3F800000;"
    )
    text = kernel(
        f"""{ELEMENT} and.b32 %r2, %r1, 3; mul.wide.u32 %d3, %r2, 4; mov.u64 %d4, table;
        add.s64 %d4, %d4, %d3; ld.const.u32 %r3, [%d4]; ld.global.f32 %f1, [one];
        cvt.rzi.u32.f32 %r4, %f1; add.u32 %r3, %r3, %r4; st.global.u32 [%d2], %r3;""",
        shared=shared,
    )
    x, _ = run(text)
    assert np.array_equal(x, 8 + np.arange(64) % 4)


def test_votes_reductions_and_matches():
    text = kernel(f"""
        {ELEMENT} setp.lt.u32 %p1, %r1, 40;
        vote.sync.all.pred %p2, %p1, 0xffffffff; vote.sync.any.pred %p3, !%p1, 0xffffffff;
        vote.sync.ballot.b32 %r2, %p1, 0xffffffff; redux.sync.add.u32 %r3, %r1, 0xffffffff;
        shr.u32 %r4, %r1, 4; match.any.sync.b32 %r5, %r4, 0xffffffff;
        selp.b32 %r6, 1, 0, %p2; selp.b32 %r7, 2, 0, %p3; add.u32 %r6, %r6, %r7;
        xor.b32 %r2, %r2, %r5; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r6;
        st.global.u32 [%d2], %r2;""")
    x, _ = run(text)
    match = np.where(np.arange(64) % 32 < 16, 0xFFFF, 0xFFFF0000)
    first = (0xFFFFFFFF ^ match[:32]) + 496 + 1
    second = (0xFF ^ match[32:]) + 496 + 1024 + 2
    assert np.array_equal(x, np.concatenate([first, second]) % 2**32)


ATOMICS = {  # operation: function of the old value and the lane
    "add.u32": lambda old, lane: old + lane,
    "min.s32": min,
    "max.u32": max,
    "and.b32": lambda old, lane: old & lane,
    "or.b32": lambda old, lane: old | lane,
    "xor.b32": lambda old, lane: old ^ lane,
    "exch.b32": lambda old, lane: lane,
    "inc.u32": lambda old, lane: 0 if old >= lane else old + 1,
    "dec.u32": lambda old, lane: lane if old == 0 or old > lane else old - 1,
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomic_operations(name, space):
    """Lanes follow one another in some order, here in that of their numbers."""
    place = "[%d1+128]" if space == "global" else "[%r6]"
    text = kernel(f"""
        .shared .align 4 .b8 s[4]; {ELEMENT} mov.u32 %r6, s; setp.eq.u32 %p1, %r1, 0;
        @%p1 st.shared.b32 [%r6], 9; bar.warp.sync 0xffffffff;
        atom.{space}.{name} %r2, {place}, %r1; st.global.b32 [%d2], %r2;""")
    x = np.full(33, 9, np.uint32)
    ptx.run(text, 1, 32, [x])
    olds = [9]
    for lane in range(32):
        olds.append(ATOMICS[name](olds[-1], lane))
    assert x[:32].tolist() == olds[:32]


def test_elect_names_one_lane_and_always_the_same():
    text = kernel(f"""
        {ELEMENT} elect.sync %r2|%p1, 0xffffffff; elect.sync _|%p2, 0xffffffff;
        selp.b32 %r3, 100, 0, %p1; selp.b32 %r4, 1000, 0, %p2; add.u32 %r2, %r2, %r3;
        add.u32 %r2, %r2, %r4; barrier.sync.aligned 0; st.global.b32 [%d2], %r2;""")
    leaders = set()
    for seed in range(20):
        x, _ = run(text, 32, 32, seed=seed)
        leader = int(x[0]) % 100
        assert x.tolist() == [leader + 1100 * (lane == leader) for lane in range(32)]
        leaders.add(leader)
    assert len(leaders) > 1  # the ISA does not say which


def test_registers_that_nobody_has_given_back():
    """512 threads have 128 registers each; a warpgroup may claim what another gives."""
    text = kernel("""
        mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 7; setp.eq.u32 %p1, %r2, 0; @%p1 bra GIVE;
        setp.eq.u32 %p2, %r2, 1; @!%p2 bra END;
        setmaxnreg.inc.sync.aligned.u32 192; bra END;
        GIVE: setmaxnreg.dec.sync.aligned.u32 64; END:""")
    for seed in range(4):
        run(text, 1, 512, seed=seed)
    with pytest.raises(ptx.PtxError, match=r"deadlock(.|\n)*waits for 2048 registers, of which"):
        run(text.replace("u32 64;", "u32 72;"), 1, 512)
    with pytest.raises(ptx.PtxError, match=r"setmaxnreg.dec 200, but the warp has 128"):
        run(text.replace("u32 64;", "u32 200;"), 1, 512)


def test_a_barrier_of_the_block_is_for_threads_that_have_not_ended():
    text = kernel(f"""
        {ELEMENT} setp.lt.u32 %p1, %r1, 32; @%p1 ret;
        bar.sync 0; add.u32 %r2, %r1, 1; st.global.u32 [%d2], %r2;""")
    for seed in range(8):
        x, _ = run(text, seed=seed)
        assert x.tolist() == [*range(32), *range(33, 65)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;", "tcgen05.alloc"),
        ("add.cc.u32 %r1, %r2, %r3;", r"add.cc.u32 is not covered"),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%e1}, {%e1}, {%e1}, {%e1};", "m8n8k4"),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;", "satfinite"),
        ("bar.red.popc.u32 %r1, 0, %p1;", "bar.red.popc"),
        (
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r1], 16;",
            "cp.reduce",
        ),
        ("brx.idx %r1, ts;", "brx.idx"),
        ("mov.u32 %r1, %pm0;", "the special register %pm0"),
        (".reg .b128 %q<2>;", "registers of type .b128"),
        ("fma.rn.f32.f16 %f1, %h1, %h2, %f2;", "fma.rn.f32.f16|modifier .f32"),
        ("call.uni (%r1), vprintf, (%d1, %d1);", "only calls of functions in the text"),
    ],
)
def test_what_is_not_covered_is_refused_by_name(body, said):
    with pytest.raises(ptx.UnsupportedError, match=said):
        run(kernel(body))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("st.global.u32 [%d1+2], %r1;", r"4 bytes at 0x\w+: not aligned to 4"),
        ("mov.u32 %r1, 5; st.global.u32 [%d1+256], %r1;", "lies in no array"),
        ("add.u32 %r2, %r3, 1; mov.u32 %r3, 0;", "a register that was never written"),
        (
            "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 5; @%p1 bra A; bra.uni B; "
            "A: bar.sync 0; B:",
            r"\.aligned, but of the warp only lanes \[0, 1, 2, 3, 4\]",
        ),
        ("bar.sync 1, 128;", r"deadlock(.|\n)*barrier 1: 64 of 128 threads"),
        ("LOOP: bra LOOP;", "a loop without end"),
        ("trap;", "trap, in lanes"),
        (
            "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 5; @!%p1 bra B; "
            "shfl.sync.idx.b32 %r2, %r1, 0, 31, 0xffffffff; B:",
            "names lanes .*, which are not here",
        ),
        ("bra NOWHERE;", "there is no label NOWHERE"),
        ("mov.u32 %r1, 7; setmaxnreg.inc.sync.aligned.u32 7;", "no multiple of 8"),
        ("add.u32 %r1, 2;", "its operands do not fit"),
    ],
)
def test_what_ptx_leaves_undefined_is_an_error(body, said):
    with pytest.raises(ptx.PtxError, match=said):
        run(kernel(body), limit=2000)


def test_an_error_names_the_source():
    body = ".loc 1 12 5\n ld.global.u32 %r1, [%d1+1024];\n"
    text = kernel(body).replace(".address_size 64", '.address_size 64\n.file 1 "kernels/scale.py"')
    line = text.split("ld.global.u32")[0].count("\n") + 1
    with pytest.raises(ptx.PtxError, match=rf"warp \d, line {line} \(kernels/scale.py:12\): ld.g"):
        run(text)


def test_an_error_names_the_calls_that_were_inlined():
    """Three functions deep; then the innermost place again, which two calls share."""
    inner = ".loc 2 7 1, function_name $s, inlined_at 2 3 1\n"
    chain = ".loc 2 3 1, function_name $s, inlined_at 1 {} 5\n" + inner
    load = "ld.global.u32 %r1, [%d1{}];\n"
    first, second = (chain.format(line) for line in (30, 40))
    files = '.address_size 64\n.file 1 "k.cu"\n.file 2 "lib.h"'
    for body, said in (
        (f".loc 1 30 5\n {first} {load.format('+1024')}", "(lib.h:7, inlined at k.cu:30)"),
        (
            f"{first} {load.format('')} {second} {load.format('')} {inner} {load.format('+1024')}",
            "(lib.h:7, inlined at k.cu:30 or k.cu:40)",
        ),
        (f"{first} .loc 1 9 1\n {load.format('+1024')}", "(k.cu:9)"),
    ):
        with pytest.raises(ptx.PtxError, match=re.escape(said)):
            run(kernel(body).replace(".address_size 64", files))


def test_arguments_are_checked():
    text = kernel("ret;", ".param .u64 x, .param .u32 n")
    with pytest.raises(ptx.PtxError, match="1 arguments for the parameters x, n"):
        ptx.run(text, 1, 32, [None])
    with pytest.raises(ptx.PtxError, match="the parameter n has 4 bytes, the argument 8"):
        ptx.run(text, 1, 32, [None, np.zeros(3)])
    with pytest.raises(ptx.PtxError, match="must be contiguous"):
        ptx.run(text, 1, 32, [np.zeros((4, 4))[:, :2], 1])
    with pytest.raises(ptx.PtxError, match="PTX for sm_90a does not run on sm_100a"):
        ptx.run(text, 1, 32, [None, 1], "sm_100a")
    with pytest.raises(ptx.PtxError, match="is no target"):
        ptx.run(text, 1, 32, [None, 1], "H100")
    ptx.run(text.replace("sm_90a", "sm_80"), 1, 32, [None, 1], "sm_120")


@pytest.mark.parametrize("kind", [int, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("real", [float, np.float32, np.float64])
def test_numpy_scalars_are_numbers(kind, real):
    """Such as products of a shape: a parameter has its own size, whatever that of the scalar."""
    body = "ld.param.u32 %r1, [n]; ld.param.f32 %f1, [f]; st.global.v2.b32 [%d1], {%r1, %f1};"
    x = np.zeros(2, np.uint32)
    text = kernel(body, ".param .u64 x, .param .u32 n, .param .f32 f")
    ptx.run(text, 1, 1, [x, kind(5), real(2.5)])
    assert (x[0], x.view(np.float32)[1]) == (5, 2.5)


def test_an_entry_is_chosen_by_name():
    text = kernel(f"{ELEMENT} st.global.u32 [%d2], 5;")
    other = text.split(".visible")[1].replace("entry k", "entry other").replace("], 5;", "], 6;")
    with pytest.raises(ptx.PtxError, match=r"selects 2 entries; the text has k, other"):
        run(text + ".visible" + other)
    x, _ = run(text + ".visible" + other, entry="other")
    assert (x == 6).all()


def test_a_deadlock_names_barriers_by_their_variables_and_lines_of_the_source():
    body = """.shared .align 8 .b8 full[8]; mov.u32 %r2, full;
    mbarrier.init.shared.b64 [%r2], 1;
    .loc 1 12 5
    WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0; @!%p3 bra WAIT;
    """
    text = kernel(body) + '\n.file 1 "/src/pipe.cu"\n'
    with pytest.raises(ptx.PtxError) as caught:
        ptx.run(text, 1, 1, [None])
    said = str(caught.value)
    assert "pipe.cu:12); it waits for mbarrier at shared 0x408 (full + 0) phase 0" in said


def test_a_deadlock_names_who_has_arrived():
    body = """.shared .align 8 .b8 full[8]; mov.u32 %r2, full;
    mov.u32 %r1, %tid.x; shr.u32 %r3, %r1, 5; setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r2], 96; bar.sync 0;
    setp.eq.u32 %p2, %r3, 1; @%p2 bra LAST;
    mbarrier.arrive.shared.b64 _, [%r2];
    WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0; @!%p3 bra WAIT;
    LAST: bar.sync 2, 96;"""
    with pytest.raises(ptx.PtxError) as caught:
        ptx.run(kernel(body), 1, 96, [None])
    said = str(caught.value)
    assert "lacks 32 of 96 arrivals and 0 bytes (warps 0, 2 arrived)" in said
    assert "barrier 2: 32 of 96 threads (warp 1 arrived)" in said
