"""check_kernel of clusters: each block loads some taps for all of them, by the text of map.ptx."""

import itertools
import json
import re

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import tma
from implicit_conv.tools.cli import main

SHAPE, STEP, BYTES = (2, 4, 4, 8), 1024, 1024
PROBLEM = tma.maps_for((SHAPE, (8, 3, 3, 8)), padding=1).problem
TAPS = list(itertools.product(range(3), repeat=2))
ARGUMENTS = {
    "shape": SHAPE,
    "dtype": "float32",
    "lower_corner": (-1, -1),
    "upper_corner": (-1, -1),
    "channels_per_pixel": 8,
    "pixels_per_column": 32,
}
IM2COL = tma.Im2colMap(**ARGUMENTS)
TILED = tma.TiledMap(shape=(2, 4, 32), dtype="float32", box=(2, 4, 32))
FULL = STEP * len(TAPS)


def text_of(loads, size=None):
    """A kernel of 32 threads a block: block r of two issues every other load for both, from r on,
    and each waits for all.
    """
    issues = "".join(
        f"setp.eq.u32 %p3, %r1, {number % 2}; @%p3 "
        + load.replace("[dst]", f"[%r2+{STEP * number}]")
        .replace("map", "%d2")
        .replace("[mbar]", f"[%r2+{FULL}]")
        .replace("ctaMask", "%h1")
        + "\n"
        for number, load in enumerate(loads)
    )
    body = f"""
        mov.b64 %d2, a; cvta.param.u64 %d2, %d2; mov.u32 %r2, smem; mov.u16 %h1, 3;
        mov.u32 %r1, %cluster_ctarank; mov.u32 %r3, %tid.x; setp.ne.u32 %p1, %r3, 0;
        @%p1 bra READY;
        mbarrier.init.shared.b64 [%r2+{FULL}], 1; fence.mbarrier_init.release.cluster;
        READY: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        @%p1 bra END;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2+{FULL}], {size or BYTES * len(loads)};
        {issues}
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+{FULL}], 0; @!%p2 bra WAIT;
        END:"""
    shared = ".extern .shared .align 128 .b8 smem[];"
    return kernel(body, ".param .align 64 .b8 a[128]", shared=shared)


def check(text, map=IM2COL, seed=0, problem=None):
    x = np.arange(1, 257, dtype=np.float32).reshape(map.shape)
    options = {"shared_bytes": FULL + 8, "cluster": 2, "seed": seed, "problem": problem}
    return tma.check_kernel(text, 2, 32, [tma.MapArgument(map, x)], **options)


LOADS = [IM2COL.ptx((0, -1, -1, 0), offsets=tap, direction="multicast") for tap in TAPS]


def test_bytes_in_each_block():
    """Every load is a copy to both blocks, and its bytes agree with the simulator's in each."""
    for seed in range(4):
        report = check(text_of(LOADS), seed=seed, problem=PROBLEM)
        assert report.problems == []
        found = sorted((c.destination[0], c.start.offsets, c.block[0]) for c in report.copies)
        right = [(block, tap, n % 2) for block in (0, 1) for n, tap in enumerate(TAPS)]
        assert found == right
        assert {copy.difference for copy in report.copies} == {""}
        assert "0 to 1" in str(report) and "1 to 0" in str(report)


def test_a_tile():
    load = TILED.ptx((0, 0, 0), direction="multicast")
    report = check(text_of([load]), TILED)
    assert report.problems == [] and [c.difference for c in report.copies] == ["", ""]


FAULTS = {
    "offsets that the mask should be": ("{1, 2}, %h1", "{%h1, 2}, %h2", "mask 0x0 names no block"),
    "the mask before the offsets": ("{1, 2}, %h1", "%h1, {1, 2}", "in this order"),
    "a mask of one block": (
        "{1, 2}, %h1",
        "{1, 2}, 1",
        r"of block 1 phase 0 lacks 0 of 1 arrivals and 1024 bytes",
    ),
    "another tap": ("{1, 2}, %h1", "{1, 1}, %h1", r"not loaded: tap \(2, 1\)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name):
    old, new, words = FAULTS[name]
    text = text_of(LOADS)
    assert text.count(old) == 1
    text = text.replace("mov.u16 %h1, 3;", "mov.u16 %h1, 3; mov.u16 %h2, 0;").replace(old, new)
    problems = "\n".join(check(text, problem=PROBLEM).problems)
    assert re.search(words, problems), problems


def test_fewer_bytes_than_arrive():
    report = check(text_of(LOADS, size=BYTES * 8))
    assert "1024 bytes" in report.error and "of block" in report.error


@pytest.mark.parametrize("cluster", ["2", "1"])
def test_the_command(tmp_path, capsys, cluster):
    (tmp_path / "k.ptx").write_text(text_of(LOADS))
    (tmp_path / "maps.json").write_text(json.dumps(ARGUMENTS))
    files = [str(tmp_path / "k.ptx"), "--map", str(tmp_path / "maps.json"), "--seeds", "2"]
    given = ["--grid", "2", "--cluster", cluster, "--shared", str(FULL + 8), "--arguments", "map"]
    status = main(["ptx", "check", *files, *given])
    said = capsys.readouterr().out
    assert status == (cluster == "1")
    assert "0 to 1" in said if cluster == "2" else "in a cluster of 1 block" in said


SWIZZLED = tma.TiledMap(shape=(32, 8), dtype="float32", box=(32, 8), swizzle="32B")


def test_a_reader_of_one_block():
    """Block 0 reads rows of 32 bytes as if they had no swizzle, whichever block got them last."""
    load = SWIZZLED.ptx((0, 0), direction="multicast")
    text = text_of([load]).replace("@%p1 bra END;\n        mbar", "@%p1 bra WAIT;\n        mbar")
    read = """setp.ne.u32 %p4, %r1, 0; @%p4 bra END; mad.lo.u32 %r5, %r3, 32, %r2;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r5]; END:"""
    text = text.replace("END:", read)
    for seed in range(8):
        (found,) = check(text, SWIZZLED, seed).readers
        assert "reads no swizzle, but the copy wrote swizzle 32B" in found
