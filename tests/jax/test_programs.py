"""Calls of each kind as programs: their launches, panels and tiles, run without Python."""

from functools import partial

import pytest

jax = pytest.importorskip("jax", minversion="0.5", reason="pip install '.[jax]'")

from jax import lax  # noqa: E402
from jax_cases import arrays, calls, error  # noqa: E402

from implicit_conv.arrays.arrays import Binding  # noqa: E402
from implicit_conv.jax import conv_general_dilated, lowering  # noqa: E402
from implicit_conv.kernels.cpu.runtime.compiled import xla  # noqa: E402
from implicit_conv.kernels.cpu.runtime.compiled.source import assembly  # noqa: E402
from implicit_conv.operators.programs import make_program  # noqa: E402

NHWC = "NHWC", "HWIO", "NHWC"
OIHW = "NHWC", "IOHW", "NHWC"
NCHW = "NCHW", "OIHW", "NCHW"
UP = {"padding": [(2, 2)] * 2, "lhs_dilation": (2, 2)}
# (x, w, dimension numbers, options, the kind of the call): each kind, and what packs for itself.
KINDS = {
    "one launch": ((1, 9, 9, 16), (3, 3, 16, 16), NHWC, {}, "KernelCall"),
    "packs first": ((4, 40, 40, 64), (3, 3, 64, 64), NHWC, {}, "KernelCall packs"),
    "phases": ((1, 9, 9, 16), (3, 3, 16, 16), NHWC, UP, "PhasedCall"),
    "phases packed in one": ((1, 14, 14, 64), (64, 64, 3, 3), OIHW, UP, "PackedPhases packs"),
    "a fold": (
        (2, 512, 4, 4),
        (512, 256, 4, 4),
        ("NCHW", "IOHW", "NCHW"),
        UP,
        "FoldCall packs",
    ),
    "pixels without taps": ((1, 9, 9, 16), (1, 1, 16, 16), NHWC, UP, "PhasedCall"),
    "a weight gradient": (
        (8, 40, 40, 9),
        (8, 38, 38, 8),
        ("CHWN", "IHWO", "HWNC"),
        {"padding": "VALID"},
        "GradientCall",
    ),
}


def kind_of(call):
    """A call's kind, and whether it packs the filter first."""
    packs = " packs" * (getattr(call, "_packing", None) is not None)
    return type(call).__name__ + packs


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "numbers", "options", "kind"), KINDS.values(), ids=KINDS
)
def test_kinds_of_calls(x_shape, w_shape, numbers, options, kind, monkeypatch):
    found = set()

    def made(plan, parts, buffers):
        x, w, y = (view.strides for view in parts[0])
        found.add(kind_of(plan.engine.bind(Binding(x, w, y))))
        return make_program(plan, parts, buffers)

    monkeypatch.setattr(lowering, "make_program", made)
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": numbers} | options
    own, other = (partial(f, **options) for f in (conv_general_dilated, lax.conv_general_dilated))
    x, w = arrays(x_shape, w_shape)
    first = own(x, w)
    assert error(first, other, x, w) <= 32
    assert calls(own, x, w) == 1
    assert found == {kind}
    for _ in range(3):  # in memory that other calls have used
        assert (own(x, w) == first).all()


def test_no_call_needs_python():
    """Nothing that XLA calls asks for the GIL, or for anything else of Python."""
    text = assembly(xla.make_handler(), "handler", "")
    assert "@malloc" in text or '@"malloc"' in text
    assert "@Py" not in text and '@"Py' not in text and "@_Py" not in text
