"""No code but a method's own file asks which method a candidate has: it would be a branch that a
new method does not know of.
"""

import ast
from pathlib import Path

import pytest

import implicit_conv
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS
from implicit_conv.cpu.plan.planner import METHODS
from implicit_conv.cpu.plan.weight_gradients import WEIGHT_GRADIENTS

ROOT = Path(implicit_conv.__file__).parent
NAMES = {method.__name__ for method in (*METHODS, *WEIGHT_GRADIENTS, *INPUT_GRADIENTS)}
SOURCES = [path for path in ROOT.rglob("*.py") if path.parent != ROOT / "cpu/methods"]
CALLS = {"isinstance", "issubclass"}


def branches(source):
    """(line, method) of each comparison with the class of a method, or with its name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CALLS:
            asked = node.args[1:]
        elif isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Dict):  # a table by classes is a branch too
            asked = [key for key in node.keys if key is not None]
        else:
            continue
        for part in asked:
            for leaf in ast.walk(part):
                name = getattr(leaf, "id", getattr(leaf, "attr", getattr(leaf, "value", None)))
                if isinstance(name, str) and name in NAMES:
                    yield node.lineno, name


def test_no_module_compares_with_a_method():
    found = {
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in SOURCES
        for line, name in branches(path.read_text(encoding="utf-8"))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(c.method, Winograd)",
        "isinstance(c.method, (Gemm, depthwise.Depthwise))",
        "assert issubclass(kind, methods.planar_depthwise.PlanarDepthwise)",
        "type(c.method) is Im2col",
        "c.method.__class__ == PlanarGemm",
        "type(c.method) in (Gemm, WindowGemm)",
        "type(c.method).__name__ == 'WeightGrad'",
        "match method:\n    case SmallGroups(): pass",
        "match type(method).__name__:\n    case 'FewOutputs': pass",
        "{TransposedGemm: 1}[type(c.method)]",
    ],
)
def test_a_planted_branch_is_found(source):
    assert list(branches(source))


def test_the_table_of_the_planner_is_no_branch():
    assert not list(branches("METHODS = (Gemm, Winograd)\nbest(Gemm(), 'pointwise')"))
