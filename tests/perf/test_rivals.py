"""Rivals: engines compute the convolution, and each has a process that answers requests."""

import json
import os
import signal
import time
from contextlib import closing
from dataclasses import asdict, replace
from importlib.metadata import PackagePath

import numpy as np
import pytest

from implicit_conv.problem.options import LAYOUTS_OF, WEIGHT_LAYOUTS_OF
from implicit_conv.testing import Case, error_units
from implicit_conv.timing import Local
from implicit_conv.tools.rivals import LIMIT_UNITS, OURS, WrongResultError, check
from perf import engines, ncnn, onednn, rival, xnnpack
from perf.record import ROOT
from perf.workers import Process

CASE = Case(C=3, K=4, size=(9, 8), kernel=(3, 2), padding=((1, 1), (0, 0)))
CASES = {  # each has sizes that differ by axis, and low padding other than high
    "plain": replace(CASE, stride=(2, 1), padding=((1, 2), (0, 1))),
    "dilated": replace(CASE, dilation=(2, 3), padding=((3, 2), (1, 4))),
    "groups": replace(CASE, groups=3, padding=((2, 1), (0, 1))),
    "depthwise": replace(CASE, C=1, K=1, groups=5, stride=(1, 2)),
    "pixel": Case(C=8, K=6, size=(1, 1), kernel=(1, 1)),
}
SERVER = """
from perf.side import serve

class Answers:
    def double(self, number):
        print("this must not mix with the answers")
        return {"number": 2 * number}

    def leave(self):
        raise SystemExit(7)

serve(Answers())
"""


VOLUMES = {
    "signal": Case(
        C=4,
        K=6,
        groups=2,
        size=(19,),
        kernel=(4,),
        stride=(3,),
        dilation=(2,),
        padding=((3, 1),),
        layout="NCW",
        weight_layout="KCS",
    ),
    "volume": replace(
        CASE,
        size=(5, 9, 8),
        kernel=(2, 3, 2),
        stride=(1, 2, 1),
        dilation=(2, 1, 1),
        padding=((1, 1), (2, 1), (0, 1)),
        layout="NCDHW",
        weight_layout="KCTRS",
    ),
}


def in_layout(case, layout):
    """The case in a layout, called as that of images is."""
    rank = len(case.size)
    place = LAYOUTS_OF[2].index(layout)
    return replace(case, layout=LAYOUTS_OF[rank][place], weight_layout=WEIGHT_LAYOUTS_OF[rank][0])


@pytest.mark.parametrize("name", engines.ENGINES)
def test_engines_compute_the_convolution(name):
    """In each layout that is plain for the engine."""
    pytest.importorskip("onnx")
    with rival.rivals([name], threads=1) as found:
        if name in found.missing:
            pytest.skip(found.missing[name])
        cases = {**CASES, **(VOLUMES if name in engines.ANY_RANK else {})}
        for layout in engines.PLAIN[name]:
            for which, each in cases.items():
                case = in_layout(each, layout)
                ready, reasons = found.prepare("fprop", case)
                assert not reasons, which
                y = ready[name].result()
                assert y.shape == case.shapes["y"], which
                x, w = case.inputs(0)
                exact, scale = case.reference(x, w), case.reference(x, w, True)
                assert error_units(y, exact, scale, "float32") < LIMIT_UNITS, (which, layout)


@pytest.mark.parametrize("name", ["openvino", "xnnpack"])
def test_an_engine_keeps_x_between_calls(name):
    """Whose memory a network may take, after a padding and while others allocate."""
    pytest.importorskip(rival.module_of(name))
    pytest.importorskip("onnx")
    case = replace(CASE, padding=((1, 1), (1, 0)), layout="NHWC")
    call = engines.rival(name, case, *case.arrange(*case.inputs(0)), 1)
    first = np.array(call())
    others = [np.full(case.problem.input_shape, np.nan, np.float32) for _ in range(100)]
    assert np.array_equal(first, call())
    assert len(others) == 100


