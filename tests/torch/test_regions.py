"""What stands between convolutions inside of a region, against the model in float64."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_graphs import BOUNDS, Graphs, check, compare, randomize  # noqa: E402

from implicit_conv import config  # noqa: E402
from implicit_conv.torch.channelwise import channelwise  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


MEANS = {
    "function": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "module": nn.AdaptiveAvgPool2d((1, 1)),
    "method": lambda x: x.mean((2, 3), keepdim=True),
    "keywords": lambda x: torch.mean(x, dim=[-1, -2], keepdim=True),
}
PRODUCTS = {
    "x * gate": lambda x, gate: x * gate,
    "gate * x": lambda x, gate: gate * x,
    "function": torch.mul,
    "method": lambda x, gate: gate.mul(x),
}


class Squeeze(nn.Module):
    """A residual block with squeeze-and-excitation."""

    def __init__(self, channels=24, mean="function", product="x * gate"):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.down, self.up = nn.Conv2d(channels, 6, 1), nn.Conv2d(6, channels, 1)
        self.last = nn.Conv2d(channels, channels, 1)
        self.mean, self.product = MEANS[mean], PRODUCTS[product]

    def forward(self, x):
        y = functional.silu(self.norm(self.first(x)))
        gate = torch.sigmoid(self.up(torch.relu(self.down(self.mean(y)))))
        return x + self.last(self.product(y, gate))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("channels", [5, 24, 150])
def test_squeeze_and_excitation(channels, batch, dtype):
    model = randomize(Squeeze(channels)).to(dtype)
    check(model, torch.randn(batch, channels, 9, 8).to(dtype), [6])


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_words_of_squeeze_and_excitation(product, mean):
    x = torch.randn(2, 24, 7, 10).to(memory_format=torch.channels_last)
    check(randomize(Squeeze(24, mean, product)), x, [6], times=1)


@pytest.mark.parametrize("times", [4, 33, 40])
def test_calls_come_again(times):
    check(randomize(nn.Sequential(Squeeze(), Squeeze())), torch.randn(1, 24, 12, 11), [12], times)


def test_sizes_and_threads_change():
    model, graphs = randomize(Squeeze(40)), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for threads in (1, 2, 1, 2):
        with config(num_threads=threads):
            for size in (9, 12, 60, 9, 31):
                compare(model, compiled, torch.randn(2, 40, size, size + 1))
    assert set(graphs.regions) == {6}


POOLS = {
    "maximum": nn.MaxPool2d(3, 2, 1),
    "maximum, rounded up": nn.MaxPool2d((2, 3), (3, 2), (1, 0), ceil_mode=True),
    "mean": nn.AvgPool2d((3, 2), (1, 2), (1, 0)),
    "mean, rounded up": nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    "mean without padding": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "mean by a divisor": nn.AvgPool2d(2, divisor_override=-3),
    "windows cover the image": nn.AdaptiveAvgPool2d((3, 5)),
}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", POOLS)
def test_pools(name, dtype):
    model = randomize(nn.Sequential(nn.Conv2d(8, 70, 1), POOLS[name], nn.Conv2d(70, 8, 1)))
    for size in ((11, 12), (4, 5)):
        torch._dynamo.reset()
        check(model.to(dtype), torch.randn(2, 8, *size).to(dtype), [3])


@pytest.mark.parametrize("last", [nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)])
@pytest.mark.parametrize("first", [nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(2)])
def test_regions_begin_and_end_with_pools(first, last):
    model = randomize(nn.Sequential(first, nn.Conv2d(8, 21, 3), last))
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs)
    for x in (torch.randn(2, 8, 11, 12), torch.randn(2, 8, 12, 20)[..., ::2]):
        for _ in range(2):
            compare(model, compiled, x)
    assert set(graphs.regions) == {3}


ENLARGED = {
    "function": lambda x: functional.interpolate(x, scale_factor=2),
    "module": nn.Upsample(scale_factor=(2.0, 2.0)),
    "size": lambda x: functional.interpolate(x, size=[2 * size for size in x.shape[2:]]),
    "exact": nn.Upsample(scale_factor=2, mode="nearest-exact"),
}


class Neck(nn.Module):
    """Pyramids of a detector: images of several sizes, joined along their channels."""

    def __init__(self, enlarge):
        super().__init__()
        sizes = (6, 12, 3), (12, 20, 3), (60, 9, 1), (21, 9, 1)
        self.convs = nn.ModuleList(nn.Conv2d(c, k, r, padding=r // 2) for c, k, r in sizes)
        self.pool, self.enlarge = nn.MaxPool2d(5, 1, 2), ENLARGED[enlarge]

    def forward(self, x):
        """The image of the largest size."""
        first, second, third, fourth = self.convs
        large = functional.silu(first(x))
        small = functional.silu(second(functional.max_pool2d(large, 2)))
        pooled = self.pool(small)
        joined = third(torch.cat([small, pooled, self.pool(pooled)], 1))
        return fourth(torch.cat((self.enlarge(joined), large), dim=-3))


@pytest.mark.parametrize("name", ENLARGED)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_joined_and_enlarged_images(dtype, name):
    check(randomize(Neck(name)).to(dtype), torch.randn(2, 6, 12, 14).to(dtype), [10])


OTHERWISE = {
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "by a half": nn.Upsample(scale_factor=(2, 0.5)),
    "by half as much again": nn.Upsample(scale_factor=1.5),
    "nine times": nn.Upsample(scale_factor=9),
    "rows": lambda x: torch.cat([x, x], 2),
    "with itself": lambda x: torch.cat([x, x], 1),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_images_that_are_enlarged_and_joined_otherwise(name):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.way, self.other = OTHERWISE[name], nn.Conv2d(16 if "itself" in name else 8, 8, 1)
            self.first = nn.Conv2d(8, 8, 1)

        def forward(self, x):
            return self.other(self.way(self.first(x)))

    regions = [3] if name == "with itself" else [1, 1]
    check(randomize(Model()), torch.randn(2, 8, 6, 8), regions)


ADDED = {
    "a + b": lambda a, b: a + b,
    "function": torch.add,
    "method": lambda a, b: a.add(b),
}


class Bottleneck(nn.Module):
    """A sum behind activations, of images whose channels fill vectors, or do not."""

    def __init__(self, channels, name):
        super().__init__()
        self.first = nn.Conv2d(6, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 1)
        self.last, self.add = nn.Conv2d(channels, 5, 1), ADDED[name]

    def forward(self, x):
        y = functional.silu(self.first(x))
        return self.last(self.add(y, functional.silu(self.second(y))))


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("channels", [5, 150])
def test_sums_behind_activations(channels, dtype, name):
    x = torch.randn(3, 6, 9, 8).to(dtype)
    check(randomize(Bottleneck(channels, name)).to(dtype), x, [4])


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_images_that_are_given(threads):
    """Their strides are those of whoever gives them."""

    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(24, 24, 1)

        def forward(self, x):
            return self.conv(x + x.flip(3)) + functional.max_pool2d(x, 3, 1, 1)

    model, x = randomize(Sums()), torch.randn(2, 26, 60, 41)
    with config(num_threads=threads):
        for given in (x[:, 2:], x[:, 1:25, ::2], x.to(memory_format=torch.channels_last)[:, :24]):
            torch._dynamo.reset()
            graphs = Graphs()
            compiled = torch.compile(model, backend=graphs)
            for _ in range(3):
                compare(model, compiled, given)
            assert graphs.regions == [3]


class Skipping(nn.Module):
    """Joins of more images than a program takes, beside one result."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8 * n, 8, 1) for n in (1, 2, 2, 2, 2))

    def forward(self, *images):
        y = self.convs[0](images[0])
        for conv, image in zip(self.convs[1:], images[1:], strict=True):
            y = conv(torch.cat([torch.relu(y), image], 1))
        return y


