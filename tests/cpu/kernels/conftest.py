"""A cache on disk with one entry, and the warnings that are logged."""

import logging

import pytest
from entries import NAME, PAYLOAD

from implicit_conv.process.disk import Store


@pytest.fixture
def store(tmp_path):
    """A store that holds one entry."""
    store = Store(tmp_path / "cache")
    store.save(NAME, PAYLOAD)
    assert store.load(NAME) == PAYLOAD
    return store


@pytest.fixture
def warnings(caplog):
    """A function that returns the warnings logged since it was called last."""

    def taken():
        found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        caplog.clear()
        return found

    return taken
