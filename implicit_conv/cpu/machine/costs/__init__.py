"""Costs: what the parts of a call take on one family of CPUs, as numbers that `perf fit` measures.

A method's formula stands beside the method and takes its numbers from the table of the CPU. The
unit is the cycle of one core, in which it starts two FMAs of whole vectors; other units are named.
The table of AMD EPYC stands here too, with those of CPUs that are known by what differs from it.
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

    loads_per_cycle: Number  # vector loads that a core starts in a cycle
    fma_latency: Cycles  # from an FMA to the next one on the same sum
    copy: Cycles  # per element of a channels-last row that is copied
    transpose: Cycles  # per element that is transposed while it is copied
    plane_row: Cycles  # fixed, per row of a plane that is copied
    unaligned_load: Cycles  # per vector load from rows that share few sets of a cache
    displaced: Cycles  # to read an element that others displace, see CpuArch.kept_lines
    pack_filter: Cycles  # per element of a filter that is packed as a whole
    pack_panel: Cycles  # per element of a panel that is packed just before its use
    far_bytes: Rate  # that a core reads from the last-level cache
    memory_bytes: Rate  # that a core reads from memory
    far_row: Cycles  # to begin a row of a result that the last-level cache does not keep
    far_share: Number  # share of the reads beyond L2 that multiplications do not hide
    item: Cycles  # fixed, per work item: to decode it, to call parts, to end loops


class Threads(NamedTuple):
    """What threads cost."""

    flops: Number  # operations that pay for another thread, whose wake-up takes about 2 us
    bytes: Number  # bytes of x, w and y that pay for another thread: 10 us of copying
    interruption: Number  # share of a work item's time for which all threads wait for the last one
    shared_panels: Number  # slowdown if a thread reads panels that another thread packed


class Gemm(NamedTuple):
    """Implicit GEMM, in place or from row buffers."""

    amx: Cycles  # per element (tap x pair) of one AMX tile of pixels and two of filters
    pairs: Number  # FMAs in the time of a dot product of pairs of bfloat16
    quads: Number  # FMAs in the time of a dot product of four integers of 8 bits
    spread: Number  # slowdown of register tiles whose pixels share few sets of L1, beyond 1
    wide_elements: Number  # of a sum at most that four vectors of filters add up faster than two
    tile_pixel: Cycles  # fixed, per pixel of a register tile, without its sums
    run: Cycles  # fixed, per run of a register tile's taps
    pixel_copy: Cycles  # to copy a pixel of one group, at least
    load_row: Cycles  # fixed, per buffered row
    # Share of the time that a panel takes to arrive, beyond the time of its first register tile,
    # that small register tiles wait.
    first_read: Number
    transposed_pack_filter: Cycles  # `Common.pack_filter` where the rows of a panel are contiguous
    transposed_pack_panel: Cycles
    transposed_image: Cycles  # fixed, per image whose pixels are the lanes


class PlanarGemm(NamedTuple):
    """GEMM whose lanes are pixels."""

    unaligned: Number  # a vector load of pixels in place or amid a row, in loads of filters
    aligned: Number  # the same from the rows of a copy that filters of one tap read
    # Per element and register tile, where it reads x in place, and each channel is on pages of its
    # own that are too many for the first level of address translation.
    page: Cycles
    keep: Number  # of the first panel: what copying a vector of pixels adds to its load
    kept: Number  # `aligned` of such copies, which lie in order
    segment: Cycles  # fixed, per part of an image row that is stored
    far_store: Cycles  # per byte of planes of a result that the last-level cache does not keep
    sums: Cycles  # per vector of sums: to initialise, clamp and store it
    staged: Cycles  # per element of x or y in NHWC that is copied to or from a flat row
    gather: Cycles  # per element to gather the pixels that dot products compute
    filter: Cycles  # per element of a filter that is copied to KCRS order, in one thread
    large_filter: Cycles  # the same of one that numpy copies, of more than LARGEST_COPY bytes
    pixel_row: Cycles  # fixed, per row of pixels that is transposed
    call: Cycles  # fixed, per register tile of several taps
    dot: Cycles  # fixed, per register tile of dot products: to add up lanes


class Winograd(NamedTuple):
    """Winograd's transforms and products."""

    sums: Cycles  # fixed, per register tile: to initialise and store its sums
    plane: Cycles  # fixed, per register tile for each filter plane but one
    tile: Cycles  # fixed, per m x m tile: to locate and to transform it
    tile_row: Cycles  # fixed, per row of m x m tiles
    segment: Cycles  # fixed, to load or store a part of an image row in NCHW
    staged: Cycles  # per element of y that is copied from the staging tile
    far_transform: Number  # slowdown of transforms whose data does not fit in L2
    filter: Cycles  # per element of a transformed filter
    transform2: Cycles  # per vector of a tile of 2 x 2 outputs, input or output
    transform4: Cycles
    transform6: Cycles
    line: Number  # share of these of tiles with one row or column


