"""The params blob on the host: the bytes that blob.py unpacks in a kernel. It needs numpy alone."""

import numpy as np

from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import Call
from implicit_conv.kernels.gpu.sizes import MAP_BYTES


def pack(
    activation_map: bytes | None,
    filter_map: bytes | None,
    call: Call,
    geometry: Geometry,
    limits: tuple[float, float],
) -> bytes:
    """The blob's bytes; a map is None where the kernel does not use it."""
    maps = [bytes(MAP_BYTES) if map is None else map for map in (activation_map, filter_map)]
    numbers = [
        np.array(call, np.int64).tobytes(),
        np.array(geometry, np.int32).tobytes(),
        np.array(limits, np.float32).tobytes(),
    ]
    blob = b"".join([*maps, *numbers])
    return blob + bytes(-len(blob) % 8)  # a struct's size is a multiple of its alignment
