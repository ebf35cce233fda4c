"""Sizes that the host's plan and the kernels must agree on, each written here once.

Plain integers: planning imports them without numba-cuda.
"""

WARP = 32  # threads
MAP_BYTES = 128  # a tensor map
VECTOR_BYTES = 16  # the widest load, store or cp.async of one thread; its address is a multiple
PAIR_BYTES = 8  # a filter's scale and bias, both float32
COPY_SIZES = (16, 8, 4)  # bytes that a cp.async can copy; both its addresses are multiples

# Shared memory
SWIZZLE_ATOM_BYTES = 1024  # every swizzle pattern repeats after so many bytes
STAGE_BARRIERS_BYTES = 16  # the barriers of a stage: full, then empty
ROW_ENTRY_BYTES = 16  # an entry of the row table: image, first row, first column, unused
TAP_ENTRY_BYTES = 16  # an entry of the tables of taps and phase buffers (tap_tables.py)

# The staging tile in which the epilogue of a warp turns 16 x 32 accumulators into rows of y
CHUNK_ROWS, CHUNK_COLUMNS = 16, 32
STAGING_PITCH = 4 * CHUNK_COLUMNS + 16  # bytes of a row; the last 16 avoid bank conflicts
STAGING_BYTES = CHUNK_ROWS * STAGING_PITCH

# The kernel that returns one copy (dump.py): its barrier comes first, data begin at the next atom
DUMP_THREADS = WARP
DUMP_DATA_AT = SWIZZLE_ATOM_BYTES

COPY_BLOCKS = 8  # of a launch that copies, for each multiprocessor: they run together
COPY_WARPS = 8  # warps of a block that copies filters (phase_filters.py)

ITEMSIZES = {"bfloat16": 2, "float16": 2, "float32": 4}  # bytes of an element of x, w and y
