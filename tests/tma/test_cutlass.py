"""CUTLASS without a GPU: its descriptors are ours, and a kernel of CuTe runs, with faults too."""

import re
from pathlib import Path

import cuda_cpp
import numpy as np
import pytest

from implicit_conv import ptx, tma

pytestmark = pytest.mark.slow
ROWS = 64
# Swizzle, bytes of a row, and the K steps of cutlass_descriptors.cu, of K-major and MN-major tiles.
TILES = (("none", 16, 0, 0), ("32B", 32, 0, 1), ("64B", 64, 1, 2), ("128B", 128, 3, 3))


def test_descriptors():
    made = np.zeros(17, np.uint64)
    text = cuda_cpp.compile_cutlass("cutlass_descriptors.cu")
    ptx.run(text, 1, 1, [made], "sm_90a")
    dst, *theirs = made.tolist()
    ours = []
    for major in ("K", "MN"):
        for swizzle, span, *steps in TILES:
            map = tma.TiledMap(
                shape=(ROWS, span // 2), dtype="float16", box=(ROWS, span // 2), swizzle=swizzle
            )
            image = tma.smem_image(map, np.zeros(map.shape, map.dtype), (0, 0), dst=dst)
            step = steps[major == "MN"]
            first, byte = (0, 32 * step) if major == "K" else (16 * step, 0)
            leading = ROWS * span if major == "MN" or swizzle == "none" else None
            for instruction in ("wgmma", "tcgen05"):
                given = image.descriptor(instruction, first, byte, major=major, leading=leading)
                ours.append(given.value)
    assert [hex(value) for value in theirs] == [hex(value) for value in ours]
    assert len(set(ours)) == 16


GEMM = "cutlass_gemm.cu"
SHARED_BYTES = 4 * 64 * 64 * 2 + 32  # two stages of A and B, and four mbarriers


def multiply(text, M, N, K, swizzle="128B", seed=0):
    """(the report, the largest difference from numpy's product) of the kernel."""
    random = np.random.default_rng(seed)
    a = random.integers(-8, 9, (M, K)).astype(np.float16)
    b = random.integers(-8, 9, (K, N)).astype(np.float16)
    c = np.full((M, N), np.nan, np.float32)
    tile = {"dtype": "float16", "box": (64, 64), "swizzle": swizzle}
    maps = [tma.MapArgument(tma.TiledMap(shape=x.shape, **tile), x) for x in (a, b)]
    sizes = {520 + 4 * n: np.int32(size) for n, size in enumerate((M, N, K))}
    params = {0: maps[0], 256: maps[1], 512: c, **sizes}
    grid = -(-M // 64), -(-N // 64)
    report = tma.check_kernel(
        text, grid, 160, [params], "sm_90a", shared_bytes=SHARED_BYTES, seed=seed
    )
    return report, np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max()


def test_a_gemm_of_cute():
    """Extents that end inside a tile, more and fewer K steps than stages, and a wrong box."""
    text = cuda_cpp.compile_cutlass(GEMM)
    for seed, (M, N, K) in enumerate([(100, 72, 296), (64, 64, 64), (40, 136, 128)]):
        report, difference = multiply(text, M, N, K, seed=seed)
        assert report.problems == [] and difference == 0
        assert len(report.copies) == 2 * -(-K // 64) * -(-M // 64) * -(-N // 64)
        assert {copy.argument for copy in report.copies} == {"0 at byte 0", "0 at byte 256"}
    with pytest.raises(tma.TensorMapError, match="swizzle"):
        multiply(text, 64, 64, 64, swizzle="64B")
    report, _ = multiply(text, 64, 64, 64, swizzle="none")
    (first, _) = report.problems
    assert "reads swizzle 128B, but the copy wrote no swizzle" in first


# FAULT of the kernel: what the report names, and the line of the kernel to which it leads.
FAULTS = {
    1: ("reads swizzle 64B, but the copy wrote swizzle 128B", "// the product"),
    2: ("deadlock:\n.*lacks 0 of 1 arrivals and 64 bytes", "// the wait"),
    3: ("tensor copy to shared .*: warp 0 has not released it", "// the copy of A"),
    4: ("wgmma", "// the product"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_with_their_line(fault):
    words, comment = FAULTS[fault]
    text = cuda_cpp.compile_cutlass(GEMM, f"FAULT={fault}")
    report, difference = multiply(text, 100, 72, 296)
    assert not difference == 0
    assert all(re.search(words, problem) for problem in report.problems)
    lines = Path(cuda_cpp.__file__).with_name(GEMM).read_text().splitlines()
    (line,) = (number for number, each in enumerate(lines, 1) if comment in each)
    assert re.search(rf"inlined at [^)]*{GEMM}:{line}\b", report.problems[0])
