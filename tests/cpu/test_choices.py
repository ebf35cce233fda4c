"""Choices and estimates of the planner on CPUs that are not at hand, against committed lists.

`python tests/cpu/test_choices.py` writes the lists anew: a change of them needs a record of that
CPU which argues for it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines import dgrad, wgrad
from implicit_conv.cpu.engines.engine import plan
from implicit_conv.cpu.machine.arch import CpuArch, nearest_costs
from implicit_conv.problem.problem import Problem
from perf.layers import SUITES

FOLDER = Path(__file__).parent / "choices"
KIB = 1 << 10
INTEL = "GenuineIntel"
CPUS = {
    "epyc9004": CpuArch(
        *(512, True, 32 * KIB, 1024 * KIB, 1, 14),
        rounds_bfloat16=True,
        bfloat16="pairs",
        int8="quads",
    ),
    "epyc9005": CpuArch(
        *(512, True, 48 * KIB, 1024 * KIB, 1, 14),
        rounds_bfloat16=True,
        bfloat16="pairs",
        int8="quads",
        l1_ways=12,
    ),
    "xeon": CpuArch(
        *(512, True, 48 * KIB, 2048 * KIB, 1, 14),
        rounds_bfloat16=True,
        bfloat16="pairs",
        int8="quads",
        l1_ways=12,
        costs=nearest_costs(512, INTEL),
    ),
    "avx2": CpuArch(256, True, 32 * KIB, 512 * KIB, 1, 6),
    "intel-avx2": CpuArch(
        *(256, True, 48 * KIB, 1280 * KIB, 1, 6), l1_ways=12, costs=nearest_costs(256, INTEL)
    ),
    "neon": CpuArch(
        *(128, True, 64 * KIB, 1024 * KIB, 1, 12),
        rounds_bfloat16=True,
        bfloat16="matrices",
        l1_ways=4,
    ),
}
# Suites of convolutions, with the dtypes that their lists have.
FORWARD = {
    **dict.fromkeys(("resnet50", "mobilenet", "small"), ("float32", "bfloat16")),
    **dict.fromkeys(("first",), ("float32", "float64", "bfloat16")),
    **dict.fromkeys(
        ("resnext50", "convnext", "vgg", "unet", "xception", "ssd", "aspp"), ("float32",)
    ),
    **dict.fromkeys(("depthwise", "pixel", "conv1d", "conv3d"), ("float32",)),
    "int8": (None,),
}
BACKWARD = ("resnet50", "depthwise", "transposed")


def problems(operator: str) -> Iterator[tuple[str, Problem]]:
    """The problems of a list, each with a name, without those of equal names."""
    suites = FORWARD if operator == "fprop" else dict.fromkeys(BACKWARD, ("float32",))
    for suite, dtypes in suites.items():
        for name, case in dict(SUITES[suite][1]()).items():
            for layout in ("NCHW", "NHWC") if len(case.size) == 2 else (case.layout,):
                for dtype in dtypes:
                    given = case if dtype is None else replace(case, dtype=dtype)
                    problem = replace(given, layout=layout).problem
                    yield f"{suite}, {name}, {layout}, {problem.dtype}", problem


def choice(operator: str, problem: Problem, arch: CpuArch) -> Candidate:
    """The planner's choice for a plain filter."""
    make = {"fprop": plan, "dgrad": dgrad.plan, "wgrad": wgrad.plan}[operator]
    found: Candidate = make(problem, arch, Request()).choice.best
    return found


def words(c: Candidate) -> str:
    """A candidate and its estimate, in short."""
    if c.parts:
        parts = ", ".join(words(part.best) for part in c.parts[:1])
        return f"{c.method} of {len(c.parts)} ({parts}) {c.cycles:.4g}"
    g = c.geometry
    tile = f"{g.tile_n}x{g.tile_p}x{g.tile_q} of {g.tile_c}, {g.tile_m}x{g.tile_k}, {c.chunk}"
    return f"{c.method} {tile} {c.cycles:.4g}"


def lines(operator: str, arch: CpuArch, every: int = 1) -> Iterator[str]:
    """The lines of a list, of `every` so many problems one."""
    for number, (name, problem) in enumerate(problems(operator)):
        if number % every == 0:
            yield f"{name}: {words(choice(operator, problem, arch))}"


def committed(cpu: str, operator: str) -> list[str]:
    """The lines of a committed list."""
    return (FOLDER / f"{cpu}-{operator}.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("operator", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("cpu", CPUS)
def test_choices_of_some_layers_are_the_committed_ones(cpu, operator):
    every = 9
    assert list(lines(operator, CPUS[cpu], every)) == committed(cpu, operator)[::every]


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("cpu", CPUS)
def test_choices_of_all_layers_are_the_committed_ones(cpu, operator):
    assert list(lines(operator, CPUS[cpu])) == committed(cpu, operator)


def write() -> None:
    """Write all lists."""
    FOLDER.mkdir(exist_ok=True)
    for cpu, arch in CPUS.items():
        for operator in ("fprop", "dgrad", "wgrad"):
            text = "\n".join(lines(operator, arch)) + "\n"
            (FOLDER / f"{cpu}-{operator}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
