"""Convolutions of tensors on a GPU, and their gradients: ours where it was measured to be faster
than torch's kernel.

What is not served, or was not measured to be faster, runs torch's own operator, which chooses a
kernel of cuDNN by torch's settings.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from implicit_conv.cpu.machine.times import Table, Times, size_name
from implicit_conv.errors import DriverError, DTypeError, PlanError, ShapeError
from implicit_conv.operators.dispatch import make_plan
from implicit_conv.operators.on_gpu import device_arch, see_tensor, version
from implicit_conv.operators.plan import Plan
from implicit_conv.process.cache import CALLS, keep_recent, older_call
from implicit_conv.settings import current
from implicit_conv.torch.first_calls import REFUSED
from implicit_conv.torch.measured import differs, ours_is_faster
from implicit_conv.torch.steps import LOG, OPERATORS, REFUSAL, Window

SUM_ROUNDING = 1e-5  # of float32 sums, relative to the sum of their parts' sizes
ROUNDS = 3  # pairs of calls that are timed, in turn
RANKS = 1, 2, 3  # numbers of spatial axes
RULES = "CUDA events, results compared"  # what a race is: times of others are not read
DTYPES = torch.float16, torch.bfloat16, torch.float32
LOCK = threading.RLock()  # held while calls are measured
TORCHS: Any = torch.library.get_kernel("aten::convolution", "Undefined")
TORCHS_BACKWARD: Any = torch.library.get_kernel("aten::convolution_backward", "Undefined")

Call = Callable[[], Any]


class Operands(NamedTuple):
    """The tensors of y = conv(x, w) + bias + residual, or of a gradient the two that it is of.

    `pairs` is a function that gives the scale of each filter and its bias, in float32, in place of
    the bias.
    """

    x: Any
    w: Any
    bias: Any = None
    residual: Any = None
    pairs: Call | None = None


class Operation(NamedTuple):
    """An operator of two tensors, by its name for any number of axes, and the options of plans."""

    name: str
    options: dict[str, Any]
    is_strict: bool

    @classmethod
    def of(cls, window: Window, **own: Any) -> Operation:
        """The convolution, or the transposed one, with its `own` options besides."""
        name, options = "conv{}d", window.options | own
        if window.transposed:
            name = "conv_transpose{}d"
            options["output_padding"] = window.output_padding
        return cls(name, options, window.precision == "strict")


class Step:
    """An operator on tensors of one kind on a GPU, with results like `y`, or like (`y`, `db`)."""

    def __init__(self, plan: Plan, y: Any, db: Any = None) -> None:
        self.plan = plan
        self._run: Any = plan.engine.run
        self._new, self._new_db = _maker(y), None if db is None else _maker(db)

    def __call__(
        self, x: Any, w: Any, bias: Any = None, residual: Any = None, pairs: Call | None = None
    ) -> Any:
        """The result, on the stream that torch works on. No gradients are recorded."""
        y = self._new()
        added = None if bias is None else see_tensor(bias)
        more = None if residual is None else see_tensor(residual)
        scale = None if pairs is None else see_tensor(pairs())
        given = see_tensor(x), see_tensor(w), added, more, see_tensor(y), scale
        if self._new_db is None:
            self._run(*given)
            return y
        db = self._new_db()
        self._run(*given, see_tensor(db))
        return y, db


def _maker(y: Any) -> Call:
    sizes = tuple(y.shape), tuple(y.stride())
    return partial(torch.empty_strided, *sizes, dtype=y.dtype, device=y.device)


def convolution(switch: Any, keys: Any, x: Any, w: Any, bias: Any, *sizes: Any) -> Any:
    """``aten::convolution`` of tensors on a GPU. `keys` is the dispatcher's set of keys; see
    `Window` for `sizes`, and `override` for the switch.
    """
    window = Window.of(sizes, switch.precision)
    kinds = kind_of(x), kind_of(w), None if bias is None else kind_of(bias)
    key = "cuda", kinds, window, current().key, switch.choose, flags()
    theirs = partial(torchs_convolution, keys, x, w, bias, sizes)
    return computed(key, Operands(x, w, bias), partial(Operation.of, window), theirs)


def backward(
    switch: Any, keys: Any, dy: Any, x: Any, w: Any, bias_sizes: Any, *sizes: Any
) -> tuple[Any, Any, Any]:
    """``aten::convolution_backward`` of tensors on a GPU: the gradients of (x, w, bias), or None of
    each that the mask, the last of `sizes`, does not ask for.

    Those of w and the bias are one operation, which reads dy once, if the convolution is not
    transposed: there dy is what the gradient of w convolves.
    """
    window, mask = Window.of(sizes, switch.precision), [*sizes[-1]]

    def theirs(*asked: bool) -> Any:
        return torchs_backward(keys, dy, x, w, bias_sizes, [*sizes[:-1], asked])

    state = kind_of(dy), kind_of(x), kind_of(w), window, current().key, switch.choose, flags()
    found: list[Any] = [None, None, None]
    for number, (operands, operation) in enumerate(gradients(window, dy, x, w)):
        if mask[number]:
            both = number == 1 and mask[2] and not window.transposed
            asked = [number == 0, number == 1, both]

            def alone(asked: Sequence[bool] = asked) -> Any:
                y, *db = [y for y, one in zip(theirs(*asked), asked, strict=True) if one]
                return (y, *db) if db else y

            step, first = chosen(("cuda", number + both, *state), operands, operation, alone)
            y = first if step in (None, REFUSED) else _ran(step, operands)
            found[number : number + 1 + both] = y if isinstance(y, tuple) else [y] * (1 + both)
    asked = [each and own is None for each, own in zip(mask, found, strict=True)]
    rest = theirs(*asked) if any(asked) else found
    dx, dw, db = (a if b is None else b for a, b in zip(rest, found, strict=True))
    return dx, dw, db


def gradients(window: Window, dy: Any, x: Any, w: Any) -> tuple[tuple[Operands, Any], ...]:
    """What the gradients of x and w are of, and functions that make their operations."""
    convolved = (dy, x) if window.transposed else (x, dy)
    return (
        (Operands(dy, w), partial(_of_x, window, x)),
        (Operands(*convolved), partial(_of_w, window, w)),
    )


def _of_x(window: Window, x: Any) -> Operation:
    """The gradient of x, of dy and w: that of a transposed convolution is a convolution."""
    if window.transposed:
        return Operation.of(window._replace(transposed=False))
    own = Operation.of(window, input_shape=tuple(x.shape))
    return own._replace(name="conv{}d_input_grad")


def _of_w(window: Window, w: Any) -> Operation:
    """The gradient of w, of what it convolves and of the gradient of that convolution."""
    own = Operation.of(window._replace(transposed=False), weight_shape=tuple(w.shape))
    return own._replace(name="conv{}d_weight_grad")


def torchs_backward(keys: Any, dy: Any, x: Any, w: Any, bias_sizes: Any, sizes: Any) -> Any:
    """The gradients by torch's own kernels."""
    return TORCHS_BACKWARD.call_boxed(keys, dy, x, w, bias_sizes, *sizes)


