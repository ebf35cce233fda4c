"""Facts of the TMA im2col copies, written once: plain integers in, plain integers out.

The simulator computes with them, and CUDA compiles some into the kernels. Tensors are (n, d, h, w);
tensors of lower rank have D = 1, and NWC has H = 1.
"""

from typing import Any, NamedTuple

W128_PIXELS = 128  # pixels of an im2col::w::128 load, without the halo
W128_GROUP = 32  # pixels of a group; every group has a halo
W128_GROUPS = W128_PIXELS // W128_GROUP  # groups of a load

W128_HALO_BY_ELEMENT = True
"""Order of the halo rows of im2col::w::128: halo element j of group g lies in row 128 + 4*j + g.

The evidence is row oracles measured on a B200, and the four-row shape of tcgen05.cp.4x256b, which
fetches element j of all four groups as four neighbouring rows. False selects the other reading of
the documentation, row 128 + g*halo + j. Both are the same for halo <= 1. This project has not
proven either.
"""


class Axis(NamedTuple):
    """One dimension: its size, and the positions of a walk, from `lower` to `end` by `step`."""

    size: int
    lower: int = 0
    end: int = 1
    step: int = 1


def wide_axis(axis: Axis, w_offset: int) -> Axis:
    """The W axis of im2col::w: w_offset moves both corners, and thus the wrap target."""
    return Axis(axis.size, axis.lower + w_offset, axis.end + w_offset, axis.step)


def inside(x: int, size: int) -> bool:
    """Whether position x is inside a dimension; positions outside are filled."""
    return 0 <= x < size


def w128_rows(w_halo: int) -> int:
    """Rows that im2col::w::128 delivers: 128, and a halo for each group."""
    return W128_PIXELS + W128_GROUPS * w_halo


def w128_halo_row(k: int, w_halo: int) -> int:
    """The halo row that pixel k of the walk fills in addition to row k < 128, or -1 if none.

    Halo element j of group g is pixel 32*(g+1) + j.
    """
    g, j = k // W128_GROUP - 1, k % W128_GROUP
    if g < 0 or j >= w_halo:
        return -1
    if W128_HALO_BY_ELEMENT:
        return W128_PIXELS + W128_GROUPS * j + g
    return W128_PIXELS + g * w_halo + j


def swizzle_mask(span: int) -> int:
    """Address bits above bit 7 that a swizzle of `span` bytes mixes in: 7, 3, 1 for 128, 64, 32."""
    return span // 16 - 1 if span else 0


def swizzle(address: Any, mask: int) -> Any:
    """The address of the byte that a swizzle moves from `address`; it depends on absolute
    addresses.
    """
    return address ^ ((address >> 7) & mask) << 4
