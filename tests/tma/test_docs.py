"""The code of the pages on TMA runs unchanged, and the tutorial says what it prints."""

import doctest
import re
from pathlib import Path

import pytest

from implicit_conv import tma

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCKS = CODE.findall((ROOT / "docs/how-to/tensor-maps.md").read_text(encoding="utf-8"))
SAID = ["im2col::w of N=128", "0.5", "must be in [1, 1024]", "im2col::w.mbarrier"]


@pytest.mark.parametrize(("block", "said"), list(zip(BLOCKS, SAID, strict=True)))
def test_a_block_runs(block, said, capsys):
    exec(compile(block, "docs/how-to/tensor-maps.md", "exec"), {})
    assert said in capsys.readouterr().out


def test_the_drawing_shows_the_halo(capsys):
    exec(compile(BLOCKS[0], "docs/how-to/tensor-maps.md", "exec"), {})
    assert "127 [128] [129]|" in capsys.readouterr().out


def test_the_linter_block_names_the_overrun(capsys):
    exec(compile(BLOCKS[2], "docs/how-to/tensor-maps.md", "exec"), {})
    assert "rows would overrun" in capsys.readouterr().out


def test_the_tutorial_prints_what_it_says():
    result = doctest.testfile(str(ROOT / "docs/tutorials/tma.md"), module_relative=False)
    assert result.attempted > 30 and result.failed == 0


def test_the_tutorial_begins_with_the_picture_and_its_copy():
    text = (ROOT / "docs/tutorials/tma.md").read_text(encoding="utf-8")
    opening, block, *_ = re.split(r"```python\n", text)
    begin, *_ = opening.split("\n\n")[1:]
    assert begin.endswith("(../explanation/pictures/shifted-view.svg)")
    words = opening.split("\n\n")[2]
    assert len(re.findall(r"\.(?= |$)", words.replace("\n", " "))) == 3  # sentences
    for word in ("(TMA)", "*im2col*", "*im2col::w*", "*wHalo*", "*wOffset*"):
        assert word in words, word
    assert "Im2colWideMap" in block and "(../gallery/row.svg)" in block
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert "im2col::w" in headings[0] and headings.index("4. Tiles") == 3


def test_the_questions_print_what_they_say():
    result = doctest.testfile(str(ROOT / "docs/how-to/tma-questions.md"), module_relative=False)
    assert result.attempted > 12 and result.failed == 0


def test_the_reference_names_everything():
    text = (ROOT / "docs/reference/tma-modes.md").read_text(encoding="utf-8")
    assert not [name for name in tma.__all__ if f"`{name}" not in text]


def test_the_checked_kernel_of_the_reference(capsys):
    (block,) = CODE.findall((ROOT / "docs/reference/tma-modes.md").read_text(encoding="utf-8"))
    exec(compile(block, "docs/reference/tma-modes.md", "exec"), {})
    *table, wrong = capsys.readouterr().out.splitlines()
    assert len(table) == 4 and all(" agrees " in line for line in table[1:])
    assert wrong == "not loaded: tap (2,): the input of 26 output pixels, such as (0, 0)"
