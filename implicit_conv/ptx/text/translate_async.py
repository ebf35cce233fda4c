"""Asynchronous copies, mbarriers and tensor maps (PTX ISA 9.7.9 and 9.7.13)."""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.ptx.asynchronous import issue
from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import size_of
from implicit_conv.ptx.machine import mbarrier, tensor_maps
from implicit_conv.ptx.machine.reductions import REDUCED_TYPES
from implicit_conv.ptx.memory.global_memory import MAP_BYTES
from implicit_conv.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Sink,
    Vector,
)
from implicit_conv.ptx.targets import lacking
from implicit_conv.ptx.text.emit import Emitter, modifiers, type_of, unsupported

SCOPES = "release relaxed cta cluster shared shared::cta"
REMOTE = ("arrive", "expect_tx", "complete_tx")  # of an mbarrier of the cluster
COPY_SIZES = {"ca": (4, 8, 16), "cg": (16,)}  # bytes of cp.async by its cache operator
MODES = ("tile", "im2col", "im2col::w", "im2col::w::128")
HINTS = ("L2::cache_hint",)  # takes an operand more, which changes nothing
MULTICAST = "multicast::cluster"
# Directions of bulk copies. A block outside of a cluster is its own cluster.
LOADS = (
    ["shared::cta", "global", "mbarrier::complete_tx::bytes"],
    ["shared::cluster", "global", "mbarrier::complete_tx::bytes"],
    ["shared::cluster", "global", "mbarrier::complete_tx::bytes", MULTICAST],
)
STORE = ["global", "shared::cta", "bulk_group"]
BARRIER_ACTIONS: dict[str, Callable[..., None]] = {
    "init": mbarrier.init,
    "inval": mbarrier.invalidate,
    "expect_tx": mbarrier.expect,
    "complete_tx": mbarrier.complete,
}
SCOPES_OF_MAPS = ("cta", "cluster", "gpu", "sys")
COPY_OF_MAP = ["cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release"]
MAP_PROXY = ["fence", "proxy", "tensormap::generic"]


def barrier(e: Emitter, i: Instruction) -> list[str]:
    """``mbarrier`` but its waits, which end a block (9.7.13)."""
    what = i.opcode[1]
    scopes = f"{SCOPES} shared::cluster" if what in REMOTE else SCOPES
    words = modifiers(i, f"init inval arrive expect_tx complete_tx noComplete {scopes}")
    type_of(i, "b64")
    relaxed = "relaxed" in words
    has_token = what == "arrive" and not isinstance(i.operands[0], Address)
    target, *rest = i.operands[1:] if has_token else i.operands
    cluster = "shared::cluster" in words
    if cluster and has_token and not isinstance(i.operands[0], Sink):
        raise PtxError("an mbarrier of .shared::cluster gives no token: its destination is _")
    place = ["w", e.address(target), *([cluster] if what in REMOTE else [])]
    values = [e.read(operand, "u4") for operand in rest]
    if what in BARRIER_ACTIONS:
        return [e.call(BARRIER_ACTIONS[what], *place, *values, e.mask)]
    if what != "arrive" or "noComplete" in words:
        raise unsupported(i)
    lines = []
    if "expect_tx" in words:
        lines.append(e.call(mbarrier.expect, *place, values[0], e.mask))
        values = []
    count = values[0] if values else None
    arrival = e.call(mbarrier.arrive, *place, count, relaxed, e.mask)
    keeps = has_token and not isinstance(i.operands[0], Sink)
    return [*lines, e.write(i.operands[0], arrival, "u8") if keeps else arrival]


def copy(e: Emitter, i: Instruction) -> list[str]:
    """``cp.async`` in all its forms but the waits, which end a block (9.7.9)."""
    if i.opcode[:5] == ["cp", "reduce", "async", "bulk", "tensor"]:
        return _reduce(e, i)
    if i.opcode[:2] != ["cp", "async"]:
        raise unsupported(i)
    if i.opcode[2:] == ["commit_group"]:
        return [e.call(issue.commit_copies, "w")]
    if i.opcode[2:] == ["bulk", "commit_group"]:
        return [e.call(issue.commit_stores, "w", e.mask)]
    if i.opcode[2:4] == ["mbarrier", "arrive"]:
        words = modifiers(i, "async mbarrier arrive noinc shared shared::cta")
        at, noinc = e.address(i.operands[0]), "noinc" in words
        return [e.call(issue.arrive_after_copies, "w", at, noinc, e.mask)]
    if i.opcode[2] != "bulk":
        return _small(e, i)
    forms = {"prefetch": _prefetch, "tensor": _tensor}
    return forms.get("".join(i.opcode[3:4]), _bulk)(e, i)


