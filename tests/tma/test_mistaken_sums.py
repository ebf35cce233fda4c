"""check_kernel says which mistake in the walk of a convolution gives what the kernel has written.

A kernel of 32 threads: one issues a load for each tap and block of channels, and one for the whole
filter; each thread sums an output pixel in the order of the loads.
"""

import itertools

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import tma
from implicit_conv.problem import reference
from implicit_conv.tma.check.mistaken_sums import FILTER_ORDERS, find_mistake

FILTERS, CHANNELS, PIXELS = 2, 8, 32
HEAD = """.param .align 64 .b8 x[128], .param .align 64 .b8 w[128], .param .u64 y"""
COPY = "cp.async.bulk.tensor.{}.mbarrier::complete_tx::bytes [%r2+{}], [{}, {{{}}}], [%r3]{};"


def text_of(pairs, lowering, taps):
    """Each pair: ((offsets of x, first channel), (tap of w's memory, its first channel))."""
    block = lowering.tile_c
    size = PIXELS * block * 4
    first, sums = len(pairs) * size, []
    columns = taps * lowering.channels
    filters = lowering.problem.C if lowering.operator == "dgrad" else lowering.problem.K
    lower = [axis.lower for axis in lowering.axes][::-1]
    lines = [COPY.format("1d.shared::cta.global.tile", first, "%d3", "0", "")]
    for number, ((offsets, channel), (tap, of_filter)) in enumerate(pairs):
        at = ", ".join(map(str, (channel, *lower, 0)))
        info = f", {{{', '.join(map(str, offsets[::-1]))}}}"
        mode = f"{len(lower) + 2}d.shared::cta.global.im2col"
        lines.append(COPY.format(mode, number * size, "%d2", at, info))
        for c, k in itertools.product(range(block), range(filters)):
            place = k * columns + tap * lowering.channels + of_filter + c
            if lowering.operator == "dgrad":  # w is K x taps x C: channels of dy are K
                place = (of_filter + c) * taps * filters + tap * filters + k
            sums.append(
                f"ld.shared.f32 %f100, [%r4+{number * size + 4 * c}]; "
                f"ld.shared.f32 %f101, [%r2+{first + 4 * place}]; "
                f"fma.rn.f32 %f{k}, %f100, %f101, %f{k};"
            )
    body = f"""
        mov.b64 %d2, x; cvta.param.u64 %d2, %d2; mov.b64 %d3, w; cvta.param.u64 %d3, %d3;
        ld.param.u64 %d1, [y]; mov.u32 %r2, smem; mov.u32 %r3, full; mov.u32 %r1, %tid.x;
        mad.lo.u32 %r4, %r1, {block * 4}, %r2; setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
        mbarrier.init.shared.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r3], {first + columns * FILTERS * 4};
        {chr(10).join(lines)}
        READY: bar.sync 0;
        WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
        {" ".join(f"mov.f32 %f{k}, 0f00000000;" for k in range(filters))}
        {chr(10).join(sums)}
        mul.wide.u32 %d4, %r1, {filters * 4}; add.s64 %d4, %d1, %d4;
        {" ".join(f"st.global.f32 [%d4+{4 * k}], %f{k};" for k in range(filters))}"""
    shared = f".shared .align 8 .b8 full[8]; .shared .align 128 .b8 smem[{first + 4096}];"
    return kernel(body, HEAD, target="sm_90a", shared=shared)


def check(mistake, shape=(3, 3), block=8, operator="fprop", expect=True, **options):
    """The problems of a kernel with a mistake, which changes the list of pairs."""
    rank = len(shape)
    size = {1: (16,), 2: (4, 4), 3: (4, 2, 2)}[rank]
    images = PIXELS // int(np.prod(size))
    shapes = (images, *size, CHANNELS), (FILTERS, *shape, CHANNELS)
    if operator == "dgrad":
        shapes = (images, *size, FILTERS), (CHANNELS, *shape, FILTERS)
    more = {"tile_m": PIXELS, "channels": block, "swizzle": "none", **options}
    lowering = tma.maps_for(shapes, "im2col", operator=operator, **more)
    random = np.random.default_rng(7)
    x, w = (random.integers(-9, 10, s).astype(np.float32) for s in (lowering.shape, shapes[1]))
    y = np.full((PIXELS, FILTERS), np.nan, np.float32)
    problem = lowering.problem
    given = {"stride": problem.stride, "dilation": problem.dilation}
    given["pads"] = list(zip(problem.pad_lo, problem.pad_hi, strict=True))
    nchw, kcrs = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
    if operator == "dgrad":
        right = reference.input_grad(nchw, kcrs, (images, FILTERS, *size), **given)
    else:
        right = reference.conv(nchw, kcrs, **given)
    wanted = np.moveaxis(right, 1, -1).reshape(y.shape)
    taps = list(np.ndindex(*shape))
    flip = taps[::-1] if operator == "dgrad" else taps
    pairs = [
        ((lowering.tap_operands(tap).offsets, c), (taps.index(of), c))
        for tap, of in zip(taps, flip, strict=True)
        for c in range(0, CHANNELS, block)
    ]
    map = tma.TiledMap(shape=(w.size,), dtype="float32", box=(w.size,))
    arguments = [
        tma.MapArgument(lowering.maps[0], x),
        tma.MapArgument(map, w.reshape(-1)),
        y,
    ]
    text = text_of(mistake(pairs, shape), lowering, len(taps))
    return tma.check_kernel(
        text,
        1,
        32,
        arguments,
        problem=problem,
        operator=operator,
        expected={2: wanted} if expect else None,
    ).problems, text


