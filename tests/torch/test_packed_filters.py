"""Packed filters of parameters are kept, and never stale, whoever writes to the parameter."""

import gc
import math

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv import clear_plan_cache  # noqa: E402
from implicit_conv.torch.packed import FILTERS  # noqa: E402

CHANNELS = 256
BYTES = 64 << 20


@pytest.fixture(autouse=True)
def packed_wherever_it_saves(monkeypatch):
    """Filters are packed even where comparing them takes longer than their packing saves."""
    monkeypatch.setattr("implicit_conv.torch.steps.COMPARED_PER_CYCLE", math.inf)
    clear_plan_cache()


@pytest.fixture
def conv():
    return torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)


def check(conv):
    """Compare with torch, and say whether the filter is packed."""
    x = torch.randn(1, CHANNELS, 8, 8)
    with torch.no_grad():
        found = conv(x)
        exact = torch.nn.functional.conv2d(x.double(), conv.weight.double(), padding=1)
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-3)
    return len(FILTERS)


def optimiser_step(conv, name="SGD", **options):
    conv.weight.grad = torch.ones_like(conv.weight)
    getattr(torch.optim, name)(conv.parameters(), lr=0.1, **options).step()


def reallocated(conv):
    """Other values at the address of the parameter's old memory, which was freed."""
    size = conv.weight.shape
    for _ in range(5):
        conv.weight.data = torch.empty(0)
        conv.weight.data = torch.randn(size)
        check(conv)


def numpy_array(conv):
    conv.weight.detach().numpy()[3, 2, 1, 0] += 1


def load(conv):
    state = {"weight": torch.randn_like(conv.weight)}
    conv.load_state_dict(state, assign=False)


def assign(conv):
    conv.load_state_dict({"weight": torch.randn_like(conv.weight)}, assign=True)


def under_no_grad(conv):
    with torch.no_grad():
        conv.weight[5].mul_(3)


def set_data(conv):
    conv.weight.data = torch.randn_like(conv.weight)


def inference(conv):
    with torch.inference_mode():
        conv.weight.view(-1)[7] = 9


WRITES = {
    "SGD": optimiser_step,
    "fused Adam": lambda conv: optimiser_step(conv, "Adam", fused=True),
    "foreach Adam": lambda conv: optimiser_step(conv, "AdamW", foreach=True),
    "load_state_dict": load,
    "assigned state": assign,
    ".data = ": set_data,
    ".data.add_": lambda conv: conv.weight.data.add_(1),
    "element of .data": lambda conv: conv.weight.data[1, 2, 0].fill_(4),
    "view": under_no_grad,
    "inference mode": inference,
    "numpy": numpy_array,
    "swap": lambda conv: conv.weight.data.copy_(conv.weight.data.flip(0)),
    "freed memory": reallocated,
    "channels_last": lambda conv: conv.to(memory_format=torch.channels_last),
    "new parameter": lambda conv: setattr(conv, "weight", torch.nn.Parameter(-conv.weight)),
    "double": lambda conv: conv.double().float(),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_are_seen(name, conv):
    with door.enable(keep_packed=BYTES):
        assert check(conv) == 1
        assert check(conv) == 1
        WRITES[name](conv)
        check(conv)
        check(conv)
        gc.collect()
        assert len(FILTERS) == 1, "filters of old parameters are dropped"


def test_shared_weights(conv):
    other = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
    other.weight = conv.weight
    with door.enable(keep_packed=BYTES):
        assert check(conv) == check(other) == 1
        other.weight.data.mul_(2)
        assert check(conv) == check(other) == 1


def test_a_kept_filter_is_packed_once(conv, monkeypatch):
    from implicit_conv.torch.steps import Step

    packed = []
    monkeypatch.setattr(Step, "pack", lambda step, w, of=Step.pack: packed.append(1) or of(step, w))
    with door.enable(keep_packed=BYTES):
        for _ in range(3):
            check(conv)
    assert len(packed) == 1


def test_training_packs_nothing(conv):
    x = torch.randn(1, CHANNELS, 8, 8)
    with door.enable(keep_packed=BYTES):
        conv(x).sum().backward()
        assert len(FILTERS) == 0


def test_the_bound_on_memory(conv):
    with door.enable(keep_packed=BYTES):
        check(conv)
        taken = FILTERS.bytes
        assert conv.weight.nbytes < taken < BYTES
        with door.enable(keep_packed=taken - 1):
            assert len(FILTERS) == 0
            assert check(conv) == 0
        with door.enable(keep_packed=0):
            assert check(conv) == 0
        assert check(conv) == 1
        other = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        FILTERS.limit = taken
        assert check(other) == 1
    assert FILTERS.bytes == 0


def test_filters_of_deleted_parameters_are_dropped(conv):
    with door.enable(keep_packed=BYTES):
        check(conv)
        conv.weight = torch.nn.Parameter(torch.randn_like(conv.weight))
        gc.collect()
        assert len(FILTERS) == 0
