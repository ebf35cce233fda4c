"""CUDA C++ of a map: check_kernel runs the kernel that NVRTC compiles, g++ the host's call."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from cuda_cpp import compile_ptx, include_folder

from implicit_conv import tma

pytestmark = pytest.mark.slow
PIXELS = {"shape": (2, 6, 7, 32), "dtype": "float16", "pixels_per_column": 24}
MAPS = {
    **{
        f"tiled-{swizzle}-{n}": (
            tma.TiledMap(shape=(20, 48), dtype="float32", box=(16, n), swizzle=swizzle),
            {},
            (5, 40),
        )
        for swizzle, n in (("none", 32), ("32B", 8), ("64B", 16), ("128B", 32), ("128B", 8))
    },
    "tiled-1d": (tma.TiledMap(shape=(100,), dtype="uint8", box=(64,)), {}, (48,)),
    "im2col": (
        tma.Im2colMap(
            **PIXELS, lower_corner=(-1, -1), upper_corner=(-1, -1), channels_per_pixel=32
        ),
        {"offsets": (1, 2)},
        (0, 3, -1, 0),
    ),
    "im2col-64B": (
        tma.Im2colMap(
            **PIXELS,
            lower_corner=(-1, 0),
            upper_corner=(0, -1),
            channels_per_pixel=32,
            traversal_stride=2,
            swizzle="64B",
        ),
        {"offsets": (0, 1)},
        (1, -1, 0, 0),
    ),
    "w": (
        tma.Im2colWideMap(
            **PIXELS, lower_corner_w=-1, upper_corner_w=0, channels_per_pixel=32, swizzle="64B"
        ),
        {"w_halo": 2, "w_offset": 1},
        (0, 2, -1, 0),
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_the_kernel_loads_what_the_simulator_loads(name):
    map, operands, start = MAPS[name]
    wide = map.description.wide
    text = compile_ptx(map.cpp(**operands), "sm_100a" if wide else "sm_90a")
    x = np.random.default_rng(0).integers(1, 99, map.shape).astype(map.dtype)
    wanted = tma.load(map, x, start, **operands)
    out = np.zeros_like(wanted)
    arguments = [tma.MapArgument(map, x), out, *start[::-1]]
    report = tma.check_kernel(text, 1, 128, arguments, expected={1: wanted})
    assert report.problems == [] and len(report.copies) == 1
    assert np.array_equal(out, wanted) and (out == 0).any() and (out != 0).any()


FAULTS = {
    "expect_tx": (r'"r"\(ROWS \* ROW_BYTES\)', '"r"(ROWS * ROW_BYTES + 16)', "deadlock"),
    "alignment": (r"alignas\(1024\) ", "", "dst = .* a multiple of 128 bytes.*align it to 1024"),
    "alignment of a copy": (r"alignas\(1024\)", "alignas(16)", "not aligned to 128"),
    "alignment of its pattern": (r"alignas\(1024\)", "alignas(128)", "align it to 1024 bytes"),
    "fence": (r'asm volatile\("fence.mb[^;]*;" ::: "memory"\);', "", "no fence.mbarrier_init"),
    "wait": (r"!done;\)", "false;)", "bytes that a copy is about to write"),
    "__syncthreads": (r"__syncthreads\(\);  // nobody", "// nobody", "no mbarrier was initialised"),
    "swizzle": (
        r"at \^ \(at >> 7 & 7\) << 4",
        "at",
        "reads no swizzle, but the copy wrote swizzle 128B",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_each_part_of_the_kernel_is_needed(what):
    pattern, other, words = FAULTS[what]
    map, _, start = MAPS["tiled-128B-32"]
    x = np.random.default_rng(0).integers(1, 99, map.shape).astype(map.dtype)
    source, count = re.subn(pattern, other, map.cpp())
    assert count == 1
    out = np.zeros_like(tma.load(map, x, start))
    arguments = [tma.MapArgument(map, x), out, *start[::-1]]
    said = tma.check_kernel(
        compile_ptx(source), 1, 128, arguments, expected={1: tma.load(map, x, start)}
    )
    assert re.search(words, "\n".join(said.problems)), said.problems


STUB = r"""
#include "kernel.cu"
template <class T> void show(const char* name, const T* values, int count) {
    std::printf("%s", name);
    for (int i = 0; i < count; i++) std::printf(" %lld", (long long)values[i]);
    std::printf("\n");
}
#define HEAD CUtensorMap*, CUtensorMapDataType type, cuuint32_t rank, void* x, \
    const cuuint64_t* dims, const cuuint64_t* strides
