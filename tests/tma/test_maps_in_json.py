"""Maps in JSON: the schema, errors that name the field, and logs of running programs."""

import enum
import json
import random
import re
import sys
import types

import jsonschema
import pytest
from hang import no_hang
from sampling import count, resampled
from text_mutants import mutated

from implicit_conv import tma
from implicit_conv.errors import DriverError
from implicit_conv.tma.maps.encoding import ENUM_TYPES, PARAMETERS
from implicit_conv.tma.maps.json_maps import schema
from implicit_conv.tools.cli import main

FIELDS = {
    "shape": [8, 9, 14, 64],
    "dtype": "bfloat16",
    "lower_corner": [-1, -1],
    "upper_corner": [-1, -1],
    "pixels_per_column": 128,
    "channels_per_pixel": 64,
    "swizzle": "128B",
}
MAPS = {
    "im2col": tma.Im2colMap(**FIELDS),
    "tiled": tma.TiledMap(shape=(30, 128), dtype="float16", box=(8, 64)),
    "w": tma.Im2colWideMap(
        shape=(8, 9, 14, 64),
        dtype="float16",
        lower_corner_w=-1,
        upper_corner_w=0,
        channels_per_pixel=64,
    ),
}


def run(tmp_path, capsys, *objects, lines=False):
    """(status, standard output, standard error) of `lint` for a file of these objects."""
    file = tmp_path / "map.json"
    texts = [json.dumps(entry) for entry in objects]
    file.write_text("\n".join(texts) if lines or len(texts) == 1 else f"[{', '.join(texts)}]")
    status = main(["lint", str(file)])
    return status, *capsys.readouterr()


