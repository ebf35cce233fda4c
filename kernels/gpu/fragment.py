"""Hooks: the accumulators that a lane has of a chunk of 16 rows and 32 or 64 columns.

Value 4 t + 2 h + j is in row ``lane / 4 + 8 h`` and column ``8 t + 2 (lane % 4) + j``. Word 2 t + h
holds the elements of values 4 t + 2 h and the next, the lower column in the lower half. So a lane
has half as many values as the chunk has columns, and a quarter as many words.
"""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.kernels.gpu.intrinsic import Asm
from implicit_conv.kernels.gpu.ptx import instructions

HALF = {"bfloat16": "bf16", "float16": "f16"}


@instructions
def pack(dtype: str, count: int) -> tuple[str, Asm]:
    """``cvt.rn.bf16x2.f32``: round values to the elements of `count` words, two in a word.

    The first source goes to the upper half. float32 values are words as they are.

    PTX ISA 9.7.9, PTX 7.0, sm_80.
    """
    if dtype == "float32":
        text = "\n".join(f"mov.b32 ${word}, ${count + word};" for word in range(count))
        return "values", Asm(text, (("f", count),), (("r", count),), memory=False)
    lines = [
        f"cvt.rn.{HALF[dtype]}x2.f32 ${word}, ${count + 2 * word + 1}, ${count + 2 * word};"
        for word in range(count)
    ]
    operands, results = (("f", 2 * count),), (("r", count),)
    return "values", Asm("\n".join(lines), operands, results, memory=False)


@instructions
def widen(dtype: str, count: int) -> tuple[str, Asm]:
    """``cvt.f32``: the exact float32 values of the elements of `count` words.

    PTX ISA 9.7.9, sm_80.
    """
    if dtype == "float32":
        text = "\n".join(f"mov.b32 ${word}, ${count + word};" for word in range(count))
        return "words", Asm(text, (("r", count),), (("f", count),), memory=False)
    lines = []
    for word in range(count):
        low, high, source = f"${2 * word}", f"${2 * word + 1}", f"${2 * count + word}"
        if dtype == "bfloat16":
            lines += [
                f"{{ .reg .b32 t; shl.b32 t, {source}, 16; mov.b32 {low}, t;",
                f"and.b32 t, {source}, 0xffff0000; mov.b32 {high}, t; }}",
            ]
        else:
            lines += [
                f"{{ .reg .b16 l, h; mov.b32 {{l, h}}, {source};",
                f"cvt.f32.f16 {low}, l; cvt.f32.f16 {high}, h; }}",
            ]
    return "words", Asm("\n".join(lines), (("r", count),), (("f", 2 * count),), memory=False)


def _add(count: int, others: Callable[[int], int]) -> str:
    """The text that adds value `others(i)` of the second operand to value i."""
    return "\n".join(f"add.f32 ${i}, ${count + i}, ${2 * count + others(i)};" for i in range(count))


@instructions
def add(count: int) -> tuple[str, Asm]:
    """``add.f32``: value by value.

    PTX ISA 9.7.3, sm_80.
    """
    operands, results = (("f", count), ("f", count)), (("f", count),)
    return "values others", Asm(_add(count, lambda i: i), operands, results, memory=False)


@instructions
def add_columns(columns: int) -> tuple[str, Asm]:
    """``add.f32``: to the values of both rows of a chunk the value of their column.

    PTX ISA 9.7.3, sm_80.
    """
    count = columns // 2
    text = _add(count, lambda i: i // 4 * 2 + i % 2)
    operands, results = (("f", count), ("f", count // 2)), (("f", count),)
    return "values columns", Asm(text, operands, results, memory=False)


@instructions
def scale_columns(columns: int) -> tuple[str, Asm]:
    """``fma.rn.f32``: the values of both rows of a chunk by the pair (scale, bias) of their column.

    PTX ISA 9.7.3, sm_80.
    """
    pairs = [i // 4 * 2 + i % 2 for i in range(columns // 2)]
    return "values pairs", _scale([(2 * pair, 2 * pair + 1) for pair in pairs], columns // 2)


@instructions
def scale(count: int) -> tuple[str, Asm]:
    """``fma.rn.f32``: value by value, of biases and after them as many scales.

    PTX ISA 9.7.3, sm_80.
    """
    return "values biases", _scale([(count + i, i) for i in range(count)], 2 * count)


def _scale(places: list[tuple[int, int]], numbers: int) -> Asm:
    """Values, each times one of the second operand's `numbers` plus another, at these places."""
    count = len(places)
    text = "\n".join(
        f"fma.rn.f32 ${i}, ${count + i}, ${2 * count + scale}, ${2 * count + bias};"
        for i, (scale, bias) in enumerate(places)
    )
    return Asm(text, (("f", count), ("f", numbers)), (("f", count),), memory=False)


def _each_word(columns: int, address: str, line: Callable[[int, str], str]) -> str:
    """`line(word, place)` for each word; register t holds the address of its tile."""
    lines, lower = ["{ .reg .u32 t;"], 8 * 2 * columns  # bytes to the row 8 further down
    for tile in range(columns // 8):
        lines.append(f"xor.b32 t, {address}, {16 * tile};")
        lines += [line(2 * tile + half, f"[t+{lower * half}]") for half in range(2)]
    return "\n".join([*lines, "}"])


@instructions
def load(columns: int) -> tuple[str, Asm]:
    """``ld.shared`` of a lane's words of 16-bit elements from a staging tile.

    `address` is that of word 0; the words of tile t are at the address with 16 t xored to it.

    PTX ISA 9.7.9, sm_80.
    """
    count = columns // 4
    text = _each_word(columns, f"${count}", lambda word, at: f"ld.shared.b32 ${word}, {at};")
    return "address", Asm(text, "r", (("r", count),))


@instructions
def store(columns: int) -> tuple[str, Asm]:
    """``st.shared`` of a lane's words to a staging tile, the inverse of `load`.

    PTX ISA 9.7.9, sm_80.
    """
    text = _each_word(columns, "$0", lambda word, at: f"st.shared.b32 {at}, ${1 + word};")
    return "address words", Asm(text, ("r", ("r", columns // 4)))
