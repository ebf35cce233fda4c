"""The way of every operator: a call that was prepared before, or plan -> bind -> run.

The file of an operator has its public functions and one function that plans it; what all operators
share is here: known calls, the plans that are kept, and the options as one value.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from implicit_conv.arrays.arrays import as_array, dtype_key, dtype_name
from implicit_conv.arrays.libraries import as_library_of
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines import kinds as sizes
from implicit_conv.cpu.engines.kinds import keep_engine, keep_size, known_engine
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.operators.plan import Engine, Plan
from implicit_conv.problem.operand_checks import check_dtypes
from implicit_conv.problem.options import (
    GPU_DTYPES,
    Activation,
    Algorithm,
    Layout,
    PaddingMode,
    Precision,
    Swapped,
    WeightLayout,
)
from implicit_conv.problem.parse import (
    Ints,
    Padding,
    exact_key,
    frozen,
    is_exact,
    parse_max_workspace,
    parse_padding_mode,
    shape_tuple,
)
from implicit_conv.problem.problem import Problem, depends_on_size
from implicit_conv.process.cache import CALLS, PLANS, keep_recent, older_call
from implicit_conv.process.preparation import imports, prepare
from implicit_conv.settings import current

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class NoKeywords(TypedDict):
        """The other keywords of a public function, of which there are none."""


Shape = tuple[int, ...]
Function = TypeVar("Function", bound=Callable[..., Any])


class Options(NamedTuple):
    """What callers may choose: the table of all options, with their types and defaults.

    A public function has some of them, as parameters of the same name, type and default, which a
    test compares. Values are unchecked, but hashable where a plan is kept.
    """

    stride: Ints = 1
    padding: Padding = 0
    dilation: Ints = 1
    groups: int = 1
    layout: Layout | None = None
    weight_layout: WeightLayout | Swapped | None = None
    padding_mode: PaddingMode = "zeros"
    output_padding: Ints = 0
    output_size: Ints | None = None
    input_shape: Sequence[int] = ()  # required by functions that have it
    weight_shape: Sequence[int] = ()
    activation: Activation = None
    out_dtype: DTypeLike | None = None
    precision: Precision = "standard"
    algorithm: Algorithm = "auto"
    max_workspace: int | None = None
    device: str | None = None

    def part(self, names: Iterable[str]) -> dict[str, Any]:
        """The options of these names."""
        return {name: getattr(self, name) for name in names}


# A public function gives its options in three groups: WINDOW, its own, METHOD.
WINDOW = ("stride", "padding", "dilation", "groups")
METHOD = ("precision", "algorithm", "max_workspace", "device")
LAYOUTS = ("layout", "weight_layout")
CONVOLUTION = (*WINDOW, *LAYOUTS, "padding_mode")  # what `Problem.parse` takes
SHAPES = ("input_shape", "weight_shape")
# Of wrong calls. They are raised again without the frames of this package that lead to the check.
OWN_ERRORS = (ShapeError, DTypeError, PlanError)
# What documentation says of two spatial axes, and of other numbers of them.
WORDS = {
    2: "2-d|2d|H, W|P, Q|R, S|h, w|p, q|r, s|NCHW|NHWC|KCRS|KRSC|RSCK|CKRS|CRSK|RSKC",
    1: "1-d|1d|W|Q|S|w|q|s|NCW|NWC|KCS|KSC|SCK|CKS|CSK|SKC",
    3: "3-d|3d|D, H, W|Z, P, Q|T, R, S|d, h, w|z, p, q|t, r, s"
    "|NCDHW|NDHWC|KCTRS|KTRSC|TRSCK|CKTRS|CTRSK|TRSKC",
}
INTEGERS = (*WINDOW, "output_padding", "output_size", "max_workspace")  # ints or sequences of ints


class Task(NamedTuple):
    """What the CPU engine of an operator plans: all but the shapes and dtypes is unchecked."""

    rank: int  # the number of spatial axes
    shapes: tuple[Shape, Shape]
    dtypes: tuple[str, str]
    options: Options
    arch: CpuArch
    request: Request  # what METHOD and the settings ask for


@dataclass(frozen=True, eq=False)
class Operator:
    """A public function with two arrays, such as conv2d.

    Attributes
    ----------
    name : str
    rank : 1, 2 or 3
        The number of spatial axes.
    own : tuple of str
        The names of its options besides WINDOW and METHOD.
    plan : function (Task) -> engine
        It plans the operator on the CPU.
    names : tuple of str
        The names of the two arrays, in messages.
    plan_on_gpu : function (shapes, dtypes, Options) -> Plan, optional
        It plans the operator on a GPU.
    result : str
        The one of its own options that is a shape of its result, if there is one.
    mixes : bool
        Whether x may have integers where w has floats; see `mixed`.
    """

    name: str
    rank: int
    own: tuple[str, ...]
    plan: Callable[[Task], Engine]
    names: tuple[str, str] = ("x", "w")
    plan_on_gpu: Callable[[tuple[Shape, Shape], tuple[Any, Any], Options], Plan] | None = None
    result: str = ""
    mixes: bool = False

    def divided(self, own: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The shape of the result among the values `own` of its own options, and the others."""
        if not self.result:
            return None, own
        at = self.own.index(self.result)
        return own[at], (*own[:at], own[at] is None, *own[at + 1 :])

    def options(self, *values: Any) -> Options:
        """The options whose values are given in the order of WINDOW, `own` and METHOD."""
        names = (*WINDOW, *self.own, *METHOD)
        return Options(**dict(zip(names, values, strict=True)))


