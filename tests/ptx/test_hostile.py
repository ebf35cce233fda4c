"""Texts of strangers: an error with line and limit, before memory or time is spent."""

import random
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from hang import no_hang
from ptx_texts import ELEMENT, kernel
from sampling import count, sampled
from text_mutants import mutated

from implicit_conv import ptx, tma
from implicit_conv.tools.cli import main

MEMORY = 2 << 30  # bytes that a text may take beyond what the process has
T40 = 1 << 40


@pytest.fixture
def little_memory():
    """An allocation of more than `MEMORY` is a MemoryError, as on a small machine."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def run(text, grid=1, block=32, **options):
    return ptx.run(text, grid, block, [np.zeros(64, np.uint32)], **options)


def doubling(body, depth=25):
    first = f".func f0() {{ {body} }}\n"
    calls = (f".func f{i}() {{ call f{i - 1}; call f{i - 1}; }}\n" for i in range(1, depth + 1))
    return kernel(f"call f{depth};", functions=first + "".join(calls))


def chain(depth):
    calls = (f".func f{i}() {{ call f{i - 1}; }}\n" for i in range(1, depth + 1))
    return kernel(f"call f{depth};", functions=".func f0() { ret; }\n" + "".join(calls))


# A body is line 11; what `shared` and `functions` add is line 5, and 6 and more.
WAITS = "mbarrier.init.shared.b64 [s], 1; fence.mbarrier_init.release.cluster; "
TEXTS = {  # name: (text, the error)
    "registers": (kernel(".reg .b64 %q<100000000>;"), r"line 11: 100000000 more registers"),
    "registers by calls": (
        doubling(".reg .b32 %q<1000>;", 12),
        r"line \d+: 1000 more registers, but 262144",
    ),
    "registers without end": (kernel(f".reg .b32 %q<{'9' * 9999}>;"), "line 11: the number '999"),
    "block size": (kernel(f".shared .b8 s[{T40}];"), r"line 11: s has 1099511627776 bytes"),
    "shared 1 GiB": (kernel(".shared .b8 s[1073741824];"), r"line 11: s has 1073741824 bytes"),
    "shared, of both": (
        kernel(".shared .b8 s[200000]; .shared .b8 t[200000];"),
        r"\.shared variables of k have 4",
    ),
    "shared, many axes": (kernel(f".shared .b8 s{'[99999]' * 999};"), "line 11: s has"),
    "local": (kernel(f".local .b8 s[{T40}];"), "line 11: s has 1099511627776 bytes"),
    "argument": (kernel(f"{{ .param .b8 s[{T40}]; }}"), "line 11: s has 1099511627776 bytes"),
    "global": (kernel("", shared=f".global .b8 s[{T40}];"), "line 5: s has 1099511627776 bytes"),
    "globals": (
        kernel("", shared="".join(f".global .b8 s{n}[999999999];" for n in range(999))),
        r"\.global variables of k have 998999999001 bytes",
    ),
    "const": (kernel("", shared=".const .b8 s[65537];"), "line 5: s has 65537 bytes"),
    "alignment": (kernel(f".shared .align {T40} .b8 s[4];"), "1099511627776 is no power of two"),
    "alignment of nothing": (kernel(".shared .align 48 .b8 s[4];"), "48 is no power of two"),
    "alignment of parameters": (
        kernel("", parameters=".param .align 131072 .b8 x[4]"),
        "131072 is no power of two",
    ),
    "parameters": (
        kernel("", parameters=".param .b8 x[99999999]"),
        "line 8: k takes 99999999 bytes of param",
    ),
    "calls that double": (doubling("ret;"), r"line \d+: with f\d+ inlined .* 131072 is the most"),
    "empty calls that double": (doubling(""), r"line \d+: with f\d+ inlined the kernel k has"),
    "long calls that double": (
        doubling(f"mov.u32 %r1, {'1' * 100_000};", 12),
        "line 6: the operand '111|characters",
    ),
    "a chain of calls": (chain(400), "line .*has 101 calls inside each other; 100 is the most"),
    "braces": (kernel("{" * 100_000 + "}" * 100_000), "line 11: more than 100 braces inside"),
    "braces that stay open": (kernel("{" * 100_000), "line 8: a body has no closing brace"),
    "braces that do not match": (kernel('{ .pragma "x" };'), "line 8: braces do not match"),
    "no pair": (kernel("elect.sync %p1, 0xffffffff;"), "line 11: .* operands do not fit"),
    "a vector of three": (kernel("ld.global.b32 {%r1, %r2, %r3}, [%d1];"), "vector of 3 elements"),
    "too few operands": (kernel("shfl.sync.idx.b32 %r1, %r2;"), "line 11: .* operands do not fit"),
    "too few of a wait": (kernel("bar.sync;"), "line 11: .* it has 0 operands, and takes 1 to 2"),
    "parentheses": (
        kernel("", shared=f".global .u32 a = {'(' * 100_000}1{')' * 100_000};"),
        r"line 5: the init",
    ),
    "brackets": (
        kernel(f"ld.global.u32 %r1, {'[' * 50_000}%d1{']' * 50_000};"),
        r"line 11: the address '\[+",
    ),
    "vectors": (
        kernel(f"mov.b64 %d1, {'{' * 50_000}%r1{'}' * 50_000};"),
        r"line 11: the operand '\{+",
    ),
    "negations": (kernel(f"mov.u32 %r1, {'!' * 50_000}%p1;"), "line 11: the operand '!+"),
    "bars": (kernel("mov.u32 %r1|%r2|%r3, 1;"), r"line 11: the operand '%r2\|%r3' is"),
    "a number": (kernel(f"mov.u32 %r1, {'1' * 1_000_000};"), "line 11: the operand '1+"),
    "a number in hex": (kernel(f"mov.u32 %r1, 0x{'f' * 100_000};"), "line 11: the operand '0xf+"),
    "an octal number": (kernel("mov.u32 %r1, 089;"), "line 11: the operand '089' is not"),
    "an initialiser": (
        kernel("", shared=f".global .u32 a = {'1' * 100_000};"),
        "line 5: the initialiser '1+",
    ),
    "an offset": (kernel(f"ld.global.u32 %r1, [%d1+{1 << 40}];"), "the offset '1099511627776' has"),
    "an offset in words": (kernel("ld.global.u32 %r1, [%d1+x];"), "line 11: the address"),
    "white space": (kernel(f"call f {' ' * 200_000}x;"), "line 11: call f x: only"),
    "parameters that never end": (
        ".version 8.0\n.target sm_80\n.entry k(" + ".param " * 50_000 + ") { ret; }",
        "line 3: a declaration has 350011 characters",
    ),
    "comments": ("/*" * 200_000, r"line 1: not understood: \*"),
    "an open comment": ("/* " * 200_000, "this is no PTX"),
    "quotes": ('.file 1 "' + "\\" * 200_000, "this is no PTX"),
    "functions without a statement": (
        kernel("bra NOWHERE;", functions=".func f() {}" * 50_000),
        "no label NOWHERE",
    ),
    "no semicolon": (kernel("").replace("ret;", "ret"), "line 12: no semicolon ends"),
    "no semicolon in a variable": (".target sm_80\n.global .u32 a = {1", "line 2: no semicolon"),
    "an open section": (".target sm_80\n.section x; y", "line 1: a body has no closing brace"),
    "an opcode": (kernel(f"add{'.x' * 50_000} %r1, %r1, 1;"), r"line 11: add\.x"),
    "a label": (kernel(f"bra {'L' * 50_000};"), "line 11: bra L+: there is no label L+"),
    "a target": (kernel("").replace("sm_90a", "sm_" + "9" * 9999), "no target"),
    "a text": (" " * (1 << 24) + kernel(""), "the text has 16777\\d+ characters; 16777216 is"),
    "an endless loop": (kernel("L: bra L;"), "more than 1 seconds: a loop without end"),
    "a loop of sleep": (kernel("L: nanosleep.u32 9; bra L;"), "more than 1 seconds"),
    "a loop of long blocks": (
        kernel("mov.u32 %r1, 0; L: " + "add.u32 %r1, %r1, 1;\n" * 5000 + "bra L;"),
        "more than 1 seconds",
    ),
    "a barrier that waits": (
        kernel(f"{ELEMENT} setp.lt.u32 %p1, %r1, 32; @%p1 bra L; bar.sync 0, 96; L: ret;"),
        "deadlock",
    ),
    "an mbarrier that waits": (
        kernel(
            f"mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 ret; {WAITS}"
            "L: mbarrier.try_wait.parity.shared.b64 %p2, [s], 0; @!%p2 bra L;",
            shared=".shared .align 8 .b8 s[8];",
        ),
        "deadlock",
    ),
    "an mbarrier that is tested": (
        kernel(
            f"mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 ret; {WAITS}"
            "L: mbarrier.test_wait.parity.shared.b64 %p2, [s], 0; @!%p2 bra L;",
            shared=".shared .align 8 .b8 s[8];",
        ),
        "deadlock",
    ),
    "a bulk copy": (
        kernel(
            f"mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 ret; {WAITS}"
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes "
            "[s], [%d1], 2147483632, [s];",
            shared=".shared .align 16 .b8 s[16];",
        ),
        "line 11: cp.async.bulk.*outside the block's shared memory",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name, little_memory):
    text, error = TEXTS[name]
    with no_hang(), pytest.raises(ptx.PtxError, match=f"(?s){error}") as caught:
        run(text, block=64, seconds=1, target="sm_90a")
    assert len(str(caught.value)) < 2000


LAUNCHES = [  # (options, the error)
    ({"block": 1025}, "at most"),
    ({"block": 1_000_000}, r"a block of \(1000000, 1, 1\): at least 1 and at most \(1024, 1024, 6"),
    ({"block": 2**31}, "a block of"),
    ({"block": (32, 32, 2)}, "2048 threads; a block has at most 1024"),
    ({"block": (1, 1, 65)}, "a block of"),
    ({"grid": 2**31}, r"the grid of \(2147483648, 1, 1\)"),
    ({"grid": 2**31 - 1, "seconds": 1}, r"block \d+: more than 1 seconds.*raise seconds="),
    ({"grid": (1, 65536)}, "the grid of"),
    ({"shared_bytes": 1 << 42}, "0 bytes of shared memory and 4398046511104 dynamic ones"),
    ({"shared_bytes": -1}, "-1 dynamic ones; a block has at most 232448"),
]


@pytest.mark.parametrize(("options", "error"), LAUNCHES)
def test_launches(options, error, little_memory):
    with no_hang(), pytest.raises(ptx.PtxError, match=f"(?s){error}"):
        run(kernel(""), **options)
    assert run(kernel(""), block=1024, shared_bytes=227 << 10).instructions == 2 * 32


def test_a_text_of_many_kernels(tmp_path, capsys):
    entries = (f".entry k{n}() {{ call f; ret; }}\n" for n in range(3000))
    body = "mov.u32 %r1, 0;" * 5000
    functions = f".func f() {{ .reg .b32 %r<2>; {body} }}\n" + "".join(entries)
    (tmp_path / "many.ptx").write_text(kernel("", functions=functions))
    with no_hang():
        assert main(["ptx", "check", str(tmp_path / "many.ptx"), "--seconds", "0.5"]) == 2
    assert re.search(r"\d+ of 3001 kernels were checked in 0.5 s.*name", capsys.readouterr().err)


def test_check_kernel_has_the_same_limit():
    with no_hang():
        report = tma.check_kernel(kernel("L: bra L;"), 1, 32, [None], seconds=0.5)
    assert "more than 0.5 seconds" in report.error


def test_errors_of_the_caller_are_not_those_of_the_text():
    """What `watch` raises comes out as it is."""
    text, arguments = next(pair for pair in valid() if "load(" in pair[0])

    def watch(_):
        raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="own"):
        ptx.run(text, 1, 64, arguments, "sm_90a", watch=watch)


def test_a_file_without_an_end_is_not_read_whole(capsys, little_memory):
    with no_hang():
        assert main(["ptx", "check", "/dev/zero"]) == 2
    assert "/dev/zero has more than 16777216 characters" in capsys.readouterr().err


DOCS = Path(__file__).parents[2] / "docs/how-to/ptx.md"
CALLS = kernel(
    f"""{ELEMENT} call (%r3), magnitude, (%r1); .local .align 8 .b8 mine[16];
    mov.u64 %d3, mine; st.local.v2.u32 [%d3+8], {{%r3, 7}}; ld.local.u32 %r4, [%d3+8];
    setp.lt.s32 %p1|%p2, %r4, 0x10; @!%p1 bra L; cvt.rn.f32.u32 %f1, %r4; fma.rn.f32 %f2, %f1,
    0f3F800000, 0.5; L: shfl.sync.bfly.b32 %r5|%p3, %r4, 1, 31, -1; atom.global.add.u32 %r6, [%d2],
    %r5; bar.warp.sync 0xffffffff; barrier.sync 1, 64; st.global.u32 [%d2], %r6;""",
    shared=".const .align 4 .u32 table[4] = {1, 2, 0x3, 04}; // a table",
    functions=""".func (.reg .b32 r) magnitude(.reg .b32 a) { .reg .pred %p<2>;
        setp.lt.s32 %p1, a, 0; @%p1 bra NEGATIVE; mov.b32 r, a; ret;
        NEGATIVE: neg.s32 r, a; ret; }""",
)


def valid():
    """(a kernel's text, its arguments) of each kernel in the documentation, and one with calls."""
    texts = re.findall(r'"""\n(\.version.*?)"""', DOCS.read_text("utf-8"), re.S)
    matrix = np.zeros((10, 16), np.float32)
    form = ptx.TensorMap("tile", 4, 0, dims=(16, 10), strides=(64,), steps=(1, 1), box=(8, 8))
    arguments = {
        "scale(": [np.zeros(64, np.float32), 0.5],
        "load(": [ptx.Tensor(form, matrix), np.zeros((8, 8), np.float32)],
    }
    for text in [*texts, CALLS]:
        named = [given for name, given in arguments.items() if name in text]
        yield text, named[0] if named else [np.zeros(128, np.uint32)]


def test_the_texts_that_are_changed_run():
    found = list(valid())
    assert len(found) == 5
    for text, arguments in found:
        if "reverse" not in text:
            assert ptx.run(text, 1, 64, arguments, "sm_90a").instructions


@sampled
def test_changed_texts():
    """They run, or are refused by the interpreter's own error, with a short message."""
    rng, texts, ran = random.Random(0), list(valid()), 0
    for number in range(count(1500, 100_000)):
        text, arguments = texts[number % len(texts)]
        text = mutated(text, rng)
        with no_hang():
            try:
                ptx.run(text, 1, 64, arguments, "sm_90a", limit=2000, seconds=10)
                ran += 1
            except ptx.PtxError as error:
                assert len(str(error)) < 10_000
            except Exception as error:
                raise AssertionError(f"text {number}:\n{text}") from error
    assert ran > number / 20
