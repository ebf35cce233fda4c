"""Costs that several methods share, in cycles of one core unless another unit is stated.

They are orders of magnitude that hold for current cores. Those of single parts were measured on an
EPYC 9005 (Zen 5, AVX-512), one thread, by leaving the part out. Costs of one method stand in its
file.
"""

FMAS_PER_CYCLE = 2  # vector FMAs that a core starts in a cycle
LOADS_PER_CYCLE = 2  # vector loads that a core starts in a cycle
FMA_LATENCY = 4  # cycles from an FMA to the next one on the same sum
COPY_CYCLES = 1 / 8  # cycles per element of a channels-last row that is copied
TRANSPOSE_CYCLES = 1 / 3  # cycles per element that is transposed on its way
PLANE_ROW_CYCLES = 8  # fixed cycles per row of a plane that is copied
UNALIGNED_LOAD_CYCLES = 0.9  # cycles per vector load of rows that share few sets of a cache
PACK_CYCLES = (0.65, 0.5)  # cycles per packed filter element: whole filter, or just before its use
FAR_BYTES_PER_CYCLE = 12  # bytes per cycle of a core's stream from the last-level cache
MEMORY_BYTES_PER_CYCLE = 8  # bytes per cycle of a core's stream from memory
FAR_BYTES = 16 << 20  # bytes of a filter that the last-level cache keeps; a larger one is streamed
FAR_SHARE = 0.2  # share of such a stream that multiplications do not hide
ITEM_CYCLES = 500  # fixed cycles per work item: decoding it, calls, loop ends
INTERRUPTION = 0.1  # share of a work item's time that the threads wait for the last one

FLOPS_PER_THREAD = 2e6  # operations worth another thread, whose wake-up takes about 2 us
BYTES_PER_THREAD = 256e3  # bytes of x, w and y worth another thread: about 10 us of a copy
ITEMS_PER_THREAD = (4, 2, 1)  # choices; with more, an interrupted core delays the others less
BUFFER_SHARE = 0.5  # share of L2 that a thread's row buffers may fill
STAGED_BYTES = 320 << 10  # bytes of a thread's sums that wait for the next channel block in L2
