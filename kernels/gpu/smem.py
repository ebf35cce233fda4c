"""Hooks: loads, stores and asynchronous copies of shared memory, through the generic proxy."""

from __future__ import annotations

from implicit_conv.kernels.gpu.intrinsic import Asm
from implicit_conv.kernels.gpu.ptx import instruction, instructions


@instruction("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "r", (("i", 4),))
def load16(address: int) -> tuple[int, ...]:
    """``ld.shared.v4``: load four int32.

    PTX ISA 9.7.9, sm_80.
    """


@instruction("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", ("r", ("r", 4)))
def store_quad(address: int, words: tuple[int, ...]) -> None:
    """``st.shared.v4``: store four words at an address aligned to 16.

    PTX ISA 9.7.9, sm_80.
    """


@instruction("st.shared.v2.b32 [$0], {$1, $2};", ("r", ("r", 2)))
def store_words(address: int, words: tuple[int, ...]) -> None:
    """``st.shared.v2``: store two words at an address aligned to 8.

    PTX ISA 9.7.9, sm_80.
    """


@instruction("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "r", (("r", 4),))
def load_quad(address: int) -> tuple[int, ...]:
    """``ld.shared.v4``: load four words from an address aligned to 16.

    PTX ISA 9.7.9, sm_80.
    """


@instructions
def store_tiles(tiles: int, pitch: int) -> tuple[str, Asm]:
    """``st.shared.v2.f32``: store accumulator tiles of 16 x 8 side by side, with a row pitch.

    `address` is that of row l / 4 and column 2 * (l % 4) for lane l; `pitch` is in bytes.

    PTX ISA 9.7.9, sm_80.
    """
    at = 4 * tiles
    lines = [
        f"st.shared.v2.f32 [$0+{32 * tile + 8 * pitch * half}], {{${first}, ${first + 1}}};"
        for tile in range(tiles)
        for half in range(2)
        for first in (1 + 4 * tile + 2 * half,)
    ]
    return "address values", Asm("\n".join(lines), ("r", ("f", at)))


@instruction("ld.shared.f32 $0, [$1];", "r", "f")
def load_float(address: int) -> float:
    """``ld.shared``: load one float32.

    PTX ISA 9.7.9, sm_80.
    """


@instruction("st.shared.f32 [$0], $1;", "rf")
def store_float(address: int, value: float) -> None:
    """``st.shared``: store one float32.

    PTX ISA 9.7.9, sm_80.
    """


@instructions
def load_quads(count: int, step: int) -> tuple[str, Asm]:
    """``ld.shared.v4`` `count` times at a distance of `step` bytes: 4 * count float32.

    PTX ISA 9.7.9, sm_80.
    """
    at = 4 * count
    text = "\n".join(
        f"ld.shared.v4.f32 {{${4 * i}, ${4 * i + 1}, ${4 * i + 2}, ${4 * i + 3}}}, "
        f"[${at}+{i * step}];"
        for i in range(count)
    )
    return "address", Asm(text, "r", (("f", at),))


@instructions
def ldmatrix(count: int, step: int) -> tuple[str, Asm]:
    """``ldmatrix.sync.aligned.m8n8.x4`` `count` times at a distance of `step` bytes.

    Lane l passes the address of row l % 8 of matrix l / 8, aligned to 16 bytes. It receives
    elements 2 * (l % 4) and 2 * (l % 4) + 1 of row l / 4 of each matrix.

    PTX ISA 9.7.14, PTX 6.5, sm_80.
    """
    at = 4 * count
    text = "\n".join(
        f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
        f"{{${4 * i}, ${4 * i + 1}, ${4 * i + 2}, ${4 * i + 3}}}, [${at}+{i * step}];"
        for i in range(count)
    )
    return "address", Asm(text, "r", (("r", at),))


@instructions
def ldmatrix_trans(count: int) -> tuple[str, Asm]:
    """``ldmatrix.sync.aligned.m8n8.x4.trans`` `count` times, each 32 bytes further in a row.

    Lane l passes the address of row l % 8 of matrix l / 8, swizzled: multiples of 32 are xored to
    it. It receives elements l / 4 of rows 2 * (l % 4) and 2 * (l % 4) + 1 of each matrix.

    PTX ISA 9.7.14, PTX 6.5, sm_80.
    """
    at = 4 * count
    lines = [
        f"xor.b32 t, ${at}, {32 * i}; ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
        f"{{${4 * i}, ${4 * i + 1}, ${4 * i + 2}, ${4 * i + 3}}}, [t];"
        for i in range(count)
    ]
    return "address", Asm("\n".join(["{ .reg .u32 t;", *lines, "}"]), "r", (("r", at),))


@instructions
def load_columns(count: int, step: int, pitch: int) -> tuple[str, Asm]:
    """``ld.shared``: float32 of 4 rows `pitch` bytes apart, of `count` columns `step` bytes apart.

    The rows of a column follow each other.

    PTX ISA 9.7.9, sm_80.
    """
    text = "\n".join(
        f"ld.shared.f32 ${4 * i + row}, [${4 * count}+{i * step + row * pitch}];"
        for i in range(count)
        for row in range(4)
    )
    return "address", Asm(text, "r", (("f", 4 * count),))


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "rlr")
def copy_quad(smem: int, gmem: int, size: int) -> None:
    """``cp.async.cg``: write 16 bytes, of which `size` are copied and the rest are zero.

    PTX ISA 9.7.9.25.3, PTX 7.0, sm_80.
    """


@instructions
def copy_words(size: int) -> tuple[str, Asm]:
    """``cp.async.ca``: write 4 or 8 bytes (`size`), of which `count` are copied, the rest zero.

    PTX ISA 9.7.9.25.3, PTX 7.0, sm_80.
    """
    text = f"cp.async.ca.shared.global [$0], [$1], {size}, $2;"
    return "smem gmem count", Asm(text, "rlr")
