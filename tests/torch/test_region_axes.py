"""What stands between convolutions of signals and volumes, and shuffled pixels, inside of a region,
against the model in float64.
"""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_graphs import BOUNDS, Graphs, check, compare, randomize  # noqa: E402

from implicit_conv import config  # noqa: E402

WIDE = (torch.float32, torch.float64)
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
SIZES = {1: (13,), 2: (7, 10), 3: (5, 6, 7)}  # of images


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def image(rank, channels=6, batch=2, dtype=torch.float32):
    return torch.randn(batch, channels, *SIZES[rank], dtype=dtype)


class Between(nn.Module):
    """A function of the image between two layers, which may have other channels behind it."""

    def __init__(self, rank, function, channels=20, after=None):
        super().__init__()
        conv = CONVOLUTIONS[rank]
        self.first, self.function = conv(6, channels, 3, padding=1), function
        self.last = conv(after or channels, 5, 1)

    def forward(self, x):
        return self.last(self.function(functional.silu(self.first(x))))


def of_rank(name, *arguments, **options):
    """A function of a rank: such a module for images of it."""
    return lambda rank: getattr(nn, f"{name}{rank}d")(*arguments, **options)


POOLS = {
    "maximum": of_rank("MaxPool", 3, 2, 1),
    "maximum, rounded up": of_rank("MaxPool", 2, 3, 1, ceil_mode=True),
    "mean": of_rank("AvgPool", 3, 2, 1),
    "mean, rounded up": of_rank("AvgPool", 3, 2, 1, ceil_mode=True),
    "mean without padding": of_rank("AvgPool", 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "windows cover the image": of_rank("AdaptiveAvgPool", 3),
    "mean of all": of_rank("AdaptiveAvgPool", 1),
}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("name", POOLS)
def test_pools(name, rank, dtype):
    if rank == 3 and name.startswith("mean") and "all" not in name and dtype not in WIDE:
        pytest.skip("torch has no such means")
    for channels in (6, 70):
        torch._dynamo.reset()
        model = randomize(Between(rank, POOLS[name](rank), channels)).to(dtype)
        check(model, image(rank, dtype=dtype), [3])


POOLS_OF_AXES = {
    "maximum": nn.MaxPool3d((1, 2, 3), (2, 1, 2), (0, 1, 1)),
    "mean": nn.AvgPool3d((2, 1, 3), (1, 3, 2), (1, 0, 1)),
    "mean by a divisor": nn.AvgPool3d(2, divisor_override=-3),
    "windows cover the image": nn.AdaptiveAvgPool3d((2, 4, 1)),
    "function": lambda x: functional.max_pool3d(x, (2, 2, 1)),
    "function of torch": lambda x: torch.max_pool3d(x, 2, padding=1),
}


@pytest.mark.parametrize("name", POOLS_OF_AXES)
def test_pools_of_other_windows_along_each_axis(name):
    check(randomize(Between(3, POOLS_OF_AXES[name])), image(3), [3])


MEANS = {
    "last": (1, lambda x: x.mean(-1, keepdim=True)),
    "last of a list": (1, lambda x: x.mean([2], keepdim=True)),
    "function": (1, lambda x: torch.mean(x, 2, keepdim=True)),
    "volume": (3, lambda x: x.mean((2, 3, 4), keepdim=True)),
    "volume, from the end": (3, lambda x: torch.mean(x, dim=[-1, -3, -2], keepdim=True)),
}


class Squeeze(nn.Module):
    """A residual block with squeeze-and-excitation."""

    def __init__(self, name, channels):
        super().__init__()
        rank, self.mean = MEANS[name]
        conv = CONVOLUTIONS[rank]
        self.first = conv(6, channels, 3, padding=1)
        self.down, self.up = conv(channels, 4, 1), conv(4, channels, 1)
        self.last = conv(channels, 6, 1)

    def forward(self, x):
        y = functional.silu(self.first(x))
        gate = torch.sigmoid(self.up(torch.relu(self.down(self.mean(y)))))
        return x + self.last(y * gate)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("channels", [5, 150])
@pytest.mark.parametrize("name", MEANS)
def test_squeeze_and_excitation(name, channels, dtype):
    model = randomize(Squeeze(name, channels)).to(dtype)
    check(model, image(MEANS[name][0], batch=3, dtype=dtype), [6])


class Pyramid(nn.Module):
    """Sums behind activations, enlarged and joined images."""

    def __init__(self, rank, by_size=True):
        super().__init__()
        self.by_size, conv = by_size, CONVOLUTIONS[rank]
        sizes = (6, 12), (12, 12), (12, 7), (31, 5)
        self.first, self.second, self.small, self.last = (conv(*each, 1) for each in sizes)
        self.pool = getattr(nn, f"MaxPool{rank}d")(3, 1, 1)

    def forward(self, x):
        y = functional.silu(self.first(x))
        y = y + functional.silu(self.second(self.pool(y)))
        large = functional.interpolate(torch.cat([self.small(y), y], 1), scale_factor=2)
        how = {"size": [2 * n for n in y.shape[2:]]} if self.by_size else {"scale_factor": 2}
        other = functional.interpolate(y, **how, mode="nearest-exact")
        return self.last(torch.cat([other, large], 1))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("rank", [1, 3])
def test_added_joined_and_enlarged_images(rank, dtype):
    check(randomize(Pyramid(rank)).to(dtype), image(rank, dtype=dtype), [10])


@pytest.mark.parametrize("times", [1, 2, 4, 33, 40])
@pytest.mark.parametrize("rank", [1, 3])
def test_calls_come_again(rank, times):
    check(randomize(Pyramid(rank)), image(rank), [10], times)


@pytest.mark.parametrize("rank", [1, 3])
def test_sizes_and_threads_change(rank):
    model, graphs = randomize(Pyramid(rank, by_size=False)), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for threads in (1, 2):
        with config(num_threads=threads):
            for size in (6, 4, 9, 20, 6):
                compare(model, compiled, torch.randn(2, 6, size, *[size + 1] * (rank - 1)))
    assert {*graphs.regions} == {10}


class Ends(nn.Module):
    """Elements that read images that are given, and write the result."""

    def __init__(self, rank):
        super().__init__()
        self.conv = CONVOLUTIONS[rank](6, 6, 1)
        self.pool = getattr(nn, f"MaxPool{rank}d")(3, 1, 1)
        self.mean = getattr(nn, f"AvgPool{rank}d")(2, 1)

    def forward(self, x):
        return self.mean(self.conv(x + x.flip(2)) + self.pool(x))


GIVEN = {
    "channels": lambda x: x[:, 1:7],
    "every other pixel": lambda x: x[:, :6, ::2],
    "every other column": lambda x: x[:, :6, ..., ::2],
    "fewer slices": lambda x: x[:, :6, 1:],
    "channels last": lambda x: x[:, :6].movedim(1, -1).contiguous().movedim(-1, 1),
    "some of channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1)[:, 2:],
    "fewer rows of channels last": lambda x: GIVEN["channels last"](x)[:, :, :, :-1],
    "fewer slices of channels last": lambda x: GIVEN["channels last"](x)[:, :, :-1],
}


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("name", GIVEN)
def test_images_that_are_given_and_results(name, rank):
    """Their strides are those of whoever gives them; some have no slices with equal steps."""
    if rank == 1 and "rows" in name:
        pytest.skip("a signal has one row")
    model, x = randomize(Ends(rank)), GIVEN[name](image(rank, 8))
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs)
    for _ in range(3):
        compare(model, compiled, x)
        x = GIVEN[name](image(rank, 8))
    assert graphs.regions == [4]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("rank", [1, 3])
