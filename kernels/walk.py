"""The walks of the TMA im2col copies, written once: plain integers in, plain integers out.

Python runs these functions in the simulator, njit compiles them into its fast load, and CUDA into
the kernels. Tensors are (n, d, h, w); tensors of lower rank have D = 1, and NWC has H = 1. The
facts are those of addressing.md, sections 2 and 4. Functions are defined in order of use.
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


def advance(x: int, axis: Axis) -> tuple[int, int]:
    """(position after x, carry): past the box's end the walk wraps to its lower corner."""
    x += axis.step
    if x >= axis.end:
        return axis.lower, 1
    return x, 0


def next_im2col(
    n: int, d: int, h: int, w: int, depth: Axis, height: Axis, width: Axis
) -> tuple[int, int, int, int]:
    """The pixel after (n, d, h, w) in im2col: W carries to H, H to D, D to N."""
    w, carry = advance(w, width)
    if carry:
        h, carry = advance(h, height)
    if carry:
        d, carry = advance(d, depth)
    return n + carry, d, h, w


def next_wide(n: int, w: int, width: Axis) -> tuple[int, int]:
    """The pixel after (n, w) in im2col::w: W carries to N directly; d and h do not change."""
    w, carry = advance(w, width)
    return n + carry, w


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


def walk_im2col(
    positions: Any, n: int, d: int, h: int, w: int, depth: Axis, height: Axis, width: Axis
) -> None:
    """Write the walk from (n, d, h, w) into `positions`, rows x 4: one row a pixel."""
    for row in range(len(positions)):
        positions[row, 0], positions[row, 1], positions[row, 2], positions[row, 3] = n, d, h, w
        n, d, h, w = next_im2col(n, d, h, w, depth, height, width)


def walk_wide(positions: Any, n: int, d: int, h: int, w: int, width: Axis) -> None:
    """Write the walk of im2col::w, whose halo continues the walk; `width` includes w_offset."""
    for row in range(len(positions)):
        positions[row, 0], positions[row, 1], positions[row, 2], positions[row, 3] = n, d, h, w
        n, w = next_wide(n, w, width)


def walk_w128(positions: Any, n: int, d: int, h: int, w: int, width: Axis, w_halo: int) -> None:
    """Write the walk of im2col::w::128: a pixel has a row, and may have a halo row too."""
    for k in range(W128_PIXELS + w_halo):
        row = w128_halo_row(k, w_halo)
        if k < W128_PIXELS:
            positions[k, 0], positions[k, 1], positions[k, 2], positions[k, 3] = n, d, h, w
        if row >= 0:
            positions[row, 0], positions[row, 1], positions[row, 2], positions[row, 3] = n, d, h, w
        n, w = next_wide(n, w, width)