class Depthwise(NamedTuple):
    """Depthwise convolutions whose lanes are channels, and small groups."""

    row: Cycles  # fixed, per row that is read in place: its tap tables
    border: Cycles  # per vector and tap of pixels at the border, which are summed singly
    border_taps: Number  # share of a filter's taps that pixels at the border multiply
    streamed_bytes: Rate  # of x that is read in place, and of y
    # Per line of a vector that left L1 too early and is read again: two unless it is aligned.
    crowded: Cycles
    hiding_loads: Number  # the loads whose FMAs hide a part of that
    crossing: Cycles  # per load of x that crosses a line
    near_share: Number  # share of L1 that keeps what the next output row reads again
    again: Cycles  # per line that the next output row reads again from L2
    far_taps: Number  # slowdown of each tap of x that is read in place, if taps share no loads
    piece: Cycles  # by which a copy of a few channels of a far pixel is slower
    buffer: Cycles  # per element of a channels-last buffer: to copy and to read it
    copied: Cycles  # fixed, to copy the channels of a pixel
    tap: Cycles  # fixed, per tap of a copied tile
    call: Cycles  # fixed, per call of a microkernel of few sums
    swap: Cycles  # per element that is transposed into or out of a buffer
    vector: Cycles  # fixed, per vector of channels: loop ends
    group_fmas: Number  # slowdown of FMAs by the instructions between them, of small groups
    spread: Cycles  # to load a vector and to repeat one channel of each of its groups


class Planes(NamedTuple):
    """Depthwise convolutions whose lanes are pixels: rows copied, in place, or in one pass."""

    staged: Cycles  # fixed, per plane that goes through the staging tile
    strided: Cycles  # per element of a plane with strided pixels: to load and to store
    tap: Cycles  # per vector of pixels and tap
    shift: Cycles  # per lane, to shift a vector whose lanes change halves
    phase: Cycles  # per element of a row that is split into the phases of stride 2
    vector: Cycles  # fixed, per vector of pixels: loop ends and clamp
    entry: Cycles  # per row of a work item: its entry in the table of loads
    call: Cycles  # fixed, per plane: the call of a microkernel
    short_tap: Cycles  # rows in place: per vector of sums and tap, of rows of at most a vector
    short_vector: Cycles  # fixed, per vector of sums
    long_tap: Cycles  # of longer rows
    long_vector: Cycles
    strided_tap: Cycles  # with stride 2
    strided_vector: Cycles
    channel: Cycles  # fixed, per channel and load tile of rows in place
    one_pass_tile: Cycles  # all stride phases in one pass: fixed, per register tile, row and vector


class FewOutputs(NamedTuple):
    """Rows of pixels times filters, whose lanes are channels."""

    near_bytes: Rate  # of pixels that a core reads from L2
    widened_loads: Number  # slowdown of a vector load that widens 16-bit floats
    pixel: Cycles  # per pixel of a register tile: to add up its lanes and store it
    tile: Cycles  # fixed, per register tile


class WeightGrad(NamedTuple):
    """Weight gradients."""

    tile: Cycles  # fixed, per register tile and load tile
    plane_element: Cycles  # depthwise planes: per element that is transposed, beyond `transpose`
    panel_row: Cycles  # the same: fixed, per row of a panel
    # Fixed, per row of a channel that a register tile reads in place from planes; 0 where they were
    # not timed, so that they are copied.
    plane_row: Cycles
    expand: Cycles  # per element of x that is repeated for the filters of its group
    sums: Cycles  # to add a vector to the sums in memory
    byte: Cycles  # planes in place: per byte of x, whose loads hide shuffles and FMAs
    vector: Cycles  # fixed, per vector of dy and pass: to load it, and to end loops
    row: Cycles  # fixed, per output row and pass: vectors at both ends, which need masks
    channel: Cycles  # fixed, per channel, load tile and pass
    reduce: Cycles  # to add the lanes of a vector, and to store the sum


