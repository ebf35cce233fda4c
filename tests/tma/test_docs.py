"""The code blocks of docs/tma.md run unchanged."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCKS = CODE.findall((ROOT / "docs" / "tma.md").read_text(encoding="utf-8"))
SAID = ["im2col::w of N=128", "0.5", "must be in [1, 1024]", "im2col::w.mbarrier"]


@pytest.mark.parametrize(("block", "said"), list(zip(BLOCKS, SAID, strict=True)))
def test_a_block_runs(block, said, capsys):
    exec(compile(block, "docs/tma.md", "exec"), {})
    assert said in capsys.readouterr().out


def test_the_drawing_shows_the_halo(capsys):
    exec(compile(BLOCKS[0], "docs/tma.md", "exec"), {})
    assert "127 [128] [129]|" in capsys.readouterr().out


def test_the_linter_block_names_the_overrun(capsys):
    exec(compile(BLOCKS[2], "docs/tma.md", "exec"), {})
    assert "rows would overrun" in capsys.readouterr().out
