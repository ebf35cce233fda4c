"""``perf run --device cuda`` on a CPU: tensors of torch on the CPU, the host clock for events."""

import builtins
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import implicit_conv
from implicit_conv import PlanError
from implicit_conv.testing import Case
from perf import cuda, terminal
from perf.bringup.compare import ROUNDS, Torch
from perf.layers import layers
from perf.record import ROOT, validate

torch = pytest.importorskip("torch")
CASE = Case(
    3,
    8,
    16,
    size=(9, 9),
    stride=(2, 2),
    padding=((1, 1), (1, 1)),
    dtype="bfloat16",
    layout="NHWC",
    weight_layout="KRSC",
)


class Event:
    """A time of the host clock, in place of a CUDA event."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)


class OnCpu:
    """torch, with the CPU as its CUDA device."""

    cuda = SimpleNamespace(
        Event=Event,
        synchronize=lambda: None,
        _sleep=lambda cycles: None,
        get_device_properties=lambda number: SimpleNamespace(L2_cache_size=1 << 16),
    )

    def __getattr__(self, name):
        return getattr(torch, name)


def convolve(x, w, **options):
    """Replaces conv2d: torch convolves the arrays that conv2d receives."""
    (low_h, _), (low_w, _) = options["padding"]
    sums = torch.nn.functional.conv2d(
        x.float(),
        w.float(),
        None,
        options["stride"],
        (low_h, low_w),
        options["dilation"],
        options["groups"],
    )
    return sums.to(x.dtype)


class FakePlan:
    """Replaces a plan."""

    engine = SimpleNamespace(variant=SimpleNamespace(name="fake"))

    def __init__(self, options):
        self.options = options

    def pack(self, w):
        return w

    def __call__(self, x, w):
        return convolve(x, w, **self.options)


@pytest.fixture
def on_cpu(monkeypatch):
    def plan(x_shape, w_shape, dtype, *, device, **options):
        assert (x_shape, w_shape) == ((3, 8, 9, 9), (16, 8, 3, 3))
        assert (dtype, device) == ("bfloat16", "cuda")
        return FakePlan(options)

    monkeypatch.setattr(implicit_conv, "conv2d", convolve)
    monkeypatch.setattr(implicit_conv, "plan_conv2d", plan)
    monkeypatch.setattr(cuda, "CALLS", 2)
    return OnCpu()


def test_inputs_are_channels_last():
    x, w = cuda.inputs(torch, CASE, device="cpu")
    assert x.shape == (3, 8, 9, 9) and w.shape == (16, 8, 3, 3)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert w.is_contiguous(memory_format=torch.channels_last)
    assert x.dtype == w.dtype == torch.bfloat16


def test_a_row_is_checked_and_timed(on_cpu, monkeypatch):
    make = cuda.inputs
    monkeypatch.setattr(cuda, "inputs", lambda torch, case: make(torch, case, device="cpu"))
    monkeypatch.setattr(cuda.time_in_turn, "__defaults__", (0, "cpu"))
    monkeypatch.setattr(cuda, "probe", lambda torch: 2e-4)
    row = cuda.measured_row(on_cpu, "layer", CASE, rounds=3)
    assert row["algorithm"] == "fake" and row["probe_seconds"] == [2e-4, 2e-4]
    assert row["flops"] == 2 * 3 * 25 * 16 * 8 * 9
    assert row["bytes"] == 2 * (3 * (81 * 8 + 25 * 16) + 16 * 8 * 9)
    assert set(row["timings"]) == {"call", "control", "plan", "torch"}
    assert set(row["errors"]) == {"call", "plan", "torch"}
    assert 0 <= row["errors"]["plan"] <= 64
    assert len(row["timings"]["plan"]["samples"]) == 3
    slower = iter([2e-4, 2.5e-4])
    monkeypatch.setattr(cuda, "probe", lambda torch: next(slower))
    with pytest.raises(cuda.ThrottledError, match="took 200, then 250 us"):
        cuda.measured_row(on_cpu, "layer", CASE, rounds=1)


def test_a_wrong_result_is_not_timed(on_cpu):
    x, w = cuda.inputs(torch, CASE, device="cpu")
    functions, _ = cuda.gpu_functions(on_cpu, CASE, x, w)
    right = cuda.check(on_cpu, CASE, x, w, functions)
    assert right["call"] == right["plan"]

    def last_image_wrong():
        y = functions["call"]()
        y[-1, 0, 0, 0] += 1
        return y

    with pytest.raises(cuda.WrongResultError, match="plan is"):
        cuda.check(on_cpu, CASE, x, w, {**functions, "plan": last_image_wrong})


def test_a_kernel_that_writes_nothing_is_wrong_after_one_that_is_right(on_cpu, monkeypatch):
    """Kernels of a comparison write to one array."""
    monkeypatch.setattr(Torch, "__init__", lambda self: None)
    card = Torch()
    card.torch, card.device = on_cpu, "cpu"
    arrays = card.arrays(CASE)
    x, w, y = arrays.values
    assert arrays.places == {"x": x.data_ptr(), "w": w.data_ptr(), "y": y.data_ptr()}
    assert y.is_contiguous(memory_format=torch.channels_last)

    def convolves():
        y.copy_(cuda.torch_conv(on_cpu, CASE, x.float(), w.float()))

    errors, samples = card.measure(CASE, arrays, {"ours": convolves, "before": convolves})
    assert list(errors) == ["ours", "before", "cuDNN"]
    assert all(len(samples[who]) == ROUNDS and samples[who].min() > 0 for who in errors)
    with pytest.raises(cuda.WrongResultError, match="before is inf units"):
        card.measure(CASE, arrays, {"ours": convolves, "before": lambda: None})


def test_ceilings_are_rates(on_cpu, monkeypatch):
    monkeypatch.setattr(cuda, "COPY_BYTES", 1 << 16)
    found = cuda.ceilings(on_cpu, device="cpu", matmul=64)
    assert found["fma"] > 0 and found["copy"] > 0


def test_rows_that_fail_are_named_and_the_others_kept(on_cpu, monkeypatch):
    record = {"machine": {}, "settings": {}}
    arch = SimpleNamespace(device="H200", target="sm_90a", sms=132)
    monkeypatch.setattr("implicit_conv.gpu.cuda.driver.current_arch", lambda: arch)
    monkeypatch.setattr(cuda, "torch_with_cuda", lambda: on_cpu)
    monkeypatch.setattr(cuda, "ceilings", lambda torch: {"fma": 1.0, "copy": 1.0})

    def measured(torch, name, case, rounds):
        if name == "bad":
            raise PlanError("no kernel")
        return {"layer": name}

    monkeypatch.setattr(cuda, "measured_row", measured)
    with cuda.row_maker(SimpleNamespace(rounds=1), record) as make_row:
        assert make_row("bad", CASE) is None and make_row("good", CASE) == {"layer": "good"}
    assert record["settings"]["dropped"] == {"bad": "no kernel"}
    assert record["machine"]["gpu"] == "H200 (sm_90a, 132 multiprocessors)"


def test_each_dtype_and_batch_of_a_layer_is_a_row():
    suite = cuda.suite_of(layers("resnet50"), None, None)
    assert len(suite) == 23 * 4
    assert suite["3x3 64-64 @56 bfloat16 n256"].N == 256
    assert list(cuda.suite_of({"a": CASE}, 8, ["float32"])) == ["a float32 n8"]


def test_a_matmul_tells_whether_the_gpu_is_slower(on_cpu):
    assert not cuda.throttled(2.00e-4, 2.04e-4)
    assert not cuda.throttled(2.5e-4, 2e-4)
    assert cuda.throttled(2e-4, 2.1e-4)
    assert cuda.probe(on_cpu, device="cpu", size=16) > 0


def test_it_starts_without_what_a_gpu_machine_lacks():
    """Without jsonschema, matplotlib and scipy, the error names only the missing GPU."""
    code = """
