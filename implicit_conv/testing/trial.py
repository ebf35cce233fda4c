"""A trial: a call of an operator with all that it depends on, and how often it comes again.

The repr of a trial is Python code that makes it.
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.errors import PlanError
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.options import COMPLEX_PARTS, INTEGER_RANGES, Activation
from implicit_conv.problem.parse import Padding
from implicit_conv.problem.problem import largest_product
from implicit_conv.settings import Config, config
from implicit_conv.testing import ROUNDING, Array, Case
from implicit_conv.testing.methods import blocks, computed_by
from implicit_conv.testing.operators import (
    OPERATORS,
    Operator,
    arranged,
    case_options,
    from_columns,
    function,
    output_padding,
    window_filter,
)
from implicit_conv.testing.storage import stored
from implicit_conv.testing.ways import Watch

VALUES = ("integers", "normal", "subnormal", "first not finite", "second not finite")
CHANGES = ("none", "storages", "threads", "subnormals", "bias")
SIDES = ("begin", "end")  # of memory, which guard pages are next to
SCALES = (0.5, -1.0, 2.0, 0.25)  # factors that keep integers exact
# Blocks whose outputs a transform may compute together, by precision: those of Winograd. F2 mixes
# no errors of two outputs, so that each one is a box of its own.
BOXES: dict[str, dict[int, int]] = {"strict": {}, "standard": {2: 1}, "fast": {2: 1, 4: 4, 6: 6}}


class WrongResultError(AssertionError):
    """A result is not `out`, has another dtype, or differs from the reference by too much."""


@dataclass(frozen=True)
class Trial:
    """One call of an operator, or several with other values and one change among them.

    Attributes
    ----------
    case : Case
        Shapes, layouts and dtypes of the convolution, with the padding as pairs.
    operator : str
        One of OPERATORS: which arrays of the convolution are given, and which one is asked for.
    padding : int, pairs or name
        The padding as the operator gets it.
    values : one of VALUES
        "integers" have exact sums, and "subnormal" ones are integers times a subnormal number.
    seed : int
        It decides the values, and by which axes arrays are strided.
    activation, precision, algorithm, out_dtype
        As in `conv2d`. A trial that the algorithm refuses passes.
    method : str
        The method that computes it where it can, one of `methods.NAMES`, or "" for the planner's
        choice.
    scaled, biased, added : bool
        Whether there is a scale, a bias, and a residual.
    sized : bool
        Whether a transposed convolution gets its output_size instead of its output_padding.
    storages : (str, str, str)
        How both operands and the residual are stored, each one of STORAGES.
    out : str
        How `out` is stored, one of WRITABLE, or "" for none.
    numbers : bool
        Whether scale and bias are given as one number each, for all filters.
    packed : bool
        Whether a plan computes it, with a packed filter if there is one. A `method` needs a plan
        too, to which plain filters are given.
    unbatched : bool
        Whether arrays lack the batch axis, of extent 1.
    threads : int
    subnormals : "keep" or "flush"
    guard : str
        The end of all memory that touches an inaccessible page: one of SIDES, or "".
    times : int
        How often it is called, with new values in new arrays.
    number : int
        Which of its calls it is, from 0 on; see `turn`.
    change : one of CHANGES
        What another call is like that is made after half of the calls.
    prepared : bool
        Whether `Plan.prepare` makes the call, whose values are written in place from then on. It
        has an `out` of native, aligned elements.
    """

    case: Case
    operator: str = "conv"
    padding: Padding = 0
    values: str = "integers"
    seed: int = 0
    activation: Activation = None
    precision: str = "standard"
    algorithm: str = "auto"
    out_dtype: str | None = None
    method: str = ""
    scaled: bool = False
    biased: bool = False
    added: bool = False
    sized: bool = False
    storages: tuple[str, str, str] = ("contiguous", "contiguous", "contiguous")
    out: str = ""
    packed: bool = False
    unbatched: bool = False
    threads: int = 1
    subnormals: Literal["keep", "flush"] = "keep"
    guard: str = ""
    times: int = 1
    number: int = 0
    change: str = "none"
    prepared: bool = False
    numbers: bool = False

    def turn(self, number: int) -> Trial:
        """One of its calls: the one of this number, whose arrays are stored like those of the
        others.
        """
        one = replace(self, number=number, times=1)
        if self.prepared or number != max(1, self.times // 2):
            return one
        return replace(one, **_differences(self))

    @property
    def made(self) -> Operator:
        """The operator."""
        return OPERATORS[self.operator]

    @property
    def roles(self) -> tuple[str, str]:
        """Which arrays of the convolution are given; columns are those of a filter."""
        first, second = self.made.operands
        return first, second or "w"

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the operator and of its plan."""
        options = {name: getattr(self, name) for name in self.made.chosen}
        if self.operator == "conv_transpose":
            more = self.case.size if self.sized else output_padding(self.case, self.padding)
            options["output_size" if self.sized else "output_padding"] = more
        return {**case_options(self.operator, self.case), **options}

    @property
    def is_integer(self) -> bool:
        """Whether sums are of integers."""
        return self.case.dtype in INTEGER_RANGES

    @property
    def y_dtype(self) -> str:
        """The dtype of the result: the default for integers follows from the largest sum."""
        case = self.case
        if self.out_dtype or not (self.is_integer and self.made.planned):
            return self.out_dtype or case.dtype
        terms = (case.C if self.operator == "conv" else case.K) * math.prod(case.kernel)
        largest = terms * largest_product(case.dtype, case.w_dtype or case.dtype)
        return "int32" if largest < 2**31 else "int64"

    @property
    def sum_dtype(self) -> str:
        """The dtype of the sums, and of the bias of floats."""
        if self.is_integer:
            return "int64"
        dtype = self.case.dtype
        return dtype if dtype in ("float64", *COMPLEX_PARTS) else "float32"

    @property
    def error_dtype(self) -> str:
        """The dtype that limits the precision of the result."""
        y, sums = (COMPLEX_PARTS.get(dtype, dtype) for dtype in (self.y_dtype, self.sum_dtype))
        if y in ROUNDING or sums in (y, "int64"):
            return y
        return "float32"

    @property
    def boxes(self) -> tuple[int, ...]:
        """The boxes whose outputs a method may mix, in outputs along an axis, of those that the
        precision allows: 1 for Winograd F2, which mixes none, 4 for F4 and 6 for F6.
        """
        return _boxes(self)

    @property
    def may_transform(self) -> bool:
        """Whether a method may transform x and w."""
        return bool(self.boxes)

    @property
    def spreads(self) -> bool:
        """Whether Winograd F4 or F6 may compute it."""
        return max(self.boxes, default=1) > 1

    @property
    def settings(self) -> AbstractContextManager[Config]:
        """The settings of the call, whatever those of the caller are."""
        return config(
            device="cpu", algorithm="auto", num_threads=self.threads, subnormals=self.subnormals
        )

    def plan(self) -> Plan:
        """The plan of the operator for contiguous arrays."""
        case = self.case
        first, second = (self.shape(role) for role in self.roles)
        shaped = [self.shape(self.made.result)] if self.made.shaped else []
        dtypes = {"dtype": case.dtype}
        if case.w_dtype:
            dtypes["w_dtype"] = case.w_dtype
        make = function(self.operator, case.rank, "plan_")
        with self.settings:
            planned: Plan = make(first, second, *shaped, **dtypes, **self.options)
        return _computed_by(planned, self.method) if self.method else planned

    def call(self, first: Any, second: Any, **arrays: Any) -> Any:
        """What the operator returns for operands in the layout of the case."""
        shaped = [self.shape(self.made.result)] if self.made.shaped else []
        call = function(self.operator, self.case.rank)
        return call(first, second, *shaped, **arrays, **self.options)

    def shape(self, role: str) -> tuple[int, ...]:
        """The shape of x, w or y in the layout of the case, as the operator sees it."""
        shape = arranged(self.case, role, np.empty(self.case.shapes[role], np.void)).shape
        return shape[1:] if self.unbatched and role != "w" else shape


