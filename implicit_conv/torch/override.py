"""The kernels that stand in torch's dispatcher while `enable` is in force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from implicit_conv.cache import CALLS, keep_recent, older_call
from implicit_conv.operators.threads import available_threads
from implicit_conv.settings import current, local
from implicit_conv.torch import steps
from implicit_conv.torch.packed import FILTERS
from implicit_conv.torch.steps import LOG, REFUSAL, Window
from implicit_conv.torch.switch import Enabled, Settings, Suspended, Switch

REFUSED = "refused"  # what is kept where torch's own kernel must run
in_function_mode = torch._C._is_torch_function_mode_enabled


def _own_kernel(name: str) -> Any:
    """torch's own kernel, which is the same for all devices. It is asked for by the key of calls
    without tensors, since others may have registered theirs for the CPU, and may remove them.
    """
    return torch.library.get_kernel(f"aten::{name}", "Undefined")


TORCH_FORWARD, TORCH_SCRIPTED, TORCH_BACKWARD = map(
    _own_kernel, ("convolution", "_convolution", "convolution_backward")
)


def _forward(own: Any) -> Any:
    """``aten::convolution`` on the CPU, or ``aten::_convolution``, which scripts of
    ``torch.jit.trace`` call: it has flags of cuDNN at its end. `own` is torch's own kernel.
    """

    def convolution(keys: Any, x: Any, w: Any, bias: Any, *sizes: Any) -> Any:
        """`keys` is the dispatcher's set of keys; see `Window` for `sizes`."""
        y = _result(x, w, bias, Window.of(sizes, SWITCH.precision))
        return own.call_boxed(keys, x, w, bias, *sizes) if y is None else y

    return convolution


def step_of(x: Any, w: Any, bias: Any, window: Window) -> Any:
    """The step that computes the convolution of such tensors; REFUSED if torch's kernel does."""
    kind = None if bias is None else (bias.shape, bias.dtype)
    of_x, of_w = (x.shape, x.stride(), x.dtype), (w.shape, w.stride(), w.dtype)
    key = ("torch", of_x, of_w, kind, window, _state())
    step = CALLS.get(key) or older_call(key)
    return _prepared(key, steps.forward, x, w, bias, window) if step is None else step


def _result(x: Any, w: Any, bias: Any, window: Window) -> Any:
    """The convolution, or the transposed one; None if torch's own kernel must run."""
    if in_function_mode():  # of a script: our calls are none of those that the mode is to see
        with torch._C.DisableTorchFunction():
            return _result(x, w, bias, window)
    step = step_of(x, w, bias, window)
    return None if step is REFUSED else step(x, w, bias, FILTERS.packed(step, w))


def _backward(keys: Any, dy: Any, x: Any, w: Any, bias_sizes: Any, *sizes: Any) -> Any:
    """``aten::convolution_backward`` on the CPU: the gradients of (x, w, bias), or None of each
    that the mask, the last of `sizes`, does not ask for.
    """
    window = Window.of(sizes, SWITCH.precision)
    gradients = _gradients(dy, x, w, bias_sizes, window, tuple(sizes[-1]))
    if gradients is None:
        return TORCH_BACKWARD.call_boxed(keys, dy, x, w, bias_sizes, *sizes)
    return gradients


def _gradients(
    dy: Any, x: Any, w: Any, bias_sizes: Any, window: Window, wanted: tuple[bool, ...]
) -> Any:
    """The gradients that are `wanted`; None if torch's own kernel must run."""
    if in_function_mode():
        with torch._C.DisableTorchFunction():
            return _gradients(dy, x, w, bias_sizes, window, wanted)
    shape = None if bias_sizes is None else tuple(bias_sizes)
    kinds = tuple([(t.shape, t.stride(), t.dtype) for t in (dy, x, w)])
    key = ("torch", kinds, shape, window, wanted, _state())
    found = CALLS.get(key) or older_call(key)
    if found is None:
        found = _prepared(key, steps.backward, dy, x, w, bias_sizes, window, wanted)
    if found is REFUSED:
        return None
    of_x, of_w = found
    dx = None if of_x is None else of_x(dy, w)
    images = (dy, x) if window.transposed else (x, dy)
    dw = None if of_w is None else of_w(*images)
    if (of_x is not None and dx is None) or (of_w is not None and dw is None):
        return None
    db = dy.sum((0, *range(2, dy.dim()))) if wanted[2] else None
    return dx, dw, db


def _state() -> tuple[Any, ...]:
    """What a step depends on besides its arguments: settings of ours and of torch."""
    return current().key, torch.get_num_threads(), torch._C._get_mkldnn_enabled()


def _prepared(key: object, make: Callable[..., Any], *arguments: Any) -> Any:
    """What `make` returns, which is kept; REFUSED if torch's own kernel must run."""
    threads = current().num_threads or min(torch.get_num_threads(), available_threads())
    try:
        with local(num_threads=threads):
            found = make(*arguments)
    except (ValueError, TypeError, RuntimeError) as error:  # for what no plan takes
        LOG.debug(REFUSAL, error)
        found = REFUSED
    keep_recent(key, found)
    return found


def _hide_from_dynamo(kernel: Any) -> None:
    """Have Dynamo run a function as it is, with all that it calls. Where a graph breaks inside a
    ``with`` block, it traces every Python frame below, and so ours.

    ``torch.compiler.disable`` would import Dynamo, and add frames to each call.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(kernel.__code__, frames._FrameExecStrategy(skip, skip))


def enable(keep_packed: int, precision: str) -> Enabled:
    """See `implicit_conv.torch.enable`; the arguments are checked."""
    return Enabled(SWITCH, Settings(keep_packed, precision))


def disable() -> None:
    """Give torch its own kernels back, however often `enable` was called."""
    SWITCH.clear()


def suspended() -> Suspended:
    """A block in which torch's own kernels run, in all threads."""
    return Suspended(SWITCH)


KERNELS: dict[str, Any] = {
    "convolution": _forward(TORCH_FORWARD),
    "_convolution": _forward(TORCH_SCRIPTED),
    "convolution_backward": _backward,
}
for _kernel in KERNELS.values():
    _hide_from_dynamo(_kernel)
SWITCH = Switch(KERNELS)
