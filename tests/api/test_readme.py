"""README is one screen: what it shows is true, and its two commands are found by CI.

``python tests/api/test_readme.py`` renews the block of `explain` on this machine. Its Python blocks
are run by tests/docs/test_blocks.py, its links by tests/docs/test_links.py.
"""

import re
from pathlib import Path

from implicit_conv import plan_conv2d

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXPLAIN = re.compile(r"(<!-- explain -->\n```text\n)(.*?)(```\n<!-- /explain -->)", re.DOTALL)
COMMANDS = re.findall(r"^python3 -m venv \.venv && .*$", TEXT, re.MULTILINE)


def explained():
    """What `explain` prints for the plan of README."""
    plan = plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), padding=1, activation="relu")
    return plan.explain(brief=True)


def test_the_block_of_explain_has_the_lines_of_explain():
    """What the lines say depends on the machine; their names are compared."""
    (block,) = EXPLAIN.findall(TEXT)
    shown, own = ([line.split()[0] for line in t.splitlines()] for t in (block[1], explained()))
    assert shown == own


def test_the_two_commands_are_lines_that_ci_finds():
    assert [command.rsplit(maxsplit=1)[-1] for command in COMMANDS] == ["demo", "pytest"]


def test_the_readme_is_short():
    """Words as a reader counts them: addresses of links and the lines of tables are none."""
    words = re.sub(r"\]\([^)]*\)|<!--.*?-->|<img[^>]*>|---|\|", "", TEXT).split()
    rows = [line for line in TEXT.splitlines() if line.startswith("|")]
    assert len(words) <= 800 and len(rows) <= 2 + 16 and len(TEXT.splitlines()) <= 150


if __name__ == "__main__":
    renewed = EXPLAIN.sub(lambda found: f"{found[1]}{explained()}\n{found[3]}", TEXT)
    README.write_text(renewed, encoding="utf-8")
