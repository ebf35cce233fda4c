"""Every public name is in the reference, and the examples of docstrings run."""

import doctest
import importlib
import inspect
import re

import pytest
from processes import ROOT

MODULES = ("", "blocks", "ndimage", "ptx", "signal", "tma", "torch")
REFERENCE = ROOT / "docs/reference"


def public_names():
    """(module, name) of all that users may import."""
    for module in MODULES:
        path = f"implicit_conv.{module}".rstrip(".")
        try:
            found = importlib.import_module(path)
        except ModuleNotFoundError:  # a door without its library
            continue
        names = getattr(found, "__all__", None) or [
            name
            for name, value in vars(found).items()
            if getattr(value, "__module__", None) == path and not name.startswith("_")
        ]
        yield from ((path, name) for name in names if not inspect.ismodule(getattr(found, name)))


def test_the_reference_has_every_public_name():
    listed = set()
    for page in REFERENCE.glob("*.md"):
        for module, names in re.findall(
            r"currentmodule:: ([\w.]+)\n\n\.\. autosummary::\n.*\n\n((?:   \w+\n)+)",
            page.read_text(encoding="utf-8"),
        ):
            listed |= {(module, name) for name in names.split()}
        listed |= {  # functions whose documentation is scipy's: links in a table
            ("implicit_conv.ndimage", name)
            for name in re.findall(r"scipy\.ndimage\.(\w+)\.html", page.read_text("utf-8"))
        }
    names = set(public_names())
    modules = {module for module, _ in names}
    assert {each for each in listed if each[0] in modules} == names


@pytest.mark.parametrize(("module", "name"), sorted(public_names()))
def test_the_example_runs(module, name):
    value = getattr(importlib.import_module(module), name)
    if module.endswith("ndimage") and not name.endswith("patch"):
        pytest.skip("its documentation is scipy's")
    for test in doctest.DocTestFinder(recurse=False).find(value, name, globs={}):
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test)
        assert not runner.failures
