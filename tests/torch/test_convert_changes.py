"""A converted model that was changed computes what it is now; what is not sure runs as it is."""

import copy
import gc
import io
import pickle
import threading
import weakref

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402
from torch_models import Residual, evaluated, resnet  # noqa: E402

import implicit_conv.torch as door  # noqa: E402

SHAPE = 1, 3, 32, 32
pytestmark = pytest.mark.usefixtures("compiles")


@pytest.fixture
def model(compiles):
    """A converted model that has run twice."""
    model = evaluated(resnet())
    door.convert(model)
    check(model)
    check(model)
    return model


def is_converted(module):
    return module._compiled_call_impl is not None


def own(model, *inputs):
    """What a copy, which is not converted, gives in float64."""
    model = copy.deepcopy(model).double()
    with torch.no_grad():
        return model(*(x.double() for x in inputs))


def check(model, shape=SHAPE):
    x = torch.randn(shape)
    with torch.no_grad():
        found = model(x.to(next(model.parameters()).dtype))
    exact = own(model, x)
    torch.testing.assert_close(
        found.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max())
    )


def step(model, name="SGD", **options):
    model.requires_grad_()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    getattr(torch.optim, name)(model.parameters(), lr=0.1, **options).step()
    model.requires_grad_(False)


def load(model, **options):
    state = {
        name: torch.rand_like(value) + 0.5 if value.is_floating_point() else value.clone()
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state, **options)


def reallocate(model):
    """Other values at the address of freed memory."""
    size = model[0].weight.shape
    for _ in range(4):
        model[0].weight.data = torch.empty(0)
        model[0].weight.data = torch.randn(size)
        check(model)


def train_and_back(model):
    model.train()
    model(torch.randn(SHAPE))  # new statistics
    model.eval()


def replace(model):
    model[0] = evaluated(nn.Conv2d(3, 16, 7, 2, 3, bias=False))


def half_and_back(model):
    model.half().float()


def inference(model):
    with torch.inference_mode():
        model[1].running_var.mul_(2)


def flat(model):
    """Weights are views of one buffer, as averaged ones and those of FSDP are, and then others of
    it, at another offset and, of vectors, with another stride.
    """
    tensors = [tensor for each in (model[0], model[1]) for tensor in each.parameters()]
    size = max(tensor.numel() for tensor in tensors)
    buffer = torch.rand(2 * size + 2) + 0.5
    for start, stride in ((0, 1), (size, 1), (0, 1), (0, 2)):
        for tensor in tensors:
            steps = (stride,) if tensor.dim() == 1 else tensor.stride()
            tensor.data = buffer.as_strided(tensor.shape, steps, start)
        check(model)


def rewrap(model):
    """Another parameter in the memory of one, written to as often."""
    before = model[0].weight
    before.mul_(0.9)
    check(model)
    other = nn.Parameter(before.data, before.requires_grad)
    while other._version < before._version:
        other.mul_(1.2)
    model[0].weight = other


CHANGES = {
    "flat buffer": flat,
    "parameter of the same memory": rewrap,
    "SGD": step,
    "fused SGD": lambda model: step(model, fused=True),
    "fused Adam": lambda model: step(model, "Adam", fused=True),
    "foreach AdamW": lambda model: step(model, "AdamW", foreach=True),
    "load_state_dict": load,
    "assigned state": lambda model: load(model, assign=True),
    "in place": lambda model: model[4].conv1.weight.mul_(3),
    "statistics": lambda model: model[1].running_mean.add_(3),
    ".data = ": lambda model: setattr(model[1].weight, "data", torch.randn(16)),
    "other strides": lambda model: setattr(
        model[4].conv1.weight, "data", model[4].conv1.weight.data.transpose(2, 3)
    ),
    "freed memory": reallocate,
    "inference mode": inference,
    "new parameter": lambda model: setattr(model[0], "weight", nn.Parameter(-model[0].weight)),
    "new module": replace,
    "new bias": lambda model: setattr(model[0], "bias", nn.Parameter(torch.randn(16))),
    "half and back": half_and_back,
    "double": lambda model: model.double(),
    "channels_last": lambda model: model.to(memory_format=torch.channels_last),
    "train and back": train_and_back,
    "eps": lambda model: setattr(model[1], "eps", 0.7),
    "stride": lambda model: setattr(model[0], "stride", (1, 1)),
    "no shortcut": lambda model: setattr(model[4], "shortcut", nn.Identity()),
    "activation": lambda model: setattr(model[4], "act", nn.Tanh()),
    "parametrization": lambda model: parametrizations.spectral_norm(model[4].conv2),
    "weight norm": lambda model: parametrizations.weight_norm(model[0]),
}


