"""The kernels that stand in torch's dispatcher while `enable` is in force."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from implicit_conv.process.cache import CALLS, older_call
from implicit_conv.settings import current
from implicit_conv.torch import cuda
from implicit_conv.torch.first_calls import REFUSED, first_backward, first_forward
from implicit_conv.torch.front import make_front
from implicit_conv.torch.openmp import is_forked
from implicit_conv.torch.packed import FILTERS
from implicit_conv.torch.steps import Window
from implicit_conv.torch.switch import Enabled, Settings, Suspended, Switch

in_function_mode = torch._C._is_torch_function_mode_enabled


def _own_kernel(name: str) -> Any:
    """torch's own kernel, which is the same for all devices. It is asked for by the key of calls
    without tensors, since others may have registered theirs for the CPU, and may remove them.
    """
    return torch.library.get_kernel(f"aten::{name}", "Undefined")


# ``aten::convolution`` of torch does nothing but call the operator ``aten::_convolution``, which
# would be ours again.
TORCH_FORWARD, TORCH_BACKWARD = map(_own_kernel, ("_convolution", "convolution_backward"))
NO_CUDNN = False, False, False, False  # flags at its end, which CPUs do not read


def _convolution(
    keys: Any,
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    added: Any,
    groups: int,
    *_: bool,
) -> Any:
    """``aten::convolution`` on the CPU, and ``aten::_convolution``, which scripts of
    ``torch.jit.trace`` call: it has flags of cuDNN at its end. `keys` is the dispatcher's set of
    keys; see `Window` for what follows the tensors.
    """
    sizes = stride, padding, dilation, transposed, added, groups
    if in_function_mode():  # of a script: our calls are none of those that the mode is to see
        with torch._C.DisableTorchFunction():
            return _convolution(keys, x, w, bias, *sizes)
    window = Window.of(sizes, SWITCH.precision)
    key = key_of(x, w, bias, window)
    step = CALLS.get(key) or older_call(key)
    if step is None:

        def theirs() -> Any:
            return torchs_convolution(keys, x, w, bias, sizes)

        step = first_forward(key, x, w, bias, window, theirs, by_time=by_time(window, key[-1]))
    y = None if step is REFUSED else step(x, w, bias, FILTERS.packed(step, w))
    if y is None:
        return torchs_convolution(keys, x, w, bias, sizes)
    if FRONT is not None:
        FRONT.keep(key, step, (keys, x, w, bias, *sizes))
    return y


def torchs_convolution(keys: Any, x: Any, w: Any, bias: Any, sizes: Sequence[Any]) -> Any:
    """The convolution by torch's own kernel."""
    return TORCH_FORWARD.call_boxed(keys, x, w, bias, *sizes, *NO_CUDNN)


def key_of(x: Any, w: Any, bias: Any, window: Window) -> tuple[Any, ...]:
    """What the step of a convolution is kept under."""
    of_bias = None if bias is None else (bias.shape, bias.dtype)
    of_x, of_w = (x.shape, x.stride(), x.dtype), (w.shape, w.stride(), w.dtype)
    return "torch", of_x, of_w, of_bias, window, _state()


def kept_step(x: Any, w: Any, bias: Any, window: Window) -> Any:
    """The step that computed such a convolution; REFUSED if torch's kernel did."""
    return CALLS.get(key := key_of(x, w, bias, window)) or older_call(key) or REFUSED


