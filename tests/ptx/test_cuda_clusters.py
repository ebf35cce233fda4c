"""Clusters in CUDA C++: cooperative groups, and a ring by multicast as libcu++ has it."""

import re

import numpy as np
import pytest
from cuda_cpp import compile_ptx

from implicit_conv import tma

pytestmark = pytest.mark.slow
KERNEL = r"""
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
#include <cooperative_groups.h>
#include <cuda/ptx>
namespace ptx = cuda::ptx;
constexpr int ROWS = 4, COLUMNS = 32, STAGES = 2, BLOCKS = 2;

// Each of two blocks sums all columns of x: it loads half of the rows for both.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) sums(
    const __grid_constant__ CUtensorMap_st x, int* y, int tiles) {
    __shared__ alignas(128) int tile[STAGES][BLOCKS][ROWS][COLUMNS];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ int result[COLUMNS];
    auto cluster = cooperative_groups::this_cluster();
    const int rank = cluster.block_rank(), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            ptx::mbarrier_init(&full[s], 1);
            ptx::mbarrier_init(&empty[s], BLOCKS);
        }
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        for (int t = 0; t < tiles + STAGES; t++) {
            const int s = t % STAGES;
            while (!ptx::mbarrier_try_wait_parity(&empty[s], t / STAGES % 2 ^ 1)) {}
            if (t >= tiles) continue;  // the last releases
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared,
                                           &full[s], sizeof(tile[s]));
            const int at[2] = {0, (t * BLOCKS + rank) * ROWS};
            ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, &tile[s][rank], &x,
                                      at, &full[s], uint16_t((1 << BLOCKS) - 1));
        }
    } else if (threadIdx.x >= 32) {
        int sum = 0;
        for (int t = 0; t < tiles; t++) {
            const int s = t % STAGES;
            while (!ptx::mbarrier_try_wait_parity(&full[s], t / STAGES % 2)) {}
            for (int i = 0; i < BLOCKS * ROWS; i++) sum += tile[s][i / ROWS][i % ROWS][lane];
            __syncwarp();
            if (lane < BLOCKS)
                ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster,
                                     cluster.map_shared_rank(&empty[s], lane));
        }
        result[lane] = sum;
    }
    cluster.sync();
    const int* other = cluster.map_shared_rank(result, rank ^ 1);
    if (threadIdx.x >= 32) y[blockIdx.x * 32 + lane] = other[lane] + rank;
    cluster.sync();
}
"""
FAULTS = {  # name: (text of the kernel, its replacement, what the report names)
    "no barrier of the cluster": (
        "    }\n    cluster.sync();\n    if (threadIdx.x == 0) {",
        "    }\n    __syncthreads();\n    if (threadIdx.x == 0) {",
        "a barrier.cluster in between is missing",
    ),
    "stages are released to the own block": (
        "cluster.map_shared_rank(&empty[s], lane)",
        "cluster.map_shared_rank(&empty[s], rank)",
        "has not released it|after its last write|about to write",
    ),
    "bytes of the own load alone": ("sizeof(tile[s])", "sizeof(tile[s]) / 2", "expected|expect_tx"),
    "a mask of four blocks": ("uint16_t((1 << BLOCKS) - 1)", "uint16_t(15)", "ranks 2, 3"),
    "no barrier before the results": (
        "    }\n    cluster.sync();\n    const int",
        "    }\n    const int",
        "never written|no barrier orders it",
    ),
    "no barrier before the end": (
        "+ rank;\n    cluster.sync();",
        "+ rank;",
        "a barrier.cluster before",
    ),
}


def check(source, seed):
    x = np.random.default_rng(seed).integers(-99, 99, (40, 32)).astype(np.int32)
    y = np.zeros((4, 32), np.int32)
    right = x.sum(0, dtype=np.int32) + np.array([0, 1, 0, 1], np.int32)[:, None]
    map = tma.TiledMap(shape=x.shape, dtype="int32", box=(4, 32))
    given = [tma.MapArgument(map, x), y, 5]
    text = compile_ptx(source)
    return tma.check_kernel(text, 4, 64, given, seed=seed, expected={1: right})


def test_a_ring_by_multicast():
    for seed in range(6):
        report = check(KERNEL, seed)
        assert report.problems == [], report.problems
        assert len(report.copies) == 2 * 5 * 2 * 2  # clusters, tiles, blocks, destinations


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_ring(name):
    old, new, words = FAULTS[name]
    assert KERNEL.count(old) == 1
    error = check(KERNEL.replace(old, new), 1).error
    assert re.search(words, error), error
