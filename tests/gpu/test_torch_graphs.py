"""torch.compile with this backend on a GPU: graphs that Dynamo traces, whose values are said to be
on a GPU, run node by node on a recorded driver that computes in the memory of the tensors.
"""

import contextlib
import copy
import ctypes
import weakref
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from torch import fx, nn  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_card import OURS, THEIRS  # noqa: E402
from torch_graphs import randomize  # noqa: E402

from implicit_conv.gpu.cuda.arch import gpu_arch  # noqa: E402
from implicit_conv.torch import backend as door  # noqa: E402
from implicit_conv.torch import cuda, cuda_graphs, cuda_layers, override  # noqa: E402
from perf import asked  # noqa: E402
from perf.bringup import networks  # noqa: E402

RUNS = 1, 2, 3, 4, 33, 40
BOUNDS = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}
LAST, PLAIN = torch.channels_last, torch.contiguous_format


class Block(nn.Module):
    """A residual block, with norms of all kinds, and what follows it."""

    def __init__(self, channels=16, affine=True, bias=False, writes=True):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=bias)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels, affine=affine) for _ in range(3)])
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.second, self.writes = nn.Conv2d(channels, channels, 1, bias=bias), writes
        self.last = nn.Linear(channels, 5)

    def forward(self, x):
        x = functional.relu(self.norms[0](self.stem(x)), inplace=self.writes)
        x = functional.max_pool2d(x, 3, 2, 1)
        y = functional.relu(self.norms[1](self.first(x)), inplace=self.writes)
        y = self.norms[2](self.second(y))
        if self.writes:
            y += x
        else:
            y = x + y
        y = functional.relu(y)
        return self.last(y.mean((2, 3))), y


class Device:
    """The backend on a recorded card.

    Attributes
    ----------
    graphs : list of torch.fx.GraphModule, as compiled
    replayed : list of Replayed
    """

    def __init__(self, card, **options):
        self.card, self.options, self.graphs, self.replayed = card, options, [], []

    def __call__(self, graph, inputs):
        memory = {}  # which views share
        with FakeTensorMode():
            for node in graph.graph.nodes:
                value = node.meta.get("example_value")
                if isinstance(value, torch.Tensor):
                    storage = value.untyped_storage()
                    options = {"dtype": value.dtype, "device": "cuda:0"}
                    size = int(storage.nbytes()) // value.itemsize
                    of = memory.setdefault(storage._cdata, torch.empty(size, **options))
                    sizes = (tuple(map(int, each)) for each in (value.shape, value.stride()))
                    made = of.as_strided(*sizes, int(value.storage_offset()))
                    node.meta["example_value"] = made
        options = {"precision": "standard", "choose": "measured"} | self.options
        made = door.compile_graph(graph, [], **options).run
        self.graphs.append(graph)
        card = self.card

        class Placed(fx.Interpreter):
            def run_node(self, node):
                return tuple_or(card.on_gpu, super().run_node(node))

        run = Placed(graph).run
        if isinstance(made, cuda_graphs.Replayed):
            made._run, run = run, made
            self.replayed.append(made)

        def compiled(*arguments):
            y = run(*(tuple_or(card.on_gpu, each) for each in arguments))
            return tuple_or(lambda y: y.as_subclass(torch.Tensor), y)

        return compiled


