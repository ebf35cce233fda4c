"""Commands refuse what cannot work before they start to work."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from processes import ROOT, run_python

from implicit_conv.cpu.machine import times
from implicit_conv.cpu.plan import tuning, tuning_cache
from implicit_conv.kernels.sources import kernel_name
from implicit_conv.process import disk
from implicit_conv.process.disk import Store
from implicit_conv.tools import info, kernel_cache, plans
from implicit_conv.tools.cli import main


@pytest.mark.parametrize("option", ["--batch", "--threads", "--rounds"])
def test_bench_refuses_a_count_of_zero(capsys, option):
    with pytest.raises(SystemExit) as ended:
        main(["bench", option, "0"])
    assert ended.value.code == 2
    assert "'0' must be an integer of at least 1" in capsys.readouterr().err


def test_bench_refuses_threads_that_are_not_there(capsys):
    assert main(["bench", "--threads", "9999"]) == 2
    assert "--threads 9999: at most" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("x.txt", "must end in one of"), ("none/x.png", "there is no folder")]
)
def test_demo_refuses_an_output_before_it_computes(capsys, tmp_path, name, said):
    pytest.importorskip("matplotlib")
    assert main(["demo", "--out", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_explain_takes_a_padding_mode(capsys):
    shapes = ["1,8,9,9", "8,8,3,3"]
    assert main(["explain", *shapes, "--padding", "1", "--padding-mode", "reflect"]) == 0
    assert "padding (1, 1) in mode 'reflect'" in capsys.readouterr().out
    assert main(["explain", *shapes, "--padding-mode", "mirrored"]) == 2
    assert "none of zeros, reflect, symmetric" in capsys.readouterr().err


def test_tune_prints_the_tuned_plan_and_forget_removes_it(capsys, monkeypatch, tmp_path):
    store = Store(tmp_path)
    monkeypatch.setattr(tuning_cache, "store", lambda: store)
    monkeypatch.setattr(plans, "disturbance", lambda threads: "")
    monkeypatch.setattr(
        tuning, "measure", lambda candidates, run: [np.array([1e-3])] * len(candidates)
    )
    assert main(["tune", "1,8,9,9", "8,8,3,3", "--filters", "plain"]) == 0
    assert "tuned       the fastest of" in capsys.readouterr().out
    monkeypatch.setattr(times, "store", lambda: store)
    table = times.Table("torch 2")
    table.of_kind("3x3")["size"] = times.Times(1.0, 2.0)
    table.save("3x3")
    assert main(["forget"]) == 0
    removed = "removed 1 choice\nremoved the times of 1 kind of calls beside torch's kernels\n"
    assert removed in capsys.readouterr().out
    assert main(["tune", "1,8,9,9", "8,8,3,3", "--filters", "some"]) == 2
    assert "filters 'some' is none of packed, plain" in capsys.readouterr().err


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """The store that `cache` looks at: two kernels, one of another version, and a choice."""
    store = Store(tmp_path / "cache", 1 << 20)
    store.save(kernel_name("function", "key"), bytes(100))
    store.save(f"function-{'0' * 32}.kernel", bytes(200))
    store.save(f"{'1' * 32}.choice", b"{}")
    (store.folder / f"function-{'0' * 32}.kernel").touch()
    monkeypatch.setattr(kernel_cache, "store", lambda: store)
    monkeypatch.setattr(tuning_cache, "store", lambda: store)
    return store


def test_cache_info(capsys, kernels):
    def line(title):
        assert main(["cache", "info"]) == 0
        return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())[title]

    assert line("folder") == str(kernels.folder)
    assert line("used") == "yes"
    assert line("files") == "2, 1 of them of this version"
    assert line("size") == "396 bytes, at most 1,048,576 (IMPLICIT_CONV_CACHE_BYTES)"
    os.utime(kernels.folder / kernel_name("function", "key"), (1e9, 1e9))
    assert line("last").startswith("used    2001-09-09 to 20")
    assert line("tuned").startswith("1 choice;")
    kernels.folder.chmod(0o777)
    assert "mode 0777" in line("used")


def test_cache_check_names_what_is_damaged(capsys, kernels):
    assert main(["cache", "check"]) == 0
    assert capsys.readouterr().out == f"0 of 3 files in {kernels.folder} are damaged\n"
    damaged = [f"{'1' * 32}.choice", f"function-{'0' * 32}.kernel"]
    with open(kernels.folder / damaged[0], "ab") as file:
        file.write(b"more")
    (kernels.folder / damaged[1]).unlink()
    os.mkfifo(kernels.folder / damaged[1])
    assert main(["cache", "check"]) == 1
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == f"{kernels.folder / damaged[0]}: its digest does not match"
    assert second == f"{kernels.folder / damaged[1]}: it is not a regular file"
    assert rest[0] == f"2 of 3 files in {kernels.folder} are damaged"
    assert "`implicit-conv cache clear` removes all kernels" in rest[1]
    for command in (["cache", "clear"], ["forget"], ["cache", "check"]):  # the way out works
        assert main(command) == 0


def test_cache_warm_says_why_it_cannot(capsys, kernels):
    kernels.folder.chmod(0o777)
    assert main(["cache", "warm"]) == 1
    assert "nothing can be kept" in capsys.readouterr().out


FIRST_CALL = """
import numpy as np, implicit_conv as ic
ic.conv2d(np.ones((1, 3, 9, 9), np.float32), np.ones((32, 3, 3, 3), np.float32), padding=1)
"""


@pytest.mark.slow
def test_cache_warm_compiles_what_common_layers_need(tmp_path):
    settings = {"IMPLICIT_CONV_CACHE_DIR": tmp_path / "cache", "IMPLICIT_CONV_LOG": "info"}
    cold = run_python("-c", FIRST_CALL, **settings)
    assert cold.stderr.count("compiling kernels for this CPU, once") == 1
    warmed = run_python("-m", "implicit_conv", "cache", "warm", **settings)
    assert warmed.returncode == 0
    assert warmed.stdout.splitlines()[-1].endswith(f"in {tmp_path / 'cache'}")
    warm = run_python("-c", FIRST_CALL.replace("9, 9", "64, 64"), **settings)
    assert "compiling" not in warm.stderr
    assert warm.returncode == cold.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a terminal of Linux")
def test_a_terminal_shows_that_kernels_are_compiled(tmp_path):
    """Once, and in no process that finds them."""
    said = []
    for _ in range(2):
        terminal, end = os.openpty()
        environment = {**os.environ, "IMPLICIT_CONV_CACHE_DIR": str(tmp_path / "cache")}
        with subprocess.Popen(
            [sys.executable, "-c", FIRST_CALL], cwd=ROOT, env=environment, stderr=end
        ) as process:
            assert process.wait(100) == 0
        os.write(end, b"|")
        said.append(os.read(terminal, 10_000).decode())
        os.close(end)
        os.close(terminal)
    once = "implicit_conv: compiling kernels for this CPU, once; later processes load them from "
    assert said[0].split("|")[0].strip() == f"{once}{tmp_path / 'cache'}"
    assert said[1] == "|"


def test_cache_clear_removes_kernels_and_forget_choices(capsys, kernels):
    (kernels.folder / "notes.txt").touch()
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 2 files, 396 bytes, from {kernels.folder}\n"
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 0 files, 0 bytes, from {kernels.folder}\n"
    assert main(["forget"]) == 0
    assert capsys.readouterr().out == "removed 1 choice\n"
    assert [path.name for path in kernels.folder.iterdir()] == ["notes.txt"]


def test_cache_clear_says_what_it_could_not_remove(capsys, kernels):
    name = f"function-{'2' * 32}.kernel"
    (kernels.folder / name / "file").mkdir(parents=True)
    assert main(["cache", "clear"]) == 1
    assert f"1 file could not be removed, such as {name}" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["check", "clear"])
def test_cache_does_not_touch_a_folder_that_others_can_write(capsys, kernels, action):
    kernels.folder.chmod(0o777)
    assert main(["cache", action]) == 2
    assert "mode 0777" in capsys.readouterr().err
    assert len(list(kernels.folder.iterdir())) == 3


@pytest.mark.parametrize("action", [[], ["purge"]])
def test_cache_needs_an_action(capsys, action):
    with pytest.raises(SystemExit) as ended:
        main(["cache", *action])
    assert ended.value.code == 2
    assert "ACTION" in capsys.readouterr().err


def test_help_and_info_have_the_address_for_bugs(capsys):
    """It is that of pyproject.toml, and a line has it whole."""
    (address,) = re.findall(r'^Issues = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert address in capsys.readouterr().out.split()
    assert f"bugs         {address}" in info.describe().splitlines()


def test_info_survives_a_folder_that_is_a_file(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(disk, "store", lambda: Store(tmp_path / "file"))
    assert "file is not a folder" in info.describe()
    assert main(["cache", "info"]) == 0