def _small(e: Emitter, i: Instruction) -> list[str]:
    """``cp.async.cg`` and ``.ca`` of 4, 8 or 16 bytes."""
    words = modifiers(
        i, "async ca cg shared shared::cta global L2::64B L2::128B L2::256B", typed=False
    )
    size = i.operands[2]
    if not isinstance(size, Immediate) or size.value not in COPY_SIZES[words[1]]:
        raise unsupported(i, "this number of bytes")
    target, source = (e.address(operand) for operand in i.operands[:2])
    sizes = e.constant(size.value, "u4")
    if len(i.operands) > 3:
        sizes = e.read(i.operands[3], "u4")
    return [e.call(issue.copy_async, "w", target, source, size.value, sizes, e.mask)]


def _without_hints(i: Instruction, first: int) -> tuple[list[str], list[Operand]]:
    """(words of the opcode from `first` on, operands), but for a hint and its operand."""
    words = [word for word in i.opcode[first:] if word not in HINTS]
    hints = first + len(words) != len(i.opcode)
    return words, i.operands[: len(i.operands) - hints]


def _prefetch(e: Emitter, i: Instruction) -> list[str]:
    """``cp.async.bulk.prefetch``: a hint, which changes nothing that a program can see."""
    opcode, operands = _without_hints(i, 4)
    if opcode[:1] == ["tensor"]:
        mode = next((word for word in opcode if word in MODES), "tile")
        if [word for word in opcode[2:] if word not in MODES] != ["L2", "global"]:
            raise unsupported(i)
        _check_form(e, i, operands[0], opcode[1], mode, True)
    elif opcode != ["L2", "global"]:
        raise unsupported(i)
    return []


def _check_form(
    e: Emitter, i: Instruction, map: Operand, rank: str, mode: str, cluster: bool
) -> Address:
    """The map's operand, if there are coordinates for its rank and the target has such loads."""
    assert isinstance(map, Address)
    if f"{len(map.coordinates)}d" != rank:
        raise unsupported(i, f"{len(map.coordinates)} coordinates for {rank}")
    why = lacking(mode, cluster, e.target)
    if why:
        raise PtxError(why)
    return map


def _tensor(e: Emitter, i: Instruction) -> list[str]:
    """``cp.async.bulk.tensor``: loads that complete on an mbarrier, and stores of bulk groups."""
    opcode, operands = _without_hints(i, 4)
    mode = next((word for word in opcode if word in MODES), "tile")
    rest = [word for word in opcode[1:] if word not in MODES]
    if rest not in LOADS:
        return _tensor_store(e, i, opcode, STORE, "")
    cluster = rest[0] == "shared::cluster"
    map = _check_form(e, i, operands[1], opcode[0], mode, cluster)
    at = f"({', '.join(e.read(x, 'i4') for x in map.coordinates)},)"
    target, _, completes, *info = operands
    form = _form(e, i, rest, info, int(mode != "tile"))
    offsets = "()"
    if info and isinstance(info[0], Vector):
        for part in info[0].parts:  # the assembler cuts such an immediate without a word
            if isinstance(part, Immediate) and not -(1 << 15) <= part.value < 1 << 16:
                raise PtxError(f"the offset {part.value} does not fit in 16 bits")
        offsets = e.read_parts(info[0], "u2")
    where = e.address(target), e.address(map), at, offsets, e.address(completes), form
    return [e.call(issue.tensor_load, "w", i.line, repr(mode), *where, e.mask)]


