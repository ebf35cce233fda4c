"""Maps of a convolution, proved by simulation: shifted views of shared memory give the convolution.

The oracle indexes the tensor by the formula of the convolution, tap by tap. It does not use
boxes, walks, slots or shared memory.
"""

import random
from collections import Counter

import numpy as np
from sampling import count, resampled

from implicit_conv import tma
from implicit_conv.problem.problem import Problem
from implicit_conv.tma.run.lowering_choice import OPERATORS

PROBLEMS = count(400, 10_000, 1200)
MODES = ["im2col", "w", "w", "w_sm90", "w128"]


def gather(x, n, position, exists):
    """Pixels of x, with zeros outside and where they do not exist; the indices broadcast."""
    inside = exists & (n >= 0) & (n < x.shape[0])
    for at, size in zip(position, x.shape[1:-1], strict=True):
        inside = inside & (at >= 0) & (at < size)
    index = (n % x.shape[0], *(at % size for at, size in zip(position, x.shape[1:-1], strict=True)))
    return np.where(inside[..., None], x[index], 0)


def operand_rows(problem, operator, x, rows):
    """The inputs of each output pixel (n, spatial) for every tap: rows x kernel x channels."""
    rank = problem.rank
    fields = problem.dilation, problem.stride, problem.pad_lo
    n, position, exists = rows[:, 0].reshape(-1, *(1,) * rank), [], np.True_
    for axis, (dilation, stride, pad) in enumerate(zip(*fields, strict=True)):
        p = rows[:, 1 + axis].reshape(-1, *(1,) * rank)
        taps = (-1, *(1,) * (rank - 1 - axis))
        r = np.arange(problem.kernel[axis]).reshape(taps) * dilation
        if operator == "dgrad":  # y[p] reads x[p*stride + r - pad], so dx[h] collects dy there
            exists = exists & ((p + pad - r) % stride == 0)
            position.append((p + pad - r) // stride)
        else:
            position.append(p * stride + r - pad)
    return gather(x, n, np.broadcast_arrays(*position), exists)


SIZES = {1: [(1, 70)], 2: [(1, 12), (1, 70)], 3: [(1, 4), (1, 6), (1, 20)]}


def draw_problem(rng, operator):
    """A random problem whose output has pixels; a group of the walked tensor has 8 channels up."""
    while True:
        rank, groups = rng.choice([1, 2, 2, 2, 3]), rng.choice([1, 1, 2, 3])
        most = 7 if rank < 3 else 3
        taps = [rng.randint(1, most) for _ in range(rank)]
        space, filters = ("W", "HW", "DHW")[rank - 1], ("S", "RS", "TRS")[rank - 1]
        shape = (rng.randint(1, 6), *(rng.randint(*ends) for ends in SIZES[rank]))
        C, K = ([8, 16, 20], [4, 8]) if operator != "dgrad" else ([4, 8], [8, 16, 20])
        C, K = groups * rng.choice(C), groups * rng.choice(K)
        try:
            return Problem.parse(
                (*shape, C),
                (K, *taps, C // groups),
                stride=[rng.randint(1, 4) for _ in taps],
                padding=[[rng.randint(0, 4), rng.randint(0, 4)] for _ in taps],
                dilation=[rng.randint(1, 3) for _ in taps],
                groups=groups,
                rank=rank,
                layout=f"N{space}C",
                weight_layout=f"K{filters}C",
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


def tile_operands(lowering, x, tile, group):
    """(tap, first channel of the group, rows x channels) of every tap of a tile, from memory."""
    array, share = lowering.array(x), lowering.channels // lowering.groups
    for block in lowering.k_blocks(tile, group):
        images = fill_buffers(lowering, array, block.loads)
        for tap in block.taps:
            a = images[tap.buffer].take(lowering.view_rows(tap))
            c = int(block.loads[0].coords[-1]) - group * share
            index = (tap.t, tap.r, tap.s)[-lowering.problem.rank :]
            yield index, c, a[:, : share - c].astype(float)


def run_tile(lowering, x, w, tile, group):
    """Sums of a tile of fprop or dgrad, and how often each row reads each tap."""
    sums = np.zeros((lowering.tile_m, w.shape[0]))
    reads = np.zeros((lowering.tile_m, *lowering.problem.kernel), int)
    for tap, c, a in tile_operands(lowering, x, tile, group):
        sums += a @ w[(slice(None), *tap, slice(c, c + a.shape[1]))].T
        reads[(slice(None), *tap)] += c == 0
    return sums, reads


REFUSALS = ("images of", "w_halo", "lower_corner", "upper_corner", "offsets")


def lower(problem, mode, operator, rng):
    """The lowerings with small tiles, several channel blocks and any swizzle; none if illegal."""
    tile_m = 128 if mode == "w128" else rng.choice([16, 24, 40, 64])
    options = {"tile_m": tile_m, "channels": 4, "swizzle": rng.choice(["64B", "128B"])}
    try:
        if operator == "dgrad" and set(problem.stride) != {1}:
            return tma.phases_for(problem, mode, **options)
        return (tma.maps_for(problem, mode, operator=operator, **options),)
    except ValueError as refused:
        assert any(word in str(refused) for word in REFUSALS), refused
        return ()


def check_problem(rng):
    """Lower one problem, run the last tile and one more, and compare all rows.

    Returns (lowering, tiles that began in the middle of an output row), or None if a limit
    forbids the mode.
    """
    operator = rng.choice(["fprop", "fprop", "dgrad", "wgrad"])
    problem = draw_problem(rng, operator)
    lowerings = lower(problem, rng.choice(MODES), operator, rng)
    if not lowerings:
        return None
    lowering, group = rng.choice(lowerings), rng.randrange(problem.groups)
    integers = np.random.default_rng(rng.randrange(1 << 30))
    share = lowering.channels // problem.groups
    x = integers.integers(1, 1 << 12, natural(lowering)).astype("float32")
    w = integers.integers(1, 1 << 12, (2, *problem.kernel, share)).astype(float)
    own = x[..., group * share : (group + 1) * share]
    midway = 0
    for tile in {lowering.tiles - 1, rng.randrange(lowering.tiles)}:
        sums, reads = run_tile(lowering, x, w, tile, group)
        rows, kept = lowering.outputs(tile)
        midway += rows[0, -1] != 0
        read = operand_rows(problem, operator, own, rows[kept])
        expected = read.reshape(len(read), w[0].size) @ w.reshape(2, -1).T
        np.testing.assert_array_equal(sums[kept], expected)
        touched = read.any(axis=-1)
        assert ((reads[kept] == 1) | ((reads[kept] == 0) & ~touched)).all()
    return lowering, midway


def natural(lowering):
    """The shape of the walked tensor, (n, spatial, c)."""
    return lowering.N, *(axis.size for axis in lowering.axes), lowering.channels


def check_weight_gradient(rng):
    """The contribution of one tile to dw; dy and x are loaded in the rows of the tile."""
    problem = draw_problem(rng, "wgrad")
    lowerings = lower(problem, rng.choice(MODES), "wgrad", rng)
    if not lowerings:
        return
    (lowering,), group = lowerings, rng.randrange(problem.groups)
    integers = np.random.default_rng(rng.randrange(1 << 30))
    gradient = lowering.gradient()
    share, filters = problem.C // problem.groups, problem.K // problem.groups
    x = integers.integers(1, 1 << 9, natural(lowering)).astype("float32")
    dy = integers.integers(1, 1 << 9, natural(gradient)).astype("float32")
    tile = rng.randrange(lowering.tiles)
    dy_rows = np.zeros((lowering.tile_m, filters))
    for _, k, rows in tile_operands(gradient, dy, tile, group):
        dy_rows[:, k : k + rows.shape[1]] = rows
    dw = np.zeros((filters, *problem.kernel, share))
    for tap, c, a in tile_operands(lowering, x, tile, group):
        dw[(slice(None), *tap, slice(c, c + a.shape[1]))] += dy_rows.T @ a
    rows, kept = lowering.outputs(tile)
    own = x[..., group * share : (group + 1) * share]
    read = operand_rows(problem, "wgrad", own, rows[kept])
    columns = dy[tuple(rows[kept].T)].astype(float)[:, group * filters : (group + 1) * filters]
    np.testing.assert_array_equal(dw, np.tensordot(columns, read, axes=(0, 0)))


@resampled
def test_weight_gradient_through_shared_memory():
    rng = random.Random(8)
    for _ in range(count(100, 300, 300)):
        check_weight_gradient(rng)


def test_every_output_is_computed_once():
    """Each output pixel is one kept row of one tile of one phase, or no tap reaches it."""
    rng = random.Random(9)
    for _ in range(200):
        operator = rng.choice(OPERATORS)
        problem = draw_problem(rng, operator)
        lowerings = lower(problem, rng.choice(MODES), operator, rng)
        if not lowerings:
            continue
        size = problem.size if operator == "dgrad" else problem.output
        count = np.zeros((problem.N, *size), int)
        for lowering in lowerings:
            for tile in range(lowering.tiles):
                rows, kept = lowering.outputs(tile)
                np.add.at(count, tuple(rows[kept].T), 1)
        ones = np.ones((problem.N, *problem.output, 1))
        everywhere = np.argwhere(count >= 0)
        assert (count <= 1).all()
        unreached = everywhere[count.ravel() == 0]
        assert operator == "dgrad" or not len(unreached)
        if len(unreached):
            assert not operand_rows(problem, "dgrad", ones, unreached).any()


@resampled
def test_shifted_views_reproduce_the_convolution():
    rng = random.Random(7)
    counts, midway, proved = Counter(), 0, 0
    while proved < PROBLEMS:
        checked = check_problem(rng)
        if checked is None:
            continue
        lowering, starts = checked
        proved, midway = proved + 1, midway + starts
        counts[lowering.mode, lowering.operator] += 1
        counts[lowering.problem.rank] += 1
        counts["groups"] += lowering.groups > 1
        counts["phases"] += lowering.axes[0].pixels.step is not None
    enough = PROBLEMS // 50
    kinds = [(mode, op) for mode in set(MODES) for op in OPERATORS]
    assert all(counts[kind] > enough for kind in [*kinds, 1, 2, 3, "groups", "phases"]), counts
    assert midway > PROBLEMS / 4
