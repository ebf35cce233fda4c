"""Tensor copies in the simulator deliver the bytes that implicit_conv.tma derives for them."""

import numpy as np
import pytest

from implicit_conv import tma
from implicit_conv.kernels.gpu.call import Limits, Params
from implicit_conv.kernels.gpu.dump import make_dump
from implicit_conv.kernels.gpu.sizes import DUMP_DATA_AT, DUMP_THREADS
from implicit_conv.kernels.sim.machine import launch
from implicit_conv.kernels.sim.memory import GlobalMemory
from implicit_conv.verify.testing import dump_call, example_copies


@pytest.mark.parametrize("copy", example_copies(), ids=lambda copy: copy.name)
def test_copy_delivers_the_image(copy):
    memory = GlobalMemory()
    stored, x = copy.tensor(np.random.default_rng(0))
    map = copy.at(memory.put(stored))
    image = tma.smem_image(
        map, x, copy.coords, dst=0, offsets=copy.offsets, w_halo=copy.halo, w_offset=copy.offset
    )
    size = len(image.bytes)
    y = memory.put(np.full(size, 0xFF, np.uint8))
    params = Params(map, None, dump_call(copy, y, size), None, Limits(0.0, 0.0))
    launch(
        make_dump(copy.mode),
        params,
        blocks=1,
        threads=DUMP_THREADS,
        memory=memory,
        smem_bytes=DUMP_DATA_AT + -(-size // (16 * DUMP_THREADS)) * 16 * DUMP_THREADS,
    )
    np.testing.assert_array_equal(memory.get(y, size, np.uint8), image.bytes)
