"""A record of a short run, which several test files read."""

import pytest

from perf.__main__ import main
from perf.record import read

STARTUP = {"import": 0.01, "first_call_cold": 4.0, "first_call_warm": 0.5}


def quieten(patch):
    """Nothing disturbs what is measured, whatever else this machine does, and torch's vectors are
    as wide as ours, whatever variables these tests run with.
    """
    for module in "session", "compare":
        patch.setattr(f"perf.{module}.disturbance", lambda threads: "")
    patch.setattr("perf.tables.NOISY", 1e9)
    patch.setattr("perf.opponents.host_features", dict)  # no AVX-512: nothing to compare


@pytest.fixture
def quiet(monkeypatch):
    """See `quieten`."""
    quieten(monkeypatch)


@pytest.fixture(scope="session")
def record(tmp_path_factory):
    """A short run of two layers, read back from its file."""
    path = tmp_path_factory.mktemp("records") / "first.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf.run.startup", lambda: STARTUP)
        quieten(patch)
        layers = ["--layer", "64-64 @8", "--layer", "5x5 6"]
        options = "--suite small --threads 1 --rounds 3 --against numpy -o".split()
        status = main(["run", *layers, *options, str(path)])
    assert status == 0
    return read(path)