def tuple_or(function, value):
    """`function` of a tensor, or of those in a tuple; other values as they are."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(tuple_or(function, each) for each in value)
    return value


@pytest.fixture
def device(card, monkeypatch):
    torch._dynamo.reset()
    by_torch = door._by_torch

    def recorded(region):
        function = by_torch(region)

        def theirs(*tensors):
            card.ran.append("theirs")
            plain = [each.as_subclass(torch.Tensor) for each in tensors]
            return card.on_gpu(function(*plain))

        return theirs

    stub = type(card.on_gpu(torch.zeros(1)))
    monkeypatch.delattr(stub, "__torch_function__")  # results are on the GPU, too
    monkeypatch.setattr(cuda_layers, "PLAIN", (stub, torch.Tensor, nn.Parameter))
    monkeypatch.setattr(door, "_by_torch", recorded)
    yield lambda **options: Device(card, **options)
    torch._dynamo.reset()


def compare(model, compiled, x):
    """Against the model in float64, and the strides of torch's results."""
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
        found, theirs = compiled(x), model(x)
    for y, their, exact in zip(*map(as_tuple, (found, theirs, expected)), strict=True):
        assert y.dtype == their.dtype and y.stride() == their.stride()
        apart = torch.linalg.vector_norm(y.double() - exact) / torch.linalg.vector_norm(exact)
        assert apart < BOUNDS[y.dtype], apart


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("form", [PLAIN, LAST])
@pytest.mark.parametrize("seconds", [OURS, THEIRS], ids=["ours", "theirs"])
def test_every_repetition_is_right(card, device, dtype, form, seconds):
    """New values at new addresses; the faster one runs, for each layer as one launch."""
    card.seconds = seconds
    model = randomize(Block()).to(dtype).to(memory_format=form)
    compiled, kept = torch.compile(model, backend=device()), []
    for run in range(1, max(RUNS) + 1):
        x = torch.randn(2, 3, 32, 24).to(dtype).contiguous(memory_format=form)
        kept.append(x)
        card.ran.clear()
        if run in RUNS:
            compare(model, compiled, x)
        else:
            with torch.no_grad():
                compiled(x)
    assert card.ran == ["ours" if seconds is OURS else "theirs"] * 3


class Signals(nn.Module):
    """One axis of pixels, with padding of its own and a sum with what is read."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv1d(8, 8, 3, dilation=2), nn.BatchNorm1d(8, eps=1e-3)

    def forward(self, x):
        return torch.relu_(self.norm(self.first(functional.pad(x, (4, 0)))) + x)


class Depthwise(nn.Module):
    """Groups, an activation that is no limit, and a gate."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.norm, self.last = nn.BatchNorm2d(16), nn.Conv2d(16, 24, 1)

    def forward(self, x):
        y = functional.relu6(self.norm(self.first(x)))
        return self.last(y * torch.sigmoid(y.mean((2, 3), keepdim=True)))


class Volumes(nn.Module):
    """Windows of several planes, then of one, with norms and a sum."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv3d(3, 16, 3, stride=(1, 2, 2), padding=1), nn.BatchNorm3d(16)
        self.second = nn.Conv3d(16, 16, (1, 3, 3), padding=(0, 1, 1), bias=False)
        self.third, self.last = nn.Conv3d(16, 16, 3, padding="same"), nn.BatchNorm3d(16)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        return functional.relu(self.last(self.third(functional.relu(self.second(x)))) + x)


class Transposed(nn.Module):
    """A transposed convolution with all that follows it, and a bias of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.ConvTranspose2d(8, 16, 3, stride=2, padding=1, output_padding=1)
        self.norm, self.second = nn.BatchNorm2d(16), nn.ConvTranspose2d(16, 16, 1)

    def forward(self, x):
        y = functional.relu(self.norm(self.first(x)))
        return functional.relu6(self.second(y) + y)


class Shape(nn.Module):
    """What follows depends on strides, or writes through what may be a view."""

    def __init__(self, end):
        super().__init__()
        self.first, self.end = nn.Conv2d(3, 8, 3), end

    def forward(self, x):
        return self.end(functional.relu(self.first(x)))


def written(y):
    flat = y.reshape(len(y), -1)
    flat.add_(1)
    return y * 2