@pytest.mark.parametrize("name", engines.ENGINES)
def test_engines_refuse_another_layout_or_dtype(name):
    wrong = [replace(CASE, dtype="float64")]
    wrong += [in_layout(CASE, each) for each in LAYOUTS_OF[2] if each not in engines.PLAIN[name]]
    for case in wrong:
        with pytest.raises(ValueError, match=f"float32 {' and '.join(engines.PLAIN[name])}, not"):
            engines.rival(name, case, *case.arrange(*case.inputs(0)), 1)


@pytest.mark.parametrize(
    ("case", "nodes"),
    [
        (replace(CASE, kernel=(3, 2), padding=((1, 1), (0, 1))), ["CONV_2D"]),  # the padding "same"
        (replace(CASE, padding=((0, 0), (0, 0))), ["CONV_2D"]),
        (replace(CASE, padding=((1, 1), (1, 0))), ["PAD", "CONV_2D"]),
        (replace(CASES["depthwise"], padding=((1, 1), (1, 1))), ["PAD", "DEPTHWISE_CONV_2D"]),
    ],
)
def test_the_network_of_tflite_pads_by_a_node_only_where_it_must(case, nodes):
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    case = replace(case, layout="NHWC")
    model = schema.Model.GetRootAsModel(xnnpack.network(case, case.inputs(0)[1]), 0)
    codes = [model.OperatorCodes(at).BuiltinCode() for at in range(model.OperatorCodesLength())]
    assert codes == [getattr(schema.BuiltinOperator, name) for name in nodes]


def test_the_network_of_ncnn_names_each_size():
    case = replace(CASES["plain"], dilation=(4, 5), groups=2)
    text = ncnn.network(case)
    kind, _, _, _, _, _, *sizes = text.splitlines()[-1].split()
    assert kind == "ConvolutionDepthWise"
    found = dict(map(int, size.split("=")) for size in sizes)
    width, height = (1, 2, 3, 4, 15), (11, 12, 13, 14, 16)  # taps, dilation, stride, low, high
    assert [found[key] for key in width] == [2, 5, 1, 0, 1]
    assert [found[key] for key in height] == [3, 4, 2, 1, 2]
    assert [found[key] for key in (0, 6, 7)] == [8, 8 * 3 * 3 * 2, 2]


def test_an_engine_may_err_like_a_winograd_of_large_tiles():
    x, w = CASE.inputs(0)
    exact, scale = CASE.reference(x, w), CASE.reference(x, w, True)
    y = (exact + 70 * 2.0**-24 * scale).astype("float32")
    errors = check(CASE, {"ncnn": Local(lambda: y)}, fast=engines.ENGINES)
    assert errors["ncnn"] == pytest.approx(70, abs=2)
    for name, fast in ("torch", (*engines.ENGINES, *OURS)), ("plan", ()):
        with pytest.raises(WrongResultError, match=f"{name} is 7"):
            check(CASE, {name: Local(lambda: y)}, fast=fast)
    with pytest.raises(WrongResultError, match=r"ncnn is .* at most 1024"):
        check(CASE, {"ncnn": Local(lambda: y[..., ::-1])}, fast=engines.ENGINES)


@pytest.fixture
def server(tmp_path):
    with closing(Process("the server", ["-c", SERVER], str(ROOT), {})) as process:
        yield process


def test_requests_and_answers_alternate(server):
    assert [server.ask("double", number=number)["number"] for number in (1, 5)] == [2, 10]


def test_a_process_that_leaves_is_named_with_its_request_and_status(server):
    with pytest.raises(ValueError, match="the server ended during 'leave' with exit status 7"):
        server.ask("leave")


def test_a_process_that_died_between_requests_is_named(server):
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    for _ in range(2):
        with pytest.raises(ValueError, match="the server ended during 'double'"):
            server.ask("double", number=1)


