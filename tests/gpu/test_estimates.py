"""Estimates and choices against times of an H200: each layer of ResNet-50 with up to 14 kernels."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from implicit_conv.gpu.cuda.arch import gpu_arch
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.testing.gpu.problems import problem_of
from perf.networks import all_resnet50

MEASURED = json.loads((Path(__file__).parents[1] / "data" / "gpu_candidates_h200.json").read_text())
H200 = replace(gpu_arch("sm_90"), memory=4.9e12)  # what its driver tells
CASES, OFTEN = dict(all_resnet50()), Counter(name for name, _ in all_resnet50())
OFF = {"n256": 0.12, "n32": 0.2}  # of the measured time; of 32 images four are off by over 0.12
REGRET = 1.02  # the chosen kernels' time over the fastest kernels', over the network


def chosen(name):
    """(choice, its label in the measurements, times) of a layer."""
    layer, dtype, images = name.rsplit(" ", 2)
    case = replace(CASES[layer], N=int(images[1:]), layout="NHWC", weight_layout="KRSC")
    made = choose(problem_of(case, dtype), H200)
    v = made.variant
    return made, f"{v.mode} {v.tile_m}x{v.tile_n} r{v.resident}", MEASURED["layers"][name]


@pytest.mark.parametrize("name", MEASURED["layers"])
def test_estimate_of_the_chosen_kernel(name):
    made, label, times = chosen(name)
    estimated = 1e6 * made.estimate.cycles / H200.hertz
    assert estimated == pytest.approx(times[label], rel=OFF[name.split()[-1]])


@pytest.mark.parametrize("kind", ["bfloat16 n256", "float16 n32"])
def test_the_network_is_faster_than_by_cudnn(kind):
    """The 52 layers beside the first, each as often as the network has it."""
    ours = best = rival = 0.0
    for name in MEASURED["layers"]:
        if name.endswith(kind):
            _, label, times = chosen(name)
            often = OFTEN[name.removesuffix(f" {kind}")]
            ours += often * times[label]
            best += often * min(time for kernel, time in times.items() if kernel != "cuDNN")
            rival += often * times["cuDNN"]
    assert ours <= REGRET * best
    assert ours < rival
