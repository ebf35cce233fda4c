"""A kernel that copies a filter as the convolutions of the stride phases of its gradient read it.

The taps r of phase a of an axis are a, a + steps, a + 2 * steps, ... (see problem/phases.py). The
filter of a phase is contiguous: (C, taps, taps, K of a group), taps in reverse order. The filters
follow each other, phases of columns within those of rows.

    w, w_k, w_r, ...       the filter, with any strides
    y                      the copy
    rows                   runs of K elements: R * S * C of all groups
    K, C, groups, R, S     of the convolution whose gradient this is
    phases_h, phases_w     steps between the taps of a phase

A warp copies a run. Its neighbours copy the next channels of the same tap, so that they read the
same lines of a channels-last filter.
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels.gpu import blob, gmem, warp
from implicit_conv.kernels.gpu.integer import quotient
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import COPY_WARPS, WARP


@device
def place(tap: int, taps: int, steps: int) -> tuple[int, int, int]:
    """(taps of the phases before, taps, place in the reverse order) of the phase of a tap."""
    turn = quotient(tap, steps)
    phase = tap - turn * steps
    each = quotient(taps, steps)
    longer = taps - each * steps  # so many phases have one more
    count = each + (phase < longer)
    return phase * each + min(phase, longer), count, count - 1 - turn


@functools.cache
def make_phase_filters(itemsize: int) -> Any:
    """The kernel for elements of `itemsize` bytes; its one argument is the params blob."""
    load, store = gmem.load(itemsize, True), gmem.store(itemsize)

    def phase_filters(argument: Any) -> None:
        params = blob.unpack(argument)
        call, g, lane = params.call, params.geometry, warp.lane()
        channels = g.groups * g.C
        row = warp.block() * COPY_WARPS + warp.index()
        while row < call.rows:
            tap = quotient(row, channels)
            c = row - tap * channels
            group = quotient(c, g.C)
            r = quotient(tap, g.S)
            s = tap - r * g.S
            before_h, taps_h, h = place(r, g.R, g.phases_h)
            before_w, taps_w, w = place(s, g.S, g.phases_w)
            start = channels * (before_h * g.S + taps_h * before_w)
            start += (c * taps_h + h) * taps_w + w
            source = call.w + group * g.K * call.w_k + (c - group * g.C) * call.w_c
            source += r * call.w_r + s * call.w_s
            target = call.y + start * g.K * itemsize
            for first in range(0, g.K, WARP):
                k = first + lane
                inside = k < g.K
                store(target + k * itemsize, load(source + k * call.w_k, inside), inside)
            row += warp.blocks() * COPY_WARPS

    return phase_filters
