"""Long work shows one line on a terminal, and writes nothing to files and pipes."""

import io
from types import SimpleNamespace

import numpy as np
import pytest

from implicit_conv import plan_conv2d, tiles, timing
from implicit_conv.process.disk import Store
from implicit_conv.tools import kernel_cache
from implicit_conv.tools.cli import main
from perf import terminal as perf_terminal


class Terminal(io.StringIO):
    """A terminal; `lines` are what it showed, one after another."""

    def isatty(self):
        return True

    @property
    def lines(self):
        return [text.rstrip("\r") for text in self.getvalue().split("\r\033[K")[1:]]


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(timing, "sys", SimpleNamespace(stderr=stream))  # pytest sets sys.stderr
    return stream


def tile():
    x, w = np.ones((1, 1, 64, 64), np.float32), np.ones((1, 1, 3, 3), np.float32)
    tiles(x, w, memory="30 kB")


def test_a_line_replaces_the_one_before_and_fits(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    for text in "123456789abc", "short", "":
        timing.show(text)
    assert terminal.lines == ["123456789", "short", ""]
    assert terminal.getvalue().endswith("\r"), "what others write begins a line"


def test_tiles(terminal):
    tile()
    assert terminal.lines[0].startswith("tile 0 of ") and len(terminal.lines) > 3
    count = terminal.lines[0].split()[-1]
    assert terminal.lines[-2:] == [f"tile {count} of {count}", ""]


def test_tune(terminal, monkeypatch, tmp_path):
    monkeypatch.setattr("implicit_conv.cpu.plan.tuning_cache.store", lambda: Store(tmp_path))
    plan_conv2d((1, 4, 6, 6), (4, 4, 3, 3)).tune()
    assert terminal.lines[0].startswith("0 of ") and "; compiling " in terminal.lines[0]
    assert terminal.lines[-2].startswith("measuring ") and terminal.lines[-1] == ""


def test_cache_warm(terminal, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kernel_cache, "store", lambda: Store(tmp_path))
    monkeypatch.setattr(kernel_cache, "COMMON", kernel_cache.COMMON[:1])
    monkeypatch.setattr(kernel_cache, "_call", lambda layer, layout: None)
    assert main(["cache", "warm"]) == 0
    assert terminal.lines == [
        "0 of 1 layers; compiling 1x1, NCHW",
        "0 of 1 layers; compiling 1x1, NHWC",
        "",
    ]


def test_perf_says_how_long_it_takes(terminal, monkeypatch):
    now = iter([10.0, 10.5, 40.0])
    monkeypatch.setattr(perf_terminal.time, "monotonic", lambda: next(now))
    with perf_terminal.progress() as show:
        show("first", 0, 4)
        show("second", 3, 4)
    assert terminal.lines == ["0/4 first", "3/4 second; about 10 s left", ""]


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_nothing_is_written_where_there_is_no_terminal(stream, monkeypatch):
    monkeypatch.setattr(timing, "sys", SimpleNamespace(stderr=stream))
    tile()
    timing.show("text")
    assert stream is None or stream.getvalue() == ""
