"""torch's convolutions on a GPU: on a recorded driver that computes in the memory of the tensors,
with planted times. What torch's dispatcher does with tensors of a GPU only a GPU can show.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from torch_card import OURS, THEIRS  # noqa: E402

import implicit_conv.torch as door  # noqa: E402
from implicit_conv.errors import PlanError  # noqa: E402
from implicit_conv.gpu.cuda import driver  # noqa: E402
from implicit_conv.torch import cuda, override  # noqa: E402

RUNS = 1, 2, 3, 4, 33, 40
LAST, PLAIN = torch.channels_last, torch.contiguous_format
VOLUMES = {"x": (2, 16, 4, 6, 5), "w": (8, 16, 3, 2, 3), "formats": (torch.channels_last_3d,) * 2}


def tensors(
    card, dtype=torch.float16, x=(2, 16, 9, 8), w=(8, 16, 3, 3), bias=True, formats=(LAST, LAST)
):
    """Integers, so that sums are exact."""

    def tensor(shape, form=PLAIN):
        values = torch.randint(-1, 2, shape).to(dtype)
        return card.on_gpu(values.contiguous(memory_format=form))

    return *map(tensor, (x, w), formats), tensor(w[:1]) if bias else None


def sizes(stride=1, padding=1, dilation=1, transposed=False, groups=1, rank=2):
    each = ([value] * rank for value in (stride, padding, dilation))
    return *each, transposed, [0] * rank, groups


def convolved(x, w, bias, *window):
    return override._convolution_on_gpu(None, x, w, bias, *window)


def expected(x, w, bias, *window):
    plain = (None if t is None else t.as_subclass(torch.Tensor).double() for t in (x, w, bias))
    return torch.ops.aten.convolution.default(*plain, *window)


SHAPES = {  # spatial axes, and arguments of `tensors`
    "images": (2, {"formats": (PLAIN, PLAIN)}),
    "channels last": (2, {}),
    "patches": (2, {"x": (2, 8, 12, 8), "w": (8, 8, 4, 4)}),
    "signals": (1, {"x": (2, 16, 9), "w": (8, 16, 3), "formats": (PLAIN, PLAIN)}),
    "volumes": (3, VOLUMES | {"formats": (PLAIN, PLAIN)}),
    "volumes, channels last": (3, VOLUMES),
    "planes": (3, VOLUMES | {"w": (8, 16, 1, 2, 3)}),
}


@pytest.mark.parametrize("seconds", [OURS, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_the_faster_kernel_runs_in_every_repetition(card, name, seconds, bias):
    """All dtypes with a window each, in turn: new values at new addresses, and torch's strides."""
    card.seconds, kept, (rank, shapes) = seconds, [], SHAPES[name]
    windows = sizes(stride=2, rank=rank), sizes(stride=4, padding=0, rank=rank), sizes(rank=rank)
    kinds = list(zip(cuda.DTYPES, windows, strict=True))
    for run in range(1, max(RUNS) + 1):
        for dtype, window in kinds:
            given = tensors(card, dtype, bias=bias, **shapes)
            kept += given  # so that addresses are new
            y = convolved(*given, *window)
            if run == 1:
                strides = card.theirs(None, *given, window).stride()
                card.ran.clear()
            assert (
                y.stride()
                == torch.ops.aten.convolution.default(
                    *(t if t is None else t.as_subclass(torch.Tensor) for t in given), *window
                ).stride()
            )
            if run in RUNS:
                assert torch.equal(y.as_subclass(torch.Tensor).double(), expected(*given, *window))
    del strides
    assert set(card.ran) == {"ours" if seconds is OURS else "theirs"}
    assert card.measured == len(kinds) * 2 * cuda.ROUNDS


GRADIENTS = {  # spatial axes, arguments of `tensors`, and of `sizes`
    "channels last": (2, {}, {"stride": 2}),
    "planes": (2, {"formats": (PLAIN, PLAIN)}, {"dilation": 2, "padding": 2}),
    "groups": (2, {"w": (8, 8, 3, 3)}, {"groups": 2}),
    "taps that none reads": (2, {"w": (8, 16, 1, 1)}, {"stride": 3, "padding": 0}),
    "signals": (1, {"x": (2, 16, 9), "w": (8, 16, 3), "formats": (PLAIN, PLAIN)}, {}),
    "transposed": (2, {"w": (16, 8, 3, 3)}, {"transposed": True, "stride": 2}),
    "a first layer": (2, {"x": (2, 3, 9, 8), "w": (8, 3, 5, 4)}, {"stride": 2, "padding": 2}),
    "planes of a first layer": (
        2,
        {"x": (2, 3, 9, 8), "w": (8, 3, 5, 4), "formats": (PLAIN, PLAIN)},
        {"stride": 2, "padding": 2},
    ),
}
MASKS = (
    (True, True, True),
    (True, False, False),
    (False, True, True),
    (False, False, True),
    (True, True, False),
)


