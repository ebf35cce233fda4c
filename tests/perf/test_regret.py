"""perf regret: what the planner's choices cost."""

import numpy as np
import pytest

from implicit_conv.cpu.plan import tuning
from perf import regret
from perf.__main__ import main
from perf.record import told as load_record

CANDIDATES = ["first", "second", "third"]


def test_the_regret_is_the_time_of_the_first_over_the_least():
    samples = [np.array([3.0, 2.0]), np.array([1.6, 9.0]), np.array([2.0, 2.5])]
    found = regret.regret("layer", CANDIDATES, samples, [2.0, 1.0, 1.0])
    assert (found.chosen, found.fastest) == ("first", "second")
    assert found.ratio == 2.0 / 1.6


def test_estimates_that_are_far_off_are_told(monkeypatch):
    """Neither those within a factor of 3, nor calls so short that fixed costs hide what is off."""
    monkeypatch.setattr(regret, "words_of", str)
    samples = [np.array([each]) for each in (1.0, 1.0, 1.0, 1e-6)]
    found = regret.regret("layer", [*CANDIDATES, "short"], samples, [0.4, 0.3, 3.5, 1e-9])
    assert found.misjudged == (
        "second takes 3.33 times its estimate",
        "third takes 0.29 times its estimate",
    )


def test_the_summary_has_the_geometric_mean_and_the_worst():
    layers = [
        regret.regret(str(r), CANDIDATES[:2], [np.array([r]), np.array([1.0])], [1.0, 1.0])
        for r in (1.0, 2.0, 2.8)
    ]
    mean, worst = regret.summary(layers)
    assert mean == pytest.approx(5.6 ** (1 / 3))
    assert worst.layer == "2.8"


@pytest.mark.parametrize(("share", "status"), [(1.0, 0), (1.02, 0), (1.06, 1), (1.5, 1)])
def test_the_command_fails_if_choices_cost_more_than_accepted(
    monkeypatch, capsys, tmp_path, share, status
):
    def samples(candidates, make):
        return [np.full(3, share), *[np.ones(3)] * (len(candidates) - 1)]

    monkeypatch.setattr(tuning, "measure", samples)
    monkeypatch.setattr(regret, "disturbance", lambda threads: "")
    given = ["regret", "--suite", "resnet50", "--layer", "1x1 64", "--layer", "3x3 64"]
    assert main([*given, "-o", str(tmp_path / "record.json")]) == status
    record = load_record(tmp_path / "record.json")
    assert regret.words([record, record]) == f"{share:.2f} ({share:.2f})"
    assert record["rows"][0]["layer"] == "1x1 64-64 @56"
    printed = " ".join(capsys.readouterr().out.split())
    assert f"regret of 3 layers: {share:.3f}" in printed


def test_layers_that_are_not_there_are_refused(capsys):
    assert main(["regret", "--layer", "9x9"]) == 2
    assert "no layer of all has '9x9' in its name" in capsys.readouterr().err
