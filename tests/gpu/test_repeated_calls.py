"""Calls of device arrays in all their repetitions, on a driver that convolves; and their streams.

A kept call reads other arrays than the first: each is compared with the oracle.
"""

import numpy as np
import pytest

from implicit_conv import conv1d, conv2d, conv3d, plan_conv1d, plan_conv2d, plan_conv3d
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.errors import DriverError, DTypeError, PlanError, ShapeError
from implicit_conv.gpu.run import launch, run
from implicit_conv.operators import dispatch
from implicit_conv.problem import reference

RUNS = 1, 2, 3, 4, 33, 40
FIRST, LAST = "channels first", "channels last"  # orders of memory
FORMS = "images", "patches", "signals", "volumes"
PLANS = {conv1d: plan_conv1d, conv2d: plan_conv2d, conv3d: plan_conv3d}
CHOICES = {  # for x, w, out and the residual; and whether there are bias and residual
    "orders": (FIRST, LAST),
    "gaps": (0, 8),
    "offsets": (0, 1),
    "added": (0, 1),
    "dtype": ("float16", "bfloat16", "float32"),
    "out_dtype": (None, "float32"),
}
DIFFERENCES = [
    *((key, place) for key in ("orders", "gaps", "offsets") for place in range(4)),
    ("added", 0),
    ("added", 1),
    ("dtype", 0),
    ("out_dtype", 0),
    (None, 0),
]


class Memory:
    """Arrays in the memory of the recorded driver."""

    def __init__(self, recorder, device_array, rng):
        self.recorder, self.device_array, self.rng = recorder, device_array, rng

    def __call__(self, content, order=None, gap=0, offset=0, stream=77):
        """(array on the device, view of its memory): `content` at a new address, its axes in
        `order` in memory, with `gap` unused elements after each row of that, at `offset` elements.
        """
        order = (0, *range(2, content.ndim), 1) if order == LAST else range(content.ndim)
        stored = content.transpose(order)
        room = (*stored.shape[:-1], stored.shape[-1] + gap)
        size = content.itemsize
        start = int(self.recorder._cuMemAlloc(int(np.prod(room)) * size + offset * size))
        whole = self.recorder.memory[start][offset * size :].view(content.dtype).reshape(room)
        view = whole[..., : stored.shape[-1]].transpose(np.argsort(order))
        view[...] = content
        made = self.device_array(
            start + offset * size, content.shape, content.dtype, view.strides, stream
        )
        return made, view


def drawn(rng, dtype, *shape):
    """Integers whose sums are exact in any dtype."""
    return rng.integers(-1, 2, shape).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("key", "place"), DIFFERENCES)
def test_every_repetition_is_right(recorder, device_array, key, place, form):
    """Two kinds of calls in turn, which differ in one thing or in all, each 40 times by `conv2d` or
    by a plan; results are looked at in RUNS.
    """
    rng = np.random.default_rng([FORMS.index(form), place])
    memory = Memory(recorder, device_array, rng)
    recorder.convolved.append("bfloat16")
    kinds = [kind_of_call(rng, form), kind_of_call(rng, form)]
    if key:
        if (key, place) != ("added", 1):
            kinds[0]["added"][1] = 1
        if key == "out_dtype":
            kinds[0]["dtype"] = ["bfloat16"]
        if key == "offsets":  # kernels that move 16 bytes
            kinds[0] |= {"orders": [LAST] * 4, "gaps": [0] * 4, "offsets": [0] * 4}
            kinds[0] |= {"sizes": ((2, 16, 6, 8), (16, 16, 2, 2))}
            kinds[0]["options"] |= {"groups": 1, "padding": 0, "stride": 2}
        other = list(kinds[0][key])
        other[place] = next(value for value in CHOICES[key] if value != other[place])
        kinds[1] = {**kinds[0], key: other}
    made = [None, None]
    for time in range(1, max(RUNS) + 1):
        for number, kind in enumerate(kinds):
            made[number] = check(memory, rng, kind, made[number], time in RUNS)


