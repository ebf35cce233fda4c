"""What callers know of the sums: their order, and the width of a block."""

import enum

BLOCK_BYTES = 256  # of a block: 4 sums in vectors of 64 bytes hide the latency of an addition


class Order(enum.Enum):
    """How a sum is made of taps and elements."""

    TAPS = "products are added to zero"
    LINE = "products are added to the first one"
    MIRRORED = "a product; then pairs of elements are added, multiplied, and added to it"
    OPPOSED = "a product; then pairs of elements are subtracted, multiplied, and added to it"
