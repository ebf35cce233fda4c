"""Input gradients and transposed convolutions on a GPU: one convolution for each stride phase."""

import ctypes
import functools
import importlib.util
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import (
    DriverError,
    DTypeError,
    PlanError,
    ShapeError,
    conv1d_input_grad,
    conv2d_input_grad,
    conv3d_input_grad,
    conv_transpose1d,
    conv_transpose2d,
    plan_conv2d,
    plan_conv2d_input_grad,
    plan_conv_transpose2d,
    ptx,
)
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.gpu.cuda import kernel as launches
from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan.families import family_name
from implicit_conv.gpu.run import launch, run
from implicit_conv.kernels.geometry import NO_GEOMETRY
from implicit_conv.kernels.gpu.call import NO_CALL, pack
from implicit_conv.kernels.gpu.sizes import COPY_BLOCKS, COPY_WARPS, WARP
from implicit_conv.operators import dispatch
from implicit_conv.ptx.memory.global_memory import Buffer
from implicit_conv.testing.gpu import check_input_gradients
from implicit_conv.testing.gpu.check_input_gradients import CASES, layer, options_of
from perf.bringup.emulated import encoded
from perf.bringup.interpret import FAR, kernel_ptx, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
RUNS = 1, 2, 3, 4, 33, 40
FIRST, LAST = (0, 1, 2, 3), (0, 2, 3, 1)  # orders of memory
FILTERS = "phase filters "


@functools.cache
def gradient(case, dtype="float32", seed=0):
    """(dy, w, dx by the CPU) in N, C, H, W of integers."""
    return check_input_gradients.gradient(case, numpy_dtype(dtype), seed)


@pytest.fixture
def interpreter(recorder, monkeypatch):
    """The recorded driver, whose launches are those of the kernels' PTX."""
    if not COMPILERS:
        pytest.skip("needs pip install '.[cu13,assemble]' in a checkout")
    memory = ptx.Memory()

    def move_map(blob, number, address):
        at = 128 * number
        moved = replace(memory.decode(blob.bytes[at : at + 128].tobytes()), address=address)
        blob.bytes[at : at + 128] = np.frombuffer(memory.encode(moved), np.uint8)

    def run(config, function, parameters, extra):
        entry, v = recorder.entries[int(function)], recorder.kernels[int(function)]
        major, minor = recorder.capability
        kernel = parsed(entry, v, (major, minor, "a" if major >= 9 else ""))
        where = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        memory.buffers = [Buffer(*each) for each in recorder.memory.items()]
        ptx.Launch(
            kernel,
            parameters=ctypes.string_at(where, kernel.parameter_bytes),
            memory=memory,
            grid=(config.gridDimX, 1, 1),
            block=(config.blockDimX, 1, 1),
            shared_bytes=config.sharedMemBytes,
        ).run()

    monkeypatch.setattr(launch, "encode", lambda map, cc: encoded(memory, map.arguments))
    monkeypatch.setattr(launches.Blob, "move_map", move_map)
    recorder._cuLaunchKernelEx = run
    return recorder


@functools.cache
def parsed(entry, v, cc):
    """The kernel of a variant, or that which copies filters."""
    if not entry.startswith(FILTERS):
        return ptx.parse(ptx_of(v, cc))
    from implicit_conv.kernels.gpu.phase_filters import make_phase_filters

    return ptx.parse(kernel_ptx(make_phase_filters(int(entry[-1])), cc, 256))


# Capability, element type, order of memory, and a family of kernels that computes a phase.
INTERPRETED = [
    ("3x3", (9, 0), "float16", LAST, "tma-w-wgmma"),
    ("3x3/2", (9, 0), "float16", LAST, "tma-wgmma"),
    ("1x1/2, empty phases", (9, 0), "float16", LAST, "tma-wgmma"),
    ("stride and dilation share a factor", (9, 0), "float16", LAST, "tma-wgmma"),
    ("rectangular", (9, 0), "float16", LAST, "tma-wgmma"),
    ("3x3", (8, 0), "float16", LAST, "cp_async-mma"),
    ("3x3/3, dilated", (8, 0), "float16", LAST, "cp_async-mma"),
    ("1x1/2, empty phases", (8, 0), "float16", FIRST, "elements-mma"),
    ("3x3/2", (8, 0), "float32", LAST, "fma"),
    ("groups", (8, 0), "float16", LAST, "cp_async-mma"),
    ("depthwise", (8, 0), "float16", LAST, "direct"),
    ("odd channels", (8, 0), "float16", LAST, "elements-mma"),
    ("negative padding", (8, 0), "float16", LAST, "cp_async-mma"),
]


