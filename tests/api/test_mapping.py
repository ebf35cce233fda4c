"""The examples of "Coming from" run and print what they show; torch's run where torch is."""

import doctest
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

MAPPING = Path(__file__).parents[2] / "docs/coming-from/index.md"
TEXT = MAPPING.read_text(encoding="utf-8")
SHARED, *_ = BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
OF_TORCH = re.findall(r"<!-- torch -->\n```python\n(.*?)```", TEXT, re.DOTALL)


def run(block):
    """Run a block after the one whose names all blocks share; `doctest` compares what it prints."""
    runner = doctest.DocTestRunner(verbose=False)
    test = doctest.DocTestParser().get_doctest(SHARED + block, {}, MAPPING.name, str(MAPPING), 0)
    report = []
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
    assert runner.tries == len(test.examples)


@pytest.mark.skipif(int(np.__version__[0]) < 2, reason="numpy 1 prints booleans in another way")
@pytest.mark.parametrize("block", BLOCKS[1:], ids=["torch", "jax", "tensorflow", "onnx", "scipy"])
def test_the_examples_run(block):
    if block in OF_TORCH and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    run(block)
