"""The contracts of pyproject.toml forbid all that their names say: imports that they forbid are
planted in a copy of the tree, and found.
"""

import ast
import re
import shutil
import subprocess
import sys

import pytest
from processes import ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
MOST_BY_HAND = 10
LEAVES = {"ptx": set(), "kernels": {"process"}}  # and what they import of the package
PLANTED = [  # (module, what it must not import)
    ("implicit_conv.arrays.arrays", "implicit_conv.ptx"),
    ("implicit_conv.blocks", "numpy"),
    ("implicit_conv.cpu.candidates.candidate", "implicit_conv.cpu.plan.planner"),
    ("implicit_conv.cpu.engines.engine", "implicit_conv.cpu.methods.winograd"),
    ("implicit_conv.cpu.engines.executor", "implicit_conv.gpu.run.engine"),
    ("implicit_conv.cpu.methods.im2col", "implicit_conv.cpu.methods.gemm_tilings"),
    ("implicit_conv.cpu.methods.winograd", "implicit_conv.cpu.engines.engine"),
    ("implicit_conv.cpu.methods.winograd", "implicit_conv.cpu.methods.depthwise"),
    ("implicit_conv.cpu.run.call", "implicit_conv.kernels.cpu.emit.vector"),
    ("implicit_conv.gpu.plan.planner", "implicit_conv.gpu.run.engine"),
    ("implicit_conv.gpu.run.engine", "implicit_conv.cpu.plan.planner"),
    ("implicit_conv.kernels.geometry", "implicit_conv.kernels.gpu.ring"),
    ("implicit_conv.kernels.cpu.emit.vector", "implicit_conv.kernels.gpu.ring"),
    ("implicit_conv.kernels.cpu.gemm.layout", "numba"),
    ("implicit_conv.kernels.cpu.gemm.operator", "implicit_conv.kernels.cpu.emit.vector"),
    ("implicit_conv.kernels.cpu.gemm.operator", "implicit_conv.kernels.cpu.gemm.compiled.fprop"),
    ("implicit_conv.kernels.cpu.gemm.operator", "llvmlite"),
    (
        "implicit_conv.kernels.cpu.planar_depthwise.compiled",
        "implicit_conv.kernels.cpu.winograd.layout",
    ),
    ("implicit_conv.kernels.cpu.runtime.call", "implicit_conv.kernels.cpu.gemm.compiled.fprop"),
    ("implicit_conv.kernels.cpu.tile.compiled.load", "implicit_conv.kernels.cpu.operator"),
    ("implicit_conv.kernels.cpu.tile.compiled.load", "numba"),
    ("implicit_conv.kernels.geometry", "implicit_conv.kernels.cpu.operator"),
    ("implicit_conv.kernels.geometry", "implicit_conv.problem.problem"),
    ("implicit_conv.kernels.gpu.ring", "implicit_conv.kernels.cpu.emit.vector"),
    ("implicit_conv.kernels.gpu.ring", "implicit_conv.ptx"),
    ("implicit_conv.kernels.walk", "implicit_conv.timing"),
    ("implicit_conv.ndimage.filters", "implicit_conv.cpu.engines.engine"),
    ("implicit_conv.ndimage.filters", "implicit_conv.kernels.cpu.runtime.pool"),
    ("implicit_conv.operators.conv", "implicit_conv.kernels.cpu.gemm.compiled.fprop"),
    ("implicit_conv.operators.conv", "implicit_conv.testing"),
    ("implicit_conv.operators.conv", "perf.rival"),
    ("implicit_conv.problem.problem", "implicit_conv.arrays.arrays"),
    ("implicit_conv.process.cache", "implicit_conv.kernels.sources"),
    ("implicit_conv.process.disk", "implicit_conv.kernels.cpu.ceilings.operator"),
    ("implicit_conv.process.preparation", "implicit_conv.errors"),
    ("implicit_conv.ptx.errors", "implicit_conv.timing"),
    ("implicit_conv.ptx.run", "implicit_conv.kernels"),
    ("implicit_conv.signal", "implicit_conv.cpu.engines.image_filters"),
    ("implicit_conv.signal", "implicit_conv.ndimage"),
    ("implicit_conv.signal", "torch"),
    ("implicit_conv.testing.draw", "implicit_conv.tools.bench"),
    ("implicit_conv.testing.gpu.problems", "implicit_conv.tools.bench"),
    ("implicit_conv.tma.maps.limits", "implicit_conv.tma.show.figure"),
    ("implicit_conv.tma.maps.maps", "implicit_conv.gpu.run.engine"),
    ("implicit_conv.tma.run.simulate", "implicit_conv.cpu.engines.engine"),
    ("implicit_conv.tma.run.simulate", "implicit_conv.kernels.cpu.operator"),
    ("implicit_conv.tools.bench", "perf.rival"),
    ("implicit_conv.torch.steps", "implicit_conv.cpu.plan.planner"),
    ("implicit_conv.torch.steps", "implicit_conv.cpu.run.call"),
    ("implicit_conv.torch.steps", "implicit_conv.dask"),
    ("implicit_conv.torch.steps", "implicit_conv.kernels.cpu.operator"),
    ("implicit_conv.torch.steps", "implicit_conv.kernels.cpu.runtime.openmp"),
]
# Parts of a family of kernels are named by strings, which no contract sees: the folders of
# kernels/cpu whose parts an operator of another folder may name.
PART = re.compile(r"\.(\w+)((?:\.\w+)*):(\w*[^\W_])")
SHARED = {"runtime", "tile"}
BORROWED = {
    ("planar_gemm", "few_outputs"),
    ("winograd", "gemm"),
    ("shifted_rows", "planar_depthwise"),
    ("strided_depthwise", "depthwise"),
    ("strided_depthwise", "planar_depthwise"),
}


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
    forbidden = {f"implicit_conv.{name}" for name in modules() - {leaf} - LEAVES[leaf]}
    assert set(contract["forbidden_modules"]) == forbidden | {"perf"}


