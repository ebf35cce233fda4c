"""First calls: a step of ours is prepared, and where time decides, torch's kernel measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from implicit_conv.cpu.machine.arch import available_threads
from implicit_conv.operators.dispatch import is_temporary
from implicit_conv.process.cache import keep_recent
from implicit_conv.settings import current, local
from implicit_conv.torch import steps
from implicit_conv.torch.measured import CHOICES, ours_is_faster, worth_measuring
from implicit_conv.torch.packed import FILTERS
from implicit_conv.torch.steps import LOG, REFUSAL, Step, Window

REFUSED = "refused"  # what is kept where torch's own kernel must run, or is faster
MISALIGNED = "misaligned"  # what nothing is kept of: other tensors of the same kind may be aligned


def first_forward(
    key: Any,
    x: Any,
    w: Any,
    bias: Any,
    window: Window,
    theirs: Callable[[], Any],
    *,
    by_time: bool,
) -> Any:
    """The step that computes a convolution, which is kept as `key`; REFUSED where torch's kernel,
    the call `theirs`, must run, or is faster and the choice is `by_time`.
    """
    step = _prepared(steps.forward, x, w, bias, window)
    if step is not REFUSED and by_time:

        def ours() -> Any:
            return step(x, w, bias, FILTERS.packed(step, w))

        found = _faster("forward", key, (x, w), step, ours, theirs)
        if found is MISALIGNED:
            return step
        step = found
    if step is REFUSED or not is_temporary(step.plan):
        keep_recent(key, step)
    return step


def first_backward(
    key: Any,
    dy: Any,
    x: Any,
    w: Any,
    bias_sizes: Any,
    window: Window,
    theirs: Callable[[Sequence[bool]], Any],
    *,
    by_time: bool,
) -> Any:
    """The steps that compute the gradients of x and w, with the mask of those that torch's kernel
    `theirs` computes because it is faster, which are kept as `key`; REFUSED where it computes all.
    """
    wanted = key[4]
    found = _prepared(steps.backward, dy, x, w, bias_sizes, window, wanted)
    if found is REFUSED:
        keep_recent(key, REFUSED)
        return REFUSED
    operands = (dy, w), ((dy, x) if window.transposed else (x, dy))
    chosen = list[Any](found)
    for place, (step, pair) in enumerate(zip(found, operands, strict=True)):
        if step is not None and by_time:
            alone = place == 0, place == 1, False
            name = "gradient of x" if place == 0 else "gradient of w"
            calls = partial(step, *pair), partial(theirs, alone)
            chosen[place] = _faster(name, key, (x, w, dy), step, *calls)
    if MISALIGNED in chosen:
        return *found, (False, False, False)
    mask = [step is REFUSED for step in chosen]
    of_x, of_w = (None if step is REFUSED else step for step in chosen)
    none_is_ours = any(mask) and of_x is None and of_w is None
    kept = REFUSED if none_is_ours else (of_x, of_w, (*mask, False))
    keep_recent(key, kept)
    return kept


def _faster(
    name: str,
    key: tuple[Any, ...],
    tensors: Sequence[Any],
    step: Step,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
) -> Any:
    """The step, or REFUSED if torch's call `theirs` is faster; MISALIGNED if that could not be
    measured.
    """
    if not worth_measuring(step.plan):
        return step
    kinds = tuple([(t.shape[1], _order(t), t.dtype) for t in tensors])
    kind = name, key[3:], kinds, tensors[1].shape
    sizes, grouped = [(t.shape, t.stride()) for t in tensors], step.plan.problem.groups > 1
    times = CHOICES.times(kind, sizes, ours, theirs, grouped=grouped)
    if times is None:
        return MISALIGNED
    if ours_is_faster(times):
        return step
    LOG.debug(REFUSAL, "it took {1:.4f} ms, and ours {0:.4f}".format(*(1e3 * t for t in times)))
    return REFUSED


def _order(tensor: Any) -> tuple[int, ...]:
    """The axes of a tensor by their strides."""
    return tuple(sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True))


def _prepared(make: Callable[..., Any], *arguments: Any) -> Any:
    """What `make` returns; REFUSED if torch's own kernel must run."""
    threads = current().num_threads or min(torch.get_num_threads(), available_threads())
    try:
        with local(num_threads=threads):
            return make(*arguments)
    except (ValueError, TypeError, RuntimeError) as error:  # for what no plan takes
        LOG.debug(REFUSAL, error)
        return REFUSED