def test_a_region_of_too_many_images_is_cut_at_joins():
    model, images = randomize(Skipping()), torch.randn(5, 2, 8, 6, 7).unbind()
    graphs = Graphs()
    with torch.no_grad():
        found = torch.compile(model, backend=graphs)(*images)
        assert torch.allclose(found, model(*images), atol=1e-4)
    assert graphs.regions == [1] * 5


def test_joined_sizes_change():
    model, graphs = randomize(Neck("function")), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for size in (12, 8, 20, 12):
        compare(model, compiled, torch.randn(1, 6, size, size + 2))
    assert {10} == {*graphs.regions}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1)])
def test_values_that_are_not_finite(pool, value):
    model = randomize(nn.Sequential(nn.Conv2d(1, 1, 1), pool, nn.Conv2d(1, 1, 1)))
    compiled = torch.compile(model, backend=Graphs(precision="strict"))
    with torch.no_grad():
        for row in range(6):
            x = torch.randn(1, 1, 6, 7)
            x[0, 0, row, 3] = value
            x[0, 0, 0] = -float("inf")
            assert torch.allclose(compiled(x), model(x), atol=1e-5, equal_nan=True)


class Between(nn.Module):
    """A function of the image between two layers."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


OTHERS = {
    "dilated": lambda x: functional.max_pool2d(x, 2, dilation=2),
    "with places": lambda x: functional.max_pool2d(x, 2, return_indices=True)[0],
    "of one axis": lambda x: x.mean(2, keepdim=True),
    "of rows": lambda x: x.mean((2,), keepdim=True),
    "of rows and channels": lambda x: x.mean((1, 2), keepdim=True).expand(2, 8, 1, 7),
    "in another dtype": lambda x: x.mean((2, 3), keepdim=True, dtype=torch.float64).to(x.dtype),
    "in place": lambda x: x.mul_(functional.adaptive_avg_pool2d(x, 1)),
    "of two images": lambda x: x * x.sin(),
    "of itself": lambda x: x * x,
    "with a number": lambda x: x * 2,
    "of a channel": lambda x: x * x.mean((1, 2, 3), keepdim=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_torchs(name):
    check(randomize(Between(OTHERS[name])), torch.randn(2, 8, 6, 7), [1, 1])


def test_products_that_torch_promotes():
    model, graphs = (
        randomize(Between(lambda x: x * x.double().mean((2, 3), keepdim=True))),
        Graphs(),
    )
    model.last.double()
    x = torch.randn(2, 8, 6, 7)
    with torch.no_grad():
        found = torch.compile(model, backend=graphs)(x)
        assert torch.allclose(found, model(x))
    assert graphs.regions == [1, 1]


class Gates(nn.Module):
    """A gate that an image has which is no wider than it, and one that comes from elsewhere."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(3))

    def forward(self, x, gate):
        a, b, c = self.convs
        y = functional.adaptive_avg_pool2d(a(x), 1)
        return c(x * gate) * b(y * gate)