def right(pairs, shape):
    return pairs


def exchanged(pairs, shape):
    """As loops over taps by rows with {r, s} in place of {s, r}."""
    return [((offsets[::-1], c), of) for (offsets, c), of in pairs]


def other_order(pairs, shape):
    """w's tap is s * R + r."""
    taps = np.arange(int(np.prod(shape))).reshape(shape[::-1]).T.reshape(-1).tolist()
    return [(of_x, (taps[tap], c)) for of_x, (tap, c) in pairs]


def flipped(pairs, shape):
    return [(of_x, (int(np.prod(shape)) - 1 - tap, c)) for of_x, (tap, c) in pairs]


def blocks_outside(pairs, shape):
    """w's column is (block of channels, tap, channel)."""
    taps, block = int(np.prod(shape)), max(c for (_, c), _ in pairs) or CHANNELS
    block = min(c for (_, c), _ in pairs if c) if len(pairs) > taps else block
    columns = [c // block * taps * block + tap * block for _, (tap, c) in pairs]
    return [
        (of_x, (column // CHANNELS, column % CHANNELS))
        for (of_x, _), column in zip(pairs, columns, strict=True)
    ]


def blocks_exchanged(pairs, shape):
    return [((offsets, 4 - c), of) for (offsets, c), of in pairs]


FIRST = "cp.async.bulk.tensor"
WIDE = {"shape": (3, 3), "padding": (1, 2), "dilation": (1, 2)}
TALL = {"shape": (3, 2), "padding": ((1, 1), (1, 0))}
SQUARE = {"shape": (3, 3), "padding": 1}
LINE = {"shape": (3,), "padding": 1}
VOLUME = {"shape": (2, 2, 2), "padding": ((1, 0), (1, 0), (1, 0))}
OFFSETS = "exchanged offsets give: their order in PTX is ({}), the first is along W; "
ORDER = "a filter gives whose taps are read as (s, r), but it is (r, s) in memory; "
MISTAKES = {
    "exchanged": (exchanged, SQUARE, OFFSETS.format("W, H"), "x"),
    "exchanged, a dilation": (exchanged, WIDE, OFFSETS.format("W, H"), "x"),
    "exchanged, 3 x 2 taps": (exchanged, TALL, OFFSETS.format("W, H"), "x"),
    "exchanged, a volume": (exchanged, VOLUME, OFFSETS.format("W, H, D"), "x"),
    "order": (other_order, SQUARE, ORDER, "w"),
    "order, a gradient": (other_order, SQUARE | {"operator": "dgrad"}, ORDER, "w"),
    "order, 3 x 2 taps": (other_order, TALL, ORDER, "w"),
    "order, a dilation": (other_order, WIDE, ORDER, "w"),
    "flipped": (flipped, SQUARE, "a filter gives that is flipped; ", "w"),
    "flipped, a line": (flipped, LINE, "a filter gives that is flipped; ", "w"),
    "flipped, a gradient": (
        flipped,
        SQUARE | {"operator": "dgrad"},
        "a filter gives that is not flipped; ",
        "w",
    ),
    "blocks outside": (
        blocks_outside,
        SQUARE | {"block": 4},
        "a filter gives whose blocks of 4 channels are read outside of its taps; ",
        "w",
    ),
    "blocks exchanged": (
        blocks_exchanged,
        TALL | {"block": 4},
        "blocks of 4 channels of x in the order (1, 0) give, with w's in order; ",
        "x",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_by_its_sums(name):
    mistake, options, words, of = MISTAKES[name]
    problems, text = check(mistake, **options)
    said = next(line for line in problems if line.startswith("argument 2 is what"))
    assert "elements differ from those expected" in problems[problems.index(said) - 1]
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(FIRST)]
    line = lines[0] if of == "w" else lines[1]
    assert said == f"argument 2 is what {words}the copy is at line {line}"


@pytest.mark.parametrize(
    "options",
    [SQUARE, WIDE, TALL, LINE, VOLUME, SQUARE | {"block": 4}, SQUARE | {"operator": "dgrad"}],
)
def test_right_kernels(options):
    assert check(right, **options)[0] == []


def test_other_mistakes_are_not_explained():
    """A tap is left out; two taps are exchanged; nothing is expected."""
    for mistake in (lambda p, _: p[:-1] + p[:1], lambda p, _: [(p[0][0], p[1][1]), *p[1:]]):
        problems, _ = check(mistake, **SQUARE)
        assert not any("is what" in line for line in problems) and problems
    assert check(flipped, expect=False, **SQUARE)[0] == []


def test_a_kernel_that_loads_nothing_is_not_explained():
    lowering = tma.maps_for(((2, 4, 4, 8), (2, 3, 3, 8)), padding=1, swizzle="none")
    y = np.zeros(1, np.uint32)
    arguments = [tma.MapArgument(lowering.maps[0], np.zeros(lowering.shape, np.float32)), y]
    text = kernel("mov.u32 %r1, 1;", ".param .align 64 .b8 x[128], .param .u64 y")
    given = {"problem": lowering.problem, "expected": {1: y + 1}}
    problems = tma.check_kernel(text, 1, 1, arguments, **given).problems
    assert "1 of 1 elements differ" in problems[0] and "not loaded" in problems[1]
    with pytest.raises(ValueError, match=r"expected\[1\]: the argument is no array"):
        tma.check_kernel(text, 1, 1, [arguments[0], 5], **given)


def convolved(x, w):
    """3 x 3 with padding 1, channels last."""
    x, w = (np.moveaxis(array, -1, 1) for array in (x, w))
    ones = {"stride": (1, 1), "dilation": (1, 1), "pads": ((1, 1), (1, 1))}
    return np.moveaxis(reference.conv(x, w, **ones), 1, -1)


def test_an_order_of_three_blocks():
    """Block i of the filter meets block order[i] of x."""
    lowering = tma.maps_for(((2, 4, 4, 12), (3, 3, 3, 12)), padding=1, channels=4, swizzle="none")
    random = np.random.default_rng(6)
    x, w = (random.integers(-9, 10, s) for s in (lowering.shape, (3, 3, 3, 12)))
    taken = np.concatenate([x[..., 4:8], x[..., 8:], x[..., :4]], axis=-1)
    given = lowering.maps[0], x, {"w": w}, convolved(x, w), convolved(taken, w)
    _, words, _ = find_mistake([lowering], *given, np.array_equal, True)
    assert words == "blocks of 4 channels of x in the order (1, 2, 0) give, with w's in order"


@pytest.mark.parametrize("order", FILTER_ORDERS)
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("mode", ["im2col", "tiled"])
def test_equal_sums_are_told_apart_by_the_order_of_copies(mode, in_order, order):
    """Square filters: only a map that has offsets, whose copies go by columns, exchanges them."""
    lowering = tma.maps_for(((2, 4, 5, 8), (3, 3, 3, 8)), padding=1, channels=4, swizzle="none")
    random = np.random.default_rng(5)
    x, w = (random.integers(-9, 10, s) for s in (lowering.shape, (3, 3, 3, 8)))
    both = [convolved(x, w), convolved(x, w.swapaxes(1, 2))]
    map = lowering.maps[0]
    if mode == "tiled":
        map = tma.TiledMap(shape=lowering.shape, dtype="float32", box=(1, 4, 4, 4))
    stored = w.reshape(3, 9, 8).transpose(["KTC".index(letter) for letter in order])
    given = {"w": np.ascontiguousarray(stored), "another": np.zeros(5)}
    same = np.array_equal
    found = find_mistake([lowering], map, x, given, *both, same, in_order)
    argument, words, of_filter = found
    exchanged = mode == "im2col" and not in_order
    assert argument == "w" and of_filter != exchanged
    assert words.startswith("exchanged offsets" if exchanged else "a filter gives whose taps")
    assert find_mistake([lowering], map, x, given, both[0], both[0] + 1, same, in_order) is None
    assert find_mistake([lowering], map, x, given, both[0] + 1, both[1], same, in_order) is None


@pytest.mark.parametrize("taps", [1, 3])
def test_a_mistake_without_effect_is_not_told(taps):
    """Filters of one tap, or of equal ones; sums that are right, or imprecise."""
    shapes = (2, 4, 4, 8), (3, taps, taps, 8)
    lowering = tma.maps_for(shapes, padding=taps // 2, swizzle="none")
    random = np.random.default_rng(4)
    x, w = (random.integers(-9, 10, s) for s in ((2, 4, 4, 8), (3, 1, 1, 8)))
    w = np.broadcast_to(w, shapes[1])
    sums = convolved(x, w) if taps == 3 else x @ w[:, 0, 0].T.astype(np.float64)

    def found(wanted, written):
        def same(a, b):
            return np.allclose(a, b, 1e-3)

        return find_mistake([lowering], lowering.maps[0], x, {2: w}, wanted, written, same, True)

    assert found(sums, sums) is None
    assert found(sums * (1 - 8e-4), sums * (1 + 8e-4)) is None