ENDS = {
    "view": lambda y: y.view(len(y), -1),
    "written": written,
    "strided": lambda y: y.as_strided((2, 8), (y.stride(0), y.stride(1))),
    "flattened": lambda y: y.flatten(1),
    "permuted": lambda y: y.permute(0, 2, 3, 1),
    "itself and a part": lambda y: (y, y[:, :4]),
    "a part": lambda y: y[:, :4],
    "rows": lambda y: y[:, :, ::2],
    "windows": lambda y: y.unfold(2, 2, 1),
    "one pixel": lambda y: functional.adaptive_avg_pool2d(y, 1),
    "one pixel, turned": lambda y: functional.adaptive_avg_pool2d(y, 1).permute(0, 2, 3, 1),
    "a part of one": lambda y: y[:1, :4],
    "a mean": lambda y: y.mean((2, 3)),
}
MODELS = {
    "circular": (lambda: nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"), (2, 3, 12, 9), 1),
    "plain norms": (lambda: Block(affine=False), (2, 3, 32, 24), 3),
    "biases": (lambda: Block(bias=True, writes=False), (2, 3, 32, 24), 3),
    "signals": (Signals, (2, 8, 19), 1),
    "transposed": (Transposed, (2, 8, 9, 8), 2),
    "volumes": (Volumes, (2, 3, 4, 12, 9), 3),
    "depthwise": (Depthwise, (2, 16, 9, 8), 2),
    **{name: (lambda end=end: Shape(end), (2, 3, 12, 9), 1) for name, end in ENDS.items()},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", [PLAIN, LAST])
@pytest.mark.parametrize("name", MODELS)
def test_models(card, device, name, form, dtype):
    make, shape, layers = MODELS[name]
    if form is LAST and name in ("signals", "view"):
        pytest.skip("torch itself has no such model")
    model = randomize(make()).to(dtype)
    form = torch.channels_last_3d if form is LAST and len(shape) == 5 else form
    model, compiled = model.to(memory_format=form), torch.compile(model, backend=device())
    for _ in range(4):
        card.ran.clear()
        compare(model, compiled, torch.randn(shape).to(dtype).contiguous(memory_format=form))
    assert card.ran == ["ours"] * layers


RANDOM = {  # functions of an image, and whether it has its channels last there
    "dropout": (lambda y: functional.dropout(y, 0.4), False),
    "a half": (lambda y: functional.dropout(y, inplace=False), False),
    "training": (lambda y: functional.dropout(y, 0.4, True, False), False),
    "no training": (lambda y: functional.dropout(y, 0.4, False), True),
    "noise": (lambda y: y + torch.randn_like(y), False),
    "uniform": (lambda y: y + torch.rand_like(y), False),
    "integers": (lambda y: y + torch.randint_like(y, 3), False),
    "bernoulli": (lambda y: y * torch.bernoulli(torch.sigmoid(y)), False),
    "a method": (lambda y: y * torch.sigmoid(y).bernoulli(), False),
    "normal": (lambda y: torch.normal(y, 1.0), False),
    "poisson": (lambda y: torch.poisson(y.abs()), False),
    "switched off": (lambda y: functional.dropout(y, training=False), True),
    "of sizes": (lambda y: y + torch.rand(y.shape, dtype=y.dtype), True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_torchs(card, device, name):
    """They are drawn in the order of memory."""
    function, turns = RANDOM[name]
    made, model = device(), randomize(Shape(function)).half()
    compiled = torch.compile(model, backend=made)
    for seed in range(4):
        x, found = torch.randn(2, 3, 12, 9).half(), []
        for each in (model, compiled):
            torch.manual_seed(seed)
            with torch.no_grad():
                found.append(each(x))
        torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)
    called = [node.target for graph in made.graphs for node in graph.graph.nodes]
    functions = [each for each in called if isinstance(each, cuda_layers.LayerFunction)]
    assert card.ran[-1] == "ours" and {each._last for each in functions} == {turns}


def trained(model):
    """torch tells nothing of what it writes to statistics."""
    versions = [each._version for each in model.buffers() if each.dim()]
    with torch.no_grad():
        functional.batch_norm(torch.randn(64, 16) * 3 + 1, *statistics(model), training=True)
    assert versions == [each._version for each in model.buffers() if each.dim()]


def statistics(model):
    return model.norms[1].running_mean.float(), model.norms[1].running_var.float()


def halved(model):
    with torch.no_grad():
        model.first.weight.mul_(0.5)


def replaced(model):
    model.first.weight = nn.Parameter(torch.randn_like(model.first.weight) / 10)


def set_data(model):
    model.first.weight.data = torch.randn_like(model.first.weight) / 10


CHANGES = {"trained": trained, "halved": halved, "replaced": replaced, "data": set_data}


@pytest.mark.parametrize("form", [PLAIN, LAST])
@pytest.mark.parametrize("name", CHANGES)
def test_parameters_that_change_are_followed(card, device, name, form):
    model = randomize(Block()).half().to(memory_format=form)
    for norm in model.norms:
        norm.float()
    compiled, x = torch.compile(model, backend=device()), torch.randn(2, 3, 32, 24).half()
    x = x.contiguous(memory_format=form)
    for change in (None, CHANGES[name]) * 2:
        if change:
            change(model)
        for _ in range(3):
            compare(model, compiled, x)
    assert card.ran[-3:] == ["ours"] * 3


def test_filters_in_another_order_are_copied_once(card, device, monkeypatch):
    """But not into a graph of CUDA, which would not follow what is written to them."""
    model, copies = randomize(Block()).half(), []
    packed = cuda_layers.Packed
    monkeypatch.setattr(cuda_layers, "Packed", lambda *of: copies.append(of) or packed(*of))
    compiled, x = torch.compile(model, backend=device()), torch.randn(2, 3, 32, 24).half()
    compare(model, compiled, x)
    for card.captures in (False, True, True, False):
        card.ran.clear()
        compare(model, compiled, x)
        assert card.ran == ["ours"] * 3
    assert len(copies) == 2  # of taps: a filter of one tap has no other order


def test_strict_precision_runs_ours(card, device):
    card.seconds, model = THEIRS, randomize(Block()).half()
    compiled = torch.compile(model, backend=device(precision="strict"))
    compare(model, compiled, torch.randn(2, 3, 32, 24).half())
    assert card.ran.count("ours") == 6 and not card.measured


def test_what_is_not_served_is_torchs(card, device):
    model = randomize(nn.Sequential(nn.ConvTranspose3d(3, 8, 3)))
    compiled = torch.compile(model.half(), backend=device())
    for _ in range(3):
        compare(model, compiled, torch.randn(2, 3, 4, 12, 9).half())
    assert set(card.ran) == {"theirs"}


@pytest.fixture
def captures(card, monkeypatch):
    """The addresses of captured calls, which are computed again there when they are replayed."""
    made = []

    def reader(given):
        """What reads the memory of a tensor by its address, which does not keep it."""
        if not isinstance(given, torch.Tensor):
            return lambda: given
        dtype, shape, strides, address = given.dtype, given.shape, given.stride(), given.data_ptr()
        size = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))

        def read():
            memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
            return card.on_gpu(torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides))

        return read

    def captured(run, given):
        card.captures = True
        results = run(*given)
        card.captures = False
        made.append([each.data_ptr() for each in given if isinstance(each, torch.Tensor)])
        readers = [reader(each) for each in given]

        def replay():
            card.captures = True
            for own, now in zip(results, run(*(read() for read in readers)), strict=True):
                own.copy_(now)
            card.captures = False

        return replay, results

    monkeypatch.setattr(cuda_graphs, "captured", captured)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return made


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("form", [PLAIN, LAST])
def test_a_graph_of_cuda_computes_what_the_call_would(card, device, captures, form, dtype):
    """Results are kept, new values come at new addresses, and parameters are followed."""
    model = randomize(Block()).to(dtype).to(memory_format=form)
    compiled, kept = torch.compile(model, backend=device(cudagraph=True)), []
    for run in range(1, max(RUNS) + 1):
        for images in (2, 3):
            x = torch.randn(images, 3, 32, 24).to(dtype).contiguous(memory_format=form)
            with torch.no_grad():
                kept.append((x, compiled(x)[0], copy.deepcopy(model) if run in RUNS else None))
        if run == 20:
            halved(model)
        if run == 30:
            set_data(model)
    assert len(captures) == 4  # of two shapes, and again for the parameter that was replaced
    for x, y, then in kept:
        if then:
            with torch.no_grad():
                expected = then.double()(x.double())[0]
            apart = torch.linalg.vector_norm(y.double() - expected)
            assert apart < BOUNDS[dtype] * torch.linalg.vector_norm(expected)


