"""torch.compile and torch.export: which convolutions of what they make are ours."""

import pytest
from processes import output_of

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # its own
    pytest.mark.filterwarnings("ignore::FutureWarning:torch"),
]
nn = torch.nn


def network():
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, 2)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("last", [False, True])
def test_compiled_training(last, ours):
    """What is compiled before `enable` calls us too, while it is in force."""
    torch._dynamo.reset()
    model, x = network(), torch.randn(2, 3, 16, 16)
    if last:
        model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    compiled = torch.compile(model)

    def gradients(function):
        y = function(x)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), model.parameters())]

    expected = gradients(model)
    gradients(compiled)
    assert not ours
    with door.enable():
        found = gradients(compiled)
    assert len(ours) == 2 + 3  # x needs no gradient
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_export(ours):
    model, x = network().eval(), torch.randn(2, 3, 16, 16)
    expected = model(x).detach()
    with door.enable():
        program = torch.export.export(model, (x,))
        ours.clear()
        torch.testing.assert_close(program.module()(x).detach(), expected, rtol=1e-4, atol=1e-4)
    assert len(ours) == 2


@pytest.mark.parametrize(("packs", "count"), [(True, 0), (False, 2)])
def test_frozen_code(packs, count):
    """Inductor hands the convolutions of frozen models to oneDNN, unless it may pack no weights."""
    code = f"""
import warnings
warnings.simplefilter("ignore")
import torch, torch._inductor.config as inductor
import implicit_conv.torch as door
from implicit_conv.torch.steps import Step
run, ours = Step.__call__, []
Step.__call__ = lambda *given: ours.append(1) or run(*given)
inductor.freezing, inductor.cpp.weight_prepack = True, {packs}
layers = torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3)
model, x = torch.nn.Sequential(*layers).eval(), torch.randn(2, 3, 16, 16)
with torch.no_grad():
    expected = model(x)
    with door.enable(choose="always"):
        y = torch.compile(model)(x)
print(torch.allclose(y, expected, atol=1e-4), len(ours))
"""
    assert output_of(code, timeout=200).split() == ["True", str(count)]
