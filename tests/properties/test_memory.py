"""Kernels touch no byte outside their arrays and their parts of the scratch.

A child computes random problems on arrays that begin or end exactly at an inaccessible page; the
parts of a thread's scratch memory have such pages between them too. A stray access kills the child,
and the problem it named last is the one that failed.
"""

import ctypes
import itertools
import math
import mmap
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cost_tables
import numpy as np
import pytest
from sampling import count, resampled

import implicit_conv
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.candidates import tiling
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.methods import gemm_tilings
from implicit_conv.cpu.methods.winograd import SMALL_FILTERS
from implicit_conv.testing import Case, plan_of
from implicit_conv.testing.guard import guarded

WINOGRAD = ("winograd_f2", "winograd_f4", "winograd_f6", "winograd_f2_stride2")
ALGORITHMS = [("implicit_gemm",), ("pointwise", "depthwise"), WINOGRAD]  # of one child each
PROBLEMS = count(25, 300, 70)  # of each algorithm
DTYPES = ("float32", "float32", "float64", "float16", "bfloat16")
PAGE = mmap.PAGESIZE
SUPPORT = Path(__file__).parents[1] / "support"


@resampled
@pytest.mark.skipif(os.name != "posix", reason="pages are made inaccessible by mprotect")
@pytest.mark.parametrize("side", ["begin", "end"])
@pytest.mark.parametrize("algorithms", ALGORITHMS, ids=lambda names: names[0])
def test_no_access_outside_arrays_and_scratch(algorithms, side):
    child = subprocess.run(
        [sys.executable, __file__, side, str(PROBLEMS), *algorithms],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=600,
    )
    named = child.stdout.splitlines()
    assert child.returncode == 0, f"exit {child.returncode} at {named[-1:]} {child.stderr[-2000:]}"
    assert len(named) == PROBLEMS * len(algorithms)


@pytest.mark.skipif(os.name != "posix", reason="pages are made inaccessible by mprotect")
def test_arrays_without_elements_are_not_read():
    """They begin at an inaccessible page."""
    subprocess.run([sys.executable, __file__, "empty"], check=True, env=environment(), timeout=600)


