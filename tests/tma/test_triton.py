"""A product of matrices that Triton compiled, unedited, in check_kernel: right, and with faults."""

import importlib.util
import re

import numpy as np
import pytest

from implicit_conv import tma

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]
M, N, K = 128, 64, 160
SIZES = {"BM": 64, "BN": 64, "BK": 32}
MAPS = {"a": ((64, 32), "64B"), "b": ((32, 64), "128B"), "c": ((64, 32), "128B")}


@pytest.fixture(scope="module")
def compiled():
    """(PTX, bytes of shared memory) of the kernel by_descriptors for sm_90a."""
    import triton
    import triton_kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {
        "a": "tensordesc<fp16[64, 32]>",
        "b": "tensordesc<fp16[32, 64]>",
        "c": "tensordesc<fp32[64, 64]>",
        **dict.fromkeys("MNK", "i32"),
        **dict.fromkeys(SIZES, "constexpr"),
    }
    source = ASTSource(fn=triton_kernels.by_descriptors, signature=types, constexprs=SIZES)
    options = {"num_warps": 4, "num_stages": 3}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return made.asm["ptx"], made.metadata.shared


def check(compiled, edit=lambda text: text, **swizzles):
    text, shared = compiled
    rng = np.random.default_rng(1)
    arrays = {
        "a": rng.integers(-3, 4, (M, K)).astype(np.float16),
        "b": rng.integers(-3, 4, (K, N)).astype(np.float16),
        "c": np.full((M, N), np.nan, np.float32),
    }
    arguments, places = [], {}
    for name, (box, swizzle) in MAPS.items():
        array = arrays[name]
        map = tma.TiledMap(
            shape=array.shape, dtype=array.dtype, box=box, swizzle=swizzles.get(name, swizzle)
        )
        places[name] = len(arguments)
        strides = [stride // array.itemsize for stride in array.strides]
        arguments += [tma.MapArgument(map, array), *array.shape, *strides]
    arguments += [M, N, K]
    count = len(re.findall(r"\.param", text[text.index(".entry") : text.index(")\n")]))
    arguments += [None] * (count - len(arguments))  # scratch memory
    expected = {places["c"]: arrays["a"].astype(np.float32) @ arrays["b"].astype(np.float32)}
    return tma.check_kernel(
        edit(text),
        (M // 64, N // 64),
        128,
        arguments,
        shared_bytes=shared,
        unfenced_barriers=True,
        expected=expected,
    )


def test_it_is_right(compiled):
    report = check(compiled)
    assert report.problems == [] and len(report.copies) > 20


@pytest.mark.parametrize("name", ["a", "b"])
def test_maps_without_the_swizzle_that_wgmma_reads(compiled, name):
    problems = check(compiled, **{name: "none"}).problems
    swizzle = MAPS[name][1]
    words = f"reads swizzle {swizzle}, but the copy wrote no swizzle; the copy is at line"
    assert any("triton_kernels.py:29)" in line and words in line for line in problems), problems
    assert any("elements differ from those expected" in line for line in problems)


def unwaited(text):
    """No thread waits for a phase of an mbarrier."""
    return text.replace("@!complete bra.uni waitLoop;", "")


def test_nobody_waits_for_the_copies(compiled):
    text = unwaited(compiled[0])
    assert text != compiled[0]
    report = check(compiled, unwaited)
    assert "triton_kernels.py:29)" in report.error and "wgmma" in report.error
    assert "written by a copy" in report.error or "a copy is about to write" in report.error


def exchanged(text):
    """The coordinates of the first copy, exchanged."""
    return re.sub(
        r"(cp\.async\.bulk\.tensor\.2d\.shared\S+ \[[^]]+\], \[[^{]+\{)(\S+), (\S+)(\}\])",
        r"\1\3, \2\4",
        text,
        count=1,
    )


def test_exchanged_coordinates(compiled):
    assert exchanged(compiled[0]) != compiled[0]
    problems = check(compiled, exchanged).problems
    assert any("elements differ from those expected" in line for line in problems), problems
