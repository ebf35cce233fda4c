"""What .ci/run promises: no step is red, late or skipped without being told, and types are read the
same wherever an optional library is installed.
"""

import ast
import os
import re
import shutil
import subprocess
import sys

import pytest
from processes import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")


def imported_packages():
    """The packages of others that the wheel and perf import."""
    paths = [path for name in ("implicit_conv", "perf") for path in (ROOT / name).rglob("*.py")]
    paths += (ROOT / "kernels").rglob("*.py")
    trees = (ast.walk(ast.parse(path.read_text())) for path in paths)
    nodes = [node for tree in trees for node in tree]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    ours = {"implicit_conv", "perf", *sys.stdlib_module_names}
    return {name.partition(".")[0] for name in names} - ours


@pytest.mark.slow
def test_mypy_is_told_of_every_package_that_may_be_missing_or_typed():
    """Else mypy is red where one is missing, or where one is installed that has types."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    named = {
        module.removesuffix(".*")
        for override in settings
        if override.get("ignore_missing_imports")
        for module in override["module"]
    }
    imported = imported_packages()
    assert {"torch", "scipy", "cv2", "matplotlib"} <= imported
    assert imported - {"numpy"} <= named
    skipped = [override for override in settings if override.get("follow_imports") == "skip"]
    assert all(override["follow_imports_for_stubs"] for override in skipped)


FAKE = """
set -euo pipefail
. .ci/steps
good() { echo '== 3 passed, 2 skipped in 0.10s =='; echo '1 passed in 0.20s'; }
broken() { false; echo 'this is reached by no step'; }
wheel() { skip "the wheels of ours could not be installed"; }
parts() { echo '2 passed in 1.00s'; skip "one"; bash -c 'echo "Skipped: two"'; }
empty() {
    echo 'SKIPPED [2] tests/a.py:3: needs ours'
    echo 'SKIPPED [1] tests/b.py:3: needs ours'
    echo '=== 3 skipped, 5 deselected in 0.03s ==='
}
lasting() { sleep 1.1; }
steps=(
    "good 1 Tests that pass"
    "broken 1 A command that fails"
    "wheel 1 Nothing that can be run"
    "parts 1 Something that cannot be run"
    "empty 1 Tests that are all skipped"
    "lasting 0.005 More than no second"
)
"""


def run_fake(*arguments, total=45, code="", folder=ROOT, **environment):
    """(status, rows of the table by step, all output) of .ci/steps with the steps of FAKE, and with
    `code` after them.
    """
    if not (bash := shutil.which("bash")):
        pytest.skip("needs bash")
    script = f'{FAKE}{code}\nrun_steps {total} "$@"'
    done = subprocess.run(
        [bash, "-c", script, "run", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    _, _, table = done.stdout.rpartition("step ")
    rows = re.findall(r"^(\w+) +(\w+) +(\d+) +(\d+) (.{7}) (.{8}) *(.*(?:\n .*)*)", table, re.M)
    return done.returncode, {row[0]: tuple(map(str.strip, row[1:])) for row in rows}, done


def test_the_steps_after_one_that_fails_run_and_the_end_is_red():
    status, rows, done = run_fake("broken", "good")
    assert status == 1
    assert rows["broken"][0] == "failed"
    assert (rows["good"][0], rows["good"][3:5]) == ("ran", ("4", "2"))
    assert "reached by no step" not in done.stdout


def test_a_step_that_passes_is_green_even_if_it_must_not_skip():
    status, rows, _ = run_fake("--strict", "good")
    assert status == 0
    assert set(rows) == {"good", "total"}


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("wheel", "the wheels of ours could not be installed"),
        ("parts", "one two"),
        ("empty", "pytest skipped all tests; needs ours"),
    ],
)
def test_what_did_not_run_is_named_and_red_where_it_must_run(step, why):
    status, rows, _ = run_fake(step)
    assert (status, rows[step][0]) == (0, "skipped")
    assert " ".join(rows[step][5].split()) == why
    status, strict, _ = run_fake(step, "--strict")
    assert status == 1
    assert strict[step][0] == "skipped"


def test_a_step_has_its_minutes_and_a_slow_machine_has_more_of_them():
    status, rows, _ = run_fake("lasting")
    assert (status, rows["lasting"][0], rows["lasting"][2]) == (1, "late", "0")
    status, rows, _ = run_fake("lasting", SLOWNESS="2000")
    assert (status, rows["lasting"][0]) == (0, "ran")
    status, rows, _ = run_fake("lasting", total=0, SLOWNESS="2000")
    assert (status, rows["lasting"][0], rows["total"][0]) == (1, "ran", "late")


def test_all_steps_run_without_names_and_an_unknown_one_runs_none():
    status, rows, _ = run_fake()
    assert status == 1
    assert list(rows) == ["good", "broken", "wheel", "parts", "empty", "lasting", "total"]
    status, rows, done = run_fake("good", "typo")
    assert (status, rows) == (2, {})
    assert "No step is named typo. There are: good broken" in done.stderr


def test_pytest_is_understood(tmp_path):
    """The lines that .ci/steps reads are those that pytest writes."""
    (tmp_path / "test_absent.py").write_text(
        "import pytest\n\n\ndef test_absent():\n    pytest.skip('without ours')\n"
    )
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    run = f"{sys.executable} -m pytest -p no:cacheprovider -rfEs test_absent.py"
    status, rows, _ = run_fake("good", code=f"good() {{ {run}; }}", folder=tmp_path)
    assert (status, rows["good"][0], rows["good"][3:5]) == (0, "skipped", ("0", "1"))
    assert rows["good"][5] == "pytest skipped all tests; without ours"


def test_every_step_is_a_function():
    text = (ROOT / ".ci" / "run").read_text()
    names = re.findall(r'^    "(\w+) \d+ \w', text, re.M)
    assert len(names) == len(set(names)) > 10
    assert set(names) <= set(re.findall(r"^(\w+)\(\) \{", text, re.M))
