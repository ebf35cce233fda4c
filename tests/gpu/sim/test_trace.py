"""A kernel issues the tensor copies that its plan lists, in the same order."""

import numpy as np
import pytest

from implicit_conv.gpu.candidate import gpu_geometry
from implicit_conv.gpu.families import FAMILIES
from implicit_conv.gpu.trace import k_blocks, trace
from implicit_conv.tma.lower import maps_for
from implicit_conv.verify.simulate import simulate
from implicit_conv.verify.testing import plan_small, random_case, stored

WALKS = [name for name in FAMILIES if name.startswith("tma")]


def example(name, seed):
    family, rng = FAMILIES[name], np.random.default_rng(seed)
    v = family.variants[seed % len(family.variants)]
    while True:
        case = random_case(rng, family, v)
        try:
            return case, plan_small(case, family, v)
        except ValueError:
            continue


def recorded_as(load, plan):
    """A planned load as the simulator records it: mode, coordinates and operands."""
    S = plan.geometry.S
    if load.operand == "w":
        k, r, s, c = load.coords
        return "tile", (k, r * S + s, c), ()
    n, h, w, c = load.coords
    if load.mode == "im2col":
        return "im2col", load.coords, load.offsets
    if plan.variant.permuted:
        return "im2col", (h, n, w, c), (0, load.w_offset)
    return "w", load.coords, (load.w_halo, load.w_offset)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", WALKS)
def test_kernel_issues_the_plan(name, seed):
    case, plan = example(name, seed)
    arrays = (stored(a, plan.variant.dtype) for a in case.arrange(*case.inputs(seed)))
    record = []
    simulate(plan, *arrays, blocks=1, record=record)
    planned = trace(plan)
    assert [entry[:3] for entry in record] == [recorded_as(load, plan) for load in planned]
    assert [entry[4] for entry in record] == [load.rows for load in planned]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["tma-mma", "tma-w-mma"])
def test_plan_agrees_with_the_lowering(name, seed):
    """Plan and implicit_conv.tma derive the same loads and taps for each tile."""
    _, plan = example(name, seed)
    v, n_tiles = plan.variant, plan.tiles[2]
    mode = "w" if v.wide else "im2col"
    lowering = maps_for(
        plan.problem,
        mode,
        tile_m=v.tile_m,
        channels=v.tile_c,
        dtype="uint16",
        swizzle={64: "64B", 128: "128B"}[v.row_bytes],
    )
    assert lowering.tiles == plan.tiles[1]
    assert plan.geometry == gpu_geometry(plan.problem, v)
    for tile in range(lowering.tiles):
        ours = list(k_blocks(plan, tile * n_tiles))
        theirs = list(lowering.k_blocks(tile))
        assert [tuple(x for x in b.loads if x.operand == "x") for b in ours] == [
            b.loads for b in theirs
        ]
        assert [block.taps for block in ours] == [block.taps for block in theirs]
