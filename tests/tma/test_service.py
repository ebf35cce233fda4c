"""Coverage names the taps and pixels of the loads that `maps_for` plans, and what is left out."""

import numpy as np
import pytest

from implicit_conv import tma
from implicit_conv.tma.check.service import Coverage

PROBLEMS = {  # shapes, options
    "padded": (((2, 5, 6, 8), (8, 3, 3, 8)), {"padding": 1}),
    "stride and dilation": (((2, 7, 9, 8), (8, 3, 2, 8)), {"stride": 2, "dilation": 2}),
    "groups and one axis": (((3, 11, 16), (16, 4, 8)), {"padding": 2, "groups": 2}),
    "three axes": (((1, 3, 4, 5, 8), (8, 2, 3, 3, 8)), {"padding": 1, "stride": (1, 2, 1)}),
}


def lowerings(name, operator, mode):
    shapes, options = PROBLEMS[name]
    options = {"tile_m": 128 if mode == "w128" else 16, **options}
    if operator == "dgrad":
        return tma.phases_for(shapes, mode, **options)
    return (tma.maps_for(shapes, mode, operator=operator, **options),)


def loads_of(lowering):
    """(tile, k-block, its load) of all tiles and groups."""
    for tile in range(lowering.tiles):
        for group in range(lowering.groups):
            for k_block in lowering.k_blocks(tile, group):
                for load in k_block.loads:
                    yield tile, k_block, load


def add(coverage, lowering, load):
    map = lowering.maps[load.buffer]
    walk = tma.walk(map, load.coords, load.offsets, load.w_halo, load.w_offset)
    return coverage.add(map, walk, load.coords[-1], load.offsets)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("operator", ["fprop", "dgrad", "wgrad"])
def test_im2col_loads_serve_the_tap_and_pixels_of_their_plan(name, operator):
    planned = lowerings(name, operator, "im2col")
    coverage = Coverage(planned[0].problem, operator)
    for lowering in planned:
        for tile, k_block, load in loads_of(lowering):
            services = add(coverage, lowering, load)
            assert len(services) == 1 or operator == "dgrad"  # whose phases may walk alike
            first = k_block.taps[0]
            pixels = dict(services)[(first.t, first.r, first.s)[-len(lowering.axes) :]]
            outputs, kept = lowering.outputs(tile)
            assert np.array_equal(pixels, outputs[kept])
    assert coverage.missing() == ()


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("mode", ["w", "w128"])
def test_wide_loads_hold_all_that_is_needed(name, mode):
    (lowering,) = lowerings(name, "fprop", mode)
    coverage = Coverage(lowering.problem, "fprop")
    for _, _, load in loads_of(lowering):
        add(coverage, lowering, load)
    assert coverage.missing() == ()


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_load_left_out_is_missing(name):
    """Exactly its own tap, and those pixels whose input lies in the tensor."""
    (lowering,) = lowerings(name, "fprop", "im2col")
    loads = list(loads_of(lowering))
    for left in range(0, len(loads), 1 + len(loads) // 4):
        coverage = Coverage(lowering.problem, "fprop")
        for number, (_, _, load) in enumerate(loads):
            if number != left:
                add(coverage, lowering, load)
        load = loads[left][2]
        walk = tma.walk(lowering.maps[0], load.coords, load.offsets)
        expected = int((~walk.filled).sum())
        missing = coverage.missing()
        assert sum(len(one.pixels) for one in missing) == expected and len(missing) <= 1
