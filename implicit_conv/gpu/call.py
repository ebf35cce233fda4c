"""From a plan and arrays to the kernel's Call."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.gpu.plan import GpuPlan
from implicit_conv.kernels.gpu.call import Call
from implicit_conv.problem import LAYOUTS, WEIGHT_LAYOUTS


class DeviceArray(NamedTuple):
    """An array in device memory: address and byte strides."""

    address: int
    strides: tuple[int, ...]


NOWHERE = DeviceArray(0, (0, 0, 0, 0))


def call_of(
    plan: GpuPlan,
    x: DeviceArray,
    w: DeviceArray,
    y: DeviceArray,
    bias: int = 0,
    residual: DeviceArray = NOWHERE,
) -> Call:
    """The Call of one launch; arrays in the problem's layouts, `bias` an address (0: none)."""
    groups, tiles_m, tiles_n = plan.tiles
    layout = plan.layout
    axes, filter_axes = LAYOUTS[plan.problem.layout], WEIGHT_LAYOUTS[plan.problem.weight_layout]
    x_n, x_h, x_w, x_c = (x.strides[axis] for axis in axes)
    y_n, y_p, y_q, y_k = (y.strides[axis] for axis in axes)
    z_n, z_p, z_q, z_k = (residual.strides[axis] for axis in axes)
    w_k, w_c, w_r, w_s = (w.strides[axis] for axis in filter_axes)
    return Call(
        x=x.address, w=w.address, bias=bias, residual=residual.address, y=y.address, x_n=x_n,
        x_h=x_h, x_w=x_w, x_c=x_c, w_k=w_k, w_c=w_c, w_r=w_r, w_s=w_s, y_n=y_n, y_p=y_p, y_q=y_q,
        y_k=y_k, residual_n=z_n, residual_p=z_p, residual_q=z_q, residual_k=z_k, tiles_m=tiles_m,
        tiles_n=tiles_n, tiles=groups * tiles_m * tiles_n, a_stages=layout.a_stages,
        b_stages=layout.b_stages, a_buffer=layout.a_buffer, a_stage=layout.a_stage,
        b_stage=layout.b_stage, a_load=layout.a_load, b_load=layout.b_load, a_at=layout.a_at,
        b_at=layout.b_at, staging_at=layout.staging_at, rows_at=layout.rows_at,
        views_at=layout.views_at, barriers_at=layout.barriers_at,
    )  # fmt: skip
