"""One call for a convolution, its batch norm, a residual and an activation."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_weights

from implicit_conv.arrays.arrays import Array
from implicit_conv.arrays.tensors import tensor_array
from implicit_conv.cpu.machine.arch import available_threads
from implicit_conv.errors import PlanError
from implicit_conv.operators.plan import Plan
from implicit_conv.process.cache import keep_call
from implicit_conv.settings import current, local
from implicit_conv.torch.chains import Chain
from implicit_conv.torch.steps import LOG, REFUSAL, Step, Window, elements, product, storage_address
from implicit_conv.torch.tensors import View

PLAIN = torch.Tensor, torch.nn.Parameter
STRIDED = torch.strided
REFUSED = "refused"  # what is kept where torch computes the chain
recording = torch.is_grad_enabled


class Folded(NamedTuple):
    """A filter as torch's convolution takes it, and the bias as calls take it."""

    filters: Any
    sums: Array | None


def folded(conv: Any, norm: Any) -> Folded:
    """The filter and bias of a convolution and its batch norm, None of none. They are computed in
    float64 and rounded once.

    Raises
    ------
    PlanError
        Its dtype cannot hold the filter as exactly as other numbers.
    """
    w, bias = conv.weight.detach(), conv.bias
    bias = None if bias is None else bias.detach()
    if norm is not None:
        w, bias = _with_norm(conv, norm, w.double(), None if bias is None else bias.double())
    if bias is None:
        return Folded(w, None)
    narrow = conv.weight.element_size() == 2  # 16-bit types are summed in float32
    bias = bias.to(torch.float32 if narrow else conv.weight.dtype)
    return Folded(w, tensor_array(bias.contiguous()))


def _with_norm(conv: Any, norm: Any, w: Any, bias: Any) -> tuple[Any, Any]:
    """The folded filter in its own dtype, and the bias in float64."""
    transposed, shape = conv.transposed, w.shape
    if transposed:  # (C, K / groups, ...) to (K, C / groups, ...)
        w = w.unflatten(0, (conv.groups, -1)).transpose(1, 2).flatten(0, 1)
    values = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    doubles = [v.detach().double() if isinstance(v, torch.Tensor) else v for v in values]
    exact, bias = fuse_conv_bn_weights(w, bias, *doubles)
    rounded = exact.detach().to(conv.weight.dtype)
    taps = tuple(range(1, w.dim()))
    error = (rounded.double() - exact).abs().amax(taps)
    if not bool((error <= torch.finfo(rounded.dtype).eps * exact.abs().amax(taps)).all()):
        raise PlanError(f"{rounded.dtype} cannot hold the filter with its batch norm")
    if transposed:
        rounded = rounded.unflatten(0, (conv.groups, -1)).transpose(1, 2).flatten(0, 1)
        assert rounded.shape == shape
    return rounded, bias.detach()


class FusedStep(Step):
    """A step with an activation and perhaps a residual, which packs its filter if that saves time.

    Attributes
    ----------
    reads : object
        The order of packed filters that it reads; None if it reads plain ones.
    """

    def __init__(
        self, plan: Plan, x: View, w: View, y: View, dtype: Any, *, biased: bool, adds: bool
    ) -> None:
        self.adds, self.reads = adds, None
        super().__init__(plan, x, w, y, dtype, biased=biased)
        if self.saved_cycles > 0:
            try:
                self._call, self.reads = self._bound(None), self.order
            except PlanError:  # no method reads a packed filter, with these strides
                return

    def run(self, x: Any, operand: Any, sums: Array | None, residual: Any) -> Any:
        """The result; None as in `Step`. The caller holds what `operand` may be the address of."""
        of_x, added = elements(x), 0 if residual is None else elements(residual)
        if not of_x or (residual is not None and not added):
            return None
        filters = operand if self.reads else storage_address(operand)
        return self.result(self._call, of_x, filters, sums, added)


class Operand(NamedTuple):
    """A filter as a step reads it, the bias, and what keeps them alive."""

    value: Any
    sums: Array | None
    holder: Any


class Filters:
    """The folded filter of a chain, in the orders that its steps read: one state of the weights."""

    def __init__(self, chain: Chain) -> None:
        w = chain.conv.weight
        self.form = w.shape, w.stride(), w.dtype
        self._chain, self._operands = chain, dict[object, Operand]()
        self._is_refused = False

    def folded(self) -> Folded | None:
        """The filter with its batch norm; None where torch computes the chain."""
        if self._is_refused:
            return None
        try:
            return folded(self._chain.conv, self._chain.norm)
        except (ValueError, TypeError, RuntimeError) as error:  # weights may have become anything
            LOG.debug(REFUSAL, error)
            self._is_refused = True
            return None

    def operand(self, step: FusedStep) -> Operand | None:
        """The filter that a step reads; None where torch computes the chain."""
        found = self._operands.get(step.reads)
        if found is not None:
            return found
        of = self.folded()
        return None if of is None else self.keep(step, of)

    def keep(self, step: FusedStep, of: Folded) -> Operand:
        """The folded filter as the step reads it."""
        w, sums = of
        if step.reads is None:
            w = w.clone() if w.storage_offset() else w  # begins its memory
            found = Operand(w, sums, w)
        else:
            packed = step.pack(tensor_array(w))
            found = Operand(packed.operand, sums, packed)
        self._operands[step.reads] = found
        return found


