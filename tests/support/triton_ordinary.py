"""Ordinary kernels of Triton, as users write them; tiles may have fewer elements than threads."""

import triton
import triton.language as tl


@triton.jit
def softmax(x, y, N, B: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * N + c, mask=c < N, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * N + c, e / tl.sum(e, axis=0), mask=c < N)


@triton.jit
def row_sums(x, y, N, M: tl.constexpr, B: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, B)
    v = tl.load(x + r[:, None] * N + c[None, :], mask=c[None, :] < N, other=0.0)
    tl.store(y + r, tl.sum(v, axis=1))


@triton.jit
def layer_norm(x, y, N, B: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * N + c, mask=c < N, other=0.0)
    mean = tl.sum(v, axis=0) / N
    d = tl.where(c < N, v - mean, 0.0)
    tl.store(y + row * N + c, d * tl.rsqrt(tl.sum(d * d, axis=0) / N + 1e-5), mask=c < N)


@triton.jit
def largest(x, y, N, B: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * N + c, mask=c < N, other=-float("inf"))
    tl.store(y + row, tl.argmax(v, axis=0))


@triton.jit
def cumulative(x, y, N, B: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * N + c, mask=c < N, other=0.0)
    tl.store(y + row * N + c, tl.cumsum(v, axis=0), mask=c < N)


@triton.jit
def ordered(x, y, N, B: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * N + c, mask=c < N, other=float("inf"))
    tl.store(y + row * N + c, tl.sort(v), mask=c < N)


@triton.jit
def transposed(x, y, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + r[:, None] * N + c[None, :])
    tl.store(y + c[:, None] * M + r[None, :], tl.trans(v))


@triton.jit
def product(x, w, y, K, B: tl.constexpr):
    r = tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        a = tl.load(x + r[:, None] * K + k + r[None, :])
        b = tl.load(w + (k + r[:, None]) * B + r[None, :])
        acc += tl.dot(a, b)
    tl.store(y + r[:, None] * B + r[None, :], acc)


@triton.jit
def attention(q, k, v, y, N, D: tl.constexpr, B: tl.constexpr):
    r, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, D)
    query = tl.load(q + r[:, None] * D + d[None, :])
    top, total = tl.full((B,), -float("inf"), tl.float32), tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, D), tl.float32)
    for start in range(0, N, B):
        c = start + tl.arange(0, B)
        keys = tl.load(k + c[:, None] * D + d[None, :])
        scores = tl.dot(query, tl.trans(keys))
        new = tl.maximum(top, tl.max(scores, axis=1))
        p, shrunk = tl.exp(scores - new[:, None]), tl.exp(top - new)
        total = total * shrunk + tl.sum(p, axis=1)
        values = tl.load(v + c[:, None] * D + d[None, :])
        acc = acc * shrunk[:, None] + tl.dot(p.to(tl.float16), values)
        top = new
    tl.store(y + r[:, None] * D + d[None, :], acc / total[:, None])


@triton.jit
def doubled(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    a = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    b = tl.make_tensor_descriptor(y, [M, N], [N, 1], [BM, BN])
    b.store([0, 0], a.load([0, 0]) * 2)
