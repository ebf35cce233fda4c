"""This CPU held to each way of multiplying that it has, so that tests run those it does not prefer.

A test that is parametrized with `BFLOAT16`, `DOT_PRODUCTS` or `QUADS` skips a way for which the CPU
lacks an instruction, and says which; it skips none because the CPU prefers another one.
"""

from dataclasses import replace

import pytest

from implicit_conv.cpu.machine.arch import (
    REGISTER_PIXELS,
    bfloat16_ways,
    cpu_arch,
    cpu_features,
    int8_ways,
)

INSTRUCTIONS = {"amx": "AMX_BF16", "matrices": "BFMMLA", "pairs": "AVX512_BF16 or BFDOT"}
NARROW = {"256 bits": 256, "128 bits": 128}  # vectors that any x86 CPU with wider ones has too
OTHER_BITS = 128 if cpu_arch().vector_bits == 256 else 256  # of vectors, but not this machine's
_HAD = bfloat16_ways(cpu_features())


def _needs(way):
    reason = f"this CPU has no {INSTRUCTIONS[way]}"
    return pytest.param(way, marks=pytest.mark.skipif(way not in _HAD, reason=reason))


DOT_PRODUCTS = tuple(map(_needs, INSTRUCTIONS))  # of bfloat16
BFLOAT16 = (*DOT_PRODUCTS, "widen")
HAS_QUADS = "quads" in int8_ways(cpu_features(), cpu_arch().vector_bits)
needs_quads = pytest.mark.skipif(not HAS_QUADS, reason="this CPU has no AVX512_VNNI or AVX_VNNI")
QUADS = replace(cpu_arch(), int8="quads")  # this machine, held to dot products of four


def arch_of(way, threads=None):
    """This machine, held to a way of multiplying bfloat16, or to narrower vectors that widen it."""
    if way not in NARROW:
        return replace(cpu_arch(threads), bfloat16=way)
    tile = REGISTER_PIXELS[NARROW[way], 16]
    arch = replace(cpu_arch(threads), vector_bits=NARROW[way], tile_pixels=tile)
    return replace(arch, bfloat16="widen", int8="widen")


def arches(dtype):
    """This machine, held to each way that it has of multiplying elements of this dtype."""
    return [arch_of(way) for way in (_HAD if dtype == "bfloat16" else _HAD[:1])]
