"""Where arrays are computed: by their memory, by device=, by settings; on a recorded driver."""

import re
import subprocess
import sys
import weakref

import numpy as np
import pytest

from implicit_conv import (
    DriverError,
    PlanError,
    ShapeError,
    config,
    conv1d,
    conv2d,
    conv2d_input_grad,
    conv2d_weight_grad,
    plan_conv1d,
    plan_conv2d,
)
from implicit_conv.errors import DTypeError
from implicit_conv.gpu.run import run
from implicit_conv.testing import Case


def test_memory_order_decides_not_the_names_of_axes(recorder, device_array):
    """An N, C, H, W view of channels-last memory is loaded by copies of 16 bytes."""
    x = device_array(4096, (2, 64, 8, 8), np.float16, (8192, 2, 1024, 128))
    w = device_array(1 << 17, (64, 64, 3, 3), np.float16, (1152, 2, 384, 128))
    y = device_array(1 << 20, (2, 64, 8, 8), np.float16, (8192, 2, 1024, 128))
    assert conv2d(x, w, padding=1, out=y) is y
    call, *_ = recorder.launched()
    assert (call.x_n, call.x_h, call.x_w, call.x_c) == (8192, 1024, 128, 2)
    assert (call.w_k, call.w_r, call.w_s, call.w_c) == (1152, 384, 128, 2)
    assert (call.y_n, call.y_p, call.y_q, call.y_k) == (8192, 1024, 128, 2)
    assert len(recorder["cuTensorMapEncode"]) == 2


def test_channels_first_memory_and_one_image(recorder, device_array):
    x, w = device_array(4096, (64, 8, 8)), device_array(1 << 17, (64, 64, 3, 3))
    y, bias = device_array(1 << 20, (64, 8, 8)), device_array(1 << 19, (64,))
    conv2d(x, w, bias, padding=1, out=y, activation="relu", residual=y)
    call, _, limits, config = recorder.launched()
    assert (call.x_c, call.x_h, call.x_w) == (128, 16, 2)
    assert (call.residual, call.bias, config.blockDimX) == (1 << 20, 1 << 19, 256)
    assert tuple(limits) == (0.0, float("inf"))
    assert not recorder["cuTensorMapEncode"]


CASES = {
    "NCHW": Case(2, 8, 8, size=(9, 11), padding=((1, 0), (2, 1)), stride=(2, 1)),
    "NHWC": Case(1, 8, 16, layout="NHWC", weight_layout="RSCK", dilation=(1, 2), kernel=(2, 3)),
    "reflect": Case(2, 8, 8, padding=((3, 4), (5, 6)), padding_mode="reflect"),
    "circular": Case(2, 3, 5, padding=((5, 0), (0, 7)), padding_mode="circular", stride=(2, 1)),
    "groups": Case(2, 3, 5, groups=2, layout="NCHW", weight_layout="KRSC"),
}


@pytest.mark.parametrize("name", CASES)
def test_numpy_arrays_are_sent_rearranged_and_fetched(recorder, name):
    """The recorded driver convolves the arrays at the addresses in the params blob."""
    case = CASES[name]
    x, w = case.inputs(0, integers=True)
    given, bias = case.arrange(x, w), np.arange(case.K * case.groups, dtype=np.float32)
    y = conv2d(*given, bias, **case.options, device="cuda")
    assert np.array_equal(y, conv2d(*given, bias, **case.options)) and y.flags.c_contiguous
    assert len(recorder["cuMemFree"]) == len(recorder["cuMemAlloc"]) == 4


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_scale_of_numpy_arrays(recorder, biased, activation):
    case = CASES["NCHW"]
    given = case.arrange(*case.inputs(0, integers=True))
    scale = (2.0 ** np.arange(8) / 8).astype(np.float32)
    options = {"scale": scale, "activation": activation, **case.options}
    options |= {"bias": np.arange(8, dtype=np.float32) - 4} if biased else {}
    for residual in (None, np.ones(case.reference(*given).shape, np.float32)):
        y = conv2d(*given, residual=residual, **options, device="cuda")
        assert np.array_equal(y, conv2d(*given, residual=residual, **options))
    with pytest.raises(ShapeError, match=r"scale has shape \(7,\)"):
        conv2d(*given, **{**options, "scale": scale[:7]}, device="cuda")
    with pytest.raises(DTypeError, match="scale is float64, but the plan is for float32; convert"):
        conv2d(*given, **{**options, "scale": scale.astype(float)}, device="cuda")


def test_a_scale_of_another_library(recorder):
    """Arrays on the CPU are read as numpy's."""
    torch = pytest.importorskip("torch")
    case = CASES["NCHW"]
    given, scale = case.arrange(*case.inputs(0, integers=True)), np.arange(8, dtype=np.float32)
    bias = torch.from_numpy(scale - 4)
    for each in (torch.from_numpy(scale), scale):
        y = conv2d(*given, bias, scale=each, **case.options, device="cuda")
        assert np.array_equal(y, conv2d(*given, scale - 4, scale=scale, **case.options))


