"""The backend ``implicit_conv`` of ``torch.compile``, which torch finds by its entry point.

Dynamo hands over graphs of torch's functions, in which weights are inputs. Regions of convolutions,
with what one launch computes besides, become one program each; all else stays torch's.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._prims_common import suggest_memory_format
from torch.fx import Graph, GraphModule, Node

from implicit_conv.errors import PlanError
from implicit_conv.problem.options import PRECISIONS
from implicit_conv.problem.parse import choice
from implicit_conv.torch.cuda_graphs import Replayed, stays
from implicit_conv.torch.cuda_layers import LayerFunction, layer_calls
from implicit_conv.torch.formats import put_channels_last
from implicit_conv.torch.layers import convolution, is_convolution, writes
from implicit_conv.torch.op import ConvolutionPass
from implicit_conv.torch.op import convolution as ours
from implicit_conv.torch.options import CHOOSE
from implicit_conv.torch.override import SWITCH
from implicit_conv.torch.region import RegionFunction
from implicit_conv.torch.regions import Region, regions
from implicit_conv.torch.steps import LOG
from implicit_conv.torch.views import by_torch_without_view, copy_without_view, fail_without_view

aten = torch.ops.aten
WORDS = {"precision": PRECISIONS, "choose": CHOOSE}
DEFAULTS = {"precision": "standard", "choose": "measured", "cudagraph": False}
NO_GRAPH = "no graph of CUDA is captured of a compiled graph: %s"
OF_INPUT = re.compile(r"^L\['\w+'\]\.?")  # before the names of modules in graphs


class Row(NamedTuple):
    """What becomes of a convolution of a graph.

    Attributes
    ----------
    name : str
        That of its module, or of its node.
    words : str
        What one launch computes with it.
    program : weak reference to a RegionFunction, or str
        Who computes it, if it is in no program.
    """

    name: str
    words: str
    program: weakref.ref[RegionFunction | LayerFunction] | str


class CompiledGraph(NamedTuple):
    """A graph as a function of its inputs, and a row for each convolution, in their order."""

    run: Callable[..., Any]
    rows: list[Row]


def backend(
    graph: Any, inputs: Sequence[Any], *, mode: object = None, options: Any = None
) -> Callable[..., Any]:
    """A compiled graph, as ``torch.compile(model, backend="implicit_conv")`` asks for it.

    Without gradients, a convolution computes what follows it, a batch norm, a sum with another
    image and an activation, in the same launch, and convolutions that follow each other are one
    program, with means, pooling and products with a gate between them. Where gradients are
    recorded, convolutions and their gradients are computed here one by one.

    Parameters
    ----------
    graph : torch.fx.GraphModule
    inputs : sequence of tensors and numbers
    mode : None
    options : dict, optional
        "precision" and "choose", as in `enable`. With "cudagraph": True, on one GPU and without
        gradients, calls of shapes that came before replay a graph of CUDA. Parameters are read
        where they are, other tensors and results are copied.

    Raises
    ------
    ValueError
        An option is unknown, or has an unknown value.
    """
    given = _options(mode, options)
    SWITCH.lend(graph)  # idle threads of torch spin on the CPUs that others would need
    return compile_graph(graph, inputs, **given).run


def compile_graph(
    graph: Any, inputs: Sequence[Any], *, precision: str, choose: str, cudagraph: bool = False
) -> CompiledGraph:
    """See `backend`; the options are checked."""
    is_strict = precision == "strict"  # which our operator knows from `enable` alone
    by_torch: Callable[..., Any] = graph.forward
    rows = {node: _row(node, "torch") for node in graph.graph.nodes if is_convolution(node)}
    with_gradients = torch.is_grad_enabled() and any(map(_requires_grad, inputs))
    if cudagraph and (with_gradients or _records(graph.graph, inputs)):
        LOG.warning(NO_GRAPH, "it records gradients, which torch.no_grad() would leave out")
    if with_gradients:
        if is_strict:
            return CompiledGraph(by_torch, [*rows.values()])
        found = [row._replace(program="alone, with gradients") for row in rows.values()]
        return CompiledGraph(_with_gradients(graph, inputs), found)
    if _records(graph.graph, inputs):
        return CompiledGraph(by_torch, [*rows.values()])
    writing = [node for node in graph.graph.nodes if writes(node)]
    measures = choose == "measured" and not is_strict
    calls = [
        (region, RegionFunction(region, f"region_{number}", _by_torch(region), measures=measures))
        for number, region in enumerate(regions(graph.graph, precision))
    ]
    on_gpu = layer_calls(graph.graph, precision, choose, _by_torch)
    for region, function in [*calls, *(each[:2] for each in on_gpu)]:
        for layer in region.layers:
            for node in filter(is_convolution, layer.nodes):  # a linear layer has none
                rows[node] = _row(node, weakref.ref(function), layer.words)
    LOG.debug("a compiled graph has %d convolutions, and %d programs", len(rows), len(calls))
    now: dict[Node, Node] = {}
    for region, function in calls:
        _replace(graph.graph, region, function, now)
    for region, function, norms in on_gpu:
        _replace(graph.graph, region, function, now, norms)
    for node in () if is_strict else graph.graph.nodes:
        if _computes_here(node):
            rows[node] = rows[node]._replace(program="alone")
    graph.recompile()
    run = graph.forward
    if cudagraph:
        run = _replayed(graph, [node for node in writing if not node._erased])
    return CompiledGraph(run, [*rows.values()])


def _replayed(graph: Any, writing: list[Node]) -> Callable[..., Any]:
    """A graph as a graph of CUDA; itself where it may write to its inputs, which would be copies,
    or has none on a GPU, or computes elsewhere, such as random numbers, which none would repeat.
    """
    inputs = graph.graph.find_nodes(op="placeholder")
    places, others = _places(inputs), _places(graph.graph.nodes) - {"cuda"}
    if places == {"cuda"} and not (writing or others):
        return Replayed(graph.forward, [*map(stays, inputs)])
    reason = f"its inputs are on {sorted(places)}"
    if writing:
        reason = f"{writing[0]} may write"
    elif places == {"cuda"}:
        reason = f"it computes on {sorted(others)}, too"
    LOG.warning(NO_GRAPH, reason)
    run: Callable[..., Any] = graph.forward
    return run


def _places(nodes: Iterable[Node]) -> set[str]:
    """The kinds of devices of nodes' tensors."""
    values = [node.meta.get("example_value") for node in nodes]
    return {each.device.type for each in values if isinstance(each, torch.Tensor)}


