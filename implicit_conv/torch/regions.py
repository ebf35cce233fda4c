"""Regions of a graph: layers that one program computes, and channelwise operators between them.
Linear layers have regions of their own.

A program has one result, and reads up to three images. So layers are together that no other way
through the graph leaves and comes back to, and whose results only the last one's reader sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch.fx import Graph, Node

from implicit_conv.torch.channelwise import Channelwise, Join, channelwise
from implicit_conv.torch.layers import Layer, layers, value_of, written

Element: TypeAlias = "Layer | Channelwise"
MOST_IMAGES = 3  # that a program has places for
# Linear layers of torch take 1.1 to 1.2 times as long, and our call some 15 us in Python (AMD Zen
# 4, 2026-11). Packed filters are copies of all weights, for which large models have no memory.
LINEAR_FLOPS, LINEAR_BYTES = 1 << 24, 1 << 30


@dataclass(repr=False)
class Region:
    """Elements that one program computes, of which the last one has its result.

    Attributes
    ----------
    elements : list of Layer and Channelwise, in their order
    """

    elements: list[Element]

    @property
    def images(self) -> list[Node]:
        """The images that it reads, which are none of its own."""
        own = {each.result for each in self.elements}
        read = [node for each in self.elements for node in each.images if node not in own]
        return list(dict.fromkeys(read))

    @property
    def weights(self) -> list[Node]:
        """All other tensors that it reads."""
        read = [node for each in self.elements for node in each.weights if node is not None]
        return list(dict.fromkeys(read))

    def __repr__(self) -> str:
        """Its elements, and which images they read."""
        numbers = {node: number for number, node in enumerate(self.images)}
        words = []
        for each in self.elements:
            words.append(f"{each} of {[numbers[node] for node in each.images]}")
            numbers[each.result] = len(numbers)
        return "; ".join(words)

    @property
    def nodes(self) -> list[Node]:
        """All that it computes, in the order of the elements."""
        return [node for each in self.elements for node in each.nodes]

    @property
    def layers(self) -> list[Layer]:
        """Those of its elements that are layers."""
        return [each for each in self.elements if isinstance(each, Layer)]


def regions(graph: Graph, precision: str) -> Iterator[Region]:
    """The regions of a graph on the CPU."""
    place = {node: n for n, node in enumerate(graph.nodes)}
    found = [each for each in layers(graph, precision) if not each.is_on_gpu]
    taken = {node for each in found for node in each.nodes}
    of_images: list[Element] = [each for each in found if not each.is_linear]
    of_images += (each for each in channelwise(graph) if each.result not in taken)
    of_images.sort(key=lambda each: place[each.result])
    yield from _of_elements(graph, of_images)
    linear = [each for each in found if each.is_linear]
    if sum(value_of(node).nbytes for node in {each.w for each in linear}) <= LINEAR_BYTES:
        yield from filter(_is_large, _of_elements(graph, [*linear]))


def _is_large(region: Region) -> bool:
    """Whether linear layers save more than a call costs, or their sizes are not known yet."""
    sizes = [(*value_of(each.result).shape, value_of(each.w).shape[1]) for each in region.layers]
    known = all({*map(type, each)} == {int} for each in sizes)
    return not known or 2 * sum(map(math.prod, sizes)) >= LINEAR_FLOPS


def _of_elements(graph: Graph, found: list[Element]) -> Iterator[Region]:
    """The regions of elements of one kind, which are in the order of the graph."""
    is_written, place = written(graph), {node: n for n, node in enumerate(graph.nodes)}
    levels = _levels(graph, found)
    of_level: dict[int, list[Element]] = {}
    for each in found:
        of_level.setdefault(levels[each.result], []).append(each)
    for together in of_level.values():
        for region in _programs(together):
            nodes = sorted(region.nodes, key=place.__getitem__)
            if is_written(nodes, nodes[0], nodes[-1]):
                yield from _alone(region)
            else:
                yield from _of_few_images(region)


def _of_few_images(region: Region) -> Iterator[Region]:
    """A region, or parts of it that read no more images than a program has places for."""
    joins = [each for each in region.elements if isinstance(each, Join)]
    if len(region.images) <= MOST_IMAGES:
        yield from [region] if region.layers else []
    elif joins:
        for part in _programs([each for each in region.elements if each not in joins]):
            yield from _of_few_images(part)
    else:
        yield from _alone(region)


def _alone(region: Region) -> Iterator[Region]:
    """Each layer by itself."""
    return (Region([layer]) for layer in region.layers)


def _levels(graph: Graph, found: list[Element]) -> dict[Node, int]:
    """How often the way to a value changes between layers and all else. Layers of one level can
    run together: no way between two of them leaves the level.
    """
    of_result = {layer.result: layer for layer in found}
    inside = {node for layer in found for node in layer.nodes}
    levels: dict[Node, int] = {}
    for node in graph.nodes:
        layer = of_result.get(node)
        if layer is None and node in inside:
            continue
        read = node.all_input_nodes if layer is None else layer.images
        levels[node] = max(
            (levels[each] + ((each in of_result) != (layer is not None)) for each in read),
            default=0,
        )
    return levels


def _programs(together: list[Element]) -> Iterator[Region]:
    """Layers of one level by what needs them: each region has one result that others read."""
    of_result = {layer.result: layer for layer in together}
    last: dict[Node, Node] = {}  # the result of the region that a layer is part of
    for layer in reversed(together):
        users = list(layer.result.users)
        owners = {
            last[other.result]
            for other in together
            if other is not layer and layer.result in other.images
        }
        reads = sum(layer.result in other.images for other in together)
        inside = {node for other in together for node in other.nodes}
        alone = reads and all(user in inside for user in users) and len(owners) == 1
        last[layer.result] = owners.pop() if alone else layer.result
    for result in dict.fromkeys(last.values()):
        yield Region([of_result[node] for node in of_result if last[node] is result])