def test_padding_of_more_than_the_image_is_refused(recorder):
    x, w = np.ones((1, 8, 5, 5), np.float16), np.ones((8, 8, 3, 3), np.float16)
    with pytest.raises(PlanError, match=r"padding \(5, 5\) in mode 'reflect' of 5 pixels is"):
        conv2d(x, w, padding=5, padding_mode="reflect", device="cuda")
    y = conv2d(x, w, padding=5, padding_mode="symmetric", device="cuda")
    assert np.all(y == 72)


def test_one_image_of_numpy_into_an_array_of_the_callers(recorder):
    x, w = np.ones((8, 6, 7), np.float16), np.ones((16, 8, 3, 3), np.float16)
    out = np.empty((16, 4, 5), np.float16)
    assert conv2d(x, w, device="cuda", out=out) is out
    assert np.all(out == 72)
    swapped = conv2d(x.astype(">f2"), w.astype(">f2"), device="cuda")
    assert np.array_equal(swapped, out) and swapped.dtype.isnative
    with pytest.raises(ShapeError, match=r"out has shape \(1, 4, 5\) but the output has \(16"):
        conv2d(x, w, device="cuda", out=np.empty((1, 4, 5), np.float16))
    with pytest.raises(DTypeError, match=r"out is a masked array.* pass out\.data"):
        conv2d(x, w, device="cuda", out=np.ma.masked_equal(out, 72))
    other = np.empty(out.shape, ">f2")
    assert conv2d(x, w, device="cuda", out=other) is other
    np.testing.assert_array_equal(other, out)


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize(
    ("convolve", "order"),
    [(conv1d, (0, 2, 1)), (conv1d, (0, 1, 2)), (conv2d, (0, 2, 3, 1)), (conv2d, (0, 1, 2, 3))],
)
def test_results_have_the_order_of_x(recorder, placed, fetched, monkeypatch, convolve, order, one):
    """Channels last in memory where x has them so, with and without a batch axis."""
    case = Case(2, 8, 16, size=(1, 9), kernel=(1, 3))
    arrays = [array.astype("float16") for array in case.inputs(0, integers=True)]
    x, w, y = (a[:, :, 0] if convolve is conv1d else a for a in (*arrays, case.reference(*arrays)))
    if one:
        x, y, order = x[0], y[0], tuple(axis - 1 for axis in order if axis)

    def maker(_, shape, axes, dtype):
        empty = np.full(shape, np.nan, dtype).transpose(axes)
        return lambda x: placed(empty, tuple(np.argsort(axes)))

    monkeypatch.setattr(run, "result_maker", maker)
    made = convolve(placed(x, order), placed(w))
    np.testing.assert_array_equal(fetched(made), y)
    extents = [made.__cuda_array_interface__["strides"][axis] for axis in order]
    assert sorted(extents, reverse=True) == extents


def test_a_packed_filter_stays_on_the_gpu(recorder):
    case = CASES["NCHW"]
    x, w = case.inputs(0, integers=True)
    made = plan_conv2d(x.shape, w.shape, device="cuda", padding=case.padding, stride=case.stride)
    packed = made.pack(w)
    alive = weakref.ref(packed.operand.owner)
    for _ in range(2):
        assert np.array_equal(made(x, packed), case.reference(x, w))
    assert len(recorder["cuMemcpyHtoD"]) == 3  # w, and x twice
    assert alive() is not None
    del packed
    assert alive() is None and len(recorder["cuMemFree"]) == len(recorder["cuMemAlloc"])


def test_settings_send_numpy_arrays_and_leave_device_arrays(recorder, device_array):
    x, w = np.ones((1, 8, 6, 6), np.float32), np.ones((8, 8, 3, 3), np.float32)
    with config(device="cuda:1"):
        conv2d(x, w)
        assert recorder.contexts == [0]
        assert recorder["cuCtxPushCurrent"]
        conv2d(x, w, device="cpu")
        assert len(recorder["cuLaunchKernelEx"]) == 1
        y = device_array(1 << 20, (1, 8, 4, 4), np.float32)
        xs, ws = device_array(4096, x.shape, np.float32), device_array(1 << 19, w.shape, np.float32)
        conv2d(xs, ws, out=y)
        assert len(recorder["cuLaunchKernelEx"]) == 2


