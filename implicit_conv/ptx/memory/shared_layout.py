"""Where a launch puts shared variables: a place that hardware may choose, and no better one.

PTX promises a variable its declared alignment, and nothing on its neighbours. A variable therefore
lies at an odd multiple of its alignment, in an order that a seed draws: a tile that needs more than
it asks for is then found in every run, not only where it does not happen to come first.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.limits import ALIGNMENT
from implicit_conv.ptx.syntax import Variable

SHARED_BASE = 0x400  # where a kernel's shared memory begins in the shared window, as on sm_90
DYNAMIC_ALIGNMENT = 16  # bytes, of dynamic shared memory where no declaration says more


class SharedLayout(NamedTuple):
    """Addresses of shared variables by name, and the first address and bytes of each region."""

    addresses: dict[str, int]
    regions: dict[int, int]
    dynamic: int  # where dynamic shared memory begins

    @property
    def size(self) -> int:
        """Bytes from SHARED_BASE to the end of the last region."""
        return max(start + size for start, size in self.regions.items()) - SHARED_BASE


def place_shared(
    variables: list[Variable], dynamic_bytes: int, alignment: int, seed: int
) -> SharedLayout:
    """The layout of a launch; its dynamic shared memory has this alignment, or a declared one.

    All variables without a size are the dynamic shared memory, which comes last, as on hardware.
    """
    if not 0 <= alignment <= ALIGNMENT or alignment & (alignment - 1):
        raise PtxError(f"shared_alignment = {alignment}: no power of two up to {ALIGNMENT}")
    shared = [made for made in variables if made.space == "shared"]
    static = [made for made in shared if made.size]
    random.Random(seed).shuffle(static)
    addresses, regions, end = dict[str, int](), dict[int, int](), SHARED_BASE
    for made in static:
        addresses[made.name] = start = odd_multiple(made.align, end)
        regions[start], end = made.size, start + made.size
    unsized = [made for made in shared if not made.size]
    declared = max((made.align for made in unsized), default=DYNAMIC_ALIGNMENT)
    dynamic = odd_multiple(max(declared, alignment), end)
    addresses |= {made.name: dynamic for made in unsized}
    return SharedLayout(addresses, {**regions, dynamic: dynamic_bytes}, dynamic)


def odd_multiple(alignment: int, least: int) -> int:
    """The first odd multiple of an alignment that is not below `least`."""
    return (-(-least // alignment) | 1) * alignment
