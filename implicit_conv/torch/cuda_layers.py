"""Layers of a graph on a GPU: a convolution with what follows it in one launch, where that was
measured to be faster than torch's operators.

Of a batch norm a launch reads the scale and the bias of each filter, which each call of the graph
computes anew, all norms at once: torch writes to their statistics without telling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.nn import functional

from implicit_conv.problem.options import contiguous_strides
from implicit_conv.process.cache import CALLS
from implicit_conv.settings import current
from implicit_conv.torch import cuda
from implicit_conv.torch.first_calls import REFUSED
from implicit_conv.torch.layers import (
    SUMS,
    WRITING_SUMS,
    Layer,
    is_convolution,
    layers,
    value_of,
    writes,
)
from implicit_conv.torch.region import PLAIN, is_watched
from implicit_conv.torch.regions import Region
from implicit_conv.torch.tensors import CHANNELS_LAST
from implicit_conv.torch.weight_states import WeightStates

# What depends on the strides of a tensor besides views: names of functions and methods.
OF_STRIDES = {"as_strided", "stride", "is_contiguous", "data_ptr"}
# What draws a random number for each element of a tensor, in the order of memory.
OF_ORDER = {"rand_like", "randn_like", "randint_like", "bernoulli", "normal", "poisson"}
HALF = torch.float16, torch.bfloat16  # which tensor cores multiply with channels last alone
DEFAULTS = 0.0, 1.0, 1.0, 0.0, 0.0  # mean, variance, weight, bias, the bias of the convolution


class LayerCall(NamedTuple):
    """A layer of a graph, the function that computes it, and the node of its norms, if it has any,
    which is the function's last operand.
    """

    region: Region
    function: LayerFunction
    norms: list[fx.Node]


def layer_calls(
    graph: fx.Graph, precision: str, choose: str, by_torch: Callable[[Region], Callable[..., Any]]
) -> list[LayerCall]:
    """The convolutions of a graph on GPUs, with what follows them. Nodes of their norms are added.

    `by_torch` makes a function of a region by torch's operators. Where nothing in the graph depends
    on strides, or writes through views, filters of 16-bit elements have their channels last, and so
    have images then, by torch's own rules; results of the graph have the orders that were traced.
    """
    found = [each for each in layers(graph, precision) if each.is_on_gpu and not each.is_linear]
    inside = {node for each in found for node in each.nodes}
    free = not any(map(_depends, set(graph.nodes) - inside))
    last = bool(found) and free and _are_apart(graph, inside)
    normed = [each for each in found if each.norm and _are_read_only(each)]
    made = _norms(graph, normed)
    calls = []
    for number, layer in enumerate(found):
        norms, place = made.get(layer.result, (None, 0))
        if layer.norm and norms is None:
            continue
        region, name = Region([layer]), f"layer_{number}"
        function = LayerFunction(region, name, by_torch(region), choose, place, last=last)
        calls.append(LayerCall(region, function, [norms] if norms else []))
    if last:
        _restore_results(graph)
    return calls


def _depends(node: fx.Node) -> bool:
    """Whether strides of operands may change what a node computes or draws, or writes to."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name == "dropout":  # (x, p, training, inplace)
        return bool(node.kwargs.get("training", all(node.args[2:3]))) or writes(node)
    return writes(node) or name in OF_STRIDES | OF_ORDER or "view" in name


def _are_read_only(layer: Layer) -> bool:
    """Whether nothing in a graph may write to what is read of a norm before all that computes."""
    given = [each for each in (*layer.norm, layer.bias) if each is not None]
    users = (user for each in given for user in each.users)
    return all(
        is_convolution(user) or (user.target is functional.batch_norm and not writes(user))
        for user in users
    )


def _norms(graph: fx.Graph, normed: Sequence[Layer]) -> dict[fx.Node, tuple[fx.Node, int]]:
    """For each layer's result a new node, of all norms of its device and epsilon, and its number
    among these. They come before all that computes, when no node has written to anything.
    """
    alike: dict[Any, list[Layer]] = {}
    for layer in normed:
        alike.setdefault((layer.eps, value_of(layer.w).device), []).append(layer)
    first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
    found = dict[fx.Node, tuple[fx.Node, int]]()
    for number, ((eps, _), group) in enumerate(alike.items()):
        parameters = [[*each.norm, each.bias] for each in group]
        given = [node for each in parameters for node in each if node is not None]
        if any(node.op == "get_attr" for node in given):  # which may come later
            continue
        kinds = [[node is not None for node in each] for each in parameters]
        norms = Norms(kinds, eps, f"norms_{number}")
        with graph.inserting_before(first):
            node = graph.call_function(norms, tuple(given))
        found |= {layer.result: (node, place) for place, layer in enumerate(group)}
    return found


