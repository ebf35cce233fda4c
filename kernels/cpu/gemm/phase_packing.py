"""The launch that packs the filters of all stride phases."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.operator import PACKED_BYTES_PER_THREAD
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Call, Filter
from implicit_conv.kernels.cpu.runtime.code import code
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.layout import ScratchLayout
from implicit_conv.kernels.cpu.tile.storage import SIZES, Format
from implicit_conv.kernels.cpu.tile.variants import transposes
from implicit_conv.kernels.geometry import Geometry


def prepare_phase_packing(
    g: Geometry, lanes: int, dtype: str, strides: tuple[int, int], threads: int, compiler: str
) -> Launch:
    """Prepare a launch that packs a filter with these byte strides of filters and channels.

    `g` has the filters, channels and taps of the whole filter. The launch runs on w and the address
    of a table of taps, after which it writes the panels; see `compiled.phase_panels`.
    """
    kernels = np.zeros(table.SLOTS, np.int64)
    for slot, part in transposes(
        table.TRANSPOSE_TAPS, 1, lanes, Format(dtype, dtype, dtype, dtype, dtype, dtype)
    ).items():
        kernels[slot] = part.address(compiler)
    itemsize, taps = SIZES[dtype], schedule.taps(g)
    k, c = strides
    threads = min(threads, 1 + g.K * g.C * taps * itemsize // PACKED_BYTES_PER_THREAD)
    call: dict[str, Any] = {
        "w": Filter(1, k=k, c=c),
        "kernels": kernels.ctypes.data,
        "itemsize": itemsize,
        "lanes": lanes,
        "items": schedule.panel_count(g),
    }
    scratch = ScratchLayout(packing=8 * schedule.ceil_div(taps, lanes) * lanes)
    entry = code(".gemm.compiled.phase_panels:make_pack_phases", lanes).address(compiler)
    return Launch(entry, g, scratch, threads, Call(**call), keep=kernels)
