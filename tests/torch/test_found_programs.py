"""Programs that the fuzz of torch's door found wrong, each with what was wrong."""

import pytest

pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from implicit_conv.testing.doors.torch import Program, Threads, Use

# "strict" has phases and "standard" a fold, and both packed one parameter under one key.
PHASES_AND_FOLD = Program(
    dtype="float32",
    elements=2359296,
    seed=135064420,
    actions=(
        Threads(
            uses=(
                Use(
                    function="conv2d",
                    parameter=0,
                    shape=(512, 512, 1, 9),
                    order=(0, 1, 2, 3),
                    size=(1, 18, 18),
                    options={"stride": 2, "dilation": 1, "padding": 1, "groups": 1},
                    seed=674593148,
                    mode="no grad",
                    last=False,
                ),
                Use(
                    function="conv_transpose2d",
                    parameter=0,
                    shape=(512, 512, 3, 3),
                    order=(0, 1, 2, 3),
                    size=(2, 14, 14),
                    options={"stride": 2, "dilation": 1, "padding": 0, "groups": 1},
                    seed=280636950,
                    mode="no grad",
                    last=False,
                ),
            ),
            switch="strict",
        ),
        Use(
            function="conv2d",
            parameter=0,
            shape=(512, 512, 1, 9),
            order=(0, 1, 2, 3),
            size=(1, 18, 18),
            options={"stride": 2, "dilation": 1, "padding": 1, "groups": 1},
            seed=674593148,
            mode="no grad",
            last=False,
        ),
    ),
)


def test_phases_and_a_fold_have_packed_filters_of_their_own():
    PHASES_AND_FOLD.check()
