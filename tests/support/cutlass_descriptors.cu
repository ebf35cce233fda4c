// Descriptors that CUTLASS makes for operands of wgmma and tcgen05 in shared memory, of 16-bit elements.
#include <cute/tensor.hpp>
#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/atom/mma_traits_sm100.hpp>
using namespace cute;
using T = half_t;
using Out = unsigned long long*;

// One K step of 16 elements: those of both instructions.
template <GMMA::Major gmma, UMMA::Major umma, int rows, int step, class Layout>
__device__ Out put(Out out, T* memory, Layout layout) {
    auto whole = make_tensor(make_smem_ptr(memory), layout);
    auto operand = local_tile(whole, Shape<Int<rows>, _16>{}, make_coord(_0{}, Int<step>{}));
    *out++ = GMMA::make_gmma_desc<gmma>(operand).desc_;
    *out++ = UMMA::make_umma_desc<umma>(operand).desc_;
    return out;
}

// 64 rows of M or N, and columns of K.
template <class Atom, int columns, int step>
__device__ Out k_major(Out out, T* memory) {
    auto layout = tile_to_shape(Atom{}, Shape<_64, Int<columns>>{});
    return put<GMMA::Major::K, UMMA::Major::K, 64, step>(out, memory, layout);
}

// 64 rows of K; blocks of M or N stand after each other.
template <class Atom, int rows, int step>
__device__ Out mn_major(Out out, T* memory) {
    auto layout = tile_to_shape(Atom{}, Shape<Int<rows>, _64>{}, Step<_2, _1>{});
    return put<GMMA::Major::MN, UMMA::Major::MN, rows, step>(out, memory, layout);
}

extern "C" __global__ void descriptors(Out out) {
    __shared__ alignas(1024) unsigned char bytes[32768];
    T* memory = reinterpret_cast<T*>(bytes);
    *out++ = cast_smem_ptr_to_uint(bytes);
    out = k_major<GMMA::Layout_K_INTER_Atom<T>, 16, 0>(out, memory);
    out = k_major<GMMA::Layout_K_SW32_Atom<T>, 16, 0>(out, memory);
    out = k_major<GMMA::Layout_K_SW64_Atom<T>, 32, 1>(out, memory);
    out = k_major<GMMA::Layout_K_SW128_Atom<T>, 64, 3>(out, memory);
    out = mn_major<GMMA::Layout_MN_INTER_Atom<T>, 64, 0>(out, memory);
    out = mn_major<GMMA::Layout_MN_SW32_Atom<T>, 64, 1>(out, memory);
    out = mn_major<GMMA::Layout_MN_SW64_Atom<T>, 64, 2>(out, memory);
    out = mn_major<GMMA::Layout_MN_SW128_Atom<T>, 128, 3>(out, memory);
}
