"""`enable(precision=...)`: what infinities and NaNs become, and who is asked."""

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402

F = torch.nn.functional
CASES = {
    "conv1d": (F.conv1d, (1, 32, 40), (32, 32, 3), {"padding": 1}),
    "conv2d": (F.conv2d, (1, 32, 12, 12), (32, 32, 3, 3), {"padding": 1}),
    "conv3d": (F.conv3d, (1, 8, 6, 6, 6), (8, 8, 3, 3, 3), {"padding": 1}),
    "transposed": (F.conv_transpose2d, (1, 32, 12, 12), (32, 32, 3, 3), {"padding": 1}),
    "strided": (F.conv2d, (1, 32, 12, 12), (32, 32, 3, 3), {"stride": 2}),
    "depthwise": (F.conv2d, (1, 32, 12, 12), (32, 1, 3, 3), {"groups": 32}),
}
INF, NAN = float("inf"), float("nan")


def spoiled(shape, dtype, *values):
    """A tensor with these values at places of their own."""
    tensor = torch.randn(shape).to(dtype)
    for number, value in enumerate(values):
        tensor[0, number].view(-1)[7 + 9 * number] = value
    return tensor


def results(case, dtype):
    """y, dx and dw where x and dy have infinities and NaNs."""
    function, of_x, of_w, options = CASES[case]
    torch.manual_seed(1)
    x = spoiled(of_x, dtype, INF, -INF, NAN).requires_grad_()
    w = torch.randn(of_w).to(dtype).requires_grad_()
    y = function(x, w, **options)
    return [y.detach(), *torch.autograd.grad(y, (x, w), spoiled(y.shape, dtype, -INF, NAN))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_strict_has_the_infinities_and_nans_of_torch(case, dtype, ours):
    expected = results(case, dtype)
    with door.enable(precision="strict"):
        found = results(case, dtype)
    assert len(ours) == 3
    for values, of_torch in zip(found[:2], expected[:2], strict=True):
        finite = of_torch.isfinite()
        assert torch.equal(values.isfinite(), finite)
        assert torch.equal(values[~finite].nan_to_num(), of_torch[~finite].nan_to_num())
    # Some of torch's kernels multiply zeros of the padding by infinities of dy: dw has more NaNs.
    assert not (~found[2].isfinite() & expected[2].isfinite()).any()


def test_the_last_call_says_the_precision(ours):
    x, w = torch.randn(1, 64, 16, 16), torch.randn(64, 64, 3, 3)
    with door.enable():
        F.conv2d(x, w)
        with door.enable(precision="STRICT"):
            F.conv2d(x, w)
        F.conv2d(x, w)
    problems = [step.plan.explain() for step in ours]
    assert [("strict" in text) for text in problems] == [False, True, False]
    assert ours[0] is ours[2]


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match=r"precision 'strikt' is none of strict, .* 'strict'"):
        door.enable(precision="strikt")
