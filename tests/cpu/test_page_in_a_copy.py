"""The page "Add a method" in a copy of the tree: its files are written as it says, its own
commands pass, and faults that are planted in its kernel are found by the conformance suite.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest
from method_page import FILES, ROOT, TEXT

PLANNER = "implicit_conv/cpu/plan/planner.py"
CODE = "kernels/cpu/outer_product_compiled.py"
CONFORM = 'python -m pytest -m "slow or not slow" tests/cpu/test_conformance.py -k OuterProduct'
SHORTER = {"-m 'slow or not slow'": "", "--seconds 600": "--seconds 10"}
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if "perf compare" not in line  # it needs two commits
]
FAULTS = {  # (file, what stands there, what stands there instead)
    "rows and columns exchanged": (CODE, "n=n, p=p, q=q, k=k", "n=n, p=q, q=p, k=k"),
    "every item computes all panels": (CODE, "range(first_panel, end_panel)", "range(g.K)"),
    "another part is called": (CODE, "slot=call.load_tile", "slot=call.load_tile + 1"),
}
SAID = {  # what the suite says
    "rows and columns exchanged": "elements are wrong",
    "every item computes all panels": "are written by two work items or more",
    "another part is called": "the process died of",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree with the page's files."""
    folder = tmp_path_factory.mktemp("tree") / "tree"
    unwanted = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=unwanted)
    for path, source in FILES.items():
        if path != PLANNER:
            (folder / path).write_text(source, encoding="utf-8")
    planner = folder / PLANNER
    planner.write_text(added(planner.read_text(encoding="utf-8"), FILES[PLANNER]), encoding="utf-8")
    return folder


def added(source, difference):
    """A file with the lines that a difference adds, each after the line above it."""
    above = ""
    for line in difference.splitlines():
        if line.startswith("+"):
            assert source.count(f"{above}\n") == 1, above
            source = source.replace(f"{above}\n", f"{above}\n{line[1:]}\n")
        above = line[1:]
    return source


def run(command, folder):
    """(exit status, output) of a command of the page."""
    words = command.replace("python -m", f"{sys.executable} -m")
    for long, short in SHORTER.items():
        words = words.replace(long, short)
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": programs}  # as in an environment that is activated
    done = subprocess.run(
        ["bash", "-c", words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_pass(tree, command):
    for tool in re.findall(r"\b(ruff|mypy|lint-imports)\b", command):
        module = tool.replace("lint-imports", "importlinter")
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{tool} is not installed: pip install '.[lint]'")
    code, output = run(command, tree)
    assert code == 0, output[-6000:]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_its_kernel_are_found(tree, fault):
    name, right, wrong = FAULTS[fault]
    path = tree / name
    source = path.read_text(encoding="utf-8")
    assert right in source
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    try:
        code, output = run(CONFORM, tree)
    finally:
        path.write_text(source, encoding="utf-8")
    assert code == 1
    assert re.search(SAID[fault], output), output[-6000:]
