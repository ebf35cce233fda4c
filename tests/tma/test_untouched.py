"""What the copies of a tiled map leave out: slices, where a kernel's results are wrong."""

import re

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import tma

TENSOR = "cp.async.bulk.tensor.2d"
LOAD = f"{TENSOR}.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r2], [%d2, {{}}], [%r3];"
STORE = f"{TENSOR}.global.shared::cta.tile.bulk_group [%d3, {{}}], [%r2];"
END = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"


def check(shape, box, starts, expected=None, step=1, stores=()):
    """One thread loads boxes one after the other to the same place, and stores the last one."""
    tile = tma.TiledMap(shape=shape, dtype="float32", box=box, step=step)
    loads = [
        f"mbarrier.arrive.expect_tx.shared.b64 _, [%r3], {tile.rows() * tile.row_bytes};"
        + LOAD.format(f"{{{w}, {h}}}")
        + f"W{n}: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], {n % 2}; @!%p2 bra W{n};"
        for n, (h, w) in enumerate(starts)
    ]
    lines = [*loads, *(STORE.format(f"{{{w}, {h}}}") for h, w in stores), END]
    body = f"""
        mov.b64 %d2, x; cvta.param.u64 %d2, %d2; mov.b64 %d3, z; cvta.param.u64 %d3, %d3;
        ld.param.u64 %d1, [y]; mov.u32 %r2, tile; mov.u32 %r3, full;
        mbarrier.init.shared.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
        {chr(10).join(lines)}
        mov.u32 %r4, 1; st.global.u32 [%d1], %r4;"""
    shared = ".shared .align 8 .b8 full[8]; .shared .align 128 .b8 tile[65536];"
    x, y = np.ones(shape, np.float32), np.zeros(1, np.uint32)
    maps = ".param .align 64 .b8 x[128], .param .u64 y, .param .align 64 .b8 z[128]"
    right = np.array([1 if expected is None else expected], np.uint32)
    arguments = [tma.MapArgument(tile, x), y, tma.MapArgument(tile, np.zeros_like(x))]
    text = kernel(body, maps, shared=shared)
    return tma.check_kernel(text, 1, 1, arguments, expected={1: right})


def grid(rows, columns):
    return [(h, w) for h in rows for w in columns]


LEFT = {
    "the last columns": ((64, 144), (32, 64), grid((0, 32), (0, 64)), 1, "[:, 128:]"),
    "the first columns": ((64, 144), (32, 64), grid((0, 32), (16, 80)), 1, "[:, :16]"),
    "columns between": ((64, 144), (32, 64), grid((0, 32), (0, 80)), 1, "[:, 64:80]"),
    "the last rows": ((70, 64), (32, 64), grid((0, 32), (0,)), 1, "[64:, :]"),
    "one row": ((65, 64), (32, 64), grid((0, 32), (0,)), 1, "[64, :]"),
    "rows and columns": ((70, 72), (32, 64), grid((0, 32), (0,)), 1, "[:, 64:], [64:, :64]"),
    "one tile": ((64, 128), (32, 64), [(0, 0), (0, 64), (32, 0)], 1, "[32:, 64:]"),
    "a start outside": ((64, 64), (32, 64), [(-16, 0), (16, 0)], 1, "[48:, :]"),
    "steps": ((8, 64), (8, 64), [(0, 0)], (2, 1), "[1, :], [3, :], [5, :], 64 other elements"),
    "steps from outside": ((4, 64), (4, 64), [(-1, 0), (0, 0)], (2, 1), "[3, :]"),
}


@pytest.mark.parametrize("name", LEFT)
def test_parts_that_no_copy_loads(name):
    shape, box, starts, step, words = LEFT[name]
    *_, said = check(shape, box, starts, 2, step).problems
    assert said == f"map 0: none of its copies loads {words}"


def test_the_slices_are_those_of_numpy():
    """The slices of random boxes, evaluated, are what the boxes leave out."""
    random = np.random.default_rng(3)
    for _ in range(20):
        shape, box = (40, 48), (int(random.integers(1, 40)), 4 * int(random.integers(1, 12)))
        starts = [(int(random.integers(-8, 40)), 4 * int(random.integers(-2, 12))) for _ in "ab"]
        left = np.ones(shape, bool)
        for h, w in starts:
            left[max(h, 0) : max(h + box[0], 0), max(w, 0) : max(w + box[1], 0)] = False
        (line,) = check(shape, box, starts).untouched or ("",)
        for part in re.findall(r"\[.*?\]", line):
            at = eval(f"np.s_{part}")
            assert left[at].all() and left[at].size
            left[at] = False
        assert (int(left.sum()) or None) == (
            int(more[1]) if (more := re.search(r"(\d+) other elements", line)) else None
        )


def test_a_right_kernel_may_leave_parts_out():
    """They are in the report, and no problem; a tensor that is loaded whole is in neither."""
    report = check((64, 144), (32, 64), grid((0, 32), (0, 64)))
    assert report.problems == []
    assert report.untouched == ("map 0: none of its copies loads [:, 128:]",)
    assert check((64, 144), (32, 64), grid((0, 32), (0, 64, 128))).untouched == ()
    assert check((64, 144), (32, 64), [(0, 0), (64, 0)]).untouched


def test_parts_that_no_copy_stores():
    report = check((64, 64), (32, 64), grid((0, 32), (0,)), 2, stores=[(0, 0)])
    assert report.problems[1:] == ["map 2: none of its copies stores [32:, :]"]
    stores = grid((0, 32), (0,))
    assert check((64, 64), (32, 64), stores, 2, stores=stores).problems[1:] == []
