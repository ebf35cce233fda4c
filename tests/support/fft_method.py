"""Convolution by Fourier transforms, which numpy computes: a method without kernels.

    y = irfft(sum over c of rfft(x) * conj(rfft(w)))

The transforms are over the padded image, in float64; strides and dilations pick and place elements.
It is here for the tests and for docs/contributing/add-a-method.md: it is slow, and a NaN or an
infinity shows in all outputs of its image, which `conv2d` does not allow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate, Given, Method, Words
from implicit_conv.cpu.candidates.query import Refusal, Request, Serves
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.kernels.cpu.runtime.program import Called, Step
from implicit_conv.kernels.geometry import LEAKY_RELU, Epilogue
from implicit_conv.problem.problem import Problem

EXACT_BITS = 36  # of the largest possible sum, which the transforms get right
SPATIAL = (1, 2, 3)  # axes of images (n, d, h, w, c)
TRANSFORM_CYCLES = 20  # cycles per element of a transform and doubling of its length: a guess


@dataclass(frozen=True)
class Fft(Method):
    """Images and filters are transformed as a whole."""

    name: ClassVar[str] = "FFT"
    algorithms: ClassVar[tuple[str, ...]] = ("fft",)
    serves: ClassVar[Serves] = Serves(("float32",), "standard", ("clamp", "leaky_relu"))

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return "product of Fourier transforms, numpy transforms"

    @property
    def order(self) -> str:
        """The order that the transform has."""
        return "frequencies"

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if the caller asks for it by name and pads with zeros."""
        if request.algorithm != "fft":
            return
        reason = refusal(problem, request)
        if reason:
            yield Refusal(cls.name, reason)
            return
        length = np.prod(extents(problem))
        transforms = problem.C * problem.N + problem.K * (problem.C // problem.groups + problem.N)
        cycles = float(transforms * length * np.log2(2 * length) * TRANSFORM_CYCLES)
        yield Candidate(cls(), "fft", problem, problem, arch, 1, cycles)

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of the transforms of x, w and y, and of the padded images, in float64."""
        problem = c.problem
        planes = problem.N * (problem.C + problem.K)
        filters = problem.K * problem.C // problem.groups
        return int((2 * planes + filters) * np.prod(extents(problem)) * 16)

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """One call of numpy's functions; they read arrays of any strides."""
        compute = functools.partial(self.convolve, c.problem, given.epilogue)
        return [Called(compute, given.arrays[:4])]

    def convolve(
        self,
        problem: Problem,
        epilogue: Epilogue,
        x: Array,
        w: Array,
        y: Array,
        residual: Array | None,
        bias: Array | None,
        scale: Array | None,
    ) -> None:
        """Convolution by Fourier transforms, and the whole epilogue that the method serves."""
        sums = transformed_sums(problem, x.astype(float), w.astype(float))
        if scale is not None:
            sums *= scale
        if bias is not None:
            sums += bias
        if residual is not None:
            sums += residual
        kind, low, high = epilogue.activation
        steep = np.where(sums < 0, low * sums, sums) if kind == LEAKY_RELU else None
        y[...] = np.clip(sums, low, high) if steep is None else steep

    def describe(self, c: Candidate) -> Words:
        """Loads and multiplications; there are no tiles."""
        size = " x ".join(map(str, extents(c.problem)))
        return {"multiply": f"numpy transforms {size} pixels of each channel and filter"}


def transformed_sums(problem: Problem, x: Array, w: Array) -> Array:
    """conv(x, w) with the axes (n, p, q, k) of the output in three dimensions."""
    size, groups = extents(problem), problem.groups
    cut = tuple(
        slice(max(0, -lo), extent - max(0, -hi))
        for lo, hi, extent in zip(problem.pad_lo, problem.pad_hi, problem.size, strict=True)
    )
    margins = [
        (max(0, lo), max(0, hi)) for lo, hi in zip(problem.pad_lo, problem.pad_hi, strict=True)
    ]
    images = np.pad(x[(slice(None), *cut)], [(0, 0), *margins, (0, 0)])
    spread = np.zeros((*w.shape[:2], *size))
    taps = tuple(
        slice(0, (n - 1) * gap + 1, gap)
        for n, gap in zip(w.shape[2:], problem.dilation, strict=True)
    )
    spread[(slice(None), slice(None), *taps)] = w
    seen = np.fft.rfftn(images, axes=SPATIAL).reshape(*_spectrum(images, size), groups, -1)
    known = np.conj(np.fft.rfftn(spread, axes=(2, 3, 4)))
    known = known.reshape(groups, -1, *known.shape[1:])
    product = np.einsum("ndhwgc,gkcdhw->ndhwgk", seen, known)
    sums = np.fft.irfftn(product.reshape(*product.shape[:4], problem.K), size, axes=SPATIAL)
    steps = tuple(
        slice(0, (n - 1) * step + 1, step)
        for n, step in zip(problem.output, problem.stride, strict=True)
    )
    # Multiples of a power of two above the errors of the transforms: sums of integers are exact.
    most = np.abs(x).max(initial=0) * np.abs(w).sum(axis=(1, 2, 3, 4)).max()
    unit = 2.0 ** np.ceil(np.log2(max(most, 2.0**-900)) - EXACT_BITS)
    return np.round(sums[(slice(None), *steps)] / unit) * unit


def _spectrum(images: Array, size: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of transforms of `images`, without channels."""
    return (images.shape[0], *size[:-1], size[-1] // 2 + 1)


def extents(problem: Problem) -> tuple[int, ...]:
    """The size of the padded image."""
    axes = zip(problem.size, problem.pad_lo, problem.pad_hi, strict=True)
    return tuple(size + lo + hi for size, lo, hi in axes)


def refusal(problem: Problem, request: Request) -> str:
    """Why the method cannot run, or an empty string."""
    if problem.repeats:
        return "it pads with zeros alone"
    if request.flushes:
        return "it keeps subnormals, because numpy transforms; use config(subnormals='keep')"
    if min(problem.N, problem.C, problem.K) < 1:
        return "it needs at least one image, one channel and one filter"
    return ""
