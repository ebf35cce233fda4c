"""Calls of each kind as programs: their launches, panels and tiles, run without Python."""

from functools import partial

import pytest

jax = pytest.importorskip("jax", minversion="0.5", reason="pip install '.[jax]'")

from jax import lax  # noqa: E402
from jax_cases import arrays, calls, error  # noqa: E402

from implicit_conv.cpu.run.call import Arrays  # noqa: E402
from implicit_conv.jax import conv_general_dilated, lowering  # noqa: E402
from implicit_conv.kernels.cpu.runtime.compiled import xla  # noqa: E402
from implicit_conv.kernels.cpu.runtime.compiled.source import assembly  # noqa: E402
from implicit_conv.kernels.cpu.runtime.program import Copied, Room  # noqa: E402
from implicit_conv.operators.programs import make_words  # noqa: E402

NHWC = "NHWC", "HWIO", "NHWC"
OIHW = "NHWC", "IOHW", "NHWC"
NCHW = "NCHW", "OIHW", "NCHW"
UP = {"padding": [(2, 2)] * 2, "lhs_dilation": (2, 2)}
# (x, w, dimension numbers, options, the kind of the call): each kind, and what packs for itself.
KINDS = {
    "one launch": ((1, 9, 9, 16), (3, 3, 16, 16), NHWC, {}, "CpuEngine"),
    "packs first": ((4, 40, 40, 64), (3, 3, 64, 64), NHWC, {}, "CpuEngine packs"),
    "phases": ((1, 9, 9, 16), (3, 3, 16, 16), NHWC, UP, "Phases"),
    "phases packed in one": ((1, 14, 14, 64), (64, 64, 3, 3), OIHW, UP, "Phases copies packs"),
    "a fold": (
        (2, 512, 4, 4),
        (512, 256, 4, 4),
        ("NCHW", "IOHW", "NCHW"),
        UP,
        "Fold packs",
    ),
    "pixels without taps": ((1, 9, 9, 16), (1, 1, 16, 16), NHWC, UP, "Phases"),
    "a weight gradient": (
        (8, 40, 40, 9),
        (8, 38, 38, 8),
        ("CHWN", "IHWO", "HWNC"),
        {"padding": "VALID"},
        "WgradEngine",
    ),
}


def kind_of(engine, views):
    """Its engine, or its method if that has parts, and whether its steps begin with one that copies
    a constant, and with one that packs the filter.
    """
    first, *_ = launched = engine.steps(Arrays(*views), Room(), biased=False, scaled=False)
    copies = isinstance(first, Copied)
    first = launched[copies]
    kind = engine.best.method if engine.best.parts else engine
    return type(kind).__name__ + " copies" * copies + " packs" * (first.x == first.y)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "numbers", "options", "kind"), KINDS.values(), ids=KINDS
)
def test_kinds_of_calls(x_shape, w_shape, numbers, options, kind, monkeypatch):
    found = set()

    def made(plan, parts, **options):
        words = make_words(plan, parts, **options)
        found.add(kind_of(plan.engine, parts[0]))
        return words

    monkeypatch.setattr(lowering, "make_words", made)
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
    text = assembly(xla.HANDLER, "handler", "")
    assert "@malloc" in text or '@"malloc"' in text
    assert "@Py" not in text and '@"Py' not in text and "@_Py" not in text
