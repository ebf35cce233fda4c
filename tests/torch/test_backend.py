"""torch.compile with this backend, against the same modules in float64 without it."""

import copy
import os
import threading

import pytest
from processes import output_of

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_graphs import ALWAYS, BOUNDS, Graphs, check, compare, programs, randomize  # noqa: E402

from implicit_conv import config  # noqa: E402
from implicit_conv.torch import backend as door  # noqa: E402
from implicit_conv.torch import weight_states  # noqa: E402
from implicit_conv.torch.region import RegionFunction  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Residual(nn.Module):
    """Two layers, of which the second one adds what the first one reads."""

    def __init__(self, channels=16, kind=2, swaps=False, writes=False):
        super().__init__()
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[kind - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[kind - 1]
        self.first = convolution(channels, channels, 3, padding=1, bias=False)
        self.norm, self.act = norm(channels), nn.ReLU(inplace=True)
        self.second, self.swaps, self.writes = convolution(channels, channels, 1), swaps, writes

    def forward(self, x):
        y = self.second(self.act(self.norm(self.first(x))))
        if self.writes:
            y += x
            return torch.relu_(y)
        return functional.leaky_relu(x + y if self.swaps else y + x, 0.2)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_chains_are_one_region(kind, dtype):
    model = randomize(Residual(kind=kind)).to(dtype)
    x = torch.randn(2, 16, *(9, 8, 7)[:kind]).to(dtype)
    check(model, x, [2])


@pytest.mark.parametrize("options", [{"swaps": True}, {"writes": True}])
@pytest.mark.parametrize("form", ["plain", "channels last", "sliced", "negated"])
def test_sums_in_all_orders(form, options):
    x = torch.randn(2, 16, 9, 8)
    if form == "channels last":
        x = x.to(memory_format=torch.channels_last)
    elif form == "sliced":
        x = torch.randn(2, 20, 9, 10)[:, 2:18, :, 1:9]
    elif form == "negated":
        x = torch._neg_view(x)
    model, graphs = randomize(Residual(**options)), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for _ in range(3):
        compare(model, compiled, x)
    assert graphs.regions == [2]


@pytest.mark.parametrize("times", [4, 33, 40])
def test_calls_come_again(times):
    check(randomize(Residual()), torch.randn(1, 16, 12, 11), [2], times)


def test_threads_and_their_number_change():
    model, graphs = randomize(Residual(32)), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for threads in (1, 2, 1, 2):
        with config(num_threads=threads):
            compare(model, compiled, torch.randn(2, 32, 40, 40))
    failures = []

    def call():
        try:
            for _ in range(20):
                compare(model, compiled, torch.randn(2, 32, 40, 40))
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not failures


PADDINGS = {
    "same": nn.Conv2d(8, 8, 3, padding="same"),
    "same of even sizes": nn.Conv2d(8, 8, (2, 4), padding="same", dilation=(1, 3)),
    "reflect": nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
    "replicate": nn.Conv2d(8, 8, 5, padding=2, padding_mode="replicate", groups=2),
    "circular": nn.Conv2d(8, 8, 3, padding=(1, 2), padding_mode="circular"),
    "zeros before": nn.Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(8, 8, 3, stride=2)),
    "both": nn.Sequential(nn.ZeroPad2d((1, 0, 1, 0)), nn.Conv2d(8, 8, 3, padding=1)),
    "strided": nn.Conv2d(8, 16, 3, stride=(2, 1), dilation=(1, 2), groups=4),
    "transposed": nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1, output_padding=1),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", PADDINGS)
def test_windows(name):
    layers = PADDINGS[name], nn.SiLU(), nn.Conv2d(16 if name == "strided" else 8, 8, 1)
    check(randomize(nn.Sequential(*layers)), torch.randn(2, 8, 11, 12), [2])


@pytest.mark.parametrize(
    ("between", "regions"),
    [
        (nn.ReLU6(inplace=True), [2]),
        (nn.Hardtanh(-0.3, 0.4), [2]),
        (nn.Sequential(nn.Dropout(0.5), nn.GELU()), [2]),
        (nn.GELU(approximate="tanh"), [1, 1]),
        (nn.MaxPool2d(2), [3]),
        (nn.ConstantPad2d(1, 0.5), [1, 1]),
        (nn.BatchNorm2d(8, affine=False), [2]),
        (nn.BatchNorm2d(8, track_running_stats=False), [1, 1]),
    ],
)
def test_what_is_between(between, regions):
    layers = nn.Conv2d(8, 8, 3), between, nn.Conv2d(8, 8, 3)
    check(randomize(nn.Sequential(*layers)), torch.randn(2, 8, 11, 12), regions)