class FusedConv:
    """A function of (x, residual): what a chain computes.

    Attributes
    ----------
    chain : Chain
    """

    def __init__(self, chain: Chain, name: str, precision: str) -> None:
        """torch.fx calls the function by its `name`."""
        self.chain, self.__name__ = chain, name
        self._window, self._pad = _window(chain.conv, precision)
        self._steps: dict[object, Any] = {}
        self._filters: Filters | None = None

    def forget(self) -> None:
        """Fold anew: a weight has changed."""
        self._filters = None

    def __call__(self, x: Any, residual: Any = None) -> Any:
        """The result, by torch where no step takes the tensors."""
        filters = self._filters
        if filters is None:
            filters = self._filters = Filters(self.chain)
        state = current().key, torch.get_num_threads(), torch._C._get_mkldnn_enabled()
        if not _is_plain(x):
            return self._by_torch(x, residual)
        key: Any = x.shape, x.stride(), x.dtype, filters.form, state
        if self.chain.adds:
            if not _is_plain(residual):
                return self._by_torch(x, residual)
            key += residual.shape, residual.stride(), residual.dtype
        step = self._steps.get(key)
        if step is None:
            of = filters.folded()
            if of is None:  # nothing is kept: a step may read the next weights
                return self._by_torch(x, residual)
            step = self._prepared(x, residual, filters, of)
            keep_call(self._steps, key, step)
        operand = None if step is REFUSED else filters.operand(step)
        if operand is None:
            return self._by_torch(x, residual)
        value, sums, holder = operand
        y = step.run(x if self._pad is None else self._pad(x), value, sums, residual)
        del holder, operand  # until here it held the memory of `value`
        return self._by_torch(x, residual) if y is None else y

    def _by_torch(self, x: Any, residual: Any) -> Any:
        conv = self.chain.conv
        return self.chain.torch_rest(type(conv).forward(conv, x), residual)

    def _prepared(self, x: Any, residual: Any, filters: Filters, of: Folded) -> Any:
        """The step for such tensors; REFUSED if torch computes the chain."""
        threads = current().num_threads or min(torch.get_num_threads(), available_threads())
        try:
            with local(num_threads=threads):
                step = self._step(x if self._pad is None else self._pad(x), residual, of)
                filters.keep(step, of)
        except (ValueError, TypeError, RuntimeError) as error:  # for what no plan takes
            LOG.debug(REFUSAL, error)
            return REFUSED
        return step

    def _step(self, x: Any, residual: Any, of: Folded) -> FusedStep:
        """The step for such tensors, whose result has the strides of torch's.

        Raises
        ------
        PlanError
            There is none.
        """
        chain, window, w = self.chain, self._window, self.chain.conv.weight
        bias, options = chain.conv.bias, {"activation": chain.activation}
        window.check(x, w, *([] if bias is None else [bias]))
        order = window.memory_format(x, w, bias)
        plan, of_x, of_w, of_y = product(x, of.filters, window, order, **options)
        if chain.rest:
            zeros = torch.empty_strided(of_y.shape, of_y.strides, dtype=x.dtype).zero_()
            y = chain.torch_rest(zeros, residual)
            if y.shape != of_y.shape or y.dtype != x.dtype:
                raise PlanError("torch promotes the sum with the residual")
            of_y = View(y.shape, y.stride(), y.element_size(), "NC", of_y.axes is not None)
        if chain.adds and (residual.shape, residual.stride()) != (of_y.shape, of_y.strides):
            raise PlanError("the residual has another shape or other strides than the sum")
        if chain.adds and residual.dtype is not x.dtype:
            raise PlanError("the residual has another dtype than the sum")
        sums = {"biased": of.sums is not None, "adds": chain.adds}
        return FusedStep(plan, of_x, of_w, of_y, x.dtype, **sums)


def _is_plain(x: Any) -> bool:
    """Whether a step may read the memory of a tensor."""
    return (
        type(x) in PLAIN
        and x.layout is STRIDED
        and x.is_cpu
        and not x.is_neg()
        and not (x.requires_grad and recording())
    )


def _window(conv: Any, precision: str) -> tuple[Window, Any]:
    """The window of a convolution, and what pads its input first where the window cannot."""
    amounts, pad = conv._reversed_padding_repeated_twice, None
    padding = amounts[::-2]
    added = (0,) * len(padding)
    if conv.transposed:
        padding, added = conv.padding, conv.output_padding
    elif conv.padding_mode != "zeros" or amounts[::2] != amounts[1::2]:
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        pad, padding = partial(functional.pad, pad=list(amounts), mode=mode), added
    sizes = conv.stride, padding, conv.dilation, conv.transposed, added, conv.groups
    return Window.of(sizes, precision), pad
