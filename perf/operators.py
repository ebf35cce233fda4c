"""Operators of any rank and their gradients: this engine and torch on one case, checked and timed.

The case of a transposed convolution or of a gradient is the convolution that it belongs to: x has
the shape of the transposed result and of the input gradient, and w that of the weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import implicit_conv
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.options import LAYOUTS_OF
from implicit_conv.settings import config
from implicit_conv.testing import Array, Case, from_nchw, to_nchw
from implicit_conv.timing import Timed, calls_of, interleave
from implicit_conv.tools import rivals
from implicit_conv.tools.rivals import (
    CONTROL,
    OURS,
    Function,
    Measurement,
    errors_of,
    local,
    result_of,
    tensor_of,
    with_control,
)
from perf.engines import ENGINES
from perf.shapes import output_padding

ALLOCATIONS = 3  # sets of arrays of a case

# Names of public functions by operator, with the number of spatial axes to fill in.
FUNCTIONS = {
    "fprop": "conv{}d",
    "dgrad": "conv{}d_input_grad",
    "wgrad": "conv{}d_weight_grad",
    "transposed": "conv_transpose{}d",
}


def is_conv2d(operator: str, case: Case) -> bool:
    """Whether an operator of a case is conv2d, which has precisions, other dtypes and engines."""
    return operator == "fprop" and len(case.size) == 2


def inputs_of(operator: str, case: Case) -> tuple[Array, Array]:
    """(x, w) of "fprop", (x, dy) of "wgrad", (dy, w) of the others: normally distributed,
    contiguous arrays in the layouts of the case.
    """
    x, w = case.arrange(*case.inputs(0))
    if operator == "fprop":
        return x, w
    shape = (case.N, case.K * case.groups, *case.output)
    dy = np.random.default_rng(1).standard_normal(shape).astype(x.dtype)
    dy = np.ascontiguousarray(from_nchw(dy, case.layout))
    return (x, dy) if operator == "wgrad" else (dy, w)


def measure_operator(
    operator: str,
    case: Case,
    prepare: Callable[[int], Mapping[str, Timed]],
    threads: int,
    rounds: int,
    precision: str = "standard",
) -> Measurement:
    """Check "call", "plan" and the rivals on one case, then time them in turn, with several sets of
    arrays: a set's pages decide up to 25 % of a time. Earlier sets stay, so that each has others.

    torch in float64 is the oracle. "call" takes a plain filter, and "plan" a packed one.

    Parameters
    ----------
    operator : a key of FUNCTIONS
    case : Case
        Its padding is equal on both sides, and its filter has the layout KCS, KCRS or KCTRS, unless
        it is of conv2d.
    prepare : function of the number of a set
        It returns the rivals by name, with arrays of their own. Their results have channels second,
        and axes K, C, R, S for "wgrad".
    threads, rounds : int
    precision : str
        That of "call" and "plan" of conv2d.

    Raises
    ------
    WrongResultError
        An error exceeds LIMIT_UNITS, or for conv2d that of `check`.
    """
    kept, found = [], []
    with config(num_threads=threads):
        for number, share in enumerate(shares(rounds)):
            plan, functions = ours(operator, case, *inputs_of(operator, case), precision)
            kept.append(functions)
            timed = with_control({**local(functions), **prepare(number)})
            if number == 0:
                errors = _check(operator, case, timed, threads, precision)
                calls = calls_of(timed)
            found.append(interleave(timed, share, seed=number, calls=calls))
    samples = {name: np.concatenate([one[name] for one in found]) for name in timed}
    return Measurement(plan, errors, samples)


def shares(rounds: int) -> list[int]:
    """The rounds of each set of arrays; a set has at least one."""
    sets = min(ALLOCATIONS, rounds)
    return [rounds // sets + (number < rounds % sets) for number in range(sets)]


def ours(
    operator: str, case: Case, first: Array, second: Array, precision: str
) -> tuple[Plan, dict[str, Function]]:
    """The plan, and the public function ("call") and the plan with a packed filter ("plan")."""
    if is_conv2d(operator, case):
        return rivals.ours(case, first, second, precision)
    name, given, options = arguments_of(operator, case)
    planner: Any = getattr(implicit_conv, f"plan_{name}")
    plan = planner(first.shape, second.shape, *given, first.dtype, **options)
    packed = second if operator == "wgrad" else plan.pack(second)
    return plan, {
        "call": call_of(operator, case, first, second),
        "plan": lambda: plan(first, packed),
    }


def call_of(operator: str, case: Case, first: Array, second: Array) -> Function:
    """The public function; nothing is planned before its first call."""
    name, given, options = arguments_of(operator, case)
    function: Any = getattr(implicit_conv, name)
    return lambda: function(first, second, *given, **options)


def arguments_of(operator: str, case: Case) -> tuple[str, list[Any], dict[str, Any]]:
    """The name of the public function, and its arguments after the two arrays."""
    options = case.options
    given: list[Any] = []
    if operator in ("dgrad", "transposed"):
        del options["padding_mode"]
    if operator == "dgrad":
        given = [case.problem.input_shape]
    if operator == "wgrad":
        given = [case.problem.weight_shape]
    if operator == "transposed":
        options["output_size"] = case.size
        swapped = str.maketrans("CK", "KC")  # its channels are the filters of the case
        options["weight_layout"] = case.weight_layout.translate(swapped)
    return FUNCTIONS[operator].format(len(case.size)), given, options


def torch_operator(
    operator: str, case: Case, first: Array, second: Array, threads: int
) -> Function:
    """The operator by torch (oneDNN); its result has channels second, or axes K, C, R, S for
    "wgrad". For channels last, tensors are channels_last or channels_last_3d.

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
    a = tensor_of(to_nchw(first, case.layout))
    x = torch.empty((case.N, case.C * case.groups, *case.size), dtype=a.dtype)
    w = torch.empty((case.K * case.groups, case.C, *case.kernel), dtype=a.dtype)
    b = tensor_of(to_nchw(second, case.layout) if operator == "wgrad" else second)
    x, w = (a, w) if operator == "wgrad" else (x, b)
    if last:
        form = torch.channels_last if rank == 2 else torch.channels_last_3d
        w, x = w.contiguous(memory_format=form), x.contiguous(memory_format=form)
    transposed = operator == "transposed"
    added = output_padding(case) if transposed else [0] * rank
    sizes = case.stride, padding, case.dilation, transposed, added, case.groups
    convolve: Any = torch.ops.aten.convolution
    backward: Any = torch.ops.aten.convolution_backward

    def call() -> Any:
        with torch.inference_mode():
            if operator == "dgrad":
                return backward(a, x, w, None, *sizes, (True, False, False))[0]
            if operator == "wgrad":
                return backward(b, x, w, None, *sizes, (False, True, False))[1]
            return convolve(a, w, None, *sizes)

    return call


