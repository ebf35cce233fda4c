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
def force_method(monkeypatch):
    """A function that makes the planner prefer a method wherever it can run."""
    from implicit_conv.cpu.candidate import Candidate

    def force(method):
        given = method.candidates.__func__

        def candidates(cls, problem, arch, request):
            for found in given(cls, problem, arch, request):
                yield replace(found, cycles=0.0) if isinstance(found, Candidate) else found

        monkeypatch.setattr(method, "candidates", classmethod(candidates))

    return force
