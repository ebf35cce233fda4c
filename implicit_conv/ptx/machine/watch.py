"""What those who watch a run are told of its tensor copies, and of who reads what they wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.memory.shared import UNIT
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE
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
    destination : (x, y, z)
        The block whose shared memory that is: another one of the cluster where a copy names it, and
        each in turn that the mask of a multicast names.
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
    destination: tuple[int, int, int]
    places: NDArray[Any] | None = None
    contents: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class SharedRead:
    """What an instruction of one warp reads from shared memory: a matrix, or a place a lane.

    Attributes
    ----------
    block, line
        As in `TensorCopy`.
    instruction : {"wgmma", "ldmatrix", "ld.shared"}
    span : int or None
        Bytes of the swizzle's span by the descriptor, 0 without a swizzle; None if there is no
        descriptor.
    addresses : int array, rows x units
        Of each 16 bytes, in the shared window. Rows are those of a copy: of M or N if K is
        contiguous, else of K. Of ``ld.shared``, lanes x 1: where each lane reads.
    copied : bool array of the same shape
        Whether a bulk copy has written the 16 bytes last.
    """

    block: tuple[int, int, int]
    line: int
    instruction: str
    span: int | None
    addresses: NDArray[Any]
    copied: NDArray[np.bool_]


def tell_read(w: State, line: int, instruction: str, span: int | None, units: NDArray[Any]) -> None:
    """Tell those who watch reads that a warp reads these units of 16 bytes, rows x units."""
    if w.launch.watch_reads is not None:
        _tell(w, line, instruction, span, units, units * UNIT + SHARED_BASE)


def tell_load(w: State, line: int, places: NDArray[Any], mask: NDArray[Any]) -> None:
    """Tell those who watch reads where ``ld.shared`` of a whole warp reads."""
    if w.launch.watch_reads is None or not mask.all():
        return
    at = places[:, None] & 0xFFFFFFFF
    units = (at - SHARED_BASE) // UNIT
    if (units >= 0).all() and (units < w.shared.size // UNIT).all():
        _tell(w, line, "ld.shared", None, units, at)


def _tell(
    w: State,
    line: int,
    instruction: str,
    span: int | None,
    units: NDArray[Any],
    addresses: NDArray[Any],
) -> None:
    writers = w.shared.writer.reshape(-1, UNIT)[units]
    copied = (writers >= w.cta.actors.first_barrier).all(axis=-1)
    w.launch.watch_reads(SharedRead(w.cta.index, line, instruction, span, addresses, copied))


Watch = Callable[[TensorCopy], None]
WatchReads = Callable[[SharedRead], None]