def test_arrays_on_different_devices_are_refused(recorder, device_array):
    x, w = device_array(4096, (1, 8, 6, 6)), device_array(1 << 19, (8, 8, 3, 3))
    y = device_array(1 << 20, (1, 8, 4, 4))
    host = np.ones((8, 8, 3, 3), np.float16)
    with pytest.raises(DTypeError, match="ndarray is no device array"):
        conv2d(x, host, out=y)
    with pytest.raises(PlanError, match="w is on another device than x"):
        conv2d(np.ones((1, 8, 6, 6), np.float16), w)
    with pytest.raises(PlanError, match="x is on cuda:0, not on 'cpu'; copy it"):
        conv2d(x, w, out=y, device="cpu")
    with pytest.raises(ShapeError, match="out overlaps x in memory"):
        conv2d(x, w, padding=1, out=x)
    with pytest.raises(ShapeError, match="out overlaps residual in memory"):
        conv2d(x, w, residual=device_array((1 << 20) + 16, (1, 8, 4, 4)), out=y)
    conv2d(x, w, residual=y, out=y)
    with pytest.raises(DTypeError, match="no result array can be made for Device; pass out="):
        conv2d(x, w)


def test_a_residual_may_be_out_itself_and_nothing_that_overlaps_it(recorder, device_array):
    """With an offset, a thread would read what another has written."""
    x, w = device_array(4096, (1, 8, 6, 6)), device_array(1 << 19, (8, 8, 3, 3))
    y, shifted = (device_array((1 << 20) + at, (1, 8, 4, 4)) for at in (0, 16))
    turned = device_array(1 << 20, (1, 8, 4, 4), np.float16, (256, 32, 2, 8))
    conv2d(x, w, out=y, residual=y)
    for residual in (shifted, turned):
        with pytest.raises(ShapeError, match="out overlaps residual in memory"):
            conv2d(x, w, out=y, residual=residual)
    assert len(recorder["cuLaunchKernelEx"]) == 1


