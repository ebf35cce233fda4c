"""The operator ``implicit_conv::convolution``: torch's checks of operators, and graphs with it."""

import pytest
from processes import output_of

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv.torch.op import ConvolutionPass, convolution  # noqa: E402

# Inductor's own imports warn of what torch will remove, and torch 2.14's checks of an operator read
# gradients of results.
pytestmark = pytest.mark.filterwarnings(
    *("ignore::DeprecationWarning", "ignore::FutureWarning"),
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
FORWARD = torch.ops.implicit_conv.convolution.default
BACKWARD = torch.ops.implicit_conv.convolution_backward.default
CASES = {  # x, w, bias, sizes after them
    "2-d": ((2, 4, 9, 9), (6, 2, 3, 3), 6, ([2, 1], [1, 1], [1, 1], False, [0, 0], 2)),
    "1-d": ((2, 4, 12), (6, 4, 3), None, ([1], [2], [2], False, [0], 1)),
    "3-d": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 3), 3, ([1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1)),
    "transposed": ((2, 4, 5, 5), (4, 3, 3, 3), 3, ([2, 2], [1, 1], [1, 1], True, [1, 1], 1)),
}


def arguments(name, dtype=torch.float32, grad=True):
    x, w, bias, sizes = CASES[name]

    def tensor(shape):
        return torch.randn(shape, dtype=dtype, requires_grad=grad)

    return tensor(x), tensor(w), None if bias is None else tensor(bias), *sizes


@pytest.mark.parametrize("name", CASES)
def test_torchs_checks_of_an_operator(name, ours):
    given = arguments(name)
    torch.library.opcheck(FORWARD, given)
    x, w, bias, *sizes = given
    y = FORWARD(*given)
    dy, bias_sizes = torch.randn_like(y, requires_grad=True), None if bias is None else [len(bias)]
    for mask in ([True, True, bias is not None], [False, True, False]):
        torch.library.opcheck(BACKWARD, (dy, x, w, bias_sizes, *sizes, mask))
    assert ours


def test_checks_of_images_with_channels_last():
    x, *others = arguments("2-d")
    x = x.detach().to(memory_format=torch.channels_last)
    torch.library.opcheck(FORWARD, (x, *others))


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, ours):
    given = arguments(name, torch.float64)
    tensors, sizes = [t for t in given[:3] if t is not None], given[3:]

    def call(x, w, bias=None):
        return convolution(x, w, bias, *sizes)

    torch.testing.assert_close(call(*tensors), torch.ops.aten.convolution(*given))
    assert torch.autograd.gradcheck(call, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)
    assert ours


def test_a_batch_of_calls(ours):
    """vmap over images, over filters and over both."""
    x, w, bias, *sizes = arguments("2-d", grad=False)
    images, filters = torch.randn(3, *x.shape), torch.randn(*w.shape, 3)
    for tensors, dims in (((images, w), (0, None)), ((x, filters), (None, -1))):

        def call(x, w):
            return convolution(x, w, bias, *sizes)

        def theirs(x, w):
            return torch.ops.aten.convolution(x, w, bias, *sizes)

        found, expected = (torch.vmap(f, dims)(*tensors) for f in (call, theirs))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert ours


def test_what_is_left_to_torch(ours):
    """Integers, other devices and errors, whether or not `enable` is in force."""
    x, w, _, *sizes = arguments("2-d", grad=False)
    found = FORWARD(x.long(), w.long(), None, *sizes)
    assert torch.equal(found, torch.ops.aten.convolution(x.long(), w.long(), None, *sizes))
    assert FORWARD(x.to("meta"), w.to("meta"), None, *sizes).device.type == "meta"
    messages = []
    for operator in (FORWARD, torch.ops.aten.convolution):
        with pytest.raises(RuntimeError) as raised:
            operator(x[:, :3], w, None, *sizes)
        messages.append(str(raised.value))
    assert messages[0] == messages[1] and not ours


def test_it_follows_enable_while_that_is_in_force(ours):
    x, w = torch.full((1, 1, 9, 9), torch.inf), torch.ones(1, 1, 3, 3)
    with door.enable(precision="strict"):
        assert convolution(x, w, stride=(1, 1)).isinf().all()
    assert door.disable() is None and len(ours) == 1
    from implicit_conv.torch.override import SWITCH

    assert (SWITCH.precision, SWITCH.choose) == ("standard", "measured")


def model():
    first, second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)
    return torch.nn.Sequential(first, torch.nn.BatchNorm2d(8), torch.nn.ReLU(), second)


@pytest.mark.slow
@pytest.mark.parametrize("freezing", [False, True])
def test_compiled_graphs(freezing, ours):
    """A frozen graph without the pass has oneDNN's convolutions, and with it ours."""
    torch._dynamo.reset()
    net, x = model().eval(), torch.randn(2, 3, 12, 12)
    options = {"freezing": freezing, "joint_custom_pre_pass": ConvolutionPass()}
    compiled = torch.compile(net, options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-4)
        assert len(ours) == 2
        torch.compile(net, options={"freezing": freezing})(x)
        assert len(ours) == 2


@pytest.mark.slow
def test_a_compiled_training_step(ours):
    torch._dynamo.reset()
    net, x = model(), torch.randn(2, 3, 12, 12)
    torch.compile(net, options={"joint_custom_pre_pass": ConvolutionPass()})(x).sum().backward()
    found = [p.grad.clone() for p in net.parameters()]
    assert len(ours) == 5  # the first layer needs no gradient of x
    net.zero_grad()
    net(x).sum().backward()
    for own, p in zip(found, net.parameters(), strict=True):
        torch.testing.assert_close(own, p.grad, rtol=1e-3, atol=1e-3)


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3, 3, 3))

    def forward(self, x):
        return convolution(x, self.weight).relu()


LOADS = """
import sys, torch, implicit_conv.torch.op
graph = {load}
with torch.no_grad():
    print(float(graph(torch.ones(5, 3, 4, 4)).sum()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True], ids=["export", "AOTInductor"])
def test_exported_graphs_in_another_process(ahead, tmp_path):
    batch = {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    program = torch.export.export(Module().eval(), (torch.ones(2, 3, 4, 4),), dynamic_shapes=batch)
    assert "implicit_conv.convolution.default" in program.graph_module.code.replace("ops.", "")
    path = str(tmp_path / "graph.pt2")
    if ahead:
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        load = f"torch._inductor.aoti_load_package({path!r})"
    else:
        torch.export.save(program, path)
        load = f"torch.export.load({path!r}).module()"
    assert float(output_of(LOADS.format(load=load), timeout=300)) == 5 * 2 * 4 * 27
