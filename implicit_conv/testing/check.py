"""The check of a trial: its result against the reference, in float64, int64 or complex128."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.errors import PlanError
from implicit_conv.kernels.geometry import LEAKY_RELU
from implicit_conv.problem.options import (
    COMPLEX_PARTS,
    Activation,
    ActivationName,
    parse_activation,
)
from implicit_conv.problem.reference import pad_or_crop
from implicit_conv.testing import Array, Case, errors
from implicit_conv.testing.operators import restored, sums
from implicit_conv.testing.trial import (
    Inputs,
    Trial,
    WrongResultError,
    addends,
    blank,
    compute,
    inputs,
)
from implicit_conv.testing.ways import PREPARED_COMPILED, Watch, watched

# Activations whose results for integers are exact.
EXACT: tuple[Activation, ...] = (None, "relu", "relu6", ("leaky_relu", 0.5), ("clamp", -3.0, 5.0))
SMOOTH: dict[ActivationName, Callable[[Array], Array]] = {
    "silu": lambda v: v / (1 + np.exp(-v)),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "tanh": np.tanh,
    "gelu": lambda v: v * np.vectorize(math.erfc, [float])(-v / math.sqrt(2)) / 2,
    "hardswish": lambda v: v * np.clip(v + 3, 0, 6) / 6,
}
# No activation changes by more than this times the change of its argument; nor is the error of a
# complex number larger than this times the bound of its parts.
STEEPNESS = 1.5
# Largest error of a direct sum in units of eps * sum|x||w|: what conv2d promises for normally
# distributed data. It is also the largest error of an activation, in units of eps * |y|.
DIRECT_UNITS = 16
# Largest error of Winograd in units of eps * sum over c of max|x_c| * max|w_c|, of volumes over the
# planes of the filter too, by the outputs of a box along an axis. The maximum of x is over the
# windows of all outputs of a box; those of F2 keep the bound of one window, box 1.
WINOGRAD_UNITS = {1: 64, 4: 160, 6: 2400}


def check(trial: Trial) -> tuple[str, ...]:
    """Compute a trial as often as it says, and compare each result with the reference.

    Returns
    -------
    ways : names
        Those of `ways.WAYS` that the calls took.

    Raises
    ------
    WrongResultError
        A result is wrong, or part of it was not written.
    """
    with watched() as watch:
        try:
            if trial.prepared:
                _check_prepared(trial, watch)
            else:
                for number in range(trial.times):
                    _check_call(trial.turn(number), watch, again=trial.times > 1)
        except PlanError:
            if trial.algorithm == "auto":
                raise
    return tuple(watch.taken)


def _check_call(trial: Trial, watch: Watch, *, again: bool) -> None:
    """Make one call of new arrays, which are overwritten afterwards."""
    with _guarded(trial, scratch=not again) as seal:
        given = inputs(trial)
        for array in given:
            if array is not None:
                seal(array)
        y = compute(trial, given, watch)
    verify(trial, given, y)
    if again and not trial.guard:
        _overwrite(given)


def _overwrite(given: Inputs) -> None:
    """Write to arrays that no call may read any more; the memory of guarded ones is gone."""
    for array in given:
        if array is not None and array.flags.writeable:
            array[...] = 99


def _check_prepared(trial: Trial, watch: Watch) -> None:
    """Prepare a call, and make it with other values in the same arrays.

    The reference is computed without guard pages: numpy's einsum reads beyond arrays without
    elements (numpy 2.4.6).
    """
    made: list[tuple[Inputs, Array]] = []
    with _guarded(trial, scratch=False), trial.settings:
        plan, given, out = trial.plan(), inputs(trial), blank(trial)
        packs = trial.packed and trial.made.result != "w"
        held = addends(trial, given)
        residual = held.pop("residual", None)
        copies = {n: each.copy() for n, each in held.items() if isinstance(each, np.ndarray)}
        second: Any = plan.pack(given.second) if packs else given.second
        try:
            call = plan.prepare(given.first, second, out, residual=residual, **held | copies)
        except PlanError as error:
            if "can be prepared" not in str(error):
                raise
            return  # its arrays are not used in place
        for vector in copies.values():
            vector[...] = 99
        del copies, held
        for number in range(trial.times):
            new = inputs(trial.turn(number))
            _write(given.first, new.first)
            if not packs:
                _write(given.second, new.second)
            if residual is not None and new.residual is not None:
                _write(residual, new.residual)
            out[...] = 99
            y = watch.call("plan.prepare", call, PREPARED_COMPILED)
            if y is not out:
                raise WrongResultError("a prepared call returned another array than out")
            made.append(copy.deepcopy((given, y)))
    for then, result in made:
        verify(trial, then, result)


def _write(array: Array, values: Array) -> None:
    if array.flags.writeable:
        array[...] = values


def _guarded(trial: Trial, *, scratch: bool) -> AbstractContextManager[Callable[[Array], None]]:
    """See `guard.guarded`; nothing happens if a trial asks for no guard pages."""
    if not trial.guard:
        return nullcontext(lambda array: None)
    from implicit_conv.testing.guard import guarded  # it imports Numba

    return guarded(trial.guard, scratch=scratch)


@np.errstate(all="ignore")
def verify(trial: Trial, given: Inputs, y: Array) -> None:
    """Compare the result `y` of a trial with the reference.

    Raises
    ------
    WrongResultError
        The dtype or an element is wrong.
    """
    if y.dtype.newbyteorder("=") != numpy_dtype(trial.y_dtype):
        raise WrongResultError(f"the result is {y.dtype} and should be {trial.y_dtype}")
    case, result = trial.case, trial.made.result
    wide = np.result_type(numpy_dtype(trial.sum_dtype), "int64" if trial.is_integer else "float64")
    y = restored(case, result, y).astype(np.result_type(wide, "float64"))
    first, second = (
        restored(case, role, array).astype(wide)
        for role, array in zip(trial.roles, (given.first, given.second), strict=True)
    )
    specified = np.ones(y.shape, bool)
    is_first, is_second = (trial.values == f"{which} not finite" for which in ("first", "second"))
    if is_second or (is_first and trial.may_transform):
        holds, specified = _spread(trial, first, second)
        if np.isfinite(y[holds]).any():
            raise WrongResultError("a NaN or an infinity does not show in an output that holds it")
        first, second = (np.where(np.isfinite(array), array, 0) for array in (first, second))
    if trial.values == "subnormal" and trial.subnormals == "flush":
        first = np.zeros_like(first)
    scale, addends = _epilogue(trial, given)
    total = sums(trial.operator, case, first, second)
    expected = _activated(trial.activation, sum(addends, scale * total))
    if _is_exact(trial):
        if not trial.is_integer:
            expected = expected.astype(trial.sum_dtype)
        expected = expected.astype(numpy_dtype(trial.y_dtype)).astype(y.dtype)
        right = (y == expected) | (np.isnan(y) & np.isnan(expected))
    else:
        bound = _bound(trial, first, second, scale, addends) + DIRECT_UNITS * np.abs(expected)
        right = errors(y, expected, bound, trial.error_dtype) <= 1
    wrong = np.argwhere(specified & ~right)
    if len(wrong):
        at, axes = tuple(wrong[0].tolist()), "K, C, R, S" if result == "w" else "N, K, P, Q"
        raise WrongResultError(
            f"{len(wrong)} of {y.size} elements are wrong; the first, {list(at)} in {axes} "
            f"order, is {y[at]} and should be {expected[at]}"
        )


def _is_exact(trial: Trial) -> bool:
    """Whether the result is the exact one, rounded once."""
    if trial.activation not in EXACT:
        return False
    if trial.is_integer and trial.y_dtype == "float32":  # sums are rounded before the epilogue
        return not (trial.scaled or trial.biased or trial.added)
    return trial.values != "normal" and not trial.spreads


def _epilogue(trial: Trial, given: Inputs) -> tuple[Array, list[Array]]:
    """(the scale, what is added to the sums), as they broadcast."""
    vector = (-1, *[1] * trial.case.rank)
    wide = np.result_type("float64", numpy_dtype(trial.sum_dtype))
    one = np.ones((), "int64" if trial.is_integer else "float64")
    scale = one if given.scale is None else given.scale.astype(float).reshape(vector)
    addends = [] if given.bias is None else [given.bias.reshape(vector)]
    if given.residual is not None:
        addends.append(restored(trial.case, trial.made.result, given.residual).astype(wide))
    return scale, addends


def _spread(trial: Trial, first: Array, second: Array) -> tuple[Array, Array]:
    """(results that hold a number that is not finite, results that must not show it).

    F4 and F6 may show a number of x in all outputs of a box. It is not specified whether a number
    of w shows in outputs of its filter where its tap reads padding, nor one of dy in its filter's
    taps.
    """
    case, operator = trial.case, trial.operator
    in_first, in_second = ~np.isfinite(first), ~np.isfinite(second)
    if in_second.any():
        holds = sums(operator, case, np.ones_like(first), in_second) > 0
        touched = in_second.reshape(*second.shape[:2], -1).any(axis=2)
        if operator == "weight_grad":
            shape = (-1, 1, *[1] * case.rank)
            touched = touched.any(axis=0)
        else:
            shape = (-1, *[1] * case.rank)
            grouped = touched.reshape(case.groups, case.K, case.C)
            touched = grouped.any(axis=2 if operator == "conv" else 1)
        return holds, np.broadcast_to(~touched.reshape(shape), holds.shape)
    holds = sums(operator, case, in_first, np.ones_like(second)) > 0
    shown = holds.copy()
    for size in trial.boxes:
        for at in np.ndindex(*(-(-extent // size) for extent in holds.shape[2:])):
            box: Any = (..., *(slice(i * size, (i + 1) * size) for i in at))
            shown[box] |= holds[box].any(axis=tuple(range(2, holds.ndim)), keepdims=True)
    return holds, ~shown


def _activated(activation: Activation, sums: Array) -> Array:
    """The activation of `sums`."""
    if activation is None:
        return sums
    if isinstance(activation, str) and activation in SMOOTH:
        return SMOOTH[activation](sums)
    kind, low, high = parse_activation(activation)
    return np.where(sums < 0, low * sums, sums) if kind == LEAKY_RELU else np.clip(sums, low, high)


def _bound(trial: Trial, first: Array, second: Array, scale: Array, addends: list[Array]) -> Array:
    """The largest error of a result, in units of eps, without that of its activation."""
    size = sums(trial.operator, trial.case, first, second, magnitude=True)
    bound = DIRECT_UNITS * sum(map(np.abs, addends), np.abs(scale) * size)
    for box in trial.boxes:
        units = WINOGRAD_UNITS[box] * (2 if trial.case.dtype in COMPLEX_PARTS else 1)
        bound = np.maximum(bound, units * np.abs(scale) * _largest(trial, box, first, second))
    largest: Array = STEEPNESS * bound
    return largest


def _largest(trial: Trial, box: int, first: Array, second: Array) -> Array:
    """The sum over c of max|x_c| * max|w_c|, for volumes over the planes of the filter too, which
    scales the error of Winograd with a box.
    """
    case = trial.case
    if trial.operator != "conv" or case.rank != 2:
        # Phases and volumes: with the maximum of the whole image.
        image = tuple(range(max(2, second.ndim - 2), second.ndim))  # the axes of a filter plane
        weights = np.abs(second).max(axis=image, initial=0)
        weights = weights.sum(axis=tuple(range(2, weights.ndim)))
        weights = weights.reshape(case.groups, case.K, case.C)
        pixels = np.abs(first).max(axis=tuple(range(2, first.ndim)), initial=0)
        pixels = pixels.reshape(len(first), case.groups, first.shape[1] // case.groups)
        summed = "ngc,gkc->ngk" if trial.operator == "conv" else "ngk,gkc->ngc"
        most = np.einsum(summed, pixels, weights)
        most = most.reshape(len(first), case.groups * most.shape[2])
        whole: Array = most.reshape(*most.shape, *[1] * case.rank)
        return whole
    # Outputs that share a box are box - 1 apart.
    return window_scale(case, first, second, box - 1)


def window_scale(case: Case, x: Array, w: Array, reach: int = 0) -> Array:
    """The sum over c of max|x_c| * max|w_c| of each output of an image (N, K, P, Q), which scales
    the error that precision "standard" allows.

    Parameters
    ----------
    x, w : arrays with axes N, C, H, W and K, C, R, S
    reach : int
        The maximum of x is over the windows of outputs that are up to so far away along an axis.
    """
    padded = pad_or_crop(np.abs(x), case.padding, case.padding_mode)
    padded = np.pad(padded, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    spans = zip(case.kernel, case.dilation, strict=True)
    extents = tuple(1 + (taps - 1) * dilation + 2 * reach for taps, dilation in spans)
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=(2, 3))
    windows = windows[:, :, :: case.stride[0], :: case.stride[1]].max(axis=(4, 5), initial=0)
    n, _, *outputs = windows.shape
    windows = windows.reshape(n, case.groups, case.C, *outputs)
    weights = np.abs(w).max(axis=(2, 3), initial=0).reshape(case.groups, case.K, case.C)
    found: Array = np.einsum("ngcpq,gkc->ngkpq", windows, weights, optimize=True)
    return found.reshape(n, case.groups * case.K, *outputs)
