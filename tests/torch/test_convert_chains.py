"""What follows a convolution is computed once, whoever computes the chain; torch in float64 is the
oracle.
"""

import copy

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import evaluated  # noqa: E402

import implicit_conv.torch as door  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles")


class Block(nn.Module):
    """A convolution, a batch norm, and what `follow` computes of them and a residual."""

    def __init__(self, follow):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.follow = FOLLOWING[follow]

    def forward(self, x, residual):
        """What follows."""
        return self.follow(self.norm(self.conv(x)), residual)


FOLLOWING = {  # the last call is not part of a chain
    "scaled sum": lambda y, residual: (y + residual) * 0.5,
    "reversed sum": lambda y, residual: torch.add(residual, y).div(3),
    "scaled": lambda y, residual: y * 2 - 1 + residual,
    "softmax": lambda y, residual: y.softmax(1) + residual,
    "pool": lambda y, residual: functional.max_pool2d(y + residual, 2),
}


def negated(x):
    """Equal values in a tensor with the negative bit, which no step reads."""
    return torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag


CHANGES = {  # of the second operand or the first, after a call that a step took
    "strides": lambda x, r: (x, r.contiguous(memory_format=torch.channels_last)),
    "float64": lambda x, r: (x, r.double()),
    "negated": lambda x, r: (negated(x), r),
    "negated residual": lambda x, r: (x, negated(r)),
}


@pytest.mark.parametrize("follow", FOLLOWING)
def test_what_torch_computes_of_a_chain_is_computed_once(follow, programs):
    model, x, residual = evaluated(Block(follow)), *torch.randn(2, 2, 4, 8, 8)
    own = copy.deepcopy(model).double()
    door.convert(model)
    with torch.no_grad():
        for _ in range(2):
            model(x, residual)
        assert programs
        for change in CHANGES.values():
            given = change(x, residual)
            expected = own(*(each.double() for each in given))
            torch.testing.assert_close(model(*given).double(), expected, rtol=1e-4, atol=1e-4)
