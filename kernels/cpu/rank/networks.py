"""Exchanges that select the element of a rank: pairs of wires, of which the first one gets the
smaller element.

Merges are those of K. E. Batcher, Sorting networks and their applications, AFIPS 1968. Where the
columns of a matrix are sorted, and then its rows, both stay sorted. Element (i, j) then has
(i + 1) (j + 1) - 1 others that are at most as large, and as many that are at least as large as
follow it in both directions; what cannot be the wanted element any more is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

Exchanges = list[tuple[int, int]]
Wires = list[int]


def merge(first: Wires, second: Wires, exchanges: Exchanges) -> Wires:
    """Merge two sorted lists; returns the wires in the order of their elements."""
    if not first or not second:
        return first or second
    if len(first) == len(second) == 1:
        exchanges.append((first[0], second[0]))
        return [first[0], second[0]]
    even = merge(first[0::2], second[0::2], exchanges)
    odd = merge(first[1::2], second[1::2], exchanges)
    merged = even[:1]
    for low, high in zip(odd, even[1:], strict=False):
        exchanges.append((low, high))
        merged += [low, high]
    pairs = min(len(odd), len(even) - 1)
    return merged + odd[pairs:] + even[1 + pairs :]


def merge_all(lists: Sequence[Wires], exchanges: Exchanges) -> Wires:
    """Merge sorted lists in pairs."""
    while len(lists) > 1:
        lists = [
            merge(lists[i], lists[i + 1], exchanges) if i + 1 < len(lists) else lists[i]
            for i in range(0, len(lists), 2)
        ]
    return lists[0]


def sorted_wires(count: int) -> tuple[Exchanges, Wires]:
    """Exchanges that sort the wires 0 .. count - 1, and these in the order of their elements."""
    exchanges: Exchanges = []
    return exchanges, merge_all([[wire] for wire in range(count)], exchanges)


def selection(columns: int, height: int, rank: int) -> tuple[Exchanges, int]:
    """Exchanges that select an element of sorted columns, and the wire that it is on then.

    Wire ``i * columns + j`` has the element at position i of column j. Rank 0 is the smallest one.
    """
    exchanges: Exchanges = []
    others, smaller, left = columns * height - 1, 0, list[Wires]()
    for i in range(height):
        row = merge_all([[i * columns + j] for j in range(columns)], exchanges)
        low = sum((height - i) * (columns - j) - 1 > others - rank for j in range(columns))
        high = sum((i + 1) * (j + 1) - 1 > rank for j in range(columns))
        smaller += low
        left.append(row[low : columns - high])
    order = merge_all(sorted((row for row in left if row), key=len), exchanges)
    return exchanges, order[rank - smaller]