import sys
for name in ("jsonschema", "matplotlib", "scipy", "PIL", "pyperf", "hypothesis"):
    sys.modules[name] = None
from perf.__main__ import main
sys.exit(main(["run", "--device", "cuda"]))
"""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "no CUDA device" in done.stderr


def test_tables_and_progress_are_plain_text(capsys):
    rows = {"layer": "a", "by": "b", "ms": "1.5"}, {"layer": "long", "by": "c", "ms": "10.25"}
    table = terminal.table_of([*rows])
    assert table == "layer  by     ms\na      b     1.5\nlong   c   10.25"
    with terminal.progress() as show:
        show("a", 0, 2)
    assert capsys.readouterr().err == "", "it is no terminal"


def test_a_record_is_not_held_to_a_schema_that_cannot_be_read(monkeypatch):
    with pytest.raises(ValueError, match="the record"):
        validate({})
    real = builtins.__import__

    def without(name, *rest):
        if name == "jsonschema":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    validate({})


def test_samples_are_medians_of_calls(on_cpu, monkeypatch):
    clock = [0.0]  # in place of the machine's
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    seconds = iter([0.002, 0.005, 0.003])

    def call():
        clock[0] += next(seconds)

    assert cuda._sample(on_cpu, call, torch.empty(4), 3) == pytest.approx(0.003)
