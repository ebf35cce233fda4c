"""`ptx check --map FILE`: kernels with tensor maps, from a shell."""

import json

import pytest
from ptx_texts import kernel

from implicit_conv import tma
from implicit_conv.tools.cli import main

SHARED = ".extern .shared .align 128 .b8 smem[];"
MAP = {"shape": [16, 64], "dtype": "float32", "box": [8, 32]}
BODY = """
    mov.b64 %d3, x; cvta.param.u64 %d3, %d3; mov.u32 %r2, smem; mov.u32 %r1, %tid.x;
    ld.param.u64 %d2, [y]; setp.eq.u32 %p1, %r1, 0; @!%p1 bra READY;
    mbarrier.init.shared.b64 [%r2+1024], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2+1024], BYTES;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%d3, {32, 4}], [%r2+1024];
    READY: bar.sync 0;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+1024], 0; @!%p2 bra WAIT;
    setp.eq.u64 %p3, %d2, 0; @%p3 bra END;
    shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r2; ld.shared.f32 %f1, [%r3];
    mul.wide.u32 %d4, %r1, 4; add.s64 %d4, %d4, %d2; st.global.f32 [%d4], %f1;
    END:"""
PARAMETERS = ".param .align 64 .b8 x[128], .param .u64 y"


@pytest.fixture
def check(tmp_path, capsys):
    """Run the command on files with these contents; (exit status, what it prints)."""

    def run(*arguments, maps=MAP, size=1024):
        text = kernel(BODY.replace("BYTES", str(size)), PARAMETERS, shared=SHARED)
        (tmp_path / "k.ptx").write_text(text)
        (tmp_path / "maps.json").write_text(maps if isinstance(maps, str) else json.dumps(maps))
        files = [str(tmp_path / "k.ptx"), "--map", str(tmp_path / "maps.json")]
        given = ["--shared", "1032", "--seeds", "3", "--arguments", *arguments]
        status = main(["ptx", "check", *files, *given])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def test_a_map_and_an_array(check):
    status, said = check("map", "float32[32]")
    assert status == 0 and "(4, 32)" in said and "agrees" in said
    assert said.endswith("3 schedules: no error, and the same result in all\n")


def test_a_null_pointer(check):
    assert check("map", "null")[0] == 0


def test_driver_arguments_as_they_are_logged(check):
    logged = tma.TiledMap(**MAP).arguments
    status, said = check("map", "float32[32]", maps=json.dumps(logged) + "\n")
    assert status == 0, said


def test_a_fault_is_named_with_its_seed(check):
    status, said = check("map", "null", size=2048)
    assert status == 1 and said.count("seed 0:\n") == 1 and "deadlock" in said


@pytest.mark.parametrize(
    ("arguments", "maps", "words"),
    [
        (("map", "map"), MAP, "has 1 map, but 2 of the arguments are 'map'"),
        (("0", "0"), MAP, "has 1 map, but 0 of the arguments are 'map'"),
        (("map", "0"), {**MAP, "box": [8, 3]}, "map 1: TiledMap is refused"),
        (("map", "0"), {**MAP, "boxes": 1}, "map 1: "),
        (("map", "0"), {**MAP, "shape": [1 << 20, 1 << 20]}, "at most 1073741824 are run"),
        (("map", "0"), "[]", "must hold one JSON object"),
        (("map", "0"), {"globalDim": [64, 16]}, "map 1: it is refused"),
    ],
)
def test_wrong_maps(check, arguments, maps, words):
    status, said = check(*arguments, maps=maps)
    assert status == 2 and words in said, said


def test_a_map_without_its_file(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(kernel("", PARAMETERS))
    assert main(["ptx", "check", str(tmp_path / "k.ptx"), "--arguments", "map", "null"]) == 2
    assert "say by --map FILE which" in capsys.readouterr().err
