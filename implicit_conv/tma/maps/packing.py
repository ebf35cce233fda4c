"""How a tensor's strides pack its elements: the evidence on the order and the units of arrays."""

from __future__ import annotations

from implicit_conv.tma.maps.limits import Description

DENSE, NESTED, LOOSE = 2, 1, 0  # what `packing` returns


def packing(m: Description) -> int:
    """How closely the strides of a map fit its extents, whatever the order of dimensions.

    DENSE: every stride is the extent of the dimensions inside of it. NESTED: all but one are, and
    that one, the step from row to row, is longer. LOOSE: anything else.
    """
    outer = _outer(m)
    extent = m.shape[-1] * m.itemsize
    if outer and outer[0][0] > extent:
        best, extent = NESTED, outer[0][0]
    else:
        best = DENSE
    for stride, size in outer:
        if stride != extent:
            return LOOSE
        extent *= size
    return best


def overlaps(m: Description) -> bool:
    """Whether two elements of the tensor may share bytes, as they do in windows."""
    extent = m.shape[-1] * m.itemsize
    for stride, size in _outer(m):
        if stride < extent:
            return True
        extent += (size - 1) * stride
    return False


def tells(mended: Description, m: Description) -> bool:
    """Whether the strides of `m` are hardly what was meant, since those of `mended` fit better.

    The rows of a matrix may be any number of bytes apart, and share bytes in windows: there, only
    both, shared bytes and a packed alternative, tell anything. Elsewhere one of them does.
    """
    if packing(mended) <= packing(m):
        return False
    dense, shared = packing(mended) == DENSE, overlaps(m)
    return dense or shared if len(_outer(m)) > 1 else dense and shared


def _outer(m: Description) -> list[tuple[int, int]]:
    """(stride, size) of the dimensions but the last that have several elements, shortest first."""
    return sorted(
        (stride, size)
        for stride, size in zip(m.byte_strides, m.shape[:-1], strict=False)
        if size > 1
    )
