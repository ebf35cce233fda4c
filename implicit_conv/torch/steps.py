"""Steps: plans of one operator that are bound to the shapes, strides and dtype of tensors.

A function that makes steps raises ShapeError, DTypeError or PlanError where torch's own kernel must
compute the result or raise the error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from implicit_conv.arrays.arrays import Array, Binding
from implicit_conv.errors import PlanError
from implicit_conv.operators import conv, input_grad, transposed, weight_grad
from implicit_conv.operators.dispatch import Operator, make_plan
from implicit_conv.operators.plan import Plan
from implicit_conv.operators.programs import Made, compiled
from implicit_conv.process.cache import cached_property
from implicit_conv.torch.tensors import DTYPES, View, sums_array

# Bytes of a filter that are compared in one cycle (Intel Xeon, 2026-11: 3.6 from memory, 12 in
# cache): a filter is packed where its plan saves more cycles than comparing takes.
COMPARED_PER_CYCLE = 3.6
FOUND_BYTES = 100_000  # that could be compared while Python finds what to compare
CPU = torch.device("cpu")
LOG = logging.getLogger("implicit_conv")
REFUSAL = "torch's own kernel runs: %s"  # with the reason


# That of a tensor's storage. A call reads memory by it, because `tensor.data_ptr()` would copy the
# memory of a lazy clone; see `tensors.address`.
storage_address: Any = vars(torch._C)["_data_address"]  # which has no types
compiled()  # so that no call loads what it runs
OPERATORS = {
    value.name: value
    for module in (conv, transposed, input_grad, weight_grad)
    for value in vars(module).values()
    if isinstance(value, Operator)
}


class Window(NamedTuple):
    """The arguments of ``aten::convolution`` after its tensors, and the precision of `enable`."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    precision: str = "standard"

    @classmethod
    def of(cls, sizes: Sequence[Any], precision: str = "standard") -> Window:
        """The arguments as torch gives them, with lists, of which those after `groups` are left
        out. Each call makes one: without a second Python frame, that of the constructor.
        """
        stride, padding, dilation, transposed, added, groups = sizes[:6]
        lists = tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(added)
        return tuple.__new__(cls, (*lists, groups, precision))

    @property
    def options(self) -> dict[str, Any]:
        """The options that plans of all operators, and torch, take."""
        sizes = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return {**sizes, "groups": self.groups}

    def check(self, x: Any, w: Any, *others: Any) -> None:
        """Check that torch and plans read these tensors and arguments alike.

        Raises
        ------
        PlanError
            They may not.
        """
        rank, tensors = w.dim() - 2, (x, w, *others)
        sizes = self.stride, self.padding, self.dilation, self.output_padding
        kinds = ", ".join(dict.fromkeys([str(t.dtype) for t in tensors]))
        rules = {
            "tensors are not signals, images or volumes": 1 <= rank <= 3 and x.dim() == rank + 2,
            f"tensors have {kinds}, not one of {', '.join(map(str, DTYPES))}": x.dtype in DTYPES
            and {t.dtype for t in tensors} == {x.dtype},
            "a tensor is not on the CPU": {t.device.type for t in tensors} == {"cpu"},
            "a tensor is sparse": {t.layout for t in tensors} == {torch.strided},
            "a tensor is empty": all([t.numel() for t in tensors]),
            "sizes of the window are not those of a convolution": (
                {*map(len, sizes)} == {rank}
                and rank >= 1
                and min(*self.stride, *self.dilation, self.groups) > 0
                and min(*self.padding, *self.output_padding) >= 0
                and (self.transposed or not any(self.output_padding))
            ),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise PlanError(broken[0])

    def memory_format(self, x: Any, w: Any, bias: Any, bias_sizes: Any = None) -> Any:
        """The format of torch's own results, by the rule that torch.compile relies on too."""
        backend = torch._C._select_conv_backend(
            x,
            w,
            bias=bias,
            transposed=self.transposed,
            output_padding=self.output_padding,
            bias_sizes=bias_sizes,
            **self.options,
        )
        if w.dim() == 3:  # torch makes contiguous images of signals
            x, w = x.new_empty(x.shape).unsqueeze(2), w.unsqueeze(2)
        return torch._C._conv_determine_backend_memory_format(x, w, backend)


class Step:
    """One operator on tensors (a, b), of known shapes, strides and dtypes, with the result y.

    Attributes
    ----------
    plan : Plan
    y : View
    adds : bool
        Whether calls add a residual with the strides of y.
    seen : int
        The address of the settings of the last call that `Front` was told of.
    """

    adds = False

    def __init__(
        self, plan: Plan, a: View, b: View, y: View, dtype: Any, *, biased: bool = False
    ) -> None:
        """`plan` is one for tensors with these views and this dtype of torch.

        Raises
        ------
        PlanError
            No method takes tensors of these strides.
        """
        self.plan, self._a, self._b, self.y, self._dtype = plan, a, b, y, dtype
        self._biased, self._shape, self._strides, self.seen = biased, y.shape, y.strides, 0
        self._call = self._bound(b.planned_strides)

    def _bound(self, strides: tuple[int, ...] | None) -> Any:
        """The plan's function of arrays (a, b, bias, y), for a filter b with these strides, or with
        None for the operand of a packed one.
        """
        a, y = self._a.planned_strides, self.y.planned_strides
        engine: Any = self.plan.engine
        if 0 in self.y.shape or engine.out_dtype != engine.y_dtype:
            raise PlanError("the result takes more than one call")
        return engine.bind(Binding(a, strides, y, y if self.adds else None, biased=self._biased))

    @property
    def saved_cycles(self) -> float:
        """What a call with a packed filter saves, by the plan's estimate."""
        engine: Any = self.plan.engine
        saved: float = engine.best.cycles - engine.best_packed.packed_cycles
        return saved

    @cached_property
    def packed_call(self) -> Any:
        """The function for packed filters; None where a plain one takes no more time than comparing
        it with what was packed, or where no method reads a packed one.
        """
        size = math.prod(self._b.shape) * self._dtype.itemsize
        compared = (size + FOUND_BYTES) / COMPARED_PER_CYCLE
        try:
            return self._bound(None) if self.saved_cycles > compared else None
        except PlanError:
            return None

    @cached_property
    def order(self) -> object:
        """What a packed filter depends on besides the bytes of the filter b: how they are read, and
        the order in which the plan of this operator wants them.
        """
        engine: Any = self.plan.engine
        return type(engine), self._b.shape, self._b.strides, self._dtype, engine.packed_key

    def pack(self, b: Array) -> Any:
        """The filter b, an array with the axes of the tensor, in the order that the plan reads."""
        return self.plan.pack(self._b.planned(b))

    def __call__(self, a: Any, b: Any, bias: Any = None, packed: Any = None) -> Any:
        """The result, a new tensor; None if elements have no memory, or are not aligned in memory
        that is not torch's own. `packed` is the filter b as a packed one, if there is one. This
        frame holds it until the kernel, which reads it by its address, has returned.

        Raises
        ------
        RuntimeError
            The bias has no memory.
        """
        of_a, of_b = elements(a), elements(b)
        if not (of_a and of_b):
            LOG.debug(REFUSAL, "a tensor has no memory, or its elements are not aligned")
            return None
        if bias is not None and not storage_address(bias):  # torch's kernel would read it
            raise RuntimeError(
                f"the data of the bias is not allocated: its storage of {len(bias)} elements was "
                "freed; resize it and write the elements before this call"
            )
        call, sums = self._call, None if bias is None else sums_array(bias)
        if packed is not None:
            call, of_b = self.packed_call, packed.operand
        return self.result(call, of_a, of_b, sums)

    def result(self, call: Any, a: int, b: int, sums: Array | None, residual: int = 0) -> Any:
        """A new tensor with the result of a call on what is at these addresses."""
        y = torch.empty_strided(self._shape, self._strides, dtype=self._dtype, device=CPU)
        call.repeat(a, b, y.data_ptr(), sums, residual)
        return y

    def known_call(self, bias: Any) -> Made | None:
        """The program of a call with a plain filter and this bias, or None, the arguments of a new
        result, and the bytes of an element; None where Python is to see all calls. A bias of 16-bit
        elements is no sum yet.
        """
        if self.packed_call is not None or (words := self._call.program.words) is None:
            return None
        size = self._dtype.itemsize
        if bias is not None:
            steps = [stride * size for stride in bias.stride()]
            if not words.reads_bias(DTYPES[bias.dtype], bias.shape, steps, storage_address(bias)):
                return None
        return Made(words, (self._shape, self._strides, self._dtype), size)


def elements(tensor: Any) -> int:
    """The address of the first element of a tensor, to be read; 0 if it has no memory, or is not
    aligned.
    """
    address, size = storage_address(tensor), tensor.element_size()
    return 0 if address % size else address and address + tensor.storage_offset() * size


def forward(x: Any, w: Any, bias: Any, window: Window) -> Step:
    """The step that computes ``aten::convolution`` of x and w."""
    tensors = (x, w) if bias is None else (x, w, bias)
    window.check(*tensors)
    if bias is not None and bias.dim() != 1:
        raise PlanError(f"the bias has {bias.dim()} axes")
    return _product(x, w, window, window.memory_format(x, w, bias), biased=bias is not None)


def backward(
    dy: Any, x: Any, w: Any, bias_sizes: Any, window: Window, mask: tuple[bool, bool, bool]
) -> tuple[Step | None, Step | None]:
    """The steps that compute the gradients of x and w, of those that `mask` asks for."""
    window.check(x, w, dy)
    if dy.dim() != x.dim():
        raise PlanError(f"dy has {dy.dim()} axes, and x {x.dim()}")
    order = window.memory_format(x, w, None, bias_sizes)
    dx = dw = None
    if mask[0] and window.transposed:  # the gradient of a transposed convolution is a convolution
        dx = _product(dy, w, window._replace(transposed=False), order)
        if dx.y.shape != tuple(x.shape):
            raise PlanError(f"the gradient of x has the shape {dx.y.shape}, and x {tuple(x.shape)}")
    elif mask[0]:
        dx = _input_gradient(dy, x, w, window, order)
    if mask[1]:
        dw = _weight_gradient(*((dy, x) if window.transposed else (x, dy)), w, window, order)
    return dx, dw


def _product(x: Any, w: Any, window: Window, order: Any, *, biased: bool = False) -> Step:
    """The convolution, or the transposed one, of x and w, with a result in the format `order`."""
    return Step(*product(x, w, window, order), x.dtype, biased=biased)


def product(
    x: Any, w: Any, window: Window, order: Any, **options: Any
) -> tuple[Plan, View, View, View]:
    """The plan of a convolution, or of a transposed one, with other `options`, and how it sees x, w
    and a result in the format `order`.
    """
    kind, letters = "conv", "KC"
    if window.transposed:
        kind, letters = "conv_transpose", "CK"
        options["output_padding"] = window.output_padding
    of_x, of_w = View.of_images(x, order), View.of_filter(w, letters)
    plan = plan_of(f"{kind}{{}}d", (of_x, of_w), (of_x, of_w), window, x.dtype, **options)
    problem = plan.problem  # that of a transposed convolution has y as its input
    shape = problem.input_shape if window.transposed else problem.output_shape
    own_shape = shape if of_x.axes is None else (shape[0], shape[-1], *shape[1:-1])
    return plan, of_x, of_w, View.of_images(x, order, own_shape)


def _input_gradient(dy: Any, x: Any, w: Any, window: Window, order: Any) -> Step:
    of_dy, of_w = View.of_images(dy, order), View.of_filter(w, "KC")
    of_dx = View.of_images(x, order, x.shape)
    given, shape = (of_dy, of_w), of_dx.planned_shape
    plan = plan_of("conv{}d_input_grad", given, given, window, x.dtype, input_shape=shape)
    return Step(plan, of_dy, of_w, of_dx, x.dtype)


def _weight_gradient(x: Any, dy: Any, w: Any, window: Window, order: Any) -> Step:
    of_x, of_dy = View.of_images(x, order), View.of_images(dy, order)
    of_dw = View.of_filter(w, "KC", order)
    given, shape = (of_x, of_dy), of_dw.planned_shape
    layouts = of_x, of_dw
    plan = plan_of("conv{}d_weight_grad", given, layouts, window, x.dtype, weight_shape=shape)
    return Step(plan, of_x, of_dy, of_dw, x.dtype)


def plan_of(
    name: str,
    given: tuple[View, View],
    layouts: tuple[View, View],
    window: Window,
    dtype: Any,
    **own: Any,
) -> Plan:
    """The plan of the operator `name` of two arrays, with the layouts of images and filters."""
    operator = OPERATORS[name.format(len(given[0].shape) - 2)]
    arrays = zip(operator.names, given, strict=True)
    shapes = {f"{name}_shape": view.planned_shape for name, view in arrays}
    images, filters = (view.layout for view in layouts)
    options = {"layout": images, "weight_layout": filters} | window.options | own
    options |= {"device": "cpu", "precision": window.precision, **shapes}
    return make_plan(operator, dtype=DTYPES[dtype], searches=False, **options)