def environment():
    """The variables of a child that imports the package and the modules of `SUPPORT`."""
    package = Path(implicit_conv.__file__).parent.parent
    return {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{SUPPORT}"}


def span(size):
    """Bytes of whole pages for `size`, and of the guard page after them."""
    return -(-size // PAGE) * PAGE + PAGE


class Guard:
    """Arrays of any strides between inaccessible pages, which they touch at one side."""

    def __init__(self, at_end):
        self.at_end = at_end
        self._protect = ctypes.CDLL(None, use_errno=True).mprotect
        self._protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def gap(self, size):
        """Bytes between the guard page before a block and the block."""
        return (span(size) - PAGE - size) * self.at_end

    def blocks(self, *sizes):
        """(memory, offset of the first block): blocks of `sizes` bytes between guard pages."""
        memory = mmap.mmap(-1, PAGE + sum(map(span, sizes)))
        address = np.frombuffer(memory, np.uint8).ctypes.data
        for at in itertools.accumulate(map(span, sizes), initial=address):
            assert self._protect(at, PAGE, 0) == 0, os.strerror(ctypes.get_errno())
        return memory, PAGE + self.gap(sizes[0])

    def array(self, shape, dtype, order, steps):
        """An array that fills its block: axes nested in `order`, strides of `steps` elements."""
        itemsize = np.dtype(dtype).itemsize
        strides, pitch = [0] * len(shape), itemsize
        for axis in reversed(order):
            strides[axis] = steps[axis] * pitch
            pitch *= abs(steps[axis]) * shape[axis]
        reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
        before = sum(-r for r in reach if r < 0)
        memory, offset = self.blocks(sum(map(abs, reach)) + itemsize)
        return np.ndarray(shape, dtype, memory, offset + before, strides)


def draw(rng, algorithm):
    """A problem for `algorithm`: sizes at, below and past the vectors'."""

    def pick(*values):
        return values[rng.integers(len(values))]

    kernel, stride, dilation, groups, padding = (3, 3), (1, 1), (1, 1), 1, ((0, 0), (0, 0))
    if algorithm == "pointwise":
        kernel = (1, 1)
    else:
        padding = tuple((pick(-1, 0, 1, 2), pick(-1, 0, 1, 2)) for _ in "HW")
    if algorithm in ("implicit_gemm", "depthwise"):
        kernel, dilation = (pick(1, 2, 3), pick(1, 3, 5)), (pick(1, 2), pick(1, 2))
        stride, groups = (pick(1, 2), pick(1, 2, 3)), pick(1, 1, 2)
    if algorithm == "implicit_gemm" and pick(0, 1):  # all pixels of a tile may be one row
        kernel, stride = (1, 1), (pick(1, 2), pick(1, 2))
    if algorithm == "winograd_f2" and pick(0, 1):
        kernel = pick(*SMALL_FILTERS)
    if algorithm == "winograd_f2_stride2":
        stride = (2, 2)
    channels, filters = pick(1, 2, 3, 7, 15, 16, 17, 33), pick(1, 17, 19, 40)
    if algorithm == "depthwise":
        channels, filters, groups = 1, 1, channels + 1
    elif algorithm in ("implicit_gemm", "pointwise") and pick(0, 0, 1):  # may share vectors
        filters = pick(2, 4, 8)
        channels = pick(filters, filters, *range(1, filters))
        groups = pick(2, 3, 5, 9)
    case = Case(
        N=pick(1, 1, 3),
        C=channels,
        K=filters,
        groups=groups,
        size=(pick(5, 7, 9), pick(7, 11, 14, 16, 33)),
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        layout=pick("NCHW", "NHWC"),
        weight_layout=pick("KCRS", "KRSC", "RSCK"),
        dtype=pick(*DTYPES),
    )
    if algorithm == "implicit_gemm" and pick(0, 0, 0, 1):  # one window an image
        case = replace(case, kernel=case.size, dilation=(1, 1), groups=1, padding=((0, 0), (0, 0)))
    if (algorithm == "implicit_gemm" or algorithm in WINOGRAD) and pick(0, 0, 1):
        return replace(
            case,
            size=(pick(1, 3, 5), *case.size),
            kernel=(pick(2, 3), *case.kernel),
            stride=(pick(1, 1, 2), *case.stride),
            dilation=(pick(1, 1, 2), *case.dilation),
            padding=((pick(-1, 0, 1, 2), pick(0, 1, 2)), *case.padding),
            layout={"NCHW": "NCDHW", "NHWC": "NDHWC"}[case.layout],
            weight_layout={"KCRS": "KCTRS", "KRSC": "KTRSC", "RSCK": "TRSCK"}[case.weight_layout],
        )
    return case


def compute(guard, rng, algorithm, case):
    """One call on guarded arrays of random strides, with a plain or a packed filter."""

    def array(shape, step=None):
        order = rng.permutation(len(shape)) if rng.integers(4) == 0 else range(len(shape))
        steps = rng.choice([1, 1, 1, 1, 1, 2, -1], len(shape)).tolist()
        made = guard.array(shape, numpy_dtype(case.dtype), order, steps)
        made[...] = 1
        return made

    x, w = (a.shape for a in case.arrange(*case.inputs(0)))
    tiling.TILE_PIXELS = (int(rng.choice([33, 200])),)
    gemm_tilings.BLOCK_ELEMENTS = int(rng.choice([20, 5120]))
    arch = cpu_arch(int(rng.integers(1, 3)))
    winograd = algorithm.startswith("winograd")
    precision = "fast" if winograd or rng.integers(3) else "strict"
    # Other lanes than filters, wherever they may be, or as they are weighed.
    patch = pytest.MonkeyPatch()
    cost_tables.change(patch, "planar_gemm", sums=-1e9 if rng.integers(3) else 2)
    grouped = -1e9 if rng.integers(3) else 1
    cost_tables.change(patch, "depthwise", group_fmas=grouped, spread=grouped)
    # The more tiles the better makes register tiles of one pixel, else of one filter.
    pixel, tile = [(3, 4), (-1e12, 4), (3, -1e12)][rng.integers(3)]
    cost_tables.change(patch, "few_outputs", pixel=pixel, tile=tile)
    plan = plan_of(case, arch, precision=precision, algorithm=algorithm)
    x, w, y = array(x), array(w), array(plan.problem.output_shape)
    bias = np.ones(plan.problem.K) if rng.integers(2) else None
    residual = array(y.shape) if rng.integers(2) else None
    packed = plan.pack(w) if rng.integers(2) else w
    plan(x, packed, bias, residual=residual, out=y)


def compute_without_elements():
    """Convolutions of images without channels, batches without images, and pixels that no tap
    reaches, which are computed as images without channels.
    """
    memory, offset = Guard(at_end=True).blocks(PAGE)

    def empty(shape, dtype):
        return np.ndarray(shape, dtype, memory, offset + PAGE)

    for dtype in ("float32", "float64", "float16", "int8"):
        for layout in ("NCHW", "NHWC"):
            images, none = [(2, 9, 9, 0), (0, 9, 9, 4)], (5, 0, 3, 3)
            if layout == "NCHW":
                images = [(2, 0, 9, 9), (0, 4, 9, 9)]
            for shape, filters in zip(images, (none, (5, 4, 3, 3)), strict=True):
                for size, padding in ((3, 0), (3, (1, 0)), (1, 0)):
                    w = empty(none, dtype)[..., :size, :size]
                    if math.prod(filters):
                        w = np.ones((5, 4, size, size), dtype)
                    y = implicit_conv.conv2d(empty(shape, dtype), w, padding=padding, layout=layout)
                    assert not y.any()
    x, w = np.ones((3, 3, 3, 1), "float32"), np.ones((1, 1, 2, 2), "float32")
    y = implicit_conv.conv_transpose2d(x, w, stride=5, layout="NHWC")
    assert y.sum() == 3 * 3 * 3 * 4


def main(side, problems, *algorithms):
    guard = Guard(side == "end")
    # so that two threads have enough to do
    cost_tables.change(pytest.MonkeyPatch(), "threads", flops=1e5)
    with guarded(side):
        for algorithm, seed in itertools.product(algorithms, range(int(problems))):
            rng = np.random.default_rng(seed)
            case = draw(rng, algorithm)
            while min(case.output) < 1:
                case = draw(rng, algorithm)
            print(algorithm, seed, case, flush=True)
            compute(guard, rng, algorithm, case)


if __name__ == "__main__":
    compute_without_elements() if sys.argv[1] == "empty" else main(*sys.argv[1:])
