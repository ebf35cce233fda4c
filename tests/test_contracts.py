"""The contracts of pyproject.toml forbid all that their names say: imports that they forbid are
planted in a copy of the tree, and found.
"""

import re
import shutil
import subprocess
import sys

import pytest
from processes import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
MOST_BY_HAND = 10
LEAVES = ("ptx", "kernels")  # each forbids all other modules of the package
PLANTED = [  # (module, what it must not import)
    ("implicit_conv.kernels.walk", "implicit_conv.timing"),
    ("implicit_conv.kernels.gpu.ring", "implicit_conv.ptx"),
    ("implicit_conv.kernels.cpu.emit.vector", "implicit_conv.kernels.gpu.ring"),
    ("implicit_conv.kernels.geometry", "implicit_conv.problem"),
    ("implicit_conv.ptx.errors", "implicit_conv.timing"),
    ("implicit_conv.api", "implicit_conv.testing"),
    ("implicit_conv.plan", "implicit_conv.cpu.engine"),
    ("implicit_conv.cpu.runner", "implicit_conv.gpu.engine"),
    ("implicit_conv.cpu.engine", "implicit_conv.cpu.methods.winograd"),
    ("implicit_conv.cpu.methods.winograd", "implicit_conv.cpu.methods.depthwise"),
    ("implicit_conv.tools.bench", "perf.rival"),
    ("implicit_conv.api", "perf.rival"),
    ("implicit_conv.kernels.cpu.tile.load", "numba"),
    ("implicit_conv.kernels.cpu.gemm.operator", "llvmlite"),
    ("implicit_conv.signal", "torch"),
    ("implicit_conv.blocks", "numpy"),
]


def modules():
    """The modules and packages directly below implicit_conv."""
    package = ROOT / "implicit_conv"
    files = {path.stem for path in package.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in package.glob("*/__init__.py")}


def test_few_places_are_laid_out_by_hand():
    """`fmt: skip` is for tables of numbers that the formatter would pull apart."""
    paths = [*(ROOT / "kernels").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    paths += [path for name in ("implicit_conv", "perf") for path in (ROOT / name).rglob("*.py")]
    words = re.compile(r"#\s*fmt:\s*" + "(skip|off)")
    found = {path: len(words.findall(path.read_text())) for path in {p.resolve() for p in paths}}
    by_hand = {str(path.relative_to(ROOT)): count for path, count in found.items() if count}
    assert 0 < sum(by_hand.values()) <= MOST_BY_HAND, by_hand


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_forbids_all_other_modules(leaf):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("source_modules") == [f"implicit_conv.{leaf}"]
    )
    forbidden = {f"implicit_conv.{name}" for name in modules() - {leaf}} | {"perf"}
    assert set(contract["forbidden_modules"]) == forbidden


@pytest.mark.slow
def test_imports_that_contracts_forbid_are_found(tmp_path):
    """The link of the checkout is resolved, so that a copy of `kernels` is read."""
    pytest.importorskip("importlinter", reason="pip install '.[lint]'")
    for folder in ("implicit_conv", "perf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.json"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert linted(tmp_path) == (0, [])
    for importer, module in PLANTED:
        with (tmp_path / f"{importer.replace('.', '/')}.py").open("a") as text:
            text.write(f"\n\ndef planted():\n    import {module}\n")
    code, broken = linted(tmp_path)
    assert code == 1
    for planted in PLANTED:
        assert any(all(name in line for name in planted) for line in broken), planted


def linted(folder):
    """(the exit status of lint-imports, its lines about imports)."""
    command = (
        "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts:" in done.stdout, done.stdout + done.stderr
    return done.returncode, [line for line in done.stdout.splitlines() if " -> " in line]
