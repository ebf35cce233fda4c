"""Code that is emitted for 64-bit Arm alone, run on any machine or read as assembly."""

import numpy as np
import pytest
from numba import njit, types
from numba.extending import intrinsic

from implicit_conv.kernels.cpu.emit import masks
from implicit_conv.kernels.cpu.emit.vector import Emitter

LANES = 4


@intrinsic
def copy_first(typingctx, to, at, count):
    """Copy the first `count` of four lanes, masked by bits, with zeros in the lanes not loaded."""

    def codegen(context, builder, signature, args):
        e = Emitter(builder, LANES, 4, True)
        to, at, count = args
        mask = masks.first_lanes(builder, LANES, count)
        loaded = masks.load(builder, e.pointer(at), e.vector, mask, 4)
        e.store(loaded, to)
        row = builder.add(to, count.type(4 * LANES))
        masks.store(builder, e.load(at), e.pointer(row), mask, 4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@pytest.mark.parametrize("count", range(-2, LANES + 3))
def test_masks_of_bits_choose_the_first_lanes(count):
    @njit
    def run(to, at, count):
        copy_first(to, at, count)

    at, to = np.arange(1, 5, dtype=np.float32), np.full((2, LANES), -1, np.float32)
    run(to.ctypes.data, at.ctypes.data, count)
    chosen = np.arange(LANES) < count
    np.testing.assert_array_equal(to[0], np.where(chosen, at, 0))
    np.testing.assert_array_equal(to[1], np.where(chosen, at, -1))