def torchs_convolution(keys: Any, x: Any, w: Any, bias: Any, sizes: Any) -> Any:
    """The convolution by torch's own kernel, which reads torch's settings."""
    return TORCHS.call_boxed(keys, x, w, bias, *sizes)


def computed(key: Any, given: Operands, operation: Callable[[], Operation], theirs: Call) -> Any:
    """The result of operands, by ours or by `theirs`, whichever was chosen for the key, a tuple
    that ends with how to choose, and with what `flags` returned.
    """
    step, y = chosen(key, given, operation, theirs)
    if step not in (None, REFUSED):
        y = _ran(step, given)
    return theirs() if y is None else y


def _ran(step: Step, given: Operands) -> Any:
    """The result of a step; None where the driver refuses it, as it may when torch has all memory
    of the card, of which torch's kernel can have some.
    """
    try:
        return step(*given)
    except DriverError as error:
        _tell(str(error))
    return None


def chosen(
    key: Any, given: Operands, operation: Callable[[], Operation], theirs: Call
) -> tuple[Any, Any]:
    """(the step for a key, or REFUSED, or None where a call cannot tell; the result of `theirs` if
    it ran for that), as of `computed`.
    """
    step = CALLS.get(key) or older_call(key)
    if step is not None:
        return step, None
    with torch.cuda.device_of(given.x):  # whose stream the events are of
        y = theirs()  # whose errors are torch's
        if torch.cuda.is_current_stream_capturing():  # where nothing can be measured
            return None, y
        with LOCK:
            step = _chosen(key, given, operation(), y, theirs)
            if step is not None:
                keep_recent(key, step)
    return step, y


def kind_of(tensor: Any) -> tuple[Any, ...]:
    """What a step depends on of a tensor, which may lack memory."""
    address = tensor.data_ptr()
    place = address % 16 if address else None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, place


def flags() -> tuple[Any, ...]:
    """Settings of torch by which its kernel is chosen, and how long that takes."""
    c = torch._C
    return (
        c._get_cudnn_enabled(),
        c._get_cudnn_benchmark(),
        c._get_cudnn_deterministic(),
        c._get_deterministic_algorithms(),
        c._get_fp32_precision_getter("cuda", "conv"),
    )


