// C = A B on Hopper, written with CuTe: warp 4 loads tiles by TMA into two stages, warps 0 to 3
// multiply them by wgmma. A is K-major (M x K, row-major), B MN-major (K x N, row-major), of float16;
// C is M x N of float32. FAULT plants a mistake.
#include <cute/tensor.hpp>
#include <cutlass/pipeline/sm90_pipeline.hpp>
#ifndef FAULT
#define FAULT 0
#endif
using namespace cute;
using T = half_t;
using Blocks = Shape<_64, _64, _64>;  // of M, N and K
using Stages = _2;
using Cut = Shape<_64, _64>;
using Staged = Shape<_64, _64, Stages>;
using SmemA = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Staged{}));
using SmemB = decltype(tile_to_shape(GMMA::Layout_MN_SW128_Atom<T>{}, Staged{}));
#if FAULT == 1  // the descriptors of A have another swizzle than its copies
using ReadA = decltype(tile_to_shape(GMMA::Layout_K_SW64_Atom<T>{}, Staged{}));
#else
using ReadA = SmemA;
#endif
constexpr T const* NOWHERE = nullptr;  // the types of the copies do not depend on addresses and sizes
using TmaA = decltype(make_tma_atom(
    SM90_TMA_LOAD{}, make_tensor(NOWHERE, Shape<int, int>{}, Stride<int, _1>{}), SmemA{}(_, _, _0{}), Cut{}));
using TmaB = decltype(make_tma_atom(
    SM90_TMA_LOAD{}, make_tensor(NOWHERE, Shape<int, int>{}, Stride<_1, int>{}), SmemB{}(_, _, _0{}), Cut{}));
using Mma = decltype(make_tiled_mma(SM90_64x64x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::MN>{}));
using Pipeline = cutlass::PipelineTmaAsync<Stages::value>;

struct Params {
    TmaA a;
    TmaB b;
    float* c;
    int M, N, K;
};
static_assert(sizeof(TmaA) == 256 && sizeof(TmaB) == 256, "the test gives members by these offsets");

struct Shared {
    alignas(1024) ArrayEngine<T, cosize_v<SmemA>> a;
    alignas(1024) ArrayEngine<T, cosize_v<SmemB>> b;
    Pipeline::SharedStorage pipeline;
};

extern "C" __global__ __launch_bounds__(160) void gemm(const __grid_constant__ Params params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    auto sA = make_tensor(make_smem_ptr(shared.a.begin()), SmemA{});
    auto sB = make_tensor(make_smem_ptr(shared.b.begin()), SmemB{});
    bool const producer = cutlass::canonical_warp_idx_sync() == 4;
    Pipeline::Params roles;
    roles.role = producer ? Pipeline::ThreadCategory::Producer : Pipeline::ThreadCategory::Consumer;
    roles.is_leader = producer && threadIdx.x % 32 == 0;
    roles.num_consumers = 128;
    roles.transaction_bytes = (size(Cut{}) + size(Cut{})) * sizeof(T) + (FAULT == 2 ? 64 : 0);
    Pipeline pipeline(shared.pipeline, roles, Shape<_1, _1, _1>{});
    __syncthreads();

    auto at = make_coord(blockIdx.x, blockIdx.y, _);
    int const steps = ceil_div(params.K, size<2>(Blocks{}));
    if (producer) {
        auto mA = params.a.get_tma_tensor(make_shape(params.M, params.K));
        auto mB = params.b.get_tma_tensor(make_shape(params.N, params.K));
        auto gA = local_tile(mA, Blocks{}, at, Step<_1, X, _1>{});
        auto gB = local_tile(mB, Blocks{}, at, Step<X, _1, _1>{});
        auto [fromA, toA] = tma_partition(params.a, _0{}, Layout<_1>{}, group_modes<0, 2>(sA), group_modes<0, 2>(gA));
        auto [fromB, toB] = tma_partition(params.b, _0{}, Layout<_1>{}, group_modes<0, 2>(sB), group_modes<0, 2>(gB));
        if (threadIdx.x % 32 == 0) {
            auto state = cutlass::make_producer_start_state<Pipeline>();
            for (int k = 0; k < steps; k++, ++state) {
                pipeline.producer_acquire(state);
                auto* full = pipeline.producer_get_barrier(state);
                copy(params.a.with(*full), fromA(_, k), toA(_, state.index()));  // the copy of A
                copy(params.b.with(*full), fromB(_, k), toB(_, state.index()));
            }
            pipeline.producer_tail(state);
        }
        return;
    }

    auto mma = Mma{}.get_slice(threadIdx.x);
    auto mC = make_tensor(make_gmem_ptr(params.c), make_shape(params.M, params.N), make_stride(params.N, _1{}));
    auto gC = local_tile(mC, Blocks{}, at, Step<_1, _1, X>{});
    auto places = local_tile(make_identity_tensor(shape(mC)), Blocks{}, at, Step<_1, _1, X>{});
    auto rA = mma.make_fragment_A(mma.partition_A(make_tensor(make_smem_ptr(shared.a.begin()), ReadA{})));
    auto rB = mma.make_fragment_B(mma.partition_B(sB));
    auto mine = mma.partition_C(gC);
    auto my_places = mma.partition_C(places);
    auto sums = mma.make_fragment_C(mine);
    clear(sums);
    cutlass::PipelineState<Stages::value> state;
    for (int k = 0; k < steps; k++, ++state) {
        if (FAULT != 4) pipeline.consumer_wait(state);  // the wait
        warpgroup_fence_operand(sums);
        warpgroup_arrive();
        gemm(Mma{}, rA(_, _, _, state.index()), rB(_, _, _, state.index()), sums);  // the product
        warpgroup_commit_batch();
        if (FAULT == 3) pipeline.consumer_release(state);  // wgmma still reads the stage
        warpgroup_wait<0>();
        warpgroup_fence_operand(sums);
        if (FAULT != 3) pipeline.consumer_release(state);
    }
    CUTE_UNROLL
    for (int i = 0; i < size(sums); i++)
        if (elem_less(my_places(i), shape(mC))) mine(i) = sums(i);
}
