"""Wrong command lines: each exits with 2 and one line that names the way out, and no traceback."""

import shlex

import pytest

from implicit_conv.tools.cli import main

KERNEL = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 p, .param .f32 s)
{
  ret;
}
"""
SHAPES = "1,8,9,9 8,8,3,3"
WRONG = {  # command line -> the way out that its one line names
    "": "required: COMMAND; `implicit-conv --help`",
    "bnech": "explain",
    "--verbose info": "unrecognized arguments: --verbose; `implicit-conv info --help`",
    "info --all": "unrecognized arguments: --all; `implicit-conv info --help`",
    "cache": "required: ACTION; `implicit-conv cache --help`",
    "cache purge": "'clear'",
    "bench --threads 0": "'0' must be an integer of at least 1",
    "bench --threads two": "'two' must be an integer of at least 1",
    "bench --threads 9999": "at most",
    "bench --layout HWC": "'NHWC'",
    "bench --against numpy": "'torch'",
    "bench --rounds": "expected one argument; `implicit-conv bench --help`",
    "demo --out picture.txt": "must end in one of .",
    "demo --out nowhere/picture.png": "there is no folder nowhere",
    "demo nowhere.png": "nowhere.png",
    "demo kernel.ptx": "kernel.ptx",
    "explain": "required: x, w; `implicit-conv explain --help`",
    "explain 1,8,9,9": "required: w",
    "explain 1x8x9x9 8x8x3x3": "'1x8x9x9' must be integers separated by commas",
    "explain 1,8,9,9 8,8": "such as 64,64,3,3",
    "explain 8,9 8,8,3,3": "NCHW has 4",
    "explain 1,8,9,9 8,4,3,3": "did you mean groups=2?",
    "explain 1,9,9,8 8,8,3,3": "did you mean layout='NHWC'?",
    "explain 1,3,9,9 3,3,11,11": "pad by 2 more",
    f"explain {SHAPES} --operator conv4d": "'conv3d'",
    f"explain {SHAPES} --operator conv2d_input_grad": "needs --input-shape, such as",
    f"explain {SHAPES} --operator conv2d_weight_grad": "needs --weight-shape, such as",
    f"explain {SHAPES} --output-padding 1": "conv2d has no --output-padding; leave it out",
    f"explain {SHAPES} --padding smae": "did you mean 'same'?",
    f"explain {SHAPES} --padding reflect": "padding='same', padding_mode='reflect'",
    f"explain {SHAPES} --padding-mode mirrored": "reflect",
    f"explain {SHAPES} --padding-mode edge": "here it is 'replicate'",
    f"explain {SHAPES} --layout channels_last": "here it is 'NHWC'",
    f"explain {SHAPES} --dtype flaot32": "data type 'flaot32' not understood",
    f"explain {SHAPES} --dtype int64": "convert it to one of float32",
    f"explain {SHAPES} --stride 0": "at least 1",
    f"explain {SHAPES} --precision exact": "strict, standard, fast",
    f"explain {SHAPES} --algorithm winograd": "did you mean",
    f"explain {SHAPES} --activation rleu": "did you mean 'relu'?",
    f"explain {SHAPES} --device gpu": "cuda",
    f"explain {SHAPES} --brief --json": "not allowed with argument --brief",
    f"tune {SHAPES} --filters some": "packed, plain",
    "tune 1,8,9,9": "required: w",
    "forget everything": "unrecognized arguments: everything",
    "draw": "--example NAME",
    "draw --example ptx-99": "ptx-11",
    "draw --mode im2col::h --shape 1,8,8,64": "im2col::w::128 (or w128)",
    "draw --mode tiled --shape 8,64": "needs --box",
    "draw --shape 1,8,8,64 --halo 2": "a copy of mode im2col has no --halo; leave it out",
    "draw --mode w --shape 1,8,8,64 --box 8,64": "mode im2col::w has no --box; leave it out",
    "draw --mode tiled --shape 8,64 --box 8,64 --pixels 8": "mode tile has no --pixels; leave",
    "draw --shape 1,8,8,64 --lower": "expected one argument; `implicit-conv draw --help`",
    "draw --mode w --shape 1,8,8,64 --lower -1,-1": "has the lower corner of W alone, not (-1, -1)",
    "draw --mode w --shape 1,8,8,64 --upper=1,0": "has the upper corner of W alone, not (1, 0)",
    "draw --mode w --shape 1,8,8,64 --step 2,1": "has the step of W alone, not (2, 1)",
    "lint": "give --shape N,[D,]H,W,C or --example NAME, or name a FILE.json",
    "lint nowhere.json": "nowhere.json",
    "lint kernel.ptx": "kernel.ptx",
    "ptx": "required: ACTION; `implicit-conv ptx --help`",
    "ptx check": "required: FILE",
    "ptx check nowhere.ptx": "nowhere.ptx",
    "ptx check kernel.ptx --arguments float32[8]": "the parameters p, s; give 2, one for each",
    "ptx check kernel.ptx --arguments float32[8] 1 2": "the parameters p, s; give 2, one for each",
    "ptx check kernel.ptx --arguments float32[8] float33[8]": "no array such as float32[64]",
    "ptx check kernel.ptx --arguments float32[8] float32[8]": "has 4 bytes, the argument 8",
    "ptx check kernel.ptx --arguments float32[8] 1.5 --block 0": "one to three positive numbers",
    "ptx check kernel.ptx --arguments float32[8] map": "say by --map FILE which",
    "ptx check kernel.ptx --arguments float32[8] 1.5 --target sm_75": "compile it for sm_75",
    "ptx check kernel.ptx --entry other": "scale",
}


def test_there_are_many():
    assert len(WRONG) >= 40


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_line_names_the_way_out(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.ptx").write_text(KERNEL)
    if command.startswith("demo"):
        pytest.importorskip("matplotlib")
    try:
        status = main(shlex.split(command))
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.err.startswith("implicit-conv") and printed.err.count("\n") == 1
    assert WRONG[command] in printed.err


def test_help_names_every_action_and_has_a_sentence(capsys):
    def helped(*words):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    whole = helped()
    for action in "ptx check", "cache info":
        assert f"`{action}`" in whole
    names = "demo info cache bench draw explore lint ptx explain tune forget".split()
    actions = ["ptx check", *(f"cache {name}" for name in ("info", "check", "warm", "clear"))]
    for name in (*names, *actions):
        words = helped(*name.split()).partition(" options: ")[0].rpartition("] ")[2]
        assert len(words.split()) >= 5, f"{name} has no sentence"
    assert "check a PTX file" in helped("ptx")


@pytest.mark.parametrize(
    ("ours", "ptx"), [("w", "im2col::w"), ("w128", ".im2col::w::128"), ("im2col", "IM2COL")]
)
def test_draw_takes_the_modes_of_ptx(ours, ptx, capsys):
    shape = "--shape 1,8,40,64 --swizzle 128B".split()
    drawn = []
    for word in ours, ptx:
        assert main(["draw", "--mode", word, *shape]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1]


def test_a_list_may_begin_with_a_minus_sign(capsys):
    drawn = []
    for words in ("--lower -1,-1 --upper -1,-2", "--lower=-1,-1 --upper=-1,-2"):
        assert main(f"draw --shape 1,4,4,64 --pixels 8 {words}".split()) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] and "box h [-1, 2] x w [-1, 1]" in drawn[0]


def test_a_drawn_copy_has_at_most_the_channels_of_the_tensor(capsys):
    for channels, most in ((16, 16), (128, 64)):
        assert main(f"draw --mode w --shape 1,4,4,{channels} --pixels 8".split()) == 0
        assert f"8 pixels x {most} channels" in capsys.readouterr().out
