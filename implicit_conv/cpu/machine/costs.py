"""Costs: what the parts of a call take on one family of CPUs, as numbers that `perf fit` measures.

A method's formula stands beside the method and takes its numbers from the table of the CPU. The
unit is the cycle of one core, in which it starts two FMAs of whole vectors; other units are named.
The numbers here are those of EPYC 9004 and 9005 (Zen 4 and 5, AVX-512), fitted by hand on one
thread of each, mostly by leaving a part out, 2026-11. Other tables say what differs from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

FMAS_PER_CYCLE = 2  # vector FMAs that a core starts in a cycle: the unit of all costs

Cycles: TypeAlias = float  # of one core
Rate: TypeAlias = float  # bytes a cycle
Seconds: TypeAlias = float
Number: TypeAlias = float  # a count, or a share of something else


class Common(NamedTuple):
    """Costs that several methods share."""

    loads_per_cycle: Number = 2  # vector loads that a core starts in a cycle
    fma_latency: Cycles = 4  # from an FMA to the next one on the same sum
    copy: Cycles = 1 / 8  # per element of a channels-last row that is copied
    transpose: Cycles = 1 / 3  # per element that is transposed while it is copied
    plane_row: Cycles = 8  # fixed, per row of a plane that is copied
    unaligned_load: Cycles = 0.9  # per vector load from rows that share few sets of a cache
    displaced: Cycles = 2.5  # to read an element that others displace, see CpuArch.kept_lines
    pack_filter: Cycles = 0.65  # per element of a filter that is packed as a whole
    pack_panel: Cycles = 0.5  # per element of a panel that is packed just before its use
    far_bytes: Rate = 12  # that a core reads from the last-level cache
    memory_bytes: Rate = 8  # that a core reads from memory
    far_row: Cycles = 600  # to begin a row of a result that the last-level cache does not keep
    far_share: Number = 0.2  # share of the reads beyond L2 that multiplications do not hide
    item: Cycles = 500  # fixed, per work item: to decode it, to call parts, to end loops


class Threads(NamedTuple):
    """What threads cost."""

    # Operations that pay for another thread, whose wake-up takes about 2 us.
    flops: Number = 2e6
    bytes: Number = 256e3  # bytes of x, w and y that pay for another thread: 10 us of copying
    # Share of a work item's time for which all threads wait for the last one.
    interruption: Number = 0.1
    shared_panels: Number = 0.15  # slowdown if a thread reads panels that another thread packed


class Gemm(NamedTuple):
    """Implicit GEMM, in place or from row buffers."""

    amx: Cycles = 2.0  # per element (tap x pair) of one AMX tile of pixels and two of filters
    pairs: Number = 1  # FMAs in the time of a dot product of pairs of bfloat16
    quads: Number = 1  # FMAs in the time of a dot product of four integers of 8 bits
    spread: Number = 0  # slowdown of register tiles whose pixels share few sets of L1, beyond 1
    # Of a sum at most that four vectors of filters add up faster than two.
    wide_elements: Number = 0
    tile_pixel: Cycles = 100 / 14  # fixed, per pixel of a register tile, without its sums
    run: Cycles = 25  # fixed, per run of a register tile's taps
    pixel_copy: Cycles = 4  # to copy a pixel of one group, at least
    load_row: Cycles = 100  # fixed, per buffered row
    # Share of the time that a panel takes to arrive, beyond the time of its first register tile,
    # that small register tiles wait: 49 pixels and 2,048 filters of 1,024 channels took 1.05 times
    # as long as copied ones, 196 pixels and 256 filters 0.97 times (Zen 4).
    first_read: Number = 0.3
    # `Common.pack_filter` where the rows of a panel are contiguous.
    transposed_pack_filter: Cycles = 0.4
    transposed_pack_panel: Cycles = 0.2
    transposed_image: Cycles = 16000  # fixed, per image whose pixels are the lanes


class PlanarGemm(NamedTuple):
    """GEMM whose lanes are pixels."""

    unaligned: Number = 4.0  # a vector load of pixels in place or amid a row, in loads of filters
    aligned: Number = 4.0  # the same from the rows of a copy that filters of one tap read
    # Per element and register tile, where it reads x in place, and each channel is on pages of its
    # own that are too many for the first level of address translation.
    page: Cycles = 0
    keep: Number = 1  # of the first panel: what copying a vector of pixels adds to its load
    kept: Number = 1  # `aligned` of such copies, which lie in order
    segment: Cycles = 0  # fixed, per part of an image row that is stored
    far_store: Cycles = 0  # per byte of planes of a result that the last-level cache does not keep
    sums: Cycles = 2  # per vector of sums: to initialise, clamp and store it
    staged: Cycles = 0.5  # per element of x or y in NHWC that is copied to or from a flat row
    gather: Cycles = 4  # per element to gather the pixels that dot products compute
    filter: Cycles = 10  # per element of a filter that is copied to KCRS order, in one thread
    large_filter: Cycles = 10  # the same of one that numpy copies, of more than LARGEST_COPY bytes
    pixel_row: Cycles = 25  # fixed, per row of pixels that is transposed
    call: Cycles = 25  # fixed, per register tile of several taps
    dot: Cycles = 30  # fixed, per register tile of dot products: to add up lanes


class Winograd(NamedTuple):
    """Winograd's transforms and products."""

    sums: Cycles = 60  # fixed, per register tile: to initialise and store its sums
    plane: Cycles = 25  # fixed, per register tile for each filter plane but one
    tile: Cycles = 10  # fixed, per m x m tile: to locate and to transform it
    tile_row: Cycles = 40  # fixed, per row of m x m tiles
    # Fixed, to load or store a part of an image row in NCHW: 6 were seen for 56 x 56 pixels, and 20
    # for 390 x 390, beyond the caches.
    segment: Cycles = 16
    staged: Cycles = 0.3  # per element of y that is copied from the staging tile
    far_transform: Number = 2.5  # slowdown of transforms whose data does not fit in L2
    filter: Cycles = 0.12  # per element of a transformed filter
    transform2: Cycles = 2.0  # per vector of a tile of 2 x 2 outputs, input or output
    transform4: Cycles = 5.0
    transform6: Cycles = 4.5
    line: Number = 0.5  # share of these of tiles with one row or column


