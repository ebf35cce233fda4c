"""Problems of each kernel family span what they should, and plans agree with the lowering."""

import numpy as np
import pytest

from implicit_conv.gpu.plan.candidate import gpu_geometry
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.gpu.plan.rows import row_tiles
from implicit_conv.gpu.plan.trace import k_blocks
from implicit_conv.kernels import schedule
from implicit_conv.testing.gpu.problems import family_problems
from implicit_conv.tma.run.lowering_choice import maps_for

PROBLEMS = 50
BLOCKS = 2


@pytest.mark.parametrize("name", FAMILIES)
def test_problems_span_what_they_should(name):
    """Every problem has two tiles along each GEMM axis; each difficulty occurs in some problems."""
    seen = set()
    for case, plan in family_problems(FAMILIES[name], PROBLEMS, seed=len(name)):
        v, g = plan.variant, plan.geometry
        groups, m, n = plan.tiles
        if v.strip:
            seen |= what_strips_span(case, plan)
            continue
        if v.band:
            seen |= what_rows_span(case, plan)
            continue
        assert m >= 2 and n >= 2 and schedule.block_count(g) >= 2
        loads = groups * m * n // BLOCKS * (g.T * g.R * g.S if not v.wide else g.R)
        seen.add("rings turn" if loads > 2 * plan.layout.a_stages else "")
        seen.add(f"stride {case.stride[1]}")
        seen.add("dilation" if max(case.dilation) > 1 else "")
        seen.add("padding" if np.any(case.padding) else "")
        seen.add("C tail" if g.C % v.tile_c else "")
        seen.add("K tail" if g.K % v.tile_n else "")
        pixels = g.slots if v.wide else g.Z * g.P * g.Q
        seen.add("images in a tile" if v.tile_m > pixels else "")
        seen.add("row wrap" if v.tile_m > g.Q else "")
        seen.add("groups" if g.groups > 1 else "")
        if v.volume:
            seen |= what_planes_span(case, plan)
        if v.wide:
            seen.add("junk slots" if g.slots > g.Q else "")
            seen.add(f"{g.phases_w} phases")
            seen.add("skipped rows" if schedule.load_rows(g, 1, 0)[0] else "")
    wanted = {
        "rings turn",
        "stride 1",
        "stride 2",
        "stride 3",
        "dilation",
        "padding",
        "C tail",
        "K tail",
        "images in a tile",
        "row wrap",
    }
    if "w" in name.split("-"):
        wanted |= {"junk slots", "1 phases", "2 phases", "3 phases", "skipped rows"}
    if name.startswith("volume"):
        wanted |= {
            *("several planes", "planes in a tile", "filter planes", "plane stride"),
            *("plane dilation", "plane padding", "one plane of x", "one plane of w"),
        }
    if len(FAMILIES[name].groups) > 1:
        wanted.add("groups")
    if name == "direct":
        wanted = {
            *("stride 1", "stride 2", "stride 3", "dilation", "padding", "K tail", "row tail"),
            *("images in a tile", "channels first", "vectors", "elements", "shared columns"),
        }
    if name == "rows-mma":
        wanted = {
            *("stride 1", "stride 2", "stride 3", "padding", "K tail", "row tail", "vectors"),
            *("planes", "elements", "channels first", "tiles across", "images", "packed"),
        }
    assert wanted <= seen


def what_planes_span(case, plan):
    """What is difficult in a problem of volumes."""
    v, g = plan.variant, plan.geometry
    return {
        "several planes" if g.Z > 1 else "",
        "planes in a tile" if g.Z > 1 and v.tile_m > g.P * g.Q else "",
        "filter planes" if g.T > 1 and g.D > 1 else "",
        "plane stride" if g.stride_d > 1 and g.Z > 1 else "",
        "plane dilation" if g.dilation_d > 1 and g.T > 1 else "",
        "plane padding" if case.padding[0] != (0, 0) and g.Z > 1 else "",
        "one plane of x" if g.D == 1 else "",
        "one plane of w" if g.T == 1 else "",
    }


def what_rows_span(case, plan):
    """What is difficult in a problem by rows, which has two panels and two tiles down an image."""
    v, g = plan.variant, plan.geometry
    down, across, _ = row_tiles(g, v)
    assert down >= 2 and plan.tiles[2] == 2
    return {
        v.producer,
        f"stride {case.stride[1]}",
        "padding" if case.padding != ((0, 0), (0, 0)) else "",
        "K tail" if g.K % v.tile_n else "",
        "row tail" if g.P % v.band.rows else "",
        "channels first" if case.layout == "NCHW" else "",
        "tiles across" if across > 1 else "",
        "images" if case.N > 1 else "",
        "packed" if v.packed else "",
    }


def what_strips_span(case, plan):
    """What is difficult in a problem of strips, which has two panels and two tiles of each."""
    v, g = plan.variant, plan.geometry
    panels, m, _ = plan.tiles
    assert panels >= 2 and m >= 2
    return {
        v.producer,
        f"stride {case.stride[1]}",
        "dilation" if max(case.dilation) > 1 else "",
        "padding" if case.padding != ((0, 0), (0, 0)) else "",
        "K tail" if g.groups * g.K % v.tile_n else "",
        "row tail" if g.Q % v.strip.pixels else "",
        "images in a tile" if v.tile_m > g.P * g.Q else "",
        "channels first" if case.layout == "NCHW" else "",
        "shared columns" if v.strip.columns > 1 else "",
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["tma-mma", "tma-w-mma", "volume-tma-mma"])
def test_plan_agrees_with_the_lowering(name, seed):
    """Plan and implicit_conv.tma derive the same loads and taps for each tile."""
    for _, plan in family_problems(FAMILIES[name], 2, seed):
        v, n_tiles = plan.variant, plan.tiles[2]
        lowering = maps_for(
            plan.problem,
            "w" if v.wide else "im2col",
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


def test_bits_of_16_bit_types():
    """Rounding to the nearest, ties to even; infinities and NaN stay what they are."""
    from implicit_conv.testing.gpu.problems import loaded, stored

    values = np.array([1, 1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf, -np.inf, np.nan], np.float32)
    rounded = np.array([1, 1, 1 + 2.0**-6, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(loaded(stored(values, "bfloat16"), "bfloat16"), rounded)
    np.testing.assert_array_equal(loaded(stored(values, "float16"), "float16"), values)
