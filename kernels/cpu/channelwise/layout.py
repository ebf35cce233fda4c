"""What work items of channelwise operators read: an item is a row of the result, and some channels.

Pixels have their channels adjacent. A table has for each row, or column, of the result three words:
its window's first pixel along this axis, the pixels of the window, and the count of them, by which
a sum is divided.
"""

from __future__ import annotations

from typing import NamedTuple

SLOT = 0  # of the only part
ENTRY_WORDS = 3


class Images(NamedTuple):
    """An input x, another one, which may be a gate, and a result y; strides are in bytes."""

    rows: int = 0  # of the result
    columns: int = 0
    row_table: int = 0  # address; 0 for products and sums
    column_table: int = 0
    channels: int = 0
    chunk: int = 0  # channels of an item, at most
    chunks: int = 0
    size: int = 0  # bytes of an element
    x_n: int = 0
    x_row: int = 0
    x_pixel: int = 0
    y_n: int = 0
    y_row: int = 0
    y_pixel: int = 0
    other_n: int = 0
    other_row: int = 0  # 0 of a gate
    other_pixel: int = 0