class Elsewhere:
    """A device array that names GPU 1 through DLPack, as a tensor of torch does."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__

    def __dlpack_device__(self):
        return 2, 1


def test_the_gpu_that_holds_x_computes(recorder, device_array):
    x, w = device_array(4096, (1, 8, 6, 6)), device_array(1 << 19, (8, 8, 3, 3))
    y = device_array(1 << 20, (1, 8, 4, 4))
    with pytest.raises(PlanError, match="w is on cuda:1, but x is on cuda:0"):
        conv2d(x, Elsewhere(w), out=y)
    conv2d(*map(Elsewhere, (x, w)), out=Elsewhere(y))
    assert [int(context) for (context,) in recorder["cuCtxPushCurrent"]] == [1]
    assert recorder.contexts == [0]
    with pytest.raises(PlanError, match="x is on cuda:1, not on 'cuda:0'"):
        conv2d(*map(Elsewhere, (x, w)), out=Elsewhere(y), device="cuda:0")


@pytest.mark.parametrize("operator", ["convolution", "dx", "dw"])
def test_a_thread_without_a_context_uses_the_gpu_of_x_alone(recorder, device_array, operator):
    """Each other context takes hundreds of megabytes of its GPU."""
    recorder.contexts.clear()
    recorder.copy_filters = lambda itemsize: None  # arrays have no memory
    shapes = (1, 8, 6, 6), (8, 8, 3, 3), (1, 8, 4, 4)
    x, w, y = (Elsewhere(device_array(n << 20, shape)) for n, shape in enumerate(shapes, start=1))
    made = plan_conv2d(*shapes[:2], "float16", device="cuda:1")
    call = {
        "convolution": lambda: made(x, made.pack(w), out=y),
        "dx": lambda: conv2d_input_grad(y, w, shapes[0], out=x),
        "dw": lambda: conv2d_weight_grad(x, y, shapes[1], out=w),
    }
    for _ in range(2):
        call[operator]()
    assert [int(device) for (device,) in recorder["cuDevicePrimaryCtxRetain"]] == [1]
    assert recorder["cuLaunchKernelEx"] and not recorder.contexts and not recorder["cuCtxSet"]


def test_a_thread_without_a_context_computes_numpy_arrays_on_gpu_0(recorder):
    recorder.contexts.clear()
    conv2d(np.zeros((1, 8, 6, 6), np.float16), np.zeros((8, 8, 3, 3), np.float16), device="cuda")
    assert recorder.contexts == [0] and recorder["cuLaunchKernelEx"]


def test_a_plan_for_another_gpu_is_not_run(recorder, device_array):
    made = plan_conv2d((1, 8, 6, 6), (8, 8, 3, 3), device="sm_120")
    x, w, y = (1, 8, 6, 6), (8, 8, 3, 3), device_array(1 << 20, (1, 8, 4, 4), np.float32)
    with pytest.raises(PlanError, match="plan is for sm_120a, but recorded is sm_90a; plan with"):
        made(np.ones(x, np.float32), np.ones(w, np.float32))
    with pytest.raises(PlanError, match="plan is for sm_120a, but recorded is sm_90a"):
        made(device_array(4096, x, np.float32), device_array(1 << 19, w, np.float32), out=y)


def test_wrong_arrays_for_a_plan_are_named_in_the_callers_layout(recorder):
    made = plan_conv2d((1, 8, 6, 6), (8, 8, 3, 3), device="cuda")
    x, w = np.ones((1, 8, 6, 6), np.float32), np.ones((8, 8, 3, 3), np.float32)
    with pytest.raises(ShapeError, match=r"x has shape \(1, 6, 6, 8\), but .* \(1, 8, 6, 6\)"):
        made(x.transpose(0, 2, 3, 1), w)
    with pytest.raises(ShapeError, match=r"w has shape \(3, 3, 8, 8\), but .* \(8, 8, 3, 3\)"):
        made(x, w.transpose(2, 3, 0, 1))
    with pytest.raises(DTypeError, match="x is float64, but the plan is for float32"):
        made(x.astype(np.float64), w)
    with pytest.raises(ShapeError, match=r"bias has shape \(3,\)"):
        made(x, w, np.ones(3, np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_no_images_are_planned_for(recorder, dtype):
    assert plan_conv2d((0, 64, 8, 8), (64, 64, 3, 3), dtype, device="cuda").problem.N == 0
    assert plan_conv1d((0, 64, 8), (64, 64, 3), dtype, device="sm_100").problem.N == 0


def test_an_out_that_no_kernel_can_write_is_refused(recorder, device_array):
    x, w = device_array(4096, (2, 8, 6, 6)), device_array(1 << 19, (8, 8, 3, 3))
    shape, read_only = (2, 8, 4, 4), device_array(1 << 20, (2, 8, 4, 4))
    read_only.__cuda_array_interface__["data"] = (1 << 20, True)
    for out, error, words in (
        (device_array(1 << 20, shape, strides=(0, 32, 8, 2)), ShapeError, "at one address"),
        (device_array((1 << 20) + 1, shape), ShapeError, "aligned to its elements of 2 bytes"),
        (read_only, PlanError, "out is read-only"),
    ):
        with pytest.raises(error, match=words):
            conv2d(x, w, out=out)
    assert not recorder["cuLaunchKernelEx"]
    none = device_array(4096, (0, 8, 6, 6)), device_array((1 << 19) + 2, (0, 8, 4, 4))
    conv2d(none[0], w, out=none[1])  # inside w, where it takes no place


def test_a_wrong_device_array_is_named_before_a_result_is_made(recorder, device_array):
    made = plan_conv2d(
        (1, 6, 6, 8), (8, 3, 3, 8), "float16", device="cuda", layout="NHWC", weight_layout="KRSC"
    )
    with pytest.raises(ShapeError, match=r"x has shape \(6, 6, 8\), but .* \(1, 6, 6, 8\)"):
        made(device_array(4096, (6, 6, 8)), device_array(1 << 19, (8, 3, 3, 8)))


def test_memory_errors_reach_the_caller(recorder):
    recorder.failures["cuMemAlloc"] = recorder.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DriverError, match="free device memory, or use a smaller batch"):
        conv2d(np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32), device="cuda")


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float64", "complex64"])
def test_dtypes_that_no_kernel_has_are_told_one_that_a_kernel_has(dtype):
    shapes = (1, 8, 6, 6), (8, 8, 3, 3)
    with pytest.raises(DTypeError, match=f"{dtype} is not supported; .*convert") as caught:
        plan_conv2d(*shapes, dtype, device="sm_90a")
    (told,) = set(re.findall(r"astype\('(\w+)'\)", str(caught.value)))
    plan_conv2d(*shapes, told, device="sm_90a")


def test_numpy_arrays_never_touch_the_gpu():
    code = """
import sys
import numpy as np
from implicit_conv import conv2d, plan_conv2d
conv2d(np.ones((1, 8, 9, 9), np.float32), np.ones((8, 8, 3, 3), np.float32))
print(sorted(name for name in sys.modules if name.startswith("implicit_conv.gpu")))
conv2d([[[[1.0]]]], [[[[2.0]]]])
plan_conv2d((1, 8, 9, 9), (8, 8, 3, 3), "bfloat16", device="sm_90a").explain()
print(sorted(n for n in sys.modules if n.startswith(("cuda", "numba.cuda", "numba_cuda"))))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["[]", "[]"]


def test_explain_for_a_gpu_on_the_command_line(capsys):
    from implicit_conv.tools.cli import main

    shapes = "256,64,56,56", "64,64,3,3"
    assert main(["explain", *shapes, "--padding=1", "--dtype=bfloat16", "--device=sm_90a"]) == 0
    assert "TMA im2col + wgmma" in capsys.readouterr().out
    assert main(["explain", *shapes, "--device=sm_70"]) == 2
    assert "before sm_80 lack asynchronous copies" in capsys.readouterr().err
