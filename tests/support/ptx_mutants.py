"""Random small changes of the instructions of a parsed kernel."""

import copy

from implicit_conv.ptx.syntax import Address, Immediate, Register, Vector

PAIRS = ("add sub", "and or", "lt le", "gt ge", "eq ne", "min max")
SWAPS = {"xor": "or"} | {a: b for a, b in map(str.split, PAIRS)}
SWAPS |= {b: a for a, b in map(str.split, PAIRS)}
COMMUTE = ("add", "mul", "and", "or", "xor", "min", "max")
UNTOUCHED = ("shfl", "bar", "barrier", "elect", "setmaxnreg")


def mutant(kernel, rng):
    """(a kernel with one change, the change in words) among the instructions that were run."""
    places = [
        (block, place)
        for block in kernel.blocks
        for place in range(len(block.instructions))
        if block.runs
    ]
    while True:
        block, place = rng.choice(places)
        changed = copy.copy(block.instructions[place])
        changed.operands, changed.opcode = list(changed.operands), list(changed.opcode)
        words = rng.choice(CHANGES)(changed, rng)
        if words:
            break
    made = copy.copy(kernel)
    vars(made).pop("_code", None)
    made.blocks = [copy.copy(other) for other in kernel.blocks]
    made.blocks[block.index].instructions = [*block.instructions]
    made.blocks[block.index].instructions[place] = changed
    return made, f"{words}, {changed.place}"


def literal(i, rng):
    """A literal one more or less."""
    places = [n for n, x in enumerate(i.operands) if isinstance(x, Immediate) and n > 0]
    if not places or i.opcode[0] in UNTOUCHED:
        return ""
    n, step = rng.choice(places), rng.choice((-1, 1))
    i.operands[n] = i.operands[n]._replace(value=i.operands[n].value + step)
    return f"literal {step:+}"


def sources(i, rng):
    """Two sources exchanged."""
    places = [n for n, x in enumerate(i.operands) if isinstance(x, Register) and n > 0]
    pairs = [
        (a, b)
        for a in places
        for b in places
        if a < b and i.operands[a].kind == i.operands[b].kind and i.operands[a] != i.operands[b]
    ]
    if not pairs or i.opcode[0] in COMMUTE:
        return ""
    a, b = rng.choice(pairs)
    i.operands[a], i.operands[b] = i.operands[b], i.operands[a]
    return "sources exchanged"


def guard(i, rng):
    """The other sense of a guard."""
    if i.guard is None:
        return ""
    i.guard = i.guard[0], not i.guard[1]
    return "guard negated"


def opcode(i, rng):
    """A related operation or comparison."""
    places = [n for n, word in enumerate(i.opcode[:2]) if word in SWAPS]
    if not places or i.opcode[-1] == "pred" or i.opcode[0] in UNTOUCHED:
        return ""
    new = SWAPS[i.opcode[places[0]]]
    if i.opcode[-1][0] == "b" and new not in ("and", "or", "xor", "eq", "ne"):
        return ""
    i.opcode[places[0]] = new
    return f"{new} instead"


def deletion(i, rng):
    """An instruction with an effect left out."""
    if i.opcode[0] not in ("st", "fence", "mbarrier", "cp", "wgmma") or "wait" in i.name:
        return ""
    i.opcode = ["prefetch"]
    return "deleted"


def offset(i, rng):
    """An address moved."""
    places = [n for n, x in enumerate(i.operands) if isinstance(x, Address)]
    if not places:
        return ""
    n = rng.choice(places)
    moved = i.operands[n].offset + rng.choice((16, -16, 64))
    i.operands[n] = i.operands[n]._replace(offset=moved)
    return "address moved"


def elements(i, rng):
    """Two elements of a vector exchanged."""
    places = [
        n for n, x in enumerate(i.operands) if isinstance(x, Vector) and len(set(x.parts)) > 1
    ]
    if not places:
        return ""
    n = rng.choice(places)
    parts = list(i.operands[n].parts)
    a, b = rng.sample(range(len(parts)), 2)
    if parts[a] == parts[b]:
        return ""
    parts[a], parts[b] = parts[b], parts[a]
    i.operands[n] = Vector(tuple(parts))
    return "elements exchanged"


CHANGES = (literal, sources, guard, opcode, deletion, offset, elements)
