"""Arithmetic, logic, comparison and moves of each lane by itself (PTX ISA 9.7.1 to 9.7.9).

An integer opcode is a row of `INTEGER`: its types, an expression over the operands, and the kinds
of operands and result: T is the instruction's type, W twice as wide, U a 32-bit count, P a
predicate.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from implicit_conv.ptx.kinds import TYPES, WIDER, size_of
from implicit_conv.ptx.machine import convert, floats, integers
from implicit_conv.ptx.machine.floats import HALF_OPERATIONS
from implicit_conv.ptx.syntax import Immediate, Instruction, Pair, Vector
from implicit_conv.ptx.text.emit import Emitter, modifiers, type_of, unsupported

INTEGERS = "u16 s16 u32 s32 u64 s64"
BITS = "b16 b32 b64"
FLOATS = "f32 f64 f16"
HALVES = "f16x2 bf16x2 bf16"


class Row(NamedTuple):
    """How an opcode is computed; `section` is the PTX ISA's."""

    types: str
    expression: str
    operands: str
    result: str
    section: str


INTEGER = {
    "add": Row(INTEGERS, "{0} + {1}", "TT", "T", "9.7.1"),
    "sub": Row(INTEGERS, "{0} - {1}", "TT", "T", "9.7.1"),
    "mul.lo": Row(INTEGERS, "{0} * {1}", "TT", "T", "9.7.1"),
    "mul.hi": Row(INTEGERS, "integers_multiply_high({0}, {1})", "TT", "T", "9.7.1"),
    "mul.wide": Row("u16 s16 u32 s32", "{0}.astype({W}) * {1}.astype({W})", "TT", "W", "9.7.1"),
    "mad.lo": Row(INTEGERS, "{0} * {1} + {2}", "TTT", "T", "9.7.1"),
    "mad.hi": Row(INTEGERS, "integers_multiply_high({0}, {1}) + {2}", "TTT", "T", "9.7.1"),
    "mad.wide": Row(
        "u16 s16 u32 s32", "{0}.astype({W}) * {1}.astype({W}) + {2}", "TTW", "W", "9.7.1"
    ),
    "sad": Row(INTEGERS, "np.where({0} < {1}, {1} - {0}, {0} - {1}) + {2}", "TTT", "T", "9.7.1"),
    "div": Row(INTEGERS, "integers_divide({0}, {1}, {mask})", "TT", "T", "9.7.1"),
    "rem": Row(INTEGERS, "integers_remainder({0}, {1}, {mask})", "TT", "T", "9.7.1"),
    "abs": Row("s16 s32 s64", "np.abs({0})", "T", "T", "9.7.1"),
    "neg": Row("s16 s32 s64", "-{0}", "T", "T", "9.7.1"),
    "min": Row(INTEGERS, "np.minimum({0}, {1})", "TT", "T", "9.7.1"),
    "max": Row(INTEGERS, "np.maximum({0}, {1})", "TT", "T", "9.7.1"),
    "popc": Row("b32 b64", "integers_count_ones({0})", "T", "U", "9.7.1"),
    "clz": Row("b32 b64", "integers_count_zeros({0})", "T", "U", "9.7.1"),
    "bfind": Row("u32 s32 u64 s64", "integers_highest_bit({0})", "T", "U", "9.7.1"),
    "brev": Row("b32 b64", "integers_reverse_bits({0})", "T", "T", "9.7.1"),
    "bfe": Row("u32 s32 u64 s64", "integers_extract_bits({0}, {1}, {2})", "TUU", "T", "9.7.1"),
    "bfi": Row("b32 b64", "integers_insert_bits({0}, {1}, {2}, {3})", "TTUU", "T", "9.7.1"),
    "and": Row(f"{BITS} pred", "{0} & {1}", "TT", "T", "9.7.8"),
    "or": Row(f"{BITS} pred", "{0} | {1}", "TT", "T", "9.7.8"),
    "xor": Row(f"{BITS} pred", "{0} ^ {1}", "TT", "T", "9.7.8"),
    "not": Row(f"{BITS} pred", "~{0}", "T", "T", "9.7.8"),
    "cnot": Row(BITS, "({0} == 0).astype({T})", "T", "T", "9.7.8"),
    "lop3": Row("b32", "integers_logic3({0}, {1}, {2}, {3})", "TTTU", "T", "9.7.8"),
    "shf.l.wrap": Row("b32", "integers_funnel({0}, {1}, {2}, True, True)", "TTU", "T", "9.7.8"),
    "shf.r.wrap": Row("b32", "integers_funnel({0}, {1}, {2}, False, True)", "TTU", "T", "9.7.8"),
    "shf.l.clamp": Row("b32", "integers_funnel({0}, {1}, {2}, True, False)", "TTU", "T", "9.7.8"),
    "shf.r.clamp": Row("b32", "integers_funnel({0}, {1}, {2}, False, False)", "TTU", "T", "9.7.8"),
    "prmt": Row("b32", "integers_permute_bytes({0}, {1}, {2})", "TTT", "T", "9.7.9"),
    "selp": Row(f"{INTEGERS} {BITS} f32 f64", "where({2}, {0}, {1})", "TTP", "T", "9.7.6"),
}
FUNCTIONS = {  # those that the expressions name
    name: getattr(integers, name.removeprefix("integers_"))
    for row in INTEGER.values()
    for name in re.findall(r"integers_\w+", row.expression)
}
SIGNED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARISONS = {**SIGNED, "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
COMBINATIONS = {"and": "&", "or": "|", "xor": "^"}
# Floats rounded to nearest. The ISA bounds the error of approximate functions, but does not fix it.
FLOAT = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "abs": "np.abs({0})", "min": "floats_minimum({0}, {1})", "max": "floats_maximum({0}, {1})",
    "sqrt": "np.sqrt({0})", "rcp": "floats_reciprocal({0})", "rsqrt": "floats_reciprocal_root({0})",
    "ex2": "np.exp2({0})", "lg2": "np.log2({0})", "sin": "np.sin({0})", "cos": "np.cos({0})",
    "tanh": "np.tanh({0})", "copysign": "np.copysign({1}, {0})",  # the sign of the first operand
}  # fmt: skip
ROUNDINGS = ("rz", "rm", "rp")
CONVERSION_MODIFIERS = "rn rz rm rp rna rni rzi rmi rpi ftz sat relu".split()


