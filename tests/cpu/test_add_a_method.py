"""The page "Add a method": its code is installed as the page says, and its tests are run."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
from conformance import Suite, conform
from method_page import FILES, ROOT, TEXT
from tight_machine import tight_machine

from implicit_conv import clear_plan_cache, plan_conv2d
from implicit_conv.cpu import methods
from implicit_conv.cpu.plan import planner
from implicit_conv.kernels import cpu as kernels

TABLE = FILES["implicit_conv/cpu/plan/planner.py"].splitlines()
TESTS = next(path for path in FILES if path.startswith("tests/"))
CANDIDATE, ROWS = re.findall(r"^```text\n(.*?)\n```$", TEXT, re.DOTALL | re.MULTILINE)
SHAPES = (2, 1, 80, 70), (5, 1, 1, 1)  # of the page's snippet


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's test module; its other files are importable, and its method is in METHODS."""
    folder = tmp_path_factory.mktemp("page")
    for path, source in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source, encoding="utf-8")
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for package, path in ((methods, "implicit_conv/cpu/methods"), (kernels, "kernels/cpu")):
            patch.setattr(package, "__path__", [*package.__path__, str(folder / path)])
        patch.syspath_prepend(str((folder / TESTS).parent))
        (added,) = (line for line in TABLE if line.startswith("+from "))
        _, module, _, name = added.split()
        method = getattr(importlib.import_module(module), name)
        patch.setattr(planner, "METHODS", (*planner.METHODS, method))
        clear_plan_cache()
        yield importlib.import_module(Path(TESTS).stem), method
    clear_plan_cache()
    for name in set(sys.modules) - before:
        if "outer_product" in name:
            del sys.modules[name]


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", FILES[TESTS], re.MULTILINE))
def test_its_tests_pass(page, name, request, force_method):
    module, method = page
    force_method(method)
    function = getattr(module, name)
    function(
        **{
            given: request.getfixturevalue(given)
            for given in inspect.signature(function).parameters
        }
    )


def test_it_conforms(page):
    with tight_machine():
        conform(Suite(page[1]).trials(1))


def test_explain_prints_what_it_shows(page, force_method):
    assert CANDIDATE in " ".join(plan_conv2d(*SHAPES).explain().split())
    force_method(page[1])
    clear_plan_cache()
    assert set(ROWS.splitlines()) <= set(plan_conv2d(*SHAPES).explain().splitlines())
    clear_plan_cache()


def test_it_adds_lines_to_the_table_that_is_there():
    source = (ROOT / "implicit_conv/cpu/plan/planner.py").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in TABLE if line.startswith(" ")} <= set(source)
    assert sum(line.startswith("+") for line in TABLE) == 2


def test_a_method_touches_five_files():
    assert len(FILES) == 5
    for path in FILES:
        assert f"| `{path}` |" in TEXT


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\((\.\./[^)]+)\)", TEXT)
    assert links
    for link in links:
        assert (ROOT / "docs/contributing" / link).exists(), link