def test_a_graph_of_cuda_keeps_no_parameters(card, device, captures):
    """Those that are replaced are freed, and the graphs that read them are dropped."""
    model, made = randomize(Block()).half(), device(cudagraph=True)
    compiled = torch.compile(model, backend=made)
    memory, shapes = [], ((2, 3, 32, 24), (3, 3, 32, 24))
    for replacement in range(1, 4):
        for call in range(4):
            for shape in shapes:
                compare(model, compiled, torch.randn(shape).half())
            if not call:
                assert not [each for each in memory if each()]
        known = [each for replayed in made.replayed for each in replayed._found.values()]
        graphs = [each for each in known if isinstance(each, cuda_graphs.Graph)]
        assert len(graphs) == len(shapes) and len(captures) == len(shapes) * replacement
        memory = [weakref.ref(each.untyped_storage()) for each in model.parameters()]
        others = {name: (each * 0.9).to(each) for name, each in model.state_dict().items()}
        model.load_state_dict(others, assign=True)


def test_a_graph_of_cuda_is_not_run_again_where_memory_was_freed(card, device, captures):
    """Other tensors may be there: parameters, at the same address, or others."""
    model, place = randomize(nn.Conv2d(3, 8, 3)), bytearray(4 * 8 * 3 * 9 + 64)
    compiled = torch.compile(model, backend=device(cudagraph=True))

    def at_the_place():
        made = torch.frombuffer(place, dtype=torch.float32, count=8 * 3 * 9).view(8, 3, 3, 3)
        with torch.no_grad():
            return made.normal_()

    for replacement in range(1, 5):
        model.weight.data = at_the_place() if replacement != 3 else torch.randn(8, 3, 3, 3)
        for _ in range(4):
            compare(model, compiled, torch.randn(2, 3, 9, 8))
        assert len(captures) == replacement
    assert sum(at_the_place().data_ptr() in each for each in captures) == 3