def kind_of_call(rng, form):
    """What stays the same in repetitions."""
    groups = 1 if form == "patches" else int(rng.choice([1, 1, 2]))
    channels, filters = int(rng.choice([3, 8, 16])), int(rng.choice([5, 8, 16]))
    r, s = rng.integers(1, 4, 2).tolist()
    h, w, stride, padding = 7, 9, int(rng.integers(1, 3)), int(rng.integers(0, 2))
    if form == "patches":
        r = s = stride = int(rng.integers(2, 5))
        h, w, padding = 3 * r, 4 * s, 0
    return {
        "form": form,
        "sizes": (
            (int(rng.integers(1, 4)), channels * groups, h, w),
            (filters * groups, channels, r, s),
        ),
        "options": {"stride": stride, "padding": padding, "groups": groups},
        "dtype": [str(rng.choice(CHOICES["dtype"]))],
        "out_dtype": [rng.choice(CHOICES["out_dtype"])],
        "orders": rng.choice(CHOICES["orders"], 4).tolist(),
        "gaps": rng.choice(CHOICES["gaps"], 4).tolist(),
        "offsets": rng.choice(CHOICES["offsets"], 4).tolist(),
        "added": rng.choice(CHOICES["added"], 2).tolist(),
        "planned": rng.integers(2),
        "kept": rng.integers(2),  # the arrays of the call before, with new values
    }


def check(memory, rng, kind, before, looks):
    (dtype,), options = kind["dtype"], kind["options"]
    (n, _, h, w), (k, _, r, s) = kind["sizes"]
    x, f = (drawn(rng, dtype, *shape) for shape in kind["sizes"])
    bias = drawn(rng, dtype, k) if kind["added"][0] else None
    pad, step = options["padding"], options["stride"]
    p, q = (h + 2 * pad - r) // step + 1, (w + 2 * pad - s) // step + 1
    residual = drawn(rng, dtype, n, k, p, q) if kind["added"][1] else None
    signals, volumes = kind["form"] == "signals", kind["form"] == "volumes"
    rank = 1 if signals else 3 if volumes else 2
    z = (3 + 2 * pad - 2) // step + 1
    if volumes:  # of three planes, and filters of two
        x, f = drawn(rng, dtype, n, x.shape[1], 3, h, w), drawn(rng, dtype, *f.shape[:2], 2, r, s)
        residual = None if residual is None else drawn(rng, dtype, n, k, z, p, q)
    if signals:  # the first rows alone
        x, f, p = x[:, :, 0], f[:, :, 0], None
        residual = residual if residual is None else residual[:, :, 0]
    shape = (n, k, q) if signals else (n, k, z, p, q) if volumes else (n, k, p, q)
    options = {**options, "out_dtype": kind["out_dtype"][0]}
    out_dtype = np.dtype(options["out_dtype"] or x.dtype)
    contents = x, f, np.full(shape, np.nan, out_dtype), residual
    if before is not None and kind["kept"]:
        arrays = before
        for (_, view), content in zip(arrays, (*contents, bias), strict=True):
            if content is not None:
                view[...] = content
    else:
        arrays = [
            (None, None) if content is None else memory(content, *place)
            for content, *place in zip(
                contents, kind["orders"], kind["gaps"], kind["offsets"], strict=True
            )
        ]
        arrays.append((None, None) if bias is None else memory(bias))
    (on_x, _), (on_f, _), (out, y), (on_residual, _), (on_bias, _) = arrays
    convolve = conv1d if signals else conv3d if volumes else conv2d
    if kind["planned"]:
        plan = PLANS[convolve](x.shape, f.shape, dtype, **options, device="cuda")
        plan(on_x, on_f, on_bias, residual=on_residual, out=out)
    else:
        convolve(on_x, on_f, on_bias, **options, residual=on_residual, out=out)
    if looks:
        want = reference.conv(
            x.astype(np.float64),
            f.astype(np.float64),
            stride=(step,) * rank,
            dilation=(1,) * rank,
            pads=((pad, pad),) * rank,
            groups=options["groups"],
        )
        want = want + (0 if bias is None else bias.reshape(-1, *[1] * rank))
        np.testing.assert_array_equal(y, want + (0 if residual is None else residual))
    return arrays if kind["kept"] else None


