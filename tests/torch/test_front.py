"""Known convolutions, which torch's dispatcher runs without a Python frame: what Python computes,
under the same conditions.
"""

import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv  # noqa: E402
import implicit_conv.torch as door  # noqa: E402
from implicit_conv.process import cache  # noqa: E402
from implicit_conv.settings import local  # noqa: E402
from implicit_conv.torch import front, override  # noqa: E402
from implicit_conv.torch.steps import Step  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
F = torch.nn.functional
FRONT = override.FRONT
UNTIL_KNOWN = 2  # calls that Python sees: the first, and the second by a program


@pytest.fixture
def seen(monkeypatch):
    """The calls that Python has seen, as steps that it ran."""
    found, run = [], Step.__call__

    def counted(step, *arguments):
        found.append(step)
        return run(step, *arguments)

    monkeypatch.setattr(Step, "__call__", counted)
    return found


def exact(function, x, w, bias=None, *options):
    """What torch's own kernel computes in float64."""
    with override.suspended():
        return function(x.double(), w.double(), None if bias is None else bias.double(), *options)


ERRORS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}  # of results, which are rounded once


def assert_close(found, expected):
    assert found.stride() == expected.stride()
    bound = ERRORS.get(found.dtype, 1e-3)
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)


CASES = {  # function, x, w, options
    "3x3": (F.conv2d, (2, 5, 9, 9), (7, 5, 3, 3), (1, 1)),
    "1x1": (F.conv2d, (1, 40, 7, 7), (23, 40, 1, 1), ()),
    "one pixel": (F.conv2d, (1, 40, 1, 1), (23, 40, 1, 1), ()),
    "strided": (F.conv2d, (1, 5, 11, 12), (6, 5, 3, 2), ((2, 3),)),
    "depthwise": (F.conv2d, (1, 20, 9, 9), (20, 1, 3, 3), (1, 1, 1, 20)),
    "groups": (F.conv2d, (2, 12, 9, 9), (15, 4, 3, 3), (1, 2, 2, 3)),
    "signal": (F.conv1d, (2, 6, 50), (9, 6, 5), (1, 2)),
    "volume": (F.conv3d, (1, 3, 4, 5, 6), (4, 3, 2, 3, 3), (1, 1)),
    "transposed": (F.conv_transpose2d, (1, 6, 7, 7), (6, 4, 3, 3), (1, 1)),
    "one filter": (F.conv2d, (1, 5, 9, 9), (1, 5, 3, 3), ()),  # whose bias has any stride
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *ERRORS], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_known_calls(name, dtype, biased, seen):
    """A program adds biases as they are stored, so that Python sees those of 16-bit elements."""
    function, x, w, options = CASES[name]
    x, w = torch.randn(x, dtype=dtype), torch.randn(w, dtype=dtype)
    filters = w.shape[1] if name == "transposed" else w.shape[0]
    bias = torch.randn(filters, dtype=dtype) if biased else None
    is_known = not biased or dtype.itemsize > 2
    with door.enable(choose="always"):
        found = [function(x, w, bias, *options) for _ in range(UNTIL_KNOWN + 2)]
        assert len(seen) == (UNTIL_KNOWN if is_known else len(found))
        assert len(FRONT) == is_known
        for y in found:
            assert torch.equal(y, found[0]) and y.dtype is dtype and type(y) is torch.Tensor
            assert_close(y, exact(function, x, w, bias, *options))
        other = torch.randn_like(x), torch.randn_like(w), bias if bias is None else bias + 1
        seen.clear()
        assert_close(function(*other, *options), exact(function, *other, *options))
    assert bool(seen) != is_known


X, W, BIAS = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3), torch.randn(4)


def known(*arguments, function=F.conv2d):
    """A call that needs no Python any more."""
    for _ in range(UNTIL_KNOWN):
        function(*arguments)
    return lambda: function(*arguments)


def apart(tensor):
    """An equal tensor whose elements are apart."""
    return torch.stack([tensor, tensor], -1)[..., 0]


def last(tensor):
    return tensor.to(memory_format=torch.channels_last)


