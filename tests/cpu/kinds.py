"""A convolution by kernels of every kind, on one thread and on two.

pytest does not collect this file by itself: .ci/aarch64 names it, and runs it where every other
test would take too long. With ``-m exhaustive`` it has more kinds.
"""

from dataclasses import replace

import pytest
from sampling import count, sampled

from implicit_conv.testing import Case
from implicit_conv.testing.check import check
from implicit_conv.testing.trial import Trial

ONE = ((1, 1), (1, 1))
NORMAL = {"values": "normal"}  # values whose sums round; those of other trials are exact
STRICT = {"precision": "strict"}  # a direct sum over image rows


def dense(dtype="float32", layout="NCHW", **sizes):
    """A 3x3 convolution whose channels and filters fill no whole number of vectors."""
    sizes = {"C": 19, "K": 33, "size": (15, 17), "padding": ONE, **sizes}
    return Case(layout=layout, dtype=dtype, **sizes)


def pointwise(dtype="float32", layout="NCHW"):
    """A 1x1 convolution."""
    return dense(dtype, layout, C=40, kernel=(1, 1), padding=((0, 0), (0, 0)))


def depthwise(dtype="float32", layout="NCHW", channels=1):
    """A 3x3 convolution of 37 groups with so many channels and filters."""
    return dense(dtype, layout, C=channels, K=channels, groups=37)


STEM = Case(C=3, K=16, size=(32, 32), kernel=(7, 7), stride=(2, 2), padding=((3, 3), (3, 3)))
VOLUME = dense(
    size=(3, 9, 11),
    kernel=(3, 3, 3),
    stride=(1, 1, 1),
    dilation=(1, 1, 1),
    padding=(*ONE, (1, 1)),
    layout="NCDHW",
    weight_layout="KCTRS",
)
LARGE = dense(size=(33, 37))  # enough work for two threads
# What computes each kind, a case, and options of the trial.
FLOAT32 = {
    "rows": ("implicit_gemm", dense(), STRICT),
    "rows-normal": ("implicit_gemm", dense(layout="NHWC", N=2), {**STRICT, **NORMAL}),
    "rows-flush": (
        "implicit_gemm",
        LARGE,
        {**STRICT, "values": "subnormal", "subnormals": "flush", "threads": 2},
    ),
    "stride": ("implicit_gemm", dense(stride=(2, 2)), STRICT),
    "pointwise": ("pointwise", pointwise(), {}),
    "winograd": ("winograd_f2", LARGE, {"algorithm": "winograd_f2", "threads": 2, **NORMAL}),
    "winograd-volume": ("winograd_f2", VOLUME, {"algorithm": "winograd_f2", **NORMAL}),
    "depthwise": ("depthwise", depthwise(), {}),
    "depthwise-nhwc": ("depthwise", depthwise(layout="NHWC"), {}),
    "groups": ("implicit_gemm", depthwise(layout="NHWC", channels=4), {}),
    **count(
        {},
        {
            "few-channels": ("implicit_gemm", STEM, {}),
            "pointwise-nhwc": ("pointwise", pointwise(layout="NHWC"), {}),
            "winograd-f4": (
                "winograd_f4",
                dense(),
                {"algorithm": "winograd_f4", "precision": "fast", **NORMAL},
            ),
            "winograd-f6": (
                "winograd_f6",
                dense(layout="NHWC", size=(25, 14)),
                {"algorithm": "winograd_f6", "precision": "fast", **NORMAL},
            ),
            "silu": ("winograd_f2", dense(), {"activation": "silu", "biased": True, **NORMAL}),
            "weight-grad": ("", dense(), {"operator": "weight_grad"}),
            "input-grad": ("", dense(stride=(2, 2)), {"operator": "input_grad"}),
            "transposed": ("", dense(stride=(2, 2)), {"operator": "conv_transpose"}),
            "transposed-depthwise": (
                "depthwise",
                replace(depthwise(), stride=(2, 2)),
                {"operator": "conv_transpose"},
            ),
            "input-grad-depthwise": (
                "depthwise",
                replace(depthwise(layout="NHWC"), stride=(2, 2)),
                {"operator": "input_grad"},
            ),
        },
    ),
}
OTHERS = {
    "float16": ("implicit_gemm", dense("float16"), STRICT),
    "bfloat16": ("implicit_gemm", dense("bfloat16", "NHWC", C=21), STRICT),
    "bfloat16-normal": (
        "implicit_gemm",
        dense("bfloat16", "NHWC", size=(33, 37)),
        {**STRICT, **NORMAL, "threads": 2},
    ),
    **count(
        {},
        {
            "float16-depthwise": ("depthwise", depthwise("float16", "NHWC"), {}),
            "int8": ("implicit_gemm", dense("int8"), {}),
            "float64": ("implicit_gemm", dense("float64"), STRICT),
            "float16-pointwise": ("pointwise", pointwise("float16", "NHWC"), NORMAL),
            "bfloat16-nchw": ("implicit_gemm", dense("bfloat16"), STRICT),
            "bfloat16-pointwise": ("pointwise", pointwise("bfloat16"), NORMAL),
            "bfloat16-winograd": (
                "winograd_f2",
                dense("bfloat16"),
                {"algorithm": "winograd_f2", **NORMAL},
            ),
            "uint8-int8-nhwc": ("implicit_gemm", dense("uint8", "NHWC", w_dtype="int8"), {}),
            "int16": ("implicit_gemm", dense("int16"), {}),
            "weight-grad": ("", dense("bfloat16"), {"operator": "weight_grad"}),
        },
    ),
}


def compute(algorithm, case, options):
    """Compare a convolution with the reference; it is the named algorithm that computes it."""
    trial = Trial(case, padding=case.padding, **options)
    if algorithm:
        assert trial.plan().algorithm == algorithm
    check(trial)


@sampled
@pytest.mark.parametrize("kind", FLOAT32)
def test_float32_is_right(kind):
    compute(*FLOAT32[kind])


@sampled
@pytest.mark.parametrize("kind", OTHERS)
def test_another_dtype_is_right(kind):
    compute(*OTHERS[kind])