def test_a_known_call_of_the_function_makes_nothing_new(recorder, device_array, monkeypatch):
    x, w = device_array(4096, (2, 64, 8, 8)), device_array(1 << 17, (64, 64, 3, 3))
    y = device_array(1 << 20, (2, 64, 6, 6))
    conv2d(x, w, out=y)
    calls = len(recorder.calls)
    monkeypatch.setattr(launch, "content", None)
    monkeypatch.setattr(dispatch, "_plan", None)
    conv2d(x, w, out=y)
    assert [name for name, _ in recorder.calls[calls:]] == [
        "cuPointerGetAttribute",
        "cuCtxGetDevice",
        "cuLaunchKernelEx",
    ]


def test_a_known_call_refuses_what_the_first_would(recorder, device_array):
    x, w = device_array(4096, (2, 8, 8, 8)), device_array(1 << 17, (8, 8, 3, 3))
    y = device_array(1 << 20, (2, 8, 6, 6))
    for _ in range(2):
        conv2d(x, w, out=y)
        with pytest.raises(DTypeError, match="ndarray is no device array"):
            conv2d(x, np.zeros((8, 8, 3, 3), np.float16), out=y)
        with pytest.raises(DTypeError, match="scale is float64, but the plan is for float16"):
            conv2d(x, w, scale=np.ones(8), out=y)
        with pytest.raises(DTypeError, match="ndarray is no device array"):
            conv2d(x, w, scale=np.ones(8, np.float16), out=y)
        with pytest.raises(PlanError, match="a scale and a bias of Device cannot be"):
            conv2d(x, w, scale=device_array(1 << 21, (8,)), out=y)
        with pytest.raises(ShapeError, match=r"bias has shape \(8, 2\), but"):
            conv2d(x, w, device_array(1 << 21, (8, 2)), out=y)
        with pytest.raises(PlanError, match="x is on cuda:0, not on 'cpu'"):
            conv2d(x, w, out=y, device="cpu")
        with pytest.raises(DTypeError, match="out is float32, but the plan is for float16"):
            conv2d(x, w, out=device_array(1 << 20, (2, 8, 6, 6), np.float32))


def order_of_events(recorder):
    """What was put on streams: ("record" or "wait", stream, event) and ("launch", stream)."""
    found = []
    for name, arguments in recorder.calls:
        if name == "cuEventRecord":
            found.append(("record", arguments[1], arguments[0]))
        elif name == "cuStreamWaitEvent":
            found.append(("wait", arguments[0], arguments[1]))
        elif name == "cuLaunchKernelEx":
            found.append(("launch", int(arguments[0].hStream)))
    return found


@pytest.mark.parametrize("where", ["w", "bias", "residual", "out"])
def test_a_launch_is_among_the_work_of_every_array(recorder, device_array, where):
    """It waits for the other stream, which then waits for it: first, and in a known call."""
    shapes = {"w": (8, 8, 3, 3), "bias": (8,), "residual": (2, 8, 6, 6), "out": (2, 8, 6, 6)}
    streams = dict.fromkeys(shapes, 77) | {where: 99}
    given = {
        name: device_array((1 << 20) * number, shape, stream=streams[name])
        for number, (name, shape) in enumerate(shapes.items(), start=1)
    }
    recorder._cuEventCreate = lambda _: len(recorder["cuEventCreate"])
    for _ in range(3):
        recorder.calls.clear()
        conv2d(device_array(4096, (2, 8, 8, 8)), **given)
        assert order_of_events(recorder) == [
            ("record", 99, 1),
            ("wait", 77, 1),
            ("launch", 77),
            ("record", 77, 2),
            ("wait", 99, 2),
        ]
        assert len(recorder["cuEventDestroy"]) == 2


