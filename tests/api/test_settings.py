"""Settings from environment variables."""

import pytest

from implicit_conv import config, settings


@pytest.fixture(autouse=True)
def read_again():
    """The environment is read once; these tests read it anew, and so do later ones."""
    forget()
    yield
    forget()


def forget():
    settings._from_environment.cache_clear()
    settings._open.clear()


def test_a_misspelt_variable_is_named(monkeypatch, caplog):
    monkeypatch.setenv("IMPLICIT_CONV_THREADS", "3")
    assert settings.current().num_threads is None
    assert "ignored unknown settings IMPLICIT_CONV_THREADS" in caplog.text
    assert "IMPLICIT_CONV_NUM_THREADS" in caplog.text


def test_known_variables_are_read_without_a_word(monkeypatch, caplog):
    monkeypatch.setenv("IMPLICIT_CONV_NUM_THREADS", "3")
    monkeypatch.setenv("IMPLICIT_CONV_CACHE_BYTES", "1000000")
    assert settings.current().num_threads == 3
    assert caplog.text == ""


@pytest.mark.parametrize("text", ["-1", "1.5", "512M", "1" * 19, "\u0663"])
def test_a_limit_of_the_cache_that_is_no_integer_is_refused(monkeypatch, text):
    monkeypatch.setenv("IMPLICIT_CONV_CACHE_BYTES", text)
    with pytest.raises(ValueError, match=r"IMPLICIT_CONV_CACHE_BYTES=.* must be an integer"):
        settings.current()


@pytest.mark.parametrize("word", ["threads", "n_jobs", "num_thread"])
def test_other_names_of_a_setting_are_told_apart(word):
    with pytest.raises(TypeError, match=r"unexpected keyword argument .*; write num_threads=2$"):
        config(**{word: 2})
    with config(num_threads=2) as settings:
        assert settings.num_threads == 2
    with pytest.raises(TypeError, match="its parameters are device, algorithm, num_threads, "):
        config(colour=2)
