"""One small trial of every operator with plans, in one to three dimensions."""

import pytest

from implicit_conv.problem.options import LAYOUTS_OF, WEIGHT_LAYOUTS_OF
from implicit_conv.testing import Case
from implicit_conv.testing.draw import ROUND
from implicit_conv.testing.trial import Trial

EACH = sorted({each for each in ROUND if each[1]})
# Stride 3 gives phases of all kinds: with two taps, with one, and pixels that no tap reaches.
SHAPES = {
    1: {"size": (29,), "kernel": (2,), "stride": (3,), "dilation": (1,), "padding": ((1, 0),)},
    2: {"size": (5, 9), "kernel": (4, 2), "stride": (3, 3), "dilation": (1, 2)},
    3: {"size": (3, 4, 6), "kernel": (2, 3, 2), "stride": (2, 1, 3), "dilation": (1, 1, 1)},
}


def small_trial(operator, rank):
    """Of several images, and several vectors of channels and of filters in two groups."""
    options = {"padding": ((0, 1),) * rank, **SHAPES[rank]}
    layouts = {"layout": LAYOUTS_OF[rank][rank % 2], "weight_layout": WEIGHT_LAYOUTS_OF[rank][0]}
    case = Case(N=3, C=20, K=37, groups=2, **options, **layouts)
    return Trial(case, operator, padding=case.padding)


of_every_operator = pytest.mark.parametrize(
    "trial", [small_trial(*each) for each in EACH], ids=["{}-{}d".format(*each) for each in EACH]
)