@pytest.mark.parametrize(("name", "capability", "dtype", "order", "family"), INTERPRETED)
def test_interpreted_kernels_equal_the_cpu(
    interpreter, placed, fetched, name, capability, dtype, order, family
):
    """All launches of a call, on the memory that they share: the copy of the filter too."""
    interpreter.capability = capability
    case = CASES[name]
    dy, w, expected = gradient(case, dtype)
    dx = placed(np.full(expected.shape, np.nan, dtype), order)
    conv2d_input_grad(placed(dy, order), placed(w), expected.shape, **options_of(case), out=dx)
    np.testing.assert_array_equal(fetched(dx), expected)
    assert family in {family_name(v) for v in interpreter.variants if v}


@pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout")
@pytest.mark.parametrize("axis", range(4))
def test_filters_are_copied_from_far_apart(axis):
    """Filters, taps or channels of w are more than 32 bits of bytes apart."""
    groups, K, R, S, C = 2, 40, 3, 4, 5
    w = np.arange(groups * K * R * S * C, dtype=np.uint16).reshape(groups * K, R, S, C)
    out, memory = np.zeros(w.size, np.uint16), ptx.Memory()
    y, start, slices = memory.put(out), memory.next, np.moveaxis(w, axis, 0)
    for number, part in enumerate(slices):
        memory.next = start + number * FAR
        memory.put(np.ascontiguousarray(part))
    strides = [*np.ascontiguousarray(slices[0]).strides]
    strides.insert(axis, FAR)
    names = dict(zip(("w_k", "w_r", "w_s", "w_c"), strides, strict=True))
    call = NO_CALL._replace(rows=R * S * groups * C, w=start, y=y, **names)
    sizes = {"K": K, "C": C, "groups": groups, "R": R, "S": S, "phases_h": 2, "phases_w": 3}
    ptx.Launch(
        parsed(f"{FILTERS}2", None, (8, 0, "")),
        parameters=pack(None, None, call, NO_GEOMETRY._replace(**sizes), (0.0, 0.0)),
        memory=memory,
        grid=(2, 1, 1),
        block=(256, 1, 1),
    ).run()
    each = w.reshape(groups, K, R, S, C)
    phases = [
        each[:, :, a::2, b::3][:, :, ::-1, ::-1].transpose(0, 4, 2, 3, 1).ravel()
        for a in range(2)
        for b in range(3)
    ]
    np.testing.assert_array_equal(out, np.concatenate(phases))


@pytest.mark.parametrize("name", CASES)
def test_numpy_arrays_equal_the_cpu(recorder, name):
    """Of a plan too, with packed filters, whose order numpy makes here and a kernel there."""
    case = CASES[name]
    for layout, weight_layout in (("NCHW", "KCRS"), ("NHWC", "KRSC"), ("NHWC", "RSCK")):
        dy, w, expected = gradient(case)
        axes = ["NCHW".index(letter) for letter in layout]
        filter_axes = ["KCRS".index(letter) for letter in weight_layout]
        options = {**options_of(case), "layout": layout, "weight_layout": weight_layout}
        dy, w, expected = dy.transpose(axes), w.transpose(filter_axes), expected.transpose(axes)
        dx = conv2d_input_grad(dy, w, expected.shape, device="cuda", **options)
        np.testing.assert_array_equal(dx, expected)
        plan = plan_conv2d_input_grad(
            dy.shape, w.shape, expected.shape, dy.dtype, device="cuda", **options
        )
        np.testing.assert_array_equal(plan(dy, plan.pack(w)), expected)
        if case.N == 2:
            one = conv2d_input_grad(dy[1], w, expected.shape[1:], device="cuda", **options)
            np.testing.assert_array_equal(one, expected[1])


