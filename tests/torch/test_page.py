"""The examples of docs/how-to/torch.md run, in the order of the page."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

PAGE = Path(__file__).parents[2] / "docs/how-to/torch.md"


@pytest.mark.slow  # one imports Inductor
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_examples_run(ours, monkeypatch):
    inductor = pytest.importorskip("torch._inductor.config")
    monkeypatch.setattr(inductor.cpp, "weight_prepack", True)  # an example changes it
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(block, names)
    assert ours
