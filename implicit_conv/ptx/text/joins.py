"""Where lanes that part meet again: immediate post-dominators, after Lengauer and Tarjan (1979).

Post-dominators are the dominators of the graph with all edges turned round, from a node that stands
for the end of the kernel. Blocks from which the end cannot be reached have none.
"""

from __future__ import annotations

from implicit_conv.ptx.syntax import Block


def find_joins(blocks: list[Block]) -> None:
    """Set each block's join: its immediate post-dominator, or None where that is the end."""
    end = len(blocks)
    sources: list[list[int]] = [[] for _ in range(end + 1)]  # blocks that a block may follow
    for block in blocks:
        for target in block.targets or [end]:
            sources[target].append(block.index)
    nearest = _dominators(end, sources, [*(block.targets or [end] for block in blocks), []])
    for block in blocks:
        found = nearest[block.index]
        block.join = None if found == end else found


def _dominators(
    root: int, following: list[list[int]], preceding: list[list[int]]
) -> list[int | None]:
    """The immediate dominator of each node, or None where `root` does not lead to it."""
    order, parent = _depth_first(root, following)
    number = {node: place for place, node in enumerate(order)}
    # From here on nodes are named by their numbers in depth-first order.
    count = len(order)
    semi, best, dominator = list(range(count)), list(range(count)), [0] * count
    above: list[int | None] = [None] * count  # the forest of nodes that are done
    bucket: list[list[int]] = [[] for _ in range(count)]
    for node in range(count - 1, 0, -1):
        for before in preceding[order[node]]:
            place = number.get(before)
            if place is not None:
                semi[node] = min(semi[node], semi[_least(place, above, best, semi)])
        bucket[semi[node]].append(node)
        above[node] = parent[node]
        for other in bucket[parent[node]]:
            least = _least(other, above, best, semi)
            dominator[other] = least if semi[least] < semi[other] else parent[node]
        bucket[parent[node]] = []
    found: list[int | None] = [None] * len(following)
    for node in range(1, count):
        if dominator[node] != semi[node]:
            dominator[node] = dominator[dominator[node]]
        found[order[node]] = order[dominator[node]]
    return found


def _depth_first(root: int, following: list[list[int]]) -> tuple[list[int], list[int]]:
    """(nodes in depth-first order, the place in it of the parent of each)."""
    order, parent, met = list[int](), list[int](), set[int]()
    stack = [(root, 0)]
    while stack:
        node, before = stack.pop()
        if node in met:
            continue
        met.add(node)
        stack += [(other, len(order)) for other in following[node] if other not in met]
        order.append(node)
        parent.append(before)
    return order, parent


def _least(node: int, above: list[int | None], best: list[int], semi: list[int]) -> int:
    """The node of least semi-dominator on the way up from a node; the way is made shorter."""
    way, at = list[int](), node
    while (up := above[at]) is not None and above[up] is not None:
        way.append(at)
        at = up
    for at in reversed(way):
        up = above[at]
        assert up is not None
        if semi[best[up]] < semi[best[at]]:
            best[at] = best[up]
        above[at] = above[up]
    return best[node]
