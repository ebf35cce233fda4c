"""docs/trust/proofs.md names a test for each promise of reliability.md and security.md."""

import ast
import re

import pytest
from processes import ROOT

PAGES = ("reliability.md", "security.md")
PROMISE = re.compile(r"^- \*\*(.+?)\.?\*\*", re.MULTILINE)  # a list item that begins in bold
ROW = re.compile(r"^\| (\S+\.md): (.+?) \| .+ \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/\S+\.py)(?:::(\w+))?`")


def promises():
    """(page, the bold words) of each promise."""
    return [
        (page, found)
        for page in PAGES
        for found in PROMISE.findall((ROOT / "docs/trust" / page).read_text())
    ]


def rows(text=None):
    """(page, the bold words, names of tests) of each row of the table."""
    return ROW.findall(text or (ROOT / "docs/trust/proofs.md").read_text())


def unproved(table):
    """The promises without a row in `table`."""
    return sorted(set(promises()) - {(page, words) for page, words, _ in table})


def missing(table):
    """The tests in `table` that do not exist, and the rows without one."""
    for _, words, cell in table:
        named = TEST.findall(cell)
        if not named:
            yield words
        for file, name in named:
            path = ROOT / file
            if not path.is_file():
                yield file
            elif name and name not in functions(path):
                yield f"{file}::{name}"


def functions(path):
    """The names of the functions at the top of a module."""
    return {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}


def test_every_promise_has_a_row():
    assert len(promises()) > 10
    assert unproved(rows()) == []


def test_every_row_is_about_a_promise():
    assert {(page, words) for page, words, _ in rows()} <= set(promises())


def test_every_test_exists():
    assert list(missing(rows())) == []


@pytest.mark.parametrize(
    ("page", "words", "cell"),
    [
        ("reliability.md", "Forks", "`tests/properties/test_forks.py::test_none`"),
        ("reliability.md", "Forks", "`tests/none.py`"),
        ("reliability.md", "Forks", "by reading"),
    ],
)
def test_a_test_that_does_not_exist_is_found(page, words, cell):
    table = [row for row in rows() if row[:2] != (page, words)]
    assert (page, words) in unproved(table)
    assert list(missing([*table, (page, words, cell)]))
