"""Costs that several methods use, in cycles of one core unless another unit is stated.

They are orders of magnitude that hold for current cores. The costs of single parts were measured on
one thread of an EPYC 9005 (Zen 5, AVX-512), by leaving the part out. The costs of one method are in
its file.
"""

FMAS_PER_CYCLE = 2  # vector FMAs that a core starts in a cycle
LOADS_PER_CYCLE = 2  # vector loads that a core starts in a cycle
FMA_LATENCY = 4  # cycles from an FMA to the next one on the same sum
COPY_CYCLES = 1 / 8  # cycles per element of a channels-last row that is copied
TRANSPOSE_CYCLES = 1 / 3  # cycles per element that is transposed while it is copied
PLANE_ROW_CYCLES = 8  # fixed cycles per row of a plane that is copied
UNALIGNED_LOAD_CYCLES = 0.9  # cycles per vector load from rows that share few sets of a cache
# Cycles to read an element of a row that others displace from L1, see CpuArch.kept_lines; measured
# on an EPYC 9004 (Zen 4, 8 ways).
DISPLACED_CYCLES = 2.5
PACK_CYCLES = (0.65, 0.5)  # cycles per packed element: whole filter, panel just before its use
FAR_BYTES_PER_CYCLE = 12  # bytes per cycle that a core reads from the last-level cache
MEMORY_BYTES_PER_CYCLE = 8  # bytes per cycle that a core reads from memory
FAR_BYTES = 16 << 20  # bytes of the largest filter or result that the last-level cache keeps
FAR_ROW_CYCLES = 600  # cycles to begin a row of a result larger than FAR_BYTES, on Zen 4
FAR_SHARE = 0.2  # share of the reads beyond L2 that multiplications do not hide
ITEM_CYCLES = 500  # fixed cycles per work item: to decode it, to call parts, to end loops
INTERRUPTION = 0.1  # share of a work item's time for which all threads wait for the last one

FLOPS_PER_THREAD = 2e6  # operations that pay for another thread, whose wake-up takes about 2 us
BYTES_PER_THREAD = 256e3  # bytes of x, w and y that pay for another thread: 10 us of copying
ITEMS_PER_THREAD = (4, 2, 1)  # choices; with more items an interrupted core delays others less
BUFFER_SHARE = 0.5  # share of L2 that a thread's row buffers may fill
STAGED_BYTES = 320 << 10  # bytes of sums per thread that stay in L2 between channel blocks
