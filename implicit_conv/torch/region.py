"""A region as a function of tensors: its layers as one program, for tensors of each kind.

Between layers, images lie in one block of memory, with their channels last. Packed filters and
epilogues are those of one state of the weights, which each call looks up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import forward_ad

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.arrays.tensors import address, tensor_array
from implicit_conv.cpu.machine.arch import available_threads
from implicit_conv.errors import PlanError
from implicit_conv.operators.operations import Convolution, Operation, Part
from implicit_conv.operators.pipeline import Pipeline
from implicit_conv.operators.plan import Plan
from implicit_conv.operators.programs import Program, repeat
from implicit_conv.process.cache import keep_call
from implicit_conv.settings import current, local
from implicit_conv.torch.layers import Layer
from implicit_conv.torch.measured import CHOICES, ours_is_faster, worth_measuring
from implicit_conv.torch.openmp import is_forked
from implicit_conv.torch.regions import Element, Region
from implicit_conv.torch.steps import CPU, LOG, REFUSAL, plan_of
from implicit_conv.torch.tensors import CHANNELS_LAST, DTYPES, View
from implicit_conv.torch.weight_states import WeightState, WeightStates

PLAIN = torch.Tensor, torch.nn.Parameter
UNKNOWN = object()


class BoundProgram(NamedTuple):
    """What runs a region for tensors of one kind, and one state of the weights. `held` keeps alive
    what the program reads by address.
    """

    program: Program
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    held: Any

    def run(self, dtype: Any, begins: Sequence[int]) -> Any:
        """The result for images at these addresses."""
        y = torch.empty_strided(self.shape, self.strides, dtype=dtype, device=CPU)
        x, w, residual = begins
        repeat(self.program, x, w, y.data_ptr(), residual=residual)
        return y


class RegionFunction:
    """A function of the images of a region, and of its weights."""

    def __init__(
        self, region: Region, name: str, theirs: Callable[..., Any], *, measures: bool
    ) -> None:
        """torch.fx calls it by its `name`. `theirs` is the same function by torch's operators; with
        `measures`, the faster one runs.
        """
        self.__name__, self._theirs, self._measures = name, theirs, measures
        images, weights = region.images, region.weights
        self._images, self._kind = len(images), repr(region)
        self._form = _signal if region.layers[0].is_linear else _itself
        numbers = {node: number for number, node in enumerate(images)}
        self._elements = list[tuple[Element, list[int], list[int | None]]]()
        for each in region.elements:
            read = [numbers[node] for node in each.images]
            own = [None if node is None else weights.index(node) for node in each.weights]
            self._elements.append((each, read, own))
            numbers[each.result] = len(numbers)
        forms = [(*(of := node.meta["example_value"]).shape, *of.stride()) for node in weights]
        self._varying = [n for n, form in enumerate(forms) if {*map(type, form)} != {int}]
        of_norms = {node for layer in region.layers for node in layer.norm[:2] if node is not None}
        self._states = WeightStates([weights.index(node) for node in of_norms])
        self._forms: dict[object, Any] = {}  # results of torch by kinds of tensors, without memory

    @property
    def runs(self) -> bool:
        """Whether there is a program for tensors that came."""
        return any(bound for state in self._states for bound in state.programs.values())

    def __call__(self, *operands: Any) -> Any:
        """The result, by torch where no program takes the tensors."""
        images, weights = operands[: self._images], operands[self._images :]
        y = None if is_watched() else self._run(images, weights)
        return self._by_torch(*operands) if y is None else y

    def _by_torch(self, *operands: Any) -> Any:
        return self._theirs(*operands)

    def _run(self, images: Sequence[Any], weights: Sequence[Any]) -> Any:
        """The result; None where torch computes it."""
        key: Any = current().key, torch.get_num_threads()
        begins = [0, 0, 0]
        for number, each in enumerate(images):
            if type(each) not in PLAIN or each.is_neg() or each.layout is not torch.strided:
                return None
            begins[number] = begin = address(each)
            if not begin or begin % each.element_size():
                return None
            key += each.shape, each.stride(), each.dtype
        for number in self._varying:  # graphs and addresses tell all others
            key += weights[number].shape, weights[number].stride()
        state = self._states.of(weights)
        if state is None:
            return None
        bound = state.programs.get(key, UNKNOWN)
        if bound is UNKNOWN:
            if not state.is_settled:
                LOG.debug(REFUSAL, "the weights of a region change with every call")
                return None
            bound = self._bind(key, state, images, weights, begins)
        return None if bound is None else bound.run(images[0].dtype, begins)

    def _bind(self, key: object, state: Any, images: Any, weights: Any, begins: Any) -> Any:
        """What runs the region for tensors like these, from now on; None where torch does."""
        threads = current().num_threads or min(torch.get_num_threads(), available_threads())
        found = None
        try:
            y = self._forms.get(key)
            if y is None:
                y = self._result(images, weights)
                keep_call(self._forms, key, y)
            with local(num_threads=threads):
                bound, plans = self._program(images, weights, y, state)
        except (ValueError, TypeError, RuntimeError) as error:  # for what no plan takes
            LOG.debug(REFUSAL, error)
        else:
            fixed = not self._measures or torch.are_deterministic_algorithms_enabled()
            if fixed or is_forked() or not any(map(worth_measuring, plans)):
                found = bound
            elif self._is_faster(bound, images, weights, begins, threads):
                found = bound
        self._states.keep(state, key, found)
        return found

    def _result(self, images: Sequence[Any], weights: Sequence[Any]) -> Any:
        """A tensor without memory, with the shape, strides and dtype of torch's result."""
        if self._form is _signal and all(each.is_contiguous() for each in images):
            # Sizes of texts and sounds come and go: torch need not compute them first.
            last: Any = self._elements[-1][-1]
            shape = *images[0].shape[:-1], weights[last[0]].shape[0]
            return torch.empty(shape, dtype=images[0].dtype, device="meta")
        y = self._theirs(*images, *weights)
        return torch.empty_strided(y.shape, y.stride(), dtype=y.dtype, device="meta")

    def _is_faster(
        self, bound: BoundProgram, images: Any, weights: Any, begins: Any, threads: int
    ) -> bool:
        """Whether our program is faster than torch's operators, by times of both."""
        dtype, sizes = images[0].dtype, [(t.shape, t.stride()) for t in images]
        times = CHOICES.times(
            ("region", self._kind, dtype, threads),
            sizes,
            lambda: bound.run(dtype, begins),
            lambda: self._theirs(*images, *weights),
        )
        return times is None or ours_is_faster(times)

    def _program(
        self, images: Sequence[Any], weights: Sequence[Any], y: Any, state: WeightState
    ) -> tuple[BoundProgram, list[Plan]]:
        """The program for tensors like these, with a result like y, and the plans of its layers.

        Raises
        ------
        PlanError
            There is none.
        """
        pipeline, plans = Pipeline(), list[Plan]()
        if not all(map(address, weights)):
            raise PlanError("a weight has no memory")
        if any(address(w) % w.element_size() for w in weights):
            raise PlanError("the elements of a weight are not aligned")
        if any(each.is_neg() for each in weights):
            raise PlanError("a weight is negative only by its flag")
        shape, strides = self._form(y)
        rank = len(shape)
        # Also where images come and go in another order: programs with channels first took 1.05 to
        # 1.22 times as long for ResNet-50, MobileNetV2, RegNetY-4.0GF and EfficientNet-B0 (Intel
        # Xeon, one thread, 2026-11), and by estimates they could not be told apart.
        last = (
            self._form is _signal
            or len(self._elements) > 1
            or (rank > 3 and y.is_contiguous(memory_format=CHANNELS_LAST[rank - 4]))
        )
        views = [View(*self._form(t), t.element_size(), "NC", last) for t in images]
        dtype = numpy_dtype(DTYPES[y.dtype])
        for view in views:
            pipeline.read(view.planned_shape, dtype, view.planned_strides)
        held = list[Any]()
        for number, (element, read, own) in enumerate(self._elements, 1):
            inputs = [views[each] for each in read]
            if isinstance(element, Layer):
                convolution = self._convolution(element, inputs[0], own, weights, state, last)
                own_shape = _shape(convolution.plan, element, last)
                if any(each.shape != own_shape for each in inputs[1:]):
                    raise PlanError("the residual has another shape than the sum")
                plans.append(convolution.plan)
                held.append(convolution.w)
                operation: Operation = convolution
            else:
                own_shape, operation = element.operation([each.shape for each in inputs])
            is_last = number == len(self._elements)
            own_strides = strides if is_last else _strides(own_shape, last)
            views.append(view := View(own_shape, own_strides, y.element_size(), "NC", last))
            pipeline.add(Part(operation, read, view.planned_shape, view.planned_strides, dtype))
        dtypes = {DTYPES.get(each.dtype) for each in images} | {p.problem.dtype for p in plans}
        if views[-1].shape != shape or dtypes != {DTYPES[y.dtype]}:
            raise PlanError("torch promotes the result")
        return BoundProgram(pipeline.program(), tuple(y.shape), y.stride(), held), plans

    def _convolution(
        self, layer: Layer, x: View, own: Any, weights: Any, state: WeightState, last: bool
    ) -> Convolution:
        """The convolution of a layer on images such as x, with these of the weights."""
        w: Any
        w, bias, *norm = (None if each is None else weights[each] for each in own)
        w = w.unsqueeze(-1) if layer.is_linear else w
        layer.window.check(w.new_empty(1).expand(x.shape), w)
        plan, of_w = _plan(x, w, layer, last)
        filters = _filters(plan, of_w, w, own[0], state)
        return Convolution(plan, filters, *_epilogue(bias, norm, layer.eps))


