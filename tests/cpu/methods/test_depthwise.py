"""Depthwise convolution: every size of filter and stride, channels below, at and past the lanes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import count, examples, resampled

from implicit_conv import PlanError, conv2d, plan_conv2d, plan_conv3d
from implicit_conv.cpu.candidates.problem_views import spatial, ungrouped, widened
from implicit_conv.cpu.candidates.tiling import Tiling, rounded_up
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.methods import depthwise
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.kernels.cpu.depthwise.layout import depthwise_row
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import geometry
from implicit_conv.testing import Case, changed, plan_of, to_nchw


def in_place(plan):
    return plan.engine.best.layout.in_place


@st.composite
def cases(draw):
    pad = st.tuples(st.integers(-1, 4), st.integers(-1, 4))
    rows, columns = st.sampled_from([1, 2, 3, 5, 17]), st.sampled_from([1, 3, 5, 7, 19])
    case = Case(
        N=draw(st.integers(1, 3)),
        groups=draw(st.sampled_from([1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 70, 300])),
        size=draw(st.tuples(st.integers(1, 20), st.integers(1, 40))),
        kernel=draw(st.tuples(rows, columns)),
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        padding=(draw(pad), draw(pad)),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=draw(st.sampled_from(["float32", "float64", "float16", "bfloat16"])),
    )
    assume(min(case.output) >= 1)
    return case


@examples(40, 600, 120)
@given(
    case=cases(),
    seed=st.integers(0, 2**31),
    precision=st.sampled_from(["strict", "standard"]),
    packed=st.booleans(),
)
def test_integers_are_exact(case, seed, precision, packed):
    x, w = case.inputs(seed, integers=True)
    arrays = case.arrange(x, w)
    shapes = (array.shape for array in arrays)
    options = {**case.options, "algorithm": "depthwise", "precision": precision}
    plan = plan_conv2d(*shapes, case.dtype, **options)
    y = plan(arrays[0], plan.pack(arrays[1]) if packed else arrays[1])
    expected = case.rounded(case.reference(x, w))
    np.testing.assert_array_equal(to_nchw(y, case.layout).astype(float), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("vectors", [5, 6, 21])
def test_every_channel_is_exact_wherever_x_begins(dtype, vectors):
    """Vectors that are aligned in x overlap others at both ends of a block."""
    size = np.dtype(dtype).itemsize
    channels = vectors * cpu_arch().lanes(max(4, size))
    case = Case(groups=channels, size=(4, 9), kernel=(3, 3), layout="NHWC", dtype=dtype)
    x, w = case.inputs(0, integers=True)
    expected = case.rounded(case.reference(x, w))
    aligned, filters = case.arrange(x, w)
    plan = plan_conv2d(aligned.shape, filters.shape, dtype, **case.options, algorithm="depthwise")
    assert in_place(plan)
    room = np.empty(aligned.size + 128 // size, dtype)
    begin = -room.ctypes.data % 64 // size
    for late in range(64 // size):
        moved = room[begin + late :][: aligned.size].reshape(aligned.shape)
        moved[...] = aligned
        y = np.full(expected.transpose(0, 2, 3, 1).shape, np.nan, dtype)
        plan(moved, filters, out=y)
        np.testing.assert_array_equal(to_nchw(y, "NHWC").astype(float), expected)


@st.composite
def cut_rows(draw):
    """A case whose x is read in place, filter rows at once, and the tile its rows are cut into."""
    pad, pad_h = st.integers(-1, 20), st.integers(-1, 4)
    stride = draw(st.sampled_from([1, 2]))
    planes = draw(st.sampled_from([(), (), (1, 1), (4, 2), (3, 3)]))  # of image and filter
    deep = len(planes) > 0
    case = Case(
        groups=draw(st.sampled_from([16, 37, 96])),
        size=(*planes[:1], draw(st.integers(1, 9)), draw(st.integers(1, 40))),
        kernel=(*planes[1:], draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 5]))),
        stride=(*[1] * deep, draw(st.sampled_from([1, 1, 2, 2, 3])), stride),
        padding=(*[(1, 2)] * deep, (draw(pad_h), draw(pad_h)), (draw(pad), draw(pad))),
        dilation=(1,) * (2 + deep),
        layout="NDHWC" if deep else "NHWC",
        weight_layout="KCTRS" if deep else "KCRS",
        dtype=draw(st.sampled_from(["float32", "float64", "float16", "bfloat16"])),
    )
    assume(min(case.output) >= 1)
    tile = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 40))
    return case, tile, draw(st.sampled_from([1, 2, 5, 7, 14]))


@examples(50, 200)
@given(cut=cut_rows())
def test_rows_in_place_are_exact_however_they_are_cut(cut):
    """Into load tiles and register tiles of one or two output rows, with padding on any side, or
    nothing else.
    """
    case, tile, tile_m = cut
    x, w = case.inputs(0, integers=True)
    arrays = case.arrange(x, w)
    make = plan_conv3d if len(case.size) == 3 else plan_conv2d
    plan = make(*(a.shape for a in arrays), case.dtype, **case.options)
    view = ungrouped(spatial(widened(plan.problem)))
    channels = rounded_up(case.groups, plan.engine.best.lanes)
    g = geometry(view, tile=tile, tile_m=tile_m, tile_c=channels, tile_k=channels)
    assume(depthwise_row(g, in_place=True) is not None)
    y = changed(plan, method=Depthwise(in_place=True), view=view, tiling=Tiling(g, 1))(*arrays)
    np.testing.assert_array_equal(to_nchw(y, case.layout), case.rounded(case.reference(x, w)))


@pytest.mark.parametrize(("taps", "stride"), [(2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3)])
@pytest.mark.parametrize("size", [9, 14])
@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_output_rows_that_share_image_rows_are_exact(taps, stride, size, padding, mode):
    """Of any stride below the filter's rows; the last output row of an odd number is alone."""
    case = Case(
        groups=48,
        size=(size, size + 5),
        kernel=(taps, 3),
        stride=(stride, 2),
        padding=((padding, padding), (1, 1)),
        padding_mode=mode,
        layout="NHWC",
    )
    x, w = case.inputs(0, integers=True)
    plan = plan_of(case, algorithm="depthwise")
    most = depthwise.register_pixels(cpu_arch())
    assert plan.engine.best.layout.rows == (2 if most == depthwise.PIXELS else 1)
    np.testing.assert_array_equal(to_nchw(plan(*case.arrange(x, w)), "NHWC"), case.reference(x, w))


