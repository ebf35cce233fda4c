"""`enable` and `disable`: once, twice, in threads, in forked children and beside others."""

import os
import threading
import warnings

import pytest
from processes import output_of

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv.torch.override import suspended  # noqa: E402

F = torch.nn.functional
X, W = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3)


def runs(ours):
    """Whether a convolution is ours now."""
    before = len(ours)
    F.conv2d(X, W)
    return len(ours) > before


def test_until_disabled(ours):
    assert not runs(ours)
    door.enable()
    assert runs(ours)
    door.enable()
    assert runs(ours)
    door.disable()
    assert not runs(ours)
    door.disable()


def test_a_block_undoes_its_own_call(ours):
    with door.enable():
        with door.enable():
            assert runs(ours)
        assert runs(ours)
    assert not runs(ours)
    door.enable()
    with pytest.raises(KeyError), door.enable():
        raise KeyError
    assert runs(ours)
    with door.enable():
        door.disable()
        assert not runs(ours)
    assert not runs(ours)


def test_a_block_may_be_entered_again(ours):
    enabled = door.enable()
    for _ in range(2):
        with enabled:
            assert runs(ours)
        assert not runs(ours)


def test_threads_switch_while_others_convolve():
    expected, stop, wrong = F.conv2d(X, W), threading.Event(), []

    def convolve():
        while not stop.is_set():
            if not torch.allclose(F.conv2d(X, W), expected, atol=1e-5):
                wrong.append(1)

    def switch():
        for _ in range(100):
            with door.enable():
                F.conv2d(X, W)

    workers = [threading.Thread(target=convolve) for _ in range(2)]
    switchers = [threading.Thread(target=switch) for _ in range(2)]
    for thread in (*workers, *switchers):
        thread.start()
    for thread in switchers:
        thread.join()
    stop.set()
    for thread in workers:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child():
    """It convolves, switches off and on again; its parent used several threads before."""
    code = """
import os, warnings, torch
import implicit_conv.torch as door
warnings.simplefilter("ignore")
x, w = torch.randn(2, 32, 20, 20), torch.nn.Parameter(torch.randn(32, 32, 3, 3))
def convolve():
    with torch.no_grad():
        return torch.nn.functional.conv2d(x, w, padding=1)
torch.set_num_threads(1)  # libgomp hangs in the child of a parent that used more
expected = convolve()
torch.set_num_threads(2)
door.enable()
convolve()
torch.set_num_threads(1)
child = os.fork()
close = lambda: torch.allclose(convolve(), expected, atol=1e-3)
right = close()
door.disable()
right = right and close()
door.enable()
right = right and close()
if child == 0:
    os._exit(0 if right else 1)
print(right, os.waitpid(child, 0)[1])
"""
    assert output_of(code, timeout=120).split() == ["True", "0"]


def test_beside_another_override(ours):
    """The last one registered runs; ours calls torch's own kernel, and not what came before."""
    kernel, calls = torch.library.get_kernel("aten::convolution", "CPU"), []

    def theirs(keys, *arguments):
        calls.append(arguments)
        return kernel.call_boxed(keys, *arguments)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once of two that override one kernel
        library.impl("convolution", theirs, "CPU", with_keyset=True)
        F.conv2d(X, W)
        with door.enable():
            assert runs(ours)
            F.conv2d(X.long(), W.long())
            assert len(calls) == 1
        F.conv2d(X, W)
        assert len(calls) == 2
        door.enable()
    library._destroy()  # below ours, which does not need it
    assert runs(ours)
    F.conv2d(X.long(), W.long())
    door.disable()
    assert not runs(ours)


def test_the_switch_imports_torch_and_no_one_else_does():
    code = """
import sys
import implicit_conv, implicit_conv.torch
print("torch" in sys.modules, implicit_conv.torch.__name__)
"""
    assert output_of(code).split() == ["False", "implicit_conv.torch"]


@pytest.mark.parametrize("version", ["2.12.1+cpu", "1.13.0", "2.9.0a0+git"])
def test_an_old_torch_is_one_clear_error(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError, match=r'needs at least 2\.13: .*pip install "torch>=2\.13"'):
        door.enable()


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0.dev20261101+cpu", "3.0.0"])
def test_a_newer_torch_is_taken(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with door.enable():
        pass


def test_no_torch_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"torch is not installed: .*pip install"):
        door.enable()


def test_a_negative_limit_is_refused(ours):
    with pytest.raises(ValueError, match="keep_packed=-1 must be"):
        door.enable(keep_packed=-1)
    assert not runs(ours)


@pytest.mark.parametrize(
    ("x", "w", "why"),
    [
        (
            torch.ones(1, 4, 7, 11).int(),
            W.int(),
            "tensors have torch.int32, not one of torch.float32",
        ),
        (torch.ones(0, 4, 7, 11), W, "a tensor is empty"),
        (X[0], W, ""),  # torch adds the batch before it asks
    ],
)
def test_the_log_says_why_torchs_kernel_runs(x, w, why, ours, caplog):
    with door.enable(), caplog.at_level("DEBUG", "implicit_conv"):
        for _ in range(2):
            F.conv2d(x, w)
    told = [text for text in caplog.messages if text.startswith("torch's own kernel runs: ")]
    assert [why in text for text in told] == [True] * bool(why)  # once for each kind of call


def test_the_log_says_why_torch_computes_a_gradient(ours, caplog):
    x, w = X.int(), W.int()
    sizes = [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
    with door.enable(), caplog.at_level("DEBUG", "implicit_conv"), pytest.raises(RuntimeError):
        torch.ops.aten.convolution_backward(F.conv2d(X, W).int(), x, w, None, *sizes)
    assert any("kernel runs: tensors have torch.int32, not" in text for text in caplog.messages)


def test_the_log_says_that_elements_are_not_aligned(ours, caplog):
    x = torch.frombuffer(bytearray(X.numel() * 4 + 1), dtype=torch.float32, offset=1)
    with door.enable(), caplog.at_level("DEBUG", "implicit_conv"):
        F.conv2d(x.reshape(X.shape), W)
    assert any("kernel runs: a tensor has no memory, or" in text for text in caplog.messages)


def test_is_enabled():
    assert not door.is_enabled()
    with door.enable():
        assert door.is_enabled()
        with suspended():
            assert not door.is_enabled()
    assert not door.is_enabled()
