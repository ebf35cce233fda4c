"""Importing the package is light: no compiler, no rival, no drawing library."""

import subprocess
import sys


def test_import_loads_nothing_heavy():
    code = """
import sys
import implicit_conv
heavy = {"numba", "llvmlite", "torch", "matplotlib", "cuda", "hypothesis"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_planning_compiles_nothing():
    code = """
import sys
from implicit_conv import plan_conv2d
plan = plan_conv2d((1, 8, 9, 9), (8, 8, 3, 3))
plan.explain(), plan.trace()
print("numba" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_names_are_complete():
    import implicit_conv

    for name in implicit_conv.__all__:
        assert getattr(implicit_conv, name) is not None
    public = {name for name in dir(implicit_conv) if not name.startswith("__")}
    assert public == set(implicit_conv.__all__)
