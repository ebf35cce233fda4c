"""check_kernel: hand-written kernels whose copies are right, and with one mistake each."""

import itertools

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx, tma

SHARED = ".extern .shared .align 1024 .b8 smem[];"
STEP = 2048  # bytes of shared memory for each copy; the mbarrier comes after the last one
SHAPE = 2, 4, 4, 8
PROBLEM = tma.maps_for((SHAPE, (8, 3, 3, 8)), padding=1).problem
TAPS = list(itertools.product(range(3), repeat=2))
OUTPUTS = [list(pixel) for pixel in np.ndindex(2, 4, 4)]
COMMON = {"shape": SHAPE, "dtype": "float32", "channels_per_pixel": 8}
IM2COL = tma.Im2colMap(
    lower_corner=(-1, -1), upper_corner=(-1, -1), pixels_per_column=32, swizzle="32B", **COMMON
)
# Rows of 32 bytes in a span of 64: gaps of 32 bytes. Slots of a row: w = -1 to 3.
WIDE = tma.Im2colWideMap(
    lower_corner_w=-1, upper_corner_w=0, pixels_per_column=10, swizzle="64B", **COMMON
)
BOX = tma.TiledMap(shape=SHAPE, dtype="float32", box=(1, 4, 4, 8))
# One load of all 32 output pixels for each tap, and of a row of both images for each row of taps.
IM2COL_LOADS = [f"im2col [-1 -1 0] {s} {r}" for r, s in TAPS]
WIDE_LOADS = [f"im2col::w [-1 {h} 0] 2 0" for h in range(4)]


def text_of(loads, size, more=""):
    """A kernel in which one thread issues loads, "mode [w h n] operands", and waits for them."""
    barrier, lines = STEP * len(loads), []
    for number, load in enumerate(loads):
        mode, _, rest = load.partition(" [")
        at, _, operands = rest.partition("]")
        info = f", {{{', '.join(operands.split())}}}" if operands else ""
        lines.append(
            f"cp.async.bulk.tensor.4d.shared::cta.global.{mode}.mbarrier::complete_tx::bytes "
            f"[%r2+{STEP * number}], [%d2, {{0, {', '.join(at.split())}}}], [%r2+{barrier}]{info};"
        )
    issues = "\n".join(lines)
    body = f"""
        mov.b64 %d2, a; cvta.param.u64 %d2, %d2; mov.u32 %r2, smem;
        mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
        mbarrier.init.shared.b64 [%r2+{barrier}], 1; fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r2+{barrier}], {size * len(loads)};
        {issues}
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+{barrier}], 0; @!%p2 bra WAIT;
        {more}
        END:"""
    return kernel(body, ".param .align 64 .b8 a[128]", target="sm_100a", shared=SHARED)


def check(map, loads, size, encoded=None, problem=PROBLEM, more=""):
    x = np.arange(1, 257, dtype=np.float32).reshape(SHAPE)
    arguments = [tma.MapArgument(map, x, encoded)]
    options = {"shared_bytes": STEP * len(loads) + 8, "problem": problem}
    return tma.check_kernel(text_of(loads, size, more), 1, 32, arguments, **options)


def replaced(loads, number, old, new):
    assert old in loads[number]
    return [load.replace(old, new) if n == number else load for n, load in enumerate(loads)]


def test_a_right_im2col_kernel():
    """Counts of filled rows are those of the convolution's definition."""
    report = check(IM2COL, IM2COL_LOADS, 1024)
    assert report.problems == [] and len(report.copies) == 9
    for copy, (r, s) in zip(report.copies, TAPS, strict=True):
        assert copy.complete and copy.difference == "" and copy.walk.bytes == 1024
        assert copy.start.coords == (0, -1, -1, 0) and copy.start.offsets == (r, s)
        ((tap, pixels),) = copy.serves
        assert tap == (r, s) and pixels.tolist() == OUTPUTS
        inside = [0 <= p + r - 1 < 4 and 0 <= q + s - 1 < 4 for _, p, q in OUTPUTS]
        assert copy.walk.filled.tolist() == [not there for there in inside]
    heads, first, *_, last = str(report).splitlines()
    assert (
        heads.split() == "block warp line mode map start offsets shared bytes filled smem".split()
    )
    assert "14      agrees  tap (0, 0): 32 from (0, 0, 0)" in first and last == "nothing is wrong"


