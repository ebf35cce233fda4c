"""Run a chosen kernel in the simulator: its own source, on numpy arrays.

The process must have been started with NUMBA_ENABLE_CUDASIM=1, the switch between hooks and twins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.dlpack import packed_strides
from implicit_conv.errors import PlanError
from implicit_conv.gpu.arguments import NOWHERE, DeviceArray, arguments
from implicit_conv.gpu.candidate import Choice
from implicit_conv.gpu.layout import buffers, region_names
from implicit_conv.gpu.maps import activation_map, filter_map
from implicit_conv.kernels.gpu import ptx
from implicit_conv.kernels.gpu.call import Call, Limits, Params

Array = npt.NDArray[Any]
MISALIGNMENT = 2  # bytes past a 16-byte boundary, for arrays that are loaded by elements


def simulate(
    choice: Choice,
    x: Array,
    w: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    blocks: int | None = None,
    seed: int = 0,
    record: list[Any] | None = None,
) -> Array:
    """y of `choice` for C-contiguous arrays in the view's layouts.

    Parameters
    ----------
    x, w, bias, residual : arrays
        float32 elements, or the bits of float16 and bfloat16 as uint16.
    blocks : int, optional
        Blocks of the grid; where there are more tiles, a block visits several of them.
    seed : int
        Draws the order of warps and copies.
    record : list, optional
        Receives each tensor copy that is issued; see `kernels.sim.machine.launch`.

    Raises
    ------
    SimulationError
        A deadlock, a race, an access out of bounds.
    """
    if not ptx.SIMULATED:
        raise PlanError("the simulator needs NUMBA_ENABLE_CUDASIM=1 before Python starts")
    from implicit_conv.kernels.gpu.fprop import make_fprop
    from implicit_conv.kernels.sim.machine import launch
    from implicit_conv.kernels.sim.memory import GlobalMemory

    memory, v, view = GlobalMemory(), choice.variant, choice.view
    offset = MISALIGNMENT * v.itemsize // 2 if v.producer == "elements" else 0
    y = np.full(view.output_shape, 0xFF, np.uint8).repeat(v.itemsize, axis=-1)
    places = [_put(memory, array, offset) for array in (x, w, residual)]
    out = DeviceArray(memory.put(y), packed_strides(view.output_shape, v.itemsize))
    bias_at = 0 if bias is None else memory.put(bias)
    call = arguments(choice, places[0], places[1], out, bias_at, places[2])
    launch(
        make_fprop(v),
        _params(choice, call),
        blocks=blocks or choice.blocks,
        threads=v.threads,
        smem_bytes=choice.layout.total,
        memory=memory,
        seed=seed,
        record=record,
        names=region_names(choice.layout, buffers(v, choice.geometry)),
    )
    kind = np.float32 if v.itemsize == 4 else np.uint16
    result: Array = memory.get(out.address, view.output_shape, kind)
    return result


def _put(memory: Any, array: Array | None, offset: int) -> DeviceArray:
    if array is None:
        return NOWHERE
    return DeviceArray(memory.put(array, offset), packed_strides(array.shape, array.itemsize))


def _params(choice: Choice, call: Call) -> Params:
    maps: tuple[Any, Any] = (None, None)
    if choice.variant.producer == "tma":
        x = activation_map(choice.view, choice.variant, call.x)
        maps = x, filter_map(choice.view, choice.variant, call.w)
    return Params(*maps, call, choice.geometry, Limits(*choice.limits))
