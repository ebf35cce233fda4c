"""State spaces: where variables lie, and the windows of generic addresses (PTX ISA 5.1, 5.2)."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.ptx import limits
from implicit_conv.ptx.errors import PtxError, shortened
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE, odd_multiple
from implicit_conv.ptx.syntax import Kernel

PARAM_BASE = 0x240  # of the parameters in the param space; it keeps every alignment
LOCAL_BASE = 0x10  # of a thread's variables in the local space; address 0 stays free
# Generic addresses of the spaces; everything else is global. The low 32 bits are an address in the
# space itself.
WINDOWS = {"local": 0x7D00_0000_0000, "shared": 0x7E00_0000_0000, "param": 0x7F00_0000_0000}
WINDOW_BYTES = 1 << 32
# The shared window has a part for the block itself, then one for each rank of its cluster, where
# mapa leads.
BLOCK_BYTES = 1 << 24


class Spaces(NamedTuple):
    """The spaces of a kernel's variables, and the addresses of parameters and local variables.

    Variables of other spaces get their addresses at the launch.
    """

    names: dict[str, str]
    addresses: dict[str, int]
    static_bytes: int  # of shared memory in the order of the text, up to where the dynamic begins
    local_bytes: int

    def address(self, name: str) -> int:
        """The address of a parameter or a local variable."""
        if name not in self.addresses:
            raise PtxError(f"{shortened(name)} is not declared")
        return self.addresses[name]


def lay_out(kernel: Kernel) -> Spaces:
    """Parameters and local variables in order; what all shared variables need."""
    addresses = {name: PARAM_BASE + offset for name, (offset, _) in kernel.parameters.items()}
    names = dict.fromkeys(addresses, "param")
    names |= {made.name: made.space for made in kernel.variables}
    ends = {"shared": SHARED_BASE, "local": LOCAL_BASE}
    for made in sorted(kernel.variables, key=lambda made: made.size == 0):
        if made.space in ends:
            at = -(-ends[made.space] // made.align) * made.align
            if made.space == "local":
                at = addresses[made.name] = odd_multiple(made.align, at)
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
    return Spaces(names, addresses, total["shared"], ends["local"])