#define TAIL CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill
static void head(int type, int rank, void* x, const cuuint64_t* dims, const cuuint64_t* strides) {
    std::printf("tensorDataType %d\nglobalAddress %lld\n", type, (long long)x);
    show("globalDim", dims, rank);
    show("globalStrides", strides, rank - 1);
}
extern "C" CUresult CUDAAPI cuTensorMapEncodeTiled(
    HEAD, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave, TAIL) {
    head(type, rank, x, dims, strides);
    show("boxDim", box, rank);
    show("elementStrides", steps, rank);
    std::printf("swizzle %d\n", swizzle);
    return CUDA_SUCCESS;
}
extern "C" CUresult CUDAAPI cuTensorMapEncodeIm2col(
    HEAD, const int* lower, const int* upper, cuuint32_t channels, cuuint32_t pixels,
    const cuuint32_t* steps, CUtensorMapInterleave, TAIL) {
    head(type, rank, x, dims, strides);
    show("pixelBoxLowerCorner", lower, rank - 2);
    show("pixelBoxUpperCorner", upper, rank - 2);
    std::printf("channelsPerPixel %d\npixelsPerColumn %d\n", channels, pixels);
    show("elementStrides", steps, rank);
    std::printf("swizzle %d\n", swizzle);
    return CUDA_SUCCESS;
}
extern "C" CUresult CUDAAPI cuTensorMapEncodeIm2colWide(
    HEAD, int lower, int upper, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
    CUtensorMapInterleave, CUtensorMapIm2ColWideMode mode, TAIL) {
    head(type, rank, x, dims, strides);
    std::printf("pixelBoxLowerCornerWidth %d\npixelBoxUpperCornerWidth %d\n", lower, upper);
    std::printf("channelsPerPixel %d\npixelsPerColumn %d\nmode %d\n", channels, pixels, mode);
    show("elementStrides", steps, rank);
    std::printf("swizzle %d\n", swizzle);
    return CUDA_SUCCESS;
}
int main() { encode((void*)4096); }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", ["tiled-128B-32", "tiled-1d", "im2col-64B", "w"])
def test_the_host_passes_the_arguments_of_the_map(name, tmp_path):
    """A driver that prints what it is called with takes the place of libcuda."""
    map, operands, _ = MAPS[name]
    (tmp_path / "kernel.cu").write_text(map.cpp(**operands))
    (tmp_path / "main.cpp").write_text(STUB)
    made, folder = tmp_path / "main", include_folder()
    flags = ["-std=c++17", "-Wall", "-Werror", f"-I{folder}"]
    subprocess.run(["g++", *flags, str(tmp_path / "main.cpp"), "-o", str(made)], check=True)
    said = subprocess.run([str(made)], check=True, capture_output=True, text=True).stdout
    seen = {name: [int(x) for x in words] for name, *words in map_lines(said)}
    assert seen["globalAddress"] == [4096]
    found = tma.lint(**{name: plain(name, values) for name, values in seen.items()})
    assert found == []
    for field, value in map.arguments.items():
        if isinstance(value, (tuple, int)) and field in seen:
            assert seen[field] == (list(value) if isinstance(value, tuple) else [value]), field


def map_lines(text):
    return [line.split() for line in text.splitlines()]


def plain(name, values):
    arrays = ("globalDim", "globalStrides", "boxDim", "elementStrides")
    many = name in arrays or name.endswith("Corner")
    return values if many else values[0]


@pytest.mark.parametrize(
    ("map", "words"),
    [
        (
            tma.TiledMap(shape=(256, 256), dtype="uint8", box=(256, 256), swizzle="none"),
            "the tile has 65536 bytes",
        ),
        (
            tma.TiledMap(
                shape=(64, 64), dtype="uint16", box=(8, 64), swizzle="128B_ATOM_32B_FLIP_8B"
            ),
            "no kernel is written for swizzle",
        ),
    ],
)
def test_maps_for_which_no_kernel_is_written(map, words):
    with pytest.raises(ValueError, match=words):
        map.cpp()