@pytest.mark.parametrize("batch", [1, 2])
def test_gates_from_elsewhere(batch):
    model, graphs = randomize(Gates()), Graphs()
    compiled = torch.compile(model, backend=graphs)
    with torch.no_grad():
        for gate in (torch.randn(batch, 8, 1, 1), torch.randn(batch, 16, 1, 1)[:, ::2]):
            for size in (6, 1, 9):
                x = torch.randn(batch, 8, size, size)
                assert torch.allclose(compiled(x, gate), model(x, gate), atol=1e-4)
    assert sum(graphs.regions) >= 7


def test_writes_between_end_a_region():
    def function(x):
        y = functional.adaptive_avg_pool2d(x, 1)
        x.mul_(2)
        return x * y

    check(randomize(Between(function)), torch.randn(2, 8, 6, 7), [1, 1])


def test_autocast_is_torchs():
    model, x, graphs = (
        randomize(Squeeze()).bfloat16(),
        torch.randn(2, 24, 9, 8).bfloat16(),
        Graphs(),
    )
    compiled = torch.compile(model, backend=graphs)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype == model(x).dtype
        assert torch.allclose(compiled(x).float(), model(x).float(), atol=0.1, rtol=0.1)


def test_regions_without_layers_are_torchs():
    graphs = Graphs()
    model = nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2))
    check_graph = torch.compile(model, backend=graphs)
    with torch.no_grad():
        x = torch.randn(2, 8, 12, 12)
        assert torch.equal(check_graph(x), model(x))
    assert len(channelwise(graphs.graphs[0].graph)) == 2
    assert graphs.regions == []
