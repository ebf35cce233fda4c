"""Contenders for convolutions of any rank, transposed convolutions and input gradients: this engine
and torch on one case, checked and timed.

The case of a transposed convolution or an input gradient is the convolution that it belongs to: its
x has the shape of the result, and its output the shape of the first array.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

import implicit_conv
from implicit_conv.options import LAYOUTS_OF
from implicit_conv.plan import Plan
from implicit_conv.settings import config
from implicit_conv.testing import Array, Case, error_units, from_nchw, to_nchw
from implicit_conv.timing import interleave
from implicit_conv.tools.contenders import (
    CONTROL,
    LIMIT_UNITS,
    Contender,
    Measurement,
    WrongResultError,
    result_of,
    tensor_of,
)

# Names of public functions by operator, with the number of spatial axes to fill in.
FUNCTIONS = {
    "fprop": "conv{}d",
    "dgrad": "conv{}d_input_grad",
    "transposed": "conv_transpose{}d",
}


def operator_inputs(operator: str, case: Case) -> tuple[Array, Array]:
    """(x, w), or (dy, w) unless the operator is "fprop": normally distributed, contiguous arrays in
    the layouts of the case.
    """
    x, w = case.arrange(*case.inputs(0))
    if operator == "fprop":
        return x, w
    shape = (case.N, case.K * case.groups, *case.output)
    dy = np.random.default_rng(1).standard_normal(shape).astype(x.dtype)
    return np.ascontiguousarray(from_nchw(dy, case.layout)), w


def measure_operator(
    operator: str, case: Case, against: Sequence[str], threads: int, rounds: int
) -> Measurement:
    """Check "call", "plan" and torch on one case, then time them in turn.

    torch in float64 is the oracle. "call" takes a plain filter, and "plan" a packed one.

    Parameters
    ----------
    operator : "fprop", "dgrad" or "transposed"
    case : Case
        Its padding is equal on both sides, and its filter has the layout KCS, KCRS or KCTRS.
    against : names of rivals
        Those but torch are left out.
    threads, rounds : int

    Raises
    ------
    WrongResultError
        An error exceeds LIMIT_UNITS.
    """
    first, w = operator_inputs(operator, case)
    with config(num_threads=threads):
        plan, contenders = ours(operator, case, first, w)
        if "torch" in against:
            with suppress(ValueError):
                contenders["torch"] = torch_contender(operator, case, first, w, threads)
        errors = _check(operator, case, contenders, threads)
        contenders[CONTROL] = contenders["call"]
        return Measurement(plan, errors, interleave(contenders, rounds))


def ours(operator: str, case: Case, first: Array, w: Array) -> tuple[Plan, dict[str, Contender]]:
    """The plan, and the public function ("call") and the plan with a packed filter ("plan")."""
    name = FUNCTIONS[operator].format(len(case.size))
    function: Any = getattr(implicit_conv, name)
    planner: Any = getattr(implicit_conv, f"plan_{name}")
    options = case.options
    given: list[Any] = []
    if operator != "fprop":
        del options["padding_mode"]
    if operator == "dgrad":
        given = [case.problem.input_shape]
    if operator == "transposed":
        options["output_size"] = case.size
        swapped = str.maketrans("CK", "KC")  # its channels are the filters of the case
        options["weight_layout"] = case.weight_layout.translate(swapped)
    plan = planner(first.shape, w.shape, *given, first.dtype, **options)
    packed = plan.pack(w)
    return plan, {
        "call": lambda: function(first, w, *given, **options),
        "plan": lambda: plan(first, packed),
    }


def torch_contender(operator: str, case: Case, first: Array, w: Array, threads: int) -> Contender:
    """The operator by torch (oneDNN); its result has channels second. For channels last, tensors
    are channels_last or channels_last_3d.

    Raises
    ------
    ValueError
        torch has no such layout, or it needs equal low and high padding.
    """
    import torch

    if any(low != high for low, high in case.padding):
        raise ValueError(f"torch needs equal low and high padding, not {case.padding}")
    rank, padding = len(case.size), [low for low, _ in case.padding]
    last = case.layout.endswith("C")
    if last and rank == 1:
        raise ValueError("torch has no layout NWC")
    torch.set_num_threads(threads)
    first_t, w_t = tensor_of(to_nchw(first, case.layout)), tensor_of(w)
    x_t = torch.empty((case.N, case.C * case.groups, *case.size), dtype=first_t.dtype)
    if last:
        form = torch.channels_last if rank == 2 else torch.channels_last_3d
        w_t, x_t = w_t.contiguous(memory_format=form), x_t.contiguous(memory_format=form)
    transposed, output_padding = operator == "transposed", [0] * rank
    if transposed:
        output_padding = [_output_padding(case, axis) for axis in range(rank)]
    sizes = case.stride, padding, case.dilation, transposed, output_padding, case.groups
    convolve: Any = torch.ops.aten.convolution
    backward: Any = torch.ops.aten.convolution_backward

    def call() -> Any:
        with torch.inference_mode():
            if operator == "dgrad":
                return backward(first_t, x_t, w_t, None, *sizes, (True, False, False))[0]
            return convolve(first_t, w_t, None, *sizes)

    return call


def _output_padding(case: Case, axis: int) -> int:
    """Pixels on the high side of a transposed convolution that no window of the case reaches."""
    (low, high), reach = case.padding[axis], (case.kernel[axis] - 1) * case.dilation[axis] + 1
    return case.size[axis] + low + high - (case.output[axis] - 1) * case.stride[axis] - reach


def _check(
    operator: str, case: Case, contenders: dict[str, Contender], threads: int
) -> dict[str, float]:
    """Largest error of each contender's result, in units of eps times the sum of absolute
    products.
    """
    first, w = (array.astype(np.float64) for array in operator_inputs(operator, case))
    first = np.ascontiguousarray(to_nchw(first, case.layout))
    oracle = replace(case, layout=LAYOUTS_OF[len(case.size)][0], dtype="float64")
    exact = np.asarray(torch_contender(operator, oracle, first, w, threads)())
    scale = np.asarray(torch_contender(operator, oracle, abs(first), abs(w), threads)())
    errors = {}
    for name, function in contenders.items():
        found = result_of(case, name, function())
        errors[name] = error_units(found, exact, scale, case.dtype)
        if not errors[name] <= LIMIT_UNITS:
            raise WrongResultError(
                f"{name} is {errors[name]:.3g} units of eps * sum|a||b| from the oracle on {case}; "
                f"at most {LIMIT_UNITS:g} are allowed"
            )
    return errors
