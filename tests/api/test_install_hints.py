"""Messages that say what to install: the command needs no checkout, and agrees with the extras."""

import ast
import functools
import re
import shlex
import sys
from pathlib import Path

import pytest
from processes import run_python

from implicit_conv.errors import install

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings along

ROOT = Path(__file__).parents[2]
MODULES = sorted({*(ROOT / "implicit_conv").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")})
REQUIREMENT = re.compile(r"^([\w-]+)(?:\[([\w,]+)\])?(.*)$")
STATED = re.compile(r"[A-Za-z][\w-]+(?:\[[\w,]+\])?>=\d[\d.]*(?:,<\d[\d.]*)?")
# It writes pages of a checkout, which name files of it.
WRITES_PAGES = ROOT / "implicit_conv/tma/show/gallery.py"


def parts(requirement):
    """(name, extras, versions) of a requirement."""
    name, extras, versions = REQUIREMENT.match(requirement).groups()
    return name.lower(), set(extras.split(",") if extras else ()), versions


def words(path):
    """The strings of a module that are no docstrings; parts of one f-string are joined by {}."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes, docstrings, inner = list(ast.walk(tree)), set(), set()
    for node in nodes:
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            inner |= {id(value) for value in node.values}
            yield "".join(getattr(value, "value", "{}") for value in node.values
                          if not isinstance(value, ast.FormattedValue))  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings | inner:
                yield node.value


@functools.cache
def all_words():
    """(module, string) of all modules."""
    return [(path, word) for path in MODULES if path != WRITES_PAGES for word in words(path)]


def test_versions_in_hints_are_those_of_the_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    known = [parts(requirement) for listed in lists for requirement in listed]
    stated = {found for _, word in all_words() for found in STATED.findall(word)}
    assert len(stated) >= 10
    for requirement in stated:
        name, extras, versions = parts(requirement)
        assert any(
            (name, versions) == (other, range_) and extras <= more for other, more, range_ in known
        ), requirement


def test_no_message_sends_to_a_checkout():
    lost = [
        f"{path}: {word}"
        for path, word in all_words()
        if re.search(r"checkout|install '?\.\[|\bdocs/|\.md\b|CONTRIBUTING", word)
    ]
    assert not lost


def test_pages_are_named_by_their_titles():
    titles = {
        path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        for path in (ROOT / "docs").rglob("*.md")
    }
    texts = (re.sub(r"\s+", " ", path.read_text(encoding="utf-8")) for path in MODULES)
    named = [found for text in texts for found in re.findall(r'page (?:" \')?"([^"]+)"', text)]
    assert len(named) >= 5
    assert set(named) <= titles


def test_the_command_is_that_of_the_environment(monkeypatch, tmp_path):
    """It installs where the package is imported from, whatever stands first on the path."""
    wanted = ["install", "scipy>=1.11", "numba-cuda[cu13]>=0.30,<1", "cupy"]
    (tmp_path / "pip").write_text("#!/bin/sh\n")
    (tmp_path / "pip").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shlex.split(install(*wanted[1:])) == [sys.executable, "-m", "pip", *wanted]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert shlex.split(install(*wanted[1:])) == ["pip", *wanted]
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a folder" / "python"))
    assert shlex.split(install("cupy"))[0] == sys.executable


@pytest.mark.parametrize(
    ("library", "command", "named"),
    [
        ("matplotlib", ["demo"], ["matplotlib>=3.8", "Pillow>=10"]),
        ("PIL", ["demo"], ["matplotlib>=3.8", "Pillow>=10"]),
        ("matplotlib", ["draw", "--example", "ptx-18", "--out", "x.svg"], ["matplotlib>=3.8"]),
        ("matplotlib", ["draw", "--gallery", "pictures"], ["matplotlib>=3.8"]),
        ("torch", ["bench", "--against", "torch"], ["torch>=2.13"]),
        ("scipy", ["bench", "--against", "scipy"], ["scipy>=1.11"]),
    ],
)
def test_a_command_without_its_library_says_what_to_install(library, command, named, tmp_path):
    """The library is hidden, whether it is installed or not."""
    code = f"""
import importlib.util, sys
sys.modules[{library!r}] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {library!r} else find(name, *rest)
from implicit_conv.tools.cli import main
sys.exit(main({command!r}))
"""
    done = run_python("-c", code, folder=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.endswith("pip install " + " ".join(f'"{name}"' for name in named))


def test_the_gpu_without_its_libraries_says_what_to_install():
    code = """
import sys
sys.modules["cuda"] = sys.modules["cuda.bindings"] = None
import numpy as np
import implicit_conv
from implicit_conv.gpu.cuda.driver import PACKAGES
try:
    implicit_conv.conv2d(np.ones((1, 8, 9, 9), "f4"), np.ones((8, 8, 3, 3), "f4"), device="cuda")
except implicit_conv.PlanError as error:
    print(str(error).endswith("pip install " + " ".join(f'"{name}"' for name in PACKAGES[13])))
"""
    done = run_python("-c", code)
    assert done.stdout.strip() == "True"
