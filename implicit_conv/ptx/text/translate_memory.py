"""Loads, stores and atomic operations (PTX ISA 9.7.9 and 9.7.13)."""

from __future__ import annotations

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import TYPES
from implicit_conv.ptx.machine import access, cluster, mbarrier, order, watch
from implicit_conv.ptx.machine.lanes import ballot
from implicit_conv.ptx.memory.spaces import PARAM_BASE
from implicit_conv.ptx.syntax import Address, Instruction, Operand, Sink, Symbol, Vector
from implicit_conv.ptx.text import translate_async
from implicit_conv.ptx.text.emit import Emitter, modifiers, type_of, unsupported

SPACES = (
    "global shared shared::cta shared::cluster local param param::entry param::func const".split()
)
CACHES = (
    "ca cg cs lu cv wb wt L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last "
    "L1::no_allocate L2::64B L2::128B L2::256B"
)
SCOPES = "cta cluster gpu sys"
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel", "volatile", "nc", "sc")
ALLOWED = f"{' '.join(SPACES)} {CACHES} {SCOPES} weak v2 v4 v8 {' '.join(SEMANTICS)}"
OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def _space(i: Instruction) -> str:
    found = next((word for word in i.opcode if word in SPACES), "")
    return found if found == "shared::cluster" else found.split("::")[0]


def _semantics(words: list[str]) -> str:
    """Empty for a weak access; volatile counts as relaxed."""
    found = next((word for word in words if word in SEMANTICS), "")
    return "relaxed" if found == "volatile" else found


def _elements(operand: Operand) -> int:
    """How many elements an access moves: those of a vector have a power of two (9.7.9, ld)."""
    count = len(operand.parts) if isinstance(operand, Vector) else 1
    if count not in (1, 2, 4, 8):
        raise PtxError(f"a vector of {count} elements")
    return count


def load(e: Emitter, i: Instruction) -> list[str]:
    """``ld`` (9.7.9)."""
    words = modifiers(i, ALLOWED)
    kind, space = TYPES[type_of(i)], _space(i)
    destination, source = i.operands[:2]
    count = _elements(destination)
    if space == "param" and e.space_of(source) == "local":  # an argument of a call
        space = "local"
    if space == "param" and isinstance(source, Address) and isinstance(source.base, Symbol):
        offset = e.spaces.address(source.base.name) - PARAM_BASE + source.offset
        lines = [f"t = {e.call(access.load_parameter, 'w', offset, repr(kind), count)}"]
    else:
        form = repr(kind), count, e.lanes, repr(_semantics(words))
        values = e.call(access.LOADS[space], "w", "a", *form)
        lines = [f"a = {e.address(source)}", f"t = {values}"]
        if space == "shared":
            lines.append(e.call(watch.tell_load, "w", i.line, "a", e.mask))
    return [*lines, *e.write_parts(destination, "t", kind)]


def store(e: Emitter, i: Instruction) -> list[str]:
    """``st`` (9.7.9)."""
    words = modifiers(i, ALLOWED)
    kind, space = TYPES[type_of(i)], _space(i)
    target, source = i.operands[:2]
    _elements(source)
    if space == "param":  # an argument or result of a call
        space = "local"
    if space not in access.STORES:
        raise unsupported(i)
    form = repr(kind), e.read_parts(source, kind), e.lanes, repr(_semantics(words))
    return [e.call(access.STORES[space], "w", e.address(target), *form)]


