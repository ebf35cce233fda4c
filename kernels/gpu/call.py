"""The parameters of a GPU kernel's launch: named tuples of plain numbers, and their bytes."""

from typing import NamedTuple, TypeAlias

import numpy as np

from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.sizes import MAP_BYTES

Floats: TypeAlias = tuple[float, ...]  # in registers
Ints: TypeAlias = tuple[int, ...]

INDICES = 1 << 31  # indices of rows and tiles that are divided are less


def reciprocal(divisor: int) -> int:
    """What `integer.divide` divides by: a multiplier of 32 bits, and above it a shift.

    With l = ceil(log2 divisor), n * ceil(2**(31 + l) / divisor) / 2**(31 + l) exceeds n / divisor
    by less than n / 2**31 / divisor, so its floor is right for all n below 2**31 (Granlund and
    Montgomery, "Division by invariant integers using multiplication", 1994).
    """
    shift = (divisor - 1).bit_length()
    multiplier = -(-(1 << 31 + shift) // divisor)
    return multiplier | shift << 32


class Call(NamedTuple):
    """Addresses, byte strides, counts and the layout of shared memory of one launch."""

    x: int
    w: int
    bias: int  # 0: no bias
    residual: int  # 0: no residual
    y: int
    x_n: int
    x_h: int
    x_w: int
    x_c: int
    w_k: int
    w_c: int
    w_r: int
    w_s: int
    y_n: int
    y_p: int
    y_q: int
    y_k: int
    residual_n: int
    residual_p: int
    residual_q: int
    residual_k: int
    tiles_m: int  # of one group
    tiles_n: int
    tiles: int  # of all groups
    row_tiles: int  # gemm_m tiles of an output row, where a tile has one row; or its strips
    rows: int  # output pixels of all images
    k_blocks: int  # channel blocks of a filter tap
    splits: int  # of the pixels of a weight gradient
    by_group: int  # reciprocals: of the tiles of a group,
    by_panel: int  # of tiles_n,
    by_image: int  # of an image's pixels, its slots where a tile has one row, or its strips,
    by_row: int  # of Q, or of row_tiles,
    by_dilation: int  # of dilation_h,
    by_phases: int  # of phases_w,
    by_step: int  # of step_w
    a_stages: int
    b_stages: int
    a_buffer: int  # bytes of a phase buffer
    a_stage: int  # bytes of all phase buffers of a stage
    b_stage: int
    a_load: int  # bytes that the tensor copies of a stage report to its barrier
    b_load: int
    a_at: int  # offsets in the block's shared memory
    b_at: int
    staging_at: int
    rows_at: int
    tap_tables_at: int
    barriers_at: int


NO_CALL = Call(*[0] * len(Call._fields))


class Limits(NamedTuple):
    """Bounds of a clamp; for a leaky ReLU, `low` is the slope."""

    low: float
    high: float


class Params(NamedTuple):
    """Everything in the blob; the maps are addresses."""

    activation_map: object
    filter_map: object
    call: Call
    geometry: Geometry
    limits: Limits


def pack(
    activation_map: bytes | None,
    filter_map: bytes | None,
    call: Call,
    geometry: Geometry,
    limits: tuple[float, float],
) -> bytes:
    """The bytes of the params blob, which blob.py unpacks in a kernel.

    A map is None where the kernel does not use it.
    """
    maps = [bytes(MAP_BYTES) if map is None else map for map in (activation_map, filter_map)]
    numbers = [
        np.array(call, np.int64).tobytes(),
        np.array(geometry, np.int32).tobytes(),
        np.array(limits, np.float32).tobytes(),
    ]
    blob = b"".join([*maps, *numbers])
    return blob + bytes(-len(blob) % 8)  # a struct's size is a multiple of its alignment