def test_a_graph_of_cuda_runs_again_for_parameters_that_come_back(card, device, captures):
    """Such as means of parameters, which take their place for a while."""
    model = randomize(nn.Conv2d(3, 8, 3))
    compiled = torch.compile(model, backend=device(cudagraph=True))
    own, mean = model.weight.data, torch.randn(8, 3, 3, 3)
    for _ in range(3):
        for each in (own, mean):
            model.weight.data = each
            for _ in range(3):
                compare(model, compiled, torch.randn(2, 3, 9, 8))
    assert len(captures) == 2


def added(x):
    x.add_(1)
    return x * 2


@pytest.mark.parametrize("name", ["writes to its input", "shares memory", "repeats", "fails"])
def test_what_no_graph_of_cuda_can_hold_runs_as_it_is(
    card, device, captures, name, monkeypatch, caplog
):
    if name == "fails":

        def captured(run, given):
            raise RuntimeError("not in a capture")

        monkeypatch.setattr(cuda_graphs, "captured", captured)
    ends = {"writes to its input": lambda y: y, "shares memory": lambda y: (y, y[:, :4])}
    ends["repeats"] = lambda y: y.mean((2, 3), keepdim=True).expand(-1, -1, 3, 3)
    model = randomize(Shape(ends.get(name, lambda y: y))).half()
    function = (lambda x: model(added(x))) if name in "writes to its input" else model
    compiled = torch.compile(function, backend=device(cudagraph=True))
    for _ in range(4):
        x = torch.randn(2, 3, 12, 9).half()
        mine = x.clone()
        with torch.no_grad():
            found, expected = as_tuple(compiled(x)), as_tuple(function(mine))
        assert torch.equal(x, mine)
        for y, other in zip(found, expected, strict=True):
            torch.testing.assert_close(y, other, rtol=1e-2, atol=1e-2)
    assert caplog.text.count("no graph of CUDA is captured") == 1


def test_a_graph_on_the_cpu_says_that_none_is_captured(caplog):
    torch._dynamo.reset()
    model = nn.Conv2d(3, 8, 3)
    compiled = torch.compile(model, backend="implicit_conv", options={"cudagraph": True})
    with torch.no_grad():
        compiled(torch.randn(1, 3, 9, 9))
    assert (
        "no graph of CUDA is captured of a compiled graph: its inputs are on ['cpu']" in caplog.text
    )


@pytest.mark.parametrize("form", [PLAIN, LAST])
def test_autocast_of_volumes(card, device, form):
    """Filters are converted, and have their channels last from then on."""
    form = torch.channels_last_3d if form is LAST else form
    model = randomize(Volumes()).to(memory_format=form)
    compiled = torch.compile(model, backend=device())
    for _ in range(4):
        x = torch.randn(2, 3, 4, 12, 9).contiguous(memory_format=form)
        card.ran.clear()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found, theirs = compiled(x), model(x)
        assert (found.dtype, found.stride()) == (theirs.dtype, theirs.stride())
        apart = torch.linalg.vector_norm(found.double() - theirs.double())
        assert apart < 3e-2 * torch.linalg.vector_norm(theirs.double())
    assert card.ran == ["ours"] * 3


