"""The simulator itself: hooks have twins, fragments have the layout of PTX, memory is guarded."""

import inspect

import numpy as np
import pytest

from implicit_conv.kernels.gpu import cp_async, gmem, mbarrier, mma, ptx, smem, tma, warp
from implicit_conv.kernels.sim.errors import SimulationError
from implicit_conv.kernels.sim.machine import BASE, launch
from implicit_conv.kernels.sim.memory import GlobalMemory
from implicit_conv.kernels.sim.number import from_bits, to_bits

MODULES = (cp_async, gmem, mbarrier, mma, smem, tma, warp)


def run(kernel, warps=1, memory=None, seed=0):
    """One block of `warps` warps with 4 KB of shared memory."""
    launch(
        lambda params: kernel(),
        None,
        blocks=1,
        threads=32 * warps,
        smem_bytes=4096,
        memory=memory or GlobalMemory(),
        names={0: "first", 1024: "second"},
        seed=seed,
    )


def matrix(rng, rows):
    return rng.integers(-8, 9, (rows, 16)).astype(np.float32)


def packed(values):
    """Pairs of neighbouring float32 as registers of two bfloat16."""
    bits = to_bits(values, "bfloat16").astype(np.uint32)
    return bits[..., 0::2] | bits[..., 1::2] << 16


def test_every_hook_has_a_twin_with_its_operands():
    for name, (function, _) in ptx.HOOKS.items():
        module, short = name.split(".")
        assert module in {m.__name__.rpartition(".")[2] for m in MODULES}
        twin = getattr(__import__(f"implicit_conv.kernels.sim.{module}", fromlist=[short]), short)
        given, expected = (list(inspect.signature(f).parameters) for f in (twin, function))
        assert given == expected, name


def test_every_hook_names_instruction_and_target():
    for name, (function, _) in ptx.HOOKS.items():
        assert "``" in function.__doc__, name
        assert "sm_" in function.__doc__, name


def test_mma_multiplies_what_ldmatrix_loads():
    """A (16 x 16) and B (16 columns x 16) in shared memory rows of 32 bytes -> A x B^T."""
    rng = np.random.default_rng(0)
    a, b = matrix(rng, 16), matrix(rng, 16)
    result = np.zeros((16, 16))

    def kernel():
        lane = warp.lane()
        for base, values in ((0, a), (1024, b)):
            words = packed(values)  # row, 8 words
            for half in (0, 1):
                row = words[lane % 16][:, 4 * half : 4 * half + 4].T
                smem.store16(BASE + base + lane % 16 * 32 + 16 * half, *row)
        fragments = smem.ldmatrix(1, 0)
        left = fragments(BASE + lane % 16 * 32 + lane // 16 * 16)
        right = fragments(BASE + 1024 + (lane % 8 + lane // 16 * 8) * 32 + lane // 8 % 2 * 16)
        acc = mma.multiply("bfloat16", 1, 2)((np.float32(0),) * 8, left, right)
        for n in range(2):
            for j in range(4):
                row = lane // 4 + 8 * (j // 2)
                result[row, 8 * n + 2 * (lane % 4) + j % 2] = acc[4 * n + j]

    run(kernel)
    np.testing.assert_array_equal(result, a @ b.T)


def test_tf32_keeps_ten_bits_of_fraction():
    lanes = np.arange(32)
    one = np.float32(1 + 2.0**-10 + 2.0**-11)
    a = [np.full(32, one).view(np.uint32)] * 4
    b = [
        np.where(lanes % 4 == 0, 1.0, 0.0).astype(np.float32).view(np.uint32),
        np.zeros(32, np.uint32),
    ]
    acc = mma.multiply_tf32()((np.float32(0),) * 4, a, b)
    assert {float(value) for register in acc for value in register} == {1 + 2.0**-10}


def test_bits_round_to_nearest_even():
    values = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3e38, -0.0, np.inf], np.float32)
    back = from_bits(to_bits(values, "bfloat16"), "bfloat16")
    np.testing.assert_array_equal(back[:3], [1.0, 1.0, 1 + 2.0**-6])
    assert np.isinf(back[5]) and np.signbit(back[4])
    assert np.isnan(from_bits(to_bits(np.float32([np.nan]), "bfloat16"), "bfloat16"))


def test_global_memory_is_guarded():
    memory = GlobalMemory()
    address = memory.put(np.zeros(8, np.float32))
    gather = gmem.load(4)

    def kernel():
        gather(address + 4 * warp.lane(), warp.lane() < 9)

    with pytest.raises(SimulationError, match="outside every array"):
        run(kernel, memory=memory)


@pytest.mark.parametrize("seed", range(4))
def test_unordered_read_is_found_in_any_order_of_warps(seed):
    def kernel():
        if warp.index() == 0:
            smem.store16(BASE + 16 * warp.lane(), 1, 2, 3, 4)
        else:
            smem.load16(BASE + 16 * warp.lane())

    with pytest.raises(SimulationError, match="first"):
        run(kernel, warps=2, seed=seed)


def test_barrier_orders_it():
    def kernel():
        if warp.index() == 0:
            smem.store16(BASE + 16 * warp.lane(), 1, 2, 3, 4)
        warp.sync_block()
        smem.load16(BASE + 16 * warp.lane())

    run(kernel, warps=2)


def test_late_meeting_is_a_deadlock():
    def kernel():
        if warp.index() == 0:
            warp.sync_named(1, 64)

    with pytest.raises(SimulationError, match="barrier 1: 1 of 2 warps came"):
        run(kernel, warps=2)


def test_uninitialised_barrier():
    def kernel():
        mbarrier.wait(BASE, 0)

    with pytest.raises(SimulationError, match="no mbarrier was initialised"):
        run(kernel)


def test_shared_memory_ends():
    def kernel():
        smem.store16(BASE + 4096 - 16 * warp.lane(), 0, 0, 0, 0)

    with pytest.raises(SimulationError, match="exceed the block's 4096 bytes"):
        run(kernel)


def test_warpgroup_agrees_on_descriptors():
    def kernel():
        address = BASE + 512 * (warp.index() // 2)
        smem.store16(BASE + 512 * warp.index() + 16 * warp.lane(), 0, 0, 0, 0)
        warp.sync_block()
        descriptor = address >> 4 | mma.DESCRIPTOR[64]
        mma.wgmma_registers("float16", 8, 1)(
            (np.float32(0),) * 4, (np.zeros(32, np.uint32),) * 4, descriptor
        )

    with pytest.raises(SimulationError, match="different descriptors"):
        run(kernel, warps=4)