def _row(node: Node, program: Any, words: str = "nothing") -> Row:
    """The row of a convolution: its module has the name by which Dynamo found it."""
    stack = [*(node.meta.get("nn_module_stack") or {}).values()]
    path = OF_INPUT.sub("", stack[-1][0]) if stack else node.name
    return Row(path or "(model)", words, program)


def _options(mode: object, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that are given, and the defaults of others."""
    if mode is not None:
        raise PlanError(f"backend 'implicit_conv' has no modes, and mode is {mode!r}: leave it out")
    given = DEFAULTS | dict(options or {})
    for name, value in given.items():
        if name not in DEFAULTS:
            known = ", ".join(DEFAULTS)
            raise PlanError(f"backend 'implicit_conv' has no option {name!r}; it has {known}")
        if name in WORDS:
            choice(name, value, WORDS[name], error=PlanError)
        elif not isinstance(value, bool):
            raise PlanError(f"option {name!r} is True or False, not {value!r}")
    return given


def _with_gradients(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph as AOTAutograd splits it into a forward and a backward one."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch.partitioners import default_partition

    def forward(graph: Any, inputs: Any) -> Any:
        fail_without_view(graph.graph)
        return compiled(graph, inputs)

    def backward(graph: Any, inputs: Any) -> Any:
        copy_without_view(graph.graph)
        return compiled(graph, inputs)

    def compiled(graph: Any, inputs: Any) -> Any:
        ConvolutionPass()(graph.graph)
        _copy_for_norms(graph.graph)
        return boxed_nop(graph, inputs)  # which frees each image after its last use

    def split(joint: Any, *given: Any, **options: Any) -> Any:
        put_channels_last(joint.graph)
        return default_partition(joint, *given, **options)

    compilers = {"fw_compiler": forward, "bw_compiler": backward}
    made: Callable[..., Any] = aot_autograd(**compilers, partition_fn=split)(graph, inputs)
    return by_torch_without_view(made, graph.forward)


def _copy_for_norms(graph: Graph) -> None:
    """Give group norms contiguous images: torch traces no copy where strides of a batch of one look
    contiguous, and those of images that come may be others (torch 2.13).
    """
    norms = {aten.native_group_norm.default: 1, aten.native_group_norm_backward.default: 2}
    for node in graph.nodes:
        images = node.args[: norms.get(node.target, 0)]
        for number, each in enumerate(images):
            with graph.inserting_before(node):
                image = graph.call_function(_contiguous, (each, images[-1]))
            image.meta = each.meta
            node.update_arg(number, image)


def _contiguous(x: Any, image: Any) -> Any:
    """An image or its gradient, contiguous in the format that torch chooses for the image."""
    return x.contiguous(memory_format=suggest_memory_format(image))


def _requires_grad(value: Any) -> bool:
    return bool(getattr(value, "requires_grad", False))


def _records(graph: Graph, inputs: Sequence[Any]) -> bool:
    """Whether a graph that begins without gradients records some further on."""
    of_inputs = any(map(_requires_grad, inputs))
    return any(
        node.target == "requires_grad_"
        or (of_inputs and node.target is torch._C._set_grad_enabled and node.args == (True,))
        for node in graph.nodes
    )


def _computes_here(node: Node) -> bool:
    """Have a convolution that is in no region, such as one whose weights are computed, run here."""
    found = convolution(node, "standard")
    if found is None or found.is_converted or any(low != high for low, high in found.padding):
        return False
    sizes = found.window[:-1]
    node.target, node.args, node.kwargs = ours, (found.x, found.w, found.bias, *sizes), {}
    return True


def _replace(
    graph: Graph, region: Region, function: Any, now: dict[Node, Node], others: Sequence[Node] = ()
) -> None:
    """Have one call in place of the nodes of a region, on its images, its weights and `others`.
    `now` has the nodes of calls by those of the results that they took the place of.
    """
    operands, result = [*region.images, *region.weights, *others], region.nodes[-1]
    with graph.inserting_before(result):
        node = graph.call_function(function, tuple(now.get(each, each) for each in operands))
    node.meta, now[result] = result.meta, node
    result.replace_all_uses_with(node)
    for each in reversed(region.nodes):
        graph.erase_node(each)


def _by_torch(region: Region) -> Callable[..., Any]:
    """The nodes of a region as a function of its images and weights."""
    graph, operands = Graph(), [*region.images, *region.weights]
    known = {node: graph.placeholder(f"of_{number}") for number, node in enumerate(operands)}
    for node in region.nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(known[region.nodes[-1]])
    found: Callable[..., Any] = GraphModule(torch.nn.Module(), graph).forward
    return found