@pytest.mark.parametrize("form", [PLAIN, LAST])
@pytest.mark.parametrize("inside", [True, False])
def test_autocast(card, device, monkeypatch, form, inside):
    """Convolutions in 16 bits of parameters in float32, which are converted once."""
    model, copies = randomize(Block()).to(memory_format=form), []
    packed = cuda_layers.Packed
    monkeypatch.setattr(cuda_layers, "Packed", lambda *of: copies.append(of) or packed(*of))

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    function = function if inside else model
    compiled = torch.compile(function, backend=device())
    for run in range(1, max(RUNS) + 1):
        x = torch.randn(2, 3, 32, 24).contiguous(memory_format=form)
        card.ran.clear()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found, theirs = compiled(x), function(x)
        for y, their in zip(found, theirs, strict=True):
            assert (y.dtype, y.stride()) == (their.dtype, their.stride())
            apart = torch.linalg.vector_norm(y.double() - their.double())
            assert apart < 3e-2 * torch.linalg.vector_norm(their.double())
        if run == 20:
            halved(model)
    assert card.ran == ["ours"] * 3 and len(copies) == 4


def test_autocast_converts_filters_that_are_computed(card, device):
    model = randomize(nn.Conv2d(3, 8, 3))

    def function(x):
        return functional.conv2d(x, model.weight * 2, model.bias)

    compiled, x = torch.compile(function, backend=device()), torch.randn(1, 3, 9, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, theirs = compiled(x), function(x)
    assert found.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(found, theirs, rtol=2e-2, atol=2e-2)


class TrainedBetween(nn.Module):
    """Trains the second norm after the first one was read."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8, affine=False) for _ in range(2)])

    def forward(self, x, other):
        first, second = ((each.running_mean, each.running_var) for each in self.norms)
        y = functional.batch_norm(self.first(x), *first)
        functional.batch_norm(other, *second, training=True, momentum=0.5)
        return functional.batch_norm(self.second(y), *second)


def test_norms_that_the_graph_itself_trains_are_followed(card, device):
    model = TrainedBetween()
    compiled = torch.compile(copy.deepcopy(model), backend=device())
    for mean in (0, 0, 20, 20):  # the first call, which compares, finds nothing new
        other = torch.randn(2, 8, 100, 100)
        other = functional.batch_norm(other, None, None, training=True) + mean
        x = torch.randn(2, 3, 12, 9)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, other), model(x, other), rtol=1e-3, atol=1e-3)


def test_norms_are_read_by_the_stream_that_computed_them(card, device, monkeypatch):
    """Another one might read them before they are written."""
    now, wrote, stack, run = [7], {}, torch.stack, cuda.Step.__call__

    @torch._dynamo.allow_in_graph
    def to_stream(x, number):
        now[0] = number
        return x.clone()

    def stacked(*given):
        pairs = stack(*given)
        wrote[pairs.data_ptr()] = now[0]
        return pairs

    def ours(step, *given):
        scales = given[4]().untyped_storage().data_ptr()
        read.append((now[0], wrote[scales]))
        return run(step, *given)

    model, read = randomize(Block(writes=False)), []

    def function(x):
        x = functional.relu(model.norms[0](model.stem(to_stream(x, 7))))
        y = functional.relu(model.norms[1](model.first(to_stream(x, 9))))
        return to_stream(model.norms[2](model.second(to_stream(y, 7))), 7)

    monkeypatch.setattr(torch, "stack", stacked)
    monkeypatch.setattr(cuda.Step, "__call__", ours)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: now[0])
    compiled = torch.compile(function, backend=device())
    for _ in range(3):
        wrote.clear()
        read.clear()
        x = torch.randn(2, 3, 32, 24)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3)
    assert read == [(7, 7), (9, 9), (7, 7)] and len(wrote) == 2


@pytest.mark.parametrize("first", [LAST, PLAIN])
def test_sums_of_either_order_have_torchs_strides(card, device, first):
    """Of the first of two images that differ, by calls that have all else in common."""
    made = nn.Conv2d(8, 8, 3, padding=1)
    sums = {
        "first": lambda x, y: made(x) + y,
        "last": lambda x, y: y + made(x),
        "written": lambda x, y: made(x).add_(y),
    }
    for end in sums.values():

        def function(x, y, end=end):
            z = end(x, y)
            return z, z.as_strided((4,), (1,))

        torch._dynamo.reset()
        compiled = torch.compile(function, backend=device())
        other = PLAIN if first is LAST else LAST
        for _ in range(3):
            x = torch.randn(2, 8, 6, 5).contiguous(memory_format=first)
            y = torch.randn(2, 8, 6, 5).contiguous(memory_format=other)
            with torch.no_grad():
                found, expected = compiled(x, y), function(x, y)
            assert found[0].stride() == expected[0].stride()
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_what_is_computed_on_the_cpu_is_in_no_graph_of_cuda(caplog):
    """A replayed graph would have the random numbers of its capture."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    number = graph.call_function(torch.rand, ((),))
    graph.output((graph.call_function(torch.mul, (x, number)),))
    with FakeTensorMode():
        for node, device in zip(graph.nodes, ("cuda:0", "cpu", "cuda:0"), strict=False):
            node.meta["example_value"] = torch.empty(2, device=device)
    options = {"precision": "standard", "choose": "measured", "cudagraph": True}
    run = door.compile_graph(fx.GraphModule({}, graph), [], **options).run
    first, second = (run(torch.ones(2))[0] for _ in range(2))
    assert not isinstance(run, cuda_graphs.Replayed) and not torch.equal(first, second)
    assert "it computes on ['cpu'], too" in caplog.text


def test_a_graph_with_gradients_says_that_none_is_captured(caplog):
    torch._dynamo.reset()
    compiled = torch.compile(
        nn.Conv2d(3, 8, 3), backend="implicit_conv", options={"cudagraph": True}
    )
    for _ in range(2):
        compiled(torch.randn(1, 3, 9, 9)).sum().backward()
    text = "no graph of CUDA is captured of a compiled graph: it records gradients"
    assert caplog.text.count(text) == 1


def test_a_capture_lets_other_threads_work(monkeypatch):
    given = []

    @contextlib.contextmanager
    def graph(of, **options):
        given.append(options)
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    _, results = cuda_graphs.captured(lambda x: (x,), [1])
    assert results == (1,) and given == [{"capture_error_mode": "thread_local"}]


class Convolved(torch.autograd.Function):
    """`enable`, whose kernels torch's dispatcher does not call here."""

    @staticmethod
    def forward(ctx, x, w, window, on_gpu):
        ctx.save_for_backward(x, w)
        ctx.of = window, on_gpu
        given = on_gpu(x.detach()), on_gpu(w.detach()), None
        return override._convolution_on_gpu(None, *given, *window).as_subclass(torch.Tensor)

    @staticmethod
    def backward(ctx, dy):
        window, on_gpu = ctx.of
        given = (on_gpu(each.detach()) for each in (dy, *ctx.saved_tensors))
        mask = [*ctx.needs_input_grad[:2], False]
        found = override._backward_on_gpu(None, *given, None, *window, mask)
        made = (each if each is None else each.as_subclass(torch.Tensor) for each in found[:2])
        return *made, None, None


@pytest.mark.parametrize("name", ["predicts", "trains"])
@pytest.mark.parametrize("images", [1, 3])
def test_a_kit_has_the_kernels_that_a_network_asks_for(
    card, device, recorder, monkeypatch, images, name
):
    """All and no others, and convolutions are counted."""

    def convolved(module, x, w, bias):
        window = module.stride, module.padding, module.dilation, False, (0, 0), module.groups
        return Convolved.apply(x, w, window, card.on_gpu)

    make = networks.predict if name == "predicts" else networks.train
    work = networks.Work("some images", images, 0.03 if name == "predicts" else 0.7, make)
    model, x = networks.TINY.model("cpu"), networks.TINY.images(images, "cpu")
    exact = work.make(copy.deepcopy(model).float(), x.float())()
    expected = {*asked.kernels(gpu_arch("sm_90a"), networks.TINY, [work])}
    torch._dynamo.reset()
    if name == "predicts":
        compiled = torch.compile(copy.deepcopy(model), backend=device(), dynamic=False)
        assert networks.checked(work.make(compiled, x), exact, work.bound)[1] == 12
        assert {v.scaled for v in recorder.variants} == {True}
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", convolved)
    assert networks.checked(work.make(model, x), exact, work.bound)[1] == work.operators(12)
    copies = {entry for entry in recorder.entries if entry.startswith("phase filters")}
    assert {*map(repr, recorder.variants)} | copies == expected


def test_autocast_converts_biases(card, device):
    """Else our kernel would be left out, which takes one dtype."""
    model, x = randomize(nn.Conv2d(3, 8, 3)), torch.randn(1, 3, 9, 8)
    compiled = torch.compile(model, backend=device())
    for _ in range(4):
        card.ran.clear()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found, theirs = compiled(x), model(x)
        torch.testing.assert_close(found, theirs, rtol=2e-2, atol=2e-2)
    assert card.ran == ["ours"]