def test_a_filter_that_was_packed_on_another_stream_is_waited_for(recorder, on_gpu, monkeypatch):
    """Its copy is of the stream of then; a filter that needs no copy is as torch's tensors are."""
    torch, raw = pytest.importorskip("torch"), "_cuda_getCurrentRawStream"
    made = plan_conv2d((2, 8, 8, 8), (8, 8, 3, 3), "float16", device="cuda")
    x, y = (on_gpu(torch.zeros(2, 8, size, size).half()) for size in (8, 6))
    w = torch.zeros(8, 8, 3, 3).half()
    last = w.to(memory_format=torch.channels_last)
    monkeypatch.setattr(torch._C, raw, lambda device: 7, raising=False)
    packed, whole = made.pack(on_gpu(w)), made.pack(on_gpu(last))
    monkeypatch.setattr(torch._C, raw, lambda device: 9, raising=False)
    recorder._cuEventCreate = lambda _: 1
    for filters, ordered in ((packed, True), (whole, False)):
        recorder.calls.clear()
        made(x, filters, out=y)
        launch = [("launch", 9)]
        before, after = [("record", 7, 1), ("wait", 9, 1)], [("record", 9, 1), ("wait", 7, 1)]
        found = order_of_events(recorder)
        assert found == ([*before, *launch, *after] if ordered else launch)


def test_a_result_is_made_on_the_device_of_x(recorder, device_array, monkeypatch):
    """CuPy makes arrays on the device of the current context."""
    made = []

    def maker(owner, *sizes):
        def make(x):
            made.append(recorder.contexts[-1])
            return device_array(1 << 20, (2, 8, 6, 6))

        return make

    monkeypatch.setattr(run, "result_maker", maker)
    recorder._cuPointerGetAttribute = lambda *_: 1
    for _ in range(2):
        conv2d(device_array(4096, (2, 8, 8, 8)), device_array(1 << 17, (8, 8, 3, 3)))
    assert made == [1, 1] and recorder.contexts == [0]


def test_a_captured_stream_has_no_other_streams(recorder, device_array):
    recorder._cuStreamIsCapturing = lambda stream: int(stream == 77)
    w, y = device_array(1 << 17, (8, 8, 3, 3), stream=99), device_array(1 << 20, (2, 8, 6, 6))
    conv2d(device_array(4096, (2, 8, 8, 8)), w, out=y)
    assert not recorder["cuEvent"] and len(recorder["cuLaunchKernelEx"]) == 1


def test_an_event_that_cannot_be_waited_for_is_destroyed(recorder, device_array):
    recorder.failures["cuEventRecord"] = recorder.CUresult.CUDA_ERROR_INVALID_HANDLE
    w, y = device_array(1 << 17, (8, 8, 3, 3), stream=99), device_array(1 << 20, (2, 8, 6, 6))
    with pytest.raises(DriverError, match="cuEventRecord"):
        conv2d(device_array(4096, (2, 8, 8, 8)), w, out=y)
    assert len(recorder["cuEventDestroy"]) == 1 and not recorder["cuLaunchKernelEx"]


def test_a_packed_numpy_filter_is_there_before_it_is_read(recorder):
    made = plan_conv2d((2, 8, 8, 8), (8, 8, 3, 3), "float16", device="cuda")
    made.pack(np.zeros((8, 8, 3, 3), np.float16))
    names = [name for name, _ in recorder.calls]
    assert names.index("cuStreamSynchronize") > names.index("cuMemcpyHtoD")


@pytest.mark.parametrize("stream", [None, 77, 1])
def test_streams_that_are_the_same_or_not_known_need_no_order(recorder, device_array, stream):
    x = device_array(4096, (2, 8, 8, 8), stream=77 if stream == 77 else 0)
    w = device_array(1 << 17, (8, 8, 3, 3), stream=stream)
    y = device_array(1 << 20, (2, 8, 6, 6), stream=None)
    conv2d(x, w, out=y)
    assert not recorder["cuEvent"] and len(recorder["cuLaunchKernelEx"]) == 1
