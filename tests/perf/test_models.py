"""Suites models and tensors: the networks, a process with a small one, what a run keeps, pages."""

import json

import numpy as np
import pytest

from perf import opponents, report
from perf.__main__ import main
from perf.models import catalogue, pages
from perf.models import run as models
from perf.models.catalogue import COMPILED, MODELS, TENSORS, Network
from perf.record import read, validate

torch = pytest.importorskip("torch")
process = pytest.importorskip("perf.models.process", exc_type=ImportError)

# Millions of parameters as the papers have them: He et al., table of torch's models; Sandler et
# al., table 4; Liu et al., table 1; Radosavovic et al., table 4; Tan and Le, table 2; Baevski et
# al., section 4.2; Kong et al., table 1. None: the paper does not say it of this part.
MILLIONS = {
    "ResNet-50": 25.6,
    "MobileNetV2": 3.5,
    "ConvNeXt-T": 28.6,
    "RegNetY-4.0GF": 20.6,
    "EfficientNet-B0": 5.3,
    "U-Net": 31.0,
    "Stable Diffusion's VAE, decoder": 49.5,
    "wav2vec 2.0 BASE": 94.4,
    "Whisper base, encoder": 20.6,
    "HiFi-GAN V1": 13.9,
    "ResNet-18, training": 11.7,
}


def tiny():
    """A network with what `initialise` looks at."""
    layers = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(8, 4, 3), torch.nn.Flatten())


@pytest.mark.parametrize("network", catalogue.models(), ids=lambda network: network.name)
def test_networks_have_as_many_parameters_as_in_their_papers(network):
    pytest.importorskip(network.package)
    with torch.device("meta"):
        model = network.make()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count / 1e6 == pytest.approx(MILLIONS[network.name], abs=0.051)


def test_unet_has_the_sizes_of_its_figure():
    """Figure 1: 572 x 572 pixels lead to 388 x 388; the lowest level has 28 x 28 of 1024."""
    with torch.device("meta"):
        model, x = catalogue.unet(), torch.empty(1, 1, 572, 572)
    seen = []
    model.down[-1].register_forward_hook(lambda module, x, y: seen.append(y.shape))
    assert model(x).shape == (1, 2, 388, 388)
    assert seen == [(1, 1024, 28, 28)]


def test_hifi_gan_makes_256_samples_of_a_frame():
    with torch.device("meta"):
        model, x = catalogue.hifi_gan(), torch.empty(1, 80, 10)
    assert model(x).shape == (1, 1, 2560)


def test_initialise_has_normalization_see_its_input():
    """In eval mode, the first input leads to what training mode makes of it, and the filters to
    numbers as large as the input's.
    """
    from perf.models.workload import initialise

    torch.manual_seed(0)
    model, x = tiny(), torch.randn(4, 3, 20, 20)
    model[1].weight.data.fill_(1e-6)
    initialise(model, x)
    with torch.no_grad():
        evaluated = model(x)
        trained = model.train()(x)
    assert torch.allclose(evaluated, trained, atol=0.01)
    assert 0.5 < float(evaluated.std()) < 3


@pytest.fixture(params=[False, True], ids=["inference", "training"])
def caller(request, monkeypatch):
    """A process of ours with a small network."""
    before = torch.is_grad_enabled(), torch.get_num_threads()
    network = Network("tiny", tiny, (4, 3, 12, 12), trains=request.param)
    monkeypatch.setitem(catalogue.SUITES, MODELS, lambda: (network,))
    yield process.Caller("ours", MODELS, 0, 1)
    torch.set_grad_enabled(before[0])
    torch.set_num_threads(before[1])


def test_a_process_times_a_network(caller, tmp_path):
    assert caller.hello() == {"version": torch.__version__, "threads": 1}
    answer = caller.prepare(str(tmp_path / "exact.npz"))
    assert answer["functions"] == ["ours", "control", "torch"]
    assert 0 < answer["errors"]["ours"] < 1e-3 > answer["errors"]["torch"]
    assert answer["parameters"] == 27 * 8 + 16 + 72 * 4 + 4
    found = caller.convolutions()
    forward = [("convolution", [4, 3, 12, 12]), ("convolution", [4, 8, 10, 10])]
    backward = [("convolution_backward", x) for _, x in reversed(forward)]
    expected = forward + backward if caller.network.trains else forward
    assert [(layer["operator"], layer["x"]) for layer in found["layers"]] == expected
    assert found["whole"] > 0
    for _ in range(2):
        assert all(caller.sample(name, 2)["seconds"] > 0 for name in answer["functions"])
        caller.renew()
    assert len(caller.workload.inputs) == 3