def _form(e: Emitter, i: Instruction, words: list[str], info: list[Operand], vectors: int) -> str:
    """The form of a load: "cta", "cluster", or an expression for the mask of a multicast.

    `info`: operands between the mbarrier and the cache policy; so many `vectors` of offsets first.
    """
    if words[-1] != MULTICAST:
        return repr(words[0].removeprefix("shared::"))
    kinds = [Vector] * vectors + [Immediate | Register]
    policy = i.operands[-1] if HINTS[0] in i.opcode else None
    right = len(info) == len(kinds) and all(map(isinstance, info, kinds))
    mask = info[-1] if info else None
    narrow = not isinstance(mask, Register) or size_of(mask.kind) == 2
    wide = not isinstance(policy, Register) or size_of(policy.kind) == 8
    if not right or not narrow or not wide:
        order = "im2col offsets, 16-bit mask, policy"
        raise PtxError(f"after the mbarrier come {order}, in this order")
    assert mask is not None
    return e.read(mask, "u2")


def _tensor_store(
    e: Emitter, i: Instruction, opcode: list[str], form: list[str], reduction: str
) -> list[str]:
    """A tensor copy from shared memory, whose words after the rank are those of `form`."""
    modes = [word for word in opcode[1:] if word in ("tile", "im2col_no_offs")] or ["tile"]
    if [word for word in opcode[1:] if word not in modes[:1]] != form:
        raise unsupported(i)
    mode = modes[0].removesuffix("_no_offs")
    map = _check_form(e, i, i.operands[0], opcode[0], mode, False)
    at = f"({', '.join(e.read(x, 'i4') for x in map.coordinates)},)"
    places = e.address(i.operands[1]), e.address(map), at, repr(reduction)
    return [e.call(issue.tensor_store, "w", i.line, repr(mode), *places, e.mask)]


def _reduce(e: Emitter, i: Instruction) -> list[str]:
    """``cp.reduce.async.bulk.tensor``, of a bulk group."""
    opcode, _ = _without_hints(i, 5)
    how = next((word for word in opcode if word in REDUCED_TYPES), "")
    if not how:
        raise unsupported(i)
    return _tensor_store(e, i, opcode, [*STORE[:2], how, *STORE[2:]], how)


def _bulk(e: Emitter, i: Instruction) -> list[str]:
    """``cp.async.bulk`` of contiguous bytes."""
    opcode, operands = _without_hints(i, 3)
    if opcode not in LOADS and opcode != STORE:
        raise unsupported(i)
    target, source, size, *completes = operands
    places = [e.address(target), e.address(source), e.read(size, "u4")]
    if opcode in LOADS:
        barrier, *info = completes
        form = _form(e, i, opcode, info, 0)
        return [e.call(issue.bulk_load, "w", *places, e.address(barrier), form, e.mask)]
    return [e.call(issue.bulk_store, "w", *places, e.mask)]


def tensor_map(e: Emitter, i: Instruction) -> list[str]:
    """``tensormap.replace`` and ``tensormap.cp_fenceproxy`` (9.7.9)."""
    words = i.opcode[1:]
    if words[:5] == COPY_OF_MAP and words[5] in SCOPES_OF_MAPS and words[6:] == ["sync", "aligned"]:
        target, source, size = i.operands
        _need_size(i, size)
        places = e.address(target), e.address(source)
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
    return [e.call(tensor_maps.change, "w", repr(space), e.address(place), *values, e.mask)]


def fence_of_maps(e: Emitter, i: Instruction) -> list[str]:
    """``fence.proxy.tensormap::generic`` (9.7.13, membar)."""
    words = i.opcode[len(MAP_PROXY) :]
    if len(words) != 2 or words[0] not in ("acquire", "release") or words[1] not in SCOPES_OF_MAPS:
        raise unsupported(i)
    if words[0] == "release":
        return [e.call(tensor_maps.release, "w")]
    place, size = i.operands
    _need_size(i, size)
    return [e.call(tensor_maps.acquire, "w", e.address(place), e.mask)]


def _need_size(i: Instruction, size: Operand) -> None:
    if not isinstance(size, Immediate) or size.value != MAP_BYTES:
        raise unsupported(i, f"a size other than {MAP_BYTES}")


HANDLERS = {"mbarrier": barrier, "cp": copy, "tensormap": tensor_map}