def known_keywords(function: Function) -> Function:
    """`function`, whose last parameter catches other keywords, so that a message can name ours.
    `help`, documentation and type checkers do not see it.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[:-1]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    del function.__annotations__["other"]
    return function


def refuse(name: str, other: Mapping[str, object]) -> NoReturn:
    """Refuse keywords that the function `name` does not have.

    Raises
    ------
    TypeError
        Always; see `messages.unexpected`.
    """
    raise prepare(_messages).unexpected(name, other)


@imports
def _mixed() -> Any:
    from implicit_conv.operators import mixed

    return mixed


@imports
def _messages() -> Any:
    from implicit_conv.operators import messages

    return messages


def with_rank(function: Function, rank: int, example: str) -> Function:
    """`function`, which has two spatial axes, with `rank` of them: one signature for all ranks.

    The copy has another name, another operator, which the code of `function` takes from a constant
    of its module (CONV2D, whose twin is CONV1D), and its documentation with other letters, which
    ends with `example`: lines of a session, the first of which imports the copy.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__
    words = dict(zip(WORDS[2].split("|"), WORDS[rank].split("|"), strict=True))
    name = function.__name__.replace("2", str(rank))
    names = tuple(each.replace("2D", f"{rank}D") for each in code.co_names)
    code = code.replace(co_name=name, co_names=names)
    copy = FunctionType(code, function.__globals__, name, function.__defaults__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__ = name
    copy.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    # Compilers of Python 3.13 and newer take the indentation away, as cleandoc does.
    documentation = inspect.cleandoc(function.__doc__ or "")
    text, heading, _ = documentation.partition("Examples\n--------\n")
    text = re.sub(WORDS[2], lambda found: words[found[0]], text)
    copy.__doc__ = f"{text}{heading}{inspect.cleandoc(example)}\n"
    return cast(Function, copy)


def run(
    operator: Operator,
    x: Any,
    w: Any,
    bias: Any,
    scale: Any,
    residual: Any,
    out: Any,
    window: tuple[Any, ...],
    own: tuple[Any, ...],
    method: tuple[Any, ...],
) -> Any:
    """Compute an operator with the values of its options, which `Operator.options` names.

    A call for numpy arrays of the same shapes, strides, dtypes and options as an earlier one takes
    one look-up, and so does one for tensors of torch, or for arrays on a GPU. It needs no names, so
    that Options are made for other calls alone: to name 13 values takes a tenth of the time of a
    small convolution.
    """
    try:
        key = kinds = given = None
        tensors = type(x) is not np.ndarray
        if tensors:
            kinds, given = _kinds(operator, x, w, bias, residual is out is None)
        elif type(w) is np.ndarray:
            kinds = x.shape, x.strides, x.dtype, w.shape, w.strides, w.dtype
        if kinds is not None and scale is None:
            stride, padding, dilation, groups = window
            ints = type(stride) is type(padding) is type(dilation) is type(groups) is int
            if method[2] is not None:
                frozen("max_workspace", method[2])  # refuses True, which is equal to 1 in a key
            key = (
                operator,
                kinds,
                bias is None,
                type(residual) is np.ndarray and residual.strides,
                type(out) is np.ndarray and out.strides,
                window if ints else exact_key(window),
                own,
                method,
                current().key,
            )
            try:
                call = CALLS.get(key)
            except TypeError:  # an option is not hashable: `_plan` names it
                key = call = None
            if call is None and key is not None:
                call = older_call(key)
            if call is not None:
                if given:  # the call is an engine
                    return call.run(*given, bias, residual, out)
                if tensors:  # the key has told them apart
                    return call.call(x, w, bias)
                y = call.again(x, w, bias, residual, out, w)
                if y is not None:
                    return y
            if key is not None and not is_exact(window):
                key = None
        added = bias, scale, residual, out
        return _run_first(operator, key, given or (x, w), added, (window, own, method))
    except OWN_ERRORS as error:
        error.__traceback__ = None
        raise error


def _kinds(operator: Operator, x: Any, w: Any, bias: Any, alone: bool) -> tuple[Any, Any]:
    """(what tells arrays of other libraries apart, or None; arrays on a GPU as they are seen)."""
    kinds = _tensor_key()(x, w, bias) if alone else None
    if kinds is not None:
        return kinds, None
    given = _device_arrays().see_both(x, w, operator.names)
    return given and (given[0].kind, given[1].kind), given


def _run_first(
    operator: Operator,
    key: Any,
    given: tuple[Any, Any],
    added: tuple[Any, Any, Any, Any],
    values: tuple[tuple[Any, ...], ...],
) -> Any:
    """`run` for a call that is not kept; it is then kept under `key`, unless that is None."""
    (x, w), (bias, scale, residual, out), (window, own, method) = given, added, values
    device = method[-1]
    if isinstance(x, np.ndarray):
        x, w = map(as_array, operator.names, given)
    else:
        x, w, device = _foreign(operator.names, x, w, device)
    if operator.mixes and x.dtype != w.dtype and _mixed().is_mixed(x.dtype, w.dtype):
        floats = window, (*own[:-1], None), method

        def convolved(x: Any, *added: Any) -> Any:
            return _run_first(operator, None, (x, w), added, floats)

        found = _mixed().convolve(convolved, x, added, own[-1])
        return as_library_of(given[0], found) if out is None else found
    kind, shape, comes_again = None, None, True
    engine: Any = None
    if key is not None and isinstance(x, np.ndarray) and not depends_on_size(*window[1::-1]):
        shape, fixed = operator.divided(own)
        filters: Any = (w.shape, w.strides)
        if operator.names[1] != "w":  # the gradient of a result, which has a size
            shape, filters = w.shape, w.ndim
        kind = operator, x.ndim, x.dtype, filters, w.dtype, key[-4], fixed, *key[-2:]
        engine, comes_again = known_engine(kind, x.shape, shape)
    if engine is None:
        options = operator.options(*window, *own, *method[:-1], device)
        try:
            plan = _plan(operator, (x.shape, w.shape), (x.dtype, w.dtype), options, searches=False)
        except (ShapeError, DTypeError) as error:
            if all(isinstance(array, np.ndarray) for array in given):
                raise
            raise prepare(_messages).for_arrays(error, operator.names, given) from None
        engine = plan.engine if kind is None else keep_engine(kind, plan.engine, shape)
    y: Any = engine.run(x, w, bias, residual, out, scale)
    if key is not None and not isinstance(x, np.ndarray):
        keep_recent(key, engine)  # which keeps its calls
    elif key is not None:
        call = engine.repeated(given, (x, w), bias, residual, out, y) if comes_again else None
        if call is not None:
            keep_recent(key, call)
        elif kind is not None:
            keep_size(kind, x.shape, shape, engine)
    return as_library_of(given[0], y) if out is None else y


def _foreign(
    names: tuple[str, str], x: object, w: object, device: str | None
) -> tuple[Any, Any, Any]:
    """(x, w, device) for an `x` of another library: arrays on its GPU, or numpy arrays."""
    arrays = _device_arrays()
    if type(x) is arrays.Seen:
        seen: tuple[Any, Any, Any] = x, w, arrays.device_of(x, device)
        return seen
    return as_array(names[0], x), as_array(names[1], w), device


@imports
def _tensor_key() -> Any:
    from implicit_conv.arrays.tensors import tensor_key

    return tensor_key


@imports
def _device_arrays() -> Any:
    from implicit_conv.gpu.cuda import arrays

    return arrays


def make_plan(
    operator: Operator,
    *,
    dtype: object,
    w_dtype: object = None,
    other: Mapping[str, object] = MappingProxyType({}),
    searches: bool = True,
    **given: Any,
) -> Plan:
    """The plan of an operator for arrays of these shapes and dtypes; None is the dtype of x.

    `given` are the two shapes, and the options by their names; `other` are keywords that the
    function does not have. Unless it `searches`, it may take its choice over from a near size.

    Raises
    ------
    TypeError
        A shape is not a sequence, or is the array itself, or an option is not hashable, or there
        are other keywords.
    """
    try:
        if other:
            refuse(f"plan_{operator.name}", other)
        first, second = (
            shape_tuple(f"{name}_shape", given.pop(f"{name}_shape")) for name in operator.names
        )
        shapes, options = (first, second), Options(**given)
        if searches or operator.result or depends_on_size(options.padding, options.stride):
            return _plan(operator, shapes, (dtype, w_dtype), options, searches=searches)
        kind = operator, dtype, w_dtype, second, options, current().key
        engine, _ = known_engine(kind, first)
        if engine is None:
            plan = _plan(operator, shapes, (dtype, w_dtype), options, searches=False)
            engine = keep_engine(kind, plan.engine)
        keep_size(kind, first, None, engine)
        return Plan(engine)
    except OWN_ERRORS as error:
        error.__traceback__ = None
        raise error


def check_padding_on_gpu(options: Options) -> None:
    """Refuse padding that repeats pixels.

    Raises
    ------
    PlanError
        It is no padding with zeros.
    """
    if parse_padding_mode(options.padding_mode) != "zeros":
        raise PlanError(
            f"device {options.device!r} computes padding_mode 'zeros', not "
            f"{options.padding_mode!r}; use device='cpu', with numpy arrays"
        )


def gradient_on_gpu(problem: Problem, options: Options, transposed: bool) -> Plan:
    """The plan of the input gradient of a convolution on a GPU; see `engine.plan_gradient`."""
    from implicit_conv.gpu.plan.candidate import Request as GpuRequest
    from implicit_conv.gpu.run.engine import plan_gradient

    check_padding_on_gpu(options)
    check_dtypes(problem.dtype, problem.filter_dtype, GPU_DTYPES)
    request = GpuRequest(**options.part(("activation", "out_dtype", "precision", "algorithm")))
    assert options.device is not None
    limit = parse_max_workspace(options.max_workspace)
    return Plan(plan_gradient(problem, request, options.device, transposed, limit))


def is_temporary(plan: Plan) -> bool:
    """Whether a plan has small register tiles, until others are compiled."""
    return sizes.is_temporary(plan.engine)


def _plan(
    operator: Operator,
    shapes: tuple[Shape, Shape],
    dtypes: tuple[object, object],
    options: Options,
    *,
    searches: bool = True,
) -> Plan:
    """The plan for these options and the settings in force; unless it `searches`, it may take its
    choice over from a near size.

    Raises
    ------
    PlanError
        A GPU is asked for, but only the CPU computes the operator.
    """
    settings = current()
    values = {name: frozen(name, value) for name, value in options.part(INTEGERS).items()}
    for name in set(SHAPES).intersection(operator.own):
        values[name] = shape_tuple(name, getattr(options, name))
    if options.algorithm == "auto":
        values["algorithm"] = settings.algorithm
    device = options.device or settings.device or "cpu"
    options = options._replace(**values, device=device)
    dtype, w_dtype = dtypes
    keys = dtype_key(dtype), dtype_key(dtype if w_dtype is None else w_dtype)
    try:
        if device == "cpu":
            machine = settings.num_threads, settings.subnormals, settings.compiler
            return _cpu_plan(operator, shapes, keys, options, *machine, searches)
        if operator.plan_on_gpu is None:
            raise PlanError(
                f"{operator.name} is computed on the CPU, not on device {device!r}; pass numpy "
                "arrays, and device='cpu'"
            )
        return operator.plan_on_gpu(shapes, keys, options)
    except TypeError:
        _check_hashable(options)
        raise


@PLANS
def _cpu_plan(*request: Any) -> Plan:
    """The plan that is kept for a request, which are the arguments of `_make_cpu_plan`."""
    return prepare(_make_cpu_plan, *request)


def _make_cpu_plan(
    operator: Operator,
    shapes: tuple[Shape, Shape],
    dtypes: tuple[Any, Any],
    options: Options,
    threads: int | None,
    subnormals: str,
    compiler: str,
    searches: bool,
) -> Plan:
    limit, flushes = parse_max_workspace(options.max_workspace), subnormals == "flush"
    named = options.precision, options.algorithm
    request = Request(*named, flushes, limit, compiler=compiler, searches=searches)
    first, second = map(dtype_name, dtypes)
    task = Task(operator.rank, shapes, (first, second), options, cpu_arch(threads), request)
    return Plan(operator.plan(task))


def _check_hashable(options: Options) -> None:
    """Raise TypeError that names the option which is not hashable."""
    for name, value in options._asdict().items():
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{name} is {value!r}; it must be a name, a number or a tuple of these"
            ) from None
