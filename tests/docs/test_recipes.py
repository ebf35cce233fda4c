"""Recipes of the site: each runs as pasted, and tells the time that perf/recipes.json has of it."""

import json
import os
import re
import subprocess
import sys

import pytest

from perf import recipes

PATHS = sorted(recipes.RECIPES.glob("*.py"))
NEEDS = (  # of the recipes; what a script imports beside them would be a failure
    *("cv2", "dask", "matplotlib", "scipy", "tifffile", "torch", "zarr"),
    *("implicit_conv", "numpy", "PIL"),
)
IMPORT = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
UNMEASURED = {"tiff_stack"}  # newer than the record; the next one empties this
STANDARD = set(sys.stdlib_module_names)
SECONDS = 60  # several times what a recipe takes beside other tests


def test_there_are_recipes():
    assert len(PATHS) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_runs_as_pasted(path, tmp_path):
    text = path.read_text()
    imported = set(IMPORT.findall(text)) - STANDARD
    assert imported <= set(NEEDS)
    for name in sorted(imported):
        pytest.importorskip(name)
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        cwd=tmp_path,
        env={**environment, "MPLBACKEND": "agg", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())  # files of a recipe are gone


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_tells_its_measured_time(path):
    record = json.loads(recipes.RECORD.read_text())
    text = path.read_text()
    assert recipes.renewed(text, recipes.sentence(record, path.stem)) == text


def test_what_is_measured_is_what_the_recipes_define():
    record = json.loads(recipes.RECORD.read_text())
    found = {
        path.stem: re.findall(r"^def with_(\w+)\(\)", path.read_text(), re.M) for path in PATHS
    }
    measured = {name: list(row) for name, row in record["recipes"].items()}
    assert set(found) - set(measured) <= UNMEASURED
    assert measured == {name: found[name] for name in measured}
    assert all(names[0] == recipes.OURS and len(names) > 1 for names in found.values())


def test_a_paragraph_is_renewed_and_its_neighbours_stay():
    text = '"""\nTitle\n"""\n\n# %%\n# **Time** old,\n# and more.\n#\n# A remark.\n'
    assert recipes.renewed(text, "**Time** new.") == text.replace(" old,\n# and more.", " new.")
    with pytest.raises(ValueError, match="begins with"):
        recipes.renewed("# %%\n", "**Time** new.")


def test_beside_other_work_nothing_is_told(monkeypatch, capsys):
    from perf.__main__ import main

    monkeypatch.setattr(recipes, "disturbance", lambda threads: f"others use CPUs, of {threads}")
    monkeypatch.setattr(recipes, "measure_alone", lambda path, rounds: pytest.fail("measured"))
    before = recipes.RECORD.read_bytes()
    assert main(["recipes", "--update"]) == 3
    assert capsys.readouterr().out == "others use CPUs, of 1\n"
    assert recipes.RECORD.read_bytes() == before
