"""The table of `explain`: which layers there are, what computes them, and what stays as it was."""

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv import conv2d  # noqa: E402
from implicit_conv.torch import report  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch):
    """Ratios are told, whatever else this machine does."""
    monkeypatch.setattr(report, "disturbance", lambda threads: "")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.weight = nn.Parameter(torch.randn(4, 8, 1, 1))

    def forward(self, x):
        return nn.functional.conv2d(self.up(self.stem(x)), self.weight)


def test_the_table():
    model, x = Model(), torch.randn(2, 3, 12, 12)
    model.stem[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lines = door.explain(model, x).splitlines()
    assert lines[0].split()[:4] == ["layer", "x", "w", "kernel"]
    rows = [line.split() for line in lines[1:4]]
    assert [row[:3] for row in rows] == [
        ["stem.0", "2x3x12x12", "16x3x3x3"],
        ["up", "2x16x12x12", "16x8x2x2"],
        ["(model)", "2x8x24x24", "4x8x1x1"],
    ]
    for *_, kernel, ours, theirs, faster, share in rows:
        assert kernel != "torch" and float(ours) > 0 and share.endswith("%")
        assert float(faster) == pytest.approx(float(theirs) / float(ours), rel=0.2)
    assert "in convolutions, " in lines[-1]
    assert model.training and model.stem.training and not model.stem[1].training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("enabled", [False, True])
def test_the_switch_is_as_before(enabled, ours):
    if enabled:
        door.enable()
    door.explain(Model(), torch.randn(1, 3, 8, 8))
    ours.clear()
    nn.functional.conv2d(torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3))
    assert len(ours) == enabled


def test_functions_arguments_and_what_is_declined():
    """Several arguments, a function that is no module, and integers, which torch computes."""
    x, w = (torch.randint(-5, 5, shape) for shape in ((1, 4, 9, 9), (6, 4, 3, 3)))
    lines = door.explain(nn.functional.conv2d, (x, w)).splitlines()
    assert lines[1].split()[:4] == ["(function)", "1x4x9x9", "6x4x3x3", "torch"]


def test_an_error_of_the_model_leaves_everything_as_before(ours):
    model = Model()
    door.enable()
    with pytest.raises(RuntimeError, match="channels"):
        door.explain(model, torch.randn(1, 5, 8, 8))
    assert model.training and not any(module._forward_hooks for module in model.modules())
    nn.functional.conv2d(torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3))
    assert len(ours) == 1


def test_no_ratio_is_told_beside_other_work(monkeypatch):
    """Also if it begins in the middle."""
    texts = iter(["", "other programs use 2.0 of 2 CPUs"])
    monkeypatch.setattr(report, "disturbance", lambda threads: next(texts))
    lines = door.explain(Model(), torch.randn(1, 3, 8, 8)).splitlines()
    assert lines[0] == "other programs use 2.0 of 2 CPUs", "before the first figure"
    assert [line.split()[-2:] for line in lines[3:6]] == [["-", "-"]] * 3
    assert "%" not in "".join(lines) and "times" not in lines[-1]


def test_no_share_exceeds_the_whole():
    """Layers may take longer alone than the model did, for example beside other work."""
    arguments = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
    rows = [
        report.Row(report.Layer(name, arguments), "gemm", 1.0, 3.0, False) for name in ("a", "b")
    ]
    whole = report.Whole(ours=0.1, torch=0.2)
    shares = [line.split()[-1] for line in report._table(rows, whole, "")][1:]
    assert shares == ["50.0%", "50.0%"]
    last = list(report._summary(rows, whole, ""))[-1]
    assert last.startswith("100% of that time") and last.endswith("allow 3.00")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((Model(), (1, 3, 8, 8)), r"not a shape: explain\(model, torch.zeros\(\(1, 3, 8, 8\)\)\)"),
        ((Model(), torch.Size([1, 3, 8, 8])), "not a shape"),
        ((Model, torch.ones(1, 3, 8, 8)), r"not the class Model: explain\(Model\(\), x\)"),
        ((Model(), torch.ones(1, 3, 8, 8, device="meta")), r"device meta, .* explain\(model.cpu"),
        ((torch.ones(1, 3, 8, 8), Model()), r"not Tensor: explain\(model, x\)"),
        ((Model(), torch.ones(1, 3, 8, 8).numpy()), r"explain\(model, torch.from_numpy\(x\)\)"),
    ],
)
def test_what_is_no_model_or_no_tensor_is_told(arguments, words):
    with pytest.raises(TypeError, match=words):
        door.explain(*arguments)


def test_a_model_is_told_what_to_call():
    with pytest.raises(TypeError, match=r"not Model; .* call enable\(\) alone, or explain"):
        door.enable(Model())
    module, words = nn.Conv2d(3, 8, 3), "must be an array, not the module Conv2d: call the module"
    for x in (torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8).numpy()):
        with pytest.raises(TypeError, match=f"w {words}"):
            conv2d(x, module)
        with pytest.raises(TypeError, match=f"x {words}"):
            conv2d(module, x)


@pytest.mark.parametrize(
    "other", [torch.ones(1).shape, torch.float32, torch.ones(1).untyped_storage()]
)
def test_what_is_no_tensor_of_torch_is_no_array(other):
    x = torch.ones(1, 3, 8, 8)
    for name, arrays in (("x", (other, x)), ("w", (x, other)), ("w", (x.numpy(), other))):
        with pytest.raises(TypeError, match=f"{name} must be an array, not torch's "):
            conv2d(*arrays)


def test_a_converted_model_has_a_table_of_its_programs(compiles):
    model, x = Model().eval(), torch.randn(2, 3, 12, 12)
    assert "converted" not in door.explain(model, x)
    door.convert(model)
    calls = {each: each._compiled_call_impl for each in model.modules()}
    lines = door.explain(model, x).splitlines()
    assert lines[-7].startswith("converted: ") and "times as fast" in lines[-7]
    assert [line.split("  ")[0] for line in lines[-4:-1]] == ["stem.0", "up", "conv2d_1"]
    assert "batch norm, relu" in lines[-4]
    assert {line.split()[-1] for line in lines[-4:-1]} == {"1"}
    assert lines[-1] == "1 graph of torch.compile"
    assert {each: each._compiled_call_impl for each in model.modules()} == calls


@pytest.mark.parametrize(
    ("ours", "last"),
    [
        (0.9, "so that by Amdahl's law their times allow 1.33"),
        (0.7, "which called alone are 2.00 times as fast"),
    ],
)
def test_a_gain_never_contradicts_its_limit(ours, last):
    """The convolutions take half of the model's time, and half of theirs with our kernels."""
    layer = report.Layer("conv", (torch.zeros(1),) * 2)
    rows = [report.Row(layer, "implicit_gemm", ours=0.25, torch=0.5, slower=False)]
    lines = list(report._summary(rows, report.Whole(ours=ours, torch=1.0), ""))
    assert lines[-1] == f"50% of that time is in convolutions, {last}"
