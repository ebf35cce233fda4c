"""The way of every operator: a call that was prepared before, or plan -> bind -> run.

The file of an operator has its public functions and one function that plans it; what all operators
share is here: known calls, the plans that are kept, and the options that decide which method runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays import Array, accepts_result, as_array, dtype_key, dtype_name
from implicit_conv.cache import CALLS, PLANS, keep_call
from implicit_conv.cpu.arch import CpuArch, cpu_arch
from implicit_conv.cpu.candidate import Request
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.preparation import prepare
from implicit_conv.libraries import as_library_of
from implicit_conv.parse import exact_key, frozen, is_exact, parse_max_workspace, shape_tuple
from implicit_conv.plan import Engine, Plan
from implicit_conv.settings import current

INTEGERS = ("stride", "padding", "dilation", "groups")  # the options that come first
METHODS = ("precision", "max_workspace", "algorithm", "device")  # the options that come last
Shape = tuple[int, ...]


class Task(NamedTuple):
    """What the CPU engine of an operator plans: all but the shapes and dtypes is unchecked."""

    rank: int  # the number of spatial axes
    shapes: tuple[Shape, Shape]
    dtypes: tuple[str, str]
    options: dict[str, Any]  # those of the operator, without METHODS
    arch: CpuArch
    request: Request  # METHODS, and the settings that concern them


@dataclass(frozen=True, eq=False)
class Operator:
    """A public function with two arrays, such as conv2d.

    Attributes
    ----------
    name : str
    rank : 1, 2 or 3
        The number of spatial axes.
    own_options : tuple of str
        The names of its options between INTEGERS and METHODS.
    plan : function (Task) -> engine
        It plans the operator on the CPU.
    names : tuple of str
        The names of the two arrays, in messages.
    plan_on_gpu : function (shapes, dtypes, options, device) -> Plan, optional
        It plans the operator on a GPU; the options are a dict of all but the device.
    """

    name: str
    rank: int
    own_options: tuple[str, ...]
    plan: Callable[[Task], Engine]
    names: tuple[str, str] = ("x", "w")
    plan_on_gpu: Callable[..., Plan] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The names of all options, in the order in which `run` and `make_plan` get their values;
        they are hashable.
        """
        return (*INTEGERS, *self.own_options, *METHODS)


def run(
    operator: Operator,
    x: Any,
    w: Any,
    bias: Any,
    residual: Any,
    out: Any,
    options: tuple[Any, ...],
    scale: Any = None,
) -> Array:
    """Compute an operator; `options` are the values of ``operator.options``.

    A call for numpy arrays of the same shapes, strides, dtypes and options as an earlier one takes
    one look-up.
    """
    key = None
    plain = residual is None and scale is None and (out is None or type(out) is np.ndarray)
    if type(x) is type(w) is np.ndarray and plain:
        ints = type(options[0]) is type(options[1]) is type(options[2]) is type(options[3]) is int
        key = (
            operator,
            x.shape,
            x.strides,
            x.dtype,
            w.shape,
            w.strides,
            w.dtype,
            bias is None,
            None if out is None else (out.shape, out.strides, out.dtype),
            options if ints else _exact(options),
            current().key,
        )
        try:
            call = CALLS.get(key)
        except TypeError:  # an option is not hashable: make_plan names it
            key = call = None
        if call is not None and x.flags.aligned and w.flags.aligned:
            if accepts_result(out, (x, w, bias)):
                result: Array = call(x, w, bias, out)
                return result
    given = x, w
    if isinstance(x, np.ndarray):
        x, w = map(as_array, operator.names, given)
    else:
        x, w, options = _foreign(operator.names, x, w, options)
    plan = make_plan(operator, x.shape, w.shape, (x.dtype, w.dtype), options)
    y: Array = plan.engine.run(x, w, bias, residual, out, scale)
    exact = x is given[0] and w is given[1] and is_exact(options[: len(INTEGERS)])
    if key is not None and exact and accepts_result(out, (x, w, bias)):
        call = plan.engine.ready(x, w, y, bias is not None)
        if call is not None:
            keep_call(CALLS, key, call)
    return as_library_of(given[0], y) if out is None else y


