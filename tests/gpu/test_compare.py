"""A comparison on a card, drilled on a driver that records: cards that are slow, refuse a kernel,
or are wrong.
"""

import itertools
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from implicit_conv.errors import DriverError
from implicit_conv.gpu.cuda.arch import gpu_arch
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.testing import Case
from implicit_conv.testing.gpu.problems import loaded, problem_of, stored
from implicit_conv.tools.rivals import WrongResultError
from perf import pack
from perf.bringup import compare, steps
from perf.bringup.gpu import Gpu
from perf.bringup.kit import Image, Kit, read
from perf.bringup.processes import Ended
from perf.bringup.recipes import Problem

CASE = Case(
    N=2, C=8, K=64, size=(6, 6), kernel=(3, 3), padding=((1, 1), (1, 1)), dtype="float16",
    layout="NHWC", weight_layout="KRSC",
)  # fmt: skip
LAYERS = ("ResNet-50 3x3 64-64 @56", "ResNet-50 1x1 64-256 @56")


def kit_of(entry="float16"):
    """A kit with two layers and a problem; the recorder computes what has the entry "float16"."""
    arch = gpu_arch("sm_90a")
    v = Variant("im2col", "cp_async", "mma", "float16", 64, 64, 64, 2, 2)
    choice = choose(problem_of(CASE, "float16"), arch, variant=v)
    kit = Kit({"target": "sm_90a"})
    kit.images["k0"] = Image("a kernel", entry, False, v.threads)
    kit.files |= {"ptx/k0": b"", "cubin/k0": entry.encode()}
    problem = Problem(CASE, "float16", 1, False)
    sizes = {name: array.size * v.itemsize for name, array in problem.values().items()}
    for name in LAYERS:
        recipe = {"kind": "layer", "case": asdict(CASE), "dtype": "float16"}
        title = f"{name}, {entry}, 3x3"
        kit.launches.append(pack._launch("rates", title, choice, "k0", sizes, recipe))
    recipe = {**problem.recipe(), "tile": (64, 64, 32)}
    name = f"{v.name}, problem 0"
    kit.launches.append(pack._launch("problems", name, choice, "k0", sizes, recipe))
    return kit


class Stub:
    """The recorder as a card, and a rival that is right and takes longest."""

    def __init__(self, kit):
        self.gpu = Gpu(kit)

    def arrays(self, case):
        values = Problem(case, case.dtype, 3, False).values()
        x, w = case.arrange(values["x"], values["w"])
        given = {"x": stored(x, case.dtype), "w": stored(w, case.dtype)}
        given["y"] = np.full((case.N, *case.output, case.K), 0xFFFF, np.uint16)
        kept = {
            name: self.gpu.put(np.ascontiguousarray(array).reshape(-1).view(np.uint8), 0)
            for name, array in given.items()
        }
        return compare.Arrays({name: int(place) for name, place in kept.items()}, (values, kept))

    def measure(self, case, arrays, calls):
        values, kept = arrays.values
        expected = case.reference(values["x"], values["w"])
        errors = {}
        for who, call in calls.items():
            call()
            y = self.gpu.get(kept["y"], 2 * expected.size).view(np.uint16)
            y = loaded(y.reshape(case.N, *case.output, case.K), case.dtype).transpose(0, 3, 1, 2)
            errors[who] = float(np.nan_to_num(abs(y - expected), nan=np.inf).max())
            if errors[who]:
                raise WrongResultError(f"{who} is wrong")
        samples = {who: np.full(3, 1e-6 * (1 + i)) for i, who in enumerate([*calls, compare.RIVAL])}
        return errors, samples

    def networks(self, in_time):
        return iter(())  # tests/gpu/test_networks.py has them


@pytest.fixture
def drill(recorder, tmp_path):
    """A function that compares the kernels of a kit on the recorder."""

    def run(kit, clock=lambda: 0.0):
        path = tmp_path / "report.json"
        report = compare.compared(kit, Stub(kit), path, clock)
        assert compare.Report.read(path) == report
        return report

    return run


def test_layers_are_compared_with_another_checkout_and_the_rival(drill):
    kit = kit_of()
    pack.add_before(kit, kit_of())
    report = drill(kit)
    assert (report.right, report.failures) == (1, {})
    assert [row["layer"] for row in report.rows] == [f"{name} float16 n2" for name in LAYERS]
    for row in report.rows:
        assert row["errors"] == {"ours": 0, "before": 0}
        assert row["kernels"] == {"ours": "float16, 3x3", "before": "float16, 3x3"}
        assert list(row["seconds"]) == ["ours", "before", "cuDNN"]
    lines = report.lines()
    sums = next(line for line in lines if line.startswith("7 of 53 layers, float16 n2: "))
    assert re.findall(r"(\w+) +([\d.]+) us", sums) == [
        ("ours", "7.0"), ("before", "14.0"), ("cuDNN", "21.0"),
    ]  # fmt: skip
    assert "(2.00)" in sums and "(3.00)" in sums