def _check(
    operator: str, case: Case, timed: Mapping[str, Timed], threads: int, precision: str
) -> dict[str, float]:
    """Largest error of each result but that of the control, against torch in float64."""
    timed = {name: each for name, each in timed.items() if name != CONTROL}
    if is_conv2d(operator, case):
        fast = (*ENGINES, *(OURS if precision == "fast" else ()))
        return rivals.check(case, timed, threads, fast)
    first, second = (array.astype(np.float64) for array in inputs_of(operator, case))
    first = np.ascontiguousarray(to_nchw(first, case.layout))
    if operator == "wgrad":
        second = np.ascontiguousarray(to_nchw(second, case.layout))
    oracle = replace(case, layout=LAYOUTS_OF[len(case.size)][0], dtype="float64")
    exact = np.asarray(torch_operator(operator, oracle, first, second, threads)())
    scale = np.asarray(torch_operator(operator, oracle, abs(first), abs(second), threads)())
    filters = [case.weight_layout.index(axis) for axis in "KCTRS" if axis in case.weight_layout]

    def found(name: str, result: Any) -> Array:
        if operator == "wgrad":
            return np.transpose(result, filters) if name in OURS else np.asarray(result)
        return result_of(case, name, result)

    results = ((name, found(name, each.result())) for name, each in timed.items())
    return errors_of(results, exact, scale, case)