def _foreign(
    names: tuple[str, str], x: object, w: object, options: tuple[Any, ...]
) -> tuple[Any, Any, tuple[Any, ...]]:
    """(x, w, options) for an `x` of another library: arrays on its GPU, or numpy arrays."""
    from implicit_conv.gpu.arrays import device_operands, is_device_array

    if is_device_array(x):
        *others, device = options
        x, w, device = device_operands(x, w, device)
        return x, w, (*others, device)
    return as_array(names[0], x), as_array(names[1], w), options


def make_plan(
    operator: Operator,
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    dtypes: tuple[object, object],
    options: tuple[Any, ...],
) -> Plan:
    """The plan of an operator for arrays of these shapes and dtypes; None is the dtype of x.

    Raises
    ------
    TypeError
        A shape is not a sequence, or is the array itself, or an option is not hashable.
    """
    settings = current()
    first, second = operator.names
    shapes = shape_tuple(f"{first}_shape", x_shape), shape_tuple(f"{second}_shape", w_shape)
    *others, algorithm, device = _frozen(options)
    algorithm = settings.algorithm if algorithm == "auto" else algorithm
    device = device or settings.device or "cpu"
    options = (*others, algorithm, device)
    dtype, w_dtype = dtypes
    keys = dtype_key(dtype), dtype_key(dtype if w_dtype is None else w_dtype)
    try:
        if device == "cpu":
            machine = settings.num_threads, settings.subnormals, settings.compiler
            return _cpu_plan(operator, shapes, keys, options, *machine)
        return _gpu_plan(operator, shapes, keys, options)
    except TypeError:
        _check_hashable(operator.options, options)
        raise


@PLANS
def _cpu_plan(*request: Any) -> Plan:
    """The plan that is kept for a request, which are the arguments of `_make_cpu_plan`."""
    return prepare(_make_cpu_plan, *request)


def _make_cpu_plan(
    operator: Operator,
    shapes: tuple[Shape, Shape],
    dtypes: tuple[Any, Any],
    options: tuple[Any, ...],
    threads: int | None,
    subnormals: str,
    compiler: str,
) -> Plan:
    named = dict(zip(operator.options, options, strict=True))
    precision, max_workspace, algorithm, _ = (named.pop(name) for name in METHODS)
    limit = parse_max_workspace(max_workspace)
    flushes = subnormals == "flush"
    request = Request(precision, algorithm, flushes, limit, compiler=compiler)
    first, second = map(dtype_name, dtypes)
    task = Task(operator.rank, shapes, (first, second), named, cpu_arch(threads), request)
    return Plan(operator.plan(task))


def _gpu_plan(
    operator: Operator,
    shapes: tuple[Shape, Shape],
    dtypes: tuple[Any, Any],
    options: tuple[Any, ...],
) -> Plan:
    """The plan of an operator on a GPU.

    Raises
    ------
    PlanError
        Only the CPU computes it.
    """
    named = dict(zip(operator.options, options, strict=True))
    device = named.pop("device")
    if operator.plan_on_gpu is None:
        raise PlanError(
            f"{operator.name} is computed on the CPU, not on device {device!r}; pass numpy arrays, "
            "and device='cpu'"
        )
    return operator.plan_on_gpu(shapes, dtypes, named, device)


def _exact(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options as part of a key, with one value for the names in INTEGERS."""
    return exact_key(options[: len(INTEGERS)]), *options[len(INTEGERS) :]


def _frozen(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """The options, with hashable values for the names in INTEGERS."""
    count = len(INTEGERS)
    return (*map(frozen, INTEGERS, options[:count]), *options[count:])


def _check_hashable(names: Sequence[str], values: Sequence[object]) -> None:
    """Raise TypeError that names the option which is not hashable."""
    for name, value in zip(names, values, strict=True):
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{name} is {value!r}; it must be a name, a number or a tuple of these"
            ) from None
