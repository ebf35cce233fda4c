"""The CPU planner: scratch stays small, for any problem and any strides."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from conformance import examples

from implicit_conv import conv2d, plan_conv2d
from implicit_conv.arrays.arrays import ordered
from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.candidates.kernel_method import KernelMethod
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Query, Request
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.cpu.plan.planner import METHODS, plan
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.problem.options import ALGORITHMS
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import Case

SCRATCH_BYTES = 2 << 20  # of a thread; Winograd alone may take more
ARCHS = [
    CpuArch(512, True, 48 << 10, 2 << 20, 1, 14),
    CpuArch(512, True, 48 << 10, 1 << 20, 4, 14),
    CpuArch(256, True, 32 << 10, 512 << 10, 2, 6),
]


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: f"{arch.vector_bits} {arch.threads}")
@pytest.mark.parametrize("taps", [1, 3, 7, 11])
def test_scratch_of_a_thread_stays_small(arch, taps):
    channels, sizes = (3, 512, 4096), ((7, 7), (56, 56), (1, 3000))
    for n, c, k, size in itertools.product((1, 16), channels, channels, sizes):
        problem = Problem.parse((n, *size, c), (k, c, taps, taps), padding=taps // 2, layout="NHWC")
        for found in plan(
            Query(spatial(problem), arch, Request("strict", "implicit_gemm"))
        ).candidates:
            assert found.workspace_bytes <= SCRATCH_BYTES * found.threads, found


@pytest.mark.parametrize(
    ("channels", "size", "taps", "threads"),
    [
        (32, 12, 3, 1),  # 1.8 MFLOP, 68 kB
        (32, 18, 3, 2),  # 4.7 MFLOP, 111 kB: the sums are worth two
        (1, 170, 1, 1),  # 58 kFLOP, 231 kB
        (1, 280, 1, 2),  # 157 kFLOP, 627 kB: the copy is
        (1, 320, 1, 3),  # 819 kB
        (1, 1000, 1, 4),  # 8 MB: all there are
    ],
)
def test_threads_have_2_mflop_or_move_256_kb_each(channels, size, taps, threads):
    arch = ARCHS[1]
    problem = Problem.parse((1, channels, size, size), (channels, channels, taps, taps))
    assert arch.threads == 4
    assert plan(Query(spatial(problem), arch, Request("strict"))).candidates[0].threads == threads


def chosen(size, taps, channels):
    """The method for a filter of one row per channel of a signal, on 256-bit vectors."""
    problem = Problem.parse((1, channels, *size), (channels, 1, 1, taps), groups=channels)
    return plan(Query(spatial(problem), ARCHS[2], Request("standard"))).candidates[0].method


@pytest.mark.parametrize("taps", [91, 129, 362])
def test_filters_of_one_row_are_not_shifted_across_halves_of_vectors(taps):
    """Two to four times as fast by loads at any address (EPYC 7003)."""
    assert isinstance(chosen((100, 200 + taps), taps, 1), PlanarGemm)


@pytest.mark.parametrize("taps", [4096, 5793, 8192])
def test_channels_of_a_signal_stay_vector_lanes_where_no_tile_fits_in_half_of_l2(taps):
    """Twice as fast as one channel at a time (EPYC 7003)."""
    assert isinstance(chosen((1, 8000 + taps), taps, 8), Depthwise)


def test_a_view_with_gaps_between_channels_gets_another_candidate():
    """What is read in place needs no buffer, so its tiles may be large; a copy of them would be."""
    shape = (16, 28, 28, 512)
    made = plan_conv2d(shape, (512, 512, 1, 1), layout="NHWC").engine
    x, y = np.empty((*shape[:3], 2 * shape[3]), np.float32)[..., ::2], np.empty(shape, np.float32)
    w = np.empty((512, 512, 1, 1), np.float32)
    axes = made.best.problem.axes
    arrays = Arrays(ordered(x, axes), ordered(w, made.best.problem.filter_axes), ordered(y, axes))
    runs = next(c for c in made.candidates if c.method.accepts(c, arrays))
    assert (made.best.layout.in_place, runs.layout.in_place) == (True, False)
    assert runs.workspace_bytes <= made.arch.l2_bytes * runs.threads


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("option", ["dilation", "stride"])
@pytest.mark.parametrize("far", [(10**4, 1), (1, 10**4)], ids=["H", "W"])
def test_pixels_between_the_taps_of_large_dilations_are_not_buffered(far, option, groups, layout):
    case = Case(
        N=2,
        C=4 // groups,
        K=4 // groups,
        groups=groups,
        size=(9, 8),
        kernel=(3, 3),
        padding=tuple((pad, pad) for pad in far),
        layout=layout,
        **{option: far},
    )
    x, w = case.inputs(0, integers=True)
    arrays = case.arrange(x, w)
    made = plan_conv2d(*(array.shape for array in arrays), **case.options)
    assert made.workspace_bytes < 1 << 18
    assert len(made.trace()) < 1000
    y = conv2d(*arrays, **case.options)
    expected = case.reference(x, w)
    np.testing.assert_array_equal(y if layout == "NCHW" else y.transpose(0, 3, 1, 2), expected)


def test_a_packed_filter_is_right_for_images_of_any_width():
    """With one buffer a row or one a tap: their order is the same while the stride is 1."""
    w = np.random.default_rng(0).integers(-4, 5, (3, 2, 3, 3)).astype(np.float32)
    options = {"dilation": 3, "precision": "strict"}
    plans = [plan_conv2d((1, 2, 40, q + 6), w.shape, **options) for q in (1, 40)]
    assert [plan.engine.best.geometry.phases_w for plan in plans] == [3, 1]
    packed = plans[0].pack(w)
    x = np.random.default_rng(1).integers(-4, 5, (1, 2, 40, 46)).astype(np.float32)
    np.testing.assert_array_equal(plans[1](x, packed), conv2d(x, w, dilation=3))


def test_the_algorithms_that_can_be_asked_for_are_those_of_the_methods():
    assert set(ALGORITHMS) == {name for method in METHODS for name in method.algorithms}


SERVER = replace(ARCHS[0], bfloat16="pairs")  # no method lacks anything on it


def proposed(method, case, count):
    """The candidates that a method proposes for `Plan.tune`, which measures several."""
    found = method.candidates(spatial(case.problem), SERVER, Request(tilings=count))
    return [c for c in found if isinstance(c, Candidate)]


def test_methods_propose_as_many_tilings_as_are_asked_for():
    """Each of them the fewer ones too, the best first; most methods have several for problems that
    are large enough.
    """
    several = set()
    kinds = [method for method in METHODS if issubclass(method, KernelMethod)]
    for method in kinds:
        for small in examples(method, SERVER):
            case = replace(small, N=2, K=64 * small.K, size=tuple(7 * n for n in small.size))
            few, many = proposed(method, case, 1), proposed(method, case, 3)
            assert set(few) <= set(many)
            assert not many or few
            variants = {type(c.method): [d for d in many if d.method == c.method] for c in many}
            assert all(own == sorted(own, key=lambda c: c.cycles) for own in variants.values())
            if len(many) > len(few):
                several.add(method)
    assert len(several) > len(kinds) // 2, several