@functools.lru_cache(256)
def _boxes(trial: Trial) -> tuple[int, ...]:
    """See `Trial.boxes`."""
    allowed = BOXES[trial.precision]
    if not (allowed and trial.made.planned):
        return ()
    try:
        found = blocks(trial.plan())
    except PlanError:
        return ()
    return tuple(box for block, box in allowed.items() if block in found)


_KEPT: dict[str, tuple[Plan, Plan]] = {}  # by method: the last plan, and what it made of it


def _computed_by(plan: Plan, method: str) -> Plan:
    """See `methods.computed_by`: calls that come again need the same plan."""
    if method not in _KEPT or _KEPT[method][0] is not plan:
        _KEPT[method] = plan, computed_by(plan, method)
    return _KEPT[method][1]


def _differences(trial: Trial) -> dict[str, Any]:
    """What a change of a trial changes."""
    if not trial.made.planned:
        return {}
    changes: dict[str, dict[str, Any]] = {
        "none": {},
        "storages": {"storages": ("strided", "permuted", "strided")},
        "threads": {"threads": 1 if trial.threads > 1 else 2},
        "subnormals": {"subnormals": "keep" if trial.subnormals == "flush" else "flush"},
        "bias": {"biased": not trial.biased and trial.made.epilogue},
    }
    return changes[trial.change]