def atomic(e: Emitter, i: Instruction) -> list[str]:
    """``atom`` and ``red`` of integers, float32 and float64 (9.7.13)."""
    spaces, orders = "global shared shared::cta shared::cluster", "relaxed acquire release acq_rel"
    words = modifiers(i, f"{spaces} {SCOPES} {' '.join(OPERATIONS)} {orders} noftz")
    operation = next((word for word in words if word in OPERATIONS), "")
    type_ = type_of(i, "u32 s32 u64 s64 b32 b64 f32 f64")
    if not operation or (type_[0] == "f" and operation != "add"):
        raise unsupported(i)
    kind, space = TYPES[type_], _space(i)
    if not space:
        raise unsupported(i, "generic addresses")
    destination, target, *given = i.operands if i.opcode[0] == "atom" else [Sink(), *i.operands]
    values = f"({', '.join(e.read(x, kind) for x in given)},)"
    places = repr(space), repr(operation), e.address(target), values
    made = e.call(order.atomic, "w", *places, repr(_semantics(words) or "relaxed"), e.mask)
    return [e.write(destination, made, kind)]


def load_matrix(e: Emitter, i: Instruction) -> list[str]:
    """``ldmatrix.sync.aligned.m8n8`` of 16-bit elements (9.7.14)."""
    words = modifiers(i, "sync aligned m8n8 x1 x2 x4 trans shared shared::cta")
    type_of(i, "b16")
    count = next((int(word[1:]) for word in words if word[0] == "x"), 0)
    if not count or "m8n8" not in words:
        raise unsupported(i)
    place = i.line, e.address(i.operands[1])
    values = e.call(access.load_matrix, "w", *place, count, "trans" in words, e.mask)
    return [f"t = {values}", *e.write_parts(i.operands[0], "t", "u4")]


def store_matrix(e: Emitter, i: Instruction) -> list[str]:
    """``stmatrix.sync.aligned.m8n8`` of 16-bit elements (9.7.14)."""
    words = modifiers(i, "sync aligned m8n8 x1 x2 x4 trans shared shared::cta")
    type_of(i, "b16")
    at, values = e.address(i.operands[0]), e.read_parts(i.operands[1], "u4")
    return [e.call(access.store_matrix, "w", at, values, "trans" in words, e.mask)]


def fence(e: Emitter, i: Instruction) -> list[str]:
    """``fence`` and ``membar`` (9.7.13)."""
    if i.opcode[:3] == translate_async.MAP_PROXY:
        return translate_async.fence_of_maps(e, i)
    words = modifiers(
        i,
        "acq_rel sc cta gpu sys gl cluster proxy async global shared::cta shared::cluster "
        "mbarrier_init release alias",
        typed=False,
    )
    if i.opcode[0] == "membar" and "proxy" not in words:
        words = ["sc"]
    return [e.call(mbarrier.fence, "w", words)]


def mapped(e: Emitter, i: Instruction) -> list[str]:
    """``mapa`` and ``getctarank`` (9.7.9)."""
    words, kind = modifiers(i, "shared::cluster"), TYPES[type_of(i, "u32 u64")]
    destination, at, *rank = i.operands
    place = "w", not words, e.read(at, kind)
    if i.opcode[0] == "getctarank":
        return [e.write(destination, e.call(cluster.ranks, *place, e.mask), "u4")]
    made = e.call(cluster.mapped, *place, e.read(rank[0], "u4"), e.mask)
    return [e.write(destination, f"{made}.astype('{kind}')", kind)]


def active(e: Emitter, i: Instruction) -> list[str]:
    """``activemask`` (9.7.13)."""
    type_of(i, "b32")
    return [e.write(i.operands[0], e.call(ballot, e.mask), "u4")]


def policy(e: Emitter, i: Instruction) -> list[str]:
    """``createpolicy``: a cache policy, which changes nothing that a program can see (9.7.9)."""
    type_of(i, "b64")
    return [e.write(i.operands[0], e.constant(0, "u8"), "u8")]


HANDLERS = {
    **dict.fromkeys(("ld", "ldu"), load),
    "st": store,
    **dict.fromkeys(("atom", "red"), atomic),
    "ldmatrix": load_matrix,
    "stmatrix": store_matrix,
    **dict.fromkeys(("fence", "membar"), fence),
    "activemask": active,
    **dict.fromkeys(("mapa", "getctarank"), mapped),
    "createpolicy": policy,
}