OTHERS = {  # than F.conv2d(X, W, BIAS, 1, 0, 1)
    "images": (F.conv2d, X[:1], W, BIAS, 1, 0, 1),
    "columns": (F.conv2d, X[..., :5].contiguous(), W, BIAS, 1, 0, 1),
    "strides of x": (F.conv2d, apart(X), W, BIAS, 1, 0, 1),
    "channels last": (F.conv2d, last(X), W, BIAS, 1, 0, 1),
    "filters": (F.conv2d, X, W[:3], BIAS[:3], 1, 0, 1),
    "taps": (F.conv2d, X, W[..., :2].contiguous(), BIAS, 1, 0, 1),
    "strides of w": (F.conv2d, X, apart(W), BIAS, 1, 0, 1),
    "dtypes": (F.conv2d, X.double(), W.double(), BIAS.double(), 1, 0, 1),
    "no bias": (F.conv2d, X, W, None, 1, 0, 1),
    "strides of the bias": (F.conv2d, X, W, apart(BIAS), 1, 0, 1),
    "stride": (F.conv2d, X, W, BIAS, (2, 1), 0, 1),
    "padding": (F.conv2d, X, W, BIAS, 1, (0, 1), 1),
    "dilation": (F.conv2d, X, W, BIAS, 1, 0, (1, 2)),
    "offset": (F.conv2d, torch.cat([X, X])[1:3], torch.cat([W, W])[2:6], BIAS, 1, 0, 1),
}


@pytest.mark.parametrize("first", ["plain", "other"])
@pytest.mark.parametrize("name", OTHERS)
def test_no_call_is_taken_for_another(name, first):
    """Whichever is known first, each gets its own result."""
    calls = [(F.conv2d, X, W, BIAS, 1, 0, 1), OTHERS[name]]
    with door.enable(choose="always"):
        for function, *arguments in calls if first == "plain" else reversed(calls):
            for _ in range(UNTIL_KNOWN + 2):
                assert_close(function(*arguments), exact(function, *arguments))


def test_transposed_convolutions_are_others():
    x, w = torch.randn(1, 6, 7, 7), torch.randn(6, 6, 3, 3)
    with door.enable(choose="always"):
        for function in (F.conv2d, F.conv_transpose2d, F.conv2d, F.conv_transpose2d):
            call = known(x, w, None, 1, 1, function=function)
            assert_close(call(), exact(function, x, w, None, 1, 1))
        assert len(FRONT) == 2


def test_output_padding():
    x, w = torch.randn(1, 4, 5, 5), torch.randn(4, 3, 3, 3)
    with door.enable(choose="always"):
        for added in (0, 1, (0, 1)):
            for _ in range(UNTIL_KNOWN + 2):
                found = F.conv_transpose2d(x, w, None, 2, 0, added)
                assert_close(found, exact(F.conv_transpose2d, x, w, None, 2, 0, added))


