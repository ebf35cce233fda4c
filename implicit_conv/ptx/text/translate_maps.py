"""Tensor maps that kernels change: ``tensormap`` and the fences of their proxy (PTX ISA 9.7.9)."""

from __future__ import annotations

from implicit_conv.ptx.machine import tensor_maps
from implicit_conv.ptx.memory.global_memory import MAP_BYTES
from implicit_conv.ptx.syntax import Immediate, Instruction, Operand
from implicit_conv.ptx.text.emit import Emitter, unsupported

SCOPES = ("cta", "cluster", "gpu", "sys")
COPY = ["cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release"]
PROXY = ["fence", "proxy", "tensormap::generic"]


def _place(e: Emitter, operand: Operand) -> str:
    base, offset = e.address(operand)
    return f"({base}, {offset})"


def tensor_map(e: Emitter, i: Instruction) -> list[str]:
    """``tensormap.replace`` and ``tensormap.cp_fenceproxy`` (9.7.9)."""
    words = i.opcode[1:]
    if words[:5] == COPY and words[5] in SCOPES and words[6:] == ["sync", "aligned"]:
        target, source, size = i.operands
        _need_size(i, size)
        places = _place(e, target), _place(e, source)
        return [e.call(tensor_maps.copy_and_release, "w", *places, e.mask)]
    if words[:2] != ["replace", "tile"] or words[-2] != "b1024":
        raise unsupported(i)
    field, space = words[2], "".join(words[3:-2]).removesuffix("::cta")
    place, *ordinal, value = i.operands
    kind = {"b32": "u4", "b64": "u8"}.get(words[-1])
    if space not in ("shared", "global", "") or kind is None:
        raise unsupported(i)
    number = 0
    if field not in (*tensor_maps.AXES, *tensor_maps.SCALARS, *tensor_maps.ONLY_ZERO):
        raise unsupported(i)
    if (field in tensor_maps.AXES) != bool(ordinal):
        raise unsupported(i, f"{len(i.operands)} operands")
    if ordinal:
        if not isinstance(ordinal[0], Immediate):
            raise unsupported(i, "an ordinal that is no literal")
        number = ordinal[0].value
    values = repr(field), number, e.read(value, kind)
    return [e.call(tensor_maps.change, "w", repr(space), _place(e, place), *values, e.mask)]


def fence(e: Emitter, i: Instruction) -> list[str]:
    """``fence.proxy.tensormap::generic`` (9.7.13, membar)."""
    words = i.opcode[len(PROXY) :]
    if len(words) != 2 or words[0] not in ("acquire", "release") or words[1] not in SCOPES:
        raise unsupported(i)
    if words[0] == "release":
        return [e.call(tensor_maps.release, "w")]
    place, size = i.operands
    _need_size(i, size)
    return [e.call(tensor_maps.acquire, "w", _place(e, place), e.mask)]


def _need_size(i: Instruction, size: Operand) -> None:
    if not isinstance(size, Immediate) or size.value != MAP_BYTES:
        raise unsupported(i, f"a size other than {MAP_BYTES}")


HANDLERS = {"tensormap": tensor_map}