def _chosen(key: Any, given: Operands, operation: Operation, y: Any, theirs: Call) -> Any:
    """What `_raced` returns; REFUSED where torch's kernel must run, and a warning says so once for
    each reason that is the machine's.
    """
    try:
        device_arch(given.x.device.index)
    except Exception as error:  # of a driver or a package that is missing, of an old card
        _tell(str(error))
        return REFUSED
    try:
        return _raced(key, given, operation, y, theirs)
    except (ShapeError, DTypeError, PlanError) as error:
        LOG.debug(REFUSAL, error)
    except torch.OutOfMemoryError:
        return None
    except Exception as error:  # of a compiler, the driver, the card: a network goes on without us
        _tell(str(error) or type(error).__name__)
        if "CUDA_ERROR_OUT_OF_MEMORY" in str(error):  # of which a later call may have more
            return None
    return REFUSED


def _raced(key: Any, given: Operands, operation: Operation, y: Any, theirs: Call) -> Any:
    """The step that computes such operands where it was measured to take less time than `theirs`,
    whose result or tuple of results is `y`, or else REFUSED; None where this call cannot tell.
    """
    *_, choose, state = key
    always = choose == "always" or operation.is_strict
    reason = _reason(given)
    if not always and any(state[2:4]):  # what a process measures must not change its bits
        reason = "deterministic algorithms are asked for"
    if reason:
        LOG.debug(REFUSAL, reason)
        return REFUSED
    results = y if isinstance(y, tuple) else (y,)
    if not all(each.isfinite().all() for each in results):  # no comparison would show a difference
        return None
    step = Step(plan_of(given, operation, f"cuda:{given.x.device.index}"), *results)
    ours = partial(step, *given)
    if _differ(ours(), y, given.w):
        LOG.warning(REFUSAL, "ours differs by more than rounding")
        return REFUSED
    if always:
        return step
    times = _times(key[:-2], state, given.x.device.index, ours, theirs)
    if ours_is_faster(times):
        return step
    LOG.debug(REFUSAL, "it took {1:.4f} ms, and ours {0:.4f}".format(*(1e3 * t for t in times)))
    return REFUSED


def _differ(own: Any, theirs: Any, dy: Any) -> bool:
    """Whether results, or pairs of dw and db, differ by more than rounding. A db of signs that
    cancel, as before a batch norm, may be all rounding: its size is that of the sum's parts.
    """
    if not isinstance(theirs, tuple):
        return differs(own, theirs)
    pixels = [0, *range(2, dy.dim())]
    parts = torch.linalg.vector_norm(dy, 1, pixels, dtype=torch.float64)
    slack = SUM_ROUNDING * torch.linalg.vector_norm(parts)
    return differs(own[0], theirs[0]) or differs(own[1], theirs[1], slack)


def _reason(given: Operands) -> str:
    """Why torch's kernel must compute this, or an empty string."""
    x, w = given[:2]
    tensors = [tensor for tensor in given[:4] if tensor is not None]
    rank = w.dim() - 2
    rules = {
        "tensors are not signals, images or volumes": rank in RANKS and x.dim() == rank + 2,
        f"tensors are not all of one of {', '.join(map(str, DTYPES))}": x.dtype in DTYPES
        and {t.dtype for t in tensors} == {x.dtype},
        "tensors are on several devices": {t.device for t in tensors} == {x.device},
        "a tensor is sparse": {t.layout for t in tensors} == {torch.strided},
        "a tensor is empty": all([t.numel() for t in tensors]),
        "a tensor has no memory": all([t.data_ptr() for t in tensors]),
    }
    return next((rule for rule, holds in rules.items() if not holds), "")


def plan_of(given: Operands, operation: Operation, device: Any) -> Plan:
    """The plan for tensors like these on a GPU, or on what stands for one."""
    operator = OPERATORS[operation.name.format(given.w.dim() - 2)]
    pairs = zip(operator.names, given, strict=False)
    shapes: dict[str, Any] = {f"{name}_shape": tuple(each.shape) for name, each in pairs}
    return make_plan(
        operator,
        dtype=str(given.x.dtype).removeprefix("torch."),
        precision="strict" if operation.is_strict else "standard",
        device=device,
        **shapes,
        **operation.options,
    )


def _times(kind: Any, state: Any, device: int, ours: Call, theirs: Call) -> Times:
    """The least times of both calls, measured in turn once for each kind, card and driver."""
    table, size = _table(device), size_name(state)
    measured = table.of_kind(kind)
    if size not in measured:
        pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(ROUNDS)]
        measured[size] = Times(*map(min, zip(*pairs, strict=True)))
        table.save(kind)
    return measured[size]


@functools.cache
def _table(device: int) -> Table:
    """The times of a card: those of another card or driver, and of other versions, are others."""
    name = torch.cuda.get_device_name(device)
    return Table((RULES, torch.__version__, torch.backends.cudnn.version(), name, version()))


def _seconds(call: Call) -> float:
    """The time of a call on the current stream, by events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return 1e-3 * float(start.elapsed_time(end))


@functools.lru_cache(64)
def _tell(reason: str) -> None:
    """Warn once of each reason that is the machine's, such as a driver that is missing."""
    LOG.warning(REFUSAL, reason)
