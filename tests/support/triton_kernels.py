"""Products of matrices in Triton, which needs its functions in a file. Names as in the tests."""

import triton
import triton.language as tl


@triton.jit
def by_pointers(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Loads become cp.async."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    at_a = a + rows[:, None] * K + depth[None, :]
    at_b = b + depth[:, None] * N + columns[None, :]
    sums = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        sums = tl.dot(tl.load(at_a), tl.load(at_b), sums)
        at_a += BK
        at_b += BK * N
    tl.store(c + rows[:, None] * N + columns[None, :], sums)


@triton.jit
def by_descriptors(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Loads and stores become tensor copies."""
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        sums = tl.dot(a.load([row, k]), b.load([k, column]), sums)
    c.store([row, column], sums)


@triton.jit
def one_more(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Each block makes the tensor maps of x and y itself."""
    given = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    made = tl.make_tensor_descriptor(y, [M, N], [N, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    made.store([row, column], given.load([row, column]) + 1)


@triton.jit
def partial_sums(x, y, BM: tl.constexpr, BN: tl.constexpr):
    """Each block adds its tile to a tile of y by a reducing store; y is (BM, N)."""
    column = tl.program_id(1) * BN
    y.atomic_add([0, column], x.load([tl.program_id(0) * BM, column]))
