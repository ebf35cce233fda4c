"""Operations that change memory (PTX ISA 9.7.13, atom), and what a reducing tensor copy does with
each element (9.7.9.25.5, cp.reduce.async.bulk).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.machine.floats import bits16, values16
from implicit_conv.ptx.machine.lanes import REDUCTIONS

Bytes = NDArray[np.uint8]
_LOGIC = ("UINT32", "INT32", "UINT64", "INT64")
_ORDER = (*_LOGIC, "FLOAT16", "BFLOAT16")
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {  # of (value before, operand)
    **REDUCTIONS,
    "exch": lambda old, given: given,
    "inc": lambda old, top: np.where(old >= top, 0, old + 1).astype(old.dtype),
    "dec": lambda old, top: np.where((old == 0) | (old > top), top, old - 1).astype(old.dtype),
}
REDUCED_TYPES = {  # reduction: the types that it takes, by the driver's names
    "add": ("UINT32", "INT32", "UINT64", "FLOAT32", "FLOAT32_FTZ", "FLOAT16", "BFLOAT16"),
    "min": _ORDER,
    "max": _ORDER,
    "inc": ("UINT32",),
    "dec": ("UINT32",),
    "and": _LOGIC,
    "or": _LOGIC,
    "xor": _LOGIC,
}


def check(reduction: str, element: str) -> None:
    """Raise PtxError unless a reduction takes elements of a type."""
    types = REDUCED_TYPES[reduction]
    if element not in types:
        have = element or "of an unknown type"
        raise PtxError(f"the reduction {reduction} takes {', '.join(types)}; the map's are {have}")


def reduced(reduction: str, element: str, old: Bytes, given: Bytes) -> Bytes:
    """The bytes of the elements of global memory afterwards."""
    if element == "BFLOAT16":
        before, added = (values16(x.view(np.uint16), "bf16") for x in (old, given))
        return bits16(np.asarray(REDUCTIONS[reduction](before, added)), "bf16").view(np.uint8)
    kind = element.removesuffix("_FTZ").lower()
    made: Bytes = OPERATIONS[reduction](old.view(kind), given.view(kind)).view(np.uint8)
    return made