def _itself(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and strides of an image."""
    return tuple(tensor.shape), tensor.stride()


def _signal(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and strides of a signal whose pixels are all axes of a tensor but the last one.

    Raises
    ------
    PlanError
        Their distances in memory differ.
    """
    *extents, channels = tensor.shape
    *steps, step = tensor.stride()
    size, pixel = 1, channels
    for extent, stride in zip(reversed(extents), reversed(steps), strict=True):
        if extent == 1:
            continue
        if size > 1 and stride != size * pixel:
            raise PlanError("the pixels of a linear layer have several distances in memory")
        pixel = pixel if size > 1 else stride
        size *= extent
    return (1, channels, size), (size * pixel, step, pixel)


def is_watched() -> bool:
    """Whether calls do more than compute numbers, or somebody looks at what they call."""
    c = torch._C
    return bool(
        c._get_tracing_state()
        or c._len_torch_dispatch_stack()
        or c._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def _plan(x: View, w: Any, layer: Layer, last: bool) -> tuple[Plan, View]:
    """The plan of a layer, and how it sees the filter."""
    window, own = layer.window, dict[str, Any](activation=layer.activation)
    kind, letters = "conv", "KC"
    if window.transposed:
        kind, letters, own["output_padding"] = "conv_transpose", "CK", window.output_padding
    else:
        own |= {"padding": layer.padding, "padding_mode": layer.padding_mode}
    of_w = View.of_filter(w, letters)
    return plan_of(f"{kind}{{}}d", (x, of_w), (x, of_w), window, w.dtype, **own), of_w


def _shape(plan: Plan, layer: Layer, last: bool) -> tuple[int, ...]:
    """The shape of a layer's result, with the axes of tensors."""
    problem = plan.problem  # that of a transposed convolution has y as its input
    shape = problem.input_shape if layer.window.transposed else problem.output_shape
    return (shape[0], shape[-1], *shape[1:-1]) if last else tuple(shape)


def _strides(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """Strides of an image in the room of a program, in elements."""
    axes = (0, *range(2, len(shape)), 1) if last else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _filters(plan: Plan, view: View, w: Any, number: Any, state: WeightState) -> Any:
    """The filter as the plan reads it: packed, which other plans may read too, or as it is."""
    engine: Any = plan.engine
    own: Any = tensor_array(w)
    array = view.planned(own)
    if engine.best.cycles <= engine.best_packed.packed_cycles:
        own.base.owner = w.untyped_storage()  # the tensor itself would seem to be in use
        return array
    order = view.shape, view.strides, view.layout, engine.packed_key
    return state.filters(number, order, lambda: plan.pack(array))


def _epilogue(bias: Any, norm: Any, eps: float | None) -> tuple[Array | None, Array | None]:
    """(bias, scale) of a convolution with a bias and a batch norm, in float64."""
    added = None if bias is None else tensor_array(bias).astype(np.float64)
    if eps is None:
        return added, None
    neutral: tuple[Any, ...] = 0, 1, 1, 0
    mean, variance, weight, shift = (
        default if each is None else tensor_array(each).astype(np.float64)
        for each, default in zip(norm, neutral, strict=True)
    )
    with np.errstate(all="ignore"):  # variances may be anything
        scale = weight / np.sqrt(variance + eps)
        return ((0 if added is None else added) - mean) * scale + shift, scale