@pytest.mark.parametrize("name", ["4.conv1", "1", "8", "4"])
@pytest.mark.parametrize("is_converted", [True, False])
def test_forwards_that_are_replaced(name, is_converted):
    """On the instance, as adapters do: of a model that is converted before, or afterwards."""
    model = evaluated(resnet())
    exact = copy.deepcopy(model).double()
    if is_converted:
        door.convert(model)
        check(model)
    module, x = model.get_submodule(name), torch.randn(SHAPE)
    before = module.forward
    module.forward = lambda *inputs: before(*inputs) * 2
    exact.get_submodule(name).register_forward_hook(lambda module, inputs, y: y * 2)
    if not is_converted:
        door.convert(model)
    with torch.no_grad():
        for _ in range(2):
            found = model(x).double()
            torch.testing.assert_close(found, exact(x.double()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name, model):
    with torch.no_grad():
        CHANGES[name](model)
    model.eval()
    check(model)
    check(model)


def test_training(model):
    model.requires_grad_().train()
    twin, x = copy.deepcopy(model), torch.randn(SHAPE)
    for _ in range(2):
        y, expected = model(x), twin(x)
        torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)
        y.sum().backward()
        expected.sum().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-2)
    model.eval()[1].train()  # one module alone
    before = model[1].running_mean.clone()
    with torch.no_grad():
        model(x)
    assert not torch.equal(before, model[1].running_mean)


def hooked(module, called):
    return module.register_forward_hook(lambda *_: called.append(1) and None)


HOOKS = {
    "convolution": lambda model, called: hooked(model[4].conv1, called),
    "norm": lambda model, called: hooked(model[4].norm2, called),
    "other": lambda model, called: hooked(model[3], called),
    "block": lambda model, called: hooked(model[4], called),
    "model": hooked,
    "before": lambda model, called: model[4].act.register_forward_pre_hook(
        lambda *_: called.append(1) and None
    ),
    "global": lambda _, called: nn.modules.module.register_module_forward_hook(
        lambda *_: called.append(1) and None
    ),
}


@pytest.mark.parametrize("place", HOOKS)
@pytest.mark.parametrize("is_converted", [True, False])
def test_hooks_run_once(place, is_converted, programs):
    """Of a model that is converted before, or afterwards."""
    model, called, counts = evaluated(resnet()), [], []
    if is_converted:
        door.convert(model)
        check(model)
    handle = HOOKS[place](model, called)
    try:
        if not is_converted:
            door.convert(model)
        for _ in range(2):
            for one in (model, copy.deepcopy(model)):
                called.clear()
                with torch.no_grad():
                    one(torch.randn(SHAPE))
                counts.append(len(called))
        assert set(counts) == {counts[0]} and counts[0]
        assert programs
        check(model)
    finally:
        handle.remove()
    called.clear()
    programs.clear()
    check(model)
    assert programs and not called


def test_modules_that_come_with_hooks(model):
    """Guards do not see hooks where there were none, and these were registered long before."""
    before, other, called = model[4].conv1, copy.deepcopy(model[4].conv1), []
    hooked(other, called)
    check(model)
    for module, count in ((other, 1), (before, 0), (other, 1)):
        called.clear()
        model[4].conv1 = module
        with torch.no_grad():
            model(torch.randn(SHAPE))
        assert len(called) == count


def test_old_spectral_norm(programs):
    model = evaluated(resnet())
    nn.utils.spectral_norm(model[4].conv1)
    door.convert(model)
    check(model)
    check(model)
    assert programs


def test_shallow_copies():
    model = evaluated(Flag())
    door.convert(model)
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        y = model(x)
        other = copy.copy(model)
        other.negates = True
        del model
        torch.testing.assert_close(other(x), -y)


class Stateful(nn.Conv2d):
    """A class whose pickles have another state."""

    def __getstate__(self):
        return {**vars(self), "note": 1}


def test_own_states():
    model = evaluated(nn.Sequential(Stateful(3, 3, 3), nn.Conv2d(3, 3, 3)))
    door.convert(model)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other[0].note == 1 and not any(map(is_converted, other.modules()))
    door.restore(model)
    assert not any(map(is_converted, model.modules()))


