"""A step of training of a network of torch, against the same step in float64."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from implicit_conv.testing.doors.data import DifferenceError, placed
from implicit_conv.testing.families import Dice
from implicit_conv.testing.ways import Watch, counted
from implicit_conv.torch import first_calls, formats
from implicit_conv.torch.steps import Step

# How far the norm of an array's errors may be, relative to its norm in float64 and to that of an
# array of the step's largest element. In dtypes narrower than float64 a rounding now and then
# switches an element of a ReLU on or off.
EPS = {"float64": 1e-12, "float32": 0.05, "float16": 0.3, "bfloat16": 0.5}
CHEAP = 0.02  # nanoseconds to copy a byte, as graphs with channels last are to think
FORMS = ("plain", "plain", "channels last", "expanded")  # of gradients of results


def compare_step(model: Any, x: Any, dice: Dice) -> bool:
    """Compare the results of a network, the gradients of x and of all parameters for random ones of
    the results, and the buffers afterwards.

    Returns
    -------
    compared : bool
        False if torch itself computes no such step, or if numbers are too large for the dtype.

    Raises
    ------
    DifferenceError
        The network and a copy of it in float64 differ, or strides are not those of torch.
    """
    own, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    drawn = dice.number(0, 1 << 30), dice.pick(*FORMS), x.dtype
    try:
        expected, strides = _step(exact, x.double(), *drawn)[0], _step(own, x, *drawn)[1]
    except RuntimeError:  # as for an image that a gradient needs, and a module has written to
        return False
    most = max(float(each.abs().max()) for each in expected.values())
    if not most < torch.finfo(x.dtype).max / 4:
        return False
    found, found_strides = _step(model, x, *drawn)
    if found.keys() != expected.keys() or found_strides != strides:
        raise DifferenceError(f"{[*found]} {found_strides} should be {[*expected]} {strides}")
    eps = EPS[str(x.dtype).removeprefix("torch.")]
    for name, array in expected.items():
        bound = eps * (_norm(array) + most * math.sqrt(array.numel()))
        error = _norm(found[name].double() - array)
        if not error <= bound:
            raise DifferenceError(f"{name} has errors of norm {error}, which should be {bound}")
    return True


@contextlib.contextmanager
def steps_counted(watch: Watch) -> Iterator[None]:
    """Compute convolutions here whatever takes less time, have more graphs with channels last, and
    count both kinds.
    """
    own = formats.put_channels_last

    def put_channels_last(graph: Any) -> None:
        nodes = len(graph.nodes)
        own(graph)
        if len(graph.nodes) > nodes:
            watch.taken.update(["trained: graph with channels last"])

    with (
        mock.patch.object(first_calls, "worth_measuring", lambda plan: False),
        mock.patch.object(formats, "COPIED", CHEAP),
        mock.patch("implicit_conv.torch.backend.put_channels_last", put_channels_last),
        counted(watch, Step, "__call__", "trained: convolution of ours"),
    ):
        yield


def change(model: Any) -> None:
    """Write other values to the parameters of a model."""
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(each.flip(0))


def _step(model: Any, x: Any, seed: int, form: str, dtype: Any) -> tuple[dict[str, Any], list[Any]]:
    """The arrays of a step by their names, and the strides of the results."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    results, of = model(x), torch.Generator().manual_seed(seed)
    torch.autograd.backward(results, [_gradient(y, form, of, dtype) for y in results])
    arrays = {f"result {number}": y.detach() for number, y in enumerate(results)}
    arrays["gradient of x"] = x.grad
    arrays |= {f"gradient of {name}": each.grad for name, each in model.named_parameters()}
    arrays |= {name: each.clone() for name, each in model.named_buffers()}
    found = {name: array for name, array in arrays.items() if array is not None}
    return found, [y.stride() for y in results]


def _norm(array: Any) -> float:
    return float(torch.linalg.vector_norm(array.double()))


def _gradient(y: Any, form: str, of: Any, dtype: Any) -> Any:
    """A random gradient of a result, with values that `dtype` has."""
    shape = (1, *y.shape[1:-1], 1) if form == "expanded" else y.shape
    gradient = torch.randn(shape, generator=of, dtype=torch.float64).to(dtype).to(y.dtype)
    if form == "channels last":
        return gradient.movedim(1, -1).contiguous().movedim(-1, 1)
    return placed(gradient).expand(y.shape)
