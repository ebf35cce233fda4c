"""The code blocks of docs/tma.md run as they stand, five lines each."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "tma.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SAID = ["im2col::w of N=128", "0.5", "must be in [1, 1024]", "im2col::w.mbarrier"]


@pytest.mark.parametrize(("block", "said"), list(zip(BLOCKS, SAID, strict=True)))
def test_a_block_runs(block, said, capsys):
    exec(compile(block, "docs/tma.md", "exec"), {})
    assert said in capsys.readouterr().out


def test_the_linter_block_names_the_overrun(capsys):
    exec(compile(BLOCKS[2], "docs/tma.md", "exec"), {})
    assert "rows would overrun" in capsys.readouterr().out