def gradients(dy, x, w, *rest):
    return override._backward_on_gpu(None, dy, x, w, *rest)


@pytest.mark.parametrize("seconds", [OURS, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_right_in_every_repetition(card, name, seconds):
    """As of convolutions, with all masks in turn."""
    card.seconds, kept, (rank, shapes, options) = seconds, [], GRADIENTS[name]
    window = sizes(rank=rank, **options)
    for run in range(1, max(RUNS) + 1):
        for dtype in cuda.DTYPES:
            x, w, bias = tensors(card, dtype, **shapes)
            with torch.no_grad():
                y = expected(x, w, None, *window)
            form = LAST if "formats" not in shapes else PLAIN
            values = torch.randint(-1, 2, y.shape).to(dtype)
            dy = card.on_gpu(values.contiguous(memory_format=form))
            kept += x, w, dy
            if run not in (*RUNS, 5):
                gradients(dy, x, w, [len(bias)], *window, MASKS[run % len(MASKS)])
                continue
            plain = [t.as_subclass(torch.Tensor) for t in (dy, x, w)]
            for mask in MASKS:
                card.ran.clear()
                found = gradients(dy, x, w, [len(bias)], *window, mask)
                own = torch.ops.aten.convolution_backward.default(*plain, [8], *window, mask)
                wide = [t.double() for t in plain]
                exact = torch.ops.aten.convolution_backward.default(*wide, [8], *window, mask)
                for y, their, value, asked in zip(found, own, exact, mask, strict=True):
                    if asked:  # torch returns some that nobody asked for
                        assert (y.dtype, y.stride()) == (dtype, their.stride())
                        assert torch.equal(y.as_subclass(torch.Tensor).double(), value)
                if run == 5:
                    ours = sum(mask[:2]) if seconds is OURS else 0
                    db = mask[2] and not (mask[1] and name != "transposed")  # not beside dw
                    rest = [*mask] if seconds is THEIRS else [db]
                    assert sorted(card.ran) == ["ours"] * ours + ["theirs"] * any(rest)
    operations = 2 if name == "transposed" else 3  # of dx, and of dw with db or alone
    assert card.measured == len(cuda.DTYPES) * operations * 2 * cuda.ROUNDS


def gradients_of_both(card, mask=(False, True, True)):
    """(dy, dw, db) of one layer by a mask."""
    torch.manual_seed(0)
    x, w, _ = tensors(card)
    dy = card.on_gpu(torch.randint(-1, 2, (2, 8, 9, 8)).half().contiguous(memory_format=LAST))
    found = gradients(dy, x, w, [8], *sizes(), mask)
    own = torch.ops.aten.convolution_backward.default(*map(plain, (dy, x, w)), [8], *sizes(), mask)
    return found, own


@pytest.mark.parametrize("faster", ["dw alone", "dw with db"])
def test_dw_with_db_is_measured_by_itself(card, monkeypatch, faster):
    """As dw alone is, in either order, and both choices are found on disk."""

    def seconds(call):
        own, pair = isinstance(getattr(call, "func", None), cuda.Step), isinstance(call(), tuple)
        card.time(call)
        return 1.0 if own == (pair == (faster == "dw with db")) else 2.0

    monkeypatch.setattr(cuda, "_seconds", seconds)
    for _ in range(2):
        card.forget()
        for mask in ((False, True, True), (False, True, False)):
            for _ in range(3):
                card.ran.clear()
                found, own = gradients_of_both(card, mask)
                for y, value in zip(found[1:], own[1:], strict=True):
                    assert value is None or torch.equal(plain(y), value)
            ours = (faster == "dw with db") == mask[2]
            assert card.ran == ["ours" if ours else "theirs"]
    assert card.measured == 2 * 2 * cuda.ROUNDS


def test_a_db_that_differs_is_refused(card, monkeypatch, caplog):
    run = cuda.Step.__call__

    def ours(step, *given):
        y = run(step, *given)
        return (y[0], y[1] + 9) if isinstance(y, tuple) else y

    monkeypatch.setattr(cuda.Step, "__call__", ours)
    for _ in range(3):
        card.ran.clear()
        (_, dw, db), own = gradients_of_both(card)
        assert torch.equal(plain(dw), own[1]) and torch.equal(plain(db), own[2])
    assert card.ran == ["theirs"] and "ours differs by more than rounding" in caplog.text


def test_a_db_that_is_all_rounding_is_not_compared_by_itself(card):
    """As that of a convolution before a batch norm: ours and torch's have no digit in common."""
    x, w, _ = tensors(card, torch.float32)
    dy = torch.randn(2, 8, 9, 8).contiguous(memory_format=LAST)
    for _ in range(3):
        dy -= dy.mean((0, 2, 3), keepdim=True)
    for _ in range(2):
        card.ran.clear()
        _, _, db = gradients(card.on_gpu(dy), x, w, [8], *sizes(), (False, True, True))
    assert card.ran == ["ours"]
    torchs = dy.sum((0, 2, 3))
    assert (plain(db) - torchs).norm() > 0.1 * torchs.norm() and db.abs().max() < 1e-4


def test_a_driver_that_refuses_dw_with_db_leaves_both_to_torch(card, recorder):
    gradients_of_both(card)
    recorder.failures["cuLaunchKernelEx"] = recorder.real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    card.ran.clear()
    (_, dw, db), own = gradients_of_both(card)
    assert torch.equal(plain(dw), own[1]) and torch.equal(plain(db), own[2])
    assert card.ran == ["ours", "theirs"]


class Convolution(torch.autograd.Function):
    """What torch's dispatcher would call on a GPU, forward and backward."""

    @staticmethod
    def forward(ctx, x, w, bias, card, window):
        ctx.card, ctx.window = card, window
        ctx.save_for_backward(x, w)
        return plain(convolved(*map(card.on_gpu, (x, w, bias)), *window))

    @staticmethod
    def backward(ctx, dy):
        given = map(ctx.card.on_gpu, (dy, *ctx.saved_tensors))
        found = gradients(*given, [ctx.saved_tensors[1].shape[0]], *ctx.window, [True] * 3)
        return *map(plain, found), None, None


def plain(tensor):
    return tensor.as_subclass(torch.Tensor)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double")
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 0}, {"dilation": 2}])
def test_gradients_are_those_of_small_changes(card, options):
    """Convolutions are linear in each operand, so that float32 suffices."""
    x, w, bias = (plain(t) + 0.25 for t in tensors(card, torch.float32, (1, 4, 6, 5), (3, 4, 2, 3)))
    for each in (x, w, bias):
        each.requires_grad_()
    window = sizes(**options)
    bounds = {"eps": 0.125, "atol": 1e-3, "rtol": 1e-3, "nondet_tol": 0.0}
    assert torch.autograd.gradcheck(
        lambda *given: Convolution.apply(*given, card, window), (x, w, bias), **bounds
    )
    assert card.ran.count("ours") > 60


