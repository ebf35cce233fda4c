"""Maps of a convolution, proved by simulation: shifted views of shared memory give the convolution.

The oracle indexes the tensor by the formula of the convolution, tap by tap. It does not use
boxes, walks, slots or shared memory.
"""

import random

import numpy as np
from sampling import count, sampled

from implicit_conv import tma
from implicit_conv.problem import Problem
from implicit_conv.tma.lower import OPERATORS

PROBLEMS = count(1500, 10_000)
MODES = ["im2col", "w", "w", "w_sm90", "w128"]


def gather(x, n, h, w):
    """Pixels (n, h, w) of x, with zeros outside; the indices broadcast."""
    N, H, W, _ = x.shape
    inside = (n >= 0) & (n < N) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    return np.where(inside[..., None], x[n % N, h % H, w % W], 0)


def operand_rows(problem, operator, x, rows):
    """The inputs of each output pixel (n, p, q) for every tap: rows x R x S x channels."""
    n, p, q = (rows[:, i, None, None] for i in range(3))
    r = np.arange(problem.kernel[0])[:, None] * problem.dilation[0]
    s = np.arange(problem.kernel[1])[None, :] * problem.dilation[1]
    if operator == "dgrad":  # y[p] reads x[p + r - pad], hence dx[h] collects dy[h + pad - r]
        return gather(x, n, p + problem.pad_lo[0] - r, q + problem.pad_lo[1] - s)
    h = p * problem.stride[0] + r - problem.pad_lo[0]
    w = q * problem.stride[1] + s - problem.pad_lo[1]
    return gather(x, n, h, w)


