"""Hooks: loads and stores of global memory, and conversions of its elements from and to float32.

Elements are passed as their bits. Where the predicate is 0, a load returns zero and a store writes
nothing.
"""

from __future__ import annotations

from implicit_conv.kernels.gpu.call import Floats
from implicit_conv.kernels.gpu.intrinsic import Asm
from implicit_conv.kernels.gpu.ptx import instruction, instructions

PREDICATE = "{ .reg .pred p; setp.ne.b32 p, $%d, 0; "


@instructions
def load(itemsize: int, constant: bool = False) -> tuple[str, Asm]:
    """``ld.global``: load the bits of an element of 2 or 4 bytes, or zero.

    With `constant` it is ``ld.global.nc``, for what nobody writes during the launch.

    PTX ISA 9.7.9, sm_80.
    """
    opcode = "ld.global.nc" if constant else "ld.global"
    if itemsize == 4:
        text = f"mov.b32 $0, 0; @p {opcode}.b32 $0, [$1]; }}"
    else:
        text = f".reg .b16 h; mov.b16 h, 0; @p {opcode}.b16 h, [$1]; cvt.u32.u16 $0, h; }}"
    return "address predicate", Asm(PREDICATE % 2 + text, "lr", "r")


@instructions
def load_pair(constant: bool = False) -> tuple[str, Asm]:
    """``ld.global.v2``: load two float32 at an address aligned to 8, or zeros, as `load`.

    PTX ISA 9.7.9, sm_80.
    """
    opcode = "ld.global.nc" if constant else "ld.global"
    text = f"mov.b32 $0, 0; mov.b32 $1, 0; @p {opcode}.v2.f32 {{$0, $1}}, [$2]; }}"
    return "address predicate", Asm(PREDICATE % 3 + text, "lr", (("f", 2),))


@instruction(
    PREDICATE % 5
    + "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
    + "@p ld.global.v4.b32 {$0, $1, $2, $3}, [$4]; }",
    "lr",
    (("r", 4),),
)
def load_quad(address: int, predicate: int) -> tuple[int, ...]:
    """``ld.global.v4``: load 16 bytes at an address aligned to 16, or zeros.

    PTX ISA 9.7.9, sm_80.
    """


@instruction(
    PREDICATE % 5
    + "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
    + "@p ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4]; }",
    "lr",
    (("f", 4),),
)
def load_floats(address: int, predicate: int) -> Floats:
    """``ld.global.nc.v4``: load four float32 at an address aligned to 16, or zeros, as `load`.

    PTX ISA 9.7.9, sm_80.
    """


@instructions
def store(itemsize: int) -> tuple[str, Asm]:
    """``st.global``: store the bits of an element of 2 or 4 bytes.

    PTX ISA 9.7.9, sm_80.
    """
    if itemsize == 4:
        text = "@p st.global.b32 [$0], $1; }"
    else:
        text = ".reg .b16 h; cvt.u16.u32 h, $1; @p st.global.b16 [$0], h; }"
    return "address bits predicate", Asm(PREDICATE % 2 + text, "lrr")


@instruction(PREDICATE % 5 + "@p st.global.v4.b32 [$0], {$1, $2, $3, $4}; }", ("l", ("r", 4), "r"))
def store_quad(address: int, words: tuple[int, ...], predicate: int) -> None:
    """``st.global.v4``: store 16 bytes at an address aligned to 16.

    PTX ISA 9.7.9, sm_80.
    """


@instruction(PREDICATE % 3 + "@p st.global.v2.f32 [$0], {$1, $2}; }", ("l", ("f", 2), "r"))
def store_pair(address: int, values: Floats, predicate: int) -> None:
    """``st.global.v2``: store two float32 at an address aligned to 8.

    PTX ISA 9.7.9, sm_80.
    """


@instructions
def store_tiles(tiles: int) -> tuple[str, Asm]:
    """``st.global.v2.f32``: store accumulator tiles of 16 x 8 side by side.

    `upper` and `lower` are the addresses of rows l / 4 and l / 4 + 8, column 2 * (l % 4), for lane
    l, aligned to 8. Of each row so many columns are stored as there are from that column on.

    PTX ISA 9.7.9, sm_80.
    """
    lines = [
        f"setp.gt.s32 p, ${2 + half}, {8 * tile}; "
        f"@p st.global.v2.f32 [${half}+{32 * tile}], {{${first}, ${first + 1}}};"
        for tile in range(tiles)
        for half in range(2)
        for first in (4 + 4 * tile + 2 * half,)
    ]
    text = "\n".join(["{ .reg .pred p;", *lines, "}"])
    return "upper lower columns below values", Asm(text, ("l", "l", "i", "i", ("f", 4 * tiles)))


@instructions
def to_float(dtype: str) -> tuple[str, Asm]:
    """``cvt.f32``: the exact float32 value of an element's bits.

    PTX ISA 9.7.9, sm_80.
    """
    text = {
        "float32": "mov.b32 $0, $1;",
        "bfloat16": "{ .reg .b32 t; shl.b32 t, $1, 16; mov.b32 $0, t; }",
        "float16": "{ .reg .b16 h; cvt.u16.u32 h, $1; cvt.f32.f16 $0, h; }",
    }[dtype]
    return "bits", Asm(text, "r", "f", memory=False)


@instructions
def from_float(dtype: str) -> tuple[str, Asm]:
    """``cvt.rn``: the bits of the element nearest to a float32.

    PTX ISA 9.7.9, sm_80.
    """
    text = {
        "float32": "mov.b32 $0, $1;",
        "bfloat16": "{ .reg .b16 h; cvt.rn.bf16.f32 h, $1; cvt.u32.u16 $0, h; }",
        "float16": "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.u32.u16 $0, h; }",
    }[dtype]
    return "value", Asm(text, "f", "r", memory=False)


@instruction(
    "{ .reg .f32 t; max.NaN.f32 t, $1, $2; min.NaN.f32 $0, t, $3; }", "fff", "f", memory=False
)
def limit(value: float, low: float, high: float) -> float:
    """``max.NaN.f32`` and ``min.NaN.f32``: the value or the bound that it passes; NaN stays NaN.

    PTX ISA 9.7.3, PTX 7.0, sm_80.
    """


@instruction(
    "{ .reg .pred p; setp.ne.b32 p, $3, 0; selp.f32 $0, $1, $2, p; }", "ffr", "f", memory=False
)
def select(a: float, b: float, predicate: int) -> float:
    """``selp.f32``: a if the predicate holds, else b.

    PTX ISA 9.7.7, sm_80.
    """
