"""Suites of layers: shapes of their sources, and totals of whole networks against the papers."""

import hashlib
import math
from collections import Counter
from itertools import pairwise

import pytest

from implicit_conv.testing import Case
from perf import corpus, networks
from perf.layers import SUITES, layers


def weights(case):
    return math.prod(case.problem.weight_shape)


def filters(case):
    return case.K * case.groups


def convolutions(network):
    return [case for _, case in network()]


def test_efficientnet_has_the_parameters_and_operations_of_its_paper():
    """Table 2: 5.3 million parameters, 0.39 billion multiply-adds. Convolutions without bias are
    followed by batch normalization with two parameters a channel; squeeze and excitation have
    biases.
    """
    cases = convolutions(networks.efficientnet)
    squeezes = [case for case in cases if case.size == (1, 1)]
    assert len(squeezes) == 2 * 16
    others = [case for case in cases if case.size != (1, 1)]
    parameters = sum(map(weights, cases)) + sum(map(filters, squeezes))
    parameters += 2 * sum(map(filters, others)) + 1281 * 1000
    assert parameters == 5_288_548
    assert sum(case.problem.flops for case in cases) / 2 == pytest.approx(0.39e9, rel=0.02)


def test_xception_has_the_parameters_of_its_paper():
    """Table 3: 22855952 parameters. Batch normalization follows all but the depthwise layers."""
    cases = convolutions(networks.xception)
    normalized = [case for case in cases if case.C > 1]
    assert len(cases) == 2 + 4 + 2 * 34
    parameters = sum(map(weights, cases)) + 2 * sum(map(filters, normalized)) + 2049 * 1000
    assert parameters == 22_855_952
    assert [case.output for case in cases[:2]] == [(149, 149), (147, 147)]
    assert {case.size[0] for case in cases} == {299, 149, 147, 74, 37, 19, 10}


def test_densenet_has_the_parameters_of_121_layers():
    """7978856 parameters as published with the trained weights. Batch normalization precedes all
    but the first layer, and follows the first and the last.
    """
    cases = convolutions(networks.densenet)
    assert len(cases) == 121 - 1  # the last is fully connected
    norms = 64 + 1024 + sum(case.C for case in cases[1:])
    assert sum(map(weights, cases)) + 2 * norms + 1025 * 1000 == 7_978_856


def test_ssd_has_the_boxes_of_its_paper():
    """Section 2.1: 8732 boxes; 26285486 parameters with biases and 512 scales of conv4_3."""
    cases = convolutions(networks.ssd)
    sources = cases[-len(networks.SSD_SOURCES) :]
    boxes = [filters(case) // (networks.SSD_CLASSES + 4) * case.output[0] ** 2 for case in sources]
    assert sum(boxes) == 8732
    assert sum(weights(case) + filters(case) for case in cases) + 512 == 26_285_486


def test_each_layer_takes_what_the_one_before_leaves():
    """SSD after its last pooling."""
    chain = convolutions(networks.ssd)[13:23]  # from the dilated 3x3 to the last pixel
    for before, after in pairwise(chain):
        assert before.output == after.size
        assert filters(before) == after.C


def test_aspp_keeps_its_size_at_each_rate():
    suite = layers("aspp", "NHWC")
    dilated = {case.dilation: case for case in suite.values() if case.kernel == (3, 3)}
    assert set(dilated) == {(6, 6), (12, 12), (18, 18)}
    assert all(case.output == case.size == (33, 33) for case in dilated.values())
    assert "3x3 dilated 18 2048-256 @33" in suite


def test_kinds_of_layers_hold_nothing_else():
    assert all(case.C == case.K == 1 for case in layers("depthwise").values())
    taps = {case.kernel[0] for case in layers("depthwise").values()}
    assert taps == {3, 5, 7}
    pixel = layers("pixel").values()
    assert all(case.size == case.kernel == (1, 1) for case in pixel)
    first = layers("first").values()
    assert {case.C for case in first} == {1, 2, 3, 4}
    assert min(case.size[0] for case in first) >= 480


def test_every_suite_has_valid_layers():
    for name in SUITES:
        assert all(case.is_valid for case in layers(name).values()), name


def test_suites_have_the_shapes_of_their_sources():
    counts = {name: len(layers(name)) for name in SUITES}
    assert counts == {
        "resnet50": 23,
        "resnext50": 7,
        "mobilenet": 30,
        "convnext": 16,
        "vgg": 9,
        "unet": 19,
        "efficientnet": 46,
        "xception": 25,
        "densenet": 66,
        "ssd": 25,
        "aspp": 6,
        "first": 12,
        "depthwise": 40,
        "pixel": 26,
        "small": 9,
        "int8": 23,
        "gpu": 23,
        "transposed": 14,
        "conv1d": 14,
        "conv3d": 19,
        "corpus": 60,
        "audio": 147,
        "upsampling": 87,
    }
    resnet = layers("resnet50", "NHWC", batch=4)
    assert resnet["3x3/2 256-256 @28"] == Case(
        N=4, C=256, K=256, size=(28, 28), stride=(2, 2), padding=((1, 1), (1, 1)), layout="NHWC"
    )
    assert [case.output[0] for case in layers("unet").values()][-1] == 388
    assert min(case.output[0] for case in layers("vgg").values()) == 14


def test_an_unknown_suite_names_those_there_are():
    with pytest.raises(ValueError, match="resnet50"):
        layers("resnet")


def test_the_corpus_is_the_one_that_was_drawn():
    """A digest of its names, as no record may lose what it compares with. Its layers are distinct,
    of at least 15 networks, of each kind as many as its share, and none is shorter than 20 us.
    """
    suite = layers("corpus")
    digest = hashlib.sha256("\n".join(suite).encode()).hexdigest()
    assert digest[:16] == "9f68c2edeca9e28b"
    assert len(set(suite.values())) == 60
    assert len({name.partition(":")[0] for name in suite}) >= 15
    assert Counter(map(corpus.kind_of, suite.values())) == corpus.SHARES
    assert min(case.problem.flops for case in suite.values()) >= 2.3e6


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("C3D: 3x3x3 128-256 @8x28x28", "3-d"),
        ("wav2vec 2.0: 3/2 512-512 @399", "1-d"),
        ("MobileNet: 3x3/2 dw 64 @112", "depthwise"),
        ("ResNeXt-50: 3x3/2 512-512 g32 @28", "grouped"),
        ("DeepLabv3: 3x3 dilated 6 2048-256 @33", "dilated"),
        ("ResNet-50: 1x1/2 1024-2048 @14", "strided"),
        ("ResNet-50: 1x1 256-64 @56", "1x1"),
        ("VGG-16: 3x3 256-512 @28", "dense"),
    ],
)
def test_a_layer_of_the_corpus_is_of_the_first_kind_that_it_fits(name, kind):
    assert corpus.kind_of(layers("corpus")[name]) == kind