@pytest.mark.parametrize("name", CASES)
def test_device_filters_are_packed_as_numpy_arrays_are(recorder, placed, fetched, name):
    case = CASES[name]
    dy, w, expected = gradient(case, "float16")
    plan = plan_conv2d_input_grad(
        dy.shape, w.shape, expected.shape, dy.dtype, device="cuda", **options_of(case)
    )
    found = [plan.pack(placed(w, order)) for order in (FIRST, LAST, (2, 3, 1, 0))]
    found.append(plan.pack(w))
    contents = [recorder.array(each.operand.address, (w.size,), (2,), "float16") for each in found]
    for content in contents[:-1]:
        np.testing.assert_array_equal(content, contents[-1])


@pytest.mark.parametrize("shape", [(1, 0, 2, 3), (0, 8, 2, 3)])
def test_gradients_of_nothing_are_zero(recorder, placed, fetched, shape):
    """dy has no channels, or no images; one row of dx is dense, though it is one of two phases."""
    dy, w = np.ones(shape, np.float16), np.ones((shape[1], 8, 3, 1), np.float16)
    whole = (shape[0], 8, 2, 3)
    options = {"stride": (2, 1), "padding": ((1, 2), (0, 0))}
    for order in (FIRST, LAST):
        dx = placed(np.full(whole, np.nan, np.float16), order)
        conv2d_input_grad(placed(dy, order), placed(w), whole, **options, out=dx)
        np.testing.assert_array_equal(fetched(dx) if shape[0] else 0, 0)
    dx = conv2d_input_grad(dy, w, whole, **options, device="cuda")
    np.testing.assert_array_equal(dx, np.zeros(whole))