@pytest.mark.parametrize("mode", MAPS)
def test_the_schema_describes_what_lint_reads(tmp_path, capsys, mode):
    arguments = json.loads(json.dumps(MAPS[mode].arguments))
    load = {"coords": [0] * MAPS[mode].rank, "dst": 1024, "direction": "load"}
    for given in (arguments, {**arguments, **load}):
        jsonschema.validate(given, schema())
        assert run(tmp_path, capsys, given)[:2] == (0, "0 errors, 0 warnings\n")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**arguments, "globaldim": []}, schema())
    jsonschema.validate(FIELDS, schema())
    assert main(["lint", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(schema()))


WRONG = [
    ({**FIELDS, "shape": "abc"}, "shape = 'abc' must be a sequence of integers"),
    ({**FIELDS, "pixels_per_column": 1.5}, "pixels_per_column = 1.5 must be an integer"),
    ({**FIELDS, "dtype": "float15"}, "dtype 'float15' is unknown"),
    ({**FIELDS, "coords": 3}, "coords = 3 must be a sequence of integers"),
    ({**FIELDS, "box": [1], "a": 1}, "TiledMap has no argument a, channels_per_pixel, lower"),
    ({**FIELDS, "problem": [1]}, 'problem must be an object with the shapes "x" and "w"'),
    ({**FIELDS, "direction": "up"}, "direction 'up' is unknown"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_errors_name_the_file_and_the_field(tmp_path, capsys, given, words):
    status, _, error = run(tmp_path, capsys, given)
    assert status == 2 and words in error and "map.json" in error


GOOD = json.dumps(FIELDS)
HOSTILE = {  # name: (text, the error)
    "lists": ("[" * 200_000, "its brackets are too deep inside each other"),
    "objects": ('{"a":' * 100_000, "its brackets are too deep inside each other"),
    "a list in a map": (
        GOOD.replace("[-1", f"[{'[' * 500}{']' * 500}, -1"),
        r"\[\[\[.*\.\.\. must",
    ),
    "digits": (GOOD.replace("14", "9" * 5000), "has more than 40 digits"),
    "digits that double": (GOOD.replace("14", "9" * 41), "has more than 40 digits"),
    "NaN": (GOOD.replace("14", "NaN"), "NaN is no number of JSON"),
    "infinity": (GOOD.replace("14", "-Infinity"), "-Infinity is no number of JSON"),
    "a large float": (GOOD.replace("14", "1e999"), "must be a sequence of integers"),
    "a name twice": (GOOD.replace('"dtype"', '"shape"'), "an object has 'shape' twice"),
    "a long text": (GOOD.replace("[-1, -1]", json.dumps("x" * 500_000)), "x\\.\\.\\. must be"),
    "control characters": (GOOD.replace("bfloat16", r"\u001b[2J"), r"\\x1b\[2J' is unknown"),
    "a dtype of numpy's own form": (GOOD.replace("bfloat16", ","), "dtype ',' is unknown"),
    "a long dtype": (GOOD.replace("bfloat16", "(" * 9999 + ","), r"dtype '\(+\.\.\. is unknown"),
    "Latin": ("\xff".encode("latin-1"), "map.json is no text: 'utf-8' codec"),
    "lines": ("\n".join([GOOD, "[" * 200_000]), "map.json is not JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts(tmp_path, capsys, name):
    text, error = HOSTILE[name]
    (tmp_path / "map.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with no_hang():
        assert main(["lint", str(tmp_path / "map.json")]) == 2
    found = capsys.readouterr().err
    assert re.search(error, found) and "map.json" in found and len(found) < 1000


def test_a_file_without_an_end_is_not_read_whole(capsys):
    with no_hang():
        assert main(["lint", "/dev/zero"]) == 2
    assert "/dev/zero has more than 16777216 characters" in capsys.readouterr().err


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path, capsys):
    given = {**json.loads(json.dumps(MAPS["tiled"].arguments)), "swizzle": "\x1b[2J"}
    given["function"] = "\x1b]0;title\x07"
    status, out, error = run(tmp_path, capsys, given, given)
    assert status and "[2J" in out + error and not set("\x1b\x07") & set(out + error)


@resampled
def test_changed_texts(tmp_path, capsys):
    """Findings, or an error that names the file; nothing else is raised."""
    problem = {"x": [8, 9, 14, 64], "w": [64, 3, 3, 64], "padding": [1, 1], "stride": 2}
    load = {"coords": [0, -1, -1, 0], "offsets": [0, 0], "dst": 1024, "arch": "sm_100a"}
    arguments = json.loads(json.dumps(MAPS["w"].arguments))
    texts = [json.dumps(x) for x in ({**FIELDS, **load}, {**FIELDS, "problem": problem}, arguments)]
    rng, file, statuses = random.Random(0), tmp_path / "map.json", [0, 0, 0]
    for number in range(count(100, 20_000, 400)):
        text = mutated(texts[number % len(texts)], rng)
        file.write_text(text, "utf-8")
        with no_hang():
            try:
                statuses[main(["lint", str(file)])] += 1
            except BaseException as error:
                raise AssertionError(f"text {number}:\n{text}") from error
        assert len(capsys.readouterr().err) < 10_000
    assert min(statuses) > number / 100, statuses


def test_a_map_is_compared_with_its_problem(tmp_path, capsys):
    problem = {"x": [8, 9, 14, 64], "w": [64, 3, 3, 64], "padding": 1, "stride": 2}
    status, out, _ = run(tmp_path, capsys, {**FIELDS, "problem": problem})
    assert status == 1 and "must be 2, the stride" in out
    assert "fix: traversal_stride = (2, 2)" in out
    assert run(tmp_path, capsys, {**FIELDS, "problem": {**problem, "stride": 1}})[0] == 0


@pytest.mark.parametrize("lines", [False, True])
def test_several_maps_are_told_apart(tmp_path, capsys, lines):
    wrong = {**json.loads(json.dumps(MAPS["tiled"].arguments)), "boxDim": [4, 8]}
    status, out, _ = run(tmp_path, capsys, FIELDS, wrong, lines=lines)
    assert status == 1
    assert out.startswith("map 2 (cuTensorMapEncodeTiled): error: boxDim[0] = 4")


class Word(int):
    """Stands in for cuuint64_t, which converts to an int."""


@pytest.fixture
def bindings(monkeypatch):
    """A module that stands in for cuda.bindings.driver; it records what it is called with."""
    driver = types.ModuleType("cuda.bindings.driver")
    driver.calls = []
    for name in ENUM_TYPES.values():
        setattr(driver, name, enum.IntEnum(name, {"ZERO": 0, "ONE": 1, "TWO": 2, "THREE": 3}))
    for name in PARAMETERS:
        setattr(driver, name, lambda *values: driver.calls.append(values) or "done")
    package = types.ModuleType("cuda.bindings")
    package.driver = driver
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    return driver


def test_maps_of_a_running_program(bindings, tmp_path, capsys):
    log = tmp_path / "maps.jsonl"
    tma.log_maps(log)
    kind, swizzle = bindings.CUtensorMapDataType, bindings.CUtensorMapSwizzle
    values = (
        *(kind.ONE, 2, Word(4096), [Word(128), Word(30)], [Word(256)]),
        *([Word(64), Word(8)], [Word(1), Word(1)], bindings.CUtensorMapInterleave.ZERO),
        *(swizzle.TWO, bindings.CUtensorMapL2promotion.ZERO, bindings.CUtensorMapFloatOOBfill.ZERO),
    )
    assert bindings.cuTensorMapEncodeTiled(*values) == "done"
    assert bindings.calls == [values]
    tma.log_maps(log)  # logs once, not twice
    bindings.cuTensorMapEncodeTiled(*values)
    (record,) = map(json.loads, log.read_text().splitlines())
    assert record["function"] == "cuTensorMapEncodeTiled"
    assert record["boxDim"] == [64, 8] and record["globalAddress"] == 4096
    assert main(["lint", str(log)]) == 1
    assert (
        "boxDim[0] = 64: its 128 bytes must fit in the swizzle span of 64"
        in capsys.readouterr().out
    )


def test_tiled_maps_on_the_command_line(capsys):
    tiled = "--mode tiled --shape 30,128 --box 8,64".split()
    assert main(["lint", *tiled, "--start=0,0"]) == 0
    assert main(["lint", *tiled, "--start=-1,0", "--direction", "store"]) == 1
    assert "must be at least 0 for a store" in capsys.readouterr().out
    reduced = [*tiled, "--dtype", "float32", "--box", "8,32", "--direction", "reduce"]
    assert main(["lint", *reduced]) == 0
    assert main(["lint", *reduced, "--reduction", "max"]) == 1
    assert "max" in capsys.readouterr().out
    assert main(["draw", *tiled]) == 0
    assert "tile of 30 x 128" in capsys.readouterr().out
    assert main(["lint", "--mode", "tiled", "--shape", "30,128"]) == 2
    assert "a tiled map needs --box" in capsys.readouterr().err
    wide = "draw --mode w128 --shape 200,3,9,64 --halo 2".split()
    assert main([*wide, "--halo-order", "inline"]) == 0
    assert "32 <- (3, 0, 5) halo" in capsys.readouterr().out


class Names:
    """Stands in for an enumeration: each member is its name."""

    def __getattr__(self, name):
        return name


def test_maps_are_encoded_by_the_bindings(bindings, monkeypatch):
    for name in ("CUresult", *ENUM_TYPES.values()):
        monkeypatch.setattr(bindings, name, Names(), raising=False)
    for name in ("cuuint64_t", "cuuint32_t"):
        monkeypatch.setattr(bindings, name, Word, raising=False)
    calls = []

    def encode(*values):
        calls.append(values)
        return "CUDA_SUCCESS", types.SimpleNamespace(opaque=range(16))

    for function in PARAMETERS:
        monkeypatch.setattr(bindings, function, encode)
    for mode, map in MAPS.items():
        assert map.encode(address=4096)[:16] == bytes([0] * 8 + [1] + [0] * 7)
        given = dict(zip(PARAMETERS[map.arguments["function"]], calls[-1], strict=True))
        expected = {**map.arguments, "globalAddress": 4096}
        assert {**given, "function": expected["function"]} == {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in expected.items()
        }, mode


def test_a_driver_that_refuses_is_told(bindings, monkeypatch):
    for name in ("CUresult", *ENUM_TYPES.values()):
        monkeypatch.setattr(bindings, name, Names(), raising=False)
    for name in ("cuuint64_t", "cuuint32_t"):
        monkeypatch.setattr(bindings, name, Word, raising=False)
    monkeypatch.setattr(bindings, "cuTensorMapEncodeTiled", lambda *v: ("INVALID_VALUE",))
    with pytest.raises(DriverError, match=r"INVALID_VALUE; implicit_conv.tma.lint explains"):
        MAPS["tiled"].encode(address=4096)

    def missing(*values):
        raise RuntimeError("libcuda is missing")

    monkeypatch.setattr(bindings, "cuTensorMapEncodeTiled", missing)
    with pytest.raises(DriverError, match="libcuda is missing"):
        MAPS["tiled"].encode(address=4096)
