"""Workflows of GitHub: their commands exist, and they have the least rights and pinned actions."""

import re

import pytest
import yaml
from processes import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

PATHS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CONTENTS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PATHS}
JOBS = [(name, job) for content in CONTENTS.values() for name, job in content["jobs"].items()]
COMMANDS = [step["run"] for _, job in JOBS for step in job["steps"] if "run" in step]
VERSION = re.compile(r"\b3\.\d+\b")


def pythons():
    """The versions of the classifiers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(VERSION.findall("\n".join(project["classifiers"])))


def test_there_are_three():
    assert list(CONTENTS) == ["ci", "other", "release"]


def test_steps_of_ci_exist():
    steps = set(re.findall(r'^    "(\w+) \d+ \w', (ROOT / ".ci/run").read_text(), re.MULTILINE))
    run = [re.search(r"\.ci/run\b([^#&|]*)", command) for command in COMMANDS]
    named = {word for found in run if found for word in found[1].split()} - {"--strict"}
    assert {"readme", "release"} <= named <= steps
    assert any(found and not found[1].strip() for found in run)  # all of them, for every change


def test_other_systems_run_the_test_command_of_readme():
    (command,) = re.findall(
        r"^python3 -m venv .* -m pytest$", (ROOT / "README.md").read_text("utf-8"), re.M
    )
    windows = command.replace("python3 -m", "python -m").replace(".venv/bin/", ".venv/Scripts/")
    assert {command, windows} <= set(COMMANDS)
    assert PATHS[1].read_text(encoding="utf-8").startswith("# Never run here")


@pytest.mark.parametrize("name", CONTENTS)
def test_rights_are_the_least(name):
    """Only the job that publishes has another one, and it runs no code of the tree."""
    assert CONTENTS[name]["permissions"] == {"contents": "read"}
    for job in CONTENTS[name]["jobs"].values():
        assert job["timeout-minutes"] <= 120
        if "permissions" in job:
            assert (name, job["permissions"]) == ("release", {"id-token": "write"})
            assert (job["environment"], job["needs"]) == ("pypi", "build")
            assert all("uses" in step for step in job["steps"])
    assert "secrets." not in (ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")


def test_actions_are_pinned_by_their_major_version():
    used = {step["uses"] for _, job in JOBS for step in job["steps"] if "uses" in step}
    assert len(used) >= 4
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", each)] == []


def test_each_python_of_the_classifiers_is_tried():
    lists = [
        set(step["with"]["python-version"].split())
        for name, job in JOBS
        for step in job["steps"]
        if name in ("all-steps", "build") and "setup-python" in step.get("uses", "")
    ]
    assert lists == [pythons()] * 2
    assert pythons() <= set(CONTENTS["ci"]["jobs"]["pythons"]["strategy"]["matrix"]["python"])
