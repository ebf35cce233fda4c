"""Memory formats of graphs with gradients: images have their channels last where that pays.

Torch's batch norms and maxima of windows are several times as fast then. Graphs of AOTAutograd are
functional, so that only operators that look at strides depend on the format of an image; they read
a contiguous copy.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import Graph, Node

aten, tags = torch.ops.aten, torch.Tag
BACKWARD = aten.convolution_backward.default
# Time that channels last save, in nanoseconds for a byte of the image that is read: a batch norm in
# training took 0.47 where images are contiguous, and 0.09 with channels last, its gradients 0.08
# and 0.13, and maxima of 2 x 2 pixels 1.35 and 0.08 (Zen 4, one thread, torch 2.13, 2026-11).
SAVED = {
    aten._native_batch_norm_legit_functional.default: 0.33,
    aten._native_batch_norm_legit.no_stats: 0.33,
    aten.max_pool2d_with_indices.default: 1.2,
}
COPIED = 0.25  # nanoseconds to copy a byte of an image into the other format, measured there
# The places of images among the arguments and the results of operators that take them in any format
# and then return them in the same one. None is a result that is no tuple.
PLACES: dict[Any, tuple[tuple[int, ...], tuple[int | None, ...]]] = {
    aten.convolution.default: ((0,), (None,)),
    BACKWARD: ((0, 1), (0,)),
    aten._native_batch_norm_legit_functional.default: ((0,), (0,)),
    aten._native_batch_norm_legit.no_stats: ((0,), (0,)),
    aten._native_batch_norm_legit_no_training.default: ((0,), (0,)),
    aten.native_batch_norm_backward.default: ((0, 1), (0,)),
    aten.max_pool2d_with_indices.default: ((0,), (0, 1)),
    aten.max_pool2d_with_indices_backward.default: ((0, 1, 7), (None,)),
    aten.avg_pool2d.default: ((0,), (None,)),
    aten.avg_pool2d_backward.default: ((0, 1), (None,)),
    aten.detach.default: ((0,), (None,)),
}
SUMS = aten.mean.dim, aten.sum.dim_IntList
PIXELS = {2, 3}  # the axes of an image without its channels


def put_channels_last(graph: Graph) -> None:
    """Have images of a functional graph in the format of channels last, if that saves more time
    than it takes to copy those that other nodes compute or read.
    """
    members, images = set[Node](), set[Node]()  # operators, and what they compute
    for node in graph.nodes:
        if _takes_any_format(node):
            members.add(node)
            images.update(_results(node))
    read = [
        (image, node)
        for node in graph.nodes
        for image in (_operands(node) if node in members else node.all_input_nodes)
        if (image in images) != (node in members) and not _sums_pixels(node)
    ]
    gains = [node for node in members if node.target in SAVED]
    saved = sum(SAVED[node.target] * _bytes(node.args[0]) for node in gains)
    # Gradients of filters then have their channels last, too, and torch copies them.
    filters = [node.args[2] for node in members if node.target is BACKWARD]
    if saved <= COPIED * sum(map(_bytes, [*dict(read), *filters])):
        return
    copies: dict[Node, Node] = {}
    for image, node in read:
        if image not in copies:
            form = torch.contiguous_format if image in images else torch.channels_last
            with graph.inserting_before(node):
                copy = graph.call_function(aten.clone.default, (image,), {"memory_format": form})
            copy.meta["val"] = image.meta["val"].clone(memory_format=form)
            copies[image] = copy
        node.replace_input_with(image, copies[image])


def _operands(node: Node) -> list[Any]:
    """The images among the arguments of an operator."""
    if node.target in PLACES:
        return [node.args[place] for place in PLACES[node.target][0]]
    return list(node.all_input_nodes)


def _results(node: Node) -> list[Node]:
    """The images that an operator computes which takes them in any format."""
    places = PLACES.get(node.target, ((), (None,)))[1]
    if None in places:
        return [node]
    items = [each for each in node.users if each.target is operator.getitem]
    return [each for each in items if each.args[1] in places]


def _takes_any_format(node: Node) -> bool:
    """Whether a node is an operator on contiguous images whose result is the same in any format."""
    images = [*_operands(node), *_results(node)]
    known = node.target in PLACES or node.target is aten.cat.default
    return (known or _is_elementwise(node)) and all(map(_is_image, images))


def _is_elementwise(node: Node) -> bool:
    """Whether each element of a result is a function of those at the same place in the operands."""
    target, operands = node.target, node.all_input_nodes
    return (
        isinstance(target, torch._ops.OpOverload)
        and tags.pointwise in target.tags
        and tags.nondeterministic_seeded not in target.tags
        and not target._schema.is_mutable
        and "memory_format" not in node.kwargs
        and bool(operands)
        and all(_is_image(each) and _shape(each) == _shape(node) for each in operands)
    )


def _is_image(node: Any) -> bool:
    """Whether a value is a contiguous image on the CPU, of known sizes."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 4
        and {*map(type, (*value.shape, *value.stride()))} == {int}
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.is_contiguous()
    )


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _bytes(node: Any) -> int:
    value = node.meta["val"]  # which may have no `nbytes` where a size was a symbol
    return int(value.itemsize * math.prod(value.shape))


def _sums_pixels(node: Node) -> bool:
    """Whether a node sums over all pixels, so that its result has no more than channels."""
    return node.target in SUMS and {axis % 4 for axis in node.args[1] or ()} >= PIXELS
