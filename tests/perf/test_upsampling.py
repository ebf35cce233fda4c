"""Suites whose layers have operators of their own: shapes against their sources, and a run."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from perf import tables, upsampling
from perf.__main__ import main
from perf.layers import layers
from perf.operators import FUNCTIONS, inputs_of
from perf.record import read


def rows(suite, model, operator):
    found = upsampling.SUITES[suite]()
    return [
        each for each in found if each.name.startswith(f"{model}:") and each.operator == operator
    ]


def test_names_tell_model_operator_and_shape():
    for suite in upsampling.SUITES:
        operators = upsampling.operators(suite)
        assert [*operators] == [*layers(suite)], "each name once"
        assert all(
            name.split(": ")[1].startswith(operator)
            for name, operator in operators.items()
            if operator != "fprop"
        )
    assert "MobileNetV2: dgrad 3x3/2 dw 96 @112" in operators
    assert upsampling.operators("resnet50") == {}


def test_upsampling_has_what_the_target_is_about():
    """At least 60 layers, all transposed or gradients of strided convolutions, and those of audio
    among them.
    """
    found = [*upsampling.upsampling()]
    assert len(found) == 87
    assert Counter(each.operator for each in found) == {"transposed": 47, "dgrad": 35, "wgrad": 5}
    assert all(max(each.case.stride) > 1 for each in found if each.operator != "transposed")
    assert {len(each.case.size) for each in found} == {1, 2, 3}
    audio = [each for each in upsampling.audio() if each.operator != "fprop"]
    assert [each.name for each in found][: len(audio)] == [each.name for each in audio]


@pytest.mark.parametrize(("version", "hop"), [("V1", 256), ("V2", 256), ("V3", 256)])
def test_hifi_gan_makes_as_many_samples_as_a_frame_stands_for(version, hop):
    """All versions have a hop of 256; 1 has 13.92 million parameters (table 1 of its paper)."""
    rises = rows("audio", f"HiFi-GAN {version}", "transposed")
    assert rises[-1].case.size == (hop * upsampling.MEL_FRAMES,)
    for before, after in pairwise(rises):
        assert (before.case.size, before.case.C) == (after.case.output, after.case.K)


@pytest.mark.parametrize(("version", "millions"), [("V1", 13.92), ("V2", 0.92), ("V3", 1.46)])
def test_hifi_gan_has_the_parameters_of_its_paper(version, millions):
    """Table 1. After each dilated convolution of V1 and V2 comes one without dilation; each layer
    has biases.
    """
    parameters = 0
    for each in upsampling.hifi_gan():
        if each.name.startswith(f"HiFi-GAN {version}:"):
            own = np.prod(each.case.problem.weight_shape)
            own += each.case.C if each.operator == "transposed" else each.case.K
            block = each.operator == "fprop" and each.case.C == each.case.K
            parameters += own * (2 if block and version != "V3" else 1)
    assert parameters / 1e6 == pytest.approx(millions, abs=0.011)


@pytest.mark.parametrize("model", upsampling.DEMUCS)
def test_decoders_of_demucs_mirror_its_encoders(model):
    encoders, decoders = rows("audio", model, "dgrad"), rows("audio", model, "transposed")
    assert [each.case for each in encoders[:0:-1]] == [each.case for each in decoders[:-1]]
    assert encoders[0].case.size == decoders[-1].case.size
    for before, after in pairwise(encoders):
        assert (before.case.output, before.case.K) == (after.case.size, after.case.C)


def test_strided_layers_are_those_of_the_networks():
    found = {
        each.name.rpartition(" @")[0].split("dgrad ")[1] + " @" + each.name.rpartition("@")[2]
        for each in rows("upsampling", "MobileNetV2", "dgrad")
    }
    strided = {name for name, case in layers("mobilenet").items() if case.stride == (2, 2)}
    assert found == strided
    found = {each.name.split("dgrad ")[1] for each in rows("upsampling", "ResNet-50", "dgrad")}
    strided = {name for name, case in layers("resnet50").items() if case.stride == (2, 2)}
    assert found == strided


def test_an_inverse_transform_takes_real_and_imaginary_parts():
    (inverse,) = rows("audio", "STFT", "transposed")
    dy, w = inputs_of("transposed", inverse.case)
    assert (dy.shape, w.shape) == ((1, 1026, 100), (1026, 1, 1024))
    assert (inverse.case.stride, inverse.case.size) == ((256,), (99 * 256 + 1024,))


def test_a_run_computes_the_operator_of_each_layer(tmp_path, monkeypatch, quiet, record):
    pytest.importorskip("torch")
    monkeypatch.setattr("perf.run.startup", lambda: record["startup"])
    path = tmp_path / "record.json"
    names = "transposed 4x4/1", "dgrad 3x3/2 dw 192", "wgrad 3x3/2 dw 192"
    chosen = [word for name in names for word in ("--layer", name)]
    options = "run --suite upsampling --threads 1 --rounds 3 --against torch -o".split()
    assert main([*options, str(path), *chosen]) == 0
    made = read(path)
    assert [row["operator"] for row in made["rows"]] == [name.split()[0] for name in names]
    assert {row["operator"] for row in made["rows"]} < set(FUNCTIONS)
    assert all(row["ratios"]["torch"] > 0 for row in made["rows"]), "checked against torch, timed"
    assert tables.title_of(made) == "upsampling and strided gradients, float32, NCHW, 1 thread"


@pytest.mark.parametrize("option", [("--operator", "dgrad"), ("--device", "cuda")])
def test_no_other_operator_can_be_asked_for(option, capsys):
    assert main(["run", "--suite", "audio", *option]) == 2
    assert "each layer of suite audio has its own operator" in capsys.readouterr().err
