"""Depthwise convolution of planes in place: all ways to shift rows, against sums of integers."""

from dataclasses import replace

import numpy as np
import pytest

from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Refusal, Request
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.methods.shifted_rows import ShiftedRows
from implicit_conv.testing import Case, plan_of

CASE = Case(N=2, groups=5, size=(9, 7), padding=((1, 1), (1, 1)))
WIDE = replace(CASE, size=(9, 75))
CHANGES = {
    "pairs of rows": CASE,
    "pairs with a padding wider than a row": replace(CASE, padding=((2, 3), (0, 1)), size=(6, 3)),
    "pairs with stride 2": replace(CASE, size=(14, 14), stride=(2, 2)),
    "pairs, cropped": replace(CASE, stride=(3, 2), padding=((-1, 2), (-2, 1))),
    "one row of pixels": replace(CASE, size=(1, 7)),
    "rows of most lanes": replace(CASE, size=(14, 14)),
    "rows of all lanes": replace(CASE, size=(5, 16)),
    "rows of all lanes, and stride 2": replace(CASE, size=(5, 16), stride=(1, 2)),
    "long rows": WIDE,
    "long rows with stride 2": replace(WIDE, stride=(2, 2)),
    "long rows with stride 2, cropped": replace(WIDE, stride=(2, 2), padding=((-1, 0), (-3, 2))),
    "long rows with a dilation": replace(WIDE, dilation=(3, 9), padding=((2, 2), (9, 9))),
    "long rows with stride 2 and a dilation": replace(WIDE, stride=(1, 2), dilation=(1, 3)),
    "5x5": replace(CASE, kernel=(5, 5), size=(7, 7), padding=((2, 2), (2, 2))),
    "5x5 with stride 2": replace(WIDE, kernel=(5, 5), stride=(2, 2), padding=((2, 2), (2, 2))),
    "2x4": replace(WIDE, kernel=(2, 4)),
    "several load tiles": replace(CASE, size=(70, 20), groups=2),
}


@pytest.fixture(autouse=True)
def _forced(force_method):
    force_method(ShiftedRows)


def plan(case, **options):
    found = plan_of(case, **options)
    assert isinstance(found.engine.best.method, ShiftedRows), found.explain()
    return found


def integers(case):
    """Small integers, whose sums are exact, and those sums."""
    random = np.random.default_rng(0)
    x, w = (random.integers(-4, 5, case.shapes[name]).astype(case.dtype) for name in "xw")
    return x, w, case.reference(x, w)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHANGES)
def test_sums_are_exact(name, dtype):
    case = replace(CHANGES[name], dtype=dtype)
    x, w, expected = integers(case)
    planned = plan(case)
    out = np.full(expected.shape, np.nan, dtype)
    planned(x, planned.pack(w), out=out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", ["pairs of rows", "rows of all lanes", "long rows"])
def test_epilogues(name):
    """A clamp in the microkernel, and a residual through the staging tile."""
    case = CHANGES[name]
    x, w, expected = integers(case)
    bias = np.arange(case.groups, dtype=case.dtype)
    sums = expected + bias[:, None, None]
    y = plan(case, activation="relu6")(x, w, bias)
    np.testing.assert_array_equal(y, np.clip(sums, 0, 6))
    y = plan(case, activation="relu")(x, w, bias, residual=y)
    np.testing.assert_array_equal(y, np.maximum(sums + np.clip(sums, 0, 6), 0))


@pytest.mark.parametrize("name", ["pairs of rows", "long rows with stride 2"])
def test_outputs_and_inputs_with_strides(name):
    """Rows and planes of x and y may have any strides; with pixels apart, planes are copied."""
    case = CHANGES[name]
    x, w, expected = integers(case)
    planned = plan(case)
    packed = planned.pack(w)
    wide = np.full((*x.shape[:-1], x.shape[-1] + 5), np.nan, x.dtype)
    wide[..., 2:-3] = x
    out = np.full((*expected.shape[:-1], expected.shape[-1] + 3), np.nan, x.dtype)
    planned(wide[..., 2:-3], packed, out=out[..., 1:-2])
    np.testing.assert_array_equal(out[..., 1:-2], expected)
    assert np.isnan(out[..., 0]).all() and np.isnan(out[..., -2:]).all()
    apart = np.full((*x.shape, 2), np.nan, x.dtype)
    apart[..., 1] = x
    np.testing.assert_array_equal(planned(apart[..., 1], packed), expected)


@pytest.mark.parametrize("name", ["pairs of rows", "rows of most lanes", "long rows"])
def test_a_nan_stays_in_its_windows(name):
    """Lanes beyond the end of a row are not those of another row or channel."""
    case = CHANGES[name]
    x, w, _ = integers(case)
    last = case.size[1] - 1
    x[1, 2, 4, last] = np.nan
    wrong = np.argwhere(np.isnan(plan(case)(x, w + 10)))
    windows = {(1, 2, p, q) for p in (3, 4, 5) for q in (last - 1, last)}
    assert {tuple(at) for at in wrong} == windows


def test_nothing_is_loaded():
    x, w = CASE.arrange(*CASE.inputs(0))
    planned = plan(CASE)
    assert executed_loads(planned.engine, x, w) == planned.trace() == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layout": "NHWC"}, "planes whose pixels are contiguous"),
        ({"kernel": (8, 9), "size": (20, 20)}, "at most 64 taps, not 72"),
        ({"stride": (1, 3)}, "strides 1 and 2 along W"),
    ],
)
def test_refusals(changes, reason):
    problem = spatial(replace(CASE, **changes).problem)
    (found,) = ShiftedRows.candidates(problem, cpu_arch(1), Request())
    assert isinstance(found, Refusal) and reason in found.reason


@pytest.mark.parametrize(
    ("channels", "size", "stride"), [(96, 112, 2), (144, 56, 1), (384, 14, 1), (960, 7, 1)]
)
def test_mobilenet_layers_are_read_in_place(monkeypatch, channels, size, stride):
    """Without force; precision "strict" has another order of sums."""
    monkeypatch.undo()
    arch = CpuArch(512, True, 32 << 10, 1 << 20, 1, 14)
    case = replace(CASE, N=1, groups=channels, size=(size, size), stride=(stride, stride))
    for precision in "standard", "strict":
        best = plan_of(case, arch, precision=precision).engine.best.method
        assert isinstance(best, ShiftedRows) == (precision == "standard")