class Inputs(NamedTuple):
    """The arrays of a call; those of the epilogue are None where the trial has none."""

    first: Array
    second: Array
    scale: Array | None
    bias: Array | None
    residual: Array | None


def inputs(trial: Trial) -> Inputs:
    """The arrays of a trial, all with a batch axis, in the layout of its case."""
    case, rng = trial.case, np.random.default_rng(trial.seed + trial.number)
    places = np.random.default_rng(trial.seed)
    shapes = [case.shapes[role] for role in trial.roles]
    first = _values(trial, rng, shapes[0], case.dtype)
    second = _values(trial, rng, shapes[1], case.w_dtype or case.dtype)
    if trial.values == "subnormal":
        first *= first.dtype.type(4 * np.finfo(first.dtype).smallest_subnormal)
    for name, array in (("first not finite", first), ("second not finite", second)):
        if trial.values == name and array.size:
            at = rng.integers(array.size, size=3)
            array.flat[at] = rng.choice([np.nan, np.inf, -np.inf], size=3)
    first = stored(arranged(case, trial.roles[0], first), trial.storages[0], places)
    second = arranged(case, trial.roles[1], second)
    if trial.made.operands[1]:
        second = stored(second, trial.storages[1], places)
    else:
        second = arranged(case, "w", window_filter(case))
    return Inputs(first, second, *_epilogue(trial, rng, places))


def _epilogue(
    trial: Trial, rng: np.random.Generator, places: np.random.Generator
) -> tuple[Array | None, ...]:
    """Scale, bias and residual."""
    case, result = trial.case, trial.made.result
    filters = case.shapes[result][1]
    scale = bias = residual = None
    real = trial.y_dtype if trial.is_integer else COMPLEX_PARTS.get(trial.sum_dtype)
    if trial.scaled:
        scale = rng.choice(SCALES, filters).astype(real or trial.sum_dtype)
    if trial.biased:
        dtype = scale.dtype.name if trial.is_integer and scale is not None else trial.sum_dtype
        bias = _numbers(trial, rng, (filters,), dtype)
    if trial.numbers:
        scale = scale if scale is None else np.repeat(scale[:1], filters)
        bias = bias if bias is None else np.repeat(bias[:1], filters)
    if trial.added:
        dtype = trial.y_dtype if trial.is_integer else case.dtype
        added = arranged(case, result, _numbers(trial, rng, case.shapes[result], dtype))
        residual = stored(added, trial.storages[2], places)
    return scale, bias, residual


