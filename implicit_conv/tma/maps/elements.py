"""Element types of tensors by name, also those that numpy lacks and that the driver adds.

A type that numpy lacks, such as bfloat16 without ml_dtypes, is stored as unsigned integers of the
same size; its name then lies in the metadata of the dtype, which comparisons ignore.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.ptx.errors import shortened

STORED_AS = {  # name: dtype of the same bits that numpy has
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float32_ftz": "float32",  # the driver's: subnormals become zero
    "tfloat32": "float32",
    "tfloat32_ftz": "float32",
}
FLOATING = ("bfloat16", "float16", "float32", "float64", "float32_ftz", "tfloat32", "tfloat32_ftz")


PACKED = (  # of ml_dtypes; a byte holds several of them, or a part of them
    "int2",
    "uint2",
    "int4",
    "uint4",
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
)


def element_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The dtype of the elements.

    Raises
    ------
    TypeError
        No such type is known, or it is byte-swapped, structured or an object, or has less than a
        byte.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    if name in PACKED:
        raise TypeError(
            f"dtype {name} has elements of less than a byte, which are not modelled; check the "
            "driver's arguments by lint, with tensorDataType 16U4_ALIGN8B, 16U4_ALIGN16B or "
            "16U6_ALIGN16B"
        )
    if isinstance(dtype, str) and dtype in STORED_AS:
        kind = _by_name(dtype)
    else:
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError):  # numpy reads "," as Python
            names = ", ".join(STORED_AS)
            raise TypeError(
                f"dtype {shortened(repr(dtype))} is unknown; name a numpy dtype or one of {names}"
            ) from None
    if kind.hasobject or kind.fields is not None or not kind.isnative:
        raise TypeError(
            f"dtype {kind!r} is not supported: elements must be numbers in native byte order"
        )
    return kind


def _by_name(name: str) -> np.dtype[Any]:
    try:
        kind: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError):
        kind = np.dtype(STORED_AS[name], metadata={"element": name})
    return kind


def element_name(kind: np.dtype[Any]) -> str:
    """The name of an element type, such as "bfloat16"."""
    metadata: dict[str, str] = dict(kind.metadata or {})
    return metadata.get("element", kind.name)


def is_floating(kind: np.dtype[Any]) -> bool:
    """Whether the driver has this type as a floating-point type, which it can fill with NaN."""
    return element_name(kind) in FLOATING