class Depthwise(NamedTuple):
    """Depthwise convolutions whose lanes are channels, and small groups."""

    row: Cycles = 200  # fixed, per row that is read in place: its tap tables
    border: Cycles = 5  # per vector and tap of pixels at the border, which are summed singly
    border_taps: Number = 0.75  # share of a filter's taps that pixels at the border multiply
    streamed_bytes: Rate = 17  # of x that is read in place, and of y
    # Per line of a vector that left L1 too early and is read again: two unless it is aligned.
    crowded: Cycles = 6
    hiding_loads: Number = 4  # the loads whose FMAs hide a part of that
    crossing: Cycles = 1.0  # per load of x that crosses a line
    near_share: Number = 0.75  # share of L1 that keeps what the next output row reads again
    again: Cycles = 1.5  # per line that the next output row reads again from L2
    # Slowdown of each tap of x that is read in place, if taps share no loads.
    far_taps: Number = 1.35
    piece: Cycles = 45  # by which a copy of a few channels of a far pixel is slower
    buffer: Cycles = 0.45  # per element of a channels-last buffer: to copy and to read it
    copied: Cycles = 16  # fixed, to copy the channels of a pixel
    tap: Cycles = 120  # fixed, per tap of a copied tile
    call: Cycles = 30  # fixed, per call of a microkernel of few sums
    swap: Cycles = 0.6  # per element that is transposed into or out of a buffer
    vector: Cycles = 10  # fixed, per vector of channels: loop ends
    group_fmas: Number = 1.15  # slowdown of FMAs by the instructions between them, of small groups
    spread: Cycles = 0.8  # to load a vector and to repeat one channel of each of its groups