def integer(e: Emitter, i: Instruction) -> list[str]:
    """An opcode of `INTEGER`."""
    name = ".".join(i.opcode[:-1])
    row = INTEGER.get(name)
    kind = TYPES.get(i.opcode[-1], "")
    if row is None or i.opcode[-1] not in row.types.split():
        raise unsupported(i)
    kinds = {"T": kind, "W": WIDER.get(kind, ""), "U": "u4", "P": "?"}
    values = [
        e.read(operand, kinds[letter])
        for operand, letter in zip(i.operands[1:], row.operands, strict=True)
    ]
    e.names.update(FUNCTIONS)
    words = {"T": repr(kind), "W": repr(kinds["W"]), "mask": e.mask}
    return [e.write(i.operands[0], row.expression.format(*values, **words), kinds[row.result])]


def arithmetic(e: Emitter, i: Instruction) -> list[str]:
    """Opcodes of integers, floats or both; the type decides (9.7.1, 9.7.3, 9.7.4)."""
    if i.opcode[-1] in HALVES.split():
        return half(e, i)
    floats = i.opcode[-1] in FLOATS.split() and i.opcode[0] in (*FLOAT, "fma", "mad")
    return floating(e, i) if floats else integer(e, i)


def floating(e: Emitter, i: Instruction) -> list[str]:
    """float32, float64 and scalar float16 (9.7.3 and 9.7.4)."""
    kind = TYPES[type_of(i, FLOATS)]
    words = modifiers(i, "rn rz rm rp ftz sat approx full NaN")
    values = [e.read(operand, kind) for operand in i.operands[1:]]
    if "ftz" in words and kind == "f4":
        values = [e.call(floats.flush, value) for value in values]
    mode = next((word for word in words if word in ROUNDINGS), "rn")
    if mode != "rn" and kind != "f4":
        raise unsupported(i, f"rounding {mode} of this type")
    result = _float_expression(e, i, values, mode, words)
    if "ftz" in words and kind == "f4":
        result = e.call(floats.flush, result)
    if "sat" in words:
        result = e.call(floats.saturate, result)
    return [e.write(i.operands[0], result, kind)]