def test_a_right_wide_kernel():
    """A row of both images, with halo and gaps; rows of taps share it."""
    report = check(WIDE, WIDE_LOADS, 12 * 32)
    assert report.problems == [] and [copy.difference for copy in report.copies] == [""] * 4
    assert [copy.start.w_halo for copy in report.copies] == [2] * 4
    served = {tap: pixels.tolist() for tap, pixels in report.copies[0].serves}
    assert set(served) == {(r, s) for r, s in TAPS if r < 2}  # row 0 is row 1 of taps for p = 0
    assert served[1, 0] == [[n, 0, q] for n in (0, 1) for q in range(4)]
    assert served[0, 2][0] == [0, 1, 0]


MISTAKES = {
    "a start outside the box": (
        IM2COL,
        replaced(IM2COL_LOADS, 4, "-1 -1", "-2 -1"),
        ["copy 4 (line 20): coords[w] = -2: must start inside", "run stopped: block 0: warp 0"],
    ),
    "a start one output late": (
        IM2COL,
        replaced(IM2COL_LOADS, 4, "-1 -1", "0 -1"),
        ["not loaded: tap (1, 1): the input of 1 output pixels, such as (0, 0, 0)"],
    ),
    "an offset of another tap": (
        IM2COL,
        replaced(IM2COL_LOADS, 4, "] 1 1", "] 2 1"),
        ["not loaded: tap (1, 1): the input of 32 output pixels, such as (0, 0, 0)"],
    ),
    "an offset past the filter": (
        IM2COL,
        replaced(IM2COL_LOADS, 4, "] 1 1", "] 3 1"),
        ["copy 4 (line 20): it serves no tap", "not loaded: tap (1, 1): the input of 32"],
    ),
    "an offset of nine bits": (
        IM2COL,
        replaced(IM2COL_LOADS, 4, "] 1 1", "] 1 300"),
        ["copy 4 (line 20): offsets[h] = 300: must be in [0, 255]", "out of range"],
    ),
    "another mode": (
        IM2COL,
        replaced(IM2COL_LOADS, 4, "im2col", "im2col::w"),
        ["copy 4 (line 20): mode = im2col::w: must be im2col", "run stopped"],
    ),
    "a box's mode": (
        IM2COL,
        replaced(IM2COL_LOADS, 0, IM2COL_LOADS[0], "tile [-1 -1 0]"),
        ["copy 0 (line 16): mode = tile: must be im2col", "run stopped"],
    ),
    "a wide copy of another image row": (
        WIDE,
        replaced(WIDE_LOADS, 2, "-1 2", "-1 3"),
        [f"not loaded: tap ({r}, {s})" for r, s in TAPS],
    ),
    "a w_offset of six bits": (
        WIDE,
        replaced(WIDE_LOADS, 1, "] 2 0", "] 2 40"),
        ["copy 1 (line 17): w_offset = 40: must be in [0, 31]", "run stopped"],
    ),
    "a wide copy with im2col's mode": (
        WIDE,
        replaced(WIDE_LOADS, 1, "im2col::w", "im2col"),
        ["copy 1 (line 17): mode = im2col: must be im2col::w", "run stopped"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported(name):
    map, loads, said = MISTAKES[name]
    report = check(map, loads, 1024 if map is IM2COL else 12 * 32)
    assert len(report.problems) == len(said), report.problems
    for line, words in zip(report.problems, said, strict=True):
        assert words in line


@pytest.mark.parametrize(
    ("map", "loads", "size", "swizzle", "said"),
    [
        (IM2COL, IM2COL_LOADS, 1024, "64B", "bytes are written or left alone unlike"),
        (IM2COL, IM2COL_LOADS, 1024, "NONE", "of 1024 bytes differ from smem_image"),
        (WIDE, WIDE_LOADS, 384, "128B", "bytes are written or left alone unlike"),
    ],
    ids=["wider", "none", "wide"],
)
def test_a_swizzle_unlike_the_maps(map, loads, size, swizzle, said):
    encoded = {**map.arguments, "swizzle": f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"}
    first, *others = check(map, loads, size, encoded).problems
    assert first.startswith(f"map 0: swizzle = CU_TENSOR_MAP_SWIZZLE_{swizzle}: must be")
    assert len(others) == 1 and said in others[0]
    assert f"copy 0 (line 16) and {len(loads) - 1} others: " in others[0]


def test_a_corner_unlike_the_maps():
    """The driver's arrays are fastest-first, so a transposed corner walks another box."""
    encoded = {**IM2COL.arguments, "pixelBoxLowerCorner": (-1, 0)}
    said = "\n".join(check(IM2COL, IM2COL_LOADS[-1:], 1024, encoded, problem=None).problems)
    assert "pixelBoxLowerCorner = (-1, 0): must be (-1, -1)" in said
    assert "outside the window" in said


def test_a_call_as_a_log_has_it():
    """Enumerations are numbers, arrays are lists."""
    logged = {**IM2COL.arguments, "tensorDataType": 7, "swizzle": 1, "oobFill": 0, "interleave": 0}
    lists = {name: list(value) for name, value in logged.items() if isinstance(value, tuple)}
    assert check(IM2COL, IM2COL_LOADS, 1024, {**logged, **lists}).problems == []
    assert check(IM2COL, IM2COL_LOADS, 1024, {**logged, "tensorDataType": 6}).problems


def test_a_box_and_its_store():
    """A tiled map has no walk to compare; its store is listed, and what it breaks is found."""
    store = "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%d2, {0, X, 0, 1}], [%r2];"
    end = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    report = check(BOX, ["tile [0 0 0]"], 512, problem=None, more=store.replace("X", "0") + end)
    load, stored = report.copies
    assert report.problems == [] and load.difference == "" and load.serves is None
    assert stored.direction == "store" and stored.complete and stored.difference is None
    assert stored.walk.coordinates.tolist() == [[1, h, w] for h in range(4) for w in range(4)]
    report = check(BOX, ["tile [0 0 0]"], 512, problem=None, more=store.replace("X", "-1") + end)
    assert "copy 1 (line 18): coords[2] = -1: must be at least 0 for a store" in report.problems[0]


def test_a_box_serves_what_it_holds():
    report = check(BOX, ["tile [0 0 0]", "tile [0 0 1]"], 512)
    assert report.problems == [] and len(report.copies[1].serves) == 9
    assert all("(1, " in str(missing) for missing in check(BOX, ["tile [0 0 0]"], 512).missing)


def test_what_cannot_be_checked_is_refused():
    x = np.zeros(SHAPE, np.float32)
    text = text_of(IM2COL_LOADS, 1024)
    for argument, words in (
        (tma.MapArgument(IM2COL, x[..., ::-1]), "pass a C-contiguous array"),
        (tma.MapArgument(IM2COL, x.astype("float16")), "float16 array of shape"),
        (
            tma.MapArgument(BOX, x, {**BOX.arguments, "swizzle": "128B_ATOM_32B"}),
            "not model swizzle",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            tma.check_kernel(text, 1, 32, [argument], shared_bytes=65536)
    with pytest.raises(ValueError, match=r"argument 0: pass MapArgument.*, not the Im2colMap"):
        tma.check_kernel(text, 1, 32, [IM2COL], shared_bytes=65536)
    with pytest.raises(ptx.UnsupportedError, match="im2col_no_offs"):
        unknown = text.replace("global.im2col.", "global.im2col_no_offs.")
        tma.check_kernel(unknown, 1, 32, [tma.MapArgument(IM2COL, x)], shared_bytes=65536)


def test_a_long_table_is_cut_but_not_what_is_wrong():
    loads = replaced(WIDE_LOADS * 8, 30, "] 2 0", "] 2 40")
    _, *lines = str(check(WIDE, loads, 12 * 32, problem=None)).splitlines()
    assert [line.split()[0] for line in lines[:25]] == [*map(str, range(24)), "30"]
    assert lines[25] == "... 31 copies in all" and lines[26].startswith("copy 30 (line 46): w_off")


def test_the_order_of_arrivals_does_not_change_the_report():
    x = np.arange(1, 257, dtype=np.float32).reshape(SHAPE)
    texts = {
        str(
            tma.check_kernel(
                text_of(WIDE_LOADS, 384),
                2,
                32,
                [tma.MapArgument(WIDE, x)],
                "sm_100a",
                shared_bytes=STEP * 4 + 8,
                problem=PROBLEM,
                seed=seed,
            )
        )
        for seed in range(4)
    }
    assert len(texts) == 1


# { int n; CUtensorMap a, b; float *y; } by value, as kernels of CUTLASS take their parameters.
STRUCT = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 params[SIZE])
{
    .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %d<9>;
    .shared .align 128 .b8 tile[512]; .shared .align 8 .b8 full[8];
    mov.b64 %d1, params; cvta.param.u64 %d1, %d1; add.s64 %d2, %d1, FIRST; add.s64 %d3, %d1, SECOND;
    mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, full; add.u32 %r4, %r2, 256;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%d2, {0, 0}], [%r3];
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r4], [%d3, {0, 0}], [%r3];
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
    COPY
    END: ret;
}
"""
COPY = """ld.shared.u32 %r5, [%r4]; ld.param.u64 %d5, [params+320]; st.global.u32 [%d5], %r5;
    ld.param.u32 %r5, [params]; st.global.u32 [%d5+4], %r5;"""


def struct(size, first, second, copy=""):
    sizes = {"SIZE": size, "FIRST": first, "SECOND": second, "COPY": copy}
    text = STRUCT
    for name, value in sizes.items():
        text = text.replace(name, str(value))
    return text


@pytest.mark.parametrize("at", [0, 64, 128])
def test_a_map_anywhere_in_a_struct(at):
    map = tma.TiledMap(shape=(8, 8), dtype="float32", box=(8, 8))
    given = tma.MapArgument(map, np.ones((8, 8), np.float32))
    assert tma.check_kernel(struct(256, at, at), 1, 32, [given]).problems == []
    (problem,) = tma.check_kernel(struct(256, at, 64 - at % 128), 1, 32, [given]).problems[:1]
    assert "holds no tensor map" in problem


def test_two_maps_in_a_struct():
    first, second = (
        tma.TiledMap(shape=(8, 8), dtype="float32", box=box) for box in ((8, 8), (8, 8))
    )
    a, b = np.ones((8, 8), np.float32), np.full((8, 8), 3, np.float32)
    y = np.zeros(2, np.uint32)
    members = {64: tma.MapArgument(first, a), 192: tma.MapArgument(second, b)}
    members |= {0: np.int32(5), 320: y}
    report = tma.check_kernel(struct(384, 64, 192, COPY), 1, 32, [members])
    assert report.problems == []
    assert [copy.argument for copy in report.copies] == ["0 at byte 64", "0 at byte 192"]
    assert y.tolist() == [np.float32(3).view(np.uint32), 5]
    swapped = tma.check_kernel(struct(384, 192, 64, COPY), 1, 32, [members])
    assert y[0] == np.float32(1).view(np.uint32) and swapped.problems == []
    with pytest.raises(ptx.LaunchError, match=r"at byte 380 of a struct of 384: give an array"):
        tma.check_kernel(struct(384, 64, 192), 1, 32, [{380: y}])
    with pytest.raises(ptx.LaunchError, match="give an array, a Tensor, None, bytes or a numpy"):
        tma.check_kernel(struct(384, 64, 192), 1, 32, [{0: 5}])