class Norms:
    """A function of the parameters of batch norms with one epsilon: what `Pairs` says of them."""

    def __init__(self, kinds: list[list[bool]], eps: float, name: str) -> None:
        """`kinds` say of each norm which of mean, variance, weight, bias and the bias of its
        convolution are given, in this order.
        """
        self.__name__, self.kinds, self.eps = name, kinds, eps

    def __call__(self, *tensors: Any) -> Pairs:
        """Nothing is computed yet."""
        return Pairs(self, tensors)


class Pairs:
    """The scale of each filter and its bias, (K, 2) of float32, of each of some batch norms.

    y = (conv + own - mean) * weight / sqrt(variance + eps) + bias
    """

    def __init__(self, norms: Norms, tensors: Sequence[Any]) -> None:
        self._norms, self._tensors = norms, tensors
        self._made: dict[int, Any] = {}  # by streams: none waits for the work of another

    def of(self, number: int) -> Any:
        """Those of a norm, by the work of the current stream."""
        stream = torch._C._cuda_getCurrentRawStream(self._tensors[0].device.index)
        if stream not in self._made:
            self._made[stream] = self._all()
        return self._made[stream][number]

    def _all(self) -> Any:
        """All at once, at the first question: a launch for each norm would take as long as it."""
        given = iter(self._tensors)
        rows: list[list[Any]] = [
            [next(given) if is_given else None for is_given in kinds] for kinds in self._norms.kinds
        ]
        sizes = [row[0].numel() for row in rows]  # of means
        mean, variance, weight, bias, own = (
            _joined([row[number] for row in rows], sizes, default)
            for number, default in enumerate(DEFAULTS)
        )
        scale = torch.rsqrt(variance + self._norms.eps) * weight
        shift = (own - mean) * scale + bias
        return torch.stack((scale, shift), 1).split(sizes)


def _joined(vectors: list[Any], sizes: list[int], default: float) -> Any:
    """Vectors of these sizes in float32, one after another; those that are None are `default`."""
    given = [vector for vector in vectors if vector is not None]
    if not given:
        return default
    filled = (
        given[0].new_full((size,), default) if vector is None else vector
        for vector, size in zip(vectors, sizes, strict=True)
    )
    return torch.cat([*filled]).float()


def operation_of(layer: Layer) -> Callable[[], cuda.Operation]:
    """A function that makes the operation of a layer, without what it reads."""
    own: dict[str, Any] = {"activation": layer.activation}
    if not layer.window.transposed:
        own |= {"padding": layer.padding, "padding_mode": layer.padding_mode}
    return partial(cuda.Operation.of, layer.window, **own)


