"""Faults that are planted in the PTX of the GPU kernels, and what the interpreter says of each.

A fault is a change of the text. `said` is a pattern for the first outcome that shows it: a message,
or "wrong values".
"""

import re
from typing import NamedTuple

WAIT = (
    r"\{ \.reg \.pred P; LAB_WAIT: mbarrier\.(?:try|test)_wait\.parity\.shared::cta\.b64 P, "
    r"\[(%r\d+)\], (%r\d+); @P bra DONE; bra LAB_WAIT; DONE: \}"
)
TENSOR = r"cp\.async\.bulk\.tensor\.4d"


class Fault(NamedTuple):
    """A change of the text of a family's kernels: `pattern` becomes `replacement`.

    `place` selects one of its places, counted from 0 or from the end; None means all of them.
    """

    name: str
    family: str
    pattern: str
    replacement: object
    said: str
    place: int | None = None

    def planted(self, text):
        """The text with the fault."""
        if self.place is None:
            return re.sub(self.pattern, self.replacement, text)
        found = list(re.finditer(self.pattern, text))
        if len(found) < abs(self.place):
            return text
        match = found[self.place]
        new = match.expand(self.replacement)
        return text[: match.start()] + new + text[match.end() :]


def double_stride(match):
    """The stride of a descriptor constant (bits 32 to 45, in units of 16 bytes) times two."""
    value = int(match[2]) % (1 << 64)
    value = (value & ~(0x3FFF << 32)) | (((value >> 32) & 0x3FFF) * 2 << 32)
    return f"or.b64{match[1]}, {value - (1 << 64) if value >> 63 else value};"


