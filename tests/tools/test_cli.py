"""Commands refuse what cannot work before they start to work."""

import numpy as np
import pytest

from implicit_conv.cpu import kept, tuning
from implicit_conv.kernels.disk import Store
from implicit_conv.tools.cli import main


@pytest.mark.parametrize("option", ["--batch", "--threads", "--rounds"])
def test_bench_refuses_a_count_of_zero(capsys, option):
    with pytest.raises(SystemExit) as ended:
        main(["bench", option, "0"])
    assert ended.value.code == 2
    assert "'0' must be an integer of at least 1" in capsys.readouterr().err


def test_bench_refuses_threads_that_are_not_there(capsys):
    assert main(["bench", "--threads", "9999"]) == 2
    assert "--threads 9999: at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("x.txt", "must end in one of"), ("none/x.png", "there is no folder")]
)
def test_demo_refuses_an_output_before_it_computes(capsys, tmp_path, name, said):
    pytest.importorskip("matplotlib")
    assert main(["demo", "--out", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_explain_takes_a_padding_mode(capsys):
    shapes = ["1,8,9,9", "8,8,3,3"]
    assert main(["explain", *shapes, "--padding", "1", "--padding-mode", "reflect"]) == 0
    assert "padding (1, 1) in mode 'reflect'" in capsys.readouterr().out
    assert main(["explain", *shapes, "--padding-mode", "mirror"]) == 2
    assert "none of zeros, reflect, symmetric" in capsys.readouterr().err


def test_tune_prints_the_tuned_plan_and_forget_removes_it(capsys, monkeypatch, tmp_path):
    store = Store(tmp_path)
    monkeypatch.setattr(kept, "store", lambda: store)
    monkeypatch.setattr(
        tuning, "measure", lambda candidates, run: [np.array([1e-3])] * len(candidates)
    )
    assert main(["tune", "1,8,9,9", "8,8,3,3", "--filters", "plain"]) == 0
    assert "tuned       the fastest of" in capsys.readouterr().out
    assert main(["forget"]) == 0
    assert "removed 1 choice\n" in capsys.readouterr().out
    assert main(["tune", "1,8,9,9", "8,8,3,3", "--filters", "some"]) == 2
    assert "filters 'some' is none of packed, plain" in capsys.readouterr().err