class Transposed(NamedTuple):
    """Input gradients and transposed convolutions."""

    spread_tap: Cycles  # per element of w for each phase that reads its taps, a stride apart
    spread_pixel: Cycles  # per element of a far y, for each phase that writes a part of its line
    spread_store: Cycles  # per element of y that is stored a stride apart
    slow_spread_store: Cycles  # the same, with strides beyond MOST_APART
    phase_launch: Seconds  # fixed, per phase: Python starts its launch
    pack: Cycles  # per element of w, where one pass packs all phases
    product: Cycles  # fold: per product that is added
    finish: Cycles  # fold: per element of y
    single: Cycles  # fold: per short stride of a row of windows that is summed alone
    block: Cycles  # fold: fixed, per block


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


# EPYC 9004 and 9005 (Zen 4 and 5, AVX-512): fitted by hand, mostly by leaving a part out, on one
# thread of each, 2026-11; what differs with AVX2 on an EPYC 7003 (Zen 3).
EPYC = Costs(
    "AMD EPYC with AVX-512",
    "fitted by hand on EPYC 9004 and 9005",
    Common(
        loads_per_cycle=2,
        fma_latency=4,
        copy=1 / 8,
        transpose=1 / 3,
        plane_row=8,
        unaligned_load=0.9,
        displaced=2.5,
        pack_filter=0.65,
        pack_panel=0.5,
        far_bytes=12,
        memory_bytes=8,
        far_row=600,
        far_share=0.2,
        item=500,
    ),
    Threads(
        flops=2000000.0,
        bytes=256000.0,
        interruption=0.1,
        shared_panels=0.15,
    ),
    Gemm(
        amx=2.0,
        pairs=1,
        quads=1,
        spread=0,
        wide_elements=0,
        tile_pixel=100 / 14,
        run=25,
        pixel_copy=4,
        load_row=100,
        # 49 pixels and 2,048 filters of 1,024 channels took 1.05 times as long as copied ones so,
        # 196 pixels and 256 filters 0.97 times (Zen 4).
        first_read=0.3,
        transposed_pack_filter=0.4,
        transposed_pack_panel=0.2,
        transposed_image=16000,
    ),
    PlanarGemm(
        unaligned=4.0,
        aligned=4.0,
        page=0,
        keep=1,
        kept=1,
        segment=0,
        far_store=0,
        sums=2,
        staged=0.5,
        gather=4,
        filter=10,
        large_filter=10,
        pixel_row=25,
        call=25,
        dot=30,
    ),
    Winograd(
        sums=60,
        plane=25,
        tile=10,
        tile_row=40,
        segment=16,  # 6 were seen for 56 x 56 pixels, and 20 for 390 x 390, beyond the caches
        staged=0.3,
        far_transform=2.5,
        filter=0.12,
        transform2=2.0,
        transform4=5.0,
        transform6=4.5,
        line=0.5,
    ),
    Depthwise(
        row=200,
        border=5,
        border_taps=0.75,
        streamed_bytes=17,
        crowded=6,
        hiding_loads=4,
        crossing=1.0,
        near_share=0.75,
        again=1.5,
        far_taps=1.35,
        piece=45,
        buffer=0.45,
        copied=16,
        tap=120,
        call=30,
        swap=0.6,
        vector=10,
        group_fmas=1.15,
        spread=0.8,
    ),
    Planes(
        staged=80,
        strided=0.35,
        tap=0.75,
        shift=0,
        phase=0.35,
        vector=3,
        entry=40,
        call=30,
        short_tap=0.75,
        short_vector=3,
        long_tap=1.0,
        long_vector=3,
        strided_tap=1.3,
        strided_vector=8,
        channel=20,
        one_pass_tile=6,
    ),
    FewOutputs(
        near_bytes=43,
        widened_loads=2,
        pixel=3,
        tile=4,
    ),
    WeightGrad(
        tile=80,
        plane_element=0.35,
        panel_row=250,
        plane_row=0,
        expand=1,
        sums=2,
        byte=1 / 32,
        vector=1.5,
        row=8,
        channel=30,
        reduce=4,
    ),
    Transposed(
        spread_tap=0.75,
        spread_pixel=0.6,
        spread_store=0.0,
        slow_spread_store=5.0,
        phase_launch=8e-6,
        pack=1.0,
        product=0.4,
        finish=0.15,
        single=2.5,
        block=30000,
    ),
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