LOAD = rf"({TENSOR}[^;]*\]), \{{(%rs\d+), (%rs\d+)\}};"
BEFORE_MULTIPLY = r"(?=(?:(?!\n\$L)[\s\S]){0,3000}?(?:ldmatrix|wgmma\.fence))"
INIT = r"(@p mbarrier\.init\.shared::cta\.b64 \[%r\d+\]), (%r\d+|\d+);"
POLL_ONCE = r"{ .reg .pred P; mbarrier.try_wait.parity.shared::cta.b64 P, [\1], \2; }"
WRONG, DEADLOCK = "wrong values", "deadlock"
FAULTS = (
    Fault("offsets of an im2col copy swapped", "tma-mma", LOAD, r"\1, {\3, \2};", WRONG),
    Fault("halo and offset of im2col::w swapped", "tma-w-mma", LOAD, r"\1, {\3, \2};", DEADLOCK),
    Fault(
        "coordinates w and h swapped",
        "tma-mma",
        rf"({TENSOR}[^{{]*\{{%r\d+), (%r\d+), (%r\d+),",
        r"\1, \3, \2,",
        WRONG,
    ),
    Fault(
        "expect_tx of 1024 bytes whatever is loaded",
        "tma-mma",
        r"(arrive\.expect_tx[^;]*), %r\d+;",
        r"\1, 1024;",
        DEADLOCK,
    ),
    Fault(
        "expect_tx 64 bytes short",
        "tma-mma",
        r"(mbarrier\.arrive\.expect_tx[^,;]*_, )(\[%r\d+\]), (%r\d+);",
        r"{ .reg .u32 t; sub.u32 t, \3, 64; \1\2, t; }",
        DEADLOCK,
    ),
    Fault(
        "no wgmma.commit_group",
        "tma-wgmma",
        r"wgmma\.commit_group[^;]*;",
        "",
        "asynchronous operation is reading",
    ),
    Fault(
        "rows are read before all are staged",
        "rows-mma",
        r"barrier\.sync\.aligned 0;",
        "",
        r"no bar\.warp\.sync in between|never written",
    ),
    Fault(
        "two filters are staged in each other's place",
        "rows-mma",
        r"(st\.shared\.v2\.b32 \[%r\d+\]), \{(%r\d+), (%r\d+)\};",
        r"\1, {\3, \2};",
        WRONG,
        0,
    ),
    Fault(
        "the second output row has the windows of the first",
        "rows-mma",
        r"(mma\.sync[^;]*?, \{)(%r\d+)(, [^;]*;)",
        r"\1 0\3",
        WRONG,
        -1,
    ),
    Fault("no wgmma.fence", "tma-wgmma", r"wgmma\.fence[^;]*;", "", "no wgmma.fence"),
    Fault(
        "wgmma.wait_group 1",
        "tma-wgmma",
        r"wait_group\.sync\.aligned 0",
        "wait_group.sync.aligned 1",
        "asynchronous operation is reading",
    ),
    Fault(
        "swizzle of ldmatrix shifted by one",
        "tma-mma",
        r"shr\.u32(\s+%r\d+, %r\d+), 3;(\s+and\.b32\s+%r\d+, %r\d+, (?:48|112);)",
        r"shr.u32\1, 4;\2",
        WRONG,
    ),
    Fault(
        "swizzle of the cp.async producer shifted by one",
        "cp_async-mma",
        r"shr\.u32(\s+%r\d+, %r\d+), 3;"
        r"(\s+and\.b32[^;]*;\s+xor\.b32[^;]*;\s+//[^\n]*\s+cp\.async)",
        r"shr.u32\1, 4;\2",
        WRONG,
    ),
    Fault(
        "consumer does not wait for full", "tma-mma", WAIT + BEFORE_MULTIPLY, "", "never written"
    ),
    Fault(
        "consumer does not wait for cp.async",
        "cp_async-mma",
        WAIT + BEFORE_MULTIPLY,
        "",
        "never written",
    ),
    Fault(
        "producer does not wait for empty",
        "tma-mma",
        WAIT + r"(?=(?:(?!\n\$L|LAB_WAIT)[\s\S]){0,1500}?mbarrier\.arrive\.expect_tx)",
        "",
        "1 arrivals, but only 0",
    ),
    Fault(
        "producer of cp.async does not wait for empty",
        "cp_async-mma",
        WAIT + r"(?=(?:(?!LAB_WAIT)[\s\S]){0,9000}?cp\.async\.cg)",
        "",
        "a copy is about to write",
    ),
    Fault(
        "producer of elements does not wait for empty",
        "elements-mma",
        WAIT + r"(?=(?:(?!LAB_WAIT|ldmatrix)[\s\S]){0,30000}?st\.shared\.v4)",
        "",
        "has not released it",
    ),
    Fault(
        "a1 and a2 of mma swapped",
        "tma-mma",
        r"(mma\.sync[^}]*\}, \{%r\d+), (%r\d+), (%r\d+),",
        r"\1, \3, \2,",
        WRONG,
    ),
    Fault(
        "b0 and b1 of mma swapped",
        "tma-mma",
        r"(mma\.sync[^}]*\}, \{[^}]*\}), \{(%r\d+), (%r\d+)\}",
        r"\1, {\3, \2}",
        WRONG,
    ),
    Fault(
        "descriptors with a stride of 16 rows",
        "tma-wgmma",
        r"or\.b64(\s+%rd\d+, %rd\d+), (-?\d{18,20});",
        double_stride,
        "a copy is about to write",
    ),
    Fault(
        "second k step of wgmma 16 bytes too early",
        "tma-wgmma",
        r"add\.s64 a, (%rd\d+), 2;",
        r"add.s64 a, \1, 1;",
        WRONG,
    ),
    Fault(
        "no fence.mbarrier_init",
        "tma-mma",
        r"fence\.mbarrier_init[^;]*;",
        "",
        "no fence.mbarrier_init",
    ),
    Fault(
        "no elect",
        "tma-mma",
        r"elect\.sync _\|p, 0xffffffff; selp\.u32 (%r\d+), 1, 0, p;",
        r"mov.u32 \1, 1;",
        "32 arrivals, but only 1",
    ),
    Fault(
        "all lanes release",
        "tma-mma",
        r"@p (mbarrier\.arrive\.shared)",
        r"\1",
        "32 arrivals, but only",
    ),
    Fault(
        "a stage is never released", "tma-mma", r"@p mbarrier\.arrive\.shared[^;]*;", "", DEADLOCK
    ),
    Fault("arrive without .noinc", "cp_async-mma", r"arrive\.noinc", "arrive", DEADLOCK),
    Fault(
        "cp.async always reads 16 bytes",
        "cp_async-mma",
        r"(cp\.async\.cg[^;]*), 16, %r\d+;",
        r"\1, 16, 16;",
        WRONG,
    ),
    Fault(
        "cp.async of words always reads them",
        "cp_async-words",
        r"(cp\.async\.ca[^;]*), ([48]), %r\d+;",
        r"\1, \2, \2;",
        WRONG,
    ),
    Fault(
        "words of a chunk copied in another order",
        "cp_async-words",
        r"cp\.async\.ca\.shared\.global \[(%r\d+)\]",
        r"xor.b32 \1, \1, 4; \g<0>",
        "about to write|never written",
        0,
    ),
    Fault(
        "words of a 16-byte store swapped",
        "tma-mma",
        r"(st\.global\.v4\.b32 \[%rd\d+\], \{)(%r\d+), (%r\d+)",
        r"\1\3, \2",
        WRONG,
    ),
    Fault(
        "a signed comparison made unsigned",
        "cp_async-mma",
        r"setp\.gt\.s64(\s+%p\d+, %rd\d+, -1)",
        r"setp.gt.u64\1",
        WRONG,
    ),
    Fault(
        "no barrier.sync of the block",
        "tma-mma",
        r"barrier\.sync\.aligned 0;",
        "",
        "no mbarrier was initialised",
    ),
    Fault(
        "no bar.warp.sync",
        "tma-mma",
        r"bar\.warp\.sync 0xffffffff;",
        "",
        "with no barrier in between: bar.sync, or bar.warp.sync",
    ),
    Fault(
        "tensor maps exchanged",
        "tma-mma",
        rf"({TENSOR}[^,]*\], \[)%rd1,",
        r"\1%rd2,",
        "its tensor map is for tile",
    ),
    Fault(
        "accumulators of mma swapped",
        "tma-mma",
        r"(mma\.sync[^{]*\{)(%f\d+), (%f\d+)",
        r"\1\3, \2",
        WRONG,
    ),
    Fault(
        "mbarriers expect an arrival more",
        "tma-mma",
        INIT,
        r"{ .reg .u32 t; add.u32 t, \2, 1; \1, t; }",
        DEADLOCK,
    ),
    Fault(
        "mbarriers expect an arrival of a warp less",
        "tma-wgmma",
        INIT,
        r"{ .reg .u32 t; max.u32 t, \2, 2; sub.u32 t, t, 1; \1, t; }",
        "a copy is about to write",
    ),
    Fault(
        "consumer waits for the other parity",
        "tma-mma",
        WAIT + BEFORE_MULTIPLY,
        r"{ .reg .pred P; .reg .u32 t; xor.b32 t, \2, 1; LAB_WAIT: "
        r"mbarrier.try_wait.parity.shared::cta.b64 P, [\1], t; @P bra DONE; bra LAB_WAIT; DONE: }",
        "never written",
    ),
    Fault(
        "consumer polls once",
        "tma-mma",
        WAIT + BEFORE_MULTIPLY,
        POLL_ONCE,
        "no barrier orders it after its writer",
    ),
    Fault(
        "producer polls once",
        "tma-wgmma",
        WAIT + r"(?=(?:(?!\n\$L|LAB_WAIT)[\s\S]){0,1500}?im2col)",
        POLL_ONCE,
        "has not released it",
    ),
    Fault(
        "no wgmma.wait_group",
        "tma-wgmma",
        r"wgmma\.wait_group[^;]*;",
        "",
        "asynchronous operation is reading",
    ),
    Fault(
        "wgmma does not accumulate",
        "tma-wgmma",
        r"setp\.ne\.b32 p, 1, 0;",
        "setp.eq.b32 p, 1, 0;",
        WRONG,
    ),
    Fault("wgmma negates A", "tma-wgmma-registers", r"p, 1, 1, 0;", "p, -1, 1, 0;", WRONG),
    Fault(
        "row table rewritten while it is read",
        "cp_async-mma",
        r"bar\.sync [^;]*;",
        "",
        "row table.*has not released it",
        0,
    ),
    Fault(
        "row table read before it is written",
        "cp_async-mma",
        r"bar\.sync [^;]*;",
        "",
        "row table.*never written",
        1,
    ),
    Fault(
        "bar.sync for 96 of 128 threads",
        "cp_async-mma",
        r"bar\.sync ([^;]*), (?:%r\d+|128);",
        r"bar.sync \1, 96;",
        "row table.*never written",
    ),
    Fault("ldmatrix transposes", "tma-mma", r"x4\.shared", "x4.trans.shared", WRONG),
    Fault(
        "values of a staging store swapped",
        "tma-mma",
        r"(st\.shared\.v2\.f32 \[[^]]*\], \{)(%f\d+), (%f\d+)",
        r"\1\3, \2",
        WRONG,
    ),
    Fault(
        "a copy completes on the empty barrier",
        "tma-mma",
        r"(cp\.async\.bulk\.tensor\.3d[^;]*\], \[%r\d+)\]",
        r"\1+8]",
        DEADLOCK,
    ),
    Fault(
        "expect_tx arrives twice",
        "tma-mma",
        r"(mbarrier\.arrive)\.expect_tx(\.shared::cta\.b64 _, \[%r\d+\]), %r\d+;",
        r"\g<0> \1\2;",
        "1 arrivals, but only 0",
    ),
    Fault(
        "a relaxed release",
        "tma-mma",
        r"@p mbarrier\.arrive\.shared",
        "@p mbarrier.arrive.relaxed.cta.shared",
        "has not released it",
    ),
    Fault(
        "a relaxed wait",
        "tma-mma",
        r"try_wait\.parity\.shared",
        "try_wait.parity.relaxed.cta.shared",
        "no barrier orders it after its writer",
    ),
    Fault(
        "arrival before cp.async is complete",
        "cp_async-mma",
        r"cp\.async\.mbarrier\.arrive\.noinc\.shared::cta\.b64",
        "mbarrier.arrive.shared::cta.b64 _,",
        "a copy is about to write",
    ),
    Fault(
        "second step of ldmatrix adds instead of xor",
        "cp_async-mma",
        r"xor\.b32(\s+%r\d+, %r\d+, 32;)",
        r"add.s32\1",
        "no barrier orders it after its writer",
    ),
    Fault(
        "one product of fma is of other operands",
        "fma",
        r"fma\.rn\.f32 (%f\d+), (%f\d+), (%f\d+), (%f\d+);",
        r"fma.rn.f32 \1, \2, \2, \4;",
        WRONG,
        40,
    ),
    Fault(
        "columns of a word swapped",
        "tma-mma",
        r"(cvt\.rn\.bf16x2\.f32 %r\d+), (%f\d+), (%f\d+);",
        r"\1, \3, \2;",
        WRONG,
    ),
    Fault(
        "words of the lower rows staged over those of the upper rows",
        "tma-mma",
        r"(st\.shared\.b32 \[t)\+512\]",
        r"\1+0]",
        WRONG,
    ),
    Fault(
        "a division rounds up",
        "tma-mma",
        r"(mul\.hi\.u32 twice, twice, multiplier); shr",
        r"\1; add.u32 twice, twice, 1; shr",
        "wrong values|written|lies in no array|deadlock",
    ),
    Fault(
        "y one element too far",
        "cp_async-mma",
        r"st\.global\.b16 \[(%rd\d+)\]",
        r"st.global.b16 [\1+2]",
        "lies in no array",
    ),
    Fault(
        "all columns multiply by the taps of the first",
        "direct",
        r"(ld\.shared\.v4\.f32 \{w0[^]+]*)\+[1-9]\d*\]",
        r"\1+0]",
        WRONG,
    ),
    Fault(
        "columns left of the image are inside",
        "direct",
        r"setp\.lt\.u32( p, %r\d+, %r\d+; mov)",
        r"setp.lt.s32\1",
        "wrong values|lies in no array",
    ),
    Fault(
        "pixels are loaded without a check of bounds",
        "direct",
        r"@p (ld\.global\.nc\.v4)",
        r"\1",
        "wrong values|lies in no array",
    ),
    Fault(
        "image rows are not checked",
        "direct",
        r"selp\.b32(\s+%r\d+), (%r\d+), 0, %p\d+;",
        r"mov.b32\1, \2;",
        "wrong values|lies in no array",
    ),
    Fault(
        "filters have the biases of those four before",
        "direct",
        r"(ld\.shared\.v4\.f32 \{%f[^]+]*)\+[1-9]\d*\]",
        r"\1+0]",
        WRONG,
    ),
    Fault(
        "products are of the next filter's pixels",
        "direct",
        r"fma\.rn\.f32 (%f\d+), %f\d+, w1, (%f\d+);(\s+)fma\.rn\.f32 (%f\d+), (%f\d+), w2,",
        r"fma.rn.f32 \1, \5, w1, \2;\3fma.rn.f32 \4, \5, w2,",
        WRONG,
    ),
    Fault(
        "filters are replaced while they are used",
        "direct",
        r"barrier\.sync\.aligned 0;",
        "",
        "filters",
        0,
    ),
    Fault(
        "filters are used before they are staged",
        "direct",
        r"barrier\.sync\.aligned 0;",
        "",
        "filters",
        1,
    ),
    Fault(
        "filters of a direct kernel swapped in a word",
        "direct",
        r"(cvt\.rn\.bf16x2\.f32 %r\d+), (%f\d+), (%f\d+);",
        r"\1, \3, \2;",
        WRONG,
    ),
)
