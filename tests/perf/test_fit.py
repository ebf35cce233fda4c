"""perf fit: a table of costs that is fitted to times."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines.engine import plan
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.costs import EPYC, GROUPS
from implicit_conv.cpu.plan import tuning
from implicit_conv.testing import Case
from perf import fit, fitting
from perf.__main__ import main
from perf.fitting import Fit, Layer, Number, changed, estimates, fitted
from perf.layers import SUITES

ARCH = CpuArch(512, True, 48 << 10, 2 << 20, 1, 14)
HERTZ = 3e9
# A CPU that loads vectors amid a line slowly, as it begins register tiles and transforms.
SLOW = {
    Number("planar_gemm", "unaligned"): 3.0,
    Number("gemm", "tile_pixel"): 2.0,
    Number("winograd", "transform2"): 5.0,
}


@pytest.fixture(scope="module")
def layers():
    """Layers whose times are the estimates of a table with other numbers, to the last digit."""
    truth, found = changed(EPYC, SLOW), []
    for name, case in dict(SUITES["resnet50"][1]()).items():
        for layout in ("NCHW", "NHWC"):
            problem = replace(case, layout=layout).problem
            query = plan(problem, ARCH, Request()).choice.query
            candidates = tuple(tuning.few(query, True))
            layer = Layer(name, True, candidates, (0.0,) * len(candidates))
            seconds = np.exp(estimates(layer, truth)) / HERTZ
            found.append(layer._replace(seconds=tuple(seconds.tolist())))
    return found


def test_estimates_are_those_of_the_planner(layers):
    for layer in layers:
        expected = [c.packed_cycles for c in layer.candidates]
        np.testing.assert_allclose(np.exp(estimates(layer, EPYC)), expected, rtol=1e-12)


def test_numbers_that_times_tell_are_found(layers):
    before, found = Fit(layers, EPYC), fitted(layers, EPYC)
    assert before.regrets().max() > 1.5
    assert found.regrets().max() < 1.02
    assert np.abs(found.residuals()).mean() < 0.5 * np.abs(before.residuals()).mean()
    assert found.offset == pytest.approx(np.log(HERTZ), abs=0.05)
    for number, least in zip(SLOW, (1.5, 1.0, 1.3), strict=True):
        value, old = (getattr(getattr(c, number.group), number.field) for c in (found.costs, EPYC))
        assert least < value / old < SLOW[number], number


def test_numbers_that_no_layer_tells_stay(layers):
    found = fitted(layers, EPYC, rounds=1)
    assert found.costs.threads == EPYC.threads
    assert found.costs.weight_grad == EPYC.weight_grad


def test_a_written_module_has_the_table():
    namespace = {}
    named = replace(EPYC, name="a CPU", made="fitted today")
    exec(fit.module("TABLE", named), namespace)
    table = namespace["TABLE"]
    assert (table.name, table.made) == ("a CPU", "fitted today")
    for group in GROUPS:
        np.testing.assert_allclose(getattr(table, group), getattr(EPYC, group), rtol=1e-3)


def test_the_first_layers_are_of_all_suites_and_no_case_is_measured_twice(monkeypatch):
    seen = []

    def times_of(case, packs):
        seen.append(case)
        return ("a candidate",), [1.0]

    monkeypatch.setattr(fit, "times_of", times_of)
    assert fit.measured(0.5) == []  # no layer has a choice
    distinct = list(dict.fromkeys(seen))
    assert seen[1:] == [case for case in distinct[1:] for _ in range(2)]
    firsts = {name.split()[0] for name, _ in islice(fit.cases(), 15)}
    assert {"resnet50", "mobilenet", "depthwise", "pixel", "first"} <= firsts


def test_what_python_takes_of_each_call_is_no_cost(monkeypatch):
    def times_of(case, packs):
        return ("first", "second"), [2e-6, 3e-6] if case == fit.SMALL else [5e-5, 6e-5]

    monkeypatch.setattr(fit, "times_of", times_of)
    monkeypatch.setattr(fit, "cases", lambda: iter([("layer", Case())]))
    layer, _ = fit.measured(1)
    assert layer.seconds == pytest.approx((4.8e-5, 5.8e-5))


def test_the_command_writes_a_table(monkeypatch, tmp_path, capsys, layers):
    monkeypatch.setattr(fit, "measured", lambda seconds: layers[:4])
    monkeypatch.setattr(fit, "disturbance", lambda threads: "")
    path = tmp_path / "table.py"
    assert main(["fit", "--output", str(path), "--name", "TABLE", "--title", "a CPU"]) == 0
    assert "within" in capsys.readouterr().out
    assert "TABLE = Costs(" in path.read_text(encoding="utf-8")


def test_beside_other_work_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(fit, "disturbance", lambda threads: "busy")
    assert main(["fit"]) == fit.UNTOLD
    assert capsys.readouterr().out == "busy\n"


def test_a_step_too_large_is_not_taken(layers, monkeypatch):
    """Where estimates are not linear, a shorter step is tried, or none."""
    found = Fit(layers[:6], EPYC)
    losses = iter([1.0, 0.5, 0.4, 0.5])  # the first step is worse, the second one better
    monkeypatch.setattr(fitting.Fit, "loss", lambda self, values, delta: next(losses))
    before = found.costs
    found.improve()
    assert found.costs != before
