"""PTX that compilers made of other kernels: NVRTC of CUDA C++, and Triton where it is installed."""

import importlib.util
import re

import numpy as np
import pytest

from implicit_conv import ptx

pytestmark = pytest.mark.slow
SEEDS = range(4)

CUDA = r"""
extern "C" __global__ void sums(const float* x, float* y, unsigned* done, int n) {
    __shared__ float parts[8];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += x[i] > 0.0f ? x[i] : -x[i];
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < blockDim.x / 32; w++) sum += parts[w];
        atomicAdd(y, sum);
        __threadfence();
        atomicInc(done, 0xffffffffu);
    }
}
__device__ __noinline__ int gcd(int a, int b) {
    while (b) { int r = a % b; a = b; b = r; }
    return a;
}
extern "C" __global__ void fractions(const int* x, int* y, long long* z) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int held[4];
    for (int k = 0; k < 4; k++) held[k] = x[i] >> k;
    y[i] = gcd(x[i], 360) + held[x[i] & 3];
    z[i] = (long long)x[i] * x[i] / 7 - __popc(x[i]) + __clz(x[i]) + __brev(x[i]) % 1000;
}
template <int SIDE> __device__ void product(const float* a, const float* b, float* c, int n) {
    __shared__ float left[SIDE][SIDE + 1], right[SIDE][SIDE + 1];
    int row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += SIDE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int j = 0; j < SIDE; j++) sum += left[threadIdx.y][j] * right[j][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
    product<16>(a, b, c, n);
}
"""


@pytest.fixture(scope="module")
def nvrtc_text():
    """The PTX of CUDA, by NVRTC."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    status, program = nvrtc.nvrtcCreateProgram(CUDA.encode(), b"kernels.cu", 0, [], [])
    options = [b"--gpu-architecture=compute_90a", b"-lineinfo"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode()


def test_sums_of_blocks(nvrtc_text):
    x = np.random.default_rng(0).integers(-9, 9, 1000).astype(np.float32)
    for seed in SEEDS:
        y, done = np.zeros(1, np.float32), np.zeros(1, np.uint32)
        ptx.run(nvrtc_text, 3, 128, [x, y, done, x.size], entry="sums", seed=seed)
        assert y[0] == np.abs(x).sum() and done[0] == 3


def test_a_call_local_arrays_and_divisions(nvrtc_text):
    x = np.random.default_rng(0).integers(1, 1 << 31, 128).astype(np.int32)
    y, z = np.zeros(128, np.int32), np.zeros(128, np.int64)
    ptx.run(nvrtc_text, 2, 64, [x, y, z], entry="fractions")
    assert np.array_equal(y, np.gcd(x, 360) + (x >> (x & 3)))
    bits = [f"{int(v):032b}" for v in x]
    reverse = np.array([int(b[::-1], 2) for b in bits]) % 1000
    ones, zeros = (np.array([b.count("1") for b in bits]), np.array([b.index("1") for b in bits]))
    assert np.array_equal(z, x.astype(np.int64) ** 2 // 7 - ones + zeros + reverse)


@pytest.mark.parametrize("seed", SEEDS)
def test_arrays_of_numba(seed):
    """A parameter for each member of an array, in the order of Numba's struct."""
    pytest.importorskip("numba_cuda", reason="needs pip install '.[cu13]'")
    from numba import cuda, types

    def axpy(a, x, y, n):
        i = cuda.grid(1)
        if i < min(n, x.shape[0], y.shape[0]):
            y[i, y.shape[1] - 1] = a * x[i] + y[i, 0]

    kinds = types.float32, types.float32[:], types.float64[:, ::1], types.int32
    options = {"cc": (9, 0), "device": False, "abi": "numba", "output": "ptx"}
    text, _ = cuda.compile(axpy, kinds, **options)
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 9, 70).astype(np.float32)
    y = rng.integers(-9, 9, (66, 3)).astype(np.float64)
    expected = y.copy()
    expected[:64, 2] = 0.5 * x[:64] + y[:64, 0]
    ptx.run(text, 3, 32, [0.5, x, y, 64], seed=seed)
    np.testing.assert_array_equal(y, expected)
    with pytest.raises(ptx.PtxError, match="3 arguments for the parameters"):
        ptx.run(text, 3, 32, [0.5, x, y])