def test_values_that_are_not_finite(rank, value):
    model = nn.Sequential(CONVOLUTIONS[rank](1, 1, 1), getattr(nn, f"MaxPool{rank}d")(3, 2, 1))
    compiled = torch.compile(randomize(model), backend=Graphs(precision="strict"))
    with torch.no_grad():
        for at in range(4):
            x = image(rank, 1)
            x[0, 0, at] = -float("inf")
            x.view(-1)[at] = value
            assert torch.allclose(compiled(x), model(x), atol=1e-5, equal_nan=True)


OTHERS = {
    "mean of columns": (2, lambda x: x.mean(-1, keepdim=True)),
    "mean of slices": (3, lambda x: x.mean((3, 4), keepdim=True)),
    "mean of channels": (1, lambda x: x.mean(1, keepdim=True).expand(2, 20, 13)),
    "windows of channels": (1, lambda x: functional.max_pool2d(x, 3, 1, 1)),
    "windows of batches": (2, lambda x: functional.avg_pool3d(x, 3, 1, 1)),
    "dilated": (3, lambda x: functional.max_pool3d(x, 2, dilation=2)),
    "bilinear": (1, lambda x: functional.interpolate(x, scale_factor=2, mode="linear")),
    "bilinear volumes": (3, lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear")),
    "along slices": (3, lambda x: torch.cat([x, x], 2)),
    "along slices from behind": (3, lambda x: torch.cat([x, x], -3)),
    "along batches": (1, lambda x: torch.cat([x, x], -3)),
    "gate of slices": (3, lambda x: x * x.mean((3, 4), keepdim=True)),
    "shuffled slices": (3, lambda x: functional.pixel_unshuffle(x[..., :6, :6], 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_torchs(name):
    rank, function = OTHERS[name]
    check(randomize(Between(rank, function)), image(rank), [1, 1])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_channels_from_behind(rank):
    model = Between(rank, lambda x: torch.cat([x, x.relu()], -1 - rank), 20, 40)
    check(randomize(model), image(rank), [1, 2])


SHUFFLES = {  # the channels before it, and behind
    "module": (nn.PixelShuffle(2), 20, 5),
    "by 3": (nn.PixelShuffle(3), 18, 2),
    "function": (lambda x: functional.pixel_shuffle(x, 2), 4, 1),
    "keyword": (lambda x: torch.pixel_shuffle(x, upscale_factor=4), 64, 4),
    "of one pixel": (nn.PixelShuffle(1), 20, 20),
    "gathered": (nn.PixelUnshuffle(2), 20, 80),
    "gathered by 4": (lambda x: torch.pixel_unshuffle(x, downscale_factor=4), 3, 48),
    "there and back": (nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)), 20, 20),
}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffled_pixels(name, dtype):
    function, channels, after = SHUFFLES[name]
    model = randomize(Between(2, function, channels, after)).to(dtype)
    x = torch.randn(2, 6, 8, 12).to(dtype)
    check(model, x, [4 if name == "there and back" else 3])
    torch._dynamo.reset()
    check(model, x.to(memory_format=torch.channels_last), [4 if name == "there and back" else 3])


@pytest.mark.parametrize("name", SHUFFLES)
def test_sizes_of_shuffled_images_change(name):
    function, channels, after = SHUFFLES[name]
    model, graphs = randomize(Between(2, function, channels, after)), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for size in (4, 8, 12, 4, 20):
        compare(model, compiled, torch.randn(2, 6, size, size + 4))
        compare(model, compiled, torch.randn(1, 6, 4, size)[..., : 4 if size > 8 else size])
    assert {*graphs.regions} <= {3, 4}


@pytest.mark.parametrize("function", [nn.PixelShuffle(2), nn.PixelShuffle(1)])
def test_shuffles_of_one_pixel(function):
    after = 20 // function.upscale_factor**2
    check(randomize(Between(2, function, 20, after)), torch.randn(3, 6, 1, 1), [3])


@pytest.mark.parametrize("times", [1, 4, 33, 40])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shuffles", [(2, 3), (1, 4)])
def test_regions_begin_and_end_with_shuffled_pixels(shuffles, form, times):
    low, high = shuffles
    model = nn.Sequential(
        nn.PixelUnshuffle(low), nn.Conv2d(3 * low**2, 3 * high**2, 3), nn.PixelShuffle(high)
    )
    x = torch.randn(2, 3, 8, 12).to(memory_format=form)
    check(randomize(model), x, [3], times)
