"""Every public name is in the reference, and the examples of docstrings run."""

import ast
import doctest
import functools
import importlib
import inspect
import re
import sys

import pytest
from processes import ROOT

MODULES = ("", "blocks", "cubed", "dask", "jax", "ndimage", "ptx", "signal", "tma", "torch")
REFERENCE = ROOT / "docs/reference"
EXEMPT = "numpydoc_validation_exclude"  # of docs/conf.py


@functools.cache
def exempt_patterns():
    """Of names that the build of the site asks neither for parameters nor for an example."""
    for line in ast.parse((ROOT / "docs/conf.py").read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == EXEMPT:
            patterns = ast.literal_eval(line.value)
    return patterns


def exempt(module, name):
    """Whether the build exempts a name."""
    return any(re.search(pattern, f"{module}.{name}") for pattern in exempt_patterns())


def public_names():
    """(module, name) of all that users may import."""
    for module in MODULES:
        path = f"implicit_conv.{module}".rstrip(".")
        try:
            found = importlib.import_module(path)
        except ImportError:  # a door without its library
            continue
        names = getattr(found, "__all__", None) or [
            name
            for name, value in vars(found).items()
            if getattr(value, "__module__", None) == path and not name.startswith("_")
        ]
        neighbour = sys.modules.get(path.replace("implicit_conv", "scipy"))
        handed_on = set(getattr(neighbour, "__all__", ())) - set(getattr(found, "served", tuple)())
        yield from (
            (path, name)
            for name in names
            if name not in handed_on and not inspect.ismodule(getattr(found, name))
        )


def test_the_reference_has_every_public_name():
    listed = set()
    for page in REFERENCE.glob("*.md"):
        for module, names in re.findall(
            r"currentmodule:: ([\w.]+)\n\n\.\. autosummary::\n(?:   :.*\n)+\n((?:   \w+\n)+)",
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


OURS = sorted(  # without functions whose documentation is scipy's
    (module, name)
    for module, name in public_names()
    if module != "implicit_conv.ndimage" or name.endswith("patch")
)
GIVEN = sorted(
    (module, name)
    for module, name in public_names()
    if exempt(module, name) and not name.endswith("Error")
)


@pytest.mark.parametrize(("module", "name"), GIVEN)
def test_what_users_are_given_documents_its_fields(module, name):
    value = getattr(importlib.import_module(module), name)
    _, _, section = inspect.getdoc(value).partition("\nAttributes\n----------\n")
    section = re.split(r"\n\n(?=\w)", section)[0]
    heads = re.findall(r"^(\w[\w, ]*)", section, re.MULTILINE)
    documented = {part.strip() for head in heads for part in head.split(",")}
    assert set(inspect.signature(value).parameters) <= documented


def test_the_build_exempts_little():
    """Its patterns are for whole names: one that is too wide would let functions through."""
    values = [getattr(importlib.import_module(module), name) for module, name in GIVEN]
    assert len(values) > 8
    assert all(inspect.isclass(value) for value in values)


@pytest.mark.parametrize(("module", "name"), OURS)
def test_the_example_runs(module, name):
    if module in ("implicit_conv.jax", "implicit_conv.torch"):  # imported when a function is called
        library = module.rpartition(".")[2]
        pytest.importorskip(library, reason=f"{library} is missing: pip install -e '.[{library}]'")
    value = getattr(importlib.import_module(module), name)
    (test,) = doctest.DocTestFinder(exclude_empty=False, recurse=False).find(value, name, globs={})
    assert test.examples or exempt(module, name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert not runner.failures
