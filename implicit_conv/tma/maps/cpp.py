"""CUDA C++ of a tensor map: the call that encodes it, and a minimal kernel that loads by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from implicit_conv.tma.maps.encoding import PARAMETERS, WORD_TYPES
from implicit_conv.tma.maps.limits import Description, Start
from implicit_conv.tma.maps.ptx import instruction
from implicit_conv.tma.maps.swizzles import LINE_BITS, SWIZZLES

LINE = 128  # bytes that a swizzle permutes, and the alignment of a tile without one
STATIC_BYTES = (48 << 10) - LINE  # of a tile, beside the mbarrier
PATTERN = 1024  # bytes, at most, after which a swizzle's pattern repeats
UNSWIZZLED = {  # what a swizzle does with the offset `at` of a byte in an aligned tile
    name: f"at ^ (at >> {LINE_BITS} & {swizzle.lines - 1}) << {swizzle.atom.bit_length() - 1}"
    if swizzle.span
    else "at"
    for name, swizzle in SWIZZLES.items()
    if not swizzle.flip
}
SOURCE = """\
// nvcc -std=c++17 -arch={arch} FILE.cu -lcuda; CUDA {cuda} or later
#ifndef __CUDACC_RTC__
#include <cuda.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// The tensor map of {shape} {element}, whose first element is at x in global memory.
CUtensorMap encode(void* x) {{
    CUtensorMap map;  // 128 bytes, aligned to 64 by its type
{arrays}
    CUresult status = {function}(
        &map,
{arguments});
    if (status != CUDA_SUCCESS) {{
        std::fprintf(stderr, "{function} failed: %d\\n", int(status));
        std::exit(1);
    }}
    return map;
}}
#else  // NVRTC compiles the kernel alone, without headers
using uint32_t = unsigned;
using uint64_t = unsigned long long;
struct alignas(64) CUtensorMap {{ uint64_t opaque[16]; }};
#endif

#ifdef __CUDACC__
constexpr uint32_t ROWS = {rows}, ROW_BYTES = {row_bytes}, PITCH = {pitch};
constexpr uint32_t TILE_BYTES = {tile_bytes};  // with what lies between rows

// One copy, read by all threads; rows of the copy lie in `out` one after the other, as in Python
// tma.load(map, x, ({axes})). Launch it as
//   load_rows<<<1, 128>>>(encode(x), out, {call});
extern "C" __global__ void load_rows(
    const __grid_constant__ CUtensorMap map, uint4* out, {names}) {{
    __shared__ alignas({alignment}) unsigned char tile[TILE_BYTES];
    __shared__ alignas(8) uint64_t barrier;
    uint32_t tile_at = uint32_t(__cvta_generic_to_shared(tile));
    uint32_t barrier_at = uint32_t(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) {{
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_at) : "memory");
        // The copy, of the async proxy, must see the initialised barrier.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        // All bytes of the box count, also those that lie outside of the tensor and become fills.
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     ::"r"(barrier_at), "r"(ROWS * ROW_BYTES) : "memory");
        asm volatile(
            "{copy}"
            ::"r"(tile_at), "l"(&map), "r"(barrier_at), {operands} : "memory");
    }}
    __syncthreads();  // nobody waits for a barrier that is not initialised
    for (uint32_t done = 0; !done;)  // phase 0; the next copy by this barrier ends phase 1
        asm volatile("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
                     " selp.u32 %0, 1, 0, p; }}" : "=r"(done) : "r"(barrier_at) : "memory");
    for (uint32_t i = threadIdx.x; i < ROWS * ROW_BYTES / 16; i += blockDim.x) {{
        uint32_t at = i / (ROW_BYTES / 16) * PITCH + i % (ROW_BYTES / 16) * 16;
        out[i] = *reinterpret_cast<const uint4*>(tile + ({unswizzled}));
    }}
    // Before a store by a tensor map from this tile: fence.proxy.async.shared::cta in each thread
    // that wrote it, then __syncthreads(), then one thread copies, commits and waits for its group.
}}
#endif
"""


def source(m: Description, arguments: dict[str, Any], start: Start, rows: int) -> str:
    """The text of `TensorMap.cpp`.

    `arguments` are the driver's, `rows` those of the copy with its halo, and `start` is that of the
    example of a launch.
    """
    if m.swizzle not in UNSWIZZLED or m.interleave != "none":
        raise ValueError(
            f"no kernel is written for swizzle {m.swizzle} and interleave {m.interleave}, but "
            f"for swizzles {', '.join(UNSWIZZLED)} without interleave"
        )
    parameters = PARAMETERS[arguments["function"]]
    arrays = "\n".join(_arrays({name: arguments[name] for name in parameters}))
    letters = m.dims if m.mode != "tiled" else [f"i{n}" for n in range(m.rank)]
    row_bytes = m.channels * m.itemsize
    pitch = max(row_bytes, m.span)
    tile_bytes = -(-rows * pitch // LINE) * LINE
    if tile_bytes > STATIC_BYTES:
        raise ValueError(
            f"the tile has {tile_bytes} bytes, but the kernel's static shared memory at most "
            f"{STATIC_BYTES}; take a map of fewer pixels or channels"
        )
    copy = instruction(m.mode, *start.operands, dst="%0")
    head, _, tail = copy.partition("[map, {")
    numbers = ", ".join(f"%{3 + n}" for n in range(m.rank))
    copy = f"{head}[%1, {{{numbers}}}{tail[tail.index('}') + 1 :]}".replace("[mbar]", "[%2]")
    return SOURCE.format(
        arch="sm_100a" if m.wide else "sm_90a",
        cuda="13.0" if m.wide else "12.7",
        shape=m.shape,
        element=m.element,
        arrays=arrays,
        function=arguments["function"],
        arguments=",\n".join(f"        {_argument(x, arguments[x])}" for x in parameters),
        rows=rows,
        row_bytes=row_bytes,
        pitch=pitch,
        tile_bytes=tile_bytes,
        axes=", ".join(letters),
        call=", ".join(str(coordinate) for coordinate in start.coords[::-1]),
        names=", ".join(f"int {letter}" for letter in letters[::-1]),
        alignment=LINE if m.swizzle == "none" else PATTERN,
        copy=copy,
        operands=", ".join(f'"r"({letter})' for letter in letters[::-1]),
        unswizzled=UNSWIZZLED[m.swizzle],
    )


def _arrays(arguments: dict[str, object]) -> Iterator[str]:
    """Declarations of the arrays among the driver's arguments; rank 1 has no strides."""
    for name, value in arguments.items():
        if isinstance(value, tuple):
            numbers = ", ".join(map(str, value)) or "0"
            yield f"    const {WORD_TYPES.get(name, 'int')} {name}[] = {{{numbers}}};"


def _argument(name: str, value: object) -> str:
    if name == "globalAddress":
        return "x"
    return name if isinstance(value, tuple) else str(value)