def _float_expression(
    e: Emitter, i: Instruction, values: list[str], mode: str, words: list[str]
) -> str:
    name = i.opcode[0]
    if name in ("fma", "mad"):
        return e.call(floats.fma, *values, repr(mode))
    directed = {"add": floats.add, "sub": floats.subtract, "mul": floats.multiply}
    if mode != "rn" and name in directed:
        return e.call(directed[name], *values, repr(mode))
    if mode != "rn" or name not in FLOAT:
        raise unsupported(i, f"the rounding .{mode}" if name in FLOAT else "")
    for function in (floats.minimum, floats.maximum, floats.reciprocal, floats.reciprocal_root):
        e.use(function)
    result = FLOAT[name].format(*values)
    return e.call(floats.nan_of, result, *values) if "NaN" in words else result


def half(e: Emitter, i: Instruction) -> list[str]:
    """bfloat16, and pairs of halves in one register (9.7.4)."""
    form = i.opcode[-1]
    modifiers(i, "rn approx")
    name = i.opcode[0]
    if name not in HALF_OPERATIONS:
        raise unsupported(i)
    e.names["HALF_OPERATIONS"] = HALF_OPERATIONS
    values = [e.read(operand, TYPES[form]) for operand in i.operands[1:]]
    expression = e.call(floats.halves, f"HALF_OPERATIONS[{name!r}]", repr(form), *values)
    return [e.write(i.operands[0], expression, TYPES[form])]


def shift(e: Emitter, i: Instruction) -> list[str]:
    """``shl`` and ``shr``: a count past the width shifts everything out (9.7.8)."""
    modifiers(i, "")
    kind = TYPES[type_of(i, f"{BITS} {INTEGERS}")]
    value, count = i.operands[1:]
    if isinstance(count, Immediate):
        by = e.constant(min(count.value % (1 << 32), 64), kind)
    else:
        by = f"np.minimum({e.read(count, 'u4')}, 64).astype({kind!r})"
    sign = "<<" if i.opcode[0] == "shl" else ">>"
    return [e.write(i.operands[0], f"{e.read(value, kind)} {sign} {by}", kind)]


def move(e: Emitter, i: Instruction) -> list[str]:
    """``mov``: a value, an address, or parts packed and unpacked, the lowest first (9.7.9)."""
    modifiers(i, "")
    kind = TYPES[type_of(i)]
    destination, source = i.operands
    if isinstance(source, Vector):
        part = f"u{size_of(kind) // len(source.parts)}"
        packed = e.call(
            convert.pack, f"'u{size_of(kind)}'", *(e.read(x, part) for x in source.parts)
        )
        return [e.write(destination, packed, f"u{size_of(kind)}")]
    if isinstance(destination, Vector):
        part = f"u{size_of(kind) // len(destination.parts)}"
        whole = e.read(source, f"u{size_of(kind)}")
        return [
            f"t = {e.call(convert.unpack, repr(part), whole)}",
            *e.write_parts(destination, "t", part),
        ]
    return [e.write(destination, e.read(source, kind), kind)]


