"""The documentation has the current table of evidence, which names every kernel family."""

import re
from pathlib import Path

import pytest

from implicit_conv import plan_conv2d
from implicit_conv.gpu.plan import families
from implicit_conv.gpu.plan.families import (
    FAMILIES,
    GRADIENTS,
    HARDWARE,
    NOT_RUN,
    family_name,
    ladder,
    markdown,
)
from implicit_conv.kernels.gpu.targets import TARGETS
from implicit_conv.tools.cli import main

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table():
    assert markdown() in (ROOT / "docs/how-to/gpu.md").read_text()


def test_the_pages_plan_is_printed(capsys):
    """tests/docs runs all its snippets, where torch is installed."""
    page = (ROOT / "docs/how-to/gpu.md").read_text()
    (snippet,) = re.findall(
        r"```python\n(from implicit_conv import plan_conv2d.*?)```", page, re.DOTALL
    )
    exec(snippet, {})
    assert "TMA im2col::w + mma bfloat16" in capsys.readouterr().out


def test_the_table_names_every_target_of_a_family_once():
    told = [line.split(" | ") for line in markdown().splitlines()[2:]]
    pairs = [(row[0].removeprefix("| "), target) for row in told for target in row[1].split(", ")]
    assert sorted(pairs) == sorted((rung.family, rung.target) for rung in ladder())


def test_info_prints_the_ladder(capsys):
    assert main(["info"]) == 0
    assert "GPU kernels" not in capsys.readouterr().out
    assert main(["info", "--gpu"]) == 0
    printed = capsys.readouterr().out
    for name, _, _, target, *_, hardware in ladder():
        assert any(
            line.split()[:2] == [name, target] and line.endswith(f"hardware {hardware}")
            for line in printed.splitlines()
        )


def test_every_family_has_one_name_and_one_least_target():
    assert list(dict.fromkeys(rung.family for rung in ladder())) == [*FAMILIES, *GRADIENTS]
    for family in (*FAMILIES.values(), *GRADIENTS.values()):
        assert {v.target for v in family.variants} == {family.target}
        assert {family_name(v) for v in family.variants} == {family.name}
        assert family.target in TARGETS


def test_a_run_on_hardware_shows_in_every_table_and_in_explain(monkeypatch):
    ran = "RTX 5090, R580, 2027-01-01"
    made = plan_conv2d((8, 64, 9, 9), (64, 64, 3, 3), "float16", padding=1, device="sm_120")
    assert "not yet run on hardware" in made.explain()
    monkeypatch.setitem(families.HARDWARE, (family_name(made.engine.variant), "sm_120a"), ran)
    assert f"run on {ran}" in made.explain() and "not yet run" not in made.explain()
    (row,) = (line for line in markdown().splitlines() if ran in line)
    assert "| sm_120a |" in row  # other targets have a row without it


@pytest.mark.parametrize("device", ["sm_86", "sm_90", "sm_121"])
def test_explain_tells_each_rung_of_the_table(device):
    """sm_86 runs the code of sm_80, sm_121 that of sm_120."""
    made = plan_conv2d((8, 64, 9, 9), (64, 64, 3, 3), "float16", padding=1, device=device)
    code = {"sm_86": "sm_80", "sm_90": "sm_90a", "sm_121": "sm_120a"}[device]
    name = family_name(made.engine.variant)
    (rung,) = (rung for rung in ladder() if (rung.family, rung.target) == (name, code))
    line = next(line for line in made.explain().splitlines() if line.startswith("evidence"))
    assert all(fact in line for fact in (name, code, *rung[4:]))


def test_nothing_is_claimed_of_hardware_without_a_run():
    """Only on sm_90a has anything run, and there each family but the youngest ones."""
    ran = {(rung.family, rung.target) for rung in ladder() if rung.hardware != NOT_RUN}
    able = {(rung.family, rung.target) for rung in ladder() if rung.target == "sm_90a"}
    volumes = (name for name in FAMILIES if name.startswith("volume"))
    young = {(name, "sm_90a") for name in ("cp_async-words", *volumes, *GRADIENTS)}
    assert ran == set(HARDWARE) == able - young