class Branches(nn.Module):
    """Layers that go apart, of which two ways have another function before they come back."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(5))

    def forward(self, x):
        a, b, c, d, e = self.convs
        y = a(x)
        z = torch.relu(b(y) + self.function(c(y)))
        return d(z) + e(self.function(y)) + y


class Fork(nn.Module):
    """A layer that two others read, which nothing joins but a product."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(3))

    def forward(self, x):
        a, b, c = self.convs
        y = a(x)
        return b(y) * c(y)


def test_a_layer_that_two_regions_read_is_its_own():
    check(randomize(Fork()), torch.randn(2, 8, 6, 5), [1, 1, 1])


class Skips(nn.Module):
    """Layers of which each adds an image from before, by turns near and far."""

    def __init__(self, size):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(40, 40, size, padding=size // 2) for _ in range(7))

    def forward(self, x):
        images = [x]
        for conv, back in zip(self.convs, (0, 0, 1, 2, 0, 2, 5), strict=True):
            y = conv(images[-1])
            images.append(torch.relu(y + images[-1 - back] if back else y))
        return images[-1]


@pytest.mark.parametrize("size", [1, 3])
def test_images_in_the_room_live_until_they_are_read(size):
    check(randomize(Skips(size)), torch.randn(2, 40, 19, 18), [7])


@pytest.mark.parametrize(
    ("function", "regions"), [(torch.sin, [1, 1, 4]), (nn.MaxPool2d(3, 1, 1), [8])]
)
def test_ways_that_leave_a_region(function, regions):
    check(randomize(Branches(function)), torch.randn(2, 8, 11, 12), regions)


class Writes(nn.Module):
    """A convolution whose image is written to before what follows it."""

    def __init__(self, write, follows=torch.relu):
        super().__init__()
        self.conv, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.write, self.follows = write, follows

    def forward(self, x):
        x = x * 1
        y = self.conv(x)
        self.write(x)
        return self.last(self.follows(y)) + x


WRITES = {
    "method": lambda x: x.mul_(2),
    "special method": lambda x: x.__imul__(2),
    "item": lambda x: x.__setitem__(0, 2.0),
    "result": lambda x: torch.mul(x, 2, out=x),
    "flag that is a number": nn.ReLU(1),
    "flag at its place": lambda x: functional.leaky_relu(x, 0.2, 1),
}


@pytest.mark.parametrize("name", WRITES)
def test_nothing_moves_behind_a_write(name):
    check(randomize(Writes(WRITES[name])), torch.randn(2, 8, 6, 5), [1, 1])


READS = {
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: torch.split(x, 5, 1)[0],
    "slice": lambda x: x[:, 2:],
    "values": lambda x: torch.sort(x).values,
}


class Reads(Writes):
    """A convolution whose image is read, and perhaps written to, before what follows."""

    def forward(self, x):
        x = x * 1
        y = self.conv(x)
        part = self.write(x)
        if self.follows is torch.relu_:
            part.mul_(2)
        return self.last(torch.relu(y)) + x, part


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("follows", [torch.relu, torch.relu_])
def test_reading_items_ends_no_region(name, follows):
    model, graphs = randomize(Reads(READS[name], follows)), Graphs()
    compiled, x = torch.compile(model, backend=graphs), torch.randn(2, 8, 6, 5)
    with torch.no_grad():
        for _ in range(3):
            for found, own in zip(compiled(x), model(x), strict=True):
                assert torch.allclose(found, own, atol=1e-4)
    assert graphs.regions == ([2] if follows is torch.relu else [1, 1])


def test_layers_do_not_meet_across_a_write():
    model = randomize(Writes(WRITES["method"], follows=lambda y: y))
    check(model, torch.randn(2, 8, 6, 5), [1, 1])


def batch_norm(norm):
    """torch writes to statistics without a new version."""
    x = torch.randn(4, 16, 3, 3)
    functional.batch_norm(x, norm.running_mean, norm.running_var, training=True)


def changes(model):
    """Functions that change the weights of a `Residual`."""
    conv, norm = model.first, model.norm

    def load():
        state = {name: value * 0.8 for name, value in model.state_dict().items()}
        model.load_state_dict(state)

    def train(**options):
        weight = conv.weight
        weight.grad = torch.full_like(weight, 0.1)
        torch.optim.SGD([weight], lr=0.5, **options).step()
        weight.grad = None

    def swap():
        conv.weight.data = conv.weight.data.flip(0)
        conv.weight.data = conv.weight.data * 2

    def write():
        with torch.no_grad():
            conv.weight.neg_()

    def replace():
        conv.weight = nn.Parameter(conv.weight.detach() * 0.7)

    return {
        "written": write,
        "loaded": load,
        "trained": train,
        "fused": lambda: train(fused=True),
        "swapped": swap,
        "replaced": replace,
        "statistics": lambda: norm.running_var.mul_(1.5),
        "statistics of a batch": lambda: batch_norm(norm),
        "eps": lambda: setattr(norm, "eps", 0.3),
        "forward": lambda: setattr(conv, "forward", functional.relu),
    }


@pytest.mark.parametrize("name", [*changes(Residual())])
def test_changes_of_a_model_are_seen(name):
    model, x = randomize(Residual()), torch.randn(2, 16, 9, 8)
    compiled = torch.compile(model, backend=Graphs())
    for _ in range(3):
        compare(model, compiled, x)
    changes(model)[name]()
    for _ in range(3):
        compare(model, compiled, x)


def test_weights_that_change_with_every_call_are_not_packed_for_ever():
    model, x, graphs = randomize(Residual()), torch.randn(2, 16, 9, 8), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for _ in range(8):
        compare(model, compiled, x)
        with torch.no_grad():
            model.first.weight.mul_(0.9)
    (function,) = graphs.functions
    assert programs(function) == []
    (state,) = function._states
    assert all(number for number, _ in state.packed)  # that of the other layer
    for _ in range(20):
        compare(model, compiled, x)
    assert len(programs(function)) == 1


@pytest.fixture
def left(monkeypatch):
    """The calls of regions that torch computed."""
    found, by_torch = [], RegionFunction._by_torch

    def counted(function, *operands):
        found.append(function)
        return by_torch(function, *operands)

    monkeypatch.setattr(RegionFunction, "_by_torch", counted)
    return found


def blocks(count, graphs):
    """Blocks of one class, each compiled by itself, and with other weights."""
    found = [randomize(Residual()) for _ in range(count)]
    for number, each in enumerate(found):
        with torch.no_grad():
            each.first.weight.mul_(1 - number / 20)
        each.compile(backend=graphs)
    return found


@pytest.mark.parametrize("times", [1, 2, 3, 4, 33, 40])
def test_blocks_that_share_a_graph_each_have_a_program(times, left):
    graphs = Graphs()
    of_class, x = blocks(12, graphs), torch.randn(2, 16, 9, 8)
    for each in of_class:
        compare(each, each, x)
    with torch.no_grad():
        for _ in range(times - 1):
            for each in of_class:
                assert torch.allclose(each(x), each._call_impl(x), rtol=1e-4, atol=1e-3)
    assert len(graphs.graphs) == 1 and not left
    for number, name in enumerate(changes(of_class[0]) if times in (1, 4) else ()):
        changes(of_class[number])[name]()
        for each in of_class[number:] + of_class[: number + 1]:
            compare(each, each, x)
    assert not left


@pytest.mark.parametrize("name", ["written", "replaced", "fused"])
def test_one_block_that_changes_with_every_call_is_torchs(name, left):
    of_class = blocks(4, Graphs())
    for _ in range(9):
        changes(of_class[1])[name]()
        for each in of_class:
            compare(each, each, torch.randn(2, 16, 9, 8))
    assert len(left) == 5 * (4 if name == "fused" else 1)  # a step may be one of any weights


@pytest.mark.parametrize("limit", ["MOST_STATES", "MOST_BYTES"])
def test_weights_of_many_blocks_are_bounded(limit, monkeypatch, left):
    monkeypatch.setattr(weight_states, limit, 3 if limit == "MOST_STATES" else 40_000)
    graphs = Graphs()
    of_class = blocks(7, graphs)
    for each in of_class:
        compare(each, each, torch.randn(2, 16, 9, 8))
    (function,) = graphs.functions
    assert len([*function._states]) == 3  # each has about 10 kB of packed filters
    for each in of_class * 6:
        compare(each, each, torch.randn(2, 16, 9, 8))
    assert left, "programs that serve one call each are made no more"
    before = len(left)
    for each in of_class[:2] * 20:
        compare(each, each, torch.randn(2, 16, 9, 8))
    assert len(left) - before <= 2 * weight_states.TRIAL


def test_sizes_that_come_once_per_change_of_weights_are_packed():
    weights = [torch.randn(16, 16, 3, 3), torch.randn(16)]
    graphs = Graphs()
    compiled = torch.compile(convolve, backend=graphs, dynamic=True)
    for _ in range(3):
        for size in (7, 8, 9, 10, 11, 12):
            x = torch.randn(2, 16, size, 20)
            assert torch.allclose(compiled(x, *weights), convolve(x, *weights), atol=1e-3)
        weights[0].neg_()
    (function,) = graphs.functions
    assert len(programs(function)) == 6 and None not in programs(function)
    compiled(x, *weights)
    assert len(programs(function)) == 1  # others would hold filters that were packed before


def convolve(x, w, bias):
    return functional.conv2d(x, w, bias, padding=1).relu()


@pytest.mark.slow
def test_packed_filters_are_not_those_of_memory_that_was_freed():
    """New weights at the address of others, which had been refused: both have version 0."""
    compiled, bias = torch.compile(convolve, backend=Graphs(), dynamic=True), torch.zeros(64)
    with torch.no_grad():
        for size in (33, 34, 35, 36, 37, 38):  # sizes with one layout of filters
            x = torch.randn(1, 64, size, size)
            for _ in range(6):
                w = torch.randn(64, 64, 3, 3)
                assert torch.allclose(compiled(x, w, bias), convolve(x, w, bias), atol=1e-2)
                del w


def test_weights_keep_their_addresses_from_others():
    """New ones there would have version 0 too."""
    x, w, bias = torch.randn(1, 64, 9, 8), torch.randn(64, 64, 3, 3), torch.randn(64)
    compiled, memory = torch.compile(convolve, backend=Graphs()), bias.untyped_storage()._weak_ref()
    with torch.no_grad():
        compiled(x, w, bias)
    del bias
    assert not torch.UntypedStorage._expired(memory)
    with torch.no_grad():
        compiled(x, w, torch.randn(64))  # without the state of the bias that is gone
    assert torch.UntypedStorage._expired(memory)
    torch.UntypedStorage._free_weak_ref(memory)


def test_weights_of_other_shapes_at_one_address():
    compiled = torch.compile(convolve, backend=Graphs(), dynamic=True)
    x, w, bias = torch.randn(2, 8, 9, 8), torch.randn(16, 8, 3, 3), torch.randn(16)
    with torch.no_grad():
        for count in (16, 8, 16, 12):
            given = x, w[:count], bias[:count]
            found, own = compiled(*given), convolve(*given)
            assert found.shape == own.shape and torch.allclose(found, own, atol=1e-4)


def test_weights_that_are_parts_of_one_tensor(left):
    compiled, x = torch.compile(convolve, backend=Graphs()), torch.randn(2, 8, 9, 8)
    w, bias = torch.randn(5, 8, 8, 3, 3), torch.randn(5, 8)
    with torch.no_grad():
        for times in range(6):
            for number in range(5):
                given = x, w[number], bias[number]
                assert torch.allclose(compiled(*given), convolve(*given), atol=1e-4)
            if times in (1, 3):
                w[0] *= 0.9  # all have one version
    assert not left


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_runs_new_weights_without_torchs_threads():
    """libgomp hangs in the child of a parent that used several of them."""
    code = """
import os, signal, numpy, torch
from implicit_conv.torch import backend as door
torch.set_num_threads(2)
def convolve(x, w):
    return torch.conv2d(x, w, padding=1).relu()
x, w = torch.randn(4, 32, 40, 40), torch.randn(64, 32, 3, 3)
ours = lambda *given: door.backend(*given, options={"choose": "always"})
compiled = torch.compile(convolve, backend=ours)
with torch.no_grad():
    expected = convolve(x, -w).numpy()
    compiled(x, w)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if numpy.allclose(compiled(x, -w).numpy(), expected, atol=1e-3) else 1)
print(os.waitpid(child, 0)[1])
"""
    assert output_of(code, timeout=120) == "0"


def test_strides_change_without_a_graph_each():
    compiled = torch.compile(convolve, backend=Graphs(), dynamic=True)
    weights = torch.randn(8, 8, 3, 3), torch.randn(8)
    with torch.no_grad():
        for width in (12, 15, 20, 12):
            x = torch.randn(2, 8, 9, width)[..., :10]
            assert torch.allclose(compiled(x, *weights), convolve(x, *weights), atol=1e-4)


@pytest.mark.parametrize("number", [1, 2])
def test_weights_that_a_flag_negates(number):
    given = [torch.randn(2, 8, 9, 8), torch.randn(8, 8, 3, 3), torch.randn(8)]
    given[number] = torch._neg_view(given[number])
    compiled = torch.compile(convolve, backend=Graphs())
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(compiled(*given), convolve(*given), atol=1e-4)


def test_tensors_in_layouts_of_onednn_are_torchs():
    """Dynamo traces them as dense ones."""
    given = [torch.randn(2, 8, 9, 8), torch.randn(8, 8, 3, 3), torch.randn(8)]
    compiled = torch.compile(convolve, backend=Graphs())
    with torch.no_grad():
        found = compiled(*(each.to_mkldnn() for each in given))
    assert torch.allclose(found.to_dense(), convolve(*given), atol=1e-4)


def test_sizes_change_without_a_graph_each():
    model, graphs = randomize(Residual()), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for size in (9, 12, 15, 9, 20, 31, 8):
        compare(model, compiled, torch.randn(2, 16, size, size + 1))
    assert len(graphs.graphs) <= 2


def test_autocast_is_torchs():
    model, x, graphs = randomize(Residual()), torch.randn(2, 16, 9, 8), Graphs()
    compiled = torch.compile(model, backend=graphs)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compiled(x), model(x))
    assert graphs.regions == []