@pytest.mark.parametrize("copied", [copy.deepcopy, "pickle", "save"])
def test_copies_are_not_converted(copied, model, programs):
    if copied == "pickle":
        other = pickle.loads(pickle.dumps(model))
    elif copied == "save":
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = copied(model)
    assert not any(map(is_converted, other.modules()))
    other[0].weight.data.mul_(2)
    programs.clear()
    x = torch.randn(SHAPE)
    with torch.no_grad():
        y = other(x)
        assert not programs
        assert not torch.allclose(y, model(x)), "the copy has its own weights"
        door.convert(other)
    check(other)
    check(other)
    check(model)


def test_converted_models_are_freed():
    model = evaluated(resnet())
    door.convert(model)
    check(model)
    check(model)
    gc.collect()
    reference = weakref.ref(model)
    del model
    assert reference() is None, "no cycle holds it"


class Flag(nn.Module):
    """What torch.fx specialises."""

    def __init__(self):
        super().__init__()
        self.conv, self.negates = nn.Conv2d(3, 4, 3), False

    def forward(self, x, y=None):
        """With y, which has a default, and by a flag."""
        z = self.conv(x)
        if y is not None:
            z = z + y
        return -z if self.negates else z


def test_flags_and_optional_arguments(programs):
    model = evaluated(Flag())
    door.convert(model)
    x, y = torch.randn(1, 3, 6, 6), torch.randn(1, 4, 4, 4)
    with torch.no_grad():
        for inputs in ((x,), (x, y), (x, None)):
            for _ in range(2):
                torch.testing.assert_close(model(*inputs), type(model).forward(model, *inputs))
        programs.clear()
        model(x=x)
        model(x, y=None)
        assert len(programs) == 2
        model.negates = True
        torch.testing.assert_close(model(x), -model.conv(x))
        with pytest.raises(TypeError, match="unexpected keyword"):
            model(x, z=1)


class Kind(nn.Module):
    """A proxy is no tensor."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, x):
        """Something else for a tensor."""
        y = self.conv(x)
        return y * 2 if isinstance(y, torch.Tensor) else y


class Noise(Kind):
    """Random numbers that the graph would have once."""

    def forward(self, x):
        """The convolution with noise."""
        return self.conv(x) + torch.randn(1)


class Drawn(Kind):
    """Random numbers that the graph draws."""

    def forward(self, x):
        """The convolution with noise of its own."""
        return self.conv(x) + torch.randn_like(x)[..., 1:-1, 1:-1]


class Counter(Kind):
    """A forward that writes to a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        """The convolution, and the number of calls."""
        self.calls += 1
        return self.conv(x), self.calls.clone()


class Notes(Kind):
    """A forward that changes a list."""

    def __init__(self):
        super().__init__()
        self.notes = []

    def forward(self, x):
        """The convolution, and how often it was computed."""
        self.notes.append(1)
        return self.conv(x) * len(self.notes)


class Plain(Kind):
    """A forward that writes to a tensor which is no buffer."""

    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())

    def forward(self, x):
        """The convolution, and the number of calls."""
        self.calls += 1
        return self.conv(x), self.calls.clone()


class Remembers(Kind):
    """A forward that sets an attribute."""

    def forward(self, x):
        """The convolution, which it remembers."""
        self.last = self.conv(x)
        return self.last


class Writes(Kind):
    """A write between the convolution and the sum."""

    def forward(self, x):
        """The convolution of x, and the positive part of x, which x then is."""
        y = self.conv(x)
        x.relu_()
        return y + x[..., 1:-1, 1:-1], x


class WritesShortcut(Kind):
    """A sum that is written to what others have."""

    def forward(self, x):
        """The shortcut, to which the convolution was added."""
        shortcut = x[..., 1:-1, 1:-1]
        same = shortcut
        shortcut += self.conv(x)
        return same * 2


class Buffer(Kind):
    """A tensor that is made in forward and written to."""

    def forward(self, x):
        """The convolution, added to zeros."""
        total = torch.zeros(1)
        total += self.conv(x).mean()
        return total


MEANINGS = [Kind, Noise, Drawn, Counter, Notes, Plain, Remembers, Writes, WritesShortcut, Buffer]