def _values(trial: Trial, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """All numbers of an integer dtype that is summed in a wider one; else see `_numbers`."""
    if dtype in INTEGER_RANGES and trial.made.planned:
        return rng.integers(*INTEGER_RANGES[dtype], shape, dtype, endpoint=True)
    return _numbers(trial, rng, shape, dtype)


def _numbers(trial: Trial, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Normally distributed numbers, or integers from -4 to 4, those of uint8 from 0 to 4."""

    def draw() -> Array:
        if trial.values == "normal":
            return rng.standard_normal(shape)
        return rng.integers(0 if dtype == "uint8" else -4, 5, shape)

    numbers = draw() + 1j * draw() if dtype in COMPLEX_PARTS else draw()
    return numbers.astype(numpy_dtype(dtype))


def addends(trial: Trial, given: Inputs) -> dict[str, Any]:
    """The scale, the bias and the residual as arguments."""
    if not trial.made.epilogue:
        return {}
    vectors = {"scale": given.scale, "bias": given.bias}
    if trial.numbers and trial.case.shapes[trial.made.result][1]:
        vectors = {n: None if each is None else each[0].item() for n, each in vectors.items()}
    return {**vectors, "residual": given.residual}


def blank(trial: Trial) -> Array:
    """The array that a trial gives as out; an element of it that is not written shows."""
    dtype, result = numpy_dtype(trial.y_dtype), trial.made.result
    values = np.full(trial.case.shapes[result], np.nan if dtype.kind != "i" else 77)
    values = arranged(trial.case, result, values).astype(dtype)
    return stored(values, trial.out, np.random.default_rng(trial.seed))


@np.errstate(all="ignore")  # NaN and infinity are values like others here
def compute(trial: Trial, given: Inputs, watch: Watch | None = None) -> Array:
    """The result of the call, with a batch axis, in the layout of the case; `watch` notes its way.

    Raises
    ------
    WrongResultError
        The result is not `out`, or has another dtype than the trial asks for.
    PlanError
        The algorithm cannot compute the trial.
    """
    with trial.settings:
        if not trial.made.planned:
            return _columns(trial, given)
        dtype, result = numpy_dtype(trial.y_dtype), trial.made.result
        out, watch = blank(trial) if trial.out else None, watch or Watch()
        first, second = given.first, given.second
        arrays = addends(trial, given)
        if trial.unbatched:
            first = first[0]
            second = second[0] if trial.roles[1] != "w" else second
            if arrays.get("residual") is not None:
                arrays["residual"] = arrays["residual"][0]
        view = out[0] if out is not None and trial.unbatched and result != "w" else out
        arrays["out"] = view
        y: Array
        if trial.packed or trial.method:
            plan = trial.plan()
            filters: Any = plan.pack(second) if trial.packed and result != "w" else second
            y = watch.call("plan", lambda: plan(first, filters, **arrays))
        else:
            y = watch.call("function", lambda: trial.call(first, second, **arrays))
    if view is not None and y is not view:
        raise WrongResultError("the result is not the array that was given as out")
    if y.dtype.newbyteorder("=") != dtype:
        raise WrongResultError(f"the result is {y.dtype}, but {dtype} was asked for")
    return y[None] if trial.unbatched and result != "w" else y


def _columns(trial: Trial, given: Inputs) -> Array:
    """The result of im2col or col2im as an x or y in the layout of the case."""
    case, convert = trial.case, function(trial.operator, trial.case.rank)
    if trial.operator == "im2col":
        image = given.first[0] if trial.unbatched else given.first
        columns = convert(image, case.kernel, **trial.options)
        return arranged(case, "y", from_columns(case, columns))
    y = given.first if case.layout.endswith("C") else np.moveaxis(given.first, 1, -1)
    columns = y.reshape(-1, y.shape[-1])
    x: Array = convert(columns, trial.shape("x"), case.kernel, **trial.options)
    return x[None] if trial.unbatched else x
