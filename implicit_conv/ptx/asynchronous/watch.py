"""What a caller who watches a run is told of its tensor copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.memory.tensor_map import TensorMap


@dataclass
class TensorCopy:
    """A tensor copy of one thread, as its instruction issues it and as it has come to an end.

    Attributes
    ----------
    block : (x, y, z)
        The block that issues it.
    warp, line : int
        The warp in the block, and the line of the PTX text, from 1.
    direction : {"load", "store"}
    mode : str
        As the instruction has it: "tile", "im2col", "im2col::w" or "im2col::w::128".
    map : TensorMap
    coordinates, operands : tuple of int
        Fastest axis first; the operands are the im2col offsets, or (w_halo, w_offset).
    address : int
        In the shared window: the destination of a load, the source of a store.
    places : int array, rows x units, or None
        Offset from `address` of each 16 bytes of each row; None until the copy is complete.
    contents : uint8 array, rows x units x 16, or None
        The bytes of shared memory at `places` when the copy was complete.
    """

    block: tuple[int, int, int]
    warp: int
    line: int
    direction: str
    mode: str
    map: TensorMap
    coordinates: tuple[int, ...]
    operands: tuple[int, ...]
    address: int
    places: NDArray[Any] | None = None
    contents: NDArray[np.uint8] | None = None


Watch = Callable[[TensorCopy], None]
