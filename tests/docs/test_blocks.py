"""Python blocks of README and of the site run as a reader pastes them: each one alone, in a folder
and a process of its own. One that begins with the comment "continues" follows the block above it.
"""

import re

import pytest
from processes import ROOT, run_python

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
CONTINUES = re.compile(r"^(>>> )?# continues\b")
# Libraries that a test environment may lack. A block that imports another one is wrong.
OPTIONAL = (
    *("astropy", "cubed", "cv2", "dask", "dask_image", "h5py", "jax", "onnx", "scipy", "skimage"),
    *("tensorflow", "torch", "triton", "xarray", "zarr"),
)
# Its blocks are files of the tree, which tests/cpu/test_page_in_a_copy.py writes and runs.
FILES = ROOT / "docs/contributing/add-a-method.md"
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {FILES})]
# How Python tells that a library is missing, and how our doors do.
MISSING = re.compile(
    r"ModuleNotFoundError: No module named '(\w+)|^\s*ImportError: .* install \"(\w+)", re.MULTILINE
)

DRIVER = """
import doctest, sys, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torch\\.")  # of itself
names = {"__name__": "__main__"}
with open(sys.argv[1], encoding="utf-8") as file:
    blocks = file.read().split("\\0")
for number, block in enumerate(blocks):
    if not block.lstrip().startswith(">>>"):
        exec(compile(block, f"block {number} of the chain", "exec"), names)
        continue
    test = doctest.DocTestParser().get_doctest(block, names, sys.argv[2], sys.argv[2], 0)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, clear_globs=False)
    names.update(test.globs)
    if runner.failures:
        sys.exit(1)
"""


def chains():
    """(page, blocks): each block with those that it continues, if none continues it further."""
    for page in PAGES:
        chain = []
        for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1):
            if chain and not CONTINUES.match(block):
                yield pytest.param(page, chain, id=f"{page.relative_to(ROOT)}:{number - 1}")
                chain = []
            assert chain or not CONTINUES.match(block), f"{page}: no block to continue"
            chain.append(block)
        if chain:
            yield pytest.param(page, chain, id=f"{page.relative_to(ROOT)}:{number}")


@pytest.mark.slow  # .ci/replay runs them
@pytest.mark.parametrize(("page", "blocks"), list(chains()))
def test_blocks_run_as_pasted(page, blocks, tmp_path):
    (tmp_path / "blocks").write_text("\0".join(blocks), encoding="utf-8")
    (tmp_path / "driver.py").write_text(DRIVER, encoding="utf-8")
    result = run_python(
        *("-W", "error", "driver.py", "blocks", page.name), folder=tmp_path, MPLBACKEND="agg"
    )
    found = MISSING.search(result.stdout + result.stderr)
    missing = found and (found[1] or found[2])
    if missing in OPTIONAL:
        pytest.skip(f"needs {missing}")
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