def test_signals_equal_the_cpu(recorder, placed, fetched):
    rng = np.random.default_rng(0)
    for stride, dilation, groups in ((1, 1, 1), (2, 1, 2), (3, 2, 1), (4, 2, 1)):
        dy = rng.integers(-2, 3, (2, 16, 9)).astype(np.float16)
        w = rng.integers(-2, 3, (16, 8 // groups, 3)).astype(np.float16)
        size = 8 * stride + 2 * dilation + 1 - 3 + (stride > 1)
        options = {"stride": stride, "dilation": dilation, "groups": groups, "padding": [(1, 2)]}
        expected = conv1d_input_grad(dy, w, (2, 8, size), **options)
        dx = conv1d_input_grad(dy, w, (2, 8, size), device="cuda", **options)
        np.testing.assert_array_equal(dx, expected)
        out = placed(np.full(expected.shape, np.nan, "float16"), (0, 2, 1))
        conv1d_input_grad(placed(dy), placed(w), (2, 8, size), out=out, **options)
        np.testing.assert_array_equal(fetched(out), expected)
        y = conv_transpose1d(dy, w, stride=stride, dilation=dilation, groups=groups, device="cuda")
        expected = conv_transpose1d(dy, w, stride=stride, dilation=dilation, groups=groups)
        np.testing.assert_array_equal(y, expected)


TRANSPOSED = [
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": (1, 3), "padding": ((1, 0), (0, 2)), "output_padding": (0, 2)},
    {"stride": 4, "output_padding": 3},  # pixels that no tap reaches
    {"stride": 2, "padding": -1, "groups": 2},
    {"stride": 2, "padding": "same", "dilation": (1, 2)},
]


@pytest.mark.parametrize("added", [(), ("bias",), ("residual",), ("bias", "residual")])
@pytest.mark.parametrize("options", TRANSPOSED)
def test_transposed_convolutions_have_an_epilogue(recorder, placed, fetched, options, added):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((2, 8, 5, 6), (8, 8, 3, 3)))
    shape = conv_transpose2d(x, w, **options).shape
    epilogue = {
        "bias": rng.integers(1, 5, shape[1]).astype(np.float16),
        "residual": rng.integers(-9, 10, shape).astype(np.float16),
    }
    epilogue = {name: epilogue[name] for name in added}
    scale = 2.0 ** rng.integers(-1, 3, shape[1]).astype(np.float32)
    scaled = {"scale": scale, **epilogue}
    if "bias" in added:
        scaled["bias"] = epilogue["bias"].astype(np.float32)
    expected = conv_transpose2d(x, w, **scaled, **options)
    np.testing.assert_array_equal(
        conv_transpose2d(x, w, **scaled, **options, device="cuda"), expected
    )
    expected = conv_transpose2d(x, w, **epilogue, **options)
    np.testing.assert_array_equal(
        conv_transpose2d(x, w, **epilogue, **options, device="cuda"), expected
    )
    for order in (FIRST, LAST):
        out = placed(np.full(shape, np.nan, "float16"), order)
        given = {
            name: placed(array, order if name == "residual" else None)
            for name, array in epilogue.items()
        }
        conv_transpose2d(placed(x, order), placed(w), **given, **options, out=out)
        np.testing.assert_array_equal(fetched(out), expected)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_interpreted_copies_of_filters(interpreter, placed, monkeypatch, dtype):
    """Of more elements than a warp has lanes, and of more runs than the grid has warps."""
    one = interpreter._cuDeviceGetAttribute
    interpreter._cuDeviceGetAttribute = lambda name, device: (
        1 if name.name.endswith("MULTIPROCESSOR_COUNT") else one(name, device)
    )
    case = layer(1, 3, 35, (9, 11), (3, 5), (2, 3), (2, 1), groups=2)
    dy, w, expected = gradient(case, dtype)
    plan = plan_conv2d_input_grad(
        dy.shape, w.shape, expected.shape, dtype, device="cuda", **options_of(case)
    )
    assert plan.engine.choice.arch.sms == 1 and 3 * 2 * 15 > COPY_BLOCKS * COPY_WARPS
    want = plan.engine.choice.ordered(w)
    for order in (FIRST, LAST):
        packed = plan.pack(placed(w, order))
        found = interpreter.array(packed.operand.address, want.shape, want.strides, dtype)
        np.testing.assert_array_equal(found, want)


def test_pixels_that_no_tap_reaches_are_set_to_zero_where_that_is_right(recorder, placed, fetched):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((1, 8, 3, 4), (8, 8, 1, 1)))
    bias = np.ones(8, np.float16)
    for zeros, gap, options in (
        (1, 0, {}),
        (1, 0, {"activation": "relu"}),
        (0, 0, {"activation": ("clamp", 1, 2)}),
        (0, 0, {"bias": bias}),
        (0, 8, {}),
        (0, 0, {"activation": "sigmoid"}),  # which the recorded driver does not know
    ):
        recorder.calls.clear()
        expected = conv_transpose2d(x, w, stride=2, **options)
        known = options.get("activation") != "sigmoid"
        recorder.convolved = ["float16"] if known else []
        out = placed(np.full(expected.shape, np.nan, "float16"), LAST, gap)
        given = {**options, "bias": placed(bias)} if "bias" in options else options
        conv_transpose2d(placed(x), placed(w), stride=2, out=out, **given)
        assert len(recorder["cuMemsetD8Async"]) == zeros
        if known:
            np.testing.assert_array_equal(fetched(out), expected)


def test_an_interpreted_signal(interpreter, placed, fetched):
    interpreter.capability = 8, 0
    rng = np.random.default_rng(0)
    dy, w = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((2, 16, 9), (16, 8, 3)))
    expected = conv1d_input_grad(dy, w, (2, 8, 18), stride=2, padding=1)
    dx = placed(np.full(expected.shape, np.nan, "float16"), (0, 2, 1))
    conv1d_input_grad(placed(dy, (0, 2, 1)), placed(w), (2, 8, 18), 2, 1, out=dx)
    np.testing.assert_array_equal(fetched(dx), expected)


def test_an_interpreted_epilogue_of_all_pixels(interpreter, placed, fetched):
    """Bias, residual and activation of pixels that taps reach, and of others."""
    interpreter.capability = 8, 0
    rng = np.random.default_rng(0)
    x, w = (
        rng.integers(-2, 3, shape).astype(np.float16) for shape in ((1, 8, 3, 4), (8, 16, 2, 2))
    )
    options = {"stride": 3, "output_padding": 1, "activation": ("clamp", 1, 20)}
    bias = rng.integers(-4, 5, 16).astype(np.float16)
    residual = rng.integers(-9, 10, (1, 16, 9, 12)).astype(np.float16)
    expected = conv_transpose2d(x, w, bias, residual=residual, **options)
    out = placed(np.full(expected.shape, np.nan, "float16"), LAST)
    arrays = placed(x, LAST), placed(w), placed(bias)
    conv_transpose2d(*arrays, residual=placed(residual, LAST), out=out, **options)
    np.testing.assert_array_equal(fetched(out), expected)