def conversion(e: Emitter, i: Instruction) -> list[str]:
    """``cvt`` (9.7.9)."""
    to, source = i.opcode[-2:]
    words = i.opcode[1:-2]
    for word in words:
        if word not in CONVERSION_MODIFIERS:
            raise unsupported(i, f"the modifier .{word}")
    rounding = next((word for word in words if word[0] == "r" and word != "relu"), "")
    operands = i.operands[1:]
    if to in ("f16x2", "bf16x2") and source == "f32" and rounding == "rn":
        values = [e.read(operand, "f4") for operand in operands]
        expression = e.call(convert.convert_pair, *values, repr(to), "relu" in words)
        return [e.write(i.operands[0], expression, "u4")]
    if to == "tf32" and source == "f32" and rounding in ("rn", "rna"):
        expression = e.call(convert.to_tf32, e.read(operands[0], "f4"), repr(rounding))
        return [e.write(i.operands[0], expression, "u4")]
    if not {to, source} <= {*INTEGERS.split(), *FLOATS.split(), "u8", "s8", "bf16"}:
        raise unsupported(i)
    directed = rounding in ("rz", "rm", "rp") and (to, source) != ("f32", "f64")
    if "relu" in words or directed:
        raise unsupported(i)
    value = e.read(operands[0], TYPES[source])
    if "ftz" in words and source == "f32":
        value = e.call(floats.flush, value)
    exact = to[0] in "us" and source[0] in "us"
    if exact and "sat" in words:
        expression = e.call(convert.clamp, value, repr(to))
    elif exact:
        expression = f"{value}.astype({TYPES[to]!r})"
    else:
        form = repr(to), repr(source), repr(rounding), "sat" in words
        expression = e.call(convert.convert, value, *form)
    return [e.write(i.operands[0], expression, TYPES[to])]


def compare(e: Emitter, i: Instruction) -> list[str]:
    """``setp``: a comparison, perhaps combined with a predicate (9.7.6)."""
    kind = TYPES[type_of(i)]
    words = [word for word in i.opcode[2:-1] if word != "ftz"]
    if len(words) > 1 or any(word not in COMBINATIONS for word in words):
        raise unsupported(i)
    a, b = (e.read(operand, kind) for operand in i.operands[1:3])
    if i.opcode[-1] == "bf16":
        a, b = (f"{e.call(floats.values16, x, repr('bf16'))}" for x in (a, b))
        kind = "f8"
    expression = _comparison(e, i, kind, a, b)
    destination = i.operands[0]
    other = ""
    if words:
        other = f" {COMBINATIONS[words[0]]} {e.read(i.operands[3], '?')}"
    if isinstance(destination, Pair):
        return [
            f"t = {expression}",
            e.write(destination.first, f"(t){other}", "?"),
            e.write(destination.second, f"(~t){other}", "?"),
        ]
    return [e.write(destination, f"({expression}){other}", "?")]


def _comparison(e: Emitter, i: Instruction, kind: str, a: str, b: str) -> str:
    """Whether two values of a kind compare as the opcode's second word says."""
    how = i.opcode[1]
    if kind[0] == "f" and how not in ("eq", "lt", "le", "gt", "ge"):
        return e.call(floats.compare, repr(how), a, b)
    if how not in COMPARISONS:
        raise unsupported(i)
    return f"{a} {COMPARISONS[how]} {b}"


def compare_to_value(e: Emitter, i: Instruction) -> list[str]:
    """``set``: a comparison whose result is all ones, or 1.0 (9.7.6)."""
    to, source = i.opcode[-2:]
    if to not in ("u32", "s32", "f32") or [w for w in i.opcode[2:-2] if w != "ftz"]:
        raise unsupported(i)
    a, b = (e.read(operand, TYPES[source]) for operand in i.operands[1:3])
    expression = _comparison(e, i, TYPES[source], a, b)
    high, low = (e.constant(v, TYPES[to]) for v in (0x3F800000 if to == "f32" else -1, 0))
    return [e.write(i.operands[0], f"where({expression}, {high}, {low})", TYPES[to])]


def address_window(e: Emitter, i: Instruction) -> list[str]:
    """``cvta``: between an address in a space and a generic one (9.7.9)."""
    words = modifiers(i, "to global shared shared::cta shared::cluster local param const")
    type_of(i, "u32 u64")
    space = words[-1].split("::")[0]
    value = e.read(i.operands[1], "u8")
    if space in ("shared", "local", "param"):
        value = f"{value} {'-' if 'to' in words else '+'} {e.window(space)}"
    return [e.write(i.operands[0], value, "u8")]


HANDLERS = {
    **dict.fromkeys((*(name.split(".")[0] for name in INTEGER), *FLOAT, "fma"), arithmetic),
    "shl": shift,
    "shr": shift,
    "mov": move,
    "cvt": conversion,
    "setp": compare,
    "set": compare_to_value,
    "cvta": address_window,
}
