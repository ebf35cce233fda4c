"""Convolutions of integers are exact: the dtype of their sums, and what may be added to them.

The largest sum follows from shapes and dtypes alone, so that no value of x or w decides the dtype
of a result: |sum| <= (C / groups) * R * S * (the largest |product| of the dtypes of x and w).
"""

from __future__ import annotations

from collections.abc import Sequence

from implicit_conv.arrays.arrays import Array, as_array, check_vector
from implicit_conv.errors import DTypeError, PlanError
from implicit_conv.kernels.geometry import CLAMP
from implicit_conv.problem.options import Activation, parse_activation
from implicit_conv.problem.problem import LARGEST, Problem, largest_product

FLOATS = ("float32", "float64")  # dtypes that results of integers may be rounded to


def describe_sums(problem: Problem) -> str:
    """The dtype of the sums of a problem of integers and the reason for it, for tables."""
    bound = f"|sum| <= {_bound(problem)}"
    if problem.needs_int64:
        return f"int64, exact: {bound}, which int32 does not hold"
    if problem.sum_dtype == "int64":
        return f"int64, exact, for the dtype of the result: {bound}, which int32 holds too"
    return f"int32, exact: {bound}, which int32 holds"


def _bound(problem: Problem) -> str:
    product = largest_product(problem.dtype, problem.filter_dtype)
    return f"{problem.terms} products of at most {product} = {problem.largest_sum}"


def out_dtypes(problem: Problem) -> tuple[str, ...]:
    """The dtypes that results of a problem of integers may have, the default first."""
    return ("int64", *FLOATS) if problem.needs_int64 else ("int32", "int64", *FLOATS)


def refuse_int32(problem: Problem) -> None:
    """Refuse to sum in int32.

    Raises
    ------
    DTypeError
        Always.
    """
    raise DTypeError(
        f"out_dtype int32 is not safe for {problem.dtype} x and {problem.filter_dtype} w of these "
        f"shapes: a sum may reach {_bound(problem)}, more than {LARGEST['int32']}; use out_dtype "
        "'int64', or leave it out"
    )


def check_activation(activation: Activation, out_dtype: str) -> None:
    """Check that an activation of integers is exact.

    Raises
    ------
    PlanError
        The result is an integer, and the activation is no relu, or a clamp to bounds that are
        neither infinite nor integers of `out_dtype`.
    """
    kind, low, high = parse_activation(activation)
    if out_dtype in FLOATS:
        return
    if kind != CLAMP:
        raise PlanError(
            f"activation {activation!r} is not exact for {out_dtype}; only relu, relu6 and clamp "
            "are: ask for out_dtype='float32', to which sums are then converted first"
        )
    given: Sequence[float] = activation[1:] if isinstance(activation, tuple) else (low, high)
    infinite = float("-inf"), float("inf")
    for bound, given_bound, unbounded in zip((low, high), given, infinite, strict=True):
        if bound != unbounded and not _is_exact(bound, given_bound, out_dtype):
            raise PlanError(
                f"activation {activation!r}: {given_bound!r} is no integer of {out_dtype} that "
                "float64 holds; use such a bound or an infinite one, or out_dtype='float32'"
            )


def _is_exact(bound: float, given: float, dtype: str) -> bool:
    """Whether a bound as a float64 is the given one, and an integer of `dtype`."""
    return bound == given and bound.is_integer() and -LARGEST[dtype] - 1 <= bound <= LARGEST[dtype]


def checked_bias(bias: object, problem: Problem) -> Array:
    """A bias as a contiguous array of shape (K,) in the dtype of the sums, which it cannot
    overflow.

    Raises
    ------
    ShapeError, DTypeError
        Its shape is not (K,), its dtype does not convert to that of the sums, or sums of integers
        with this bias could overflow.
    """
    array = as_array("bias", bias)
    vector = check_vector("bias", array, problem.K, problem.sum_dtype)
    if problem.is_integer:
        check_range("bias", problem.largest_sum, array, problem.sum_dtype)
    return vector


def check_range(name: str, largest_sum: int, array: Array, dtype: str) -> None:
    """Check that sums of at most `largest_sum` plus the integers of `array` cannot overflow.

    Raises
    ------
    DTypeError
        They could; the message has the numbers.
    """
    largest = magnitude(array)
    if largest_sum + largest <= LARGEST[dtype]:
        return
    wider = "ask for out_dtype 'int64' or 'float64', whose sums are int64"
    raise DTypeError(
        f"{name} has values of up to {largest} in size, and what it is added to may reach "
        f"{largest_sum}: together more than {LARGEST[dtype]}, the largest {dtype}; "
        + (wider if dtype == "int32" else f"add {name} to the result as floats")
    )


def magnitude(array: Array) -> int:
    """The largest |element| of an array of integers; 0 if it is empty."""
    if array.size == 0:
        return 0
    return max(abs(int(array.min())), abs(int(array.max())))
