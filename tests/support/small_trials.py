"""One small trial of every operator with plans, in one to three dimensions."""

import pytest

from implicit_conv.options import LAYOUTS_OF, WEIGHT_LAYOUTS_OF
from implicit_conv.testing import Case
from implicit_conv.testing.draw import ROUND
from implicit_conv.testing.trial import Trial


def small_trial(operator, rank):
    """Of two images, two groups and a stride."""
    case = Case(
        N=2,
        C=2,
        K=3,
        groups=2,
        size=(4, 5, 6)[-rank:],
        kernel=(2, 2, 3)[-rank:],
        stride=(1, 1, 2)[-rank:],
        dilation=(1,) * rank,
        padding=((1, 1),) * rank,
        layout=LAYOUTS_OF[rank][0],
        weight_layout=WEIGHT_LAYOUTS_OF[rank][0],
    )
    return Trial(case, operator, padding=1)


of_every_operator = pytest.mark.parametrize(
    "trial",
    [pytest.param(small_trial(*each), id="{}-{}d".format(*each)) for each in ROUND if each[1]],
)
