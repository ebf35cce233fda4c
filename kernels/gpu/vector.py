"""Hooks: the loads and products of a thread that has neighbouring filters (direct.py)."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.gpu.intrinsic import Asm
from implicit_conv.kernels.gpu.ptx import instructions


@instructions
def load(size: int) -> tuple[str, Asm]:
    """``ld.global.nc``: load 2, 4, 8 or 16 bytes of a pixel, or zeros unless index < limit.

    The address is a multiple of the size. The comparison is unsigned, so a negative index is not
    below the limit. Two bytes are the lower half of a word.

    PTX ISA 9.7.9, sm_80.
    """
    words = max(1, size // 4)
    results = [f"${i}" for i in range(words)]
    at, index, limit = (f"${words + i}" for i in range(3))
    zeros = " ".join(f"mov.b32 {result}, 0;" for result in results)
    kind = {2: ".b16", 4: ".b32", 8: ".v2.b32", 16: ".v4.b32"}[size]
    to = {2: "h", 4: "$0"}.get(size, f"{{{', '.join(results)}}}")
    text = f"{{ .reg .pred p; setp.lt.u32 p, {index}, {limit}; "
    if size == 2:
        text += f".reg .b16 h; mov.b16 h, 0; @p ld.global.nc.b16 h, [{at}]; cvt.u32.u16 $0, h; }}"
    else:
        text += f"{zeros} @p ld.global.nc{kind} {to}, [{at}]; }}"
    return "address index limit", Asm(text, "lrr", (("r", words),))


@instructions
def multiply(strip: Any, filters: int, tile_n: int) -> tuple[str, Asm]:
    """``fma.rn.f32``: add the products of a row of pixels and the taps of a thread's filters.

    acc has values [pixel][filter], row [position][channel]; `address` is that of the filter row's
    first tap in shared memory (`direct.make_stage` has the layout).

    PTX ISA 9.7.3 and 9.7.9, sm_80.
    """
    count, quad = strip.pixels * filters, min(filters, 4)
    channels, positions = strip.channels(filters), strip.positions
    row = 2 * count
    address = row + len(positions) * channels
    lines = [f"{{ .reg .f32 {', '.join(f'w{k}' for k in range(filters))};"]
    for s in range(strip.columns):
        for c in range(strip.group_c):
            for first in range(0, filters, quad):
                at = 4 * (tile_n * (s * strip.group_c + c) + first * tile_n // filters)
                lines.append(_load_taps(first, quad, f"[${address}+{at}]"))
            for acc in range(count):
                pixel, k = divmod(acc, filters)
                number = positions.index(strip.position(pixel, s)) * channels
                x = row + number + k // min(filters, strip.group_k) * strip.group_c + c
                lines.append(f"fma.rn.f32 ${acc}, ${x}, w{k}, ${acc};")
    lines.append("}")
    operands = (("f", count), ("f", len(positions) * channels), "r")
    return "acc row address", Asm("\n".join(lines), operands, (("f", count),), tied=1)


def _load_taps(first: int, count: int, place: str) -> str:
    taps = ", ".join(f"w{first + k}" for k in range(count))
    return (
        f"ld.shared.v4.f32 {{{taps}}}, {place};"
        if count == 4
        else f"ld.shared.f32 {taps}, {place};"
    )
