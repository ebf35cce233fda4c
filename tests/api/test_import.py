"""Importing the package is light: no compiler, no rival, no drawing library."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings along

ROOT = Path(__file__).parents[2]


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
plan.trace()  # explain measures the rate of FMAs, whose code it compiles
print("implicit_conv.kernels.cpu.operator" in sys.modules, "numba" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False False"


def test_names_are_complete():
    import implicit_conv

    for name in implicit_conv.__all__:
        assert getattr(implicit_conv, name) is not None
    public = {name for name in dir(implicit_conv) if not name.startswith("__")}
    assert public == {*implicit_conv.__all__, *implicit_conv._DOORS}


@pytest.mark.parametrize("name", ["gaussian_filter", "convolve", "enable"])
def test_a_name_of_another_library_is_told_its_door(name):
    import implicit_conv

    with pytest.raises(AttributeError, match=f"no attribute '{name}'") as caught:
        getattr(implicit_conv, name)
    doors = re.findall(r"implicit_conv\.\w+", str(caught.value))
    assert any(name in dir(importlib.import_module(door)) for door in doors)


def test_all_names_are_imported_without_other_libraries():
    """``import *`` must work where neither scipy nor torch is installed."""
    code = """
import sys
from implicit_conv import *
print(sorted({"scipy", "torch", "dask", "cubed", "jax"} & set(sys.modules)))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_every_package_is_installed():
    """Packages are listed in pyproject.toml: a search would miss what stands behind the link."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("implicit_conv/**/*.py")}
    folders = {folder for folder in folders if "kernels" not in folder.parts}
    folders |= {
        "implicit_conv" / path.parent.relative_to(ROOT) for path in ROOT.glob("kernels/**/*.py")
    }
    assert set(settings["packages"]) == {".".join(folder.parts) for folder in folders}


def test_all_files_that_are_no_modules_are_installed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {path for path in ROOT.glob("implicit_conv/**/*") if path.is_file()}
    found = {path for path in found if path.suffix not in (".py", ".pyc")}
    installed = {
        path
        for package, patterns in settings["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    assert found == installed != set()


def contents(folder):
    """The bytes of each file below a folder, caches of Python left out."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_an_editable_install_shows_the_package_alone():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    (folder,) = settings["package-dir"].values()
    # Installing from a checkout leaves a folder of its own notes beside the link.
    (shown,) = (path for path in (ROOT / folder).iterdir() if path.suffix != ".egg-info")
    package = ROOT / "implicit_conv"
    assert shown.name == "implicit_conv"
    if shown.is_symlink():
        assert shown.resolve() == package
    else:  # a source distribution has a copy in place of the link
        assert (ROOT / "PKG-INFO").exists()
        assert contents(shown) == contents(package) != {}


@pytest.mark.parametrize("door", ["cubed", "dask", "ndimage", "signal"])
def test_a_door_without_its_library_says_what_to_install(door):
    """The library is hidden, whether it is installed or not."""
    library = {"ndimage": "scipy", "signal": "scipy"}.get(door, door)
    code = f"""
import sys
sys.modules["{library}"] = None
import implicit_conv.{door}
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: implicit_conv.{door} needs {library} ")
    assert f'pip install "{library}' in last


def test_the_version_is_one():
    import implicit_conv

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)[1]
    assert implicit_conv.__version__ == project["version"] == citation


EVERYWHERE = """
import contextlib, inspect, io, sys
import implicit_conv
for name in ("cubed", "dask", "scipy", "torch"):
    sys.modules[name] = None
found = dict(inspect.getmembers(implicit_conv))
page = io.StringIO()
with contextlib.redirect_stdout(page):
    help(implicit_conv)
print("conv2d" in found, "cubed" in found, hasattr(implicit_conv, "ndimage"))
print("A name of the package" if "conv3d_weight_grad" in page.getvalue() else page.getvalue())
try:
    implicit_conv.dask
except AttributeError as error:
    print(error)
try:
    from implicit_conv import dask
except ImportError as error:
    print(error)
"""


def test_help_and_inspect_need_no_library_of_a_door():
    result = subprocess.run(
        [sys.executable, "-c", EVERYWHERE], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    found, page, attribute, imported = result.stdout.splitlines()
    assert found == "True False False"
    assert page == "A name of the package"
    assert attribute == imported
    assert attribute.startswith("implicit_conv.dask needs dask ")


@pytest.mark.parametrize(
    ("module", "name", "near"),
    [
        ("implicit_conv", "Conv2d", "conv2d"),
        ("implicit_conv", "conv_transposed2d", "conv_transpose2d"),
        ("implicit_conv.ndimage", "gausian_filter", "gaussian_filter"),
        ("implicit_conv.signal", "convolv", "convolve"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_one(module, name, near):
    with pytest.raises(AttributeError, match=f"did you mean '{near}'"):
        getattr(importlib.import_module(module), name)


def test_a_python_without_its_lock_is_refused():
    code = "import sys; sys._is_gil_enabled = lambda: False; import implicit_conv"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode and "ImportError: implicit_conv needs the global" in result.stderr