@resampled
@pytest.mark.parametrize(
    ("stride", "dilation"), count([(2, 2)], [(1, 1), (1, 2), (2, 1), (2, 2)], [(1, 1), (2, 2)])
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", [(19, 35), (9, 3), (1, 90)])
def test_large_filters_are_exact(kernel, layout, stride, dilation):
    """Of more rows than planes take at once, and more columns than there are registers."""
    case = Case(
        N=1,
        groups=17,
        size=(45, 110),
        kernel=kernel,
        stride=(stride, stride),
        layout=layout,
        dilation=(dilation, dilation),
        padding=((9, 9), (45, 45)),
    )
    x, w = case.inputs(0, integers=True)
    arrays = case.arrange(x, w)
    for precision in "strict", "standard":
        y = conv2d(*arrays, **case.options, algorithm="depthwise", precision=precision)
        np.testing.assert_array_equal(to_nchw(y, layout), case.reference(x, w))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [1, 3, 5, 16, 37])
def test_epilogue_strides_and_bits(layout, channels):
    """Residual, activation; the same bits for any batch and any strides."""
    case = Case(N=3, groups=channels, size=(9, 20), padding=((1, 1), (1, 1)), layout=layout)
    x, w = case.inputs(0)
    x, w = case.arrange(x, w)
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    bias = np.arange(channels, dtype=np.float32)
    residual = np.ones_like(x)
    options = {**case.options, "algorithm": "depthwise", "precision": "strict"}
    y = conv2d(x, w, bias, residual=residual, activation="relu", **options)
    plain = conv2d(x, w, bias, **options)
    np.testing.assert_array_equal(conv2d(wide[..., ::2], w, bias, **options), plain)
    np.testing.assert_allclose(y, np.maximum(plain + 1, 0), rtol=0, atol=1e-5)
    single = conv2d(x[1:2], w, bias, residual=residual[1:2], activation="relu", **options)
    np.testing.assert_array_equal(single, y[1:2])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_filters_that_are_not_contiguous_are_packed_one_by_one(layout):
    case = Case(groups=16, size=(9, 40), padding=((1, 1), (1, 1)), layout=layout)
    x, w = case.inputs(0, integers=True)
    x, packed = case.arrange(x, w)
    strided = np.repeat(packed, 2, axis=0)[::2]
    y = conv2d(x, strided, **case.options)
    np.testing.assert_array_equal(to_nchw(y, layout), case.reference(*case.inputs(0, True)))