class Planes(NamedTuple):
    """Depthwise convolutions whose lanes are pixels: rows copied, in place, or in one pass."""

    staged: Cycles = 80  # fixed, per plane that goes through the staging tile
    strided: Cycles = 0.35  # per element of a plane with strided pixels: to load and to store
    tap: Cycles = 0.75  # per vector of pixels and tap
    shift: Cycles = 0  # per lane, to shift a vector whose lanes change halves
    phase: Cycles = 0.35  # per element of a row that is split into the phases of stride 2
    vector: Cycles = 3  # fixed, per vector of pixels: loop ends and clamp
    entry: Cycles = 40  # per row of a work item: its entry in the table of loads
    call: Cycles = 30  # fixed, per plane: the call of a microkernel
    # Rows in place: per vector of sums and tap, of rows of at most a vector.
    short_tap: Cycles = 0.75
    short_vector: Cycles = 3  # fixed, per vector of sums
    long_tap: Cycles = 1.0  # of longer rows
    long_vector: Cycles = 3
    strided_tap: Cycles = 1.3  # with stride 2
    strided_vector: Cycles = 8
    channel: Cycles = 20  # fixed, per channel and load tile of rows in place
    # All stride phases in one pass: fixed, per register tile, row and vector.
    one_pass_tile: Cycles = 6


class FewOutputs(NamedTuple):
    """Rows of pixels times filters, whose lanes are channels."""

    near_bytes: Rate = 43  # of pixels that a core reads from L2
    widened_loads: Number = 2  # slowdown of a vector load that widens 16-bit floats
    pixel: Cycles = 3  # per pixel of a register tile: to add up its lanes and store it
    tile: Cycles = 4  # fixed, per register tile


class WeightGrad(NamedTuple):
    """Weight gradients."""

    tile: Cycles = 80  # fixed, per register tile and load tile
    # Depthwise planes: per element that is transposed, beyond `transpose`.
    plane_element: Cycles = 0.35
    panel_row: Cycles = 250  # the same: fixed, per row of a panel
    # Fixed, per row of a channel that a register tile reads in place from planes; 0 where they were
    # not timed, so that they are copied.
    plane_row: Cycles = 0
    expand: Cycles = 1  # per element of x that is repeated for the filters of its group
    sums: Cycles = 2  # to add a vector to the sums in memory
    byte: Cycles = 1 / 32  # planes in place: per byte of x, whose loads hide shuffles and FMAs
    vector: Cycles = 1.5  # fixed, per vector of dy and pass: to load it, and to end loops
    row: Cycles = 8  # fixed, per output row and pass: vectors at both ends, which need masks
    channel: Cycles = 30  # fixed, per channel, load tile and pass
    reduce: Cycles = 4  # to add the lanes of a vector, and to store the sum


class Transposed(NamedTuple):
    """Input gradients and transposed convolutions."""

    spread_tap: Cycles = 0.75  # per element of w for each phase that reads its taps, a stride apart
    # Per element of a far y, for each phase that writes a part of its line.
    spread_pixel: Cycles = 0.6
    spread_store: Cycles = 0.0  # per element of y that is stored a stride apart
    slow_spread_store: Cycles = 5.0  # the same, with strides beyond MOST_APART
    phase_launch: Seconds = 8e-6  # fixed, per phase: Python starts its launch
    pack: Cycles = 1.0  # per element of w, where one pass packs all phases
    product: Cycles = 0.4  # fold: per product that is added
    finish: Cycles = 0.15  # fold: per element of y
    single: Cycles = 2.5  # fold: per short stride of a row of windows that is summed alone
    block: Cycles = 30000  # fold: fixed, per block


@dataclass(frozen=True)
class Costs:
    """The costs on one family of CPUs; equal names stand for equal numbers.

    Attributes
    ----------
    name : str
        The family.
    made : str
        How the numbers came about, in words.
    """

    name: str
    made: str
    common: Common
    threads: Threads
    gemm: Gemm
    planar_gemm: PlanarGemm
    winograd: Winograd
    depthwise: Depthwise
    planes: Planes
    few_outputs: FewOutputs
    weight_grad: WeightGrad
    transposed: Transposed

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<Costs {self.name}>"


GROUPS = tuple(Costs.__annotations__)[2:]  # the names of its groups

