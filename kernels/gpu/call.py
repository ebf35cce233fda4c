"""What one launch tells a GPU kernel, as named tuples of plain numbers."""

from typing import NamedTuple

from implicit_conv.kernels.geometry import Geometry


class Call(NamedTuple):
    """What a launch tells a kernel besides the Geometry: addresses, byte strides, counts."""

    x: int
    w: int
    bias: int  # 0: none
    residual: int  # 0: none
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
    a_stages: int
    b_stages: int
    a_buffer: int  # bytes of a phase buffer
    a_stage: int  # bytes of all phase buffers of a stage
    b_stage: int
    a_load: int  # bytes that the loads of a stage report
    b_load: int
    a_at: int  # offsets in the block's shared memory
    b_at: int
    staging_at: int
    rows_at: int
    views_at: int
    barriers_at: int


class Limits(NamedTuple):
    """Bounds of a clamp; `low` doubles as a leaky ReLU's slope."""

    low: float
    high: float


class Params(NamedTuple):
    """All of the blob; to a kernel the maps are addresses, in the simulator they are values."""

    activation_map: object
    filter_map: object
    call: Call
    geometry: Geometry
    limits: Limits