def test_ours_runs_while_enabled_and_torch_does_not(caller, tmp_path):
    from implicit_conv.torch.override import SWITCH

    caller.prepare(str(tmp_path / "exact.npz"))
    registered = {}
    for name in caller.functions:

        def look(name=name):
            registered[name] = SWITCH._registered is not None

        caller.functions[name] = look
        caller.sample(name, 1)
    assert registered == {"ours": True, "control": True, "torch": False}


def test_a_wrong_result_is_named(caller, tmp_path, monkeypatch):
    result = process.Workload.result

    def wrong(workload, dtype=torch.float32, **options):
        found = result(workload, dtype, **options)
        return [1.2 * tensor for tensor in found] if dtype == torch.float32 else found

    monkeypatch.setattr(process.Workload, "result", wrong)
    with pytest.raises(ArithmeticError, match=r"from that in float64 by 0\.2 of its norm"):
        caller.prepare(str(tmp_path / "exact.npz"))


@pytest.mark.parametrize("caller", [False], indirect=True)
def test_an_engine_that_fails_is_told(caller, tmp_path, monkeypatch):
    path = str(tmp_path / "exact.npz")
    caller.prepare(path)
    engine = process.Caller("onnxruntime", MODELS, 0, 1)

    def fail(*_):
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setattr(process, "model_of", fail)
    assert engine.prepare(path) == {"unsupported": "no such operator"}
    monkeypatch.setattr(process, "model_of", lambda *_: lambda x: torch.zeros(4, 256))
    assert "a result differs" in engine.prepare(path)["unsupported"]


@pytest.mark.parametrize("caller", [True], indirect=True)
def test_engines_do_not_train(caller):
    from perf.models.engines import model_of

    workload = process.Workload(caller.network)
    for name in ("onnxruntime", "openvino"):
        pytest.importorskip(name)
        with pytest.raises(ValueError, match="does not train models"):
            model_of(name, workload, 1)


def test_a_call_is_the_convolution_of_its_case():
    from perf.models.call import Call

    network = next(one for one in catalogue.tensors() if "dw" in one.name)
    call, x = network.make(), torch.randn(network.shape)
    assert isinstance(call, Call)
    expected = torch.nn.functional.conv2d(x, call.w, padding=1, groups=8)
    assert torch.equal(call(x), expected)
    assert np.allclose(call.array(x.numpy()), expected.detach(), atol=1e-5)
    assert call.to(torch.float64).w.dtype == torch.float64


SECONDS = {"ours": 1.0, "control": 1.0, "torch": 1.5, "arrays": 0.5, "torch.compile": 0.9}


class Answers:
    """A process whose calls take n seconds; that of openvino ends, and onnxruntime cannot."""

    def __init__(self, name, command, folder, environment):
        self.name = name

    def ask(self, request, **arguments):
        if self.name == "openvino":
            raise ValueError("the process of openvino ended")
        if request == "prepare" and self.name == "onnxruntime":
            return {"unsupported": "no such operator"}
        layer = {"operator": "convolution", "x": [1, 1, 3, 3], "w": [1, 1, 3, 3]}
        functions = ["ours", "control", "torch", "arrays"]
        errors = {self.name: 1e-6}
        return {
            "hello": {"version": "1", "threads": 1},
            "prepare": {"functions": functions, "errors": errors, "parameters": 10},
            "convolutions": {"whole": 1.5, "layers": [{**layer, "ours": 0.3, "torch": 0.9}]},
            "calls_per_sample": {"calls": 1},
            "sample": {"seconds": SECONDS.get(arguments.get("name"))},
            "renew": {},
        }[request]

    def close(self):
        """Nothing."""