def test_convolutions_of_scripts_that_were_traced(seen):
    """``aten::_convolution`` has flags of cuDNN at its end."""
    options = [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True
    with door.enable(choose="always"):
        call = known(X, W, BIAS, *options, function=torch.ops.aten._convolution)
        seen.clear()
        assert_close(call(), exact(F.conv2d, X, W, BIAS))
    assert not seen


@contextlib.contextmanager
def threads():
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def without_onednn():
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


@contextlib.contextmanager
def setting():
    implicit_conv.config(subnormals="flush")
    try:
        yield
    finally:
        implicit_conv.config(subnormals=None)


@contextlib.contextmanager
def block_of_another_thread():
    """Threads without a block of their own follow the one that began last."""
    begun, ended = threading.Event(), threading.Event()

    def block():
        with implicit_conv.config(subnormals="flush"):
            begun.set()
            ended.wait()

    thread = threading.Thread(target=block)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()


CONDITIONS = {
    "threads of torch": threads,
    "deterministic": deterministic,
    "oneDNN": without_onednn,
    "setting": setting,
    "block": lambda: implicit_conv.config(subnormals="flush"),
    "block of another thread": block_of_another_thread,
    "threads of a block": lambda: local(num_threads=1),
    "precision": lambda: door.enable(precision="strict", choose="always"),
    "choice": lambda: door.enable(choose="measured"),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_under_other_conditions_python_decides_anew(name, seen):
    with implicit_conv.config(num_threads=1):
        pass  # a first block makes settings that are equal to those before, and not the same
    with door.enable(choose="always"):
        call = known(X, W, BIAS)
        seen.clear()
        expected = call()
        assert not seen
        with CONDITIONS[name]():
            torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-4)
            assert seen
        seen.clear()
        for _ in range(UNTIL_KNOWN):
            assert torch.equal(call(), expected)
        if name != "setting":  # whose undoing makes settings that are equal, and not the same
            assert not seen


def test_subnormals_are_flushed_where_a_block_says_so():
    x, w = torch.full((1, 1, 4, 4), 1e-39), torch.ones(1, 1, 1, 1)
    with door.enable(choose="always"):
        call = known(x, w)
        assert call().all()
        with implicit_conv.config(subnormals="flush"):
            for _ in range(UNTIL_KNOWN + 2):
                assert not call().any()
        assert call().all()


def test_packed_filters_are_used(seen, monkeypatch):
    """A step that reads packed filters keeps all of its calls."""
    monkeypatch.setattr("implicit_conv.torch.steps.COMPARED_PER_CYCLE", float("inf"))
    x, w = torch.randn(2, 64, 9, 9), torch.randn(64, 64, 3, 3)
    with torch.no_grad(), door.enable(choose="always"):
        call = known(x, torch.nn.Parameter(w))
        known(x, w)
        seen.clear()
        call()
    assert seen and all(step.packed_call for step in seen)


def test_elements_that_are_not_aligned(seen):
    memory = bytearray(4 * X.numel() + 8)
    with door.enable(choose="always"):
        known(X, W, BIAS)
        for shift in range(1, 4):
            x = torch.frombuffer(memory, dtype=torch.float32, count=X.numel(), offset=shift)
            x = x.view(X.shape)
            x.copy_(X)
            seen.clear()
            assert_close(F.conv2d(x, W, BIAS), exact(F.conv2d, X, W, BIAS))
            assert len(seen) == 1


def test_memory_that_was_freed_is_the_error_of_torch(seen, capfd):
    with door.enable(choose="always"):
        known(X, W, BIAS)
        for place in range(3):
            tensors = [X.clone(), W.clone(), BIAS.clone()]
            tensors[place].untyped_storage().resize_(0)
            with pytest.raises(RuntimeError, match="not allocated"):
                F.conv2d(*tensors)
    assert capfd.readouterr() == ("", "")


def test_errors_are_those_of_torch():
    with door.enable(choose="always"):
        known(X, W, BIAS)
        for wrong in (
            (X[:, :3], W, BIAS),
            (X, W.double(), BIAS),
            (X, W, BIAS.double()),
            (X, W, BIAS[:3]),
            (X, W, BIAS[None]),
            (X, W, BIAS, 0),
        ):
            with override.suspended(), pytest.raises(RuntimeError) as theirs:
                F.conv2d(*wrong)
            with pytest.raises(RuntimeError) as ours:
                F.conv2d(*wrong)
            assert str(ours.value) == str(theirs.value)


class Marked(torch.Tensor):
    """A class of somebody else's."""


def test_python_sees_tensors_of_other_classes(seen):
    with door.enable(choose="always"):
        call = known(X, W, BIAS)
        for place in range(3):
            tensors = [X, W, BIAS]
            tensors[place] = tensors[place].as_subclass(Marked)
            seen.clear()
            assert torch.equal(F.conv2d(*tensors).as_subclass(torch.Tensor), call())
            assert len(seen) == 1


def test_lazy_clones_stay_lazy(seen):
    lazy = [torch._lazy_clone(tensor.clone()) for tensor in (X, W, BIAS)]
    with door.enable(choose="always"):
        known(X, W, BIAS)
        seen.clear()
        assert_close(F.conv2d(*lazy), exact(F.conv2d, X, W, BIAS))
    assert not seen and all(map(torch._C._is_cow_tensor, lazy))


class Names(torch.overrides.TorchFunctionMode):
    """The names of the functions that a mode sees."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_function_modes_see_no_call_of_ours(seen):
    script = torch.jit.script(torch.nn.Conv2d(4, 4, 3))
    mode = Names()
    mode.names = []
    with torch.no_grad(), door.enable(choose="always"):
        for _ in range(UNTIL_KNOWN):
            script(X)
        seen.clear()
        with torch.device("meta"), mode:  # the device of new tensors, which is a mode too
            y = script(X)
    assert not seen and y.device.type == "cpu" and "empty_strided" not in mode.names


def test_gradients_and_inference(seen):
    x, w = X.clone().requires_grad_(), torch.nn.Parameter(W.clone())
    with door.enable(choose="always"):
        call = known(x, w, BIAS)
        seen.clear()
        y = call()
        assert not seen
        found = torch.autograd.grad(y.square().sum(), (x, w))
        with torch.inference_mode():
            assert call().is_inference()
        assert not call().is_inference()
    y = exact(F.conv2d, x, w, BIAS)
    for own, expected in zip(found, torch.autograd.grad(y.square().sum(), (x, w)), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-3)


def test_clearing_the_cache_forgets_calls(seen):
    with door.enable(choose="always"):
        call = known(X, W, BIAS)
        assert len(FRONT) == 1
        implicit_conv.clear_plan_cache()
        assert len(FRONT) == 0
        seen.clear()
        for _ in range(UNTIL_KNOWN):
            call()
        assert len(seen) == UNTIL_KNOWN and len(FRONT) == 1


def test_a_hash_is_not_enough(seen):
    with door.enable(choose="always"):
        call = known(X, W, BIAS)
        (entry,) = FRONT.entries.values()
        entry[-1][-1] += 1  # the number of groups of the entry's key
        seen.clear()
        call()
    assert seen


def test_many_calls(monkeypatch, seen):
    """Entries of one place are told apart; those that are too many go, and come again."""
    sizes = range(3, 203)
    with door.enable(choose="always"):
        for limit in (FRONT.most, 30):
            monkeypatch.setattr(FRONT, "most", limit)
            cache.clear()
            for _ in range(UNTIL_KNOWN + 1):
                seen.clear()
                for size in sizes:
                    x = torch.ones(1, 1, 3, size)
                    assert F.conv2d(x, W[:1, :1]).shape == (1, 1, 1, size - 2)
                assert len(FRONT) <= limit
            assert bool(seen) is (limit < len(sizes))


def test_threads_at_once():
    """Each has memory of its own, and an entry that is dropped lives until its runs have ended."""
    x, w, bias = torch.randn(1, 24, 20, 20), torch.randn(40, 24, 3, 3), torch.randn(40)
    wrong, done = [], threading.Event()
    with door.enable(choose="always"):
        expected = known(x, w, bias)()

        def work():
            for _ in range(200):
                if not torch.equal(F.conv2d(x, w, bias), expected):
                    wrong.append(1)

        def clear():
            while not done.wait(0.01):
                cache.clear()

        workers = [threading.Thread(target=work) for _ in range(4)]
        clearing = threading.Thread(target=clear)
        for thread in (*workers, clearing):
            thread.start()
        for thread in workers:
            thread.join()
        done.set()
        clearing.join()
    assert not wrong


def test_an_entry_lives_as_long_as_its_runs(monkeypatch):
    monkeypatch.setattr("implicit_conv.torch.steps.COMPARED_PER_CYCLE", 1e-9)  # nothing is packed
    x, w = torch.randn(1, 64, 300, 300), torch.randn(64, 64, 3, 3)

    def outlives_its_entry():
        """Whether the step of a run under way is alive once the cache is empty."""
        known(x, w)
        (entry,) = FRONT.entries.values()
        step = weakref.ref(entry[2][0])
        del entry
        thread = threading.Thread(target=F.conv2d, args=(x, w))
        thread.start()
        time.sleep(0.01)
        cache.clear()
        lives = step() is not None
        thread.join()
        gc.collect()
        assert step() is None
        return lives

    with torch.no_grad(), door.enable(choose="always"):
        assert any(outlives_its_entry() for _ in range(10))  # a thread may begin too late


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_a_lock_of_its_own():
    """The parent forks while another of its threads may add a call."""
    with door.enable(choose="always"):
        cache.clear()
        with FRONT._lock:
            child = os.fork()
            if not child:
                signal.alarm(30)  # which ends a child that waits for ever
                known(X, W, BIAS)
                os._exit(len(FRONT) != 1)
        assert os.waitpid(child, 0)[1] == 0


def test_memory_does_not_grow(seen):
    with torch.no_grad(), door.enable(choose="always"):
        call = known(X, W, BIAS)
        (entry,) = FRONT.entries.values()

        def references():
            objects = (entry, *entry, *entry[1], X, W, BIAS, implicit_conv.settings.current())
            return [sys.getrefcount(each) for each in objects]

        def of_constants():
            return [sys.getrefcount(each) for each in (None, True, False, "config")]

        seen.clear()
        for _ in range(1000):
            call()
        constants = of_constants()
        before, peak = references(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(20_000):
            call()
        assert references() == before
        assert all(abs(a - b) < 5000 for a, b in zip(of_constants(), constants, strict=True))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 2000  # KiB
    assert not seen


def test_python_finds_known_calls_where_it_stores_objects_otherwise(monkeypatch):
    assert front.make_front(print) is not None
    monkeypatch.setattr(front, "differing", lambda: ("list",))
    assert front.make_front(print) is None
