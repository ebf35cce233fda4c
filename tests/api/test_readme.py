"""The README's Python blocks run as they stand, and it shows what `explain` prints.

``python tests/api/test_readme.py`` renews the block of `explain` on this machine.
"""

import re
from pathlib import Path

import pytest

from implicit_conv import plan_conv2d

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
EXPLAIN = re.compile(r"(<!-- explain -->\n```text\n)(.*?)(\n```\n<!-- /explain -->)", re.DOTALL)
COMMANDS = re.findall(r"^python3 -m venv \.venv && .*$", TEXT, re.MULTILINE)


def explained():
    """What `explain` prints for the plan of the README's first block."""
    return plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), padding=1).explain(brief=True)


def run(blocks):
    """Names that the blocks define, run one after the other."""
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_quickstart_runs(capsys):
    names = run(BLOCKS)
    assert names["y"].shape == (1, 64, 56, 56)
    assert names["plan"].explain(brief=True) == explained() == capsys.readouterr().out.strip()
    assert names["filtered"].dtype == "int32" and names["filtered"].shape == (8, 48000)
    assert names["doubled"].shape == (1, 4, 12, 18, 18) and names["dx"].shape == (1, 64, 56, 56)
    picture, blurred = names["picture"], names["blurred"]
    assert blurred.shape == picture.shape
    window = picture[100:107, 200:207]
    assert blurred[103, 203] == pytest.approx(window.mean(axis=(0, 1)), rel=1e-5)


def test_the_block_of_explain_has_the_lines_of_explain():
    """What the lines say depends on the machine; their names are compared."""
    (block,) = EXPLAIN.findall(TEXT)
    shown, own = ([line.split()[0] for line in t.splitlines()] for t in (block[1], explained()))
    assert shown == own


def test_the_two_commands_are_lines_that_ci_finds():
    assert [command.rsplit(maxsplit=1)[-1] for command in COMMANDS] == ["demo", "pytest"]


def test_the_readme_is_short():
    assert len(TEXT.splitlines()) <= 150


if __name__ == "__main__":
    renewed = EXPLAIN.sub(lambda found: found[1] + explained() + found[3], TEXT)
    README.write_text(renewed, encoding="utf-8")
