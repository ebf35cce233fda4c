"""The code blocks of docs/tma.md run unchanged, and the tutorial says what they print."""

import doctest
import re
from pathlib import Path

import pytest

from implicit_conv import tma

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


def test_the_tutorial_prints_what_it_says():
    result = doctest.testfile(str(ROOT / "docs" / "tma-tutorial.md"), module_relative=False)
    assert result.attempted > 30 and result.failed == 0


def test_the_questions_print_what_they_say():
    result = doctest.testfile(str(ROOT / "docs" / "tma-questions.md"), module_relative=False)
    assert result.attempted > 12 and result.failed == 0


def test_the_reference_names_everything():
    text = (ROOT / "docs" / "tma-reference.md").read_text(encoding="utf-8")
    assert not [name for name in tma.__all__ if f"`{name}" not in text]


def test_the_checked_kernel_of_the_reference(capsys):
    (block,) = CODE.findall((ROOT / "docs" / "tma-reference.md").read_text(encoding="utf-8"))
    exec(compile(block, "docs/tma-reference.md", "exec"), {})
    *table, wrong = capsys.readouterr().out.splitlines()
    assert len(table) == 4 and all(" agrees " in line for line in table[1:])
    assert wrong == "not loaded: tap (2,): the input of 26 output pixels, such as (0, 0)"


@pytest.mark.parametrize("name", ["tma.md", "tma-tutorial.md", "tma-questions.md"])
def test_links_lead_somewhere(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert links and not [
        link for link in links if "://" not in link and not (ROOT / "docs" / link).exists()
    ]