def test_a_residual_is_read_before_it_is_overwritten(recorder, placed, fetched):
    """Except where all pixels are written before the phases are."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (1, 8, 4, 4)).astype(np.float16)
    for taps in (2, 1):
        w = rng.integers(-2, 3, (8, 8, taps, taps)).astype(np.float16)
        shape = conv_transpose2d(x, w, stride=2).shape
        residual = rng.integers(-9, 10, shape).astype(np.float16)
        out = placed(residual, LAST)
        if taps == 1:
            with pytest.raises(ShapeError, match="out overlaps residual"):
                conv_transpose2d(placed(x), placed(w), stride=2, residual=out, out=out)
            continue
        conv_transpose2d(placed(x), placed(w), stride=2, residual=out, out=out)
        expected = conv_transpose2d(x, w, stride=2, residual=residual)
        np.testing.assert_array_equal(fetched(out), expected)


class Memory:
    """Arrays at new addresses, or at those of the call before with new values."""

    def __init__(self, recorder, placed):
        self.recorder, self.placed, self.kept = recorder, placed, {}

    def __call__(self, name, content, order, keeps):
        if not (keeps and name in self.kept):
            self.kept[name] = self.placed(content, order)
            return self.kept[name]
        given = self.kept[name].__cuda_array_interface__
        form = given["data"][0], given["shape"], given["strides"], content.dtype
        self.recorder.array(*form)[...] = content
        return self.kept[name]


REPEATED = ["3x3", "3x3/2", "1x1/2, empty phases", "groups", "odd channels"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", REPEATED)
def test_every_repetition_is_right(recorder, placed, fetched, monkeypatch, name, dtype):
    """Of the function, of a plan, and of a plan with packed filters; with `out`, and without. Every
    other time arrays are at the addresses of the time before, with new values.
    """
    recorder.convolved.append("bfloat16")
    case, memory = CASES[name], Memory(recorder, placed)
    made = []

    def maker(owner, shape, axes, dtype):
        def make(x):
            made.append(placed(np.full(shape, np.nan, numpy_dtype(dtype)).transpose(axes), axes_of))
            return made[-1]

        axes_of = tuple(np.argsort(axes))
        return make

    monkeypatch.setattr(run, "result_maker", maker)
    plan = None
    for time in range(1, max(RUNS) + 1):
        (dy, w, expected), keeps = gradient(case, dtype, seed=time % 7), time % 2 == 0
        if plan is None:
            plan = plan_conv2d_input_grad(
                dy.shape, w.shape, expected.shape, dtype, device="cuda", **options_of(case)
            )
        given = memory("dy", dy, LAST, keeps), memory("w", w, FIRST, keeps)
        out = memory("dx", np.full(expected.shape, np.nan, dy.dtype), LAST, keeps)
        packed = plan.pack(given[1])
        function = functools.partial(conv2d_input_grad, **options_of(case))
        ways = [
            functools.partial(function, *given, expected.shape, out=out),
            functools.partial(function, *given, expected.shape),
            functools.partial(plan, *given, out=out),
            functools.partial(plan, given[0], packed, out=out),
            functools.partial(plan, given[0], packed),
        ]
        for way in ways:
            memory("dx", np.full(expected.shape, np.nan, dy.dtype), LAST, True)
            found = way()
            if time in RUNS:
                np.testing.assert_array_equal(fetched(found).view(dy.dtype), expected)
    assert len(made) == 2 * max(RUNS)


def test_a_known_call_makes_nothing_new(recorder, device_array, monkeypatch):
    dy, w = device_array(4096, (2, 64, 8, 8)), device_array(1 << 17, (64, 64, 3, 3))
    dx = device_array(1 << 20, (2, 64, 16, 16))
    options = {"stride": 2, "padding": 1}
    recorder._cuMemAllocFromPoolAsync = lambda *_: 1 << 22
    recorder._cuMemFreeAsync = lambda *_: None
    recorder.copy_filters = lambda _: None
    conv2d_input_grad(dy, w, (2, 64, 16, 16), out=dx, **options)
    calls = len(recorder.calls)
    monkeypatch.setattr(launch, "content", None)
    monkeypatch.setattr(dispatch, "_plan", None)
    conv2d_input_grad(dy, w, (2, 64, 16, 16), out=dx, **options)
    names = [name for name, _ in recorder.calls[calls:]]
    assert [name for name in names if name not in ("cuPointerGetAttribute", "cuCtxGetDevice")] == [
        "cuMemAllocFromPoolAsync",
        *["cuLaunchKernelEx"] * 5,
        "cuMemFreeAsync",
    ]
    streams = [arguments[0].hStream for arguments in recorder["cuLaunchKernelEx"][-5:]]
    streams += [recorder["cuMemAllocFromPoolAsync"][-1][-1], recorder["cuMemFreeAsync"][-1][-1]]
    assert {*map(int, streams)} == {77}


def test_the_copy_of_a_filter_waits_for_its_stream(recorder, device_array):
    """And all work to come on that stream waits for the phases: first, and in a known call."""
    dy, dx = device_array(4096, (2, 8, 8, 8)), device_array(1 << 20, (2, 8, 16, 16))
    w = device_array(1 << 17, (8, 8, 3, 3), stream=99)
    recorder._cuEventCreate = lambda _: len(recorder["cuEventCreate"])
    recorder.copy_filters = lambda _: None
    for _ in range(3):
        recorder.calls.clear()
        conv2d_input_grad(dy, w, (2, 8, 16, 16), 2, 1, out=dx)
        assert [int(each[0]) for each in recorder["cuStreamWaitEvent"]] == [77, 99]
        launches = [at for at, (name, _) in enumerate(recorder.calls) if "Launch" in name]
        waits = [at for at, (name, _) in enumerate(recorder.calls) if "WaitEvent" in name]
        assert waits[0] < min(launches) and max(launches) < waits[1] and len(launches) == 5


def test_memory_of_a_failed_launch_is_freed(recorder, placed):
    dy, w, expected = gradient(CASES["3x3"], "float16")
    recorder.failures["cuLaunchKernelEx"] = recorder.CUresult.CUDA_ERROR_LAUNCH_FAILED
    arrays = placed(dy), placed(w)
    for _ in range(2):
        with pytest.raises(DriverError, match="cuLaunchKernelEx"):
            conv2d_input_grad(*arrays, expected.shape, padding=1, out=placed(expected))
    assert len(recorder["cuMemFreeAsync"]) == len(recorder["cuMemAllocFromPoolAsync"]) == 2


def test_filters_of_other_phases_are_refused(recorder, placed):
    """They have as many elements, in another order."""
    plans = [
        plan_conv2d_input_grad(
            (1, 8, 4, 4), (8, 8, 3, 3), (1, 8, *size), "float16", device="cuda", stride=stride
        )
        for stride, size in ((1, (6, 6)), (2, (9, 9)))
    ]
    w, dy = np.zeros((8, 8, 3, 3), np.float16), placed(np.zeros((1, 8, 4, 4), np.float16))
    out = placed(np.zeros((1, 8, 9, 9), np.float16))
    packed = [plan.pack(w) for plan in plans]
    for _ in range(2):
        plans[1](dy, packed[1], out=out)
        with pytest.raises(PlanError, match="of a plan with other groups, strides or taps"):
            plans[1](dy, packed[0], out=out)
        with pytest.raises(ShapeError, match="the packed filter has shape"):
            conv = plan_conv2d((1, 8, 6, 6), (8, 8, 3, 3), "float16", device="cuda")
            plans[1](dy, conv.pack(w), out=out)


def test_what_gpus_do_not_compute(recorder, placed):
    dy, w, expected = gradient(CASES["3x3"], "float16")
    shape = expected.shape
    with pytest.raises(PlanError, match="computes padding_mode 'zeros', not 'reflect'"):
        conv2d_input_grad(dy, w, shape, padding=1, padding_mode="reflect", device="cuda")
    with pytest.raises(DTypeError, match="float64"):
        conv2d_input_grad(dy.astype("f8"), w.astype("f8"), shape, padding=1, device="cuda")
    with pytest.raises(DTypeError, match="out_dtype float64: on a GPU y is float32, or has the"):
        conv2d_input_grad(dy, w, shape, padding=1, out_dtype="float64", device="cuda")
    with pytest.raises(PlanError, match="conv3d_input_grad is computed on the CPU"):
        conv3d_input_grad(
            dy[..., None], w[..., None], (*shape, 1), padding=(1, 1, 0), device="cuda"
        )
    with pytest.raises(PlanError, match="copy of the filter, of 6912 bytes, more than max_work"):
        conv2d_input_grad(dy, w, shape, padding=1, max_workspace=6911, device="cuda")
    with pytest.raises(ShapeError, match="dy has shape"):
        conv2d_input_grad(dy, w, shape, device="cuda")
    plan = plan_conv2d_input_grad(dy.shape, w.shape, shape, "float16", padding=1, device="cuda")
    with pytest.raises(PlanError, match="a gradient has no bias"):
        plan(dy, w, np.zeros(24, np.float16))
    with pytest.raises(ShapeError, match=r"dy has shape \(2, 24, 5, 6\), but the plan is for"):
        plan(placed(expected), placed(w), out=placed(expected))
    with pytest.raises(PlanError, match="a gradient has no bias, residual or scale"):
        plan(dy, w, scale=np.ones(24, np.float16))


def test_the_check_of_a_real_gpu(recorder, monkeypatch):
    """It is right on the recorded driver, and notices filters that are not turned."""
    assert list(check_input_gradients.check_input_gradients()) == []
    monkeypatch.setattr(type(recorder), "copy_filters", lambda *_: None)
    assert len(list(check_input_gradients.check_input_gradients())) == 4 * len(CASES)


@pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout")
@pytest.mark.parametrize(("number", "itemsize"), [(80, 2), (90, 4), (120, 2)])
def test_copies_of_filters_link_without_spills(number, itemsize):
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel
    from implicit_conv.kernels.gpu.phase_filters import make_phase_filters

    made = make_phase_filters(itemsize)
    kernel = compile_kernel(made, signature(), KNOWN[number].cc, COPY_WARPS * WARP)
    assert kernel.spills == kernel.stack == 0 and not kernel.complaints


def test_strict_sums_have_one_order(recorder):
    for stride in (1, 2):
        plan = plan_conv_transpose2d(
            (8, 64, 28, 28),
            (64, 64, 3, 3),
            "bfloat16",
            stride=stride,
            precision="strict",
            device="sm_90a",
        )
        choices = [part.choice for part in plan.engine.choice.parts]
        assert not any(c.variant.wide or c.variant.consumer == "wgmma" for c in choices)


def test_a_plan_in_words():
    plan = plan_conv2d_input_grad(
        (64, 512, 28, 28),
        (512, 256, 1, 1),
        (64, 256, 56, 56),
        "bfloat16",
        stride=2,
        device="sm_90a",
    )
    text, facts = plan.explain(), plan.facts()
    for words in (
        "runs        1 stride phase, after pixels that no tap reaches",
        "problem     gradient of the input of x (64, 256, 56, 56) NCHW",
        "filter      copied in the order of the phases in every call, 262144 bytes",
        "set to zero if nothing is added and dx has no gaps",
        "phase       rows 0::2, columns 0::2, 1x1 taps",
        "kernel      TMA im2col + wgmma",
    ):
        assert words in text
    assert plan.workspace_bytes == plan.packed_bytes == 262144
    (part,) = facts["parts"]
    assert facts["milliseconds"] > part["milliseconds"]
    assert plan.trace() and json.dumps(facts)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan and hash(again) == hash(plan) and again.explain() == text


def test_layers_of_resnet_are_near_the_time_of_their_convolutions():
    """Their estimates: 0.043, 0.066 and 0.086 ms."""
    for C, K, size, taps, stride, most in (
        (64, 64, 56, 3, 1, 0.045),
        (128, 128, 56, 3, 2, 0.070),
        (256, 512, 56, 1, 2, 0.090),
    ):
        plan = plan_conv2d_input_grad(
            (64, K, size // stride, size // stride),
            (K, C, taps, taps),
            (64, C, size, size),
            "bfloat16",
            stride=stride,
            padding=taps // 2,
            device="sm_90a",
        )
        assert plan.facts()["milliseconds"] < most
