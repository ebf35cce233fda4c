"""The code of docs/how-to/ptx.md runs unchanged; the command checks and runs files."""

import re
from pathlib import Path

import pytest
from ptx_texts import kernel

from implicit_conv.tools.cli import main

PAGE = (Path(__file__).parents[2] / "docs/how-to/ptx.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LINES = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()
RACE = r"""warp \d, line \d+: ld.shared.u32 %r2, \[%r4\]\n  ld.shared .*
\[63 62 61\]"""


def test_the_blocks_run(capsys):
    names = {}
    said = [r"\[0\.  0\.5 1\.  1\.5\] 18", RACE, "True", r"cost=8, least=4"]
    for block, words in zip(BLOCKS, said, strict=True):
        exec(compile(block, "docs/how-to/ptx.md", "exec"), names)
        assert re.search(words, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("line", "said"),
    list(zip(LINES, ["all instructions", "20 schedules: no error"], strict=True)),
)
def test_the_commands_run(line, said, tmp_path, capsys):
    names = {}
    exec(compile(BLOCKS[0], "docs/how-to/ptx.md", "exec"), names)
    path = tmp_path / "kernel.ptx"
    path.write_text(names["SCALE"])
    program, *words = line.replace("'", "").split()
    assert program == "implicit-conv"
    assert main([str(path) if word == "kernel.ptx" else word for word in words]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("tcgen05.wait::ld.sync.aligned; add.cc.u32 %r1, %r1, %r1;", 1, "2 instructions or dir"),
        ("bar.sync 1, 64;", 1, "seed 0: block 0: deadlock"),
        (
            "mov.u32 %r2, %tid.x; shr.u32 %r2, %r2, 5; st.relaxed.gpu.global.u32 [%d1+4], %r2;",
            1,
            "the result depends on the schedule: argument 0",
        ),
        ("add.u32 %r1, %r2, ??;", 2, ""),
    ],
)
def test_the_command_reports(body, status, said, tmp_path, capsys):
    path = tmp_path / "kernel.ptx"
    path.write_text(kernel(body))
    block = "32" if "bar.sync" in body else "128"
    assert main(["ptx", "check", str(path), "--block", block, "--arguments", "uint32[8]"]) == status
    assert said in capsys.readouterr().out


def test_an_argument_that_is_none(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["ptx", "check", str(tmp_path), "--arguments", "int7[3]"])
    assert "'int7[3]' is no array such as float32[64]" in capsys.readouterr().err
