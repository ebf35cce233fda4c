"""Code that is emitted for 64-bit Arm alone, run on any machine or read as assembly."""

from collections import Counter

import numpy as np
import pytest
from llvmlite.binding import llvm_version_info
from numba import njit, types
from numba.extending import intrinsic
from processes import output_of

from implicit_conv.cpu.machine.arch import MATRIX_PIXELS
from implicit_conv.kernels.cpu.emit import masks
from implicit_conv.kernels.cpu.emit.vector import Emitter
from implicit_conv.kernels.cpu.gemm.compiled.microkernel import UNROLL
from perf import neon

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


OLD_LLVM = pytest.mark.xfail(
    llvm_version_info < (21,), reason="LLVM 20 duplicates an element before bfdot", strict=True
)
BY_ELEMENT = (
    "gemm float32",
    "gemm float64",
    pytest.param("gemm bfloat16", marks=OLD_LLVM),
    "weight gradient float32",
)


@pytest.mark.parametrize("name", BY_ELEMENT)
def test_neon_multiplies_by_elements_and_broadcasts_nothing(name):
    kernel = neon.KERNELS[name]
    loop = kernel.loop
    fmas = [line for line in loop if line.startswith(kernel.target.fma)]
    assert len(fmas) >= 24
    assert all(line.endswith("]") for line in fmas), "by an element: v0.s[1]"
    assert not [line for line in loop if line.startswith(("ld1r", "dup"))]


def test_matrices_are_loads_joins_and_products():
    """Two joined loads a pair of pixels for four products; no product's operand is spilled."""
    kernel = neon.KERNELS["gemm bfloat16 by matrices"]
    mnemonics = Counter(line.split()[0] for line in kernel.loop)
    products = mnemonics["bfmmla"]
    assert products == UNROLL // 2 * 4 * MATRIX_PIXELS // 2
    loads = 2 * products // 4 + UNROLL  # of pixels, and a pair of vectors for each word
    assert mnemonics["ldr"] + mnemonics["ldp"] == loads
    assert mnemonics["mov"] + mnemonics["zip1"] == products // 4
    assert not [line for line in kernel.loop if "[sp" in line]


CODE = """
import sys
import numpy as np
from implicit_conv.kernels.cpu.emit.vector import Emitter
if sys.argv[1] == "arm":
    Emitter.arm = property(lambda self: True)
from implicit_conv.testing import Case
from implicit_conv.testing.trial import Trial, compute, inputs
edge = dict(C=7, K=13, size=(7, 11), padding=((1, 1), (1, 1)))
for case, operator in (
    (Case(**edge), "conv"),
    (Case(**edge, layout="NHWC"), "conv"),
    (Case(**{**edge, "C": 1, "K": 1}, groups=13), "conv"),
    (Case(**edge), "weight_grad"),
):
    trial = Trial(case, operator, padding=case.padding, values="normal", precision="strict")
    print(np.asarray(compute(trial, inputs(trial))).tobytes().hex())
"""


@pytest.mark.slow
def test_code_for_arm_gives_the_same_bits(tmp_path):
    """The IR for Arm, compiled for this machine: two elements at once, and masks of bits."""
    results = {
        kind: output_of(CODE, kind, IMPLICIT_CONV_CACHE_DIR=tmp_path / kind)
        for kind in ("this", "arm")
    }
    assert len(results["this"].splitlines()) == 4
    assert results["arm"] == results["this"]