def test_matmul_and_its_race(nvrtc_text):
    a, b = np.random.default_rng(0).integers(-4, 5, (2, 32, 32)).astype(np.float32)
    c = np.zeros_like(a)
    ptx.run(nvrtc_text, (2, 2), (16, 16), [a, b, c, 32], entry="matmul")
    assert np.array_equal(c, a @ b)
    start = nvrtc_text.index(".entry matmul")
    kernel = nvrtc_text[start:]
    for place in range(len(re.findall("bar.sync", kernel))):
        ends = [match.start() for match in re.finditer("bar.sync", kernel)]
        wrong = kernel[: ends[place]] + "//" + kernel[ends[place] :]
        with pytest.raises(ptx.PtxError, match=r"\(.*kernels.cu:\d+\): .*shared"):
            ptx.run(nvrtc_text[:start] + wrong, (2, 2), (16, 16), [a, b, c, 32], entry="matmul")


def triton_text(name, signature, constants, cc, **options):
    """(PTX, bytes of shared memory) of a kernel of triton_kernels.py."""
    import triton
    import triton_kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    plain = [place for place, kind in enumerate(signature.values()) if "desc" not in kind]
    aligned = {(place,): [["tt.divisibility", 16]] for place in plain}
    source = ASTSource(
        fn=getattr(triton_kernels, name),
        signature={**signature, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs=aligned,
    )
    made = triton.compile(source, target=GPUTarget("cuda", cc, 32), options=options)
    return made.asm["ptx"], made.metadata.shared


M, N, K = 128, 64, 160


def problem():
    rng = np.random.default_rng(1)
    a = rng.integers(-3, 4, (M, K)).astype(np.float16)
    b = rng.integers(-3, 4, (K, N)).astype(np.float16)
    return a, b, np.full((M, N), np.nan, np.float32), a.astype(np.float32) @ b.astype(np.float32)


def all_parameters(text, arguments):
    """Triton adds scratch memory, which these kernels do not use."""
    count = len(re.findall(r"\.param", text[text.index(".entry") : text.index(")\n")]))
    return [*arguments, *[None] * (count - len(arguments))]


TILES = {"BM": 64, "BN": 64, "BK": 32}
TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.skipif(not TRITON, reason="needs triton")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("cc", "instructions"), [(80, "cp.async.cg mma.sync"), (90, "cp.async wgmma")]
)
def test_triton_matmul_by_pointers(cc, instructions):
    types = {**dict.fromkeys("ab", "*fp16"), "c": "*fp32", **dict.fromkeys("MNK", "i32")}
    text, shared = triton_text("by_pointers", types, TILES, cc, num_warps=4, num_stages=3)
    assert all(word in text for word in instructions.split())
    for seed in SEEDS:
        a, b, c, expected = problem()
        arguments = all_parameters(text, [a, b, c, M, N, K])
        options = {"shared_bytes": shared, "shared_alignment": 1024, "seed": seed}
        ptx.run(text, (M // 64, N // 64), 128, arguments, **options)
        assert np.array_equal(c, expected)


@pytest.mark.skipif(not TRITON, reason="needs triton")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_triton_matmul_by_tensor_copies():
    """TMA loads and stores, mbarriers and wgmma with a transposed operand."""
    types = {
        "a": "tensordesc<fp16[64, 32]>",
        "b": "tensordesc<fp16[32, 64]>",
        "c": "tensordesc<fp32[64, 64]>",
        **dict.fromkeys("MNK", "i32"),
    }
    text, shared = triton_text("by_descriptors", types, TILES, 90, num_warps=4, num_stages=3)
    assert all(word in text for word in ("cp.async.bulk.tensor", "mbarrier.try_wait", "wgmma"))
    for seed in SEEDS:
        a, b, c, expected = problem()
        arguments = []
        for array, box, span in ((a, (32, 64), 64), (b, (64, 32), 128), (c, (32, 64), 128)):
            size, strides = array.itemsize, array.strides
            map = ptx.TensorMap(
                "tile", size, 0, array.shape[::-1], strides[:1], (1, 1), span=span, box=box
            )
            arguments += [ptx.Tensor(map, array), *array.shape, *(s // size for s in strides)]
        arguments = all_parameters(text, [*arguments, M, N, K])
        options = {"shared_bytes": shared, "shared_alignment": 1024, "seed": seed}
        options["unfenced_barriers"] = True
        ptx.run(text, (M // 64, N // 64), 128, arguments, **options)
        assert np.array_equal(c, expected)
