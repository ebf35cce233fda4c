"""Tensor stores: im2col_no_offs and reductions, against the laboratory's simulator and numpy."""

import ml_dtypes
import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx, tma
from implicit_conv.tma.check.interpreted import interpreted_map
from implicit_conv.tma.maps.ptx import instruction

SHARED = ".extern .shared .align 128 .b8 smem[];"
SIZE = 1024  # bytes that the kernel copies to shared memory, and stores from there
TEXT = """
    ld.param.u64 %d2, [given]; mov.b64 %d3, y; cvta.param.u64 %d3, %d3;
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem;
    mul.wide.u32 %d4, %r1, 4; add.s64 %d2, %d2, %d4; shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r2;
    ld.global.u32 %r4, [%d2]; st.shared.u32 [%r3], %r4;
    fence.proxy.async.shared::cta; bar.sync 0;
    setp.eq.u32 %p1, %r1, 0; @!%p1 bra END;
    STORE
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END:"""
PARAMETERS = ".param .u64 given, .param .align 64 .b8 y[128]"


def store(map, y, given, line):
    line = line.replace("[map,", "[%d3,").replace("[dst]", "[%r2]")
    text = kernel(TEXT.replace("STORE", line), PARAMETERS, shared=SHARED)
    tensor = ptx.Tensor(interpreted_map(map.arguments, 1), y)
    ptx.run(text, 1, SIZE // 4, [given, tensor], shared_bytes=SIZE)


TYPES = {
    "UINT32": "uint32",
    "INT32": "int32",
    "UINT64": "uint64",
    "INT64": "int64",
    "FLOAT32": "float32",
    "FLOAT16": "float16",
    "BFLOAT16": ml_dtypes.bfloat16,
}
OPERATIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda old, given: np.where(old >= given, 0, old + 1),
    "dec": lambda old, given: np.where((old == 0) | (old > given), given, old - 1),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
TAKEN = {  # PTX ISA 9.7.9.25.5, cp.reduce.async.bulk.tensor
    "add": "UINT32 INT32 UINT64 FLOAT32 FLOAT16 BFLOAT16",
    "min": "UINT32 INT32 UINT64 INT64 FLOAT16 BFLOAT16",
    "max": "UINT32 INT32 UINT64 INT64 FLOAT16 BFLOAT16",
    "inc": "UINT32",
    "dec": "UINT32",
    "and": "UINT32 INT32 UINT64 INT64",
    "or": "UINT32 INT32 UINT64 INT64",
    "xor": "UINT32 INT32 UINT64 INT64",
}


@pytest.mark.parametrize("element", TYPES)
@pytest.mark.parametrize("reduction", OPERATIONS)
def test_reductions(reduction, element):
    """A box that hangs over the tensor's end is reduced where it lies inside."""
    dtype = np.dtype(TYPES[element])
    rows, columns = 8, 128 // dtype.itemsize
    rng = np.random.default_rng(0)
    given, y = (rng.integers(0, 9, (rows, columns)).astype(dtype) for _ in range(2))
    if dtype.kind == "u":
        y[0, 0] = 0
    before = y.copy()
    map = tma.TiledMap(shape=y.shape, dtype=dtype, box=y.shape)
    line = instruction("tiled", (2, 0), direction="reduce", reduction=reduction)
    run = (map, y.view(f"u{dtype.itemsize}"), given.view(f"u{dtype.itemsize}"), line)
    if element not in TAKEN[reduction].split():
        with pytest.raises(ptx.PtxError, match=f"the reduction {reduction} takes "):
            store(*run)
        return
    store(*run)
    assert np.array_equal(y[:2], before[:2])
    wanted = OPERATIONS[reduction](before[2:], given[:-2]).astype(dtype)
    assert np.array_equal(y[2:], wanted)


@pytest.mark.parametrize(("direction", "want"), [("store", 1), ("reduce", 8)])
@pytest.mark.parametrize(
    ("dtype", "extent", "at", "ends"), [("uint8", 466, 384, 480), ("uint32", 18, 0, 20)]
)
def test_stores_write_whole_chunks_of_16_bytes(direction, want, dtype, extent, at, ends):
    """triton issue 11583: with an extent of 466 bytes, a box at 384 writes 384 to 479."""
    if direction == "reduce" and dtype == "uint8":
        pytest.skip("no reduction takes bytes")
    y, box = np.full((8, 512), 7, dtype), (8, 128 // np.dtype(dtype).itemsize)
    pitch = (512 * y.itemsize,)
    map = tma.TiledMap(shape=(8, extent), dtype=dtype, box=box, strides=pitch)
    given = np.ones(SIZE // y.itemsize, dtype)
    store(map, y, given, instruction("tiled", (0, at), direction=direction))
    assert np.array_equal(np.flatnonzero((y == want).all(axis=0)), np.arange(at, ends))
    (finding,) = tma.lint(map, direction=direction)
    assert finding.severity == "warning" and "whole chunks" in finding.allowed
    reached = tma.lint(map, coords=(0, 0), direction=direction)
    assert bool(reached) == (box[1] > extent)
    assert tma.lint(map) == []


def test_a_chunk_past_the_last_array_is_found():
    y = np.zeros(7 * 512 + 466, np.uint8)
    tile = ptx.TensorMap("tile", 1, 0, (466, 8), (512,), (1, 1), box=(128, 8), element="UINT8")
    line = instruction("tiled", (0, 384), direction="store")
    line = line.replace("[map,", "[%d3,").replace("[dst]", "[%r2]")
    text = kernel(TEXT.replace("STORE", line), PARAMETERS, shared=SHARED)
    given = np.ones(SIZE, np.uint8)
    with pytest.raises(ptx.PtxError, match="in no array"):
        ptx.run(text, 1, SIZE // 4, [given, ptx.Tensor(tile, y)], shared_bytes=SIZE)


def test_a_reduction_that_does_not_exist():
    map = tma.TiledMap(shape=(8, 32), dtype="float32", box=(8, 32))
    line = instruction("tiled", (0, 0), direction="reduce").replace(".add.", ".mul.")
    with pytest.raises(ptx.UnsupportedError, match="is not covered"):
        store(map, np.zeros((8, 32), np.float32), np.zeros(256, np.float32), line)


@pytest.mark.parametrize("coords", [(0, 0, 0, 0), (0, 1, 2, 0), (1, 3, 0, 0)])
def test_im2col_no_offs_equals_the_simulator(coords):
    map = tma.Im2colMap(
        shape=(2, 5, 6, 32),
        dtype="float16",
        lower_corner=(0, 0),
        upper_corner=(-1, -2),
        pixels_per_column=16,
        channels_per_pixel=32,
    )
    given = np.arange(1, 513).astype(np.float16).reshape(16, 32)
    y, wanted = (np.full(map.shape, -1, np.float16) for _ in range(2))
    line = instruction("im2col", coords, direction="store")
    assert ".im2col_no_offs." in line
    store(map, y, given, line)
    tma.store(map, wanted, coords, given)
    assert np.array_equal(y, wanted) and (y != -1).any()


@pytest.mark.parametrize("planted", ["", "arrive", "wait"])
def test_the_barrier_of_a_cluster_of_one_block(planted):
    """Each warp reads what the other wrote; without the barrier it is a race."""
    lines = {"arrive": "barrier.cluster.arrive.release.aligned;"}
    lines["wait"] = "barrier.cluster.wait.acquire.aligned;"
    if planted:
        lines[planted] = ""
    body = f"""
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; shl.b32 %r3, %r1, 2; add.u32 %r4, %r3, %r2;
    st.shared.u32 [%r4], %r1;
    {lines["arrive"]} {lines["wait"]}
    xor.b32 %r3, %r3, 128; add.u32 %r4, %r3, %r2; ld.shared.u32 %r5, [%r4];
    mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2; st.global.u32 [%d2], %r5;"""
    text = kernel(body, shared=SHARED)
    for seed in range(4):
        y = np.zeros(64, np.uint32)
        if planted:
            words = "without barrier.cluster.arrive" if planted == "arrive" else "writ"
            with pytest.raises(ptx.PtxError, match=words):
                ptx.run(text, 1, 64, [y], shared_bytes=256, seed=seed)
            continue
        ptx.run(text, 1, 64, [y], shared_bytes=256, seed=seed)
        assert np.array_equal(y, np.arange(64) ^ 32)


ARRIVE = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r2], 64; bar.sync 0;
    mapa.shared::cluster.u32 %r3, %r2, 0; mbarrier.arrive.shared::cluster.b64 _, [%r3];
    W: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;"""


def test_an_mbarrier_in_a_cluster_of_one_block():
    """As CUTLASS' consumers arrive: mapa finds the block's own mbarrier."""
    for old, new, error in (
        ("", "", ""),
        ("%r2, 0;", "%r2, 1;", "mapa to rank 1, in a cluster of 1 block"),
        ("%r2, 0;", "%r2, %r1;", "mapa to rank (31|63)"),
        ("_, [", "%d5, [", "gives no token"),
        ("init.shared", "init.shared::cluster", "the modifier .shared::cluster"),
        ("mbarrier.arrive", "@%p1 mbarrier.arrive", "deadlock"),
        ("bar.sync 0;", "bar.sync 0; @%p1 brkpt;", r"brkpt, in lanes \[0\]"),
    ):
        text = kernel(ARRIVE.replace(old, new, 1), shared=SHARED)
        if not error:
            ptx.run(text, 1, 64, [np.zeros(1)], shared_bytes=256)
            continue
        with pytest.raises(ptx.PtxError, match=error):
            ptx.run(text, 1, 64, [np.zeros(1)], shared_bytes=256)


def test_two_arrivals_without_a_wait():
    text = kernel("barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;")
    with pytest.raises(ptx.PtxError, match="twice"):
        ptx.run(text, 1, 64, [np.zeros(1, np.uint32)])


def test_a_struct_that_begins_with_a_map_and_a_cache_policy():
    """As CuTe passes its atoms: 192 bytes, of which the first 128 are the map."""
    y, given = np.zeros((8, 32), np.float32), np.arange(256, dtype=np.float32)
    map = tma.TiledMap(shape=(8, 32), dtype="float32", box=(8, 32))
    line = """createpolicy.fractional.L2::evict_first.b64 %d9, 0f3F800000;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint
    [%d3, {0, 0}], [%r2], %d9;"""
    text = kernel(TEXT.replace("STORE", line), PARAMETERS.replace("128", "192"), shared=SHARED)
    arguments = [given, tma.MapArgument(map, y)]
    report = tma.check_kernel(text, 1, 256, arguments, shared_bytes=SIZE)
    assert report.problems == [] and np.array_equal(y.reshape(-1), given)