def draw_problem(rng, operator):
    """A random problem whose output has pixels."""
    while True:
        taps = [rng.randint(1, 7), rng.randint(1, 7)]
        stride = 1 if operator == "dgrad" else [rng.randint(1, 4), rng.randint(1, 4)]
        pads = [[rng.randint(0, 4), rng.randint(0, 4)] for _ in range(2)]
        dilation = [rng.randint(1, 3), rng.randint(1, 3)]
        shape = (rng.randint(1, 6), rng.randint(1, 12), rng.randint(1, 70), rng.choice([9, 16, 20]))
        K = rng.choice([9, 16, 20])
        if operator != "dgrad":
            shape, K = (*shape[:3], shape[3] // 4 * 4 + 4), K // 4 * 4
        else:
            shape, K = (*shape[:3], K // 4 * 4), shape[3] // 4 * 4 + 4
        try:
            return Problem.parse(
                shape,
                (K, *taps, shape[3]),
                stride=stride,
                padding=pads,
                dilation=dilation,
                layout="NHWC",
                weight_layout="KRSC",
            )
        except ValueError:
            continue


def fill_buffers(lowering, array, loads):
    """Shared memory after the loads of a k-block, for each buffer."""
    images = {}
    for load in loads:
        images[load.buffer] = image = tma.smem_image(
            lowering.maps[load.buffer],
            array,
            load.coords,
            lowering.buffer_address(load.buffer),
            load.offsets,
            load.w_halo,
            load.w_offset,
        )
        assert load.bytes == image.written.sum() == load.rows * lowering.tile_c * 4
    return images


def tile_operands(lowering, x, tile):
    """(tap, first channel, rows x channels) of every tap of a tile, read from shared memory."""
    array = lowering.array(x)
    for block in lowering.k_blocks(tile):
        images = fill_buffers(lowering, array, block.loads)
        for tap in block.taps:
            a = images[tap.buffer].take(lowering.view_rows(tap))
            c = int(block.loads[0].coords[3])
            yield tap, c, a[:, : lowering.channels - c].astype(float)


def run_tile(lowering, x, w, tile):
    """Sums of a tile of fprop or dgrad, and how often each row reads each tap."""
    sums = np.zeros((lowering.tile_m, w.shape[0]))
    reads = np.zeros((lowering.tile_m, *lowering.problem.kernel), int)
    for tap, c, a in tile_operands(lowering, x, tile):
        sums += a @ w[:, tap.r, tap.s, c : c + a.shape[1]].T
        reads[:, tap.r, tap.s] += c == 0
    return sums, reads


def lower(problem, mode, operator, rng):
    """A lowering with small tiles, two or more channel blocks and any swizzle; None if illegal."""
    tile_m = 128 if mode == "w128" else rng.choice([16, 24, 40, 64])
    swizzle = rng.choice(["64B", "128B"])
    try:
        return tma.maps_for(
            problem,
            mode,
            operator=operator,
            tile_m=tile_m,
            channels=rng.choice([4, 8]),
            swizzle=swizzle,
        )
    except ValueError as refused:
        assert "images of" in str(refused) or "w_halo" in str(refused), refused
        return None


def check_problem(rng):
    """Lower one problem, run the last tile and one more, and compare all rows.

    Returns (lowering, tiles that began in the middle of an output row), or None if a limit
    forbids the mode.
    """
    operator = rng.choice(["fprop", "fprop", "dgrad", "wgrad"])
    problem = draw_problem(rng, operator)
    lowering = lower(problem, rng.choice(MODES), operator, rng)
    if lowering is None:
        return None
    integers = np.random.default_rng(rng.randrange(1 << 30))
    R, S = problem.kernel
    x = integers.integers(1, 1 << 12, lowering.shape).astype("float32")
    w = integers.integers(1, 1 << 12, (2, R, S, lowering.channels)).astype(float)
    assert lowering.channels > lowering.tile_c, "at least two channel blocks"
    midway = 0
    for tile in {lowering.tiles - 1, rng.randrange(lowering.tiles)}:
        sums, reads = run_tile(lowering, x, w, tile)
        rows, kept = lowering.outputs(tile)
        midway += rows[0, 2] != 0
        read = operand_rows(problem, operator, x, rows[kept])
        expected = np.einsum("mrsc,krsc->mk", read, w, optimize=True)
        np.testing.assert_array_equal(sums[kept], expected)
        touched = read.any(axis=3)
        assert ((reads[kept] == 1) | ((reads[kept] == 0) & ~touched)).all()
    return lowering, midway


def check_weight_gradient(rng):
    """The contribution of one tile to dw; dy and x are loaded in the rows of the tile."""
    problem = draw_problem(rng, "wgrad")
    lowering = lower(problem, rng.choice(MODES), "wgrad", rng)
    if lowering is None:
        return
    integers = np.random.default_rng(rng.randrange(1 << 30))
    gradient = lowering.gradient()
    x = integers.integers(1, 1 << 9, lowering.shape).astype("float32")
    dy = integers.integers(1, 1 << 9, gradient.shape).astype("float32")
    tile = rng.randrange(lowering.tiles)
    dy_rows = np.zeros((lowering.tile_m, problem.K))
    for _, k, rows in tile_operands(gradient, dy, tile):
        dy_rows[:, k : k + rows.shape[1]] = rows
    dw = np.zeros((problem.K, *problem.kernel, problem.C))
    for tap, c, a in tile_operands(lowering, x, tile):
        dw[:, tap.r, tap.s, c : c + a.shape[1]] += dy_rows.T @ a
    rows, kept = lowering.outputs(tile)
    n, p, q = rows[kept].T
    read = operand_rows(problem, "wgrad", x, rows[kept])
    expected = np.einsum("mk,mrsc->krsc", dy[n, p, q].astype(float), read, optimize=True)
    np.testing.assert_array_equal(dw, expected)


def test_weight_gradient_through_shared_memory():
    rng = random.Random(8)
    for _ in range(400):
        check_weight_gradient(rng)


def test_every_output_is_computed_once():
    """Each output pixel is one kept row of one tile; im2col keeps all rows."""
    rng = random.Random(9)
    for _ in range(200):
        operator = rng.choice(OPERATORS)
        lowering = lower(draw_problem(rng, operator), rng.choice(MODES), operator, rng)
        if lowering is None:
            continue
        P, Q = lowering.height.out, lowering.width.out
        count = np.zeros((lowering.N, P, Q), int)
        for tile in range(lowering.tiles):
            rows, kept = lowering.outputs(tile)
            np.add.at(count, tuple(rows[kept].T), 1)
        assert (count == 1).all()


@sampled
def test_shifted_views_reproduce_the_convolution():
    rng = random.Random(7)
    counts, midway, proved = {}, 0, 0
    while proved < PROBLEMS:
        checked = check_problem(rng)
        if checked is None:
            continue
        lowering, starts = checked
        proved, midway = proved + 1, midway + starts
        key = lowering.mode, lowering.operator
        counts[key] = counts.get(key, 0) + 1
    enough = PROBLEMS // 50
    assert all(counts[mode, op] > enough for mode in set(MODES) for op in OPERATORS), counts
    assert midway > PROBLEMS / 4
