"""A corpus of layers of published networks, drawn once by a seed before anything was tuned for it.

The pool is each distinct layer of the networks below that has LEAST_FLOPS. A layer is of the first
kind in SHARES whose rule it fits, and each kind has a share of the corpus, drawn from its part of
the pool. The draw depends on the names of the pool and on `random.Random.random`, whose sequence
Python keeps for a seed; a test holds the corpus to it. A network added here draws another corpus:
records of the one before would no longer compare.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from implicit_conv.testing import Case
from perf import networks, signals, upsampling
from perf.shapes import Layers, Suite

SEED = 51
# 20 us at the measured FMA peak of a core (EPYC 9004, 115 GFLOP/s float32, 2026-11). No CPU is
# faster than its peak, so each layer takes longer than that.
LEAST_FLOPS = 20e-6 * 115e9

NETWORKS: dict[str, Callable[[], Layers]] = {
    "ResNet-50": networks.resnet50,
    "ResNeXt-50": networks.resnext50,
    "MobileNet": networks.mobilenet_v1,
    "MobileNetV2": networks.mobilenet,
    "ConvNeXt-T": networks.convnext,
    "VGG-16": networks.vgg,
    "U-Net": networks.unet,
    "EfficientNet-B0": networks.efficientnet,
    "Xception": networks.xception,
    "DenseNet-121": networks.densenet,
    "SSD300": networks.ssd,
    "DeepLabv3": networks.deeplab,
    "AlexNet": networks.alexnet,
    "ShuffleNet": networks.shufflenet,
    "Darknet-53": networks.darknet,
    "context module": networks.context,
    "WaveNet": signals.wavenet,
    "Whisper": signals.whisper,
    "wav2vec 2.0": signals.wav2vec,
    "Mamba": signals.mamba,
    "C3D": signals.c3d,
    "R(2+1)D": signals.r2plus1d,
    "3D U-Net": signals.unet3d,
    "X3D-M": signals.x3d,
}
# Kind of layer: how many the corpus has. `kind_of` has the rules.
SHARES = {
    "3-d": 5,
    "1-d": 5,
    "depthwise": 8,
    "grouped": 4,
    "dilated": 4,
    "strided": 8,
    "1x1": 15,
    "dense": 11,
}


def kind_of(case: Case) -> str:
    """The kind of a layer, one of SHARES."""
    rules = {
        "3-d": len(case.size) == 3,
        "1-d": len(case.size) == 1,
        "depthwise": case.C == case.K == 1 < case.groups,
        "grouped": case.groups > 1,
        "dilated": max(case.dilation) > 1,
        "strided": max(case.stride) > 1,
        "1x1": max(case.kernel) == 1,
        "dense": True,
    }
    return next(kind for kind in SHARES if rules[kind])


def pool() -> Suite:
    """The distinct layers to draw from; one of several networks belongs to the first of them. A
    name says the network, too.
    """
    found: dict[Case, str] = {}
    audio = ((row.name, row.case) for row in upsampling.audio() if row.operator == "fprop")
    for network, layers in NETWORKS.items():
        for name, case in layers():
            found.setdefault(case, f"{network}: {name}")
    for name, case in audio:
        found.setdefault(case, name)
    return {name: case for case, name in found.items() if case.problem.flops >= LEAST_FLOPS}


def drawn() -> Layers:
    """The corpus: its kinds in the order of SHARES, the layers of each by name."""
    candidates = pool()
    chance = random.Random(SEED)
    for kind, share in SHARES.items():
        names = sorted(name for name, case in candidates.items() if kind_of(case) == kind)
        shuffled = sorted(names, key=lambda _: chance.random())
        yield from ((name, candidates[name]) for name in sorted(shuffled[:share]))
