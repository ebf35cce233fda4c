"""Packed filters of parameters are kept, and never stale, whoever writes to the parameter."""

import gc
import itertools
import math
import threading
import time
import weakref

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


C = 32
CONV, TRANSPOSED = torch.nn.functional.conv2d, torch.nn.functional.conv_transpose2d
SQUARE = C, C, 3, 3
# Uses of the same bytes: a view of them, an operator, channels of x, options.
USES = {
    "conv": (lambda line: line.view(SQUARE), CONV, C, {"padding": 1}),
    "transposed": (lambda line: line.view(SQUARE), TRANSPOSED, C, {"padding": 1}),
    "phases": (lambda line: line.view(SQUARE), TRANSPOSED, C, {"stride": 2}),
    "shifted phases": (lambda line: line.view(SQUARE), TRANSPOSED, C, {"stride": 2, "padding": 1}),
    "groups": (lambda line: line.view(SQUARE), CONV, 4 * C, {"groups": 4}),
    "two groups": (lambda line: line.view(SQUARE), CONV, 2 * C, {"groups": 2}),
    "transposed groups": (lambda line: line.view(SQUARE), TRANSPOSED, C, {"groups": 4}),
    "channels last": (lambda line: line.view(C, 3, 3, C).permute(0, 3, 1, 2), CONV, C, {}),
    "other channels": (lambda line: line.view(SQUARE).transpose(0, 1), CONV, C, {}),
    "other taps": (lambda line: line.view(SQUARE).transpose(2, 3), CONV, C, {}),
    "wide": (lambda line: line.view(C // 2, 2 * C, 3, 3), CONV, 2 * C, {}),
    "column": (lambda line: line.view(C, C, 9, 1), CONV, C, {"padding": (0, 4)}),
    "row": (lambda line: line.view(C, C, 1, 9), CONV, C, {"padding": (4, 0)}),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_packed_filter_is_that_of_its_use(dtype):
    """One parameter in two uses that differ in the operator, the strides or the shape."""
    line = torch.randn(C * C * 9).to(dtype)
    packed = 0
    for pair in itertools.permutations(USES.values(), 2):
        parameter = torch.nn.Parameter(line.clone())
        with torch.no_grad(), door.enable(keep_packed=BYTES):
            for view, function, channels, options in pair:
                parameter.data = view(parameter.data.as_strided((line.numel(),), (1,)))
                x = torch.randn(1, channels, 12, 12).to(dtype)
                found = function(x, parameter, **options)
                exact = function(x.double(), parameter.double(), **options)
                torch.testing.assert_close(found.double(), exact, rtol=1e-2, atol=0.5)
            packed += len(FILTERS)
    assert packed > len(USES)


def test_a_call_holds_the_filter_that_its_kernel_reads(conv, monkeypatch):
    """Whoever drops it meanwhile, as another thread may by `disable`."""
    from implicit_conv.torch.steps import Step

    packed, alive = [], []

    class Dropped:
        """A call before which all filters are dropped."""

        def __init__(self, call):
            self.call = call

        def repeat(self, *arguments):
            FILTERS.shrink(0)
            gc.collect()
            alive.append(packed[0]() is not None)
            self.call.repeat(*arguments)

    def pack(step, w, of=Step.pack):
        found = of(step, w)
        packed.append(weakref.ref(found))
        step.packed_call = Dropped(step.packed_call)
        return found

    monkeypatch.setattr(Step, "pack", pack)
    with door.enable(keep_packed=BYTES):
        check(conv)
    clear_plan_cache()
    gc.collect()
    assert alive == [True] and packed[0]() is None


def test_threads_drop_filters_that_others_read():
    """A filter of 9 MB, whose memory is unmapped or used again at once if nobody holds it."""
    x = torch.randint(-2, 3, (1, 512, 14, 14)).float()
    w = torch.nn.Parameter(torch.randint(-2, 3, (512, 512, 3, 3)).float())
    expected, wrong = CONV(x, w).detach(), []

    def convolve():
        with torch.inference_mode():
            wrong.extend(1 for _ in range(20) if not torch.equal(CONV(x, w), expected))

    with door.enable(keep_packed=BYTES):
        threads = [threading.Thread(target=convolve) for _ in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            FILTERS.shrink(0)
            FILTERS.shrink(BYTES)
            torch.full((w.numel(),), 1e6)  # where the filter was
            time.sleep(2e-3)
    assert not wrong


def test_a_parameter_that_is_written_while_it_is_packed(conv, monkeypatch):
    """And gets its old values back: what was packed must be what is compared."""
    from implicit_conv.torch.steps import Step

    before = conv.weight.detach().clone()

    def pack(step, w, of=Step.pack):
        conv.weight.data.fill_(7)
        try:
            return of(step, w)
        finally:
            conv.weight.data.copy_(before)

    monkeypatch.setattr(Step, "pack", pack)
    with door.enable(keep_packed=BYTES):
        assert check(conv) == 1


def test_parameters_can_be_swapped(conv):
    """`Module.to` and `load_state_dict` swap them, which a weak reference to one forbids."""
    other = torch.nn.Parameter(torch.randn_like(conv.weight))
    with door.enable(keep_packed=BYTES):
        assert check(conv) == 1
        torch.utils.swap_tensors(conv.weight, other)
        check(conv)
        torch.utils.swap_tensors(conv.weight, other)
        check(conv)
