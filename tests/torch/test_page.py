"""The examples of the pages on torch run, in the order of each page."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

PAGES = Path(__file__).parents[2] / "docs/how-to"


def run(page):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (PAGES / page).read_text("utf-8"), re.DOTALL):
        exec(block, names)


@pytest.mark.slow  # one imports Inductor
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_unchanged_models(ours, monkeypatch):
    inductor = pytest.importorskip("torch._inductor.config")
    monkeypatch.setattr(inductor.cpp, "weight_prepack", True)  # an example changes it
    run("torch.md")
    assert ours


def test_converted_models(capsys, monkeypatch):
    from implicit_conv.torch import report

    monkeypatch.setattr(report, "disturbance", lambda threads: "")
    run("torch-convert.md")
    lines = [line.strip() for line in (PAGES / "torch-convert.md").read_text("utf-8").splitlines()]
    table = capsys.readouterr().out.split("\n\n")[-1]
    shown = [line.strip() for line in table.splitlines()]
    assert len(shown) == 4 and all(line in lines for line in shown)
