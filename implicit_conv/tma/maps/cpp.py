"""CUDA C++ of a tensor map: the call that encodes it, and a minimal kernel that loads by it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

from implicit_conv.tma.maps.encoding import PARAMETERS, WORD_TYPES
from implicit_conv.tma.maps.limits import Description, Start
from implicit_conv.tma.maps.ptx import instruction
from implicit_conv.tma.maps.swizzles import LINE_BITS, SWIZZLES

LINE = 128  # bytes that a swizzle permutes, and the alignment of a tile without one
STATIC_BYTES = (48 << 10) - LINE  # of a tile, beside the mbarrier
PATTERN = 1024  # bytes, at most, after which a swizzle's pattern repeats
UNSWIZZLED = {  # what a swizzle does with the offset `at` of a byte in an aligned tile
    name: f"at ^ (at >> {LINE_BITS} & {swizzle.lines - 1}) << {swizzle.atom.bit_length() - 1}"
    if swizzle.span
    else "at"
    for name, swizzle in SWIZZLES.items()
    if not swizzle.flip
}


def source(m: Description, arguments: dict[str, Any], start: Start, rows: int) -> str:
    """The text of `TensorMap.cpp`.

    `arguments` are the driver's, `rows` those of the copy with its halo, and `start` is that of the
    example of a launch.
    """
    if m.swizzle not in UNSWIZZLED or m.interleave != "none":
        raise ValueError(
            f"no kernel is written for swizzle {m.swizzle} and interleave {m.interleave}, but "
            f"for swizzles {', '.join(UNSWIZZLED)} without interleave"
        )
    parameters = PARAMETERS[arguments["function"]]
    arrays = "\n".join(_arrays({name: arguments[name] for name in parameters}))
    letters = m.dims if m.mode != "tiled" else [f"i{n}" for n in range(m.rank)]
    row_bytes = m.channels * m.itemsize
    pitch = max(row_bytes, m.span)
    tile_bytes = -(-rows * pitch // LINE) * LINE
    if tile_bytes > STATIC_BYTES:
        raise ValueError(
            f"the tile has {tile_bytes} bytes, but the kernel's static shared memory at most "
            f"{STATIC_BYTES}; take a map of fewer pixels or channels"
        )
    copy = instruction(m.mode, *start.operands, dst="%0")
    head, _, tail = copy.partition("[map, {")
    numbers = ", ".join(f"%{3 + n}" for n in range(m.rank))
    copy = f"{head}[%1, {{{numbers}}}{tail[tail.index('}') + 1 :]}".replace("[mbar]", "[%2]")
    template = resources.files("implicit_conv.tma.maps").joinpath("kernel.cu.in")
    return template.read_text(encoding="utf-8").format(
        arch="sm_100a" if m.wide else "sm_90a",
        cuda="13.0" if m.wide else "12.7",
        shape=m.shape,
        element=m.element,
        arrays=arrays,
        function=arguments["function"],
        arguments=",\n".join(f"        {_argument(x, arguments[x])}" for x in parameters),
        rows=rows,
        row_bytes=row_bytes,
        pitch=pitch,
        tile_bytes=tile_bytes,
        axes=", ".join(letters),
        call=", ".join(str(coordinate) for coordinate in start.coords[::-1]),
        names=", ".join(f"int {letter}" for letter in letters[::-1]),
        alignment=LINE if m.swizzle == "none" else PATTERN,
        copy=copy,
        operands=", ".join(f'"r"({letter})' for letter in letters[::-1]),
        unswizzled=UNSWIZZLED[m.swizzle],
    )


def _arrays(arguments: dict[str, object]) -> Iterator[str]:
    """Declarations of the arrays among the driver's arguments; rank 1 has no strides."""
    for name, value in arguments.items():
        if isinstance(value, tuple):
            numbers = ", ".join(map(str, value)) or "0"
            yield f"    const {WORD_TYPES.get(name, 'int')} {name}[] = {{{numbers}}};"


def _argument(name: str, value: object) -> str:
    if name == "globalAddress":
        return "x"
    return name if isinstance(value, tuple) else str(value)