@pytest.mark.parametrize("make", MEANINGS)
def test_another_meaning_of_a_graph(make):
    """Calls have the results of a model that was not converted, and the same effects."""
    model = evaluated(make())
    twin = copy.deepcopy(model)
    door.convert(model)
    for seed in range(4):
        x = torch.randn(1, 3, 8, 8)
        found, expected = [], []
        for one, results in ((model, found), (twin, expected)):
            torch.manual_seed(seed)
            given = x.clone()
            with torch.no_grad():
                results.extend((one(given), given, torch.rand(1)))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert vars(model).keys() - vars(twin).keys() == {"_compiled_call_impl"}


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[..., ::2, 1:],
        lambda x: x[:, :1].expand(x.shape),
        lambda x: x.transpose(2, 3),
        lambda x: x.to(memory_format=torch.channels_last)[:, :, 1:],
    ],
)
def test_strides_of_the_first_input(view, programs):
    model = evaluated(resnet())
    door.convert(model)
    x = view(torch.randn(2, 3, 32, 32))
    with torch.no_grad():
        model(x)
        programs.clear()
        torch.testing.assert_close(model(x), own(model, x).float(), rtol=1e-4, atol=1e-4)
    assert programs


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_modes_see_the_model_itself(model, programs):
    programs.clear()
    x = torch.randn(SHAPE)
    with torch.no_grad():
        expected = own(model, x).float()
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
        assert not programs
        traced = torch.jit.trace(model, x, check_trace=False)
        batched = torch.func.vmap(model)(x[None])[0]
        program = torch.export.export(model, (x,)).module()
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            assert forward_ad.unpack_dual(model(dual)).tangent is not None
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert model(mode.from_tensor(x)).shape == expected.shape
        state = {name: value + 1 for name, value in model.named_parameters()}
        other = torch.func.functional_call(model, state, (x,))
        assert not torch.allclose(other, expected)
        found = [traced(x), batched, program(x), model(x)]
    for y in found:
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


def test_compiled(model, programs):
    programs.clear()
    x = torch.randn(SHAPE)
    with torch.no_grad():
        y = torch.compile(model, backend="eager")(x)
    assert not programs
    torch.testing.assert_close(y, own(model, x).float(), rtol=1e-4, atol=1e-4)


def test_overflow_of_a_folded_filter(programs):
    """float16 does not hold the filter with its batch norm, but the results."""
    model = evaluated(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))).half()
    model[0].weight.fill_(1e-3)
    model[1].running_var.fill_(6e4)
    model[1].weight.fill_(1e-2)
    model[1].bias.zero_()
    x = torch.randn(1, 8, 6, 6).half() * 3000
    with torch.no_grad():
        expected = model(x)
        door.convert(model)
        model(x)
        programs.clear()
        torch.testing.assert_close(model(x), expected)


UNFOLDABLE = {
    "small gamma": lambda model: model[1].weight[3].fill_(1e-6),
    "NaN": lambda model: model[0].weight[2, 0].fill_(float("nan")),
    "negative variance": lambda model: model[1].running_var.fill_(-1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", UNFOLDABLE)
def test_weights_that_cannot_be_folded(name, dtype, programs):
    """The model computes, as before, whatever its weights are."""
    model = evaluated(nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU())).to(dtype)
    state, x = copy.deepcopy(model.state_dict()), torch.randn(1, 4, 6, 6).to(dtype)
    door.convert(model)
    with torch.no_grad():
        for _ in range(2):
            before = model(x)
        for given in (x, x[:, :, 1:]):  # known steps, and those that are prepared first
            UNFOLDABLE[name](model)
            for _ in range(2):
                expected = type(model).forward(copy.deepcopy(model), given)
                torch.testing.assert_close(
                    model(given), expected, rtol=2e-2, atol=2e-2, equal_nan=True
                )
            model.load_state_dict(state)
            programs.clear()
            assert model(given).shape == expected.shape and programs
        assert torch.equal(model(x), before)


def test_threads_at_once(model):
    x = torch.randn(SHAPE)
    exact, wrong = own(model, x), []
    door.convert(model)

    def run():
        with torch.no_grad():
            for _ in range(20):
                if (model(x) - exact).abs().max() > 1e-4 * exact.abs().max():
                    wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):  # tracing patches torch.nn.Module, and others run modules meanwhile
        door.convert(evaluated(Residual(8)))
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