def _backward(keys: Any, dy: Any, x: Any, w: Any, bias_sizes: Any, *sizes: Any) -> Any:
    """``aten::convolution_backward`` on the CPU: the gradients of (x, w, bias), or None of each
    that the mask, the last of `sizes`, does not ask for.
    """
    if in_function_mode():
        with torch._C.DisableTorchFunction():
            return _backward(keys, dy, x, w, bias_sizes, *sizes)
    window, wanted = Window.of(sizes, SWITCH.precision), tuple(sizes[-1])

    def theirs(mask: Sequence[bool] = wanted) -> Any:
        return TORCH_BACKWARD.call_boxed(keys, dy, x, w, bias_sizes, *sizes[:-1], list(mask))

    shape = None if bias_sizes is None else tuple(bias_sizes)
    kinds = tuple([(t.shape, t.stride(), t.dtype) for t in (dy, x, w)])
    key = ("torch", kinds, shape, window, wanted, _state())
    found = CALLS.get(key) or older_call(key)
    if found is None:
        found = first_backward(
            key, dy, x, w, bias_sizes, window, theirs, by_time=by_time(window, key[-1])
        )
    if found is REFUSED:
        return theirs()
    of_x, of_w, mask = found
    dx, dw, db = theirs(mask) if any(mask) else (None, None, None)
    if of_x is not None:
        dx = of_x(dy, w)
    if of_w is not None:
        dw = of_w(dy, x) if window.transposed else of_w(x, dy)
    if (wanted[0] and dx is None) or (wanted[1] and dw is None):
        return theirs()
    if wanted[2]:
        db = dy.sum((0, *range(2, dy.dim())))
    return dx, dw, db


def _on_gpu(compute: Callable[..., Any]) -> Callable[..., Any]:
    """An operator on a GPU, of `cuda`; for the mode see `_convolution`."""

    def function(*given: Any) -> Any:
        if in_function_mode():
            with torch._C.DisableTorchFunction():
                return compute(SWITCH, *given)
        return compute(SWITCH, *given)

    return function


_convolution_on_gpu = _on_gpu(cuda.convolution)
_backward_on_gpu = _on_gpu(cuda.backward)


def by_time(window: Window, state: tuple[Any, ...]) -> bool:
    """Whether the faster one of our kernel and torch's is to run. In a forked child ours runs where
    it can: torch's own may hang there on several threads.
    """
    *_, choose, is_deterministic = state
    chosen = choose == "measured" and window.precision != "strict" and not is_deterministic
    return chosen and not is_forked()


def _state() -> tuple[Any, ...]:
    """What a step depends on besides its arguments: settings of ours and of torch."""
    return (
        current().key,
        torch.get_num_threads(),
        torch._C._get_mkldnn_enabled(),
        SWITCH.choose,
        torch._C._get_deterministic_algorithms(),
    )


def _hide_from_dynamo(kernel: Any) -> None:
    """Have Dynamo run a function as it is, with all that it calls. Where a graph breaks inside a
    ``with`` block, it traces every Python frame below, and so ours.

    ``torch.compiler.disable`` would import Dynamo, and add frames to each call.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(kernel.__code__, frames._FrameExecStrategy(skip, skip))


def enable(keep_packed: int, precision: str, choose: str) -> Enabled:
    """See `implicit_conv.torch.enable`; the arguments are checked."""
    return Enabled(SWITCH, Settings(keep_packed, precision, choose))


def disable() -> None:
    """Give torch its own kernels back, however often `enable` was called."""
    SWITCH.clear()


def suspended() -> Suspended:
    """A block in which torch's own kernels run, in all threads."""
    return Suspended(SWITCH)


FRONT = make_front(_convolution)
_FORWARD = _convolution if FRONT is None else FRONT.function
KERNELS: dict[str, Any] = {
    "convolution": _FORWARD,
    "_convolution": _FORWARD,
    "convolution_backward": _backward,
}
ON_GPU = {"convolution": _convolution_on_gpu, "convolution_backward": _backward_on_gpu}
ENTRIES = _convolution, _backward, _convolution_on_gpu, _backward_on_gpu
for _kernel in (*ENTRIES, cuda.convolution, cuda.backward):
    _hide_from_dynamo(_kernel)
# AMD's GPUs have the key of NVIDIA's.
REGISTERED = {"CPU": KERNELS} | ({"CUDA": ON_GPU} if torch.version.hip is None else {})
SWITCH = Switch(REGISTERED, None if FRONT is None else FRONT.follow)
