"""What filters do beyond scipy's: images with channels, rounding of integers, missing values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array, is_masked_array
from implicit_conv.errors import DTypeError, PlanError
from implicit_conv.ndimage.calls import CHAINS, call
from implicit_conv.ndimage.missing import INTERPOLATE, NAN, PROPAGATE
from implicit_conv.problem.options import PRECISIONS

ROUNDINGS = ("scipy", "nearest")
SUMS = ("convolve", "convolve1d", "correlate", "correlate1d")  # one pass: NaNs are counted there
GAUSSIANS = ("gaussian_filter", "gaussian_filter1d")
Arguments = dict[str, Any]
Filter = Callable[..., Any]  # (precision, nan, **arguments of scipy's filter)


@dataclass(frozen=True)
class Conventions:
    """Options of a call besides scipy's; the parameters are described in the package.

    Raises
    ------
    PlanError
        An option has an unknown value (a ValueError).
    """

    precision: str = "strict"
    channel_axis: int | None = None
    rounding: str = "scipy"
    nan: str = PROPAGATE
    preserve_nan: bool = False

    def __post_init__(self) -> None:
        for option, known in (
            ("precision", PRECISIONS),
            ("nan", NAN),
            ("rounding", ROUNDINGS),
        ):
            if getattr(self, option) not in known:
                raise PlanError(f"{option} is {getattr(self, option)!r}; it must be one of {known}")


def apply(name: str, function: Filter, options: Conventions, arguments: Arguments) -> Any:
    """Compute scipy's filter `name` of `arguments` with these options."""
    x, output = np.asarray(arguments["input"]), arguments.get("output")
    output = np.asarray(output) if is_masked_array(output) else output  # as scipy takes it
    rest = {key: value for key, value in arguments.items() if key not in ("input", "output")}
    if options.channel_axis is not None:
        return _channels(name, function, options, x, output, rest)
    if options.rounding == "nearest":
        return _nearest(name, function, options, x, output, rest)
    if options.nan == PROPAGATE or x.dtype.kind in "biu":
        return function(options.precision, PROPAGATE, input=x, output=output, **rest)
    absent = _absent(options, x, output)
    if name in SUMS:
        _check_weights(options, rest["weights"])
        y = function(options.precision, options.nan, input=x, output=output, **rest)
    elif name in GAUSSIANS and not np.any(rest.get("order", 0)):
        y = _gaussian(function, options, x, ~absent, output, rest)
    else:
        raise PlanError(
            f"nan={options.nan!r} takes {', '.join((*SUMS, *GAUSSIANS))} with order=0, not {name} "
            "with these arguments; for means, call correlate with equal weights"
        )
    if options.preserve_nan:
        y[absent] = np.nan
    return y


def _absent(options: Conventions, x: Array, output: Any) -> Array:
    """Where the image is NaN."""
    result = output.dtype if isinstance(output, np.ndarray) else output
    result = x.dtype if result is None else result
    for role, dtype in (("image", x.dtype), ("result", np.dtype(result))):
        if dtype.kind != "f":
            raise DTypeError(
                f"nan={options.nan!r} takes real floats, but the {role} is {dtype}; filter real "
                "and imaginary parts one by one, and convert to integers afterwards"
            )
    return np.isnan(x)


def _check_weights(options: Conventions, weights: Any) -> None:
    """Weights that cancel cannot be scaled to what is left of them."""
    values = np.asarray(weights, np.float64)
    if options.nan == INTERPOLATE and abs(values.sum()) <= 1e-8 * abs(values).sum():
        raise PlanError(
            "nan='interpolate' divides by the sum of the weights, which is 0; for derivatives, "
            "filter the image with a Gaussian and nan='interpolate' first"
        )


def _channels(
    name: str, function: Filter, options: Conventions, x: Array, output: Any, rest: Arguments
) -> Array:
    """Filter the image of each channel; arguments that count axes do not count the channels."""
    axis, options = int(options.channel_axis or 0), replace(options, channel_axis=None)
    if not -x.ndim <= axis < x.ndim:
        raise PlanError(f"channel_axis is {axis}, but the image has {x.ndim} axes")
    dtype = _result_dtype(x, output)
    whole = options.rounding == "nearest" and dtype.kind in "iu"
    if name in CHAINS and (options.nan == PROPAGATE or x.dtype.kind in "biu"):
        arguments = {"input": x, "output": output, **rest}
        found = call(name, options.precision, arguments, nearest=whole, channel_axis=axis % x.ndim)
        if found is not None:
            return found
    given = isinstance(output, np.ndarray)
    if given and output.shape != x.shape:
        raise RuntimeError(f"output has shape {output.shape}, but the image has {x.shape}")
    outputs = np.moveaxis(output, axis, 0) if given else [output] * x.shape[axis]
    planes = [
        apply(name, function, options, {"input": plane, "output": target, **rest})
        for plane, target in zip(np.moveaxis(x, axis, 0), outputs, strict=True)
    ]
    return output if given else np.stack(planes, axis)


def _result_dtype(x: Array, output: Any) -> np.dtype[Any]:
    given = isinstance(output, np.ndarray)
    return np.dtype(x.dtype if output is None else output.dtype if given else output)


def _nearest(
    name: str, function: Filter, options: Conventions, x: Array, output: Any, rest: Arguments
) -> Any:
    """Filter in floats through all passes, and round to integers once: half to even, saturated."""
    given, dtype = isinstance(output, np.ndarray), _result_dtype(x, output)
    options = replace(options, rounding="scipy")
    if dtype.kind not in "iu":
        return apply(name, function, options, {"input": x, "output": output, **rest})
    if dtype.itemsize > 4:
        raise DTypeError(
            f"rounding='nearest' computes in float64, which does not hold every {dtype}; ask for "
            "an output of 32 bits or less"
        )
    if name in CHAINS:
        found = call(name, options.precision, {"input": x, "output": output, **rest}, nearest=True)
        if found is not None:
            return found
    narrow = options.precision != "strict" and max(dtype.itemsize, x.itemsize) <= 2
    sums = np.float32 if narrow else np.float64
    y = apply(name, function, options, {"input": x, "output": sums, **rest})
    limits = np.iinfo(dtype)
    np.clip(np.rint(y, out=y), limits.min, limits.max, out=y)
    target = output if given else np.empty(x.shape, dtype)
    with np.errstate(invalid="ignore"):  # NaN
        np.copyto(target, y, casting="unsafe")
    return target


def _gaussian(
    function: Filter,
    options: Conventions,
    x: Array,
    present: Array,
    output: Any,
    rest: Arguments,
) -> Any:
    """A filter of several passes whose weights are positive and have the sum 1.

    The image without its NaNs goes through all passes, and so does the mask of what is left.
    """
    cval = rest.get("cval", 0.0)
    whole = not np.isnan(cval)
    if whole and present.all():
        return function(options.precision, PROPAGATE, input=x, output=output, **rest)
    known = np.where(present, x, x.dtype.type(0))
    sums = {**rest, "cval": cval if whole else 0.0}
    y = function(options.precision, PROPAGATE, input=known, output=output, **sums)
    if options.nan == INTERPOLATE:
        weights = {**rest, "cval": float(whole), "input": present.astype(y.dtype)}
        with np.errstate(invalid="ignore", divide="ignore"):  # windows of NaNs alone: 0 / 0
            np.divide(y, function(options.precision, PROPAGATE, **weights), out=y)
    return y