@pytest.mark.parametrize("dilation", [1, 9])
def test_tiles_of_planes_leave_the_bits_alone(dilation):
    """Also where the dilation is so large that each filter row has its own buffers."""
    case = Case(
        groups=16,
        size=(130, 40),
        kernel=(11, 3),
        stride=(2, 1),
        dilation=(dilation, 1),
        padding=((1, 1), (1, 1)),
    )
    x, w = case.arrange(*case.inputs(0))
    plan = plan_conv2d(x.shape, w.shape, **case.options, precision="strict")
    tilings = [
        geometry(ungrouped(plan.problem), tile=(1, p, 40), tile_m=1, tile_c=1, tile_k=1)
        for p in (4, 11, 21)
    ]
    assert len({g.phases_h for g in tilings}) == (1 if dilation == 1 else 2)
    for g in tilings:
        np.testing.assert_array_equal(changed(plan, tiling=Tiling(g, 1))(x, w), plan(x, w))


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_blocks_that_are_read_in_place_fill_vectors(bits):
    """The last one too: a vector of fewer channels would be read beyond the last pixel's."""
    arch = replace(cpu_arch(), vector_bits=bits)
    lanes = bits // 32
    for channels in range(lanes, 700):
        shapes = (1, 5, 5, channels), (channels, 1, 3, 3)
        problem = Problem.parse(*shapes, padding=1, groups=channels, layout="NHWC")
        for g in depthwise.geometries(ungrouped(spatial(problem)), arch, in_place=True):
            assert (channels - 1) % g.tile_c + 1 >= lanes


@pytest.mark.parametrize(("tile_pixels", "most"), [(6, 6), (12, 14), (14, 14)])
def test_sums_fill_the_registers_that_weights_leave(tile_pixels, most):
    """16 registers, and 32 of 128 and of 512 bits."""
    arch = replace(cpu_arch(1), tile_pixels=tile_pixels)
    problem = Problem.parse((1, 14, 14, 64), (64, 1, 3, 3), padding=1, groups=64, layout="NHWC")
    found = depthwise.geometries(ungrouped(spatial(problem)), arch, in_place=True)
    assert {g.tile_m * depthwise.rows_together(arch, g) for g in found} == {most}


def test_sums_that_leave_no_register_for_weights_are_exact():
    """14 pixels of 16 registers: weights then go one by one."""
    case = Case(groups=64, size=(5, 44), kernel=(1, 3), layout="NHWC")
    x, w = case.inputs(0, integers=True)
    arrays = case.arrange(x, w)
    arch = replace(cpu_arch(1), vector_bits=256, tile_pixels=14)
    plan = plan_of(case, arch, algorithm="depthwise")
    np.testing.assert_array_equal(to_nchw(plan(*arrays), "NHWC"), case.reference(x, w))


@pytest.mark.parametrize("channels", [96, 320])
def test_packed_filters_are_right_for_images_that_cannot_be_read_in_place(channels):
    """Whose channels are not contiguous: another candidate has the blocks of the packed filter."""
    case = Case(groups=channels, size=(7, 56), padding=((1, 1), (1, 1)), layout="NHWC")
    x, w = case.arrange(*case.inputs(0, integers=True))
    plan = plan_conv2d(x.shape, w.shape, **case.options)
    assert in_place(plan)
    strided = np.repeat(x, 2, axis=3)[..., ::2]
    np.testing.assert_array_equal(plan(strided, plan.pack(w)), plan(x, w))


def test_filters_are_packed_to_the_same_bytes():
    """Also the lanes that no filter fills."""
    case = Case(groups=600, size=(7, 7), padding=((1, 1), (1, 1)), layout="NHWC")
    x, w = case.arrange(*case.inputs(0))
    plan = plan_conv2d(x.shape, w.shape, **case.options)
    first = plan.pack(w).panels
    np.testing.assert_array_equal(plan.pack(w).panels, first)
    assert plan.packed_bytes > w.nbytes


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_executed_loads_are_the_planned_ones(layout, force_method):
    force_method(Depthwise)
    case = Case(N=2, groups=40, size=(9, 20), padding=((1, 1), (1, 1)), layout=layout)
    x, w = case.arrange(*case.inputs(0))
    plan = plan_conv2d(x.shape, w.shape, **case.options, algorithm="depthwise")
    assert in_place(plan) == (layout == "NHWC")
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())


def test_small_images_are_copied_where_most_pixels_meet_padding_one_by_one():
    """Taps of a dilated filter share no loads. For "strict" always: in place, sums of pixels at the
    border have another order.
    """

    def reads_in_place(size, taps, dilation=1, precision="standard"):
        pad = taps // 2 * dilation
        case = Case(
            groups=96,
            size=(size, size),
            kernel=(taps, taps),
            layout="NHWC",
            dilation=(dilation, dilation),
            padding=((pad, pad), (pad, pad)),
        )
        shapes = (array.shape for array in case.arrange(*case.inputs(0)))
        return in_place(plan_conv2d(*shapes, **case.options, precision=precision))

    assert reads_in_place(7, 7)
    assert not reads_in_place(14, 7, dilation=2)
    assert reads_in_place(56, 3, dilation=2)
    assert not reads_in_place(56, 3, precision="strict")


def test_it_is_chosen_for_many_groups_and_refused_for_others():
    assert plan_conv2d((1, 64, 28, 28), (64, 1, 3, 3), groups=64).algorithm == "depthwise"
    with pytest.raises(PlanError, match="one channel and one filter per group"):
        plan_conv2d((1, 64, 28, 28), (128, 1, 3, 3), groups=64, algorithm="depthwise")
