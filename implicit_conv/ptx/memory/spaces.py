"""State spaces: where variables lie, and the windows of generic addresses (PTX ISA 5.1, 5.2)."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.ptx import limits
from implicit_conv.ptx.errors import PtxError, shortened
from implicit_conv.ptx.memory.shared import SHARED_BASE
from implicit_conv.ptx.syntax import Kernel

PARAM_BASE = 0x240  # of the parameters in the param space; it keeps every alignment
LOCAL_BASE = 0x10  # of a thread's variables in the local space; address 0 stays free
# Generic addresses of the spaces; everything else is global. The low 32 bits are an address in the
# space itself.
WINDOWS = {"local": 0x7D00_0000_0000, "shared": 0x7E00_0000_0000, "param": 0x7F00_0000_0000}
WINDOW_BYTES = 1 << 32


class Place(NamedTuple):
    """A variable's space and its address there."""

    space: str
    address: int


class Spaces(NamedTuple):
    """Where a kernel's variables lie. Global variables get their addresses at the launch."""

    places: dict[str, Place]
    static_bytes: int  # of shared memory, up to where the dynamic part begins
    local_bytes: int

    def address(self, name: str) -> Place:
        """The place of a variable."""
        if name not in self.places:
            raise PtxError(f"{shortened(name)} is not declared")
        return self.places[name]


def lay_out(kernel: Kernel) -> Spaces:
    """Parameters in order, shared variables with the dynamic ones last, and local ones."""
    places = {
        name: Place("param", PARAM_BASE + offset) for name, (offset, _) in kernel.parameters.items()
    }
    ends = {"shared": SHARED_BASE, "local": LOCAL_BASE}
    for made in sorted(kernel.variables, key=lambda made: made.size == 0):
        if made.space in ends:
            at = -(-ends[made.space] // made.align) * made.align
            places[made.name] = Place(made.space, at)
            ends[made.space] = at + made.size
    total = dict.fromkeys(("const", "global"), 0)
    for made in kernel.variables:
        total[made.space] = total.get(made.space, 0) + made.size
    total |= {"shared": ends["shared"] - SHARED_BASE, "local": ends["local"] - LOCAL_BASE}
    for space, size in total.items():
        if size > limits.SPACE_BYTES[space]:
            raise PtxError(
                f"the .{space} variables of {shortened(kernel.name)} have {size} bytes; "
                f"{limits.SPACE_BYTES[space]} is the most"
            )
    return Spaces(places, total["shared"], ends["local"])