def test_tensors_of_inference_mode():
    model, x = randomize(Residual()), torch.randn(2, 16, 9, 8)
    compiled = torch.compile(model, backend=Graphs())
    with torch.inference_mode():
        for _ in range(3):
            assert torch.allclose(compiled(x), model(x), atol=1e-4)
        other = copy.deepcopy(model)  # its weights have no versions
        compiled = torch.compile(other, backend=Graphs())
        for _ in range(3):
            assert torch.allclose(compiled(x), other(x), atol=1e-4)


def test_weights_that_are_not_aligned_are_torchs():
    model, x, graphs = randomize(Residual()), torch.randn(2, 16, 9, 8), Graphs()
    weight = model.first.weight
    memory = torch.empty(1 + 4 * weight.numel(), dtype=torch.uint8)
    odd = torch.frombuffer(memory.numpy(), dtype=torch.float32, offset=1).view(weight.shape)
    weight.data = odd.copy_(weight.data)
    assert weight.data_ptr() % 4
    compare(model, torch.compile(model, backend=graphs), x)
    (function,) = (n.target for n in graphs.graphs[0].graph.nodes if n.op == "call_function")
    assert programs(function) == [None]


def test_weights_without_versions_come_later():
    model, x = randomize(Residual()), torch.randn(2, 16, 9, 8)
    compiled = torch.compile(model, backend=Graphs())
    compare(model, compiled, x)
    with torch.inference_mode():
        model.first.weight = nn.Parameter(model.first.weight * 2, requires_grad=False)
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(compiled(x), model(x), atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_forward_gradients_are_torchs():
    model, x = randomize(Residual()), torch.randn(2, 16, 9, 8)
    compiled = torch.compile(model, backend=Graphs())
    compare(model, compiled, x)
    from torch.autograd import forward_ad

    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found, own = (forward_ad.unpack_dual(f(dual)) for f in (compiled, model))
        assert own.tangent is not None
        assert torch.allclose(found.tangent, own.tangent, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_gradients(training):
    model = randomize(Residual()).train(training)
    other, x = copy.deepcopy(model), torch.randn(2, 16, 9, 8, requires_grad=True)
    compiled = torch.compile(model, backend=Graphs())
    for _ in range(3):
        of_x = []
        for each in (compiled, other):
            each.zero_grad()
            x.grad = None
            each(x).square().sum().backward()
            of_x.append(x.grad)
        assert torch.allclose(*of_x, rtol=1e-3, atol=1e-3)
        for own, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.allclose(own.grad, theirs.grad, rtol=1e-3, atol=1e-2)


class Attends(nn.Module):
    """Group norms of a sum, one of whose images has its channels last."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.linear, self.norm = nn.Linear(16, 16), nn.GroupNorm(4, 16)

    def forward(self, x):
        y = self.conv(x)
        z = self.linear(y.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(y.shape)
        return self.norm(self.last(self.norm(z + y)))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_group_norms(batch, dynamic):
    model = randomize(Attends())
    compiled = torch.compile(model, backend=Graphs(), dynamic=dynamic)
    for size in (9, 12):
        x, found = torch.randn(batch, 4, size, size, requires_grad=True), []
        for each in (compiled, model):
            found.append(torch.autograd.grad(each(x).square().sum(), x)[0])
        assert torch.allclose(*found, rtol=1e-3, atol=1e-2)


class Recording(nn.Module):
    """A layer that records gradients for itself, and what the image would change of it."""

    def __init__(self, differentiates):
        super().__init__()
        self.conv, self.differentiates = nn.Conv2d(8, 8, 3), differentiates

    def forward(self, x):
        with torch.enable_grad():
            if self.differentiates:
                x = x.detach().requires_grad_()
            y = self.conv(x).sigmoid()
            return torch.autograd.grad(y.sum(), x)[0] if self.differentiates else y


@pytest.mark.parametrize("differentiates", [False, True])
def test_gradients_that_a_model_records_for_itself(differentiates):
    model, x = randomize(Recording(differentiates)), torch.randn(2, 8, 9, 8)
    compiled = torch.compile(model, backend=Graphs())
    with torch.no_grad():
        for _ in range(2):
            found, own = compiled(x), model(x)
            assert found.requires_grad == own.requires_grad == (not differentiates)
            assert torch.allclose(found, own, atol=1e-4)


def test_torch_finds_the_backend_by_its_name():
    assert "implicit_conv" in torch._dynamo.list_backends()
    model, x = randomize(Residual()), torch.randn(2, 16, 9, 8)
    compare(model, torch.compile(model, backend="implicit_conv", options=ALWAYS), x)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"options": {"precison": "fast"}}, "no option 'precison'; it has precision, choose, "),
        ({"options": {"cudagraph": 1}}, "option 'cudagraph' is True or False, not 1"),
        ({"options": {"precision": "exact"}}, "exact"),
        ({"mode": "max-autotune"}, "no modes"),
    ],
)
def test_wrong_options_are_refused(given, words):
    def backend(graph, inputs):
        return door.backend(graph, inputs, **given)

    compiled = torch.compile(randomize(Residual()), backend=backend)
    with torch.no_grad(), pytest.raises(Exception, match=words):
        compiled(torch.randn(2, 16, 9, 8))


def test_the_faster_one_runs(monkeypatch):
    """What loses its race is torch's, also with weights that change."""
    from implicit_conv.torch import region

    monkeypatch.setattr(region, "ours_is_faster", lambda times: False)
    monkeypatch.setattr(region, "worth_measuring", lambda plan: True)
    model, x = randomize(Residual()), torch.randn(2, 16, 9, 8)
    compiled = torch.compile(model, backend=Graphs(choose="measured"))
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(x), model(x))


class Computed(nn.Module):
    """A convolution whose filter is computed."""

    def __init__(self):
        super().__init__()
        self.w, self.gain = nn.Parameter(torch.zeros(8, 8, 3, 3)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return functional.conv2d(x, self.w * self.gain, padding="same").relu()


def test_filters_that_are_computed():
    model, x, graphs = randomize(Computed()), torch.randn(2, 8, 9, 8), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for _ in range(3):
        compare(model, compiled, x)
    (graph,) = graphs.graphs
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"][1] is door.ours


def test_what_no_program_computes_is_torchs_where_precision_is_strict():
    """Our operator would compute it by Winograd's transforms."""
    model, x = randomize(Computed()), torch.randn(2, 8, 9, 8)
    plain, graphs = randomize(Residual(8)), Graphs(precision="strict")
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend=graphs)(x), model(x))
    assert torch.equal(torch.compile(plain, backend=graphs)(x), plain(x))
