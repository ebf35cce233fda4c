"""The examples of docs/torch.md run, in the order of the page."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

PAGE = Path(__file__).parents[2] / "docs/torch.md"


def test_examples_run(ours):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(block, names)
    assert ours
