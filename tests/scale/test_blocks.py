"""What a block of the output needs, against numpy's padding of the whole and the whole output."""

import itertools

import numpy as np
import pytest

import implicit_conv
from implicit_conv.blocks import Axis
from implicit_conv.problem.options import PADDING_MODES

NUMPY_MODES = {"reflect": "reflect", "symmetric": "symmetric", "replicate": "edge"}
NUMPY_MODES |= {"zeros": "constant", "circular": "wrap"}
PADS = [(0, 0), (1, 1), (3, 0), (0, 4), (11, 7), (-1, 2), (2, -1)]
SHAPES = list(itertools.product((1, 2, 5, 9), (1, 2, 3, 4), (1, 2, 3), (1, 2)))


def padded(pixels, pads, mode):
    """`pixels` with padding as numpy does it; negative padding crops first."""
    low, high = (max(0, -pad) for pad in pads)
    cropped = pixels[low : len(pixels) - high]
    return np.pad(cropped, [max(0, pad) for pad in pads], NUMPY_MODES[mode])


def gathered(x, block):
    """The pixels of the last axis that a block reads, or one zero."""
    if not block.runs:
        return np.zeros((*x.shape[:-1], 1), x.dtype)
    return np.concatenate([x[..., run] for run in block.runs], -1)


def some_blocks(output):
    """Blocks of one pixel, of three, and up to the last one."""
    return {(q, min(q + n, output)) for q in range(output) for n in (1, 3, output)}


@pytest.mark.parametrize("mode", PADDING_MODES)
def test_a_block_reads_what_it_has_in_reach_and_pads_the_rest(mode):
    checked = 0
    for (size, taps, stride, dilation), pads in itertools.product(SHAPES, PADS):
        reach = (taps - 1) * dilation
        output = (size + sum(pads) - reach - 1) // stride + 1
        if output < 1 or size + min(0, pads[0]) + min(0, pads[1]) < 1:
            continue
        axis = Axis(size, taps, stride, dilation, *pads, output, mode)
        whole = padded(np.arange(1, size + 1), pads, mode)  # a 0 is one of padding
        for start, stop in some_blocks(output):
            block = axis.block(start, stop)
            window = whole[start * stride : (stop - 1) * stride + reach + 1]
            np.testing.assert_array_equal(
                padded(gathered(np.arange(1, size + 1), block), block.pads, mode), window
            )
            assert min(block.pads) >= 0
            assert block.pixels <= len(window)  # never more than the window
            checked += 1
    assert checked > 1000


def test_a_transposed_block_has_the_products_of_the_whole():
    shapes = itertools.product((1, 2, 6), (1, 2, 3, 4), (1, 2, 3, 5), (1, 2))
    pads = [(0, 0), (1, 1), (3, 0), (0, 2), (-1, 2), (2, -1)]
    for (size, taps, stride, dilation), (low, high), more in itertools.product(
        shapes, pads, (0, 1)
    ):
        reach = (taps - 1) * dilation
        output = (size - 1) * stride + reach + 1 - low - high + more
        if output < 1:
            continue
        axis = Axis(size, taps, stride, dilation, low, high, output, transposed=True)
        whole = scattered(np.arange(1, size + 1), axis, low, output)
        for start, stop in some_blocks(output):
            block = axis.block(start, stop)
            x = gathered(np.arange(1, size + 1), block)
            total = (len(x) - 1) * stride + reach + 1
            assert total - sum(block.pads) == stop - start
            found = scattered(x, axis, block.pads[0], stop - start)
            np.testing.assert_array_equal(found, whole[start:stop])


def scattered(x, axis, low, output):
    """For each output pixel the pixels of x that taps add to it, by tap."""
    found = np.zeros((output, axis.taps), int)
    for p, s in itertools.product(range(len(x)), range(axis.taps)):
        place = p * axis.stride + s * axis.dilation - low
        if 0 <= place < output:
            found[place, s] = x[p]
    return found


CONVOLUTIONS = [
    {"padding": 1},
    {"padding": ((2, 3), (0, 5)), "stride": (2, 3)},
    {"padding": "causal", "dilation": 2},
    {"padding": "full", "groups": 2},
    {"padding": (-1, 4), "stride": 2},
]


@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_strict_convolutions_have_the_bits_of_the_whole(mode, options):
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 4, 9, 13)).astype(np.float32)
    w = random.standard_normal((6, 4 // options.get("groups", 1), 4, 3)).astype(np.float32)
    options = {**options, "padding_mode": mode, "precision": "strict"}
    whole = implicit_conv.conv2d(x, w, **options)
    problem = implicit_conv.plan_conv2d(x.shape, w.shape, **options).problem
    letters = "size", "kernel", "stride", "dilation", "pad_lo", "pad_hi", "output"
    rows, columns = (
        Axis(*values, mode)
        for values in zip(*(getattr(problem, name) for name in letters), strict=True)
    )
    for cuts in [(3, 4), (1, 7), (5, 2)]:
        found = np.full_like(whole, np.nan)
        for top, left in itertools.product(
            range(0, rows.output, cuts[0]), range(0, columns.output, cuts[1])
        ):
            place = (
                slice(top, min(top + cuts[0], rows.output)),
                slice(left, min(left + cuts[1], columns.output)),
            )
            down, across = (
                rows.block(place[0].start, place[0].stop),
                columns.block(place[1].start, place[1].stop),
            )
            part = gathered(np.swapaxes(gathered(x, across), -1, -2), down)
            given = {**options, "padding": (down.pads, across.pads)}
            found[..., place[0], place[1]] = implicit_conv.conv2d(
                np.swapaxes(part, -1, -2), w, **given
            )
        np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "replicate", "circular"])
@pytest.mark.parametrize(("taps", "origin"), [(3, 0), (4, 0), (4, -2), (5, 2), (7, -3)])
def test_a_filter_of_scipy_keeps_its_pixels(mode, taps, origin):
    ndimage = pytest.importorskip("scipy.ndimage", reason="scipy is not installed")
    scipys = {"reflect": "mirror", "symmetric": "reflect", "replicate": "nearest"}
    random = np.random.default_rng(0)
    x, w = random.standard_normal(23), random.standard_normal(taps)
    options = {"mode": scipys.get(mode, "wrap"), "origin": origin}
    whole = ndimage.correlate1d(x, w, **options)
    axis = Axis.filter(23, taps, origin, mode)
    for start, stop in some_blocks(23):
        block = axis.block(start, stop)
        found = ndimage.correlate1d(gathered(x, block), w, **options)
        np.testing.assert_array_equal(found[axis.kept(block)], whole[start:stop])


def test_chunks_of_the_output_follow_those_of_x():
    same = Axis(20, 5, 1, 1, 2, 2, 20)
    assert same.chunks((7, 7, 6)) == (7, 7, 6)
    causal = Axis(20, 4, 1, 1, 3, 0, 20)
    assert causal.chunks((7, 7, 6)) == (7, 7, 6)
    valid = Axis(20, 5, 1, 1, 0, 0, 16)
    assert valid.chunks((7, 7, 6)) == (7, 7, 2)
    strided = Axis(20, 3, 3, 1, 1, 1, 7)
    assert strided.chunks((7, 7, 6)) == (3, 2, 2)
    transposed = Axis(6, 4, 2, 1, 1, 1, 12, transposed=True)
    assert transposed.chunks((4, 2)) == (8, 4)