EPYC = Costs(
    "AMD EPYC with AVX-512",
    "fitted by hand on EPYC 9004 and 9005",
    Common(),
    Threads(),
    Gemm(),
    PlanarGemm(),
    Winograd(),
    Depthwise(),
    Planes(),
    FewOutputs(),
    WeightGrad(),
    Transposed(),
)
# `PlanarGemm.page` was set before and not fitted: arrays that take turns, which no cache has, show
# more of it than those of a fit, 10 % of 256 channels at 56 x 56. `PlanarGemm.keep` and `kept` were
# set by 27 layers after the fit, `PlanarGemm.filter` by 7, `Gemm.wide_elements` by 32, and
# `WeightGrad.plane_row` by 14.
XEON = Costs(
    "Intel Xeon with AVX-512",
    "fitted by `perf fit` to 827 layers, 2026-11-29",
    Common(
        loads_per_cycle=2.565,
        fma_latency=2.551,
        copy=0.3602,
        transpose=0.3656,
        plane_row=3.135,
        unaligned_load=1.054,
        displaced=1.942,
        pack_filter=0.9815,
        pack_panel=0.554,
        far_bytes=11.01,
        memory_bytes=8.606,
        far_row=497.6,
        far_share=0.2595,
        item=569.4,
    ),
    Threads(),
    Gemm(
        amx=4.338,
        pairs=3.285,
        spread=0.1169,
        wide_elements=192,
        tile_pixel=6.834,
        run=15.98,
        pixel_copy=6.014,
        load_row=338.8,
        first_read=0.2845,
        transposed_pack_filter=0.8495,
        transposed_pack_panel=0.3825,
        transposed_image=16530,
    ),
    PlanarGemm(
        unaligned=8.492,
        aligned=8.132,
        page=2.2,
        keep=5.0,
        kept=5.6,
        segment=29.42,
        far_store=0.08115,
        sums=1.392,
        staged=0.6499,
        gather=6.482,
        filter=1.5,
        pixel_row=27.76,
        call=21.7,
        dot=35.18,
    ),
    Winograd(
        sums=75.36,
        tile=11.22,
        tile_row=46.51,
        segment=30.09,
        staged=0.3096,
        far_transform=3.839,
        filter=0.1024,
        transform2=2.851,
    ),
    Depthwise(
        row=162.2,
        streamed_bytes=32.99,
        crowded=4.829,
        hiding_loads=4.701,
        crossing=0.5639,
        near_share=0.7737,
        again=1.565,
        piece=47.95,
        buffer=0.3784,
        copied=14.7,
        tap=77.6,
        call=33.4,
        swap=0.8271,
        vector=6.158,
        group_fmas=1.352,
        spread=1.088,
    ),
    Planes(
        staged=79.52,
        tap=0.6119,
        phase=0.2368,
        vector=3.895,
        entry=36.95,
        call=25.66,
        short_tap=0.4643,
        short_vector=1.728,
        long_tap=0.9956,
        long_vector=4.117,
        strided_tap=1.466,
        strided_vector=11.69,
        channel=46.21,
    ),
    FewOutputs(near_bytes=81.07, widened_loads=1.698, pixel=5.263, tile=5.134),
    WeightGrad(plane_row=8),
    Transposed(),
)
AVX2 = replace(
    EPYC,
    name="AVX2",
    made="those of AMD EPYC, and what differs on an EPYC 7003",
    planar_gemm=EPYC.planar_gemm._replace(unaligned=1.5, aligned=1.5),
    planes=EPYC.planes._replace(shift=1 / 8),
    transposed=EPYC.transposed._replace(spread_store=5.0),
)
INTEL_AVX2 = replace(
    AVX2,
    name="Intel with AVX2",
    made="those of AVX2, and what pages cost an Intel Xeon",
    planar_gemm=AVX2.planar_gemm._replace(page=2.2, keep=0.5, kept=1.2),
)
NARROW = replace(
    EPYC,
    name="128 bits",
    made="those of AMD EPYC, since none were measured on such a CPU",
    planar_gemm=EPYC.planar_gemm._replace(unaligned=1.25, aligned=1.25),
    transposed=EPYC.transposed._replace(spread_store=5.0),
)
