"""A kernel of libcu++ (cuda::barrier, cuda::ptx) as the CUDA guide has it; and with faults."""

import numpy as np
import pytest
from cuda_cpp import compile_ptx

from implicit_conv import tma

pytestmark = pytest.mark.slow
KERNEL = r"""
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };  // NVRTC cannot read cuda.h
#include <cuda/barrier>
#include <cuda/ptx>
using barrier = cuda::barrier<cuda::thread_scope_block>;
namespace ptx = cuda::ptx;
constexpr int ROWS = 8, COLUMNS = 32;

// y = x + 1, tile by tile, each way by a tensor copy.
extern "C" __global__ void add_one(
    const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y) {
    __shared__ alignas(128) int tile[ROWS][COLUMNS];
    #pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ barrier bar;
    const int at[2] = {int(blockIdx.x) * COLUMNS, int(blockIdx.y) * ROWS};
    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    barrier::arrival_token token;
    if (threadIdx.x == 0) {
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, &tile, &x, at,
                                  cuda::device::barrier_native_handle(bar));
        token = cuda::device::barrier_arrive_tx(bar, 1, sizeof(tile));
    } else {
        token = bar.arrive();
    }
    bar.wait(std::move(token));
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x)
        tile[i / COLUMNS][i % COLUMNS] += 1;
    ptx::fence_proxy_async(ptx::space_shared);  // before the store
    __syncthreads();  // all have written
    if (threadIdx.x == 0) {
        ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &y, at, &tile);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
        (&bar)->~barrier();
    }
}
"""
BOX = {"box": (8, 32)}
FAULTS = {  # name: (text of the kernel, its replacement, what the report names)
    "no fence after the init": (
        "ptx::fence_proxy_async(ptx::space_shared);",
        "",
        "fence.mbarrier_init",
    ),
    "no barrier after the init": (
        "__syncthreads();",
        "",
        "no mbarrier was initialised",
    ),
    "no fence before the store": (
        "ptx::fence_proxy_async(ptx::space_shared);  // before the store",
        "",
        "fence.proxy.async",
    ),
    "the mbarrier is destroyed while others wait": (
        "__syncthreads();  // all have written",
        "",
        "no mbarrier was initialised",
    ),
    "nobody waits for the load": (
        "bar.wait(std::move(token));",
        "",
        "bytes that a copy is about to write",
    ),
    "nobody waits for the store": (
        "ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());",
        "",
        "cp.async.bulk.wait_group.read 0 is missing",
    ),
    "too many bytes expected": ("sizeof(tile))", "2 * sizeof(tile))", "deadlock"),
    "one arrival too many": ("init(&bar, blockDim.x)", "init(&bar, blockDim.x + 1)", "deadlock"),
    "coordinates exchanged": (
        "{int(blockIdx.x) * COLUMNS, int(blockIdx.y) * ROWS}",
        "{int(blockIdx.y) * ROWS, int(blockIdx.x) * COLUMNS}",
        "differ from those expected",
    ),
    "a tile that is not aligned": ("&tile, &x", "&tile[0][4], &x", "not aligned to 128"),
}


def checked(text, boxes=(BOX, BOX)):
    """The report of the kernel, on maps with these fields."""
    x = np.random.default_rng(0).integers(0, 99, (20, 64)).astype(np.int32)
    y = np.zeros_like(x)
    maps = [tma.TiledMap(shape=x.shape, dtype=x.dtype, **fields) for fields in boxes]
    arguments = [tma.MapArgument(map, a) for map, a in zip(maps, (x, y), strict=True)]
    return tma.check_kernel(text, (2, 3), 64, arguments, expected={1: x + 1})


def test_a_kernel_of_libcuxx():
    report = checked(compile_ptx(KERNEL))
    assert report.problems == [] and len(report.copies) == 12


def test_swizzles_that_the_kernel_does_not_know():
    """Both ways, they cancel out; one way, the loads of the kernel are told."""
    text = compile_ptx(KERNEL.replace("alignas(128)", "alignas(1024)"))
    swizzled = {**BOX, "swizzle": "128B"}
    assert checked(text, (swizzled, swizzled)).problems == []
    (reader, differs) = checked(text, (swizzled, BOX)).problems
    assert reader.startswith("ld.shared at line ") and "kernel.cu:" in reader
    assert "reads no swizzle, but the copy wrote swizzle 128B; the copy is at line" in reader
    assert "differ from those expected" in differs


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults(fault):
    old, new, words = FAULTS[fault]
    assert old in KERNEL
    report = checked(compile_ptx(KERNEL.replace(old, new, 1)))
    assert any(words in line for line in report.problems), report.problems