class LayerFunction:
    """A function of the images and weights of a layer, and of the norms of its graph."""

    def __init__(
        self,
        region: Region,
        name: str,
        theirs: Callable[..., Any],
        choose: str,
        place: int,
        *,
        last: bool,
    ) -> None:
        """torch.fx calls it by its `name`. `theirs` is the same function by torch's operators,
        without the norms, among which `place` is the layer's number. With `last`, filters of 16-bit
        elements are kept with their channels last, and as autocast converts them.
        """
        (layer,) = region.layers
        images, weights = region.images, region.weights
        self.__name__, self._theirs, self._choose, self._place = name, theirs, choose, place
        self._read = [images.index(each) for each in layer.images]
        self._w = len(images) + weights.index(layer.w)
        self._bias = len(images) + weights.index(layer.bias) if layer.bias is not None else None
        self._count = len(images) + len(weights)
        self._kind = (repr(layer), *_sums(layer))
        self._key: Any = None
        self._operation = operation_of(layer)
        self._dtype = value_of(layer.result).dtype
        self._last, self._states = last and self._dtype in HALF, WeightStates([])

    def __call__(self, *operands: Any) -> Any:
        """The result, by torch where that is faster, or where tensors are no plain ones."""
        tensors, norms = [*operands[: self._count]], operands[self._count :]
        if is_watched() or not all(map(_is_plain, tensors)):
            return self._theirs(*tensors)
        tensors[self._w] = w = self._filter(tensors[self._w])
        x, *residuals = (tensors[number] for number in self._read)
        x, residual = x.to(self._dtype), residuals[0] if residuals else None
        bias = None if self._bias is None else tensors[self._bias].to(self._dtype)
        pairs = partial(norms[0].of, self._place) if norms else None
        given = cuda.Operands(x, w, None if norms else bias, residual, pairs)
        kinds = [None if each is None else cuda.kind_of(each) for each in given[:4]]
        self._key = "cuda", self._kind, *kinds, current().key, self._choose, cuda.flags()
        return cuda.computed(self._key, given, self._operation, partial(self._theirs, *tensors))

    @property
    def runs(self) -> bool:
        """Whether the tensors of the last call are computed here."""
        return CALLS.get(self._key) not in (None, REFUSED)

    def _filter(self, w: Any) -> Any:
        """A filter with the dtype of the layer and, if images have them so, with its channels last:
        where it has others, a copy that is kept for this stream as long as nothing writes to the
        filter, which a graph of CUDA would not see.
        """
        last = CHANNELS_LAST[w.dim() - 4] if w.dim() > 3 else torch.preserve_format
        turns = self._last and w.dim() > 3 and not w.is_contiguous(memory_format=last)
        if not turns and w.dtype is self._dtype:
            return w

        form = last if turns else torch.preserve_format

        def pack() -> Packed:
            made = w.to(self._dtype, memory_format=form)
            return Packed(made, made.nbytes)

        state = None if torch.cuda.is_current_stream_capturing() else self._states.of([w])
        if state is None or not state.is_settled:
            return w.to(self._dtype, memory_format=form)
        return state.filters(0, torch._C._cuda_getCurrentRawStream(w.device.index), pack).w


class Packed(NamedTuple):
    """A filter as a layer reads it, and its bytes."""

    w: Any
    bytes: int


def _sums(layer: Layer) -> list[tuple[bool, bool]]:
    """Of the sum of a layer, if it has one, what torch's strides of the result depend on: whether
    it is written to the convolution, and whether that comes first.
    """
    sums = (node for node in layer.nodes if layer.residual in node.args and node.target in SUMS)
    return [(node.target in WRITING_SUMS, node.args[1] is layer.residual) for node in sums]


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in PLAIN and not tensor.is_neg()


def _are_apart(graph: fx.Graph, inside: set[fx.Node]) -> bool:
    """Whether no result of a graph shares its memory with another value, but those `inside`, and
    each that is no input fills it, so that its order can be restored.
    """
    results = graph.output_node().all_input_nodes
    if any(node.op != "placeholder" and _order(value_of(node)) is None for node in results):
        return False
    memory = [_memory(node) for node in graph.nodes if node not in inside or node in results]
    return all(memory.count(_memory(node)) == 1 for node in results)


def _memory(node: fx.Node) -> Any:
    """What tells the memory of a tensor's value, or else the node itself."""
    value = value_of(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else node


def _restore_results(graph: fx.Graph) -> None:
    """Have the axes of results in the order in memory that torch traced."""
    output = graph.output_node()
    for node in output.all_input_nodes:
        value = value_of(node)
        order = None if node.op == "placeholder" else _order(value)
        if order:
            strides = tuple(value.stride())
            known = strides if {*map(type, strides)} == {int} else None
            with graph.inserting_before(output):
                now = graph.call_function(_in_order, (node, order, known))
            now.meta = node.meta
            output.replace_input_with(node, now)


def _order(value: Any) -> list[int] | None:
    """The order in memory of a tensor's axes, none of other values; None of one with gaps."""
    if not isinstance(value, torch.Tensor):
        return []
    order = sorted(range(value.dim()), key=lambda axis: -value.stride(axis))
    return order if value.permute(order).is_contiguous() else None


def _in_order(x: Any, order: list[int], strides: tuple[int, ...] | None) -> Any:
    """A tensor whose axes are in this order in memory, without gaps; with strides that are known,
    axes of one element have theirs.
    """
    if strides is None:
        steps = contiguous_strides(tuple(x.shape[axis] for axis in order), 1)
        strides = tuple(steps[order.index(axis)] for axis in range(x.dim()))
    if x.stride() == strides:
        return x
    there = x.permute(order).contiguous()
    return there.as_strided(x.shape, strides, there.storage_offset())
