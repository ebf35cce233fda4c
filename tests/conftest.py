"""With ``-m gpu`` only tests/gpu is collected: a GPU machine need not have what others import."""

from dataclasses import replace
from pathlib import Path

import pytest

GPU = Path(__file__).parent / "gpu"


def pytest_ignore_collect(collection_path, config):
    """Leave out all that cannot hold a test marked gpu."""
    if config.getoption("markexpr") != "gpu" or collection_path in GPU.parents:
        return None
    return True if GPU not in (collection_path, *collection_path.parents) else None


@pytest.fixture
def free_of_cost(monkeypatch):
    """A function that makes plans of a kind cost nothing: they are chosen wherever they may be."""
    from implicit_conv import plan as planner

    def choose(kind):
        weighed = getattr(planner, f"_{kind}_plans")
        monkeypatch.setattr(
            planner, f"_{kind}_plans",
            lambda *arguments: [replace(plan, cycles=0.0) for plan in weighed(*arguments)],
        )  # fmt: skip

    return choose