def test_a_step_of_training_is_torchs(card):
    """Two layers, and what follows them, with gradients and new weights in each of 40 steps."""
    torch.manual_seed(0)
    own = [torch.randn(8, 4, 3, 3) / 6, torch.randn(8, 8, 1, 1) / 3]
    biases, theirs = [torch.zeros(8), torch.zeros(8)], [each.clone() for each in own]
    others = [torch.zeros(8), torch.zeros(8)]
    windows = sizes(stride=2), sizes(padding=0)

    def ours(x, w, bias, window):
        return Convolution.apply(x, w, bias, card, window)

    def torchs(x, w, bias, window):
        return torch.ops.aten.convolution.default(x, w, bias, *window)

    def step(convolution, weights, biases, x):
        for each in (*weights, *biases):
            each.requires_grad_()
        for w, bias, window in zip(weights, biases, windows, strict=True):
            x = torch.relu(convolution(x, w, bias, window))
        loss = (x - 0.5).square().mean()
        changes = torch.autograd.grad(loss, [*weights, *biases])
        with torch.no_grad():
            for each, change in zip((*weights, *biases), changes, strict=True):
                each.sub_(0.5 * change)
        return loss.item()

    losses = []
    for _ in range(40):
        x = torch.randn(4, 4, 9, 8)
        losses.append((step(ours, own, biases, x), step(torchs, theirs, others, x)))
    assert card.ran[-6:] == ["ours"] * 6  # of two layers: y, dx, and dw with db
    for one, other in zip((*own, *biases), (*theirs, *others), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert losses[-1][0] < losses[0][0]


def test_gradients_of_what_is_not_served_are_torchs(card):
    x, w, _ = tensors(card, torch.float64, bias=False)
    dy = card.on_gpu(torch.ones(2, 8, 9, 8).double())
    for _ in range(3):
        card.ran.clear()
        dx, dw, db = gradients(dy, x, w, None, *sizes(), (True, True, False))
        assert (dx.shape, dw.shape, db) == (x.shape, w.shape, None)
    assert card.ran == ["theirs"]


def shifted(tensor):
    """The same values one element further, where nothing can be read 16 bytes at a time."""
    memory = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:]
    return memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