def test_a_wrong_kernel_is_named_and_its_time_is_not_told(drill):
    """The recorder computes nothing for it, so that y stays as it was."""
    kit = kit_of("silent")
    right = kit_of()
    kit.launches[1] = replace(right.launches[1], image="k1")
    kit.images["k1"], kit.files["cubin/k1"] = right.images["k0"], right.files["cubin/k0"]
    report = drill(kit)
    assert report.right == 0
    problem, layer = report.failures
    assert "bytes are wrong" in report.failures[problem]
    assert (layer, report.failures[layer]) == (f"{LAYERS[0]} float16 n2", "ours is wrong")
    assert [row["layer"] for row in report.rows] == [f"{LAYERS[1]} float16 n2"]
    assert any(line.startswith("FAILED: ResNet-50 3x3") for line in report.lines())


def test_a_card_that_refuses_a_kernel_is_measured_without_it(drill, recorder):
    kit = kit_of()
    before = kit_of()
    before.files["cubin/k0"] = b"refused"
    pack.add_before(kit, before)

    def load(content, *_):
        if bytes(content) == b"refused":
            raise DriverError("cuLibraryLoadData failed with CUDA_ERROR_NO_BINARY_FOR_GPU")
        return 0

    recorder._cuLibraryLoadData = load
    report = drill(kit)
    assert {what.rpartition(", ")[2] for what in report.failures} == {"before"}
    assert len(report.failures) == 2 and "NO_BINARY" in next(iter(report.failures.values()))
    assert [list(row["seconds"]) for row in report.rows] == [["ours", "cuDNN"]] * 2
    assert "before" not in report.sums()[0]


def test_what_a_slow_card_has_no_time_for_is_named(drill):
    seconds = itertools.count(0, 80)
    report = drill(kit_of(), lambda: next(seconds))
    assert report.failures == {
        "values": "1 problems did not fit in the time",
        f"{LAYERS[1]} float16 n2": "not measured: it did not fit in the time",
    }
    assert [row["layer"] for row in report.rows] == [f"{LAYERS[0]} float16 n2"]
    assert report.sums()[0].startswith("3 of 53 layers")


def test_each_kernel_has_a_problem_before_one_has_two():
    launches = [replace(kit_of().launches[0], image=image) for image in "aaabbc"]
    assert [launch.image for launch in compare.by_turns(launches)] == list("abcaba")


def test_a_kernel_that_never_ends_leaves_what_was_measured_before_it(tmp_path, monkeypatch):
    output = tmp_path / "h200.json"

    def stopped(*arguments, seconds):
        row = {"layer": f"{LAYERS[0]} float16 n2", "group": "float16 n2", "kernels": {}}
        times = {"ours": [1e-6], "cuDNN": [2e-6]}
        compare.Report(["a card"], {}, rows=[{**row, "errors": {}, "seconds": times}]).save(output)
        return Ended(None, "a kernel runs", seconds)

    monkeypatch.setattr(compare, "run_module", stopped)
    report = compare.run(tmp_path / "h200.kit", output)
    assert report.failures == {"the process": "did not end within 330 s\na kernel runs"}
    assert report.sums()[0].startswith("3 of 53 layers")
    assert report.profiles == {name: ["ncu is not on the PATH"] for name in compare.PROFILES}
    profiles = len(compare.PROFILES) * compare.PROFILE_SECONDS
    assert compare.SECONDS + compare.GRACE + profiles <= 480
    assert compare.SECONDS - compare.LAYERS_SECONDS >= 120  # for networks


def test_profiles_watch_layers_that_kits_have():
    names = [f"{network} {name}" for network in pack.NETWORKS for name in pack.NETWORKS[network]]
    for title in compare.PROFILES:
        _, step, match, _ = steps.TOOLS[title]
        assert step == "rates" and any(re.search(match, name) for name in names), title


def test_a_kit_with_another_checkouts_kernels_is_read_again(tmp_path):
    kit = kit_of()
    pack.add_before(kit, kit_of("older"))
    kit.save(tmp_path / "a.kit")
    found = compare.layers(read(tmp_path / "a.kit"))
    for name in LAYERS:
        both = found[f"{name} float16 n2"]
        assert both["ours"].image == "k0" and both["before"].image == "before-k0"
