"""Comments, docstrings and the pages for contributors name files and definitions that exist."""

import ast
import functools
import re

import pytest
from processes import ROOT

SOURCES = ("implicit_conv", "kernels", "perf")
TREE = (*SOURCES, "tests", "docs", ".ci", ".github")
PAGES = sorted((ROOT / "docs/contributing").glob("*.md"))
WRITTEN = re.compile(r"^### `(\S+)`$", re.MULTILINE)  # files that a page has its reader write
PATH = re.compile(r"(?<![\w/.:*<{-])(?:\.\./)*((?:[\w.-]+/)*[\w-]+\.(?:py|md))\b")
COMMENT = re.compile(r"^(?:.*[ \t])?#[ \t]+(.*)$", re.MULTILINE)
# `name`, `a.name`, a.name or NAME; other words after "see" are English.
TERM = r"(?:`([\w.]+)`|([A-Za-z_]\w*(?:\.\w+)+|(?!PTX|CUDA)[A-Z][A-Z0-9_]{2,})(?![\w/]))"
SEE = re.compile(rf"\b[Ss]ee {TERM}(?:(?:, | and |, and ){TERM})*")
FOREIGN = ("scipy.",)  # libraries to whose names comments lead
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def modules():
    """(path, text, tree) of each module; the link implicit_conv/kernels is not followed."""
    paths = {path.relative_to(ROOT) for folder in SOURCES for path in (ROOT / folder).rglob("*.py")}
    paths = sorted(path for path in paths if path.parts[:2] != ("implicit_conv", "kernels"))
    texts = [(path, (ROOT / path).read_text(encoding="utf-8")) for path in paths]
    return [(path, text, ast.parse(text)) for path, text in texts]


def prose(text, tree):
    """The comments and docstrings of a module, each as one line."""
    yield " ".join(COMMENT.findall(text))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            yield " ".join((ast.get_docstring(node) or "").split())


def endings(parts, joint):
    """A name, and what is left of it without its first parts."""
    return {joint.join(parts[at:]) for at in range(len(parts))}


@functools.cache
def files():
    """Each way to write the path of a file of the tree: from any of its folders on."""
    paths = [*ROOT.glob("*.md"), *(path for name in TREE for path in (ROOT / name).rglob("*.*"))]
    parts = {path.relative_to(ROOT).parts for path in paths}
    return set().union(*(endings(each, "/") for each in parts))


def definitions(body, owner):
    """The classes, functions and other names that statements define, with those of their owners."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (*owner, node.name)
            yield from definitions(node.body, (*owner, node.name))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (n.id for each in targets for n in ast.walk(each) if isinstance(n, ast.Name))
            yield from ((*owner, name) for name in names)
        else:
            for part in ("body", "orelse", "handlers", "finalbody"):
                yield from definitions(getattr(node, part, ()), owner)


@functools.cache
def names():
    """Each way to write the name of a module, or of what it defines."""
    found = set()
    for path, _, tree in modules():
        module = path.with_suffix("").parts
        module = module[:-1] if module[-1] == "__init__" else module
        for each in (module, *definitions(tree.body, module)):
            found |= endings(each, ".")
    return found


def lost(text, written=()):
    """The paths and names of a text that lead nowhere."""
    paths = set(PATH.findall(re.sub(r"https?://\S+", "", text)))
    seen = {name for found in SEE.finditer(text) for name in found.groups() if name}
    seen = {name for name in seen - paths if not name.startswith(FOREIGN)}
    return sorted((paths - files() - set(written)) | (seen - names() - paths))


def test_comments_and_docstrings_lead_somewhere():
    found = {
        str(path): missing
        for path, text, tree in modules()
        if (missing := [each for part in prose(text, tree) for each in lost(part)])
    }
    assert found == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_for_contributors_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    assert lost(text, WRITTEN.findall(text)) == []


def test_stale_guidance_is_found():
    text = "# Costs: see cpu/costs.py, `extents.Window` and `Window`.\nx = 1  # see\n# COSTS\n"
    tree = ast.parse(f'"""See `layout.Window` and runtime/layout.py."""\n{text}')
    found = [each for part in prose(text, tree) for each in lost(part)]
    assert found == ["COSTS", "cpu/costs.py"]