def parts():
    """(the file that names a part, the part's folder, module and maker), of kernels and engines."""
    for path in [*(ROOT / "kernels").rglob("*.py"), *(ROOT / "implicit_conv/cpu").rglob("*.py")]:
        texts = (
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
        )
        for found in filter(
            None, (PART.fullmatch(text) for text in texts if isinstance(text, str))
        ):
            folder, module, maker = found.groups()
            yield path.relative_to(ROOT), folder, f"{folder}{module}", maker


def test_parts_named_by_strings_exist_and_are_compiled_code():
    found = list(parts())
    assert len(found) > 40
    for path, _, module, maker in found:
        source = ROOT / "kernels" / "cpu" / f"{module.replace('.', '/')}.py"
        assert "compiled" in re.split(r"[._]", module), (path, module)
        made = re.search(rf"^(def {maker}\(|{maker} = )", source.read_text(), re.MULTILINE)
        assert made, (path, module, maker)


def test_a_family_names_parts_of_its_own_and_shared_ones():
    for path, folder, module, _ in parts():
        if path.parts[:2] != ("kernels", "cpu") or len(path.parts) < 4:
            continue
        family = path.parts[2]
        allowed = folder in SHARED | {family} or (family, folder) in BORROWED
        assert allowed, f"{path} names a part of {module}"


@pytest.mark.slow
def test_imports_that_contracts_forbid_are_found(tmp_path):
    """The link of the checkout is resolved, so that a copy of `kernels` is read."""
    pytest.importorskip("importlinter", reason="pip install '.[lint]'")
    for folder in ("implicit_conv", "perf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.json"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert linted(tmp_path) == (0, [])
    for importer, module in PLANTED:
        path = tmp_path / f"{importer.replace('.', '/')}.py"
        path = path if path.exists() else path.with_suffix("") / "__init__.py"
        with path.open("a") as text:
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