@pytest.mark.parametrize("form", [PLAIN, LAST])
@pytest.mark.parametrize("dtype", cuda.DTYPES)
def test_transposed_convolutions(card, dtype, form):
    for run in range(1, max(RUNS) + 1):
        x, w, _ = tensors(card, dtype, w=(16, 8, 3, 3), bias=False, formats=(form, form))
        bias = card.on_gpu(torch.randint(-1, 2, (8,)).to(dtype))
        window = *([2, 1], [1, 2], [1, 1], True, [1, 0]), 1
        y = convolved(x, w, bias, *window)
        if run in RUNS:
            want = expected(x, w, bias, *window)
            assert torch.equal(y.as_subclass(torch.Tensor).double(), want)
            assert y.stride() == want.stride()
    assert card.ran[-39:] == ["ours"] * 39


CHANGES = {  # of x, w and bias, and of the sizes after them
    "x in another order": (lambda x, w, b: (x.contiguous(), w, b), {}),
    "w in another order": (lambda x, w, b: (x, w.contiguous(), b), {}),
    "both in another order": (lambda x, w, b: (x.contiguous(), w.contiguous(), b), {}),
    "x elsewhere": (lambda x, w, b: (shifted(x), w, b), {}),
    "w elsewhere": (lambda x, w, b: (x, shifted(w), b), {}),
    "no bias": (lambda x, w, b: (x, w, None), {}),
    "fewer images": (lambda x, w, b: (x[:1], w, b), {}),
    "another type": (lambda x, w, b: (x.float(), w.float(), b.float()), {}),
    "stride": (lambda *given: given, {"stride": 2}),
    "padding": (lambda *given: given, {"padding": 0}),
    "dilation": (lambda *given: given, {"dilation": 2}),
    "groups": (lambda x, w, b: (x, w[:, :8], b), {"groups": 2}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_calls_that_differ_in_one_thing_are_told_apart(card, name):
    """In turn: each is measured by itself, and has its own values and strides."""
    change, window = CHANGES[name]
    plain = [t.as_subclass(torch.Tensor) for t in tensors(card)]
    changed = [t if t is None else card.on_gpu(t) for t in change(*plain)]
    calls = [(list(map(card.on_gpu, plain)), sizes()), (changed, sizes(**window))]
    for _ in range(3):
        for given, window in calls:
            y = convolved(*given, *window)
            assert torch.equal(y.as_subclass(torch.Tensor).double(), expected(*given, *window))
            assert y.stride() == expected(*given, *window).stride()
    assert card.ran[-2:] == ["ours", "ours"] and card.measured == 2 * 2 * cuda.ROUNDS


def test_a_known_call_leaves_errors_to_torch(card):
    x, w, bias = tensors(card)
    for _ in range(2):
        convolved(x, w, bias, *sizes())
        with pytest.raises(RuntimeError, match="expected bias"):
            convolved(x, w, card.on_gpu(torch.zeros(9).half()), *sizes())
        convolved(x, w, card.on_gpu(bias.as_subclass(torch.Tensor).float()), *sizes())
        assert card.ran[-2:] == ["theirs", "theirs"]


def test_times_are_kept_on_disk_for_this_card_and_driver(card):
    given = tensors(card)
    for name, driver_of_it, measures in (
        ("card", "driver 1", True),
        ("card", "driver 1", False),
        ("card", "driver 2", True),
        ("another card", "driver 1", True),
        ("card", "driver 1", False),
    ):
        card.name, card.version, card.measured = name, driver_of_it, 0
        card.seconds = OURS if name == "card" else THEIRS
        card.forget()
        convolved(*given, *sizes())
        card.ran.clear()
        convolved(*given, *sizes())
        assert card.measured == 2 * cuda.ROUNDS * measures
        assert card.ran == ["ours" if name == "card" else "theirs"]


REFUSED = {
    "float64": ({"dtype": torch.float64}, {}),
    "transposed volumes": (VOLUMES | {"w": (16, 8, 2, 2, 2)}, {"rank": 3, "transposed": True}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_runs_torchs_kernel(card, recorder, name):
    changes, window = REFUSED[name]
    given = tensors(card, bias=False, **changes)
    for _ in range(3):
        convolved(*given, *sizes(**window))
    assert card.ran == ["theirs"] * 3 and not recorder["cuLaunchKernelEx"]


def test_gradients_of_volumes_are_torchs(card, recorder):
    x, w, _ = tensors(card, bias=False, **VOLUMES)
    window = sizes(rank=3, padding=0)
    for _ in range(3):
        dy = card.on_gpu(torch.randint(-1, 2, (2, 8, 2, 5, 3)).half())
        found = gradients(dy, x, w, [8], *window, (True, True, False))
        wide = [t.as_subclass(torch.Tensor).double() for t in (dy, x, w)]
        exact = torch.ops.aten.convolution_backward.default(
            *wide, [8], *window, (True, True, False)
        )
        for y, value in zip(found[:2], exact[:2], strict=True):
            assert torch.equal(plain(y).double(), value)
    assert not recorder["cuLaunchKernelEx"] and set(card.ran) == {"theirs"}


def test_volumes_with_gaps_between_planes_are_torchs(card, recorder):
    x, w, bias = tensors(card, **VOLUMES | {"x": (2, 16, 4, 8, 5)})
    for _ in range(3):
        part = card.on_gpu(plain(x)[:, :, :, 1:-1])
        y = convolved(part, w, bias, *sizes(rank=3))
        assert torch.equal(plain(y).double(), expected(part, w, bias, *sizes(rank=3)))
    assert not recorder["cuLaunchKernelEx"] and card.ran[-2:] == ["theirs"] * 2


def test_errors_are_torchs(card):
    x, _, bias = tensors(card)
    with pytest.raises(RuntimeError, match="expected input"):
        convolved(x, card.on_gpu(torch.zeros(8, 5, 3, 3).half()), bias, *sizes())
    assert card.ran == ["theirs"]


def test_a_result_that_differs_is_not_used(card, recorder, caplog):
    given, convolve = tensors(card), recorder.convolve

    def wrong(*arguments):
        convolve(*arguments)
        call, g, *_ = recorder.launched()
        shape, strides = (g.N, g.K, g.P, g.Q), (call.y_n, call.y_k, call.y_p, call.y_q)
        recorder.array(call.y, shape, strides, np.dtype("float16"))[...] += 9

    recorder.convolve = wrong
    for _ in range(3):
        y = convolved(*given, *sizes())
        assert torch.equal(y.as_subclass(torch.Tensor).double(), expected(*given, *sizes()))
    assert "differs by more than rounding" in caplog.text and card.ran[1:].count("ours") == 1


def test_a_graph_that_is_captured_runs_what_is_known(card):
    """A new call cannot be measured there, and is measured by the first one outside of it."""
    given = tensors(card)
    for captures, ran in ((True, "theirs"), (True, "theirs"), (False, None), (True, "ours")):
        card.captures = captures
        card.ran.clear()
        convolved(*given, *sizes())
        assert ran is None or card.ran == [ran]


def test_choice_and_settings(card, monkeypatch):
    """ "always" measures nothing; where bits must not change, torch's kernel runs."""
    given, card.seconds = tensors(card), THEIRS
    monkeypatch.setattr(override.SWITCH, "choose", "always")
    convolved(*given, *sizes())
    assert card.ran[-1] == "ours" and not card.measured
    monkeypatch.setattr(override.SWITCH, "choose", "measured")
    card.seconds = OURS
    monkeypatch.setattr(torch._C, "_get_deterministic_algorithms", lambda: True)
    convolved(*given, *sizes())
    convolved(*given, *sizes())
    assert card.ran[-1] == "theirs" and not card.measured


def test_what_one_call_cannot_tell_is_not_kept(card, monkeypatch):
    """Infinite results, and memory that is short for once."""
    x, w, bias = tensors(card)
    infinite = card.on_gpu(x.as_subclass(torch.Tensor) * torch.inf)
    convolved(infinite, w, bias, *sizes())
    assert not card.measured

    def short(call):
        raise torch.OutOfMemoryError("short")

    with monkeypatch.context() as patch:
        patch.setattr(cuda, "_seconds", short)
        convolved(x, w, bias, *sizes())
    convolved(x, w, bias, *sizes())
    assert card.ran[-1] == "ours" and card.measured


def test_strict_precision_runs_ours(card, monkeypatch):
    monkeypatch.setattr(override.SWITCH, "precision", "strict")
    card.seconds = THEIRS
    convolved(*tensors(card), *sizes())
    assert card.ran[-1] == "ours" and not card.measured


def test_weights_without_memory_are_torchs_matter(card, monkeypatch):
    def theirs(*_):
        card.ran.append("theirs")
        return card.on_gpu(torch.zeros(2, 8, 9, 8))

    x, w, bias = tensors(card)
    w.untyped_storage().resize_(0)
    monkeypatch.setattr(cuda, "torchs_convolution", theirs)
    convolved(x, w, bias, *sizes())
    assert card.ran == ["theirs"]


def test_a_known_gradient_is_torchs_where_the_driver_has_no_memory(card, recorder, caplog):
    """torch may have all memory of the card, and may free some for its own kernel."""
    x, w, _ = tensors(card, bias=False)
    window, mask = sizes(stride=2), [True, True, False]
    dy = card.on_gpu(expected(x, w, None, *window).half())
    first = gradients(dy, x, w, None, *window, mask)
    card.ran.clear()
    name = "cuMemAllocFromPoolAsync"
    recorder.failures[name] = recorder.real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    for _ in range(2):
        again = gradients(dy, x, w, None, *window, mask)
        assert all(map(torch.equal, again[:2], first[:2]))
    assert card.ran == ["ours", "ours", "theirs"] * 2 and caplog.text.count("OUT_OF_MEMORY") == 1
    del recorder.failures[name]
    card.ran.clear()
    gradients(dy, x, w, None, *window, mask)
    assert card.ran == ["ours", "ours"]


def test_a_mode_of_functions_sees_nothing_of_ours(card):
    """Scripts run with theirs in force, such as that of a default device."""

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    given = tensors(card)
    convolved(*given, *sizes())
    with Mode():
        convolved(*given, *sizes())
    assert card.ran[-1] == "ours"


def test_parameters_that_record_gradients_are_read(card):
    """The dispatcher calls below autograd, where tensors still require gradients."""
    x, w, bias = tensors(card)
    w.requires_grad_()
    convolved(x, w, bias, *sizes())
    with torch.no_grad():
        want = expected(x, w, bias, *sizes())
    y = convolved(x, w, bias, *sizes())
    assert torch.equal(y.as_subclass(torch.Tensor).double(), want)
    assert card.ran[-1] == "ours" and not y.requires_grad


def test_a_machine_without_a_driver_says_so_once(card, monkeypatch, caplog):
    def bindings():
        raise PlanError("the GPU engine needs cuda-bindings")

    monkeypatch.setattr(driver, "bindings", bindings)
    driver.device_arch.cache_clear()
    for padding in range(3):
        given = tensors(card)
        convolved(*given, *sizes(padding=padding))
    assert card.ran == ["theirs"] * 3
    assert caplog.text.count("torch's own kernel runs: the GPU engine needs cuda-bindings") == 1


def test_enable_takes_tensors_of_gpus_and_gives_them_back():
    def has_kernel():
        return torch._C._dispatch_has_kernel_for_dispatch_key("aten::convolution", "CUDA")

    before = has_kernel()
    with door.enable():
        assert has_kernel() or torch.version.hip
    assert has_kernel() == before
    import implicit_conv.torch.op  # noqa: F401

    name = "implicit_conv::convolution"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")


def test_the_operator_is_exported_for_a_gpu():
    """With the shapes and strides of torch's own, on the tensors' device."""
    from torch._subclasses import FakeTensorMode

    from implicit_conv.torch import op

    class Model(torch.nn.Module):
        def forward(self, x, w):
            return op.convolution(x, w, None, (2, 2), (1, 1))

    options = {"device": "cuda:0", "dtype": torch.bfloat16}
    with FakeTensorMode(), torch.no_grad():
        x, w = (
            torch.empty(2, 3, 9, 8, **options, memory_format=LAST),
            torch.empty(4, 3, 3, 3, **options),
        )
        exported = torch.export.export(Model(), (x, w))
        theirs = torch.ops.aten.convolution(x, w, None, *sizes(stride=2))
    (node,) = (node for node in exported.graph.nodes if node.op == "call_function")
    assert node.target is torch.ops.implicit_conv.convolution.default
    y = node.meta["val"]
    assert (y.shape, y.stride(), y.device) == (theirs.shape, theirs.stride(), x.device)
