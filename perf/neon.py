"""Inner loops of the microkernels on 64-bit Arm, as llvm-mca models cores that we cannot measure.

llvm-mca (of LLVM 17 or later) predicts the cycles of a loop whose data is in L1. What is counted is
the share of the peak, which is all FMAs that a core can start.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from implicit_conv.cpu.machine.arch import MATRIX_PIXELS
from implicit_conv.cpu.methods.depthwise import PIXELS
from implicit_conv.kernels.cpu.depthwise.compiled import microkernel as depthwise
from implicit_conv.kernels.cpu.depthwise.layout import Row, Variant
from implicit_conv.kernels.cpu.emit.vector import Emitter
from implicit_conv.kernels.cpu.planar_gemm.compiled import microkernel as planar_gemm
from implicit_conv.kernels.cpu.planar_gemm.layout import RegisterTile as PixelTile
from implicit_conv.kernels.cpu.wgrad.compiled import microkernel as wgrad
from implicit_conv.kernels.cpu.wgrad.layout import RegisterTile as GradientTile
from perf import assembly
from perf.assembly import Target, compile_emitted, compile_for, inner_loop

OLDEST, NEWEST = 17, 40  # versions of LLVM to look for: older ones do not model all cores
# FMAs that a core starts in a cycle. LLVM's model of Apple's M1 is that of an older core with 3. On
# Neoverse V1 each FMA waits 4 cycles for the one before on the same sum up to LLVM 19, and 2 cycles
# in LLVM 22, as on Neoverse V2: few sums then get up to twice the share.
CORES = {"neoverse-n1": 2, "neoverse-v1": 4, "neoverse-v2": 4, "apple-m1": 3}
ITERATIONS = 100  # of a loop, so that its beginning does not count
NEON = assembly.TARGETS["neon"]
BF16 = replace(NEON, features="+neon,+bf16", fma="bfdot")
BFMMLA = replace(BF16, fma="bfmmla")
TILE = assembly.largest_tile(NEON)


def _planar_gemm(target: Target) -> str:
    """Three rows of pixels for eight filters."""
    tile = PixelTile(8, 3, False, False, False, False)
    return compile_emitted(
        target,
        planar_gemm.sum_rows.part,
        lambda builder, at: planar_gemm.emit(tile, Emitter(builder, TILE.lanes, 4, True), at),
    )


def _wgrad(target: Target) -> str:
    """The largest tile of weight gradients."""
    tile = GradientTile(TILE.inner, 2, TILE.lanes, 4, True)
    return compile_emitted(
        target, wgrad.multiply_pixels.part, lambda builder, at: wgrad.emit(tile, builder, at)
    )


def _depthwise(target: Target) -> str:
    """A row of a 3x3 filter for the pixels of the largest tile."""
    row = Row(3, 1)
    variant = Variant(PIXELS, row, (1, 1), "float32", "float32", "float32", 0)
    return compile_emitted(
        target,
        depthwise.sum_channels.part,
        lambda builder, at: depthwise.emit(variant, Emitter(builder, TILE.lanes, 4, True), at),
    )


class Kernel(NamedTuple):
    """A microkernel: its assembly for a target, and the cores that have its instructions."""

    compile: Callable[[Target], str]
    target: Target = NEON
    cores: tuple[str, ...] = tuple(CORES)

    @property
    def loop(self) -> list[str]:
        """The instructions of its inner loop."""
        return inner_loop(self.compile(self.target), self.target)


def _gemm(**changes: Any) -> Callable[[Target], str]:
    """The largest tile of products, changed."""
    tile = assembly.largest_tile(NEON, **changes)
    return lambda target: compile_for(target, tile)


PAIRS = {"dots": ("bfloat16", "bfloat16"), "y": "bfloat16"}
SQUARES = {**PAIRS, "matrices": True, "inner": MATRIX_PIXELS}
HAVE_BF16 = ("neoverse-v1", "neoverse-v2")
KERNELS = {
    "gemm float32": Kernel(_gemm()),
    "gemm float64": Kernel(_gemm(lanes=2, itemsize=8)),
    "gemm bfloat16": Kernel(_gemm(**PAIRS), BF16, HAVE_BF16),
    "gemm bfloat16 by matrices": Kernel(_gemm(**SQUARES), BFMMLA, HAVE_BF16),
    "weight gradient float32": Kernel(_wgrad),
    "planar GEMM float32": Kernel(_planar_gemm),
    "depthwise 3x3 float32": Kernel(_depthwise),
}


def tool() -> str | None:
    """The path of the newest llvm-mca; None if there is none that is new enough."""
    for version in range(NEWEST, OLDEST - 1, -1):
        if path := shutil.which(f"llvm-mca-{version}"):
            return path
    path = shutil.which("llvm-mca")
    return path if path and _version(path) >= OLDEST else None


def _version(path: str) -> float:
    """The version of LLVM, such as 19.1."""
    found = re.search(r"LLVM version (\d+\.\d+)", _output(path, "--version"))
    return float(found[1]) if found else 0.0


def _output(*command: str, text: str = "") -> str:
    """What a command prints, with `text` as its input."""
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def share_of_peak(path: str, loop: list[str], core: str) -> float:
    """The share of a core's peak at which llvm-mca predicts that it runs the instructions."""
    command = (path, "-mtriple=aarch64", f"-mcpu={core}", f"-iterations={ITERATIONS}")
    found = re.search(r"Total Cycles: +(\d+)", _output(*command, text="\n".join(loop)))
    assert found
    fmas = sum(bool(re.match("fmla|bfdot|bfmmla", line)) for line in loop)
    return ITERATIONS * fmas / (int(found[1]) * CORES[core])


def shares(path: str) -> dict[str, dict[str, float]]:
    """The shares of peak, by kernel and core, rounded to hundredths."""
    found = {}
    for name, kernel in KERNELS.items():
        loop = kernel.loop
        found[name] = {core: round(share_of_peak(path, loop, core), 2) for core in kernel.cores}
    return found


def measure() -> dict[str, object]:
    """The section of the gates; empty if llvm-mca is missing."""
    path = tool()
    if path is None:
        return {}
    version = f"llvm-mca {_version(path)}, {assembly.compiler()}"
    return {"llvm-mca": version, "share of peak": shares(path)}