def test_a_rival_convolves_in_its_own_process():
    """Two cases: the second takes the place of the first, and one that it cannot compute has a
    reason.
    """
    with rival.rivals(["numpy"], threads=1) as found:
        assert found.facts == {"numpy": {"version": np.__version__, "threads": 1}}
        assert found.processes["numpy"]._process.pid != os.getpid()
        for case in (CASE, CASES["pixel"]):
            ready, reasons = found.prepare("fprop", case)
            assert reasons == {}
            check(case, ready)
        assert ready["numpy"].sample(3) > 0
        assert ready["numpy"].calls_per_sample(1e-6) >= 1
        ready, reasons = found.prepare("fprop", CASES["groups"])
        assert (ready, set(reasons)) == ({}, {"numpy"})
        assert "neither groups nor dilation" in reasons["numpy"]
        os.kill(found.processes["numpy"]._process.pid, signal.SIGKILL)
        with pytest.raises(ValueError, match="the process of numpy ended during 'prepare'"):
            found.prepare("fprop", CASE)


def test_a_rival_keeps_the_sets_of_a_case(tmp_path):
    side, path = rival.Rival("numpy", 1), str(tmp_path / "y.npy")
    for case, number in ((CASE, 0), (CASE, 1), (CASE, 2), (CASES["pixel"], 0)):
        before = list(side.functions)
        assert side.prepare("fprop", asdict(case), path, number) == {}
        assert len(side.functions) == number + 1
        assert side.functions[:number] == before[:number]
        check(case, {"numpy": Local(side.functions[-1])})


def test_a_rival_that_is_not_installed_has_a_reason(monkeypatch):
    monkeypatch.setattr(rival, "find_spec", lambda name: None)
    with rival.rivals(["opencv"], threads=1) as found:
        ready, reasons = found.prepare("fprop", CASE)
    assert ready == {}
    assert reasons["opencv"].startswith("opencv is not installed: pip install")


def test_a_case_survives_the_way_to_the_process():
    for case in (CASES["dilated"], replace(CASE, layout="NHWC", dtype="bfloat16")):
        assert rival.case_of(json.loads(json.dumps(asdict(case)))) == case


@pytest.fixture
def spinning(monkeypatch):
    """A clock of CPU time that runs for the first ``spinning(steps)`` sleeps, then stands."""
    state = {"left": 0, "cpu": 0.0, "slept": 0}

    def sleep(seconds):
        state["slept"] += 1
        state["cpu"] += seconds if state["left"] > 0 else 1e-5
        state["left"] -= 1

    def start(steps):
        state["left"] = steps
        return state

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "process_time", lambda: state["cpu"])
    return start


def test_nobody_is_timed_while_a_rivals_threads_spin(spinning):
    state = spinning(9)
    rival.settle()
    assert state["slept"] == 10


def test_a_kernel_may_add_up_cpu_time_once_in_a_tick(spinning, monkeypatch):
    state, tick = spinning(9), 0.004
    monkeypatch.setattr(time, "process_time", lambda: state["cpu"] // tick * tick)
    rival.settle()
    assert state["slept"] >= 10


def test_threads_that_never_sleep_are_an_error(spinning):
    spinning(10**6)
    with pytest.raises(TimeoutError, match=r"still spin 0\.5 s after a call"):
        rival.settle()


@pytest.mark.parametrize("request_of", ["calls_per_sample", "sample"])
def test_an_answer_waits_for_the_threads(request_of, monkeypatch):
    order = []
    side = rival.Rival("numpy", 1)
    side.functions = [lambda: order.append("call")]
    monkeypatch.setattr(rival, "settle", lambda: order.append("settle"))
    getattr(side, request_of)(1 if request_of == "sample" else 1e-9)
    assert "call" in order
    assert order.index("settle") == len(order) - 1


def test_a_library_of_onednn_is_told_by_its_longest_name(monkeypatch):
    """Both packages install the shorter ones."""
    names = ["../../libdnnl.so", "../../libdnnl.so.3", "../../libdnnl.so.3.2", "../../README"]
    monkeypatch.setattr(onednn.metadata, "files", lambda name: map(PackagePath, names))
    monkeypatch.setattr(PackagePath, "locate", lambda path: path)
    assert onednn.library("onednn-openmp").name == "libdnnl.so.3.2"

    def missing(name):
        raise onednn.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(onednn.metadata, "files", missing)
    assert not rival.is_installed("onednn")
