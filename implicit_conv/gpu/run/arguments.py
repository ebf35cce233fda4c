"""The arguments of a launch: from a choice and the places of its arrays to the kernel's Call."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.direct import direct_tiles
from implicit_conv.kernels import schedule
from implicit_conv.kernels.gpu.call import Call, reciprocal
from implicit_conv.problem.options import LAYOUTS, WEIGHT_LAYOUTS


class DeviceArray(NamedTuple):
    """An array in device memory: address and byte strides."""

    address: int
    strides: tuple[int, ...]


NOWHERE = DeviceArray(0, (0, 0, 0, 0))


def arguments(
    choice: Choice,
    x: DeviceArray,
    w: DeviceArray,
    y: DeviceArray,
    bias: int = 0,
    residual: DeviceArray = NOWHERE,
) -> Call:
    """The Call of one launch; arrays have the view's layouts, `bias` is an address (0: none)."""
    groups, tiles_m, tiles_n = choice.tiles
    axes = LAYOUTS[choice.view.layout]
    filter_axes = WEIGHT_LAYOUTS[choice.view.weight_layout]
    g, wide = choice.geometry, choice.variant.wide
    row_tiles = tiles_m // g.P
    image, row = (g.slots, row_tiles) if wide else (g.P * g.Q, g.Q)
    if choice.variant.strip:
        row_tiles = row = direct_tiles(g, choice.variant).strips
        image = g.P * row
    divisors = {
        "group": tiles_m * tiles_n,
        "panel": tiles_n,
        "image": image,
        "row": row,
        "dilation": g.dilation_h,
        "phases": g.phases_w,
        "step": g.step_w,
    }
    counts = {
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tiles": groups * tiles_m * tiles_n,
        "row_tiles": row_tiles,
        "rows": g.N * g.P * g.Q,
        "k_blocks": int(schedule.block_count(g)),
        **{f"by_{name}": reciprocal(divisor) for name, divisor in divisors.items()},
    }
    shared = choice.layout._asdict()
    del shared["total"]  # the driver is told it, not the kernel
    steps = _strides("x", "nhwc", x, axes)
    if choice.variant.folded:  # columns of x are elements
        steps["x_w"] = steps["x_c"]
    return Call(
        x=x.address,
        w=w.address,
        bias=bias,
        residual=residual.address,
        y=y.address,
        **steps,
        **_strides("w", "kcrs", w, filter_axes),
        **_strides("y", "npqk", y, axes),
        **_strides("residual", "npqk", residual, axes),
        **counts,
        **shared,
    )


def _strides(name: str, letters: str, array: DeviceArray, axes: tuple[int, ...]) -> dict[str, int]:
    """The fields of Call that hold the byte strides of an array: x_n, x_h, ..."""
    return {
        f"{name}_{letter}": array.strides[axis] for letter, axis in zip(letters, axes, strict=True)
    }
