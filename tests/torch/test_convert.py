"""Converted models compute what they did before: the model itself in float64 is the oracle."""

import copy
import weakref

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch_models import MODELS, Inverted, Residual, evaluated  # noqa: E402

import implicit_conv.torch as door  # noqa: E402
from implicit_conv.torch.layers import Layer  # noqa: E402

# torch warns of padding="same" with an even number of taps.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.usefixtures("compiles"),
]
EPS = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 0.15,
}


def check(model, x, exact):
    """Compare with `exact`, the results in float64; say what the model gave."""
    found = model(x)
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(exact), strict=True)
    for ours, own in pairs:
        assert ours.dtype is x.dtype and ours.shape == own.shape
        error = (ours.double() - own).abs().max() / own.abs().max()
        assert error <= EPS[x.dtype], error
    return found


def is_converted(module):
    return module._compiled_call_impl is not None


def made(name, dtype=torch.float32, form=torch.contiguous_format):
    """A model, its input, and its results in float64."""
    make, shape, _ = MODELS[name]
    torch.manual_seed(1)
    model, x = evaluated(make()).to(dtype), torch.randn(shape).to(dtype)
    if form is torch.channels_last and x.dim() == 4:
        model, x = model.to(memory_format=form), x.to(memory_format=form)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
    return model, x, exact


@pytest.mark.parametrize(
    ("name", "dtype", "form"),
    [
        *((name, torch.float32, torch.contiguous_format) for name in MODELS),
        *((name, torch.float32, torch.channels_last) for name in ("resnet", "gate", "upsampling")),
        *(("resnet", dtype, torch.contiguous_format) for dtype in EPS),
        *(("sequence", dtype, torch.contiguous_format) for dtype in EPS),
        ("inverted", torch.bfloat16, torch.channels_last),
    ],
    ids=str,
)
def test_results(name, dtype, form, programs):
    model, x, exact = made(name, dtype, form)
    given = x.clone()
    with torch.no_grad():
        before = pytree.tree_leaves(model(x))
        door.convert(model)
        for _ in range(3):
            programs.clear()
            found = pytree.tree_leaves(check(model, x, exact))
            assert [y.stride() for y in found] == [y.stride() for y in before]
        assert (
            sum(isinstance(each, Layer) for of in programs for each, *_ in of._elements)
            == MODELS[name][2]
        )
        assert torch.equal(x, given)
        larger = torch.cat([x, x.flip(0)])
        own = copy.deepcopy(model).double()
        assert check(model, larger, own(larger.double())) is not None
        door.restore(model)
        programs.clear()
        for ours, own in zip(pytree.tree_leaves(model(x)), before, strict=True):
            assert torch.equal(ours, own)
    assert not programs and not any(map(is_converted, model.modules()))


@pytest.mark.parametrize("name", ["resnet", "upsampling", "one"])
def test_state_dict_and_modules_stay(name):
    model, x, _ = made(name)
    before, names = model.state_dict(), [name for name, _ in model.named_modules()]
    parameters = list(model.parameters())
    with torch.no_grad():
        door.convert(model)
        model(x)
    after = model.state_dict()
    assert list(before) == list(after) and [name for name, _ in model.named_modules()] == names
    assert all(before[key].data_ptr() == after[key].data_ptr() for key in before)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_convert_with_enable(programs, ours):
    model, x, exact = made("resnet")
    with torch.no_grad(), door.enable():
        door.convert(model)
        check(model, x, exact)
        check(model, x, exact)
        calls = len(ours)
        check(model, x, exact)
    assert programs and len(ours) == calls, "every convolution is part of a program"


def test_gradients_are_those_of_the_model(programs):
    model, x, exact = made("resnet")
    twin = copy.deepcopy(model).requires_grad_()
    door.convert(model)
    check(model, x, exact)
    assert programs, "no gradient is asked for"
    programs.clear()
    model.requires_grad_()
    for each in (model, twin):
        each(x).square().sum().backward()
    assert not programs
    for own, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    with torch.inference_mode():
        check(model, x, exact)
    assert programs


@pytest.mark.parametrize("nested", ["inner", "outer"])
def test_nested_conversions(nested, programs):
    model = evaluated(nn.Sequential(Residual(8), Inverted()))
    x = torch.randn(1, 8, 10, 10)
    first, second = (model[0], model) if nested == "inner" else (model, model[0])
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        for converted in (first, second):
            door.convert(converted)
            check(model, x, exact)
        check(model, x, exact)
        assert programs
        door.restore(model[0])
        check(model, x, exact)
        door.restore(model)
        programs.clear()
        check(model, x, exact)
    assert not programs


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_modules_that_others_have_compiled(programs):
    """Scripts stay as they are, and a compiled call comes back."""
    model, x = evaluated(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())), torch.randn(1, 3, 6, 6)
    script = door.convert(torch.jit.script(model))
    model.compile(backend="eager")
    own = model._compiled_call_impl
    with torch.no_grad():
        assert torch.equal(script(x), model(x)) and not programs
        torch.testing.assert_close(door.convert(model)(x), script(x))
    assert programs
    assert door.restore(model)._compiled_call_impl is own


def test_torchs_threads_are_used_until_restore(monkeypatch):
    from implicit_conv.torch import conversion, switch

    used = []
    monkeypatch.setattr(switch, "use_team", used.append)
    monkeypatch.setattr(switch, "torch_team", lambda: "torch's")
    monkeypatch.setattr(conversion.SWITCH, "_borrowers", weakref.WeakSet())
    model = evaluated(nn.Sequential(nn.Conv2d(3, 3, 3)))
    door.convert(model)
    with door.enable():
        pass
    assert set(used) == {"torch's"}, "disable leaves them to converted models"
    door.restore(model[0])
    assert set(used) == {"torch's"}
    door.restore(model)
    assert used[-1] is None
    door.convert(model[0])
    door.restore(model)
    assert used[-2:] == ["torch's", None]


def test_errors():
    with pytest.raises(TypeError, match="the class Conv2d"):
        door.convert(nn.Conv2d)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, not function"):
        door.restore(lambda x: x)
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3))
    with pytest.raises(ValueError, match="choose"):
        door.convert(model, choose="never")
    with pytest.raises(ValueError, match="precision"):
        door.convert(model.eval(), precision="exact")
    assert door.restore(model) is model
    assert door.convert(model) is model
    with pytest.raises(RuntimeError, match=r"expected input.* to have 3 channels"):
        with torch.no_grad():
            model(torch.ones(1, 4, 8, 8))
