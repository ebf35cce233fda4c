"""The parameters of a GPU kernel's launch, as named tuples of plain numbers."""

from typing import NamedTuple

from implicit_conv.kernels.geometry import Geometry


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
    views_at: int
    barriers_at: int


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
