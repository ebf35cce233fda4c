"""The kernel table: the addresses of an operator's parts, which compiled code calls by slot."""

from __future__ import annotations

from implicit_conv.kernels.geometry import ACTIVATIONS

# Slots of the parts; those with [indices] are the first of an array of slots. The GEMM's
# microkernels, [1, 2 or 4 vectors][groups][inner], begin at slot 0.
MOST_APART = 4  # elements from one pixel to the next that a row is spread to, at most
SCALES = 3  # ways to scale sums: not at all, filters along rows, filters along columns
HEIGHTS = 33  # end of an index that counts rows, pixels or filters of a register tile
TRANSPOSE_IN = 3 * HEIGHTS * HEIGHTS  # [step - 1][edge]: transposes of x
TRANSPOSE_OUT = TRANSPOSE_IN + 4  # [edge]: transposes into y
TRANSPOSE_WORDS = TRANSPOSE_OUT + 2  # [edge]: transposes of sums or words without conversion
TRANSPOSE_TAPS = TRANSPOSE_WORDS + 2  # [edge]: transposes of filters with contiguous taps
TRANSPOSE_FILTERS = TRANSPOSE_TAPS + 2  # [edge]: transposes of filters with contiguous channels
FEW_COLUMNS = TRANSPOSE_FILTERS + 2  # [edge]: transposes of filter rows with few taps
LOAD_TILE = FEW_COLUMNS + 2  # [channels apart][padding repeats pixels]: parts that load tiles
PACK_BLOCK = LOAD_TILE + 4  # [way]: parts that pack filters; GEMM has several ways
STORE_TILE = PACK_BLOCK + 7
WINOGRAD_INPUT = STORE_TILE + 1
WINOGRAD_FILTER = WINOGRAD_INPUT + 1
WINOGRAD_OUTPUT = WINOGRAD_FILTER + 1
DEPTHWISE = WINOGRAD_OUTPUT + 1  # [pixels]: depthwise microkernels, one tap per step
DEPTHWISE_ROW = DEPTHWISE + HEIGHTS  # [pixels]: depthwise microkernels, one filter row per step
DEPTHWISE_ROWS = DEPTHWISE_ROW + HEIGHTS  # [shape]: depthwise microkernels of several output rows
PLANES = DEPTHWISE_ROWS + HEIGHTS  # [rows]: depthwise microkernels of planes
PLANAR_GEMM = PLANES + HEIGHTS  # [rows][filters]: microkernels whose lanes are pixels
LOAD_ROWS = PLANAR_GEMM + HEIGHTS**2
GATHER_ROWS = LOAD_ROWS + 1
LOAD_PLANES = GATHER_ROWS + 1
REPEAT_EDGES = LOAD_PLANES + 1
SPREAD = REPEAT_EDGES + 1  # [elements from one pixel to the next]: parts that spread a row
WRITE_LOADS = SPREAD + MOST_APART + 1
FEW_OUTPUTS = WRITE_LOADS + 1  # the microkernel whose lanes are channels
LOAD_PIXELS = FEW_OUTPUTS + 1  # loads pixels without padding
LOAD_PANELS = LOAD_PIXELS + 1  # weight gradients: loads panels of dy
EXPAND = LOAD_PANELS + 1  # weight gradients: repeats channels for filters of their groups
ADD_SUMS = EXPAND + 1  # weight gradients: adds sums in memory
STORE_SUMS = ADD_SUMS + 1  # weight gradients: stores sums into dw
REDUCE_SUMS = STORE_SUMS + 1  # weight gradients: adds the lanes of sums
FINISH = REDUCE_SUMS + 1  # [scale][activation][residual]: parts that finish sums
STRIDED_ROWS = FINISH + SCALES * 2 * ACTIVATIONS  # depthwise gradients: all stride phases of rows
FOLD_INSIDE = STRIDED_ROWS + 1  # folds: adds windows within a row
FOLD_EDGE = FOLD_INSIDE + 1  # folds: adds windows at the ends of a row
SHIFTED_ROWS = FOLD_EDGE + 1  # [vectors of the last register tile]: depthwise, planes in place
LOAD_NOTHING = SHIFTED_ROWS + HEIGHTS  # the part in place of `LOAD_TILE` for pixels read in place
SLOTS = LOAD_NOTHING + 1


def microkernel_slot(vectors: int, groups: int, inner: int) -> int:
    """Slot of the GEMM's microkernel of a register tile."""
    return ((vectors >> 1) * HEIGHTS + groups) * HEIGHTS + inner


def planar_gemm_slot(filters: int, rows: int) -> int:
    """Slot of the microkernel of filters x output rows whose lanes are pixels; `rows` is 0 for the
    tail of a long row.
    """
    return PLANAR_GEMM + rows * HEIGHTS + filters


def first_panel_slot(filters: int, rows: int) -> int:
    """Slot of the microkernel that also copies the pixels for other panels; no operator has it and
    microkernels of the GEMM.
    """
    return rows * HEIGHTS + filters


def transpose_slot(way: int, step: int, edge: int) -> int:
    """Slot of the transpose that keeps every step-th column; `edge` for a partial block."""
    return way + 2 * (step - 1) + edge