@pytest.fixture
def made(tmp_path, monkeypatch, quiet):
    """A function of a suite that returns the record of a run with processes that only answer."""
    monkeypatch.setattr(models, "Process", Answers)
    monkeypatch.setattr(catalogue, "find_spec", lambda name: name != "diffusers")
    monkeypatch.setattr(opponents, "find_spec", lambda name: True)

    def make(suite):
        path = tmp_path / f"{suite}.json"
        options = ["run", "--suite", suite, "--rounds", "4", "--threads", "1"]
        assert main([*options, "-o", str(path)]) == 0
        return read(path)

    return make


def test_a_run_has_a_row_for_each_network_that_is_installed(made, capsys):
    record = made(MODELS)
    missing = [one.name for one in catalogue.models() if one.package == "diffusers"]
    assert [row["layer"] for row in record["rows"]] + missing == sorted(
        MILLIONS, key=lambda name: name in missing
    )
    assert [*record["settings"]["left_out"]] == missing
    row = record["rows"][0]
    assert row["ratios"] == {"control": 1, "torch": 1.5, "arrays": 0.5, "torch.compile": 0.9}
    assert row["not_timed"] == {
        "onnxruntime": "no such operator",
        "openvino": "the process of openvino ended",
    }
    assert len(row["timings"]["ours"]["samples"]) == 4
    shown = capsys.readouterr().out
    assert "torch: time over ours, geometric mean of 10: 1.50" in shown
    assert "onnxruntime not timed on U-Net: no such operator" in shown
    assert "not installed: pip install '.[models]'" in shown


def test_limits_follow_amdahls_law(made):
    """Of 1.5 s, convolutions take 0.9 with torch and 0.3 with ours: 1.5 / 0.9 is the limit."""
    row = made(MODELS)["rows"][0]
    assert pages.limit_of(row) == pytest.approx((0.6, 1.5 / 0.9))
    cells = pages.rows_of({"rows": [row], "settings": {"suite": MODELS, "against": ["torch"]}})[0]
    assert cells["of limit"] == "90%"


def test_records_have_pages(made):
    named = [(suite, made(suite)) for suite in (COMPILED, MODELS, TENSORS)]
    assert report.in_order(named) == []
    beside = report.others(named)
    files = report.contents([], beside)
    assert (
        "| ResNet-50 | 1500.00 | 1000.00 | 1.50 | 60% | 1.67 | 90% | 900.00 |" in files["models.md"]
    )
    assert (
        "| 1x1 8-8 @8 | 1500000.00 | 1000000.00 | 500000.00 | 1.50 | 2.00 |" in files["tensors.md"]
    )
    assert "| ResNet-50 | 1500.00 | 1000.00 | 1.50 | 900.00 |" in files["compiled.md"]
    assert "\nmodels\ncompiled\ntensors\n" in files["index.md"]


def test_a_disturbed_run_tells_no_ratio(made):
    record = made(MODELS) | {"disturbed": "others compute"}
    shown = pages.terminal_table(record)
    assert "others compute" in shown
    assert not {"torch/ours", "limit", "of limit"} & set(pages.rows_of(record)[0])
    assert "geometric mean" not in shown


def test_the_schema_refuses_a_row_without_torch(made):
    broken = json.loads(json.dumps(made(TENSORS)))
    del broken["rows"][0]["timings"]["torch"]
    with pytest.raises(ValueError, match="rows / 0"):
        validate(broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--suite models --layout NHWC --batch 2", "leave --batch and --layout out"),
        ("--suite models --against ncnn", "leave --against ncnn out"),
        ("--suite tensors --against openvino", "leave --against openvino out"),
        ("--suite models --layer unknown", "nothing of models has 'unknown'"),
        ("--suite models --rounds 0", "at least 1 is needed"),
        ("--suite small --against torch.compile", "torch.compile runs whole models"),
    ],
)
def test_what_suites_do_not_have_is_refused(options, message, capsys):
    assert main(["run", *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_engines_with_wider_vectors_are_refused(monkeypatch, capsys, quiet):
    monkeypatch.setattr(opponents, "narrowed", lambda: True)
    assert main("run --suite models --against openvino".split()) == 2
    assert "use --against torch" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_run_a_call(tmp_path, quiet):
    path = tmp_path / "tensors.json"
    options = "run --suite tensors --layer dw --rounds 2 --threads 1 -o"
    assert main([*options.split(), str(path)]) == 0
    row = read(path)["rows"][0]
    assert {*row["timings"]} == {"ours", "control", "torch", "arrays"}
    assert max(row["errors"].values()) < 1e-6
