"""The map of the page "Architecture", the contracts of pyproject.toml and the tree say the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "implicit_conv"
PAGE = (ROOT / "docs/contributing/architecture.md").read_text(encoding="utf-8")
CONCEPTS = (ROOT / "docs/contributing/concepts.md").read_text(encoding="utf-8")
MOST_WORDS, MOST_FLAT, MOST_CONCEPTS = 900, 7, 33
SHOWS = "implicit_conv/operators/plan.py"  # to users: no call goes through it
TRACED = """
import os, sys, threading
import numpy as np
import implicit_conv
from implicit_conv.kernels.cpu.runtime import code

x, w = np.ones((1, 28, 28, 64), np.float32), np.ones((64, 64, 3, 3), np.float32)
entered = []

def call():
    implicit_conv.conv2d(x, w, padding=1, layout="NHWC", precision="strict")

def note(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and os.path.isfile(path):
        path = os.path.relpath(os.path.realpath(path))
        # A source distribution has a copy of kernels/ in place of the link to it.
        path = path.replace("implicit_conv/kernels/", "kernels/", 1)
        if path not in entered:
            entered.append(path)

call()  # so that all modules are imported
implicit_conv.clear_plan_cache()
code.forget()
threading.setprofile(note)
sys.setprofile(note)
call()
sys.setprofile(None)
print(*entered)
"""
DRAWING = re.search(r"```text\n(.*?)```", PAGE, re.S)[1]
FAMILIES = sorted({path.parent for path in (ROOT / "kernels" / "cpu").glob("*/operator.py")})
SENTENCE = re.compile(r"^\s+\|?\s{6,}\S.*[.:,].*$", re.M)  # of the drawing, not names
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
FLAT = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}


def layers():
    """The floors of the contract, from the top, each as a set of names."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (rooms,) = (
        contract
        for contract in contracts["contracts"]
        if contract.get("containers") == ["implicit_conv"]
    )
    return [set(re.split(r"[ :|]+", layer)) for layer in rooms["layers"]]


def drawn():
    """The names on each line of the drawing that are rooms or modules, from the top."""
    known = ROOMS | FLAT
    lines = (set(line.split()) & known for line in DRAWING.splitlines() if not SENTENCE.match(line))
    return [names for names in lines if names]


def test_the_drawing_has_all_rooms_on_the_floors_of_the_contract():
    assert drawn() == layers()
    assert set().union(*drawn()) == ROOMS | FLAT


def test_few_modules_are_in_no_room():
    assert len(FLAT - {"__main__"}) <= MOST_FLAT


@pytest.mark.parametrize(
    "folder", sorted(PACKAGE.rglob("__init__.py")), ids=lambda p: p.parent.name
)
def test_a_room_says_what_belongs_there(folder):
    assert folder.read_text(encoding="utf-8").startswith(('"""', "'''"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda p: p.name)
def test_a_family_names_its_files_in_reading_order(family):
    words = re.findall(r"`(\w+)`", (family / "__init__.py").read_text(encoding="utf-8"))
    files = {path.stem for path in family.rglob("*.py")} - {"__init__"}
    assert files <= set(words)
    assert words[0] in ("layout", "operator")


def test_the_page_is_short_and_names_files_that_exist():
    assert len(PAGE.split()) <= MOST_WORDS
    files = re.findall(r"`((?:implicit_conv|kernels|tests)/[\w/]+\.py)`", PAGE)
    assert len(files) >= 15
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_concepts_are_few_and_defined_where_the_page_says():
    rows = re.findall(r"^\| `(\w+)` \| `(\S+)` \| (.+) \|$", CONCEPTS, re.M)
    assert 25 < len(rows) <= MOST_CONCEPTS
    assert len(rows) == len(re.findall(r"^\| `", CONCEPTS, re.M))
    for name, file, _ in rows:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:class |def )?{name}\b", source, re.M), (name, file)
    files = [*PACKAGE.glob("[!k]*/**/*.py"), *(ROOT / "kernels").rglob("*.py")]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    parts = {part for *_, words in rows for part in re.findall(r"`(\w+)`", words)}
    assert {part for part in parts if f"\nclass {part}" not in source} == set()


def test_the_reading_order_is_the_order_of_a_first_call():
    """Files of compiled code come last; the others are entered in this order."""
    order = re.search(r"reading order\n(.*?)\n## ", PAGE, re.S)[1]
    listed = re.findall(r"`((?:implicit_conv|kernels)/[\w/]+\.py)`", order)
    compiled = [file for file in listed if "/compiled/" in file]
    first = listed.index(compiled[0])
    assert listed[first:] == compiled
    shown = [file for file in listed[:first] if file != SHOWS]
    done = subprocess.run(
        [sys.executable, "-c", TRACED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    entered = [file for file in done.stdout.split() if file in shown]
    assert entered == shown
